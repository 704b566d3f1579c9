#include "kernels/extract_batch.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "kernels/every_isa.h"

namespace aegis::kernels {
namespace {

class ExtractBatchTest : public EveryIsa {};
AEGIS_EVERY_ISA(ExtractBatchTest);

/// Tokens over the whole range of the type, ends included.
template <class Token>
std::vector<Token> random_tokens(size_t count) {
  std::mt19937_64 random(7);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random());
  tokens[1] = std::numeric_limits<Token>::max();
  tokens[2] = std::numeric_limits<Token>::min();
  return tokens;
}

template <class Token, class Input>
void compare_with_oracle(Isa isa) {
  const std::vector<Token> arena = random_tokens<Token>(1000);
  for (int64_t block_size : {1, 2, 3, 7, 8, 9, 31, 32, 33, 255, 256, 999}) {
    for (int64_t batch : {0, 1, 3, 5, 17}) {
      std::mt19937_64 random(block_size * 31 + batch);
      std::vector<int64_t> offsets(batch);
      for (int64_t& offset : offsets) offset = random() % (1000 - block_size);
      if (batch) offsets.back() = 1000 - block_size - 1;
      // One guard element behind each result: a kernel that writes past the end changes it.
      const size_t size = batch * block_size + 1;
      std::vector<Input> inputs(size, Input{-77}), want_inputs(size, Input{-77});
      std::vector<int64_t> targets(size, -77), want_targets(size, -77);
      const auto job = [&](std::vector<Input>& in, std::vector<int64_t>& out) {
        return ExtractBatch<Token, Input>{arena.data(), offsets.data(), batch,
                                          block_size,   in.data(),      out.data()};
      };
      extract_batch_kernel<Token, Input>(isa)(job(inputs, targets));
      extract_batch_kernel<Token, Input>(Isa::scalar)(job(want_inputs, want_targets));
      ASSERT_EQ(inputs, want_inputs) << "block_size " << block_size << " batch " << batch;
      ASSERT_EQ(targets, want_targets) << "block_size " << block_size << " batch " << batch;
    }
  }
}

#define AEGIS_COMPARE(Token, Input) \
  TEST_P(ExtractBatchTest, Token##To##Input) { compare_with_oracle<Token, Input>(GetParam()); }
AEGIS_EXTRACT_BATCH_TYPES(AEGIS_COMPARE)
#undef AEGIS_COMPARE

TEST_P(ExtractBatchTest, OracleIsTheDefinition) {
  const std::vector<uint16_t> arena{10, 11, 12, 13, 65535};
  const std::vector<int64_t> offsets{0, 1};
  std::vector<int64_t> inputs(6), targets(6);
  extract_batch_kernel<uint16_t, int64_t>(GetParam())(
      {arena.data(), offsets.data(), 2, 3, inputs.data(), targets.data()});
  EXPECT_EQ(inputs, (std::vector<int64_t>{10, 11, 12, 11, 12, 13}));
  EXPECT_EQ(targets, (std::vector<int64_t>{11, 12, 13, 12, 13, 65535}));
}

TEST_P(ExtractBatchTest, NarrowingSaturatesAndNeverWraps_case44) {
  const std::vector<int64_t> arena{INT64_MAX, INT64_MIN, 70000, int64_t{1} << 32, 0};
  const std::vector<int64_t> offsets{0};
  std::vector<int32_t> inputs(4);
  std::vector<int64_t> targets(4);
  extract_batch_kernel<int64_t, int32_t>(GetParam())(
      {arena.data(), offsets.data(), 1, 4, inputs.data(), targets.data()});
  EXPECT_EQ(inputs, (std::vector<int32_t>{INT32_MAX, INT32_MIN, 70000, INT32_MAX}));
  EXPECT_EQ(targets, (std::vector<int64_t>{INT64_MIN, 70000, int64_t{1} << 32, 0}));
}

}  // namespace
}  // namespace aegis::kernels
