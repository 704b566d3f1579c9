"""The faults that tools/simt_mutations.py puts into the CUDA kernels, and the tests that should notice.

A fault changes what can be observed: a result, an access, an order of threads. What only costs time (a wider grid, a
looser bound that a later step makes good) is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    file: str
    what: str
    old: str
    new: str
    nth: int = 1  # which occurrence of `old`
    test: str = ""  # of which kernel; "": of the file's own


EXTRACT, GATHER, SCALED = (
    f"csrc/kernels/cuda/{name}.cuh" for name in ("extract_batch", "gather_records", "gather_records_scaled")
)
TERNARY = "csrc/kernels/cuda/ternary_linear.cuh"
TERNARY_LAUNCH = TERNARY.removesuffix("h")
QUANTIZE8, LINEAR8 = (f"csrc/kernels/cuda/float8_{name}.cuh" for name in ("quantize", "linear"))
QUANTIZE8_LAUNCH = QUANTIZE8.removesuffix("h")
TILES8, TILES8_SM100 = (f"csrc/kernels/cuda/float8_tiles{suffix}.h" for suffix in ("", "_sm100"))
TMA, TERNARY_TILES = "csrc/kernels/cuda/tma.h", "csrc/kernels/cuda/ternary_tiles.cuh"
BFLOAT16 = "csrc/kernels/cuda/to_bfloat16_rne.cuh"
EXTRACT_LAUNCH = EXTRACT.removesuffix("h")
WIDEST_WORD = "csrc/kernels/cuda/widest_word.h"
ARGMAX, COMPACT, GEMV, HISTOGRAM, TRANSPOSE = (
    f"tests/simt/kernels/{name}.cuh" for name in ("argmax", "compact", "gemv", "histogram", "transpose")
)
ATTENTION, APPEND, MOVE, SAMPLE, PROBABILITIES, SKINNY = (
    f"csrc/kernels/cuda/{name}.cuh"
    for name in ("decode_attention", "kv_append_", "kv_move_", "sample", "token_probabilities", "skinny_linear")
)
ATTENTION_LAUNCH, APPEND_LAUNCH, MOVE_LAUNCH, SKINNY_LAUNCH, GATHER_LAUNCH, SCALED_LAUNCH, BFLOAT16_LAUNCH = (
    name.removesuffix("h") for name in (ATTENTION, APPEND, MOVE, SKINNY, GATHER, SCALED, BFLOAT16)
)
ATTENTION_JOB = "csrc/kernels/cuda/decode_attention.h"
LINEAR8_LAUNCH, PUT8 = LINEAR8.removesuffix("h"), "csrc/kernels/cuda/float8_put.cuh"
ROW_GRID = "csrc/kernels/cuda/row_grid.h"
BARRIER = "__syncthreads();"

FAULTS = [
    Fault(EXTRACT, "<= for <: window past the end", "offset < tokens", "offset <= tokens"),
    Fault(EXTRACT, "< for <=: first window refused", "0 <= offset", "0 < offset"),
    Fault(EXTRACT, "swapped index: row from x", "row = blockIdx.y", "row = blockIdx.x"),
    Fault(EXTRACT, "rows skipped", "row += gridDim.y", "row += gridDim.y + 1"),
    Fault(EXTRACT, "<= for <: a column too many", "i < job.block_size", "i <= job.block_size"),
    Fault(EXTRACT, "targets not shifted", "offset + i + 1]", "offset + i]"),
    Fault(EXTRACT, "swapped index: column-major", "row * job.block_size + i", "row + i * job.batch"),
    Fault(EXTRACT, "blocks repeat each other", "int64_t{blockDim.x} * gridDim.x", "int64_t{blockDim.x}"),
    Fault(EXTRACT, "wrong fill", "int64_t{-1}", "int64_t{0}"),
    Fault(EXTRACT_LAUNCH, "missing tail", "job.block_size + kExtractThreads - 1", "job.block_size"),
    Fault(EXTRACT_LAUNCH, "grid not limited", "std::min(job.batch, kMaxGridY)", "job.batch"),
    Fault(GATHER, "<= for <: a row too many", "asked < rows", "asked <= rows"),
    Fault(GATHER, "row's bytes for its stride", "index * job.row_stride", "index * job.row_bytes"),
    Fault(GATHER, "blocks repeat each other", "int64_t{blockDim.x} * gridDim.x", "int64_t{blockDim.x}"),
    Fault(WIDEST_WORD, "alignment check too weak", "all % 16", "all % 8"),
    Fault(SCALED, "wrong channel", "channel * size", "row * size"),
    Fault(SCALED, "channels of one row only", "job.batch * job.channels", "job.batch"),
    Fault(TERNARY, "removed barrier: before the warps' values", BARRIER, ""),
    Fault(TERNARY, "wrong order of activations", "i % 4 * 4 + i % 16 / 4", "i % 16"),
    Fault(TERNARY, "<= for <: past the end of x", "i < job.k && !nothing", "i <= job.k && !nothing"),
    Fault(TERNARY, "padding unwritten", "i < ternary_cuda_padded(job.k)", "i < job.k"),
    Fault(TERNARY, "a warp too few", "warp < kTernaryThreads / 32", "warp < kTernaryThreads / 32 - 1"),
    Fault(TERNARY, "subnormals not enlarged", "0x1p100f", "1.0f"),
    Fault(TERNARY, "digits of another place", "digits >> 2 * s", "digits >> s"),
    Fault(TERNARY, "codes of 11 pass", "if (!valid)", "if (false)"),
    Fault(TERNARY, "columns skipped", "column += warps", "column += warps + 1"),
    Fault(TERNARY, "rows skipped", "row += int64_t{gridDim.y} * Rows", "row += int64_t{gridDim.y + 1} * Rows"),
    Fault(TERNARY, "columns skipped: exact", "column += warps", "column += warps + 1", 2),
    Fault(TERNARY, "lane mask wrong", "mask = 16; mask > 0", "mask = 16; mask > 1", 2),
    Fault(TERNARY, "<= for <: a row too many", "lane == 0 && row + r < job.rows", "lane == 0 && row + r <= job.rows"),
    Fault(TERNARY_LAUNCH, "missing tail", "job.n + kWarps - 1", "job.n"),
    Fault(QUANTIZE8, "removed barrier: before the maxima", BARRIER, "", 2),
    Fault(QUANTIZE8, "removed barrier: between turns", BARRIER, ""),
    Fault(QUANTIZE8, "barrier only for some threads", BARRIER, "if (lane < 32) __syncthreads();"),
    Fault(QUANTIZE8, "infinities counted", "if (magnitude <= 0x1.fffffep127f) ", ""),
    Fault(QUANTIZE8, "wrong lane", "mask = 16", "mask = 8"),
    Fault(QUANTIZE8, "rows packed without padding", "row * float8_spread_stride(job.k)", "row * job.k"),
    Fault(QUANTIZE8_LAUNCH, "teams counted as threads", "(all + teams - 1) / teams", "all / teams"),
    Fault(LINEAR8, "alignment check too weak", "% sizeof(Float8Pack) == 0", "% 1 == 0"),
    Fault(LINEAR8, "read past the end", "j < count ? e4m3", "j <= count ? e4m3"),
    Fault(LINEAR8, "group of another block", "at / kFloat8Block : 0", "at / 64 : 0"),
    Fault(LINEAR8, "row's scale for all", "source * job.groups + group", "group"),
    Fault(LINEAR8, "columns skipped", "column += warps", "column += warps + 1"),
    Fault(LINEAR8, "products skipped", "i += step", "i += step + 1"),
    Fault(LINEAR8, "lane mask wrong", "mask = 16; mask > 0", "mask = 16; mask > 1"),
    Fault(LINEAR8, "row too many written", "lane == 0 && row < job.rows", "lane == 0"),
    Fault(TERNARY_TILES, "removed barrier: before a piece is read", BARRIER, ""),
    Fault(TERNARY_TILES, "removed barrier: before valid is read", BARRIER, "", 2),
    Fault(TERNARY_TILES, "removed barrier: between tiles", BARRIER, "", 3),
    Fault(TERNARY_TILES, "tiles skipped", "tile += gridDim.x", "tile += gridDim.x + 1"),
    Fault(TERNARY_TILES, "one piece for both turns", "now ^= 1", "now ^= 0"),
    Fault(TERNARY_TILES, "<= for <: a word too many", "word >= words", "word > words"),
    Fault(TERNARY_TILES, "<= for <: a column too many", "column + at >= job.n", "column + at > job.n"),
    Fault(TERNARY_TILES, "rows of a of another half", "part % 2 * 8", "part / 2 * 8"),
    Fault(TERNARY_TILES, "sums of another lane", "lane % 4 * 2", "lane % 2 * 2"),
    Fault(TERNARY_TILES, "code of 11 of another column", "1u << i", "1u"),
    Fault(TERNARY_TILES, "columns fastest", "tile % down * kTernaryTile", "tile / down * kTernaryTile"),
    Fault(TMA, "swizzle by the wrong rows", "offset >> 7 & 7", "offset >> 8 & 7"),
    Fault(TMA, "unaligned maps", "stride % 16 == 0", "stride % 8 == 0"),
    Fault(TILES8_SM100, "stride of four rows", "1024 >> 4", "512 >> 4"),
    Fault(TILES8_SM100, "WGMMA's swizzle mode", "kSwizzle128 = 2", "kSwizzle128 = 1"),
    Fault(TILES8_SM100, "shape: columns for rows", "kN >> 3", "kN >> 4"),
    Fault(TILES8_SM100, "parity of another turn", "k / slots % 2", "k % 2"),
    Fault(TILES8_SM100, "sums share columns", "slot * kN + column", "slot + column"),
    Fault(TILES8_SM100, "lanes of one warp for all", "static_cast<uint32_t>(warp) * 32 << 16", "0u"),
    Fault(TILES8, "stride of four rows", "1024 >> 4", "512 >> 4"),
    Fault(TILES8, "sums of another thread", "lane % 4 * 2", "lane % 2 * 2"),
    Fault(TILES8, "parity of another turn", "k / kTileStages % 2", "k % 2"),
    Fault(TILES8, "columns fastest", "block % down * tile_rows", "block / down * tile_rows"),
    Fault(BFLOAT16, "<= for <: an element too many", "i < job.count", "i <= job.count"),
    Fault(BFLOAT16, "strides swapped", "at * job.out_strides[d]", "at * job.x_strides[d]"),
    Fault(BFLOAT16, "outermost dimension left out", "from += rest * job.x_strides[0]", "from += rest"),
    Fault(BFLOAT16, "blocks repeat each other", "int64_t{blockDim.x} * gridDim.x", "int64_t{blockDim.x}"),
    Fault(ATTENTION, "removed barrier: before query is read", BARRIER, ""),
    Fault(ATTENTION, "removed barrier: before scores are read", BARRIER, "", 2),
    Fault(ATTENTION, "removed barrier: before weights are read", BARRIER, "", 3),
    Fault(ATTENTION, "removed barrier: before warps' sums", BARRIER, "", 4),
    Fault(ATTENTION, "removed barrier: between columns", BARRIER, "", 5),
    Fault(ATTENTION, "window a position too long", "end - d.window : start", "end - d.window - 1 : start"),
    Fault(ATTENTION, "<= for <: a row too many", "row >= d.cache_rows", "row > d.cache_rows"),
    Fault(ATTENTION, "<= for <: a page too many", "page >= d.pages", "page > d.pages"),
    Fault(ATTENTION, "unused blocks count", "d.row_blocks * d.job.slots", "d.job.block_row * d.job.slots"),
    Fault(ATTENTION, "longer than its pages", "blocks ? end : end - range.begin", "blocks ? start : end - range.begin"),
    Fault(ATTENTION, "page of another row", "row * d.job.block_row", "0"),
    Fault(ATTENTION, "wrong stride: adjacent blocks", "row * d.job.block_row", "row * d.row_blocks"),
    Fault(ATTENTION, "slot not within its page", "slot = (begin + i) % job.slots", "slot = begin + i"),
    Fault(ATTENTION, "wrong stride: keys' for values", "slot * job.value_slot", "slot * job.key_slot"),
    Fault(ATTENTION, "wrong stride: head's for row", "page * job.value_row", "page * job.value_head * job.key_heads"),
    Fault(ATTENTION, "wrong stride: adjacent queries", "batch_row * job.query_row", "batch_row * d.heads() * size"),
    Fault(ATTENTION, "lane mask wrong: scores", "mask = kKeyLanes / 2; mask > 0", "mask = kKeyLanes / 2; mask > 1"),
    Fault(ATTENTION, "lane mask wrong: values", "mask = lanes; mask < 32", "mask = lanes; mask < 16"),
    Fault(ATTENTION, "missing tail: keys", "i = packs * Pack::kSize + part_of_key", "i = size"),
    Fault(ATTENTION, "missing tail: values", "j < left; ++j", "j < left / 4 * 4; ++j"),
    Fault(ATTENTION, "what is not there has a score", "there ? score : NAN", "score"),
    Fault(ATTENTION, "scores not shifted", "expf(row[i] - shift)", "expf(row[i])"),
    Fault(ATTENTION, "largest not below 0", "float largest = -INFINITY, sum", "float largest = 0, sum"),
    Fault(ATTENTION, "heads that are not there", "h < heads; h += kAttentionWarps", "h < Heads; h += kAttentionWarps"),
    Fault(ATTENTION, "warps repeat each other", "i += kAttentionWarps * together", "i += together"),
    Fault(ATTENTION, "<= for <: a column too many", "tile + in_tile >= size", "tile + in_tile > size"),
    Fault(ATTENTION, "heads of the first tile", "/ pieces % tiles * Heads", "/ pieces % tiles"),
    Fault(ATTENTION, "another piece's weight", "* part[i * stride + 1]", "* part[1]"),
    Fault(ATTENTION, "another piece's values", "part[i * stride + 2 + column]", "part[2 + column]"),
    Fault(ATTENTION, "pieces not brought together", "sum += expf(part[i * stride] - shift) *", "sum +="),
    Fault(ATTENTION, "empty range is no number", "range.pieces > 0 ? sum / weight : 0", "sum / weight"),
    Fault(ATTENTION_LAUNCH, "alignment check too weak", "all % 16 == 0", "all % 8 == 0"),
    Fault(ATTENTION_LAUNCH, "a stride not checked", "job.value_slot | job.head_size", "job.head_size"),
    Fault(ATTENTION_LAUNCH, "missing tail: heads", "(d.job.group + Heads - 1) / Heads", "d.job.group / Heads"),
    Fault(ATTENTION_LAUNCH, "shared memory of large heads", "head_size > 512", "head_size > 5120"),
    Fault(ATTENTION_JOB, "missing tail: pieces", "most + kPiecePositions - 1", "most"),
    Fault(APPEND, "<= for <: a vector too many", "vector < vectors", "vector <= vectors"),
    Fault(APPEND, "<= for <: a word too many", "i < words", "i <= words"),
    Fault(APPEND, "<= for <: a row too many", "row >= job.cache_rows", "row > job.cache_rows"),
    Fault(APPEND, "<= for <: a page too many", "page >= job.pages", "page > job.pages"),
    Fault(APPEND, "<= for <: a block too many", "block >= job.row_blocks", "block > job.row_blocks"),
    Fault(APPEND, "positions overflow", " || position > INT64_MAX - token", ""),
    Fault(APPEND, "first tokens for the last", "skipped + vector % tokens", "vector % tokens"),
    Fault(APPEND, "swapped index: head from token", "vector / tokens % job.heads", "vector % job.heads"),
    Fault(APPEND, "slots do not go round", "slot = (position + token) % job.slots", "slot = position + token"),
    Fault(APPEND, "page of another row", "row * job.block_stride", "b * job.block_stride"),
    Fault(APPEND, "wrong stride: adjacent blocks", "row * job.block_stride", "row * job.row_blocks"),
    Fault(APPEND, "wrong stride: adjacent slots", "slot * side.slot_stride", "slot * side.bytes"),
    Fault(APPEND, "blocks repeat each other: vectors", "int64_t{blockDim.y} * gridDim.y", "int64_t{blockDim.y}"),
    Fault(APPEND, "blocks repeat each other: words", "int64_t{blockDim.x} * gridDim.x", "int64_t{blockDim.x}"),
    Fault(APPEND_LAUNCH, "size not checked", "side.fresh_token_stride | side.bytes", "side.fresh_token_stride"),
    Fault(APPEND_LAUNCH, "tokens' stride not checked", "side.fresh_token_stride | side.bytes", "side.bytes"),
    Fault(APPEND_LAUNCH, "slots' stride not checked", "side.head_stride | side.slot_stride", "side.head_stride"),
    Fault(APPEND_LAUNCH, "heads' stride not checked", "side.head_stride | side.slot_stride", "side.slot_stride"),
    Fault(APPEND_LAUNCH, "words of keys for values", "joined(job.keys) | joined(job.values)", "joined(job.keys)"),
    Fault(APPEND_LAUNCH, "no plane of values", "grid.z = 2", "grid.z = 1"),
    Fault(MOVE, "<= for <: a pair too many", "pair < pairs", "pair <= pairs"),
    Fault(MOVE, "<= for <: a word too many", "i < words", "i <= words"),
    Fault(MOVE, "<= for <: a row too many", "row >= job.cache_rows", "row > job.cache_rows"),
    Fault(MOVE, "positions overflow", "first > INT64_MAX - job.tokens || ", ""),
    Fault(MOVE, "last token first", "t = 0; t < job.tokens; ++t", "t = job.tokens - 1; t >= 0; --t"),
    Fault(MOVE, "sources of the first row", "b * job.tokens + t", "t"),
    Fault(MOVE, "sources behind their place", "!job.moves(source, position)", "source < 0"),
    Fault(
        MOVE,
        "swapped index",
        "pair / job.heads, head = pair % job.heads",
        "pair % job.heads, head = pair / job.heads",
    ),
    Fault(MOVE, "rows in order", "row * side.row_stride", "b * side.row_stride"),
    Fault(MOVE, "slots do not go round", "slots + source % job.slots", "slots + source"),
    Fault(MOVE, "blocks repeat each other: pairs", "int64_t{blockDim.y} * gridDim.y", "int64_t{blockDim.y}"),
    Fault(MOVE, "blocks repeat each other: words", "int64_t{blockDim.x} * gridDim.x", "int64_t{blockDim.x}"),
    Fault(MOVE_LAUNCH, "size not checked", "side.slot_stride | side.bytes", "side.slot_stride"),
    Fault(MOVE_LAUNCH, "slots' stride not checked", "side.slot_stride | side.bytes", "side.bytes"),
    Fault(MOVE_LAUNCH, "words of keys for values", "joined(job.keys) | joined(job.values)", "joined(job.keys)"),
    Fault(MOVE_LAUNCH, "no plane of values", "grid.z = 2", "grid.z = 1"),
    # Three barriers of sample.cuh order nothing that others do not order too: the first of open_block and of
    # collect_where, and the kernel's own.
    Fault(SAMPLE, "removed barrier: before one thread's turn", BARRIER, "", 2),
    Fault(SAMPLE, "removed barrier: after one thread's turn", BARRIER, "", 3),
    Fault(SAMPLE, "removed barrier: after the list", BARRIER, "", 4),
    Fault(SAMPLE, "removed barrier: after warps' maxima", BARRIER, "", 6),
    Fault(SAMPLE, "removed barrier: before warps' sums", BARRIER, "", 7),
    Fault(SAMPLE, "removed barrier: after warps' sums", BARRIER, "", 8),
    Fault(SAMPLE, "removed barrier: before keys are counted", BARRIER, "", 10),
    Fault(SAMPLE, "removed barrier: after keys", BARRIER, "", 11),
    Fault(SAMPLE, "removed barrier: before blocks' sums", BARRIER, "", 12),
    Fault(SAMPLE, "removed barrier: after blocks' sums", BARRIER, "", 13),
    Fault(SAMPLE, "removed barrier: between rows", BARRIER, "", 5, test="token_probabilities"),
    Fault(SAMPLE, "least weight left out", "r >= C::kLeast", "r > C::kLeast", test="token_probabilities"),
    Fault(SAMPLE, "rows skipped", "r += gridDim.x", "r += gridDim.x + 1"),
    Fault(SAMPLE, "ties to the last: of a thread", "value > mine_ ||", "value >= mine_ ||"),
    Fault(SAMPLE, "ties to the last: of a block", "if (other > key) key", "if (other < key) key"),
    Fault(SAMPLE, "lane mask wrong: maxima", "mask = 16; mask > 0", "mask = 16; mask > 1"),
    Fault(SAMPLE, "lane mask wrong: blocks' sums", "mask = kSampleLanes / 2", "mask = kSampleLanes"),
    Fault(SAMPLE, "<= for <: a key is before itself", "shared_.keys[j] > key", "shared_.keys[j] >= key"),
    Fault(SAMPLE, "<= for <: listed past the end", "before < k", "before <= k"),
    Fault(SAMPLE, "<= for <: a key too many", "at < kSampleKeys", "at <= kSampleKeys"),
    Fault(SAMPLE, "atomic replaced by ++", "atomicAdd(&shared_.found, 1u)", "shared_.found++"),
    Fault(SAMPLE, "a tie too few", "value == cut.at && i < high", "value == cut.at && i < low"),
    Fault(SAMPLE, "warps repeat each other", "pair += kSampleWarps * 2", "pair += kSampleWarps"),
    Fault(SAMPLE, "every other block left out", "pair + threadIdx.x / kSampleLanes % 2", "pair"),
    Fault(SAMPLE, "read past the end", "i >= count_ ||", "i > count_ ||"),
    Fault(SAMPLE, "cut at the floor", "weight >= floor", "weight > floor"),
    Fault(SAMPLE, "cut's ties counted as above", "if (value > at && weight", "if (value >= at && weight"),
    Fault(SAMPLE, "groups of the first pass", "(mine - g) * each; b", "mine * each; b"),
    Fault(SAMPLE, "block of the first group", "(first_block_ + b) * kSampleBlock", "b * kSampleBlock"),
    Fault(SAMPLE, "null written", "if (job.valid) ", ""),
    Fault(SAMPLE, "null written: logarithms", "if (job.logprobs) ", ""),
    Fault(SAMPLE, "one row's settings for all", "r * job.settings_stride", "0"),
    Fault(PROBABILITIES, "rows skipped", "r += gridDim.x", "r += gridDim.x + 1"),
    Fault(PROBABILITIES, "removed barrier: before the list", BARRIER, ""),
    Fault(PROBABILITIES, "<= for <: listed past the end", "i < n; i +=", "i <= n; i +="),
    Fault(PROBABILITIES, "<= for <: a tie too many", "i < end", "i <= end"),
    Fault(PROBABILITIES, "<= for <: an element too many", "i < this->count()", "i <= this->count()"),
    Fault(PROBABILITIES, "cut at the floor", "weight >= floor", "weight > floor"),
    Fault(PROBABILITIES, "all ties kept", "value > at ||", "value >= at ||"),
    Fault(PROBABILITIES, "wrong stride: scores' for the result", "r * job.out_stride", "r * job.stride"),
    Fault(PROBABILITIES, "one row's settings for all", "r * job.settings_stride", "0"),
    Fault(SKINNY, "rows that are not there", "(row < job.rows ? row : 0)", "row"),
    Fault(SKINNY, "<= for <: a column too many", "column < job.n", "column <= job.n"),
    Fault(SKINNY, "row too many written", "lane == 0 && row < job.rows", "lane == 0"),
    Fault(SKINNY, "alignment check too weak", "% sizeof(Pack) == 0", "% sizeof(Element) == 0"),
    Fault(SKINNY, "alignment of weights alone", "starts |= reinterpret_cast<uintptr_t>(x[row]);", ""),
    Fault(SKINNY, "columns skipped", "column += warps", "column += warps + 1"),
    Fault(SKINNY, "missing tail", "i = packs * Pack::kSize + lane", "i = job.k"),
    Fault(SKINNY, "wrong stride: adjacent weights", "column * job.weight_stride", "column * job.k"),
    Fault(SKINNY, "lane mask wrong", "mask = 16; mask > 0", "mask = 16; mask > 1"),
    Fault(SKINNY, "blocks repeat each other", "int64_t{gridDim.x} * (blockDim.x / 32)", "int64_t{blockDim.x / 32}"),
    Fault(SKINNY_LAUNCH, "missing tail", "job.n + kWarps - 1", "job.n"),
    Fault(SKINNY_LAUNCH, "kernel of too few rows", "job.rows <= 4", "job.rows <= 5"),
    Fault(PUT8, "swapped index: bias", "Half*>(job.bias)[column]", "Half*>(job.bias)[row]"),
    Fault(PUT8, "wrong stride", "row * job.n + column", "row * job.k + column"),
    Fault(PUT8, "bias left out", "if (job.bias) value += static_cast<const float*>(job.bias)[column];", ""),
    Fault(LINEAR8_LAUNCH, "kernel of too few rows", "job.rows <= 8", "job.rows <= 9"),
    Fault(ROW_GRID, "too many threads", "kThreads / wide", "kThreads"),
    Fault(ROW_GRID, "missing tail", "(items + each - 1) / each", "items / each"),
    Fault(ROW_GRID, "grid not limited", "block.y, kMaxGridY", "block.y, int64_t{1} << 31"),
    Fault(GATHER_LAUNCH, "stride not checked", "job.row_stride | job.row_bytes", "job.row_bytes"),
    Fault(GATHER_LAUNCH, "size not checked", "job.row_stride | job.row_bytes", "job.row_stride"),
    Fault(SCALED_LAUNCH, "grid of nothing", "if (lines == 0 || job.channel_size == 0) return;", ""),
    Fault(BFLOAT16_LAUNCH, "missing tail", "job.count + kBfloat16Threads - 1", "job.count"),
    Fault(ARGMAX, "removed barrier: before the totals", BARRIER, ""),
    Fault(ARGMAX, "removed barrier: between rows", BARRIER, "", 2),
    Fault(ARGMAX, "wrong lane", "delta = 16", "delta = 8"),
    Fault(ARGMAX, "ties to the last", "other_index < index", "other_index > index"),
    Fault(ARGMAX, "<= for <: a warp too many", "threadIdx.x < kWarps", "threadIdx.x <= kWarps"),
    Fault(ARGMAX, "wrong shared size", "bests, [kWarps]", "bests, [kWarps - 1]"),
    Fault(COMPACT, "inclusive for exclusive scan", "(1u << lane) - 1", "(2u << lane) - 1"),
    Fault(COMPACT, "removed barrier: between tiles", BARRIER, "", 2),
    Fault(COMPACT, "<= for <: own warp counted", "other < warp", "other <= warp"),
    Fault(COMPACT, "<= for <: read past the end", "at < count", "at <= count"),
    Fault(COMPACT, "barrier only for some threads", BARRIER, "if (value >= 0) __syncthreads();"),
    Fault(TRANSPOSE, "removed barrier", BARRIER, ""),
    Fault(TRANSPOSE, "wrong stride", "tile[x * (kTile + 1) + y]", "tile[x * kTile + y]"),
    Fault(TRANSPOSE, "wrong shared size", "kTile * (kTile + 1) * sizeof", "kTile * kTile * sizeof"),
    Fault(TRANSPOSE, "missing tail check", " && left + x < columns", ""),
    Fault(GEMV, "missing tail", "i = quads * 16 + lane", "i = columns"),
    Fault(GEMV, "swapped operands", "__dp4a(a.z, b.z", "__dp4a(a.z, b.w"),
    Fault(GEMV, "alignment check too weak", "address % 16", "address % 1"),
    Fault(GEMV, "lane mask wrong", "mask = 16; mask > 0", "mask = 16; mask > 1"),
    Fault(HISTOGRAM, "atomic replaced by +=", "atomicAdd(&mine[tokens[i]], 1u)", "mine[tokens[i]] += 1u"),
    Fault(HISTOGRAM, "removed barrier: before counting", BARRIER, ""),
    Fault(HISTOGRAM, "removed barrier: after counting", BARRIER, "", 2),
    Fault(HISTOGRAM, "<= for <: a bin too many", "tokens[i] < bin_count", "tokens[i] <= bin_count"),
]


_TESTED_WITH = {
    "float8_put": "float8_linear",
    "row_grid": "kv_append_",
    "ternary_tiles": "ternary_linear",
    "tma": "float8_tiles",
    "widest_word": "gather_records",
}


def test_of(fault: Fault) -> str:
    """The test that should notice, from the repository's root on."""
    own = Path(fault.file).stem if fault.file.startswith("csrc/") else "example_kernels"
    return f"tests/simt/test_{fault.test or _TESTED_WITH.get(own, own)}.cpp"


def with_fault(text: str, fault: Fault) -> str | None:
    """The kernel's text with the fault in it; None where what it changes is not there any more."""
    at = -1
    for _ in range(fault.nth):
        at = text.find(fault.old, at + 1)
        if at < 0:
            return None
    return text[:at] + fault.new + text[at + len(fault.old) :]
