// The header of aegis v1, the token file that this library writes: docs/notes/aegis_v1.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/byte_source.h"
#include "core/token_index.h"

namespace aegis {

/// As it lies in the file, little-endian. Offsets and sizes are in bytes from the begin of the
/// file.
struct AegisHeader {
  std::array<uint8_t, 8> magic;
  uint32_t version;
  uint32_t byte_order;
  uint8_t dtype;  ///< 1 uint8, 2 uint16, 3 uint32, 4 int32, 5 int64
  std::array<uint8_t, 3> reserved;
  uint32_t block_bytes;   ///< that one checksum covers
  uint64_t header_bytes;  ///< of this header
  uint64_t file_bytes;
  uint64_t tokens;
  uint64_t documents;
  uint64_t tokens_at;
  uint64_t documents_at;  ///< 0 where no documents are recorded
  uint64_t checksums_at;
  uint64_t vocab_size;  ///< 0 where it is not known
  uint64_t largest_id;
  std::array<uint8_t, 32> tokenizer;  ///< SHA-256 of its file; zeroes where it is not known
  std::array<uint8_t, 56> reserved_too;
  uint32_t table_checksum;   ///< of the table at checksums_at
  uint32_t header_checksum;  ///< of the bytes before it
};
static_assert(sizeof(AegisHeader) == 192);

inline constexpr std::array<uint8_t, 8> kAegisMagic{0x89, 'A', 'E', 'G', 'I', 'S', '\r', '\n'};
inline constexpr uint32_t kAegisByteOrder = 0x01020304;
inline constexpr uint32_t kAegisBlock = 1 << 20;
inline constexpr uint64_t kAegisAlignment = 64;

/// The code of a type in a header, and the type of a code.
uint8_t aegis_dtype_code(TokenType type);
std::optional<TokenType> aegis_dtype(uint8_t code);

/// The checksum of everything in an aegis file: kernels::fnv_lanes_digest.
uint32_t aegis_checksum(std::span<const std::byte> bytes);

/// Fills in what follows from the counts and dtype: where everything lies, and the size of the
/// file. `documents` is 0 where none are recorded.
void lay_out(AegisHeader& header, TokenType type, uint64_t tokens, uint64_t documents);

/// Blocks of the checksum table: of all between header and table.
uint64_t aegis_blocks(const AegisHeader& header);

/// The header of a file that begins with `head` (192 bytes of it, or all where it is shorter) and
/// has `file_size` bytes. Nothing where it does not begin with the magic. Throws
/// std::invalid_argument where it does and anything in the header contradicts the format, itself or
/// the size. Files without a token are valid.
std::optional<AegisHeader> read_aegis_header(std::span<const std::byte> head, int64_t file_size,
                                             std::string_view path);

/// The document boundaries of an aegis file; empty where it records none. Throws
/// std::invalid_argument where they do not ascend from 0 to the token count, or as
/// read_aegis_header().
DocumentOffsets read_aegis_documents(const ByteSource& file);

/// Reads all of an aegis file on up to `threads` threads. Throws std::invalid_argument, as the
/// functions above, and where a checksum is another than its bytes have or the largest id is not
/// the one in the header. Cost: one pass over the file, at the speed of the disk.
void verify_aegis_file(const ByteSource& file, int threads);

}  // namespace aegis
