// Integer and floating-point intrinsics, atomics, loads and vector types.
#include <bitset>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/simt.cuh"
#include "simt/device_buffer.h"
#include "simt/every_schedule.h"

namespace aegis::simt {
namespace {

std::vector<unsigned> words() {
  std::vector<unsigned> all{0, 1, 2, 0x7fffffff, 0x80000000, 0xffffffff, 0x00010000};
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) all.push_back(static_cast<unsigned>(random()));
  return all;
}

TEST(Intrinsics, CountBits) {
  for (unsigned x : words()) {
    const std::bitset<32> bits(x);
    EXPECT_EQ(__popc(x), static_cast<int>(bits.count()));
    int leading = 0, first = 0;
    while (leading < 32 && !bits[31 - leading]) ++leading;
    while (first < 32 && !bits[first]) ++first;
    EXPECT_EQ(__clz(static_cast<int>(x)), leading);
    EXPECT_EQ(__ffs(static_cast<int>(x)), x ? first + 1 : 0);
    for (int bit = 0; bit < 32; ++bit) EXPECT_EQ(__brev(x) >> (31 - bit) & 1, x >> bit & 1);
    const unsigned long long high = uint64_t{x} << 32;
    EXPECT_EQ(__popcll(high | 1), __popc(x) + 1);
    EXPECT_EQ(__clzll(static_cast<long long>(high)), x ? leading : 64);
    EXPECT_EQ(__ffsll(static_cast<long long>(high)), x ? first + 33 : 0);
    EXPECT_EQ(__brevll(high), __brev(x));
  }
}

TEST(Intrinsics, FunnelShiftsWrapOrClamp) {
  const unsigned low = 0x89abcdef, high = 0x01234567;
  for (unsigned shift : {0u, 1u, 8u, 31u, 32u, 33u, 40u}) {
    const unsigned wrapped = shift % 32, clamped = std::min(shift, 32u);
    const auto left = [&](unsigned n) {
      return n == 0 ? high : n == 32 ? low : high << n | low >> (32 - n);
    };
    const auto right = [&](unsigned n) {
      return n == 0 ? low : n == 32 ? high : low >> n | high << (32 - n);
    };
    EXPECT_EQ(__funnelshift_l(low, high, shift), left(wrapped));
    EXPECT_EQ(__funnelshift_lc(low, high, shift), left(clamped));
    EXPECT_EQ(__funnelshift_r(low, high, shift), right(wrapped));
    EXPECT_EQ(__funnelshift_rc(low, high, shift), right(clamped));
  }
}

TEST(Intrinsics, BytePermPicksBytes) {
  EXPECT_EQ(__byte_perm(0x33221100, 0x77665544, 0x3210), 0x33221100u);
  EXPECT_EQ(__byte_perm(0x33221100, 0x77665544, 0x0167), 0x00116677u);
  EXPECT_THROW(__byte_perm(0, 0, 0x8000), std::invalid_argument);
}

TEST(Intrinsics, Dp4aMultipliesBytesBySignedness) {
  EXPECT_EQ(__dp4a(0x01020304, 0x01010101, 5), 15);
  EXPECT_EQ(__dp4a(static_cast<int>(0xff80ff80), 0x7f7f7f7f, 0), 2 * 127 * (-1 - 128));
  EXPECT_EQ(__dp4a(0xff80ff80u, 0x7f7f7f7fu, 1u), 2u * 127 * (255 + 128) + 1);
  EXPECT_EQ(__dp4a(0x01000000, 0x01000000, INT32_MAX), INT32_MIN) << "the sum wraps";
  EXPECT_EQ(__dp4a(char4{-1, 2, -3, 4}, char4{5, 6, 7, 8}, 0), -5 + 12 - 21 + 32);
  EXPECT_EQ(__dp4a(uchar4{255, 0, 0, 1}, uchar4{255, 9, 9, 2}, 0u), 65027u);
}

TEST(Intrinsics, HighHalvesOfProducts) {
  EXPECT_EQ(__umulhi(0xffffffffu, 0xffffffffu), 0xfffffffeu);
  EXPECT_EQ(__mulhi(-1, 1), -1);
  EXPECT_EQ(__umul64hi(~0ull, 2), 1ull);
  EXPECT_EQ(__mul64hi(INT64_MIN, 2), -1ll);
}

TEST(Intrinsics, FloatToIntegerRoundsAndSaturates) {
  EXPECT_EQ(__float2int_rn(2.5f), 2);
  EXPECT_EQ(__float2int_rn(3.5f), 4);
  EXPECT_EQ(__float2int_rz(-2.9f), -2);
  EXPECT_EQ(__float2int_rd(-2.1f), -3);
  EXPECT_EQ(__float2int_ru(2.1f), 3);
  EXPECT_EQ(__float2int_rn(1e20f), INT32_MAX);
  EXPECT_EQ(__float2int_rn(-1e20f), INT32_MIN);
  EXPECT_EQ(__float2int_rn(std::nanf("")), 0);
  EXPECT_EQ(__float2uint_rz(-1.0f), 0u);
  EXPECT_EQ(__float2uint_rn(5e9f), 0xffffffffu);
  EXPECT_EQ(__saturatef(std::nanf("")), 0.0f);
  EXPECT_EQ(__saturatef(2.0f), 1.0f);
  EXPECT_EQ(__int_as_float(__float_as_int(1.5f)), 1.5f);
  EXPECT_EQ(__longlong_as_double(__double_as_longlong(-2.5)), -2.5);
}

TEST(Intrinsics, VectorTypesAreAlignedAsCudaAlignsThem) {
  EXPECT_EQ(sizeof(float4), 16u);
  EXPECT_EQ(alignof(float4), 16u);
  EXPECT_EQ(alignof(float2), 8u);
  EXPECT_EQ(alignof(float3), 4u);
  EXPECT_EQ(sizeof(uchar3), 3u);
  EXPECT_EQ(alignof(char4), 4u);
  EXPECT_EQ(alignof(ushort4), 8u);
  EXPECT_EQ(alignof(double2), 16u);
  EXPECT_EQ(alignof(longlong2), 16u);
  const int4 made = make_int4(1, 2, 3, 4);
  EXPECT_EQ(made.x * 1000 + made.y * 100 + made.z * 10 + made.w, 1234);
}

class AtomicTest : public EverySchedule {};
AEGIS_EVERY_SCHEDULE(AtomicTest);

template <class T>
__global__ void update_all(T* cells) {
  const T value = static_cast<T>(blockIdx.x * blockDim.x + threadIdx.x);
  atomicAdd(&cells[0], value);
  if constexpr (std::is_integral_v<T>) {
    atomicMax(&cells[1], value);
    atomicMin(&cells[2], value);
    atomicAnd(&cells[3], static_cast<T>(~value));
    atomicOr(&cells[4], value);
    atomicXor(&cells[5], value);
  }
}

template <class T>
void compare_atomics() {
  std::vector<T> want(6, T{0});
  want[2] = want[3] = std::numeric_limits<T>::max();
  DeviceBuffer<T> cells("cells", want);
  launch({3, 70}, update_all<T>, cells.data());
  for (int i = 0; i < 210; ++i) {
    const T value = static_cast<T>(i);
    want[0] += value;
    if constexpr (std::is_integral_v<T>) {
      want[1] = std::max(want[1], value);
      want[2] = std::min(want[2], value);
      want[3] &= ~value;
      want[4] |= value;
      want[5] ^= value;
    }
  }
  EXPECT_EQ(cells.values(), want);
}

TEST_P(AtomicTest, Int) { compare_atomics<int>(); }
TEST_P(AtomicTest, Unsigned) { compare_atomics<unsigned>(); }
TEST_P(AtomicTest, UnsignedLongLong) { compare_atomics<unsigned long long>(); }
TEST_P(AtomicTest, Float) { compare_atomics<float>(); }
TEST_P(AtomicTest, Double) { compare_atomics<double>(); }

__global__ void take_tickets(int* next, int* owners) { owners[atomicAdd(next, 1)] = threadIdx.x; }

TEST_P(AtomicTest, AddReturnsWhatWasThere) {
  DeviceBuffer<int> next("next", std::vector<int>{0}), owners("owners", 64);
  launch({1, 64}, take_tickets, next.data(), owners.data());
  std::vector<int> sorted = owners.values(), want(64);
  std::sort(sorted.begin(), sorted.end());
  for (int i = 0; i < 64; ++i) want[i] = i;
  EXPECT_EQ(sorted, want);
}

__global__ void add_by_cas(float* sum, unsigned* exchanged) {
  auto* word = reinterpret_cast<unsigned*>(sum);
  unsigned seen = atomicCAS(word, 0u, 0u), expected;
  do {
    expected = seen;
    seen = atomicCAS(word, expected, __float_as_uint(__uint_as_float(expected) + 1.0f));
  } while (seen != expected);
  atomicExch(exchanged, 1u << threadIdx.x);
}

TEST_P(AtomicTest, CompareAndSwapLoopsEnd) {
  DeviceBuffer<float> sum("sum", std::vector<float>{0});
  DeviceBuffer<unsigned> exchanged("exchanged", std::vector<unsigned>{0});
  launch({4, 32}, add_by_cas, sum.data(), exchanged.data());
  EXPECT_EQ(sum.values()[0], 128.0f);
  EXPECT_EQ(__popc(exchanged.values()[0]), 1);
}

__global__ void wrap(unsigned* up, unsigned* down) {
  atomicInc(up, 9);
  atomicDec(down, 9);
}

TEST_P(AtomicTest, IncrementAndDecrementWrap) {
  DeviceBuffer<unsigned> up("up", std::vector<unsigned>{0}), down("down", std::vector<unsigned>{0});
  launch({1, 25}, wrap, up.data(), down.data());
  EXPECT_EQ(up.values()[0], 5u);
  EXPECT_EQ(down.values()[0], 5u);
}

__global__ void copy_hinted(const float4* in, float4* out) {
  __stcs(&out[threadIdx.x], threadIdx.x % 2 ? __ldg(&in[threadIdx.x]) : __ldcs(&in[threadIdx.x]));
}

TEST_P(AtomicTest, HintedLoadsAndStoresCopy) {
  std::vector<float4> values(33);
  for (int i = 0; i < 33; ++i) values[i] = make_float4(i, i + 0.25f, i + 0.5f, i + 0.75f);
  DeviceBuffer<float4> in("in", values), out("out", 33);
  launch({1, 33}, copy_hinted, in.data(), out.data());
  for (int i = 0; i < 33; ++i) {
    EXPECT_EQ(out.values()[i].x, values[i].x);
    EXPECT_EQ(out.values()[i].w, values[i].w);
  }
}

}  // namespace
}  // namespace aegis::simt
