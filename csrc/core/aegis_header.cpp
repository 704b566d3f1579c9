#include "core/aegis_header.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <vector>

#include "core/check.h"
#include "core/id_scan.h"
#include "core/parallel.h"
#include "kernels/fnv_lanes.h"

namespace aegis {
namespace {

using Bad = std::invalid_argument;

constexpr std::array kTypes{TokenType::u8, TokenType::u16, TokenType::u32, TokenType::i32,
                            TokenType::i64};

uint64_t round_up_64(uint64_t bytes) {
  return (bytes + kAegisAlignment - 1) / kAegisAlignment * kAegisAlignment;
}

uint64_t largest_of(TokenType type) {
  return with_token_type(type, []<class Token>(std::type_identity<Token>) {
    return static_cast<uint64_t>(std::numeric_limits<Token>::max());
  });
}

template <class T>
std::span<const std::byte> bytes_of(const T& object, size_t bytes = sizeof(T)) {
  return std::as_bytes(std::span(&object, 1)).first(bytes);
}

bool is_zero(std::span<const uint8_t> bytes) {
  for (uint8_t byte : bytes) {
    if (byte != 0) return false;
  }
  return true;
}

/// Whether the counts could be those of a file of this size, so that lay_out() cannot overflow.
void check_counts(const AegisHeader& header, TokenType type, int64_t file_size,
                  std::string_view path) {
  const auto room = static_cast<uint64_t>(file_size);
  check<Bad>(header.tokens <= room / size_of(type) && header.documents < room / 8, path,
             ": the header says ", header.tokens, " ", name(type), " tokens and ", header.documents,
             " documents, which ", file_size, " bytes cannot hold");
  const uint64_t limit = header.vocab_size == 0 ? largest_of(type) : header.vocab_size - 1;
  check<Bad>(header.largest_id <= std::min(limit, largest_of(type)), path,
             ": expected a largest id within ", name(type),
             header.vocab_size == 0 ? "" : " and the vocabulary", ", the header says ",
             header.largest_id, " (vocabulary ", header.vocab_size, ")");
}

void check_layout(const AegisHeader& header, TokenType type, int64_t file_size,
                  std::string_view path) {
  AegisHeader expected = header;
  lay_out(expected, type, header.tokens, header.documents);
  auto same = [&](const char* what, uint64_t found, uint64_t wanted) {
    check<Bad>(found == wanted, path, ": expected ", what, " ", wanted, ", the header says ",
               found);
  };
  same("a header of bytes:", header.header_bytes, expected.header_bytes);
  same("blocks of bytes:", header.block_bytes, expected.block_bytes);
  same("tokens at byte", header.tokens_at, expected.tokens_at);
  same("documents at byte", header.documents_at, expected.documents_at);
  same("checksums at byte", header.checksums_at, expected.checksums_at);
  same("a file of bytes:", header.file_bytes, expected.file_bytes);
  const auto size = static_cast<uint64_t>(file_size);
  check<Bad>(size == header.file_bytes, path, ": expected ", header.file_bytes, " bytes (",
             header.tokens, " ", name(type), " tokens, ", header.documents, " documents), got ",
             file_size, " (",
             size < header.file_bytes ? header.file_bytes - size : size - header.file_bytes,
             size < header.file_bytes ? " missing)" : " too many)");
}

AegisHeader header_of(const ByteSource& file) {
  std::array<std::byte, sizeof(AegisHeader)> head;
  const auto bytes = std::min<int64_t>(file.size(), sizeof(AegisHeader));
  const std::span<std::byte> read(head.data(), static_cast<size_t>(bytes));
  file.read(0, read);
  const auto header = read_aegis_header(read, file.size(), file.path());
  check<Bad>(header.has_value(), file.path(), ": expected an aegis file, which begins with ",
             "89 41 45 47 49 53 0d 0a");
  return *header;
}

/// The checksums of the blocks, checked against the header's of all of them.
std::vector<uint32_t> read_table(const ByteSource& file, const AegisHeader& header) {
  const uint64_t blocks = aegis_blocks(header);
  file.check_range(static_cast<int64_t>(header.checksums_at), blocks, sizeof(uint32_t));
  std::vector<uint32_t> table(blocks);
  file.read(static_cast<int64_t>(header.checksums_at), std::as_writable_bytes(std::span(table)));
  const uint32_t found = aegis_checksum(std::as_bytes(std::span(table)));
  check<Bad>(found == header.table_checksum, file.path(),
             ": the table of checksums is damaged: expected checksum ", header.table_checksum,
             ", got ", found);
  return table;
}

}  // namespace

uint8_t aegis_dtype_code(TokenType type) {
  return static_cast<uint8_t>(std::find(kTypes.begin(), kTypes.end(), type) - kTypes.begin() + 1);
}

std::optional<TokenType> aegis_dtype(uint8_t code) {
  if (code < 1 || code > kTypes.size()) return std::nullopt;
  return kTypes[code - 1u];
}

uint32_t aegis_checksum(std::span<const std::byte> bytes) {
  return kernels::fnv_lanes_digest(bytes.data(), static_cast<int64_t>(bytes.size()));
}

void lay_out(AegisHeader& header, TokenType type, uint64_t tokens, uint64_t documents) {
  header.dtype = aegis_dtype_code(type);
  header.tokens = tokens;
  header.documents = documents;
  header.block_bytes = kAegisBlock;
  header.header_bytes = header.tokens_at = sizeof(AegisHeader);
  uint64_t end = round_up_64(header.tokens_at + tokens * size_of(type));
  header.documents_at = documents == 0 ? 0 : end;
  if (documents > 0) end = round_up_64(end + 8 * (documents + 1));
  header.checksums_at = end;
  header.file_bytes = end + sizeof(uint32_t) * aegis_blocks(header);
}

uint64_t aegis_blocks(const AegisHeader& header) {
  return (header.checksums_at - header.tokens_at + kAegisBlock - 1) / kAegisBlock;
}

std::optional<AegisHeader> read_aegis_header(std::span<const std::byte> head, int64_t file_size,
                                             std::string_view path) {
  if (head.size() < kAegisMagic.size() ||
      std::memcmp(head.data(), kAegisMagic.data(), kAegisMagic.size()) != 0) {
    return std::nullopt;
  }
  AegisHeader header;
  check<Bad>(head.size() >= sizeof header && file_size >= static_cast<int64_t>(sizeof header), path,
             ": expected an aegis header of ", sizeof header, " bytes, the file ends after ",
             file_size);
  std::memcpy(&header, head.data(), sizeof header);
  check<Bad>(header.byte_order != __builtin_bswap32(kAegisByteOrder), path,
             ": expected a little-endian file, this one is big-endian");
  check<Bad>(header.byte_order == kAegisByteOrder, path, ": expected byte-order mark ",
             kAegisByteOrder, ", got ", header.byte_order);
  check<Bad>(header.version == 1, path, ": expected aegis version 1, got ", header.version);
  const uint32_t checksum =
      aegis_checksum(bytes_of(header, offsetof(AegisHeader, header_checksum)));
  check<Bad>(checksum == header.header_checksum, path,
             ": the header is damaged: expected checksum ", header.header_checksum, ", got ",
             checksum);
  const std::optional<TokenType> type = aegis_dtype(header.dtype);
  check<Bad>(type.has_value(), path, ": expected a dtype code from 1 to ", kTypes.size(), ", got ",
             static_cast<int>(header.dtype));
  check<Bad>(is_zero(header.reserved) && is_zero(header.reserved_too), path,
             ": expected zeroes in the reserved bytes of the header");
  check_counts(header, *type, file_size, path);
  check_layout(header, *type, file_size, path);
  return header;
}

DocumentOffsets read_aegis_documents(const ByteSource& file) {
  const AegisHeader header = header_of(file);
  DocumentOffsets offsets;
  if (header.documents == 0) return offsets;
  const auto at = static_cast<int64_t>(header.documents_at);
  file.check_range(at, header.documents + 1, sizeof(int64_t));
  offsets.resize(header.documents + 1);
  file.read(at, std::as_writable_bytes(std::span(offsets)));
  int64_t before = 0;
  const auto tokens = static_cast<int64_t>(header.tokens);
  for (size_t i = 0; i < offsets.size(); ++i) {
    check<Bad>(before <= offsets[i] && offsets[i] <= tokens && (i > 0 || offsets[i] == 0),
               file.path(), ": expected document offset ", i, " from ", before, " to ",
               i == 0 ? 0 : tokens, ", got ", static_cast<uint64_t>(offsets[i]));
    before = offsets[i];
  }
  check<Bad>(before == tokens, file.path(), ": expected the last document offset to be ", tokens,
             ", got ", before);
  return offsets;
}

void verify_aegis_file(const ByteSource& file, int threads) {
  const AegisHeader header = header_of(file);
  const TokenType type = *aegis_dtype(header.dtype);
  const std::vector<uint32_t> table = read_table(file, header);
  const uint64_t tokens_end = header.tokens_at + header.tokens * size_of(type);
  std::mutex mutex;
  int64_t largest = -1, smallest = 0;  // under mutex
  parallel_for(static_cast<int64_t>(table.size()), threads, [&](int64_t block) {
    const uint64_t begin = header.tokens_at + static_cast<uint64_t>(block) * kAegisBlock;
    const uint64_t end = std::min<uint64_t>(begin + kAegisBlock, header.checksums_at);
    thread_local std::vector<std::byte> bytes;
    bytes.resize(end - begin);
    file.read(static_cast<int64_t>(begin), bytes);
    const uint32_t found = aegis_checksum(bytes), expected = table[static_cast<size_t>(block)];
    check<Bad>(found == expected, file.path(), ": block ", block, " (bytes ", begin, " to ",
               end - 1, ") is damaged: expected checksum ", expected, ", got ", found);
    if (begin >= tokens_end) return;
    const auto count = (std::min(end, tokens_end) - begin) / size_of(type);
    const IdScan ids = scan_ids(type, bytes.data(), static_cast<int64_t>(count));
    const std::lock_guard lock(mutex);
    largest = std::max(largest, ids.largest);
    smallest = std::min(smallest, ids.smallest);
  });
  check<Bad>(smallest >= 0, file.path(), ": expected ids of 0 and above, the smallest is ",
             smallest);
  check<Bad>(header.tokens == 0 || static_cast<uint64_t>(largest) == header.largest_id, file.path(),
             ": expected the largest id to be ", header.largest_id, ", as the header says, got ",
             largest);
  read_aegis_documents(file);
}

}  // namespace aegis
