// 10^9 updates of 64-byte aligned order records: the micro-benchmark behind "0.2 ns an operation".
//
// A compiler barrier in every iteration keeps the loop from being folded. Cycles are those of the
// time-stamp counter, which ticks at a fixed rate and not at the core's. The heap is looked at
// before and after.
#include <malloc.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace {

struct alignas(64) OrderRecord {
  uint64_t id;
  uint64_t price;
  uint64_t quantity;
  uint64_t time;
  uint32_t side;
  uint32_t flags;
  uint64_t check;
  uint64_t unused[2];
};
static_assert(sizeof(OrderRecord) == 64 && alignof(OrderRecord) == 64);

uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return 0;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t operations = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000'000;
  constexpr uint64_t kRecords = 1 << 14;  // 1 MB
  const auto records = std::make_unique<OrderRecord[]>(kRecords);
  const size_t heap = mallinfo2().uordblks;
  const auto start = std::chrono::steady_clock::now();
  const uint64_t first_tick = ticks();
  uint64_t sum = 0;
  for (uint64_t i = 0; i < operations; ++i) {
    OrderRecord& record = records[i % kRecords];
    record.quantity += i;
    sum ^= record.quantity;
    asm volatile("" : "+r"(sum) : : "memory");
  }
  const double ns =
      std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  const double cycles = static_cast<double>(ticks() - first_tick);
  std::printf(
      "{\"operations\": %llu, \"ns\": %.3f, \"tsc_cycles\": %.3f, \"heap_delta\": %lld, \"sum\": "
      "%llu}\n",
      static_cast<unsigned long long>(operations), ns / static_cast<double>(operations),
      cycles / static_cast<double>(operations),
      static_cast<long long>(mallinfo2().uordblks) - static_cast<long long>(heap),
      static_cast<unsigned long long>(sum));
  return 0;
}
