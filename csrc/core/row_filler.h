// Batches of rows of documents: inputs, targets, and what tells the documents apart.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/batch_filler.h"
#include "core/token_rows.h"

namespace aegis {

/// Which tensors a batch has beside its inputs and targets, in this order.
struct RowFields {
  bool document_ids = false;
  bool position_ids = false;
  bool valid = false;
  bool cu_seqlens = false;
  /// The most pieces a row may have, for a cu_seqlens of fixed length; none: as many as tokens.
  std::optional<int64_t> max_documents;
};

/// Rows, and what the target of a document's last token is; none: whatever follows in the file.
struct RowSource {
  std::shared_ptr<const TokenRows> rows;
  std::optional<int64_t> ignore_index;
};

/// Fields, with T = block_size: inputs and targets, int64 (count, T); then those that are asked
/// for: document_ids, int32 (count, T): 0 for a row's first piece, 1 for its second, …;
/// position_ids, int32 (count, T): from 0 in every piece; valid, bool (count); cu_seqlens, int32
/// (count, M + 2) with M = max_documents or T: an array over the whole batch, not by rows. It is 0
/// and the end of each piece, when the rows are laid one behind the other; with max_documents,
/// count * T in what is left. The very last number of the field is the number of pieces.
///
/// Samples are the rows of all sources, numbered one source after another. kPadding is a row
/// without tokens: inputs 0, targets the first source's ignore_index, or -100 where it has none,
/// one piece, not valid.
class RowFiller : public BatchFiller {
 public:
  /// Throws std::invalid_argument where there is no source, sources differ in block_size,
  /// max_documents is below 1, or an ignore_index is missing where rows are not stretches of a
  /// file.
  RowFiller(std::vector<RowSource> sources, const RowFields& wanted);

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t samples() const override { return first_.back(); }
  void verify() const override;
  bool quick() const override { return !cold_.load(std::memory_order_relaxed); }
  bool pads() const override { return true; }
  int64_t elements(size_t field, int64_t count, const FieldPointers& fields) const override;
  /// Throws std::invalid_argument where a row has more than max_documents pieces, and where
  /// cu_seqlens does not count to count * T in 32 bits.
  void fill(const int64_t* indices, int64_t count, const FieldPointers& fields) const override;

 private:
  struct Plan;

  size_t source_of(int64_t index) const;
  void read_plan(const int64_t* indices, int64_t count, Plan& plan) const;
  void check_plan(const int64_t* indices, const Plan& plan) const;
  template <class Token>
  void write_row(const Plan& plan, size_t row, int64_t* inputs, int64_t* targets) const;
  void write_tokens(const Plan& plan, const FieldPointers& fields) const;
  void write_documents(const Plan& plan, const FieldPointers& fields) const;

  const std::vector<RowSource> sources_;
  const RowFields wanted_;
  const int64_t block_size_;
  const int64_t most_pieces_;      // M above
  std::vector<int64_t> first_{0};  // number of each source's first row, and the end
  std::vector<Field> fields_;
  // Whether the last batch waited for a disk, as in TokenFiller.
  mutable std::atomic<bool> cold_{true};
};

}  // namespace aegis
