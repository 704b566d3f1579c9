// Grids, blocks, barriers and schedules.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/simt.cuh"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::simt {
namespace {

class BlockTest : public EverySchedule {};
AEGIS_EVERY_SCHEDULE(BlockTest);

__global__ void number_threads(int* seen) {
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  seen[block * (blockDim.x * blockDim.y * blockDim.z) + thread] += 1 + block * 1000 + thread;
}

TEST_P(BlockTest, EveryThreadOfEveryBlockRunsOnceInThreeDimensions) {
  const dim3 grid(3, 2, 4), block(5, 3, 2);
  DeviceBuffer<int> seen("seen", std::vector<int>(24 * 30));
  launch({grid, block}, number_threads, seen.data());
  std::vector<int> want;
  for (int b = 0; b < 24; ++b) {
    for (int t = 0; t < 30; ++t) want.push_back(1 + b * 1000 + t);
  }
  EXPECT_EQ(seen.values(), want);
}

__global__ void change_argument(int value, int* out) {
  value += threadIdx.x;
  out[threadIdx.x] = value;
}

TEST_P(BlockTest, ThreadsHaveArgumentsOfTheirOwn) {
  DeviceBuffer<int> out("out", 4);
  launch({1, 4}, change_argument, 10, out.data());
  EXPECT_EQ(out.values(), (std::vector<int>{10, 11, 12, 13}));
}

__global__ void reverse(int* values) {
  AEGIS_SHARED(int, copy, [1024]);
  copy[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}

TEST_P(BlockTest, BarrierOrdersBlocksOfAnySize) {
  for (int size : {1, 2, 31, 32, 33, 64, 65, 255, 1024}) {
    std::vector<int> values(size);
    std::iota(values.begin(), values.end(), 0);
    DeviceBuffer<int> buffer("values", values);
    launch({1, dim3(size)}, reverse, buffer.data());
    std::reverse(values.begin(), values.end());
    EXPECT_EQ(buffer.values(), values) << size << " threads";
  }
}

__global__ void shift_many_times(int* values, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const int next = values[(threadIdx.x + 1) % blockDim.x];
    __syncthreads();
    values[threadIdx.x] = next;
    __syncthreads();
  }
}

TEST_P(BlockTest, BarriersInALoopStayInStep) {
  std::vector<int> values(96);
  std::iota(values.begin(), values.end(), 0);
  DeviceBuffer<int> buffer("values", values);
  launch({1, 96}, shift_many_times, buffer.data(), 50);
  std::rotate(values.begin(), values.begin() + 50, values.end());
  EXPECT_EQ(buffer.values(), values);
}

__global__ void count_votes(int* out) {
  const int odd = threadIdx.x % 2;
  const int count = __syncthreads_count(odd);
  const int any = __syncthreads_or(threadIdx.x == 7), none = __syncthreads_or(0);
  const int all = __syncthreads_and(5), not_all = __syncthreads_and(threadIdx.x != 7);
  out[threadIdx.x] = count * 10000 + any * 1000 + none * 100 + all * 10 + not_all;
}

TEST_P(BlockTest, BarriersCountPredicates) {
  DeviceBuffer<int> out("out", 50);
  launch({1, 50}, count_votes, out.data());
  EXPECT_EQ(out.values(), std::vector<int>(50, 251010));
}

__global__ void some_return_early(int n) {
  if (threadIdx.x >= static_cast<unsigned>(n)) return;
  __syncthreads();
}

TEST_P(BlockTest, BarrierThatReturnedThreadsMissIsAnErrorWithTheirNumbers) {
  const std::string error = error_of([] { launch({1, dim3(8, 8)}, some_return_early, 3); });
  EXPECT_NE(error.find("not all threads of block (0,0,0) come to the same one"), std::string::npos);
  EXPECT_NE(error.find("threads (0,0,0) to (2,0,0): at the barrier test_block.cpp:"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("threads (3,0,0) to (7,0,0): returned"), std::string::npos) << error;
  // The executor is whole again.
  launch({1, 8}, some_return_early, 8);
}

__global__ void two_places() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST_P(BlockTest, BarriersOfTwoPlacesDoNotMeet) {
  EXPECT_SIMT_ERROR(launch({1, 64}, two_places), "threads (32,0,0) to (63,0,0): at the barrier");
}

__global__ void barrier_against_shuffle() {
  if (threadIdx.x == 3) {
    __syncthreads();
  } else {
    __shfl_sync(0xffffffffu, 1, 0);
  }
}

TEST_P(BlockTest, ThreadsStuckInTwoOperationsAreNamed) {
  EXPECT_SIMT_ERROR(launch({1, 32}, barrier_against_shuffle),
                    "threads (4,0,0) to (31,0,0): at __shfl_sync with mask 0xffffffff");
}

__global__ void throw_number(int thread) {
  if (threadIdx.x == static_cast<unsigned>(thread)) throw 42;
  __syncthreads();
}

TEST_P(BlockTest, ExceptionsOfAKernelPassThrough) {
  EXPECT_THROW(launch({1, 64}, throw_number, 40), int);
  launch({1, 64}, throw_number, 64);
}

__global__ void stop() {
  if (blockIdx.x == 1 && threadIdx.x == 2) __trap();
}

TEST_P(BlockTest, TrapNamesItsThread) {
  EXPECT_SIMT_ERROR(launch({3, 4}, stop), "trap: thread (2,0,0) of block (1,0,0)");
}

__global__ void nothing() {}

TEST(Launch, RefusesWhatAGpuRefuses) {
  EXPECT_SIMT_ERROR(launch({0, 1}, nothing), "grid: expected (1,1,1) to (2147483647,65535,65535)");
  EXPECT_SIMT_ERROR(launch({dim3(1, 65536), 1}, nothing), "got (1,65536,1)");
  EXPECT_SIMT_ERROR(launch({dim3(1, 1, 65536), 1}, nothing), "got (1,1,65536)");
  EXPECT_SIMT_ERROR(launch({1, dim3(1, 1, 65)}, nothing),
                    "block: expected (1,1,1) to (1024,1024,64)");
  EXPECT_SIMT_ERROR(launch({1, dim3(32, 33)}, nothing), "at most 1024 threads, got 1056");
  launch({dim3(1, 1, 65535), 1}, nothing);
}

/// Which thread of which block came first, second, ...
std::vector<int> order_of(const Schedule& schedule) {
  static std::vector<int> order;
  order.clear();
  settings().schedule = schedule;
  run_grid({2, 64}, [] {
    __syncthreads();
    order.push_back(blockIdx.x * 64 + threadIdx.x);
  });
  settings() = {};
  return order;
}

TEST(Schedules, AreTheOrdersTheyPromise) {
  std::vector<int> numbers(128);
  std::iota(numbers.begin(), numbers.end(), 0);
  EXPECT_EQ(order_of({Order::forward}), numbers);
  EXPECT_EQ(order_of({Order::reverse}), std::vector<int>(numbers.rbegin(), numbers.rend()));
  const std::vector<int> first = order_of({Order::random, 1});
  EXPECT_EQ(first, order_of({Order::random, 1}));
  EXPECT_NE(first, order_of({Order::random, 2}));
  EXPECT_NE(first, numbers);
  EXPECT_TRUE(std::is_permutation(first.begin(), first.end(), numbers.begin()));
}

__global__ void mark_block(int* seen) { atomicAdd(&seen[blockIdx.x], 1); }

TEST_P(BlockTest, RandomBlockOrderVisitsEachBlockOnce) {
  for (int blocks : {1, 2, 7, 64, 1000}) {
    DeviceBuffer<int> seen("seen", std::vector<int>(blocks));
    launch({dim3(blocks), 1}, mark_block, seen.data());
    EXPECT_EQ(seen.values(), std::vector<int>(blocks, 1));
  }
}

}  // namespace
}  // namespace aegis::simt
