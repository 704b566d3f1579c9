// The page table: a page taken and given back, prompts that share a prefix, and questions to 2²⁰
// pages with every instruction set, beside the same question to 64-byte records.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/page_table.h"
#include "kernels/page_query.h"

namespace aegis {
namespace {

constexpr int64_t kPages = 1 << 20;

void allocate_and_release(benchmark::State& state, bool full) {
  PageTable table(1 << 16, 16, PageTable::Eviction::lru);
  std::vector<uint32_t> text(16);
  // Full: every page is evictable, so that each taking evicts one.
  for (uint32_t n = 0; full && n < table.pages(); ++n) {
    text[0] = n;
    table.begin(n, text);
  }
  for (uint32_t n = 0; full && n < table.pages(); ++n) table.free(n);
  for (auto _ : state) {
    const uint32_t page = table.allocate(1);
    benchmark::DoNotOptimize(page);
    if (full && table.evictable_pages() == 0) state.SkipWithError("nothing is left to evict");
    if (!full) table.release(page);
  }
  state.SetItemsProcessed(state.iterations());
}

void prompt_that_is_there(benchmark::State& state) {
  PageTable table(4096, 16, PageTable::Eviction::frequency);
  std::vector<uint32_t> text(1000);
  std::iota(text.begin(), text.end(), 0);
  table.begin(0, text);
  for (auto _ : state) {
    if (table.begin(1, text) != 1000) state.SkipWithError("the prompt was not there");
    table.free(1);
  }
}

/// A million pages of which about one in eight is evictable.
const PageTable& pages() {
  static const PageTable table = [] {
    PageTable made(kPages, 1, PageTable::Eviction::lru);
    for (uint32_t n = 0; n < kPages; ++n) made.begin(n, std::vector<uint32_t>{n});
    for (uint32_t n = 0; n < kPages; ++n) {
      if (n * 2654435761u >> 29 == 0) made.free(n);
    }
    return made;
  }();
  return table;
}

kernels::PageQuery query() {
  const PageTable::Shadows shadows = pages().shadows();
  kernels::PageQuery query = {shadows.flags,      shadows.epochs,      shadows.owners,
                              shadows.references, shadows.frequencies, shadows.pages};
  query.flag_mask = PageTable::kEvictable | PageTable::kPinned;
  query.flag_value = PageTable::kEvictable;
  query.bounds = shadows.bounds;
  query.bounded = PageTable::kEvictable;
  return query;
}

void flags(benchmark::State& state, Isa isa) {
  std::vector<uint64_t> bits(kPages / 64), want(kPages / 64);
  kernels::page_query_kernel(Isa::scalar).mask(query(), want.data());
  const auto kernel = kernels::page_query_kernel(isa);
  for (auto _ : state) {
    kernel.mask(query(), bits.data());
    benchmark::ClobberMemory();
  }
  if (bits != want) state.SkipWithError("differs from the scalar kernel");
}

void records(benchmark::State& state) {
  pages();
  std::vector<uint64_t> bits(kPages / 64);
  for (auto _ : state) {
    for (uint32_t page = 0; page < kPages; ++page) {
      const PageDescriptor& record = pages().descriptor(page);
      const bool free = record.references == 0 && record.pins == 0 && record.content != 0;
      if (page % 64 == 0) bits[page / 64] = 0;
      bits[page / 64] |= uint64_t{free} << page % 64;
    }
    benchmark::ClobberMemory();
  }
}

enum class Bounds {
  kept,    ///< as the table has them
  spoilt,  ///< all too low, as when every evictable page was shared since the last question
  none,    ///< every epoch is read
};

void oldest(benchmark::State& state, Isa isa, Bounds bounds) {
  const auto kernel = kernels::page_query_kernel(isa);
  kernels::PageQuery question = query();
  if (bounds == Bounds::none) question.bounds = nullptr;
  const int64_t want = kernels::page_query_kernel(Isa::scalar).oldest(question);
  for (auto _ : state) {
    if (bounds == Bounds::spoilt) {
      state.PauseTiming();
      std::fill_n(question.bounds, kPages / 64, 0);
      state.ResumeTiming();
    }
    int64_t page = kernel.oldest(question);
    benchmark::DoNotOptimize(page);
    if (page != want) state.SkipWithError("differs from the scalar kernel");
  }
}

BENCHMARK_CAPTURE(allocate_and_release, free, false);
BENCHMARK_CAPTURE(allocate_and_release, evicting, true)->Iterations(60'000);
BENCHMARK(prompt_that_is_there);
BENCHMARK(records);

}  // namespace
}  // namespace aegis

int main(int argc, char** argv) {
  for (aegis::Isa isa : aegis::available_isas()) {
    const std::string name(aegis::name(isa));
    benchmark::RegisterBenchmark(("flags/" + name).c_str(), aegis::flags, isa);
    using aegis::Bounds;
    const auto oldest = [&](const char* what, Bounds bounds) {
      benchmark::RegisterBenchmark((what + name).c_str(), aegis::oldest, isa, bounds);
    };
    oldest("oldest/", Bounds::kept);
    oldest("oldest_bounds_spoilt/", Bounds::spoilt);
    oldest("oldest_without_bounds/", Bounds::none);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
