// What unwritten and overwritten memory looks like where no instrumentation watches: garbage, and
// guards that have changed.
#include <set>
#include <vector>

#include "kernels/cuda/simt.cuh"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::simt {
namespace {

class GarbageTest : public EverySchedule {};
AEGIS_EVERY_SCHEDULE(GarbageTest);

__global__ void read_then_write(unsigned* out) {
  AEGIS_SHARED(unsigned, word);
  AEGIS_DYNAMIC_SHARED(unsigned, tile);
  out[blockIdx.x * 2] = word;
  out[blockIdx.x * 2 + 1] = tile[0];
  word = tile[0] = 5;
}

TEST_P(GarbageTest, EveryBlockBeginsWithGarbageInSharedMemory) {
  DeviceBuffer<unsigned> out("out", 6);
  launch({3, 1, 4}, read_then_write, out.data());
  const std::vector<unsigned> seen = out.values();
  EXPECT_EQ(seen, std::vector<unsigned>(6, seen[0]));
  EXPECT_NE(seen[0], 5u);
  EXPECT_NE(seen[0], 0u);
}

TEST(Garbage, DiffersBetweenSchedules) {
  std::set<unsigned> seen;
  for (const Schedule& schedule : schedules()) {
    settings().schedule = schedule;
    DeviceBuffer<unsigned> out("out", 2);
    launch({1, 1, 4}, read_then_write, out.data());
    seen.insert(out.values()[0]);
  }
  settings() = {};
  EXPECT_EQ(seen.size(), schedules().size());
}

__global__ void sum_without_barrier(int* out) {
  AEGIS_SHARED(int, values, [64]);
  values[threadIdx.x] = 1;
  if (threadIdx.x == 0) {
    int sum = 0;
    for (int i = 0; i < 64; ++i) sum += values[i] & 1;
    *out = sum;
  }
}

TEST(Garbage, MissingBarrierGivesAWrongResultInSomeSchedule) {
  int wrong = 0;
  for (const Schedule& schedule : schedules()) {
    settings().schedule = schedule;
    DeviceBuffer<int> out("out", 1);
    launch({1, 64}, sum_without_barrier, out.data());
    wrong += out.values()[0] != 64;
  }
  settings() = {};
  EXPECT_GE(wrong, 1);
}

__global__ void write_at(int* out, int index) { out[index] = 1; }
__global__ void write_shared_at(int index) {
  AEGIS_SHARED(int, values, [4]);
  int* all = values;
  all[index] = 1;
}
__global__ void write_dynamic_at(int index) {
  AEGIS_DYNAMIC_SHARED(int, tile);
  tile[index] = 1;
}

TEST_P(GarbageTest, WritesJustOutsideOfMemoryAreFound) {
  DeviceBuffer<int> out("out", 3);
  EXPECT_SIMT_ERROR(launch({1, 1}, write_at, out.data(), 3), "outside of out: out[3] has changed");
  EXPECT_SIMT_ERROR(launch({1, 1}, write_at, out.data(), -1), "out[-1] has changed");
  launch({1, 1}, write_at, out.data(), 2);
  EXPECT_SIMT_ERROR(launch({1, 1}, write_shared_at, 4), "values[4] has changed; it has 4 elements");
  EXPECT_SIMT_ERROR(launch({1, 1, 16}, write_dynamic_at, 4), "tile[4] has changed");
  EXPECT_SIMT_ERROR(launch({1, 1, 16}, write_dynamic_at, -2), "tile[-2] has changed");
}

}  // namespace
}  // namespace aegis::simt
