#include "core/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/errors.h"

namespace aegis {
namespace {

bool aligned(const std::byte* p) { return reinterpret_cast<uintptr_t>(p) % Arena::kAlign == 0; }

TEST(Arena, IsWholeZeroedPages) {
  Arena arena(1);
  ASSERT_EQ(arena.size(), page_size());
  EXPECT_EQ(arena.used(), 0u);
  EXPECT_TRUE(std::all_of(arena.data(), arena.data() + arena.size(),
                          [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Arena, EveryPieceIsAlignedAndItsOwn) {
  Arena arena(1 << 16);
  std::vector<std::byte*> pieces;
  for (size_t bytes = 1; bytes <= 200; ++bytes) {
    std::byte* piece = arena.allocate(bytes);
    ASSERT_TRUE(aligned(piece)) << bytes;
    std::fill_n(piece, bytes, static_cast<std::byte>(bytes));
    pieces.push_back(piece);
  }
  for (size_t bytes = 1; bytes <= 200; ++bytes) {
    const std::byte* piece = pieces[bytes - 1];
    ASSERT_TRUE(std::all_of(piece, piece + bytes, [&](std::byte b) {
      return b == static_cast<std::byte>(bytes);
    })) << bytes;
  }
}

TEST(Arena, ExhaustionNamesNeedAndRoomAndHandsOutNothing) {
  Arena arena(page_size());
  arena.allocate(100);
  const std::string room = std::to_string(page_size() - 128);
  EXPECT_EQ(message_of<ArenaExhausted>([&] { arena.allocate(page_size()); }),
            "arena: expected a request of at most " + room + " bytes (" +
                std::to_string(page_size()) + " in all, 100 in use), got " +
                std::to_string(page_size()));
  EXPECT_EQ(arena.used(), 100u);
  EXPECT_EQ(arena.allocate(page_size() - 128), arena.data() + 128);
  EXPECT_THROW(arena.allocate(1), std::bad_alloc);
}

TEST(Arena, RequestsNearTheTopOfSizeTDoNotWrap) {
  Arena arena(page_size());
  arena.allocate(1);
  for (size_t bytes : {SIZE_MAX, SIZE_MAX - 63, SIZE_MAX - 64, SIZE_MAX / 2 + 1}) {
    EXPECT_THROW(arena.allocate(bytes), ArenaExhausted) << bytes;
  }
  EXPECT_EQ(arena.used(), 1u);
}

TEST(Arena, NothingCanBeAllocatedFromAFullArena) {
  Arena arena(page_size());
  arena.allocate(page_size() - 1);  // the next multiple of 64 is the end
  EXPECT_EQ(arena.allocate(0), arena.data() + page_size());
  EXPECT_THROW(arena.allocate(1), ArenaExhausted);
}

TEST(Arena, ResetHandsTheSamePiecesOutAgain) {
  Arena arena(1 << 14);
  const std::byte* first = arena.allocate(1000);
  const std::byte* second = arena.allocate(1000);
  arena.reset();
  EXPECT_EQ(arena.used(), 0u);
  EXPECT_EQ(arena.allocate(1000), first);
  EXPECT_EQ(arena.allocate(1000), second);
}

// Pieces are known by address and `used` belongs to the mapping: moving one without the other would
// let a moved-from arena hand out addresses that are not its own.
static_assert(!std::is_move_constructible_v<Arena> && !std::is_move_assignable_v<Arena>);

}  // namespace
}  // namespace aegis
