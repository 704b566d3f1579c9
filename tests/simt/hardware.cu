// The kernels where they belong. One program, two ways to build it: with nvcc it runs on a GPU
// (tools/gpu_check.sh, also under compute-sanitizer); as C++ it runs on the executor (ctest). Both
// must find the same results, which is how the executor itself is held against hardware. Needs no
// GoogleTest; ends with 'N passed, N failed'.
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "kernels/convert.h"
#include "kernels/cuda/extract_batch.cu"
#include "simt/hardware_array.h"
#include "simt/kernels/argmax.cuh"
#include "simt/kernels/compact.cuh"
#include "simt/kernels/gemv.cuh"
#include "simt/kernels/histogram.cuh"
#include "simt/kernels/intrinsics.cuh"
#include "simt/kernels/transpose.cuh"

namespace aegis::kernels::scalar {
template <class Token, class Input>
void extract_batch(const ExtractBatch<Token, Input>& job);
}

namespace aegis::simt::examples {
namespace {

using kernels::cuda::launch;

std::mt19937 generator{5};

template <class T>
std::vector<T> random_values(size_t count, unsigned below) {
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(generator() % below);
  return values;
}

bool argmax_of_rows() {
  const int rows = 7, columns = 1001;
  const std::vector<float> values = random_values<float>(rows * columns, 300);
  HardwareArray<float> in(values);
  HardwareArray<int> out(std::vector<int>(rows, -1));
  launch("argmax", argmax<256>, 3, 256, 0, nullptr, in.data(), rows, columns, out.data());
  std::vector<int> want;
  for (int row = 0; row < rows; ++row) {
    const float* mine = &values[row * columns];
    int best = 0;
    for (int i = 1; i < columns; ++i) best = mine[i] > mine[best] ? i : best;
    want.push_back(best);
  }
  return out.values() == want;
}

bool compact_keeps_order() {
  std::vector<int> values = random_values<int>(1000, 100), want;
  for (int& value : values) {
    value -= 50;
    if (value >= 0) want.push_back(value);
  }
  HardwareArray<int> in(values), kept(std::vector<int>(want.size(), -1));
  HardwareArray<int64_t> count(std::vector<int64_t>{0});
  launch("compact", compact<128>, 1, 128, 0, nullptr, in.data(), 1000, kept.data(), count.data());
  return kept.values() == want && count.values()[0] == static_cast<int64_t>(want.size());
}

bool transpose_turns() {
  const int rows = 45, columns = 70;
  const std::vector<float> values = random_values<float>(rows * columns, 1u << 20);
  std::vector<float> want(values.size());
  for (int i = 0; i < rows * columns; ++i) want[i % columns * rows + i / columns] = values[i];
  HardwareArray<float> in(values), out(std::vector<float>(values.size(), -1.0f));
  launch("transpose", transpose<float>, dim3(3, 2), dim3(kTile, kTileRows),
         transpose_shared_bytes<float>(), nullptr, in.data(), rows, columns, out.data());
  return out.values() == want;
}

bool gemv_multiplies() {
  const int rows = 9, columns = 1040;
  const std::vector<int8_t> weights = random_values<int8_t>(rows * columns, 256);
  const std::vector<int8_t> vector = random_values<int8_t>(columns, 256);
  std::vector<int> want(rows);
  for (int i = 0; i < rows * columns; ++i) want[i / columns] += weights[i] * vector[i % columns];
  HardwareArray<int8_t> matrix(weights), input(vector);
  HardwareArray<int> out(std::vector<int>(rows, -1));
  launch("gemv", gemv, 3, 128, 0, nullptr, matrix.data(), input.data(), rows, columns, out.data());
  return out.values() == want;
}

bool histogram_counts() {
  const std::vector<uint16_t> tokens = random_values<uint16_t>(5000, 80);
  std::vector<unsigned> want(77);
  for (uint16_t token : tokens) {
    if (token < 77) ++want[token];
  }
  HardwareArray<uint16_t> in(tokens);
  HardwareArray<unsigned> bins(std::vector<unsigned>(77));
  launch("histogram", histogram, 4, 128, 77 * sizeof(unsigned), nullptr, in.data(), 5000, 77,
         bins.data());
  return bins.values() == want;
}

template <class Token, class Input>
bool extract_equals_oracle() {
  const int64_t batch = 19, block_size = 300, count = 2000;
  const std::vector<Token> arena = random_values<Token>(count, 1u << 31);
  std::vector<int64_t> offsets = random_values<int64_t>(batch, count - block_size);
  offsets[0] = count - block_size - 1;
  std::vector<Input> want_inputs(batch * block_size);
  std::vector<int64_t> want_targets(batch * block_size);
  kernels::scalar::extract_batch<Token, Input>(
      {arena.data(), offsets.data(), batch, block_size, want_inputs.data(), want_targets.data()});
  HardwareArray<Token> tokens(arena);
  HardwareArray<int64_t> starts(offsets), targets(std::vector<int64_t>(want_targets.size()));
  HardwareArray<Input> inputs(std::vector<Input>(want_inputs.size()));
  kernels::cuda::launch_extract_batch<Token, Input>(
      {tokens.data(), starts.data(), batch, block_size, inputs.data(), targets.data()}, count,
      nullptr);
  return inputs.values() == want_inputs && targets.values() == want_targets;
}

/// All of float16, bfloat16 and E4M3, and as many floats.
__global__ void convert_all(const float* floats, float* wide, unsigned* narrow) {
  const unsigned word = blockIdx.x * blockDim.x + threadIdx.x;
  const auto bits = static_cast<uint16_t>(word);
  wide[word * 3] = kernels::half_to_float(bits);
  wide[word * 3 + 1] = kernels::bfloat16_to_float(bits);
  wide[word * 3 + 2] = kernels::e4m3_to_float(static_cast<uint8_t>(bits));
  narrow[word * 3] = kernels::float_to_half(floats[word]);
  narrow[word * 3 + 1] = kernels::float_to_bfloat16(floats[word]);
  narrow[word * 3 + 2] = kernels::float_to_e4m3(floats[word]);
}

bool conversions_equal_the_hosts() {
  const unsigned count = 1u << 16;
  std::vector<float> floats(count);
  for (unsigned i = 0; i < count; ++i) floats[i] = kernels::bits::as_float(i * 65537u + i);
  HardwareArray<float> in(floats), wide(std::vector<float>(count * 3));
  HardwareArray<unsigned> narrow(std::vector<unsigned>(count * 3));
  launch("convert_all", convert_all, count / 256, 256, 0, nullptr, in.data(), wide.data(),
         narrow.data());
  const std::vector<float> widened = wide.values();
  const std::vector<unsigned> narrowed = narrow.values();
  const auto same = [](float a, float b) { return a == b || (a != a && b != b); };
  bool equal = true;
  for (unsigned i = 0; i < count; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    equal &= same(widened[i * 3], kernels::half_to_float(bits));
    equal &= same(widened[i * 3 + 1], kernels::bfloat16_to_float(bits));
    equal &= same(widened[i * 3 + 2], kernels::e4m3_to_float(static_cast<uint8_t>(bits)));
    equal &= narrowed[i * 3] == kernels::float_to_half(floats[i]);
    equal &= narrowed[i * 3 + 1] == kernels::float_to_bfloat16(floats[i]);
    equal &= narrowed[i * 3 + 2] == kernels::float_to_e4m3(floats[i]);
  }
  return equal;
}

/// What the executor found, which GPUs have to confirm.
struct Known {
  const char* name;
  void (*kernel)(unsigned long long*);
  unsigned long long fold;
};
const Known kKnown[] = {
    {"count_bits", count_bits, 0x85a60e1dde1ef683},
    {"shift_and_permute", shift_and_permute, 0xbaa3f932f43d70f5},
    {"multiply", multiply, 0x30164ec378f89216},
    {"round_floats", round_floats, 0xe7b14778ece23143},
    {"shuffle_lanes", shuffle_lanes, 0x5946c824f7ffcff6},
    {"vote_and_match", vote_and_match, 0xe76a2137260cf7fa},
    {"reduce_lanes", reduce_lanes, 0x180a2e106f7a3cc5},
    {"update_cells", update_cells, 0xedd577b629210945},
};

bool intrinsic_gives(const Known& known) {
  constexpr int kThreads = 96;
  HardwareArray<unsigned long long> out{std::vector<unsigned long long>(kThreads)};
  launch(known.name, known.kernel, 1, kThreads, 0, nullptr, out.data());
  unsigned long long fold = 0xcbf29ce484222325u;
  for (unsigned long long word : out.values()) fold = (fold ^ word) * 0x100000001b3u;
  if (fold != known.fold) std::printf("%s gives 0x%llx\n", known.name, fold);
  return fold == known.fold;
}

struct Tally {
  int passed = 0;
  int failed = 0;

