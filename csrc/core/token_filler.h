// Batches of token windows: inputs, and targets one token later.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/batch_filler.h"
#include "core/token_windows.h"

namespace aegis {

/// Sample i is window i. Two fields, both int64 (count, block_size): inputs and targets; or, with
/// Form::windows, one field (count, block_size + 1) of the store's own type: what
/// kernels::ExtractBatch makes inputs and targets of, in half to a sixteenth of their bytes.
///
/// Files that a batch was read from are checked after it is filled: a batch read from a file that
/// was cut short in the meantime ends in TokenStore::verify's error, never in a crash or in zeros
/// taken for tokens.
class TokenFiller : public BatchFiller {
 public:
  enum class Form { int64, windows };

  /// Throws std::invalid_argument where there are no windows.
  explicit TokenFiller(std::shared_ptr<const TokenWindows> windows, Form form = Form::int64);

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t samples() const override { return windows_->count(); }
  void verify() const override { windows_->store()->verify_all(); }
  bool quick() const override { return !cold_.load(std::memory_order_relaxed); }
  void fill(const int64_t* indices, int64_t count, const FieldPointers& fields) const override;

 private:
  void write(const std::vector<int64_t>& offsets, const FieldPointers& fields) const;

  const std::shared_ptr<const TokenWindows> windows_;
  const Form form_;
  const std::vector<Field> fields_;
  // Whether the last batch waited for a disk: then the next one's reads are announced. A hint
  // between filler threads; relaxed.
  mutable std::atomic<bool> cold_{true};
};

}  // namespace aegis
