// The part of PageTable that knows of sequences.
#include <algorithm>
#include <bit>
#include <utility>

#include "core/check.h"
#include "core/page_table.h"
#include "kernels/page_query.h"

namespace aegis {

/// Memory for as many tokens: a sequence that grows within it does not throw halfway.
void PageTable::reserve(Sequence& sequence, int64_t tokens) const {
  const auto fit = [&](auto& list) {
    const size_t room = list.capacity();
    if (static_cast<int64_t>(room) * block_size_ >= tokens) return;  // nearly always: no division
    list.reserve(std::max(static_cast<size_t>(blocks(tokens)), 2 * room));
  };
  fit(sequence.pages);
  fit(sequence.contents);
}

int64_t PageTable::begin(uint32_t sequence, std::span<const uint32_t> tokens) {
  check_new(sequence);
  const auto count = static_cast<int64_t>(tokens.size());
  std::vector<uint32_t> shared;
  int64_t evictable = 0, there = 0;
  uint64_t behind = 0;
  while (there < count) {
    const auto fill = static_cast<size_t>(std::min(block_size_, count - there));
    const uint32_t page = find(behind, tokens.subspan(static_cast<size_t>(there), fill));
    if (page == kNoPage) break;
    shared.push_back(page);
    evictable += records_[page].references == 0 && records_[page].pins == 0;
    behind = records_[page].content;
    there += static_cast<int64_t>(fill);
  }
  check_room(blocks(count) - std::ssize(shared), evictable);

  Sequence empty;
  reserve(empty, count);
  Sequence& made = sequences_.emplace(sequence, std::move(empty)).first->second;
  tick();
  for (uint32_t page : shared) {
    ++records_[page].frequency;
    hold(page);
    made.pages.push_back(page);
    if (records_[page].fill == block_size_) made.contents.push_back(records_[page].content);
  }
  counts_.shared += std::ssize(shared);
  made.length = made.known = there;
  put(made, sequence, tokens.subspan(static_cast<size_t>(there)));
  const int64_t partial = count % block_size_;
  if (partial != 0 && there < count) {
    index(made.pages.back(), made.contents.empty() ? 0 : made.contents.back(), partial);
  }
  debug_check();
  return there;
}

/// Writes tokens behind those of a sequence whose last page is its own; the room was checked.
void PageTable::put(Sequence& sequence, uint32_t owner, std::span<const uint32_t> tokens) {
  const bool known = sequence.known == sequence.length;
  while (!tokens.empty()) {
    const int64_t at = sequence.length % block_size_;
    if (at == 0) {
      const auto block = static_cast<uint32_t>(sequence.pages.size());
      sequence.pages.push_back(take(owner, block));
    }
    const uint32_t page = sequence.pages.back();
    const auto count = std::min<size_t>(tokens.size(), static_cast<size_t>(block_size_ - at));
    std::copy_n(tokens.begin(), count, tokens_of(page) + at);
    sequence.length += static_cast<int64_t>(count);
    if (known) sequence.known = sequence.length;
    tokens = tokens.subspan(count);
    if (sequence.length % block_size_ == 0) {
      const uint64_t behind = sequence.contents.empty() ? 0 : sequence.contents.back();
      sequence.contents.push_back(known ? index(page, behind, block_size_) : ++contents_);
    }
  }
}

/// Whether what is added to a sequence would be written into a page that others hold too.
bool PageTable::last_is_shared(const Sequence& sequence) const {
  return sequence.length % block_size_ != 0 && records_[sequence.pages.back()].references > 1;
}

/// Makes the last page of a sequence one to be written; the room was checked.
PageTable::Copy PageTable::make_last_own(Sequence& sequence, uint32_t owner) {
  Copy copy = {kNoPage, kNoPage};
  if (last_is_shared(sequence)) {
    copy.from = sequence.pages.back();
    copy.to = take(owner, records_[copy.from].block);
    std::copy_n(tokens_of(copy.from), block_size_, tokens_of(copy.to));
    sequence.pages.back() = copy.to;
    let_go(copy.from);
    ++counts_.copied;
  } else if (sequence.length % block_size_ != 0) {
    unindex(sequence.pages.back());  // its content changes
    shadow(sequence.pages.back());
  }
  return copy;
}

PageTable::Copy PageTable::append(uint32_t sequence, std::span<const uint32_t> tokens) {
  Sequence& grown = of(sequence);
  if (tokens.empty()) return {kNoPage, kNoPage};
  const int64_t more = blocks(grown.length + std::ssize(tokens)) - std::ssize(grown.pages);
  check_room(more + last_is_shared(grown), 0);

  reserve(grown, grown.length + std::ssize(tokens));
  tick();
  const Copy copy = make_last_own(grown, sequence);
  put(grown, sequence, tokens);
  debug_check();
  return copy;
}

void PageTable::crop(uint32_t sequence, int64_t length) {
  Sequence& cut = of(sequence);
  check<std::invalid_argument>(0 <= length && length <= cut.length, "length: expected 0 to ",
                               cut.length, ", what the sequence has, got ", length);
  check<std::invalid_argument>(length == 0 || blocks(length) > static_cast<int64_t>(cut.first),
                               "length: expected 0, or more than the ",
                               static_cast<int64_t>(cut.first) * block_size_,
                               " tokens whose pages were given back, got ", length);
  tick();
  while (std::ssize(cut.pages) > blocks(length)) {
    if (cut.pages.back() != kNoPage) let_go(cut.pages.back());
    cut.pages.pop_back();
  }
  cut.first = std::min(cut.first, cut.pages.size());
  cut.length = length;
  cut.known = std::min(cut.known, length);
  cut.contents.resize(static_cast<size_t>(length / block_size_));
  debug_check();
}

bool PageTable::trim(uint32_t sequence, int64_t tokens) {
  Sequence& cut = of(sequence);
  check<std::invalid_argument>(0 <= tokens && tokens <= cut.length, "tokens: expected 0 to ",
                               cut.length, ", what the sequence has, got ", tokens);
  const auto first = static_cast<size_t>(tokens / block_size_);
  if (first <= cut.first) return false;
  tick();
  for (; cut.first < first; ++cut.first) {
    let_go(cut.pages[cut.first]);
    cut.pages[cut.first] = kNoPage;
  }
  debug_check();
  return true;
}

void PageTable::fork(uint32_t sequence, uint32_t twin) {
  of(sequence);
  check_new(twin);
  const Sequence& made = sequences_.emplace(twin, of(sequence)).first->second;
  tick();
  for (uint32_t page : made.held()) hold(page);
  debug_check();
}

void PageTable::free(uint32_t sequence) {
  Sequence& gone = of(sequence);
  tick();
  const auto held = gone.held();
  std::for_each(held.rbegin(), held.rend(), [&](uint32_t page) { let_go(page); });
  sequences_.erase(sequence);
  debug_check();
}

void PageTable::pin(uint32_t sequence) {
  for (uint32_t page : of(sequence).held()) {
    ++records_[page].pins;
    shadow(page);
  }
  debug_check();
}

void PageTable::unpin(std::span<const uint32_t> pages) {
  std::vector<uint32_t> sorted(pages.begin(), pages.end());
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i) {
    const PageDescriptor& record = descriptor(sorted[i]);
    const bool again = i + 1 < sorted.size() && sorted[i] == sorted[i + 1];
    check<std::invalid_argument>(record.pins > 0 && !again, "page ", sorted[i],
                                 ": expected one that is pinned, once in a call");
  }
  for (uint32_t page : pages) {
    PageDescriptor& record = records_[page];
    --record.pins;
    if (record.pins == 0 && record.references == 0) {
      ++record.references;  // as if somebody let go of it now
      let_go(page);
    }
    shadow(page);
  }
  debug_check();
}

