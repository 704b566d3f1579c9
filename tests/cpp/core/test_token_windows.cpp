#include "core/token_windows.h"

#include <gtest/gtest.h>

#include "temp_file.h"

namespace aegis {
namespace {

/// A store of sparse u8 files with these token counts.
std::shared_ptr<const TokenStore> store_of(const TempFolder& folder,
                                           const std::vector<int64_t>& sizes) {
  std::vector<TokenFile> files;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string path = folder.sparse(std::to_string(i), static_cast<uint64_t>(sizes[i]));
    files.push_back({path, TokenType::u8, 0, sizes[i]});
  }
  return std::make_shared<TokenStore>(std::move(files));
}

TEST(TokenWindows, CountsEveryStartAndEveryBlock_case53) {
  const TempFolder folder;
  for (int64_t n = 2; n < 40; ++n) {
    const auto store = store_of(folder, {n});
    for (int64_t block = 1; block < n; ++block) {
      const TokenWindows sliding(store, block, 1), disjoint(store, block, block);
      EXPECT_EQ(sliding.count(), n - block);
      EXPECT_EQ(sliding.offset(n - block - 1), n - block - 1);
      EXPECT_EQ(sliding.tail_tokens(), 0);
      EXPECT_EQ(disjoint.count(), (n - 1) / block);
      EXPECT_EQ(disjoint.tail_tokens(), n - 1 - (n - 1) / block * block);
    }
  }
}

TEST(TokenWindows, NeverCrossFilesForAnyStride) {
  const TempFolder folder;
  const std::vector<int64_t> sizes{10, 3, 1, 25, 4, 11, 2};
  const auto store = store_of(folder, sizes);
  for (int64_t block = 1; block <= 24; ++block) {
    for (int64_t stride = 1; stride <= 30; ++stride) {
      const TokenWindows windows(store, block, stride);
      int64_t index = 0, tail = 0;
      for (size_t file = 0; file < sizes.size(); ++file) {
        const auto [begin, tokens] = store->segments()[file];
        int64_t end = 0;
        for (int64_t at = 0; at + block + 1 <= tokens; at += stride, ++index) {
          ASSERT_EQ(windows.offset(index), begin + at);
          ASSERT_EQ(windows.segment_of(index), file);
          end = at + block + 1;
        }
        tail += tokens - end;
      }
      ASSERT_EQ(windows.count(), index);
      ASSERT_EQ(windows.tail_tokens(), tail);
    }
  }
}

TEST(TokenWindows, OffsetsAreOffsetOfEach) {
  const TempFolder folder;
  const TokenWindows windows(store_of(folder, {10, 20}), 4, 2);
  const std::vector<int64_t> indices{3, 0, 5, 3};
  std::vector<int64_t> out(indices.size());
  windows.offsets(indices.data(), 4, out.data());
  for (size_t i = 0; i < indices.size(); ++i) EXPECT_EQ(out[i], windows.offset(indices[i]));
  EXPECT_THROW(windows.offset(-1), std::out_of_range);
  EXPECT_TRUE(contains(message_of<std::out_of_range>([&] { windows.offset(windows.count()); }),
                       "expected 0 to 10, got 11"));
}

TEST(TokenWindows, MoreWindowsThanAnInt32Counts_case47_case48) {
  const TempFolder folder;
  const int64_t n = int64_t{6} << 30;
  const TokenWindows windows(store_of(folder, {1000, n}), 256, 1);
  EXPECT_EQ(windows.count(), n - 256 + 744);
  EXPECT_EQ(windows.offset(windows.count() - 1), windows.store()->extent() - 257);
}

TEST(TokenWindows, HugeArgumentsDoNotOverflow) {
  const TempFolder folder;
  const auto store = store_of(folder, {100});
  EXPECT_EQ(TokenWindows(store, 99, INT64_MAX).count(), 1);
  EXPECT_THROW(TokenWindows(store, INT64_MAX, 1), std::invalid_argument);
}

TEST(TokenWindows, TooShortSaysHowShort_case54) {
  const TempFolder folder;
  EXPECT_TRUE(contains(
      message_of<std::invalid_argument>([&] { TokenWindows(store_of(folder, {64}), 64, 64); }),
      "0: the file has 64 tokens, but block_size 64 needs"));
  EXPECT_TRUE(contains(
      message_of<std::invalid_argument>([&] { TokenWindows(store_of(folder, {5, 9, 2}), 64, 64); }),
      "the longest has 9 tokens, but block_size 64 needs"));
  EXPECT_EQ(TokenWindows(store_of(folder, {65}), 64, 64).count(), 1);
}

TEST(TokenWindows, BadArgumentsAreNamed) {
  const TempFolder folder;
  const auto store = store_of(folder, {10});
  EXPECT_TRUE(contains(message_of<std::invalid_argument>([&] { TokenWindows(store, 0, 1); }),
                       "block_size: "));
  EXPECT_TRUE(
      contains(message_of<std::invalid_argument>([&] { TokenWindows(store, 1, 0); }), "stride: "));
  EXPECT_TRUE(
      contains(message_of<std::invalid_argument>([&] { TokenWindows(nullptr, 1, 1); }), "store: "));
}

TEST(TokenWindows, VerifyLooksAtTheFilesOfTheseWindows_case50) {
  const TempFolder folder;
  const TokenWindows windows(store_of(folder, {10, 10, 10}), 4, 4);
  std::filesystem::resize_file(folder.path("1"), 5);
  const std::vector<int64_t> whole{5, 0, 4, 1}, cut{0, 2};
  windows.verify(whole.data(), 4);
  EXPECT_THROW(windows.verify(cut.data(), 2), std::runtime_error);
}

}  // namespace
}  // namespace aegis
