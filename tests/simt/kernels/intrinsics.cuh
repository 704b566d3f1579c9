// What intrinsics return for many operands, folded into one number for each kind: the executor and
// a GPU must agree (tests/simt/hardware.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/simt.cuh"

namespace aegis::simt::examples {

constexpr unsigned kAllLanes = 0xffffffffu;

/// FNV-1a over words.
struct Fold {
  unsigned long long state = 0xcbf29ce484222325u;

  __device__ void add(unsigned long long word) { state = (state ^ word) * 0x100000001b3u; }
  __device__ void add_float(float value) { add(__float_as_uint(value)); }
};

/// A different word for each thread and step, small and large ones among them.
__device__ inline unsigned operand(unsigned step) {
  const unsigned x = (threadIdx.x + 1) * 0x9e3779b9u + step * 0x85ebca6bu;
  return (x ^ x >> 15) >> (step % 4 * 8);
}

/// One number of this thread over 64 sets of operands.
template <class Body>
__device__ void fold_steps(unsigned long long* out, Body body) {
  Fold fold;
  for (unsigned step = 0; step < 64; ++step) {
    body(fold, operand(step), operand(step + 64), operand(step + 128));
  }
  *out = fold.state;
}

__global__ void count_bits(unsigned long long* out) {
  fold_steps(out + threadIdx.x, [](Fold& fold, unsigned a, unsigned b, unsigned) {
    const unsigned long long wide = static_cast<unsigned long long>(a) << 32 | b;
    fold.add(__popc(a) * 1000000 + __clz(static_cast<int>(a)) * 1000 + __ffs(static_cast<int>(a)));
    fold.add(__popcll(wide) * 1000000 + __clzll(static_cast<long long>(wide)) * 1000 +
             __ffsll(static_cast<long long>(wide)));
    fold.add(__brev(a));
    fold.add(__brevll(wide));
  });
}

__global__ void shift_and_permute(unsigned long long* out) {
  fold_steps(out + threadIdx.x, [](Fold& fold, unsigned a, unsigned b, unsigned c) {
    for (unsigned shift = 0; shift < 40; shift += 3) {
      fold.add(__funnelshift_l(a, b, shift));
      fold.add(__funnelshift_lc(a, b, shift));
      fold.add(__funnelshift_r(a, b, shift));
      fold.add(__funnelshift_rc(a, b, shift));
    }
    fold.add(__byte_perm(a, b, c & 0x7777));
  });
}

__global__ void multiply(unsigned long long* out) {
  fold_steps(out + threadIdx.x, [](Fold& fold, unsigned a, unsigned b, unsigned c) {
    const int i = static_cast<int>(a), j = static_cast<int>(b);
    fold.add(static_cast<unsigned>(__dp4a(i, j, static_cast<int>(c))));
    fold.add(__dp4a(a, b, c));
    fold.add(__umulhi(a, b));
    fold.add(static_cast<unsigned>(__mulhi(i, j)));
    fold.add(__umul64hi(static_cast<unsigned long long>(a) << 20, b));
  });
}

__global__ void round_floats(unsigned long long* out) {
  fold_steps(out + threadIdx.x, [](Fold& fold, unsigned a, unsigned b, unsigned) {
    const float values[] = {static_cast<float>(static_cast<int>(a)) / 1024.0f,
                            static_cast<float>(b) * 4.0f, -static_cast<float>(b),
                            __uint_as_float(0x7fc00000u), static_cast<float>(a % 64) / 2.0f};
    for (float value : values) {
      fold.add(static_cast<unsigned>(__float2int_rn(value)));
      fold.add(static_cast<unsigned>(__float2int_rz(value)));
      fold.add(static_cast<unsigned>(__float2int_rd(value)));
      fold.add(static_cast<unsigned>(__float2int_ru(value)));
      fold.add(__float2uint_rn(value));
      fold.add_float(__saturatef(value));
    }
    fold.add_float(__fmaf_rn(values[0], values[1], values[4]));
  });
}

__global__ void shuffle_lanes(unsigned long long* out) {
  Fold fold;
  for (int width = 1; width <= 32; width *= 2) {
    for (int argument = 0; argument < 32; ++argument) {
      const unsigned value = operand(argument);
      fold.add(__shfl_sync(kAllLanes, value, argument, width));
      fold.add(__shfl_up_sync(kAllLanes, value, argument, width));
      fold.add(__shfl_down_sync(kAllLanes, value, argument, width));
      fold.add(__shfl_xor_sync(kAllLanes, value, argument, width));
    }
  }
  const double wide = operand(1) * 0.5;
  fold.add(static_cast<unsigned long long>(__double_as_longlong(__shfl_sync(kAllLanes, wide, 3))));
  out[threadIdx.x] = fold.state;
}

__global__ void vote_and_match(unsigned long long* out) {
  fold_steps(out + threadIdx.x, [](Fold& fold, unsigned a, unsigned b, unsigned) {
    int all = 0;
    fold.add(__ballot_sync(kAllLanes, a & 1));
    fold.add(__any_sync(kAllLanes, a % 64 == 0) * 10 + __all_sync(kAllLanes, b % 8 != 0));
    fold.add(__match_any_sync(kAllLanes, a % 5));
    fold.add(__match_all_sync(kAllLanes, b % 2, &all));
    fold.add(static_cast<unsigned>(all));
  });
}

__global__ void reduce_lanes(unsigned long long* out) {
  fold_steps(out + threadIdx.x, [](Fold& fold, unsigned a, unsigned b, unsigned) {
    const int i = static_cast<int>(a - (b >> 1));
    fold.add(static_cast<unsigned>(__reduce_add_sync(kAllLanes, i)));
    fold.add(static_cast<unsigned>(__reduce_min_sync(kAllLanes, i)));
    fold.add(static_cast<unsigned>(__reduce_max_sync(kAllLanes, i)));
    fold.add(__reduce_min_sync(kAllLanes, a));
    fold.add(__reduce_max_sync(kAllLanes, a));
    fold.add(__reduce_and_sync(kAllLanes, a | 0xff00u));
    fold.add(__reduce_or_sync(kAllLanes, a & b));
    fold.add(__reduce_xor_sync(kAllLanes, a));
  });
}

/// Cells whose final value does not depend on the order of the threads.
__global__ void update_cells(unsigned long long* out) {
  AEGIS_SHARED(unsigned, cells, [8]);
  if (threadIdx.x < 8) cells[threadIdx.x] = threadIdx.x == 2 || threadIdx.x == 3 ? kAllLanes : 0;
  __syncthreads();
  const unsigned value = operand(threadIdx.x);
  atomicAdd(&cells[0], value);
  atomicMax(&cells[1], value);
  atomicMin(&cells[2], value);
  atomicAnd(&cells[3], value | 0xff);
  atomicOr(&cells[4], value & 0xff);
  atomicXor(&cells[5], value);
  atomicInc(&cells[6], 40);
  unsigned seen = atomicCAS(&cells[7], 0u, 0u), expected;
  do {
    expected = seen;
    seen = atomicCAS(&cells[7], expected, expected + value % 7);
  } while (seen != expected);
  __syncthreads();
  Fold fold;
  for (unsigned cell : cells) fold.add(cell);
  fold.add(static_cast<unsigned>(__syncthreads_count(value % 3 == 0)));
  out[threadIdx.x] = fold.state;
}

}  // namespace aegis::simt::examples
