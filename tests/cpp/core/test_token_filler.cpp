#include "core/token_filler.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "temp_file.h"

namespace aegis {
namespace {

/// Two files of `Token`s, whose values are ends of its range and their own numbers.
template <class Token>
std::shared_ptr<const TokenStore> store_of(const TempFolder& folder, TokenType type) {
  std::vector<TokenFile> files;
  for (size_t count : {50u, 31u}) {
    std::vector<Token> tokens(count);
    for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<Token>(i);
    tokens[3] = std::numeric_limits<Token>::max();
    tokens[4] = std::numeric_limits<Token>::min();
    files.push_back(
        {folder.write(std::to_string(count), tokens), type, 0, static_cast<int64_t>(count)});
  }
  return std::make_shared<TokenStore>(std::move(files));
}

template <class Token>
void expect_windows(TokenType type, uint8_t code) {
  const TempFolder folder;
  const auto store = store_of<Token>(folder, type);
  for (int64_t block : {1, 7, 30}) {
    const auto windows = std::make_shared<TokenWindows>(store, block, 2);
    const TokenFiller filler(windows, TokenFiller::Form::windows);
    ASSERT_EQ(filler.fields().size(), 1u);
    EXPECT_EQ(filler.fields()[0].type.code, code);
    EXPECT_EQ(filler.fields()[0].type.bits, 8 * sizeof(Token));
    EXPECT_EQ(filler.fields()[0].row_shape, std::vector<int64_t>{block + 1});
    std::vector<int64_t> indices;
    for (int64_t i = windows->count() - 1; i >= 0; --i) indices.push_back(i);
    indices.push_back(0);
    const auto width = static_cast<size_t>(block + 1);
    std::vector<Token> out(indices.size() * width + 1, Token{77});
    FieldPointers fields{reinterpret_cast<std::byte*>(out.data())};
    filler.fill(indices.data(), static_cast<int64_t>(indices.size()), fields);
    const auto* data = static_cast<const Token*>(store->data());
    for (size_t row = 0; row < indices.size(); ++row) {
      const Token* want = data + windows->offset(indices[row]);
      ASSERT_EQ(std::memcmp(&out[row * width], want, width * sizeof(Token)), 0);
    }
    EXPECT_EQ(out.back(), Token{77});
    filler.fill(nullptr, 0, fields);
    EXPECT_EQ(out.back(), Token{77});
  }
}

TEST(TokenFiller, WindowsAreTheFilesOwnBytesInEveryType) {
  expect_windows<uint8_t>(TokenType::u8, 1);
  expect_windows<uint16_t>(TokenType::u16, 1);
  expect_windows<uint32_t>(TokenType::u32, 1);
  expect_windows<int32_t>(TokenType::i32, 0);
  expect_windows<int64_t>(TokenType::i64, 0);
}

TEST(TokenFiller, WideBatchesAreInputsAndTargetsOneTokenLater) {
  const TempFolder folder;
  const auto windows =
      std::make_shared<TokenWindows>(store_of<uint16_t>(folder, TokenType::u16), 7, 7);
  const auto* data = static_cast<const uint16_t*>(windows->store()->data());
  const std::vector<int64_t> indices{8, 0, 3};
  const TokenFiller filler(windows);
  std::vector<int64_t> inputs(21), targets(21);
  FieldPointers fields{reinterpret_cast<std::byte*>(inputs.data()),
                       reinterpret_cast<std::byte*>(targets.data())};
  filler.fill(indices.data(), 3, fields);
  for (size_t at = 0; at < 21; ++at) {
    const int64_t begin = windows->offset(indices[at / 7]) + static_cast<int64_t>(at % 7);
    EXPECT_EQ(inputs[at], data[begin]);
    EXPECT_EQ(targets[at], data[begin + 1]);
  }
}

TEST(TokenFiller, NoWindowsAreRefused) {
  EXPECT_EQ(message_of<std::invalid_argument>([] { TokenFiller(nullptr); }),
            "windows: expected windows, got none");
}

}  // namespace
}  // namespace aegis
