// Reads memory and does as little else as it can: the limit that bench_skinny_linear.py measures
// against.
#include <cstdint>

namespace {

typedef uint64_t Block __attribute__((vector_size(64), aligned(64)));

/// `streams` equal parts side by side, each straight on; lines asked for `ahead` bytes early, or
/// left to the hardware where that is 0.
template <int streams, int ahead>
uint64_t read(const Block* blocks, int64_t count) {
  Block sums[8] = {};
  const int64_t part = count / streams;
  for (int64_t i = 0; i < part; i += 8 / streams) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const Block* block = blocks + j % streams * part + i + j / streams;
      if (ahead) __builtin_prefetch(reinterpret_cast<const char*>(block) + ahead, 0, 2);
      sums[j] |= *block;
    }
  }
  uint64_t all = 0;
  for (const Block& sum : sums) {
    for (int lane = 0; lane < 8; ++lane) all |= sum[lane];
  }
  return all;
}

}  // namespace

/// `bytes` is a multiple of 4096 and `memory` aligned to 64.
extern "C" uint64_t read_memory(int way, const void* memory, int64_t bytes) {
  const auto* blocks = static_cast<const Block*>(memory);
  const int64_t count = bytes / static_cast<int64_t>(sizeof(Block));
  switch (way) {
    case 0:
      return read<1, 0>(blocks, count);
    case 1:
      return read<1, 4096>(blocks, count);
    case 2:
      return read<8, 0>(blocks, count);
    default:
      return read<8, 4096>(blocks, count);
  }
}
