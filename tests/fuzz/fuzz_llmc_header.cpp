#include "core/token_header.h"
#include "fuzz.h"

using namespace aegis;

// The file may be longer than what is read of it, and its size anything.
AEGIS_FUZZER(bytes) {
  const auto extra = fuzz::take<int64_t>(bytes);
  const auto length = static_cast<int64_t>(bytes.size());
  const int64_t size = extra < 0 || extra > INT64_MAX - length ? length : length + extra;
  fuzz::refusing([&] {
    const auto found = read_llmc_header(bytes, size, "file");
    if (!found) return;
    const auto item = static_cast<int64_t>(size_of(found->type));
    fuzz::require(found->tokens >= 1 && found->byte_offset + found->tokens * item == size);
  });
  for (TokenType type : {TokenType::u8, TokenType::u16, TokenType::u32, TokenType::i64}) {
    fuzz::refusing([&] {
      const auto item = static_cast<int64_t>(size_of(type));
      fuzz::require(raw_token_count(size, type, "file") * item == size);
    });
  }
}
