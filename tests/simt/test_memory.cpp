// Shared memory and device buffers.
#include <cstdint>
#include <vector>

#include "kernels/cuda/simt.cuh"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::simt {
namespace {

class MemoryTest : public EverySchedule {};
AEGIS_EVERY_SCHEDULE(MemoryTest);

template <class T>
__global__ void own_variables(T* out) {
  AEGIS_SHARED(T, table, [4][8]);
  AEGIS_SHARED(int, total);
  if (threadIdx.x == 0) total = 100;
  table[threadIdx.x / 8][threadIdx.x % 8] = static_cast<T>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = table[3 - threadIdx.x / 8][7 - threadIdx.x % 8] + static_cast<T>(total);
}

TEST_P(MemoryTest, SharedVariablesOfAnyExtentAreOneForTheBlock) {
  DeviceBuffer<int> ints("ints", 32);
  DeviceBuffer<double> doubles("doubles", 32);
  launch({1, 32}, own_variables<int>, ints.data());
  launch({1, 32}, own_variables<double>, doubles.data());
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(ints.values()[i], 131 - i);
    EXPECT_EQ(doubles.values()[i], 131 - i);
  }
}

__global__ void dynamic_reverse(const int* in, int* out) {
  AEGIS_DYNAMIC_SHARED(int, tile);
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

TEST_P(MemoryTest, DynamicSharedMemoryHasTheSizeOfTheLaunch) {
  for (int size : {1, 33, 256}) {
    std::vector<int> values(size), want(size);
    for (int i = 0; i < size; ++i) values[i] = want[size - 1 - i] = i * 7;
    DeviceBuffer<int> in("in", values), out("out", size);
    launch({1, dim3(size), size * sizeof(int)}, dynamic_reverse, in.data(), out.data());
    EXPECT_EQ(out.values(), want);
  }
}

__global__ void addresses(uint64_t* out) {
  AEGIS_SHARED(char, byte);
  AEGIS_SHARED(float4, vectors, [3]);
  AEGIS_DYNAMIC_SHARED(double, tile);
  out[0] = reinterpret_cast<uint64_t>(&byte);
  out[1] = reinterpret_cast<uint64_t>(vectors);
  out[2] = reinterpret_cast<uint64_t>(tile);
}

TEST_P(MemoryTest, SharedMemoryIsAlignedTo16BytesAndNoBetter) {
  DeviceBuffer<uint64_t> out("out", 3);
  launch({1, 1, 8}, addresses, out.data());
  for (uint64_t address : out.values()) EXPECT_EQ(address % 32, 16u);
}

__global__ void dynamic_only() {
  AEGIS_DYNAMIC_SHARED(int, tile);
  tile[0] = 1;
}
__global__ void big_static(int* out) {
  AEGIS_SHARED(int, half, [6000]);
  AEGIS_SHARED(int, other_half, [6400]);
  half[0] = other_half[0] = 1;
  *out = half[0] + other_half[0];
}

TEST_P(MemoryTest, MoreSharedMemoryThanTheLimitIsRefused) {
  launch({1, 1, 99 * 1024}, dynamic_only);
  EXPECT_SIMT_ERROR(launch({1, 1, 99 * 1024 + 1}, dynamic_only),
                    "expected at most 101376 bytes a block, got 101377");
  settings().shared_limit = 227 * 1024;
  launch({1, 1, 227 * 1024}, dynamic_only);
  DeviceBuffer<int> out("out", 1);
  EXPECT_SIMT_ERROR(launch({1, 1}, big_static, out.data()),
                    "expected at most 49152 bytes of AEGIS_SHARED, got 49600 with other_half");
}

TEST(DeviceBuffer, StandsAtTheAlignmentThatIsAskedFor) {
  DeviceBuffer<uint16_t> even("even", 10), shifted("shifted", 10, 3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(even.data()) % 256, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(shifted.data()) % 256, 6u);
  EXPECT_EQ(even.values(), std::vector<uint16_t>(10, 0x7f7f)) << "unwritten";
  EXPECT_EQ(DeviceBuffer<int>("empty", 0).values(), std::vector<int>{});
}

}  // namespace
}  // namespace aegis::simt
