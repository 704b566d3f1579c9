#include "core/kv_slots.h"

#include <algorithm>
#include <stdexcept>

#include "core/check.h"

namespace aegis {

KvSlots::KvSlots(int64_t rows, int64_t capacity, std::vector<KvWindow> windows)
    : capacity_(capacity), windows_(std::move(windows)) {
  check<std::invalid_argument>(rows >= 1, "rows: expected at least 1, got ", rows);
  check<std::invalid_argument>(capacity >= 1, "capacity: expected at least 1 token, got ",
                               capacity);
  for (const KvWindow& w : windows_) {
    check<std::invalid_argument>(1 <= w.window && w.window <= w.slots,
                                 "windows: expected 1 <= window <= slots, got a window of ",
                                 w.window, " in ", w.slots, " slots");
  }
  rows_.resize(static_cast<size_t>(rows));
}

KvSlots::Row KvSlots::Row::emptied(bool in_use) const {
  return {.in_use = in_use, .before = std::max(before, touched)};
}

void KvSlots::check_row(int64_t row) const {
  check<std::out_of_range>(0 <= row && row < rows(), "row: expected 0 to ", rows() - 1, ", got ",
                           row);
}

int64_t KvSlots::length(int64_t row) const {
  check_row(row);
  return rows_[row].length;
}

bool KvSlots::in_use(int64_t row) const {
  check_row(row);
  return rows_[row].in_use;
}

std::vector<int64_t> KvSlots::rows_in_use() const {
  std::vector<int64_t> found;
  for (int64_t row = 0; row < rows(); ++row) {
    if (rows_[row].in_use) found.push_back(row);
  }
  return found;
}

std::pair<int64_t, int64_t> KvSlots::length_range(std::span<const int64_t> rows) const {
  if (rows.empty()) return {0, 0};
  std::pair<int64_t, int64_t> range{length(rows[0]), length(rows[0])};
  for (int64_t row : rows.subspan(1)) {
    range.first = std::min(range.first, length(row));
    range.second = std::max(range.second, length(row));
  }
  return range;
}

int64_t KvSlots::acquire() {
  const auto row = std::find_if(rows_.begin(), rows_.end(), [](Row& r) { return !r.in_use; });
  check<std::runtime_error>(row != rows_.end(), "acquire: expected a free row, but all ", rows(),
                            " are in use");
  *row = row->emptied(true);
  return row - rows_.begin();
}

void KvSlots::release(std::span<const int64_t> rows) {
  for (int64_t row : rows) check_row(row);
  for (int64_t row : rows) rows_[row] = rows_[row].emptied(false);
  open_ = false;
}

void KvSlots::reset() {
  for (Row& row : rows_) row = row.emptied(false);
  open_ = false;
}

bool KvSlots::begin(std::span<const int64_t> rows, int64_t tokens) {
  check<std::invalid_argument>(tokens >= 0, "tokens: expected at least 0, got ", tokens);
  bool takes = false;
  bool ascending = true;  // as rows nearly always are; then none comes twice
  for (size_t i = 0; i < rows.size(); ++i) {
    check_row(rows[i]);
    ascending = ascending && (i == 0 || rows[i - 1] < rows[i]);
    const auto end = rows.begin() + static_cast<std::ptrdiff_t>(i);
    check<std::invalid_argument>(ascending || std::find(rows.begin(), end, rows[i]) == end,
                                 "rows: expected each row once, got row ", rows[i], " twice");
    const Row& row = rows_[rows[i]];
    const int64_t need = row.length + std::min(tokens, INT64_MAX - row.length);
    check<std::length_error>(need <= capacity_, "row ", rows[i], ": expected at most ", capacity_,
                             " tokens, the cache's capacity, got ", row.length, " + ", tokens,
                             " = ", need, "; nothing was written");
    check<std::invalid_argument>(
        row.length == 0 || row.length >= least_length(row), "row ", rows[i],
        ": expected a window that is whole, but a forward pass that was not completed wrote up to ",
        row.written, ", over what the window before ", row.length,
        " needs: free the row or reset the cache");
    takes |= !row.in_use;
  }
  open_rows_.assign(rows.begin(), rows.end());  // first: there may be no memory for it
  for (int64_t row : rows) {
    Row& grown = rows_[row];
    if (grown.length == 0) grown = grown.emptied(true);  // what a pass wrote that was not completed
    grown.in_use = true;
    grown.written = std::max(grown.written, grown.length + tokens);
    grown.touched = std::max(grown.touched, grown.length + tokens);
  }
  open_tokens_ = tokens;
  open_ = true;
  return takes;
}

std::vector<KvLeftover> KvSlots::leftovers() const {
  std::vector<KvLeftover> left;
  if (!open_) return left;
  for (int64_t row : open_rows_) {
    const Row& r = rows_[row];
    const int64_t from = r.length + open_tokens_;
    if (std::max(r.touched, r.before) > from) left.push_back({row, from, r.touched, r.before});
  }
  return left;
}

void KvSlots::touch_free(int64_t tokens) {
  for (Row& row : rows_) {
    if (!row.in_use) row.before = std::max(row.before, tokens);
  }
}

void KvSlots::commit(bool cleared) {
  check<std::logic_error>(open_, "commit: expected a begin before it");
  for (int64_t row : open_rows_) {
    Row& grown = rows_[row];
    grown.length += open_tokens_;
    if (cleared) {
      grown.touched = grown.length;
      grown.before = 0;
    }
  }
  open_ = false;
}

int64_t KvSlots::least_length(const Row& row) const {
  // The next query at position n sees n - window + 1 to n; the slots hold what was written last.
  int64_t least = 0;
  for (const KvWindow& w : windows_) {
    if (w.window == 1 || row.written <= w.slots) continue;
    least = std::max(least, row.written - w.slots + w.window - 1);
  }
  return least;
}

int64_t KvSlots::croppable(int64_t row) const {
  check_row(row);
  return std::max<int64_t>(rows_[row].length - least_length(rows_[row]), 0);
}

void KvSlots::crop(std::span<const int64_t> rows, std::span<const int64_t> tokens) {
  check<std::invalid_argument>(rows.size() == tokens.size(), "tokens: expected ", rows.size(),
                               " numbers, one for each row, got ", tokens.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    check_row(rows[i]);
    check<std::invalid_argument>(tokens[i] >= 0, "tokens: expected at least 0, got ", tokens[i]);
    const int64_t length = rows_[rows[i]].length, room = croppable(rows[i]);
    check<std::invalid_argument>(
        tokens[i] <= room || tokens[i] >= length, "row ", rows[i], ": expected to lose at most ",
        room, " of its ", length,
        " tokens, since a sliding layer no longer holds the window before them, got ", tokens[i]);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows_[rows[i]];
    row.length -= std::min(tokens[i], row.length);
    if (row.length == 0) row = row.emptied(row.in_use);  // nothing before is seen any more
  }
  open_ = false;
}

void KvSlots::gather(std::span<const int64_t> sources) {
  check<std::invalid_argument>(static_cast<int64_t>(sources.size()) <= rows(),
                               "sources: expected at most ", rows(), " rows, got ", sources.size());
  for (int64_t source : sources) {
    check<std::invalid_argument>(in_use(source), "sources: expected rows in use, got row ", source);
  }
  std::vector<Row> gathered;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const int64_t before = rows_[i].emptied(false).before;  // behind what is copied into it
    Row row = i < sources.size() ? rows_[sources[i]] : Row{};
    row.before = std::max({row.before, i < sources.size() ? row.touched : 0, before});
    gathered.push_back(row);
  }
  rows_ = std::move(gathered);
  open_ = false;
}

}  // namespace aegis
