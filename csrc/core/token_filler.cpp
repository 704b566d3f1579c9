#include "core/token_filler.h"

#include <chrono>
#include <cstring>
#include <type_traits>

#include "core/check.h"
#include "kernels/extract_batch.h"

namespace aegis {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint8_t kSigned = 0, kUnsigned = 1;  // DLPack's codes
// The longest that a row takes which is in memory, first touch of its pages included; one read from
// a disk takes 50 us and more.
constexpr auto kWarmRow = std::chrono::microseconds(10);

/// As kernels/extract_rows.h does it, without widening.
void copy_windows(const TokenWindows& windows, const std::vector<int64_t>& offsets,
                  std::byte* out) {
  constexpr size_t kLine = 64;  // bytes
  constexpr size_t kRowsAhead = 4;
  const size_t item = size_of(windows.store()->type());
  const size_t row_bytes = static_cast<size_t>(windows.block_size() + 1) * item;
  const auto* data = static_cast<const std::byte*>(windows.store()->data());
  const auto window = [&](size_t row) { return data + static_cast<size_t>(offsets[row]) * item; };
  for (size_t row = 0; row < offsets.size(); ++row, out += row_bytes) {
    if (row + kRowsAhead < offsets.size()) {
      const std::byte* later = window(row + kRowsAhead);
      for (size_t at = 0; at < row_bytes; at += kLine) __builtin_prefetch(later + at);
    }
    std::memcpy(out, window(row), row_bytes);
  }
}

std::vector<Field> fields_of(const TokenWindows& windows, TokenFiller::Form form) {
  const int64_t block_size = windows.block_size();
  const FieldType int64{kSigned, 64};
  if (form == TokenFiller::Form::windows) {
    return with_token_type(
        windows.store()->type(), [&]<class Token>(std::type_identity<Token>) -> std::vector<Field> {
          const uint8_t code = std::is_signed_v<Token> ? kSigned : kUnsigned;
          return {{{code, static_cast<uint8_t>(8 * sizeof(Token))}, {block_size + 1}}};
        });
  }
  return {{int64, {block_size}}, {int64, {block_size}}};
}

const TokenWindows& checked(const std::shared_ptr<const TokenWindows>& windows) {
  check<std::invalid_argument>(windows != nullptr, "windows: expected windows, got none");
  return *windows;
}

}  // namespace

TokenFiller::TokenFiller(std::shared_ptr<const TokenWindows> windows, Form form)
    : windows_(std::move(windows)), form_(form), fields_(fields_of(checked(windows_), form)) {}

void TokenFiller::write(const std::vector<int64_t>& offsets, const FieldPointers& fields) const {
  if (form_ == Form::windows) return copy_windows(*windows_, offsets, fields[0]);
  with_token_type(windows_->store()->type(), [&]<class Token>(std::type_identity<Token>) {
    kernels::extract_batch_kernel<Token, int64_t>()(
        {static_cast<const Token*>(windows_->store()->data()), offsets.data(),
         static_cast<int64_t>(offsets.size()), windows_->block_size(),
         reinterpret_cast<int64_t*>(fields[0]), reinterpret_cast<int64_t*>(fields[1])});
  });
}

void TokenFiller::fill(const int64_t* indices, int64_t count, const FieldPointers& fields) const {
  thread_local std::vector<int64_t> offsets;  // grows to the largest batch and is then reused
  offsets.resize(static_cast<size_t>(count));
  windows_->offsets(indices, count, offsets.data());
  const TokenStore& store = *windows_->store();
  if (cold_.load(std::memory_order_relaxed)) {
    for (int64_t offset : offsets) store.will_read(offset, windows_->block_size() + 1);
  }
  const Clock::time_point start = Clock::now();
  write(offsets, fields);
  cold_.store(Clock::now() - start > count * kWarmRow, std::memory_order_relaxed);
  windows_->verify(indices, count);
}

}  // namespace aegis