  template <class Check>
  void count(const std::string& name, Check check) {
    bool good = false;
    try {
      good = check();
    } catch (const std::exception& error) {
      std::printf("%s: %s\n", name.c_str(), error.what());
    }
    std::printf("%-6s %s\n", good ? "ok" : "FAILED", name.c_str());
    ++(good ? passed : failed);
  }
};

}  // namespace

int run() {
  Tally tally;
  tally.count("argmax", argmax_of_rows);
  tally.count("compact", compact_keeps_order);
  tally.count("transpose", transpose_turns);
  tally.count("gemv", gemv_multiplies);
  tally.count("histogram", histogram_counts);
#define AEGIS_EXTRACT(Token, Input) \
  tally.count("extract_batch " #Token " " #Input, extract_equals_oracle<Token, Input>);
  AEGIS_EXTRACT_BATCH_TYPES(AEGIS_EXTRACT)
#undef AEGIS_EXTRACT
  tally.count("conversions", conversions_equal_the_hosts);
  for (const Known& known : kKnown) tally.count(known.name, [&] { return intrinsic_gives(known); });
  std::printf("%d passed, %d failed\n", tally.passed, tally.failed);
  return tally.failed ? 1 : 0;
}

}  // namespace aegis::simt::examples

int main() { return aegis::simt::examples::run(); }
