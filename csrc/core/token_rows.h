// Rows of documents: which stretches of the arena make up row i of a batch.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/documents.h"
#include "core/token_windows.h"

namespace aegis {

/// A stretch of one document: tokens [begin, begin + count) of the arena, at least one.
struct Piece {
  int64_t begin;
  int64_t count;
  bool ends;  ///< the document's last token is the piece's last; else the next token follows in it
};

/// Rows of exactly block_size() tokens, each a sequence of pieces. Const members may be called from
/// any thread.
class TokenRows {
 public:
  virtual ~TokenRows() = default;

  virtual const std::shared_ptr<const TokenStore>& store() const = 0;
  virtual int64_t count() const = 0;
  virtual int64_t block_size() const = 0;
  /// Whether the pieces of a row lie side by side in their file, and another token behind them.
  virtual bool contiguous() const { return false; }
  /// Tokens that no row holds.
  virtual int64_t tail_tokens() const = 0;
  /// Appends the pieces of row `index`, 0 <= index < count(), and returns the file's segment.
  virtual size_t pieces(int64_t index, std::vector<Piece>& out) const = 0;

  /// Brings what pieces(index) reads towards the caches. A look-up goes from one place to the next;
  /// whoever takes kPrefetchSteps steps, in turn, each for all rows of a batch, waits for memory a
  /// few times instead of a few times a row.
  virtual void prefetch(int64_t index, int step) const = 0;
  static constexpr int kPrefetchSteps = 3;
};

/// The windows of TokenWindows, cut where documents end; in one piece where `documents` is null.
class StreamRows final : public TokenRows {
 public:
  /// Throws std::invalid_argument where the two are of different stores.
  StreamRows(std::shared_ptr<const TokenWindows> windows,
             std::shared_ptr<const Documents> documents);

  const std::shared_ptr<const TokenStore>& store() const override { return windows_->store(); }
  int64_t count() const override { return windows_->count(); }
  int64_t block_size() const override { return windows_->block_size(); }
  bool contiguous() const override { return true; }
  int64_t tail_tokens() const override { return windows_->tail_tokens(); }
  size_t pieces(int64_t index, std::vector<Piece>& out) const override;
  void prefetch(int64_t index, int step) const override;

 private:
  const std::shared_ptr<const TokenWindows> windows_;
  const std::shared_ptr<const Documents> documents_;
};

/// Rows that begin where a document does and run on for block_size tokens; the next row begins with
/// the first document at or after that. What is left of the document that a row cuts off is in no
/// row. Memory: 8 bytes a row; the constructor looks at every document once.
class AlignedRows final : public TokenRows {
 public:
  /// Throws std::invalid_argument where block_size is below 1 or no row is full.
  AlignedRows(std::shared_ptr<const Documents> documents, int64_t block_size);

  const std::shared_ptr<const TokenStore>& store() const override { return documents_->store(); }
  int64_t count() const override { return static_cast<int64_t>(begins_.size()); }
  int64_t block_size() const override { return block_size_; }
  int64_t tail_tokens() const override { return store()->tokens() - count() * block_size_; }
  size_t pieces(int64_t index, std::vector<Piece>& out) const override;
  void prefetch(int64_t index, int step) const override;

 private:
  const std::shared_ptr<const Documents> documents_;
  const int64_t block_size_;
  std::vector<int64_t> begins_;  // of rows, in elements from data()
  std::vector<int64_t> first_;   // row at which each segment begins, and the end
};

/// Whole documents side by side: best-fit decreasing bin packing (as Ding et al., Fewer Truncations
/// Improve Language Modeling, 2024), in groups that can be packed by themselves.
///
/// Every kGroupRows * block_size tokens of a file are a group, and its kGroupRows rows hold exactly
/// these tokens: documents longer than a row are cut into full rows and a rest, each piece goes,
/// longest first, to the row with the least room that takes it, and the few that find none are cut
/// to fill the gaps. So rows are full, every token but the last of a file is in one row, a row's
/// group follows from its number by a division, and nothing needs to be saved to go on anywhere.
///
/// Packing a group takes about 0.2 µs a document, and is kept, 8 bytes a piece, while there is room
/// in `kept_bytes`; beyond that it is done again.
class PackedRows final : public TokenRows {
 public:
  /// Part of the meaning of row numbers, and so of saved states.
  static constexpr int64_t kGroupRows = 256;

  /// Throws std::invalid_argument where block_size is below 1 or above 2^22, or no file fills a
  /// row.
  PackedRows(std::shared_ptr<const Documents> documents, int64_t block_size,
             int64_t kept_bytes = int64_t{1} << 30);
  ~PackedRows() override;
  PackedRows(const PackedRows&) = delete;
  PackedRows& operator=(const PackedRows&) = delete;

  const std::shared_ptr<const TokenStore>& store() const override { return documents_->store(); }
  int64_t count() const override { return first_.back(); }
  int64_t block_size() const override { return block_size_; }
  int64_t tail_tokens() const override { return store()->tokens() - count() * block_size_; }
  size_t pieces(int64_t index, std::vector<Piece>& out) const override;
  void prefetch(int64_t index, int step) const override;

 private:
  struct Stored {
    uint32_t at;     // from the group's first token
    uint32_t count;  // twice, and one more where the document ends
  };
  /// Pieces of row r of the group are pieces[first[r]] to pieces[first[r + 1] - 1].
  struct Group {
    std::vector<Stored> pieces;
    std::array<uint32_t, kGroupRows + 1> first{};
  };

  int64_t begin_of(size_t segment, int64_t group) const;
  std::unique_ptr<const Group> pack(size_t segment, int64_t number) const;
  const Group& group(size_t segment, int64_t number) const;

  const std::shared_ptr<const Documents> documents_;
  const int64_t block_size_;
  const int64_t kept_bytes_;
  std::vector<int64_t> first_{0};        // row at which each segment begins, and the end
  std::vector<int64_t> first_group_{0};  // likewise its groups
  // Groups that were packed. Set once, by whoever is first: release; read by all: acquire.
  mutable std::vector<std::atomic<const Group*>> kept_;
  mutable std::atomic<int64_t> bytes_{0};  // of them; relaxed
};

}  // namespace aegis
