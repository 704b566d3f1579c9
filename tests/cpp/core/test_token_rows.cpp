#include "core/token_rows.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "core/row_filler.h"
#include "temp_file.h"

namespace aegis {
namespace {

/// One file of u16 tokens that count up, in documents of `lengths`.
struct Corpus {
  explicit Corpus(const std::vector<int64_t>& lengths) {
    std::vector<int64_t> offsets{0};
    for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
    std::vector<uint16_t> tokens(static_cast<size_t>(offsets.back()));
    std::iota(tokens.begin(), tokens.end(), uint16_t{0});
    const std::string path = folder.write("tokens", tokens);
    store = std::make_shared<TokenStore>(
        std::vector<TokenFile>{{path, TokenType::u16, 0, offsets.back()}});
    documents = std::make_shared<Documents>(store, std::vector<std::vector<int64_t>>{offsets});
  }

  TempFolder folder;
  std::shared_ptr<const TokenStore> store;
  std::shared_ptr<const Documents> documents;
};

std::vector<int64_t> varied_lengths(int64_t count) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) lengths.push_back(i * 7919 % 61);
  return lengths;
}

TEST(Documents, FindsTheEndOfEveryTokensDocument) {
  const Corpus corpus(varied_lengths(500));
  const int64_t* bound = corpus.documents->begin(0);
  for (int64_t position = 0; position < corpus.store->tokens(); ++position) {
    while (*bound <= position) ++bound;
    ASSERT_EQ(corpus.documents->after(0, position), bound) << position;
  }
}

TEST(PackedRows, HoldEveryTokenOnceInFullRows) {
  const Corpus corpus(varied_lengths(2000));
  for (const int64_t block : {1, 7, 16, 64, 1000}) {
    const PackedRows rows(corpus.documents, block);
    std::vector<int> seen(static_cast<size_t>(corpus.store->tokens()));
    for (int64_t row = 0; row < rows.count(); ++row) {
      std::vector<Piece> pieces;
      rows.pieces(row, pieces);
      int64_t tokens = 0;
      for (const auto& [begin, count, ends] : pieces) {
        ASSERT_GE(count, 1);
        const int64_t end_of_document = *corpus.documents->after(0, begin);
        ASSERT_LE(begin + count, end_of_document);
        ASSERT_EQ(ends, begin + count == end_of_document);
        for (int64_t i = begin; i < begin + count; ++i) ++seen[static_cast<size_t>(i)];
        tokens += count;
      }
      ASSERT_EQ(tokens, block);
    }
    const auto end = seen.end() - rows.tail_tokens();
    EXPECT_TRUE(std::all_of(seen.begin(), end, [](int times) { return times == 1; }));
    EXPECT_LT(rows.tail_tokens(), block);
  }
}

TEST(PackedRows, AreTheSameFromManyThreadsAndWithoutMemory) {
  const Corpus corpus(varied_lengths(2000));
  const PackedRows kept(corpus.documents, 32), forgotten(corpus.documents, 32, 0);
  std::vector<std::thread> threads;
  std::vector<std::vector<Piece>> found(4);
  for (std::vector<Piece>& own : found) {
    threads.emplace_back([&] {
      for (int64_t row = 0; row < kept.count(); ++row) {
        (&own == &found[0] ? forgotten : kept).pieces(row, own);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<Piece>& own : found) {
    ASSERT_EQ(own.size(), found[0].size());
    for (size_t i = 0; i < own.size(); ++i) {
      ASSERT_EQ(own[i].begin, found[0][i].begin);
      ASSERT_EQ(own[i].count, found[0][i].count);
    }
  }
}

TEST(RowFiller, WritesPaddingForRowsThatThereAreNot_case36) {
  const Corpus corpus({5, 3});
  const RowFields wanted{true, true, true, true, std::nullopt};
  const RowFiller filler({{std::make_shared<PackedRows>(corpus.documents, 4), -100}}, wanted);
  std::vector<int64_t> inputs(8, 7), targets(8, 7);
  std::vector<int32_t> ids(8, 7), positions(8, 7), bounds(12, 7);
  std::array<bool, 2> valid{};
  FieldPointers fields{};
  size_t f = 0;
  for (void* start : {static_cast<void*>(inputs.data()), static_cast<void*>(targets.data()),
                      static_cast<void*>(ids.data()), static_cast<void*>(positions.data()),
                      static_cast<void*>(valid.data()), static_cast<void*>(bounds.data())}) {
    fields[f++] = static_cast<std::byte*>(start);
  }
  const std::array<int64_t, 2> indices{kPadding, 0};
  filler.fill(indices.data(), 2, fields);
  EXPECT_EQ(inputs, (std::vector<int64_t>{0, 0, 0, 0, 0, 1, 2, 3}));
  EXPECT_EQ(targets, (std::vector<int64_t>{-100, -100, -100, -100, 1, 2, 3, 4}));
  EXPECT_EQ(positions, (std::vector<int32_t>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(ids, (std::vector<int32_t>(8, 0)));
  EXPECT_EQ(valid, (std::array{false, true}));
  EXPECT_EQ(filler.elements(5, 2, fields), 3);
  EXPECT_EQ((std::vector<int32_t>(bounds.begin(), bounds.begin() + 3)),
            (std::vector<int32_t>{0, 4, 8}));
}

TEST(TokenRows, BadArgumentsAreNamed) {
  const Corpus corpus({5, 3});
  const auto error = [&](int64_t block) {
    return message_of<std::invalid_argument>([&] { PackedRows(corpus.documents, block); });
  };
  EXPECT_TRUE(contains(error(0), "block_size: expected at least 1, got 0"));
  EXPECT_TRUE(contains(error((int64_t{1} << 22) + 1), "block_size: expected at most 2^22"));
  EXPECT_TRUE(contains(error(9), "no file has block_size (9) tokens"));
  EXPECT_TRUE(contains(message_of<std::invalid_argument>([] { AlignedRows(nullptr, 1); }),
                       "documents: expected documents, got none"));
}

}  // namespace
}  // namespace aegis
