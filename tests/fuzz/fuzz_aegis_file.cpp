#include <vector>

#include "core/aegis_header.h"
#include "fuzz.h"

using namespace aegis;

namespace {

template <class T>
void put(std::vector<std::byte>& file, size_t at, const T& value) {
  std::memcpy(file.data() + at, &value, sizeof value);
}

/// Gives the file the checksums that it claims to have, which no fuzzer would guess.
void mend_checksums(std::vector<std::byte>& file) {
  if (file.size() < sizeof(AegisHeader)) return;
  AegisHeader header;
  std::memcpy(&header, file.data(), sizeof header);
  if (header.tokens_at <= header.checksums_at && header.checksums_at <= file.size()) {
    const std::span<const std::byte> bytes(file);
    size_t at = header.checksums_at;
    for (size_t begin = header.tokens_at; begin < header.checksums_at; begin += kAegisBlock) {
      const size_t count = std::min<size_t>(kAegisBlock, header.checksums_at - begin);
      if (at + 4 > file.size()) break;
      put(file, at, aegis_checksum(bytes.subspan(begin, count)));
      at += 4;
    }
    put(file, offsetof(AegisHeader, table_checksum),
        aegis_checksum(bytes.subspan(header.checksums_at, at - header.checksums_at)));
  }
  const size_t at = offsetof(AegisHeader, header_checksum);
  put(file, at, aegis_checksum(std::span<const std::byte>(file).first(at)));
}

}  // namespace

AEGIS_FUZZER(bytes) {
  const bool mended = fuzz::take<uint8_t>(bytes) % 2 == 1;
  std::vector<std::byte> file(bytes.begin(), bytes.end());
  if (mended) mend_checksums(file);
  const MemorySource source("file.aegis", file);
  fuzz::refusing([&] {
    const auto header = read_aegis_header(file, source.size(), "file.aegis");
    if (!header) return;
    const TokenType type = *aegis_dtype(header->dtype);
    fuzz::require(header->tokens_at + header->tokens * size_of(type) <= header->checksums_at);
    fuzz::require(header->file_bytes == file.size());
    const DocumentOffsets offsets = read_aegis_documents(source);
    fuzz::require(offsets.size() == (header->documents == 0 ? 0 : header->documents + 1));
    if (!offsets.empty()) fuzz::require(offsets.back() == static_cast<int64_t>(header->tokens));
    verify_aegis_file(source, 1);
  });
}
