// The CUDA kernel and its launcher against the scalar oracle.
#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/extract_batch.cu"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::kernels {

namespace scalar {
template <class Token, class Input>
void extract_batch(const ExtractBatch<Token, Input>& job);
}

namespace {

using simt::DeviceBuffer;

class ExtractBatchTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(ExtractBatchTest);

/// Tokens over the whole range of the type, ends included.
template <class Token>
std::vector<Token> random_tokens(size_t count) {
  std::mt19937_64 random(7);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random());
  tokens[0] = std::numeric_limits<Token>::max();
  tokens[1] = std::numeric_limits<Token>::min();
  return tokens;
}

template <class Input>
struct Batch {
  std::vector<Input> inputs;
  std::vector<int64_t> targets;
};

/// The device's batch; every buffer begins `shift` elements past an aligned address.
template <class Token, class Input>
Batch<Input> on_device(const std::vector<Token>& arena, const std::vector<int64_t>& offsets,
                       int64_t block_size, size_t shift = 0) {
  const auto batch = static_cast<int64_t>(offsets.size());
  DeviceBuffer<Token> tokens("arena", arena, shift);
  DeviceBuffer<int64_t> starts("offsets", offsets, shift);
  DeviceBuffer<Input> inputs("inputs", batch * block_size, shift);
  DeviceBuffer<int64_t> targets("targets", batch * block_size, shift);
  cuda::launch_extract_batch<Token, Input>(
      {tokens.data(), starts.data(), batch, block_size, inputs.data(), targets.data()},
      static_cast<int64_t>(arena.size()), nullptr);
  return {inputs.values(), targets.values()};
}

template <class Token, class Input>
Batch<Input> by_oracle(const std::vector<Token>& arena, const std::vector<int64_t>& offsets,
                       int64_t block_size) {
  const auto batch = static_cast<int64_t>(offsets.size());
  Batch<Input> want{std::vector<Input>(batch * block_size),
                    std::vector<int64_t>(batch * block_size)};
  scalar::extract_batch<Token, Input>(
      {arena.data(), offsets.data(), batch, block_size, want.inputs.data(), want.targets.data()});
  return want;
}

/// Random starts, the first and the last possible one among them.
std::vector<int64_t> random_offsets(int64_t batch, int64_t tokens, int64_t block_size) {
  std::mt19937_64 random(block_size * 31 + batch);
  const int64_t room = tokens - block_size;
  std::vector<int64_t> offsets(batch);
  for (int64_t& offset : offsets) offset = static_cast<int64_t>(random() % room);
  if (batch > 0) offsets.back() = room - 1;
  if (batch > 1) offsets.front() = 0;
  return offsets;
}

template <class Token, class Input>
void compare(int64_t tokens, int64_t batch, int64_t block_size, size_t shift) {
  const std::vector<Token> arena = random_tokens<Token>(tokens);
  const std::vector<int64_t> offsets = random_offsets(batch, tokens, block_size);
  const Batch<Input> got = on_device<Token, Input>(arena, offsets, block_size, shift);
  const Batch<Input> want = by_oracle<Token, Input>(arena, offsets, block_size);
  ASSERT_EQ(got.inputs, want.inputs) << "block_size " << block_size << " batch " << batch;
  ASSERT_EQ(got.targets, want.targets) << "block_size " << block_size << " batch " << batch;
}

template <class Token, class Input>
void compare_sizes() {
  size_t shift = 0;
  for (int64_t block_size : {1, 2, 31, 33, 255, 256, 257, 999}) {
    for (int64_t batch : {1, 3, 17}) compare<Token, Input>(1000, batch, block_size, shift++ % 4);
  }
}

#define AEGIS_COMPARE(Token, Input) \
  TEST_P(ExtractBatchTest, Token##To##Input) { compare_sizes<Token, Input>(); }
AEGIS_EXTRACT_BATCH_TYPES(AEGIS_COMPARE)
#undef AEGIS_COMPARE

TEST_P(ExtractBatchTest, EmptyBatchLaunchesNothing) {
  const auto got = on_device<uint16_t, int64_t>(random_tokens<uint16_t>(10), {}, 3);
  EXPECT_TRUE(got.inputs.empty());
}

// The loop over more than a grid is the same for the race detector as any other, and takes it a
// minute.
#ifndef __SANITIZE_THREAD__
TEST_P(ExtractBatchTest, MoreRowsThanTheGridHas) {
  compare<uint8_t, int32_t>(500, cuda::kMaxGridY + 3, 1, 0);
}

TEST_P(ExtractBatchTest, MoreColumnsThanTheGridHas) {
  const int64_t widest = int64_t{1024} * cuda::kExtractThreads;
  compare<uint16_t, int64_t>(widest + 400, 2, widest + 257, 1);
}
#endif

TEST_P(ExtractBatchTest, RowsThatStartOutsideOfTheArenaBecomeMinusOne) {
  const int64_t tokens = 40, block_size = 7, last = tokens - block_size - 1;
  const std::vector<uint16_t> arena = random_tokens<uint16_t>(tokens);
  const std::vector<int64_t> offsets{
      0, -1,         last, last + 1, 5, INT64_MIN, INT64_MAX, tokens, INT64_MAX - block_size,
      1, -block_size};
  const auto got = on_device<uint16_t, int32_t>(arena, offsets, block_size);
  for (size_t row = 0; row < offsets.size(); ++row) {
    const bool inside = 0 <= offsets[row] && offsets[row] <= last;
    for (int64_t i = 0; i < block_size; ++i) {
      EXPECT_EQ(got.inputs[row * block_size + i], inside ? arena[offsets[row] + i] : -1) << row;
      EXPECT_EQ(got.targets[row * block_size + i], inside ? arena[offsets[row] + i + 1] : -1)
          << row;
    }
  }
}

}  // namespace
}  // namespace aegis::kernels
