// The part of PageTable that knows of tokens whose pages are taken before it is told what they are.
#include <algorithm>
#include <unordered_map>

#include "core/check.h"
#include "core/page_table.h"

namespace aegis {

int64_t PageTable::lookup(std::span<const uint32_t> tokens) const {
  uint64_t behind = 0;
  int64_t there = 0;
  for (; there + block_size_ <= std::ssize(tokens); there += block_size_) {
    const uint32_t page =
        find(behind, tokens.subspan(static_cast<size_t>(there), static_cast<size_t>(block_size_)));
    if (page == kNoPage) break;
    behind = records_[page].content;
  }
  return there;
}

/// What extend() takes.
PageTable::Need PageTable::needed(std::span<const uint32_t> sequences,
                                  std::span<const int64_t> lengths) const {
  check<std::invalid_argument>(sequences.size() == lengths.size(), "lengths: expected ",
                               sequences.size(), ", one for each sequence, got ", lengths.size());
  Need need{0, 0};
  std::unordered_map<uint32_t, uint32_t> writers;  // of pages that are shared
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = of(sequences[i]);
    if (lengths[i] <= sequence.length) continue;
    // Blocks that were given back count on both sides, and may be more than the table has pages.
    const int64_t more = (lengths[i] - 1) / block_size_ + 1 - std::ssize(sequence.pages);
    // Twice the pages shows as well that there is no room, and no sum overflows.
    need.pages += std::min(more, 2 * pages());
    if (!last_is_shared(sequence)) continue;
    const uint32_t page = sequence.pages.back();
    // Where all who hold it write, the last of them keeps it.
    need.copies += ++writers[page] < records_[page].references;
  }
  need.pages += static_cast<int64_t>(need.copies);
  return need;
}

void PageTable::expect_room(std::span<const uint32_t> sequences,
                            std::span<const int64_t> lengths) const {
  check_room(needed(sequences, lengths).pages, 0);
}

std::vector<PageTable::Copy> PageTable::extend(std::span<const uint32_t> sequences,
                                               std::span<const int64_t> lengths) {
  const Need need = needed(sequences, lengths);
  check_room(need.pages, 0);
  std::vector<Copy> copies;
  copies.reserve(need.copies);
  bool grows = false;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = of(sequences[i]);
    if (lengths[i] <= sequence.length) continue;
    grows = true;
    reserve(sequence, lengths[i]);
  }
  if (!grows) return copies;

  tick();
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& sequence = of(sequences[i]);
    if (lengths[i] <= sequence.length) continue;
    const Copy copy = make_last_own(sequence, sequences[i]);
    if (copy.from != kNoPage) copies.push_back(copy);
    while (sequence.length < lengths[i]) {
      const int64_t at = sequence.length % block_size_;
      if (at == 0) {
        sequence.pages.push_back(take(sequences[i], static_cast<uint32_t>(sequence.pages.size())));
      }
      sequence.length += std::min(block_size_ - at, lengths[i] - sequence.length);
      if (sequence.length % block_size_ == 0) sequence.contents.push_back(++contents_);
    }
  }
  debug_check();
  return copies;
}

void PageTable::tell(uint32_t sequence, std::span<const uint32_t> tokens) {
  Sequence& told = of(sequence);
  check<std::invalid_argument>(std::ssize(tokens) <= told.length - told.known,
                               "tokens: expected at most ", told.length - told.known,
                               ", those that are not known, got ", tokens.size());
  while (!tokens.empty()) {
    const auto block = static_cast<size_t>(told.known / block_size_);
    const int64_t at = told.known % block_size_;
    const uint32_t page = told.pages[block];
    const auto count = std::min<size_t>(tokens.size(), static_cast<size_t>(block_size_ - at));
    // Who shares the page may have told it already; one that was given back is nobody's to find.
    const bool there = page != kNoPage, named = there && records_[page].content != 0;
    if (there && !named) std::copy_n(tokens.begin(), count, tokens_of(page) + at);
    told.known += static_cast<int64_t>(count);
    tokens = tokens.subspan(count);
    if (!there || told.known % block_size_ != 0) continue;
    const uint64_t behind = block == 0 ? 0 : told.contents[block - 1];
    told.contents[block] = named ? records_[page].content : index(page, behind, block_size_);
  }
  debug_check();
}

}  // namespace aegis
