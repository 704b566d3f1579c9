// Which pages of a paged KV cache belong to which sequences: sharing, copy-on-write, eviction.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/page_index.h"

namespace aegis {

/// There were fewer pages, free and evictable together, than a call needed. Nothing was changed.
class PagesExhausted : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// All that is known of a page, in one cache line.
struct PageDescriptor {
  uint64_t content;       ///< number of what it holds: the same block behind the same text; 0: none
  uint64_t behind;        ///< content of the block before it; 0: it is the first
  uint64_t key;           ///< in the index of contents
  uint32_t owner;         ///< sequence that took it
  uint32_t block;         ///< which block of that sequence; kNoBlock: of allocate()
  uint32_t references;    ///< sequences that hold it
  uint32_t pins;          ///< that keep it from eviction
  uint32_t epoch;         ///< when it was last taken, shared or given back
  uint32_t frequency;     ///< how often it was shared, halved whenever eviction passed it over
  uint32_t older, newer;  ///< neighbours among the evictable, or kNoPage
  uint32_t fill;          ///< tokens of its content, while it has one
  uint32_t flags;         ///< PageTable::Flag, as the shadows have them
};
static_assert(sizeof(PageDescriptor) == 64);

/// Pages of `block_size` tokens each, handed out to sequences.
///
/// A block of a new sequence whose text so far is that of a page already there shares it: the
/// sequence then holds a reference, and its tokens need not be computed again. Full blocks can be
/// shared, and last blocks as they were when their sequence began. What is compared is the tokens
/// themselves, by way of numbers of contents, so that no two texts are ever taken for each other.
/// A page that nobody holds any more stays where it is as long as it is not needed (evictable) if
/// it is in the index, and is free otherwise. A shared page is never written: the sequence that
/// would gets a copy.
///
/// Flags, epochs, owners, references and frequencies are kept a second time as arrays, for
/// predicates over all pages (kernels/page_query.h): a flag is a bit there, so that those of a
/// million pages are 128 KiB.
///
/// Taking and giving back a page is O(1): free pages go around in a ring, evictable ones are a list
/// in order of age. With Eviction::frequency a page that was shared since is passed over, a few
/// times at most (second chance), so that a burst of new text does not push out what all use.
///
/// Every function checks first and changes nothing when it throws: std::out_of_range for a sequence
/// or page that is not there, std::invalid_argument for the rest unless said otherwise. One thread
/// at a time. Built without NDEBUG, every change is followed by check_invariants().
class PageTable {
 public:
  enum class Eviction { none, lru, frequency };
  static constexpr uint32_t kNoPage = UINT32_MAX;
  static constexpr uint32_t kNobody = UINT32_MAX;
  static constexpr uint32_t kNoBlock = UINT32_MAX;

  enum Flag : uint8_t { kUsed = 1, kEvictable = 2, kPinned = 4, kShared = 8, kIndexed = 16 };

  /// `pages` free pages, 1 to 2³¹, of 1 to 2¹⁶ tokens.
  PageTable(int64_t pages, int64_t block_size, Eviction eviction);

  int64_t pages() const { return static_cast<int64_t>(records_.size()); }
  int64_t block_size() const { return block_size_; }
  int64_t free_pages() const { return static_cast<int64_t>(tail_ - head_); }
  int64_t evictable_pages() const { return evictable_; }

  // --- sequences: numbers of the caller's, 0 to 2³² - 2

  /// A new sequence of these tokens. Returns how many of them, from the first on, lie in pages that
  /// were there. Throws PagesExhausted. From now on others share its blocks: what belongs into them
  /// is written before another sequence is read.
  int64_t begin(uint32_t sequence, std::span<const uint32_t> tokens);

  /// How many of these tokens, from the first on and in full blocks, begin() would find there.
  int64_t lookup(std::span<const uint32_t> tokens) const;

  struct Copy {
    uint32_t from, to;
  };
  /// More tokens. Returns the page to copy before they are written, where the last one was shared;
  /// both are kNoPage otherwise. Throws PagesExhausted.
  Copy append(uint32_t sequence, std::span<const uint32_t> tokens);

  /// More tokens for several sequences, as many as make their lengths `lengths`, or none where one
  /// is that long; which tokens they are is not known, so that nobody shares their blocks until
  /// tell(). Returns the pages to copy before anything is written. Throws PagesExhausted.
  std::vector<Copy> extend(std::span<const uint32_t> sequences, std::span<const int64_t> lengths);

  /// What the first tokens of a sequence are that are not known: tokens that have been written, at
  /// most as many as there are. Blocks that are known and full can be shared from now on.
  void tell(uint32_t sequence, std::span<const uint32_t> tokens);

  /// Tokens of a sequence, from the first on, that are known.
  int64_t known(uint32_t sequence) const { return of(sequence).known; }

  /// Throws PagesExhausted where extend() would.
  void expect_room(std::span<const uint32_t> sequences, std::span<const int64_t> lengths) const;

  /// Takes tokens off the end, down to `length`, at most what it has, and at least one that is
  /// still there (trim()), or none at all.
  void crop(uint32_t sequence, int64_t length);