void PageTable::check_invariants() const {
  const auto must = [](bool holds, const char* what, int64_t number) {
    check<std::logic_error>(holds, "page table: ", what, " (", number, ")");
  };
  const auto shown = [&](uint32_t page, Flag flag) {
    const auto plane = static_cast<size_t>(std::countr_zero(static_cast<uint32_t>(flag)));
    const uint64_t word = flags_[plane * words_ + page / kernels::kPagesOfABlock];
    return (word >> page % kernels::kPagesOfABlock & 1) != 0;
  };
  std::vector<uint32_t> references(records_.size());
  for (const auto& [number, sequence] : sequences_) {
    must(std::ssize(sequence.pages) == blocks(sequence.length), "a sequence's pages", number);
    must(std::ssize(sequence.contents) == sequence.length / block_size_, "its contents", number);
    must(0 <= sequence.known && sequence.known <= sequence.length, "what is known of it", number);
    must(sequence.first <= sequence.pages.size(), "its first block", number);
    for (size_t i = 0; i < sequence.first; ++i) {
      must(sequence.pages[i] == kNoPage, "a page that was given back", number);
    }
    for (uint32_t page : sequence.held()) ++references[page];
  }
  std::vector<uint8_t> seen(records_.size());
  for (uint64_t i = head_; i != tail_; ++i) {
    const uint32_t page = ring_[i & (ring_.size() - 1)];
    must(!seen[page]++, "a page is free twice", page);
    must(records_[page].references == 0 && records_[page].content == 0, "a free page", page);
  }
  int64_t evictable = 0;
  uint32_t before = kNoPage;
  for (uint32_t page = oldest_; page != kNoPage; page = records_[page].newer, ++evictable) {
    must(!seen[page]++, "an evictable page is free, or twice in the list", page);
    must(records_[page].older == before, "a list that does not go back", page);
    must(records_[page].references == 0 && records_[page].pins == 0, "an evictable page", page);
    before = page;
  }
  must(newest_ == before && evictable == evictable_, "the list of evictable pages", evictable);
  int64_t indexed = 0;
  for (uint32_t page = 0; page < records_.size(); ++page) {
    const PageDescriptor& record = records_[page];
    const bool single = record.references == 1 && record.block == kNoBlock;
    must(record.references == references[page] + single, "a page's references", page);
    must(seen[page] == (record.references == 0 && record.pins == 0), "a page that is lost", page);
    indexed += record.content != 0;
    if (record.content != 0) {
      must(page_of(record.key) == page, "a content without its key", page);
    }
    const bool evictable = record.references == 0 && record.pins == 0 && record.content != 0;
    must(shown(page, kUsed) == (record.references > 0) && shown(page, kEvictable) == evictable &&
             shown(page, kPinned) == (record.pins > 0) &&
             shown(page, kShared) == (record.references > 1) &&
             shown(page, kIndexed) == (record.content != 0),
         "flags", page);
    must(!evictable || bounds_[page / kernels::kPagesOfABlock] <= record.epoch, "a bound", page);
    must(epochs_[page] == record.epoch && references_[page] == record.references &&
             owners_[page] == record.owner,
         "a shadow", page);
  }
  must(indexed == index_.size(), "keys without a page", index_.size());
}

}  // namespace aegis
