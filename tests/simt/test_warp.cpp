// Shuffles, votes, matches and reductions, each against its definition lane by lane.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/simt.cuh"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::simt {
namespace {

constexpr unsigned kAll = 0xffffffffu;

class WarpTest : public EverySchedule {};
AEGIS_EVERY_SCHEDULE(WarpTest);

template <class T>
__global__ void shuffle_all(int argument, int width, T* out) {
  const T value = static_cast<T>(threadIdx.x * 3 + 1);
  T* mine = out + threadIdx.x * 4;
  mine[0] = __shfl_sync(kAll, value, argument, width);
  mine[1] = __shfl_up_sync(kAll, value, argument, width);
  mine[2] = __shfl_down_sync(kAll, value, argument, width);
  mine[3] = __shfl_xor_sync(kAll, value, argument, width);
}

template <class T>
void compare_shuffles() {
  for (int width : {1, 2, 4, 8, 16, 32}) {
    for (int argument = 0; argument < 32; ++argument) {
      DeviceBuffer<T> out("out", 64 * 4);
      launch({1, 64}, shuffle_all<T>, argument, width, out.data());
      std::vector<T> want;
      for (int thread = 0; thread < 64; ++thread) {
        const int lane = thread % 32, warp = thread - lane, segment = lane / width * width;
        const int up = lane - argument, down = lane + argument, other = lane ^ argument;
        const int sources[] = {segment + argument % width, up >= segment ? up : lane,
                               down < segment + width ? down : lane,
                               other < segment + width ? other : lane};
        for (int source : sources) want.push_back(static_cast<T>((warp + source) * 3 + 1));
      }
      ASSERT_EQ(out.values(), want) << "width " << width << " argument " << argument;
    }
  }
}

TEST_P(WarpTest, ShufflesReadTheRightLaneAtEveryWidth) { compare_shuffles<int>(); }
TEST_P(WarpTest, ShufflesCarryEightBytes) { compare_shuffles<double>(); }
TEST_P(WarpTest, ShufflesCarryUnsignedLongLong) { compare_shuffles<unsigned long long>(); }

__global__ void votes(const int* predicates, unsigned* out) {
  const int mine = predicates[threadIdx.x];
  out[threadIdx.x * 3] = __ballot_sync(kAll, mine);
  out[threadIdx.x * 3 + 1] = __any_sync(kAll, mine);
  out[threadIdx.x * 3 + 2] = __all_sync(kAll, mine);
}

TEST_P(WarpTest, VotesCountAnyNonZeroPredicate) {
  for (uint32_t bits : {0u, 1u, 0x80000000u, 0xdeadbeefu, kAll}) {
    std::vector<int> predicates(32);
    for (int lane = 0; lane < 32; ++lane) predicates[lane] = (bits >> lane & 1) * (lane + 2);
    DeviceBuffer<int> in("in", predicates);
    DeviceBuffer<unsigned> out("out", 96);
    launch({1, 32}, votes, in.data(), out.data());
    std::vector<unsigned> want;
    for (int lane = 0; lane < 32; ++lane) {
      want.insert(want.end(), {bits, bits != 0, bits == kAll});
    }
    EXPECT_EQ(out.values(), want);
  }
}

__global__ void matches(const int* keys, unsigned* out) {
  const int key = keys[threadIdx.x];
  int all = -1;
  out[threadIdx.x * 3] = __match_any_sync(kAll, key);
  out[threadIdx.x * 3 + 1] = __match_all_sync(kAll, key, &all);
  out[threadIdx.x * 3 + 2] = all;
}

TEST_P(WarpTest, MatchesFindEqualLanes) {
  for (int groups : {1, 2, 5, 32}) {
    std::vector<int> keys(32);
    for (int lane = 0; lane < 32; ++lane) keys[lane] = lane % groups - 1;
    DeviceBuffer<int> in("in", keys);
    DeviceBuffer<unsigned> out("out", 96);
    launch({1, 32}, matches, in.data(), out.data());
    std::vector<unsigned> want;
    for (int lane = 0; lane < 32; ++lane) {
      unsigned same = 0;
      for (int other = 0; other < 32; ++other) same |= unsigned{keys[other] == keys[lane]} << other;
      want.insert(want.end(), {same, groups == 1 ? kAll : 0, groups == 1});
    }
    EXPECT_EQ(out.values(), want) << groups << " groups";
  }
}

__global__ void reductions(const int* values, int* out) {
  const int value = values[threadIdx.x];
  const auto word = static_cast<unsigned>(value);
  const int results[] = {__reduce_add_sync(kAll, value),
                         static_cast<int>(__reduce_add_sync(kAll, word)),
                         __reduce_min_sync(kAll, value),
                         static_cast<int>(__reduce_min_sync(kAll, word)),
                         __reduce_max_sync(kAll, value),
                         static_cast<int>(__reduce_max_sync(kAll, word)),
                         static_cast<int>(__reduce_and_sync(kAll, word)),
                         static_cast<int>(__reduce_or_sync(kAll, word)),
                         static_cast<int>(__reduce_xor_sync(kAll, word))};
  for (int i = 0; i < 9; ++i) out[threadIdx.x * 9 + i] = results[i];
}

TEST_P(WarpTest, ReductionsTreatSignsAsTheirTypesDo) {
  std::vector<int> values(32);
  for (int lane = 0; lane < 32; ++lane) values[lane] = (lane - 5) * 0x01234567;
  unsigned sum = 0, low = kAll, high = 0, both = kAll, any = 0, odd = 0;
  int least = INT32_MAX, most = INT32_MIN;
  for (int value : values) {
    const auto word = static_cast<unsigned>(value);
    sum += word, both &= word, any |= word, odd ^= word;
    low = std::min(low, word), high = std::max(high, word);
    least = std::min(least, value), most = std::max(most, value);
  }
  DeviceBuffer<int> in("in", values), out("out", 32 * 9);
  launch({1, 32}, reductions, in.data(), out.data());
  const std::vector<int> one{int(sum),  int(sum),  least,    int(low), most,
                             int(high), int(both), int(any), int(odd)};
  std::vector<int> want;
  for (int lane = 0; lane < 32; ++lane) want.insert(want.end(), one.begin(), one.end());
  EXPECT_EQ(out.values(), want);
}

__global__ void halves(int* out) {
  const unsigned mask = threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u;
  int value = threadIdx.x;
  if (threadIdx.x < 16) {
    value = __shfl_xor_sync(mask, value, 1);
  } else {
    value = __reduce_add_sync(mask, value);
  }
  out[threadIdx.x] = value;
}

TEST_P(WarpTest, PartsOfAWarpGoTheirOwnWays) {
  DeviceBuffer<int> out("out", 32);
  launch({1, 32}, halves, out.data());
  std::vector<int> want;
  for (int lane = 0; lane < 32; ++lane) want.push_back(lane < 16 ? lane ^ 1 : 376);
  EXPECT_EQ(out.values(), want);
}

__global__ void some_lanes_gone(int* out) {
  if (threadIdx.x % 3 == 0) return;
  out[threadIdx.x] = static_cast<int>(__ballot_sync(kAll, 1));
}

TEST_P(WarpTest, ReturnedLanesAreNotWaitedFor) {
  DeviceBuffer<int> out("out", std::vector<int>(48, 0));
  launch({1, 48}, some_lanes_gone, out.data());
  std::vector<int> want(48);
  for (int thread = 0; thread < 48; ++thread) {
    if (thread % 3 == 0) continue;
    for (int other = thread / 32 * 32; other < std::min(48, thread / 32 * 32 + 32); ++other) {
      if (other % 3) want[thread] = static_cast<int>(want[thread] | 1u << other % 32);
    }
  }
  EXPECT_EQ(out.values(), want);
}

__global__ void read_absent_lane(unsigned* out) {
  if (threadIdx.x < 8) out[threadIdx.x] = __shfl_sync(0xffu, threadIdx.x, threadIdx.x + 4);
}

TEST_P(WarpTest, ShuffleFromALaneOutsideTheMaskGivesGarbage) {
  DeviceBuffer<unsigned> out("out", 8);
  launch({1, 32}, read_absent_lane, out.data());
  const unsigned garbage = 0x7f7f7f7f;
  EXPECT_EQ(out.values(), (std::vector<unsigned>{4, 5, 6, 7, garbage, garbage, garbage, garbage}));
}

__global__ void without_own_bit() { __syncwarp(0xfffffffeu); }
__global__ void odd_width() { __shfl_sync(kAll, 1, 0, 12); }
__global__ void two_masks() {
  __syncwarp(threadIdx.x < 4 ? kAll : 0xfffffff0u);
  __syncthreads();
}
__global__ void two_operations() {
  if (threadIdx.x < 4) {
    __ballot_sync(kAll, 1);
  } else {
    __shfl_sync(kAll, 1, 0);
  }
}

TEST_P(WarpTest, MisuseIsAnErrorThatSaysWhat) {
  EXPECT_SIMT_ERROR(launch({1, 32}, without_own_bit),
                    "__syncwarp: mask: expected the bit of the calling lane 0");
  EXPECT_SIMT_ERROR(launch({1, 32}, odd_width), "width: expected 1, 2, 4, 8, 16 or 32, got 12");
  EXPECT_SIMT_ERROR(launch({1, 32}, two_masks),
                    "threads (0,0,0) to (3,0,0): at __syncwarp with mask 0xffffffff");
  EXPECT_SIMT_ERROR(launch({1, 32}, two_operations), "threads (0,0,0) to (3,0,0): at a vote");
}

}  // namespace
}  // namespace aegis::simt
