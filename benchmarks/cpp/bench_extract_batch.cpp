// The kernels of extract_batch on 64 x 256 uint16 tokens: every instruction set, cold (1 GB of
// tokens) and warm (2 MB), beside copying as many result bytes, which no kernel can beat.
#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "core/mapping.h"
#include "kernels/extract_batch.h"

namespace aegis {
namespace {

constexpr int64_t kBatch = 64, kBlock = 256;
constexpr int64_t kCold = int64_t{512} << 20, kWarm = int64_t{1} << 20;  // tokens

const uint16_t* tokens() {
  static const Mapping memory = [] {
    Mapping made(kCold * sizeof(uint16_t));
    auto* token = reinterpret_cast<uint16_t*>(made.data());
    for (int64_t i = 0; i < kCold; ++i) token[i] = static_cast<uint16_t>(i * 2654435761u >> 16);
    return made;
  }();
  return reinterpret_cast<const uint16_t*>(memory.data());
}

/// Batches of random window starts, drawn before the clock runs.
std::vector<std::vector<int64_t>> starts(int64_t count) {
  std::mt19937_64 random(1);
  std::vector<std::vector<int64_t>> batches(512, std::vector<int64_t>(kBatch));
  for (auto& batch : batches) {
    for (int64_t& start : batch)
      start = static_cast<int64_t>(random() % static_cast<uint64_t>(count - kBlock));
  }
  return batches;
}

void extract(benchmark::State& state, Isa isa, int64_t count) {
  const auto batches = starts(count);
  std::vector<int64_t> inputs(kBatch * kBlock), targets(kBatch * kBlock), want(kBatch * kBlock);
  const auto kernel = kernels::extract_batch_kernel<uint16_t, int64_t>(isa);
  const auto run = [&](const auto& extract_batch, const std::vector<int64_t>& offsets,
                       int64_t* out) {
    extract_batch({tokens(), offsets.data(), kBatch, kBlock, out, targets.data()});
  };
  run(kernel, batches[0], inputs.data());
  run(kernels::extract_batch_kernel<uint16_t, int64_t>(Isa::scalar), batches[0], want.data());
  if (inputs != want) state.SkipWithError("differs from the scalar kernel");
  size_t next = 0;
  for (auto _ : state) {
    run(kernel, batches[next++ % batches.size()], inputs.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kBatch * kBlock);
}

void copy(benchmark::State& state) {
  std::vector<int64_t> inputs(kBatch * kBlock, 1), targets(kBatch * kBlock, 2),
      from(kBatch * kBlock, 3);
  for (auto _ : state) {
    std::memcpy(inputs.data(), from.data(), sizeof(int64_t) * inputs.size());
    std::memcpy(targets.data(), from.data(), sizeof(int64_t) * targets.size());
    benchmark::ClobberMemory();
  }
}
BENCHMARK(copy)->Name("memcpy of as many bytes");

const int registered = [] {
  for (Isa isa : available_isas()) {
    if (isa > Isa::avx512) break;  // no version of its own above
    for (const auto& [where, count] : {std::pair{"cold", kCold}, std::pair{"warm", kWarm}}) {
      const std::string label = std::string(name(isa)) + ", " + where;
      benchmark::RegisterBenchmark(label.c_str(), extract, isa, count);
    }
  }
  return 0;
}();

}  // namespace
}  // namespace aegis

BENCHMARK_MAIN();