  /// The first `tokens` tokens are not needed any more, as before a sliding window: gives back the
  /// pages that hold none of the others, kNoPage in pages_of() from now on. Length and numbers of
  /// blocks stay. Others may share those pages as long as they are there. Returns whether there
  /// were such pages.
  bool trim(uint32_t sequence, int64_t tokens);

  /// Tokens whose pages trim() gave back.
  int64_t trimmed(uint32_t sequence) const {
    return static_cast<int64_t>(of(sequence).first) * block_size_;
  }

  /// A new sequence of the same tokens, in the same pages. O(its pages).
  void fork(uint32_t sequence, uint32_t twin);

  /// Gives all pages of a sequence back; the last block is the first to be evicted.
  void free(uint32_t sequence);

  bool has(uint32_t sequence) const { return sequences_.contains(sequence); }
  int64_t length(uint32_t sequence) const { return of(sequence).length; }
  std::span<const uint32_t> pages_of(uint32_t sequence) const { return of(sequence).pages; }

  /// Keeps the pages that a sequence holds now from eviction once nobody holds them. Pins add up.
  void pin(uint32_t sequence);
  /// Takes one pin off each of these pages. Throws where one has none.
  void unpin(std::span<const uint32_t> pages);

  // --- single pages, for who keeps the sequences

  /// A page for `owner`, free or evicted. Throws PagesExhausted.
  uint32_t allocate(uint32_t owner);
  /// Gives back a page of allocate(). Throws std::invalid_argument where nobody holds it, a double
  /// free, and where a sequence does.
  void release(uint32_t page);

  const PageDescriptor& descriptor(uint32_t page) const;
  uint32_t clock() const { return clock_; }

  /// As kernels::PageQuery takes them.
  struct Shadows {
    const uint64_t* flags;
    const uint32_t* epochs;
    const uint32_t* owners;
    const uint32_t* references;
    const uint8_t* frequencies;  ///< 255 and more are 255
    int64_t pages;
    uint32_t* bounds;  ///< at most the least epoch of 64 pages' evictable ones
  };
  Shadows shadows() const;

  struct Counts {
    int64_t shared;   ///< blocks that begin() found, ever
    int64_t evicted;  ///< pages, ever
    int64_t copied;   ///< pages, ever
  };
  Counts counts() const { return counts_; }

  /// Throws std::logic_error, naming what does not add up. O(pages).
  void check_invariants() const;

 private:
  struct Sequence {
    std::vector<uint32_t> pages;     // kNoPage before `first`
    std::vector<uint64_t> contents;  // of the full blocks
    int64_t length = 0;
    int64_t known = 0;  // tokens, from the first on; a block that is not has a content of its own
    size_t first = 0;   // block that is there

    std::span<const uint32_t> held() const { return std::span(pages).subspan(first); }
  };

  const Sequence& of(uint32_t sequence) const;
  Sequence& of(uint32_t sequence);
  void reserve(Sequence& sequence, int64_t tokens) const;
  void check_new(uint32_t sequence) const;
  void check_room(int64_t needed, int64_t taken_from_evictable) const;
  int64_t blocks(int64_t tokens) const { return (tokens + block_size_ - 1) / block_size_; }

  uint32_t* tokens_of(uint32_t page) { return tokens_.data() + int64_t{page} * block_size_; }
  using Tokens = std::span<const uint32_t>;
  static uint64_t key_of(uint64_t behind, Tokens tokens);
  uint32_t page_of(uint64_t key) const;
  uint32_t find(uint64_t behind, Tokens tokens) const;
  uint64_t index(uint32_t page, uint64_t behind, int64_t fill);
  void unindex(uint32_t page);

  uint32_t take(uint32_t owner, uint32_t block);
  uint32_t evict();
  void hold(uint32_t page);
  void let_go(uint32_t page);
  void link(uint32_t page);
  void unlink(uint32_t page);
  void shadow(uint32_t page);
  void tick();
  struct Need {
    int64_t pages;
    size_t copies;  ///< of them
  };
  Need needed(std::span<const uint32_t> sequences, std::span<const int64_t> lengths) const;
  bool last_is_shared(const Sequence& sequence) const;
  Copy make_last_own(Sequence& sequence, uint32_t owner);
  void put(Sequence& sequence, uint32_t owner, std::span<const uint32_t> tokens);
  void debug_check() const;

  const int64_t block_size_;
  const Eviction eviction_;
  std::vector<PageDescriptor> records_;
  std::vector<uint32_t> tokens_;  // of each page, to tell contents apart
  std::vector<uint32_t> ring_;    // free pages, from head_ to tail_, masked
  uint64_t head_ = 0, tail_ = 0;
  uint32_t oldest_ = kNoPage, newest_ = kNoPage;
  int64_t evictable_ = 0;
  PageIndex index_;
  std::unordered_map<uint32_t, Sequence> sequences_;
  uint64_t contents_ = 0;  // numbers given
  uint32_t clock_ = 0;
  Counts counts_ = {};
  // Shadows, of whole blocks of 64 pages. A bound may be too low: whoever asks for the oldest page
  // meets it and puts it right, which changes no answer.
  const size_t words_;  // of 64 pages, in each plane of flags
  std::vector<uint64_t> flags_;
  std::vector<uint8_t> frequencies_;
  std::vector<uint32_t> epochs_, owners_, references_;
  mutable std::vector<uint32_t> bounds_;
};

}  // namespace aegis
