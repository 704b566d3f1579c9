// Which rows and positions of a KV cache hold tokens: lengths, row slots, rollback, capacity.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace aegis {

/// The buffer of a layer whose queries see the last `window` positions, their own included, and
/// that is shorter than the rows of its cache may get: position p lies in slot `p mod slots`.
struct KvWindow {
  int64_t slots;   ///< at least `window`
  int64_t window;  ///< at least 1
};

/// What a row's buffers hold behind the tokens of the open pass, of texts that were there before or
/// of tokens that were taken back. In a buffer of n slots that is, where touched <= n, the slots
/// [from, min(max(touched, before), n)); otherwise those of the positions [from, touched).
struct KvLeftover {
  int64_t row;
  int64_t from;     ///< the row's length after the pass
  int64_t touched;  ///< one past the last position that the row's own text wrote
  int64_t before;   ///< one past the last that earlier texts wrote
};

/// The host's side of a KV cache: it holds no keys and no values, only how many tokens each row
/// has.
///
/// A row is free, or in use with a length: the positions [0, length) hold tokens. A forward pass is
/// begin(), which checks everything and is told before any layer is written, and commit(), which
/// lets the rows grow, after the last layer was written. A pass that ends in between leaves the
/// lengths as they were, and what it wrote lies behind them.
///
/// Windows: what a row overwrote cannot be taken back. So each row knows how far it was ever
/// written and refuses to shrink to a length whose window is no longer whole.
///
/// Leftovers: rows are emptied and shrink without a look at the buffers, which keep what was
/// written behind the lengths. leftovers() tells where, to whoever lets attention read there.
///
/// Every function checks first and changes nothing when it throws: std::out_of_range for a row that
/// does not exist, std::invalid_argument for the rest unless said otherwise. One thread at a time.
class KvSlots {
 public:
  /// `rows` free rows of at most `capacity` tokens each.
  KvSlots(int64_t rows, int64_t capacity, std::vector<KvWindow> windows = {});

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  int64_t capacity() const { return capacity_; }
  int64_t length(int64_t row) const;
  bool in_use(int64_t row) const;
  /// Rows in use, lowest first.
  std::vector<int64_t> rows_in_use() const;
  /// Shortest and longest length of `rows`; zeroes where there are none.
  std::pair<int64_t, int64_t> length_range(std::span<const int64_t> rows) const;

  /// Takes the lowest free row into use. Throws std::runtime_error where all are in use.
  int64_t acquire();
  /// Empties rows and gives them back; free ones may be among them.
  void release(std::span<const int64_t> rows);
  /// Empties and gives back all rows, and forgets an open pass.
  void reset();

  /// Opens a pass that writes `tokens` tokens behind each of `rows`; free ones are taken into use.
  /// An open pass is forgotten. Returns whether a row was free. Throws std::length_error, naming
  /// need and capacity, where a row has no room.
  bool begin(std::span<const int64_t> rows, int64_t tokens);
  /// What is left behind the tokens of the open pass in its rows; empty where none is open.
  std::vector<KvLeftover> leftovers() const;
  /// The open pass goes over free rows, too: its `tokens` tokens are written there and left.
  void touch_free(int64_t tokens);
  /// Adds the tokens of the open pass to its rows, of which `cleared` says that nothing is left
  /// behind them. Throws std::logic_error where none is open.
  void commit(bool cleared = false);
  /// Forgets the open pass, if any.
  void abort() { open_ = false; }

  /// How many of its last tokens a row can lose.
  int64_t croppable(int64_t row) const;
  /// Takes tokens[i] >= 0 tokens off the end of rows[i]: all of them where it has fewer. Forgets an
  /// open pass.
  void crop(std::span<const int64_t> rows, std::span<const int64_t> tokens);

  /// Row i gets the state of row sources[i], as it was before the call; the rows behind are given
  /// back. Sources are in use. Forgets an open pass.
  void gather(std::span<const int64_t> sources);

 private:
  struct Row {
    bool in_use = false;
    int64_t length = 0;
    int64_t written = 0;  ///< one past the last position ever written, `length` or more
    int64_t touched = 0;  ///< the same since what is behind the row was last cleared
    int64_t before = 0;   ///< the same of the texts before this one

    /// A row without a text.
    Row emptied(bool in_use) const;
  };

  void check_row(int64_t row) const;
  /// The least length above 0 to which a row can shrink.
  int64_t least_length(const Row& row) const;

  std::vector<Row> rows_;
  int64_t capacity_;
  std::vector<KvWindow> windows_;
  std::vector<int64_t> open_rows_;
  int64_t open_tokens_ = 0;
  bool open_ = false;
};

}  // namespace aegis
