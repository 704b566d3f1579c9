#include "core/token_header.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "temp_file.h"

namespace aegis {
namespace {

using Header = std::vector<uint32_t>;

Header header(uint32_t magic, uint32_t version, uint32_t tokens) {
  Header numbers(256, 0);
  numbers[0] = magic, numbers[1] = version, numbers[2] = tokens;
  return numbers;
}

auto parse(const Header& numbers, int64_t size) {
  return read_llmc_header(std::as_bytes(std::span(numbers)), size, "shard.bin");
}

std::string refusal(const Header& numbers, int64_t size) {
  return message_of<std::invalid_argument>([&] { parse(numbers, size); });
}

TEST(LlmcHeader, BothKindsAreRead) {
  const auto gpt2 = parse(header(20240520, 1, 1000), 1024 + 2000);
  ASSERT_TRUE(gpt2);
  EXPECT_EQ(gpt2->type, TokenType::u16);
  EXPECT_EQ(gpt2->byte_offset, 1024);
  EXPECT_EQ(gpt2->tokens, 1000);
  EXPECT_FALSE(gpt2->swapped);
  const auto llama = parse(header(20240801, 7, 1000), 1024 + 4000);
  ASSERT_TRUE(llama);
  EXPECT_EQ(llama->type, TokenType::u32);
}

TEST(LlmcHeader, TwoThousandMillionTokensDoNotOverflow_case47) {
  const auto found = parse(header(20240801, 7, INT32_MAX), 1024 + int64_t{4} * INT32_MAX);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->tokens, INT32_MAX);
}

TEST(LlmcHeader, OtherByteOrderIsSeen_case51) {
  Header numbers = header(20240520, 1, 1000);
  for (uint32_t& number : numbers) number = __builtin_bswap32(number);
  const auto found = parse(numbers, 1024 + 2000);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->swapped);
  EXPECT_EQ(found->tokens, 1000);
}

TEST(LlmcHeader, AnythingElseIsNotLlmc) {
  EXPECT_FALSE(parse(header(20240521, 1, 1000), 3024));
  EXPECT_FALSE(parse(header(0, 0, 0), 1024));
  EXPECT_FALSE(read_llmc_header({}, 0, "empty"));
}

TEST(LlmcHeader, ContradictionsAreNamed_case46) {
  EXPECT_TRUE(contains(refusal(header(20240522, 1, 10), 1044), "shard.bin: this is an llm.c eval"));
  EXPECT_TRUE(contains(refusal(header(20240520, 2, 10), 1044), "expected version 1, got 2"));
  EXPECT_TRUE(contains(refusal(header(20240801, 1, 10), 1064), "expected version 7, got 1"));
  EXPECT_TRUE(
      contains(refusal(header(20240520, 1, 10), 1045),
               "expected 1044 bytes (header 1024 + 10 uint16 tokens), got 1045 (1 too many)"));
  EXPECT_TRUE(contains(refusal(header(20240520, 1, 10), 1030), "got 1030 (14 missing)"));
  EXPECT_TRUE(contains(refusal(header(20240520, 1, 0), 1024), "the header says 0"));
  EXPECT_TRUE(contains(refusal(header(20240520, 1, 0x80000000), 1024), "says -2147483648"));
  Header cut = header(20240520, 1, 10);
  cut.resize(100);
  EXPECT_TRUE(contains(refusal(cut, 400), "the file ends after 400"));
}

TEST(LlmcHeader, RandomBytesGiveAHeaderThatAddsUpOrARefusal) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    Header numbers(random() % 300);
    for (uint32_t& number : numbers) number = static_cast<uint32_t>(random());
    if (!numbers.empty() && random() % 4 != 0) {
      numbers[0] = std::array{20240520u, 20240801u, 20240522u}[random() % 3];
    }
    if (numbers.size() > 2 && random() % 2 != 0) {
      numbers[1] = random() % 2 != 0 ? 1 : 7;
      numbers[2] %= 100;
    }
    const int64_t size = random() % 2 != 0 ? 1024 + static_cast<int64_t>(random() % 400)
                                           : static_cast<int64_t>(random());
    try {
      if (const auto found = parse(numbers, size)) {
        EXPECT_GT(found->tokens, 0);
        EXPECT_EQ(found->byte_offset + found->tokens * static_cast<int64_t>(size_of(found->type)),
                  size);
      }
    } catch (const std::invalid_argument& error) {
      EXPECT_TRUE(contains(error.what(), "shard.bin"));
    }
  }
}

TEST(RawTokens, SizeDividesOrIsRefused_case46) {
  EXPECT_EQ(raw_token_count(10, TokenType::u16, "a.bin"), 5);
  EXPECT_EQ(raw_token_count(int64_t{1} << 40, TokenType::i64, "a.bin"), int64_t{1} << 37);
  EXPECT_TRUE(contains(
      message_of<std::invalid_argument>([] { raw_token_count(11, TokenType::u16, "a.bin"); }),
      "a.bin: 11 bytes do not divide into uint16 tokens of 2 bytes (1 left over)"));
  EXPECT_TRUE(contains(
      message_of<std::invalid_argument>([] { raw_token_count(0, TokenType::u8, "a.bin"); }),
      "a.bin: the file is empty"));
}

}  // namespace
}  // namespace aegis
