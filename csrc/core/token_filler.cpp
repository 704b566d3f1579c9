#include "core/token_filler.h"

#include <chrono>

#include "kernels/extract_batch.h"

namespace aegis {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint8_t kSigned = 0;  // DLPack's code
// The longest that a row takes which is in memory, first touch of its pages included; one read from
// a disk takes 50 us and more.
constexpr auto kWarmRow = std::chrono::microseconds(10);

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
  const TokenStore& store = *windows_->store();
  if (cold_.load(std::memory_order_relaxed)) {
    for (int64_t offset : offsets) store.will_read(offset, windows_->block_size() + 1);
  }
  const Clock::time_point start = Clock::now();
  with_token_type(store.type(), [&]<class Token>(std::type_identity<Token>) {
    if (fields_[0].type.bits == 32) {
      extract<Token, int32_t>(*windows_, offsets, fields);
    } else {
      extract<Token, int64_t>(*windows_, offsets, fields);
    }
  });
  cold_.store(Clock::now() - start > count * kWarmRow, std::memory_order_relaxed);
  windows_->verify(indices, count);
}

}  // namespace aegis
