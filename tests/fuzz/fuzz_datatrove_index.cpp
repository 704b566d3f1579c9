#include "fuzz.h"

using namespace aegis;

AEGIS_FUZZER(bytes) {
  const auto size = fuzz::take<int64_t>(bytes);
  if (size < 0) return;
  fuzz::refusing([&] {
    DocumentOffsets offsets;
    const MemorySource index("file.ds.index", bytes);
    const TokenIndex found = read_datatrove_index(index, size, "file.ds", &offsets);
    fuzz::check_promises(found, offsets, size);
  });
}
