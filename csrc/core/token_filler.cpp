#include "core/token_filler.h"

#include "kernels/extract_batch.h"

namespace aegis {
namespace {

constexpr uint8_t kSigned = 0;  // DLPack's code

template <class Token, class Input>
void extract(const TokenWindows& windows, const std::vector<int64_t>& offsets,
             const FieldPointers& fields) {
  kernels::extract_batch_kernel<Token, Input>()(
      {static_cast<const Token*>(windows.store()->data()), offsets.data(),
       static_cast<int64_t>(offsets.size()), windows.block_size(),
       reinterpret_cast<Input*>(fields[0]), reinterpret_cast<int64_t*>(fields[1])});
}

}  // namespace

TokenFiller::TokenFiller(std::shared_ptr<const TokenWindows> windows, Inputs inputs)
    : windows_(std::move(windows)),
      fields_{{{kSigned, static_cast<uint8_t>(inputs == Inputs::int32 ? 32 : 64)},
               {windows_->block_size()}},
              {{kSigned, 64}, {windows_->block_size()}}} {}

void TokenFiller::fill(const int64_t* indices, int64_t count, const FieldPointers& fields) const {
  thread_local std::vector<int64_t> offsets;  // grows to the largest batch and is then reused
  offsets.resize(static_cast<size_t>(count));
  windows_->offsets(indices, count, offsets.data());
  with_token_type(windows_->store()->type(), [&]<class Token>(std::type_identity<Token>) {
    if (fields_[0].type.bits == 32) {
      extract<Token, int32_t>(*windows_, offsets, fields);
    } else {
      extract<Token, int64_t>(*windows_, offsets, fields);
    }
  });
  windows_->verify(indices, count);
}

}  // namespace aegis
