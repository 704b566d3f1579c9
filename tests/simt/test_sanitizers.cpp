// Kernels run under AddressSanitizer and UndefinedBehaviorSanitizer as host code does.
#include <climits>
#include <vector>

#include "kernels/cuda/simt.cuh"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::simt {
namespace {

__global__ void write_at(int* out, int index) { out[index] = 1; }
__global__ void shared_at(int index) {
  AEGIS_SHARED(int, cells, [4]);
  int* all = cells;
  all[index] = 1;
}
__global__ void dynamic_at(int index) {
  AEGIS_DYNAMIC_SHARED(int, tile);
  tile[index] = 1;
}
__global__ void local_at(int* out, int index) {
  volatile int local[4] = {1, 2, 3, 4};
  volatile int* all = local;
  out[0] = all[index];
}
__global__ void overflow(int* out) { out[0] += INT_MAX; }
__global__ void shift(int* out) { out[1] = 1 << out[0]; }

TEST(Sanitizers, StayQuietWhereAllIsWell) {
  DeviceBuffer<int> out("out", std::vector<int>(4));
  launch({1, 1}, write_at, out.data(), 3);
  launch({1, 1}, shared_at, 3);
  launch({1, 1, 16}, dynamic_at, 3);
  launch({1, 1}, local_at, out.data(), 3);
  EXPECT_EQ(out.values()[0], 4);
}

TEST(SanitizersDeathTest, StopAtMemoryThatIsNotTheKernels) {
  DeviceBuffer<int> out("out", std::vector<int>(4));
  EXPECT_DEATH(launch({1, 1}, write_at, out.data(), 4), "AddressSanitizer: use-after-poison");
  EXPECT_DEATH(launch({1, 1}, write_at, out.data(), -1), "AddressSanitizer: use-after-poison");
  EXPECT_DEATH(launch({1, 1}, shared_at, 4), "AddressSanitizer: use-after-poison");
  EXPECT_DEATH(launch({1, 1, 16}, dynamic_at, 4), "AddressSanitizer: use-after-poison");
  EXPECT_DEATH(launch({1, 1}, local_at, out.data(), 4),
               "insufficient space for an object|overflow");
}

TEST(SanitizersDeathTest, StopAtUndefinedArithmetic) {
  DeviceBuffer<int> out("out", std::vector<int>{40, 0});
  EXPECT_DEATH(launch({1, 1}, overflow, out.data()), "signed integer overflow");
  EXPECT_DEATH(launch({1, 1}, shift, out.data()), "shift exponent 40 is too large");
}

}  // namespace
}  // namespace aegis::simt
