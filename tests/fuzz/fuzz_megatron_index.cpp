#include "fuzz.h"

using namespace aegis;

AEGIS_FUZZER(bytes) {
  const auto size = fuzz::take<int64_t>(bytes);
  if (size < 0) return;
  fuzz::refusing([&] {
    DocumentOffsets offsets;
    const MemorySource index("file.idx", bytes);
    const TokenIndex found = read_megatron_index(index, size, "file.bin", &offsets);
    fuzz::check_promises(found, offsets, size);
  });
}
