// The CUDA kernel and its launcher against the scalar oracle.
#include <bit>
#include <random>
#include <vector>

#include "kernels/cuda/to_bfloat16_rne.cu"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::kernels {

namespace scalar {
void to_bfloat16_rne(const ToBfloat16Rne&, int64_t begin, int64_t end);
}

namespace {

using simt::DeviceBuffer;

class ToBfloat16RneTest : public simt::EverySchedule {};
AEGIS_EVERY_SCHEDULE(ToBfloat16RneTest);

struct Dim {
  int64_t size;
  int64_t x_stride;
  int64_t out_stride;
};

ToBfloat16Rne job_of(const std::vector<Dim>& dims) {
  ToBfloat16Rne job{};
  job.count = 1;
  for (const Dim& dim : dims) {
    job.sizes[job.dims] = dim.size;
    job.x_strides[job.dims] = dim.x_stride;
    job.out_strides[job.dims] = dim.out_stride;
    job.count *= dim.size;
    ++job.dims;
  }
  return job;
}

int64_t reach(const std::vector<Dim>& dims, int64_t Dim::* stride) {
  int64_t last = 0;
  for (const Dim& dim : dims) last += (dim.size - 1) * dim.*stride;
  return last + 1;
}

void expect_the_oracles_bits(const std::vector<Dim>& dims) {
  ToBfloat16Rne job = job_of(dims);
  std::mt19937 random(static_cast<unsigned>(job.count));
  std::vector<float> x(job.count == 0 ? 0 : reach(dims, &Dim::x_stride));
  for (float& value : x) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  // What the kernel leaves alone is what it was.
  std::vector<uint16_t> want(job.count == 0 ? 0 : reach(dims, &Dim::out_stride), 77);
  DeviceBuffer<float> from("x", x);
  DeviceBuffer<uint16_t> to("out", want);
  job.x = from.data();
  job.out = to.data();
  cuda::launch_to_bfloat16_rne(job, nullptr);
  job.x = x.data();
  job.out = want.data();
  if (job.count > 0) scalar::to_bfloat16_rne(job, 0, job.count);
  ASSERT_EQ(to.values(), want);
}

TEST_P(ToBfloat16RneTest, SameBitsAsTheOracle) {
  for (int64_t count : {1, 2, 31, 32, 33, 255, 256, 257, 1000}) {
    expect_the_oracles_bits({{count, 1, 1}});
  }
}

TEST_P(ToBfloat16RneTest, StridesOfBoth) {
  expect_the_oracles_bits({{40, 1, 9}, {9, 40, 1}});
  expect_the_oracles_bits({{3, 100, 90}, {5, 0, 17}, {7, 2, 2}});
  expect_the_oracles_bits({{2, 1, 8}, {2, 2, 4}, {2, 4, 2}, {2, 8, 1}});
  expect_the_oracles_bits({{11, 3, 5}});
}

TEST_P(ToBfloat16RneTest, NothingToConvertLaunchesNothing) { expect_the_oracles_bits({{0, 1, 1}}); }

// In one schedule: this takes long, and only the stride of the loop is at stake.
TEST(ToBfloat16Rne, MoreElementsThanTheGridHasThreads) {
  expect_the_oracles_bits({{cuda::kBfloat16Blocks * cuda::kBfloat16Threads + 300, 1, 1}});
}

}  // namespace
}  // namespace aegis::kernels
