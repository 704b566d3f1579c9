#include "core/page_table.h"

#include <algorithm>
#include <bit>
#include <string>

#include "core/check.h"
#include "core/splitmix.h"
#include "kernels/page_query.h"

namespace aegis {
namespace {

using kernels::kFlagPlanes;
using kernels::kPagesOfABlock;

constexpr int kSecondChances = 16;  // pages passed over for one eviction, so that it stays O(1)

int64_t checked(int64_t pages) {
  check<std::invalid_argument>(1 <= pages && pages <= int64_t{1} << 31,
                               "pages: expected 1 to 2^31, got ", pages);
  return pages;
}

}  // namespace

PageTable::PageTable(int64_t pages, int64_t block_size, Eviction eviction)
    : block_size_(block_size),
      eviction_(eviction),
      index_(static_cast<size_t>(checked(pages))),
      words_((static_cast<size_t>(pages) + kPagesOfABlock - 1) / kPagesOfABlock) {
  check<std::invalid_argument>(1 <= block_size && block_size <= 1 << 16,
                               "block_size: expected 1 to 65536 tokens, got ", block_size);
  const auto count = static_cast<size_t>(pages);
  PageDescriptor nothing = {};
  nothing.owner = kNobody;
  nothing.older = nothing.newer = kNoPage;
  records_.assign(count, nothing);
  tokens_.resize(count * static_cast<size_t>(block_size));
  ring_.resize(std::bit_ceil(count));
  for (uint32_t page = 0; page < count; ++page) ring_[page] = page;
  tail_ = count;
  const size_t padded = words_ * kPagesOfABlock;
  flags_.resize(kFlagPlanes * words_);
  frequencies_.resize(padded);
  epochs_.resize(padded);
  owners_.assign(padded, kNobody);
  references_.resize(padded);
  bounds_.assign((words_ + kPagesOfABlock - 1) / kPagesOfABlock * kPagesOfABlock, UINT32_MAX);
}

// --- looking up and checking -------------------------------------------------------------------

const PageTable::Sequence& PageTable::of(uint32_t sequence) const {
  const auto found = sequences_.find(sequence);
  check<std::out_of_range>(found != sequences_.end(), "sequence: expected one that has begun, got ",
                           sequence);
  return found->second;
}

PageTable::Sequence& PageTable::of(uint32_t sequence) {
  return const_cast<Sequence&>(std::as_const(*this).of(sequence));
}

void PageTable::check_new(uint32_t sequence) const {
  check<std::invalid_argument>(sequence != kNobody && !has(sequence),
                               "sequence: expected a number that is not in use, got ", sequence);
}

void PageTable::check_room(int64_t needed, int64_t taken_from_evictable) const {
  const int64_t evictable = eviction_ == Eviction::none ? 0 : evictable_ - taken_from_evictable;
  check<PagesExhausted>(needed <= free_pages() + evictable, "pages: expected ", needed,
                        " to be free or evictable, but ", free_pages(), " are free and ", evictable,
                        " evictable, of ", pages(), "; nothing was changed");
}

const PageDescriptor& PageTable::descriptor(uint32_t page) const {
  check<std::out_of_range>(page < records_.size(), "page: expected 0 to ", records_.size() - 1,
                           ", got ", page);
  return records_[page];
}

PageTable::Shadows PageTable::shadows() const {
  return {flags_.data(),       epochs_.data(), owners_.data(), references_.data(),
          frequencies_.data(), pages(),        bounds_.data()};
}

// --- contents ----------------------------------------------------------------------------------

uint64_t PageTable::key_of(uint64_t behind, Tokens tokens) {
  uint64_t key = mix(behind + kGolden * (tokens.size() + 1));
  for (uint32_t token : tokens) key = mix(key + token + 1);
  return key;
}

uint32_t PageTable::page_of(uint64_t key) const {
  return index_.find(key, [&](uint32_t page) { return records_[page].key == key; });
}

uint32_t PageTable::find(uint64_t behind, Tokens tokens) const {
  const uint32_t page = page_of(key_of(behind, tokens));
  if (page == kNoPage) return kNoPage;
  const PageDescriptor& record = records_[page];
  const uint32_t* held = tokens_.data() + int64_t{page} * block_size_;
  const bool same = record.behind == behind && record.fill == tokens.size() &&
                    std::equal(tokens.begin(), tokens.end(), held);
  return same ? page : kNoPage;
}

/// The content of a page of `fill` tokens: that of a page already there, or a new number. Where the
/// key belongs to another content (one pair in 2⁶⁴), the page is not to be shared.
uint64_t PageTable::index(uint32_t page, uint64_t behind, int64_t fill) {
  const Tokens tokens(tokens_of(page), static_cast<size_t>(fill));
  const uint32_t there = find(behind, tokens);
  if (there != kNoPage) return records_[there].content;
  const uint64_t content = ++contents_, key = key_of(behind, tokens);
  if (page_of(key) == kNoPage) {
    index_.insert(key, page);
    PageDescriptor& record = records_[page];
    record.content = content;
    record.behind = behind;
    record.key = key;
    record.fill = static_cast<uint32_t>(fill);
  }
  shadow(page);
  return content;
}

void PageTable::unindex(uint32_t page) {
  PageDescriptor& record = records_[page];
  if (record.content == 0) return;
  index_.erase(record.key, page);
  record.content = record.behind = record.key = 0;
  record.fill = 0;
}

// --- pages -------------------------------------------------------------------------------------

void PageTable::shadow(uint32_t page) {
  PageDescriptor& record = records_[page];
  const bool evictable = record.references == 0 && record.pins == 0 && record.content != 0;
  const uint32_t flags = (record.references > 0 ? kUsed : 0) | (evictable ? kEvictable : 0) |
                         (record.pins > 0 ? kPinned : 0) | (record.references > 1 ? kShared : 0) |
                         (record.content != 0 ? kIndexed : 0);
  const size_t word = page / kPagesOfABlock;
  for (uint32_t changed = record.flags ^ flags; changed != 0; changed &= changed - 1) {
    const auto plane = static_cast<size_t>(std::countr_zero(changed));
    flags_[plane * words_ + word] ^= uint64_t{1} << page % kPagesOfABlock;
  }
  record.flags = flags;
  if (evictable) bounds_[word] = std::min(bounds_[word], record.epoch);
  epochs_[page] = record.epoch;
  owners_[page] = record.owner;
  references_[page] = record.references;
  frequencies_[page] = static_cast<uint8_t>(std::min<uint32_t>(record.frequency, 255));
}

/// The clock, which goes on by one for each call that moves pages. When it is full all ages halve.
void PageTable::tick() {
  if (clock_ == UINT32_MAX) {
    for (PageDescriptor& record : records_) record.epoch /= 2;
    for (uint32_t& epoch : epochs_) epoch /= 2;
    for (uint32_t& bound : bounds_) bound /= 2;
    clock_ /= 2;
  }
  ++clock_;
}

void PageTable::link(uint32_t page) {
  PageDescriptor& record = records_[page];
  record.older = newest_;
  record.newer = kNoPage;
  (newest_ == kNoPage ? oldest_ : records_[newest_].newer) = page;
  newest_ = page;
  ++evictable_;
}

void PageTable::unlink(uint32_t page) {
  PageDescriptor& record = records_[page];
  (record.older == kNoPage ? oldest_ : records_[record.older].newer) = record.newer;
  (record.newer == kNoPage ? newest_ : records_[record.newer].older) = record.older;
  record.older = record.newer = kNoPage;
  --evictable_;
}

uint32_t PageTable::evict() {
  for (int chance = 0; eviction_ == Eviction::frequency && chance < kSecondChances; ++chance) {
    const uint32_t page = oldest_;
    if (records_[page].frequency == 0) break;
    records_[page].frequency /= 2;
    unlink(page);
    link(page);
    shadow(page);
  }
  const uint32_t page = oldest_;
  unlink(page);
  unindex(page);
  if (oldest_ != kNoPage) {  // what the next eviction reads, in places that have nothing in common
    const PageDescriptor& next = records_[oldest_];
    index_.prefetch(next.key);
    if (next.newer != kNoPage) __builtin_prefetch(&records_[next.newer], 1);
  }
  ++counts_.evicted;
  return page;
}

/// A page, which there is: the room was checked.
uint32_t PageTable::take(uint32_t owner, uint32_t block) {
  const uint32_t page = head_ != tail_ ? ring_[head_++ & (ring_.size() - 1)] : evict();
  PageDescriptor& record = records_[page];
  record.owner = owner;
  record.block = block;
  record.references = 1;
  record.epoch = clock_;
  record.frequency = 0;
  shadow(page);
  return page;
}

void PageTable::hold(uint32_t page) {
  PageDescriptor& record = records_[page];
  if (record.references == 0 && record.pins == 0) unlink(page);
  ++record.references;
  record.epoch = clock_;
  shadow(page);
}

void PageTable::let_go(uint32_t page) {
  PageDescriptor& record = records_[page];
  record.epoch = clock_;
  if (--record.references == 0 && record.pins == 0) {
    if (record.content != 0 && eviction_ != Eviction::none) {
      link(page);
    } else {
      unindex(page);
      record.owner = kNobody;
      ring_[tail_++ & (ring_.size() - 1)] = page;
    }
  }
  shadow(page);
}

uint32_t PageTable::allocate(uint32_t owner) {
  check<std::invalid_argument>(owner != kNobody, "owner: expected 0 to ", kNobody - 1, ", got ",
                               owner);
  check_room(1, 0);
  tick();
  const uint32_t page = take(owner, kNoBlock);
  debug_check();
  return page;
}

void PageTable::release(uint32_t page) {
  const PageDescriptor& record = descriptor(page);
  check<std::invalid_argument>(record.references > 0, "page ", page,
                               ": expected one that is held, got one that was given back");
  check<std::invalid_argument>(record.block == kNoBlock, "page ", page,
                               ": expected one of allocate, got one of sequences");
  tick();
  let_go(page);
  debug_check();
}

void PageTable::debug_check() const {
#ifndef NDEBUG
  check_invariants();
#endif
}

}  // namespace aegis
