#include "core/batch_filler.h"

#include "core/check.h"

namespace aegis {

size_t lay_out(const std::vector<Field>& fields, int64_t rows, std::byte* slot,
               FieldPointers* starts) {
  constexpr size_t kAlign = 64;  // bytes: a cache line, and the widest vector register
  check<std::invalid_argument>(fields.size() <= kMaxFields, "fields: expected at most ", kMaxFields,
                               ", got ", fields.size());
  size_t end = 0;
  for (size_t f = 0; f < fields.size(); ++f) {
    const int bits = fields[f].type.bits;
    check<std::invalid_argument>(bits > 0 && bits % 8 == 0,
                                 "fields: expected elements of whole bytes, got ", bits, " bits");
    const size_t row_bytes = fields[f].row_bytes();
    size_t bytes = 0;
    const bool fits = !__builtin_mul_overflow(row_bytes, static_cast<size_t>(rows), &bytes) &&
                      bytes < (uint64_t{1} << 62) - end;
    check<std::invalid_argument>(fits, "batch_size: expected batches below 2^62 bytes, got ", rows,
                                 " rows of ", row_bytes, " bytes");
    if (starts != nullptr) (*starts)[f] = slot + end;
    end += (bytes + kAlign - 1) / kAlign * kAlign;
  }
  return end;
}

}  // namespace aegis
