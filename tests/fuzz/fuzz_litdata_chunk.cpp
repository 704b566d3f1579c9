#include "fuzz.h"

using namespace aegis;

AEGIS_FUZZER(bytes) {
  for (TokenType type : {TokenType::u8, TokenType::u16, TokenType::i32, TokenType::i64}) {
    fuzz::refusing([&] {
      DocumentOffsets offsets;
      const MemorySource chunk("chunk.bin", bytes);
      const TokenIndex found = read_litdata_chunk(chunk, type, &offsets);
      fuzz::check_promises(found, offsets, chunk.size());
    });
  }
}
