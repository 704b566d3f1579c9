// Which page holds the content of a key.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aegis {

/// Pages by the 64-bit keys of their contents, which are taken to be well mixed. Nothing is
/// allocated after the constructor: an open table with linear probing, at most half full, from
/// which entries are taken by moving later ones up (Knuth, vol. 3, 6.4, algorithm R), so that it
/// does not age. An entry is the lower half of its key and its page; the whole keys are the
/// caller's to keep, and are only looked at where the halves agree. One thread at a time.
class PageIndex {
 public:
  static constexpr uint32_t kNoPage = UINT32_MAX;

  /// Room for as many entries as there are pages, at most 2³¹: 16 to 32 bytes for each.
  explicit PageIndex(size_t pages)
      : slots_(std::bit_ceil(std::max<size_t>(2 * pages, 2))), mask_(slots_.size() - 1) {}

  int64_t size() const { return size_; }

  /// The page of `key`, or kNoPage. `has_key(page)` tells whether a page's whole key is `key`.
  template <class HasKey>
  uint32_t find(uint64_t key, HasKey&& has_key) const {
    const auto half = static_cast<uint32_t>(key);
    for (size_t at = half & mask_; slots_[at].page != kNoPage; at = (at + 1) & mask_) {
      if (slots_[at].half == half && has_key(slots_[at].page)) return slots_[at].page;
    }
    return kNoPage;
  }

  /// Neither the key nor the page is in the index yet.
  void insert(uint64_t key, uint32_t page) {
    const auto half = static_cast<uint32_t>(key);
    size_t at = half & mask_;
    while (slots_[at].page != kNoPage) at = (at + 1) & mask_;
    slots_[at] = {half, page};
    ++size_;
  }

  /// The page is in the index, under this key.
  void erase(uint64_t key, uint32_t page) {
    size_t gap = static_cast<uint32_t>(key) & mask_;
    while (slots_[gap].page != page) gap = (gap + 1) & mask_;
    for (size_t at = (gap + 1) & mask_; slots_[at].page != kNoPage; at = (at + 1) & mask_) {
      // An entry may move up to the gap unless its own place lies behind it.
      const size_t from_own = (at - slots_[at].half) & mask_, from_gap = (at - gap) & mask_;
      if (from_own < from_gap) continue;
      slots_[gap] = slots_[at];
      gap = at;
    }
    slots_[gap] = {};
    --size_;
  }

  /// Brings what erase() and find() read first towards the caches.
  void prefetch(uint64_t key) const {
    __builtin_prefetch(&slots_[static_cast<uint32_t>(key) & mask_]);
  }

 private:
  struct Slot {
    uint32_t half = 0;  // of the key; where it belongs, masked
    uint32_t page = kNoPage;
  };
  std::vector<Slot> slots_;
  size_t mask_;
  int64_t size_ = 0;
};

}  // namespace aegis
