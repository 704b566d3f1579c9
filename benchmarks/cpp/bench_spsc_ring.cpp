// The ring between two threads beside a plain single-producer queue of the same entries, and its
// round trip beside two atomics. The reference follows rigtorp::SPSCQueue: indices that wrap, each
// with a copy of the other side's in its own line, and slots that are written one by one.
//
// Times are of an entry, or a trip. The two threads are on two CPUs where there are two, and a turn
// is a millisecond, so that some of them are not interrupted on a machine with other work: compare
// the best, with --benchmark_enable_random_interleaving=true. What a line takes from one CPU to the
// other decides nearly all, and on a virtual machine changes with where its CPUs happen to be.
#include <benchmark/benchmark.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "core/spsc_ring.h"

namespace aegis {
namespace {

constexpr size_t kCapacity = 4096;
constexpr uint64_t kEntries = uint64_t{1} << 13;  // of one turn
constexpr int kPatience = 2000;                   // looks before the other thread may have the CPU

/// Looks again; now and then the CPU is given away, since there may be no other.
class Spin {
 public:
  void operator()() {
    if (++looks_ % kPatience == 0) sched_yield();
  }

 private:
  int looks_ = 0;
};

class Reference {
 public:
  Reference() : slots_(kCapacity + 1) {}

  bool push(const SpscEntry& entry) {
    const size_t write = write_.index.load(std::memory_order_relaxed);
    const size_t next = write + 1 == slots_.size() ? 0 : write + 1;
    if (next == write_.other) {
      write_.other = read_.index.load(std::memory_order_acquire);
      if (next == write_.other) return false;
    }
    slots_[write].entry = entry;
    write_.index.store(next, std::memory_order_release);
    return true;
  }

  bool pop(SpscEntry& entry) {
    const size_t read = read_.index.load(std::memory_order_relaxed);
    if (read == read_.other) {
      read_.other = write_.index.load(std::memory_order_acquire);
      if (read == read_.other) return false;
    }
    entry = slots_[read].entry;
    read_.index.store(read + 1 == slots_.size() ? 0 : read + 1, std::memory_order_release);
    return true;
  }

 private:
  struct alignas(64) Side {
    std::atomic<size_t> index{0};
    alignas(64) size_t other = 0;
  };
  struct alignas(64) Slot {  // as the ring's: no line is of two entries
    SpscEntry entry;
  };
  std::vector<Slot> slots_;
  Side write_, read_;
};

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);  // where it is refused, the system's choice will do
}

/// Seconds that `mine` takes here from when a thread on another CPU begins with `others`.
template <class Mine, class Others>
double together(Mine mine, Others others) {
  std::atomic<int> there{0};
  const auto meet = [&] {
    Spin spin;
    for (++there; there.load() < 2;) spin();
  };
  pin(0);
  std::thread other([&] {
    pin(1);
    meet();
    others();
  });
  meet();
  const auto start = std::chrono::steady_clock::now();
  mine();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  other.join();
  return elapsed.count();
}

/// One by one: `push` and `pop` return whether they could.
template <class Push, class Pop>
void transfer(benchmark::State& state, Push push, Pop pop) {
  for (auto _ : state) {
    uint64_t sum = 0;
    const auto consume = [&] {
      SpscEntry entry;
      Spin spin;
      for (uint64_t n = 0; n < kEntries; ++n) {
        while (!pop(entry)) spin();
        sum += entry.sequence;
      }
    };
    const auto produce = [&] {
      SpscEntry entry = {};
      Spin spin;
      for (uint64_t n = 0; n < kEntries; ++n) {
        entry.sequence = n;
        while (!push(entry)) spin();
      }
    };
    state.SetIterationTime(together(consume, produce) / kEntries);
    if (sum != kEntries * (kEntries - 1) / 2) state.SkipWithError("entries were lost");
  }
}

void reference(benchmark::State& state) {
  Reference queue;
  transfer(
      state, [&](const SpscEntry& e) { return queue.push(e); },
      [&](SpscEntry& e) { return queue.pop(e); });
}

void ring(benchmark::State& state) {
  const auto queue = SpscRing::create(kCapacity);
  transfer(
      state, [&](const SpscEntry& e) { return queue->try_push(e); },
      [&](SpscEntry& e) { return queue->try_pop(e); });
}

void ring_in_batches(benchmark::State& state) {
  const auto queue = SpscRing::create(kCapacity);
  const auto size = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    uint64_t sum = 0;
    const auto consume = [&] {
      std::vector<SpscEntry> batch(size);
      Spin spin;
      for (uint64_t n = 0; n < kEntries;) {
        const size_t popped = queue->try_pop(std::span(batch));
        if (popped == 0) spin();
        for (size_t i = 0; i < popped; ++i) sum += batch[i].sequence;
        n += popped;
      }
    };
    const auto produce = [&] {
      std::vector<SpscEntry> batch(size);
      Spin spin;
      for (uint64_t n = 0; n < kEntries; n += size) {
        for (size_t i = 0; i < size; ++i) batch[i].sequence = n + i;
        for (std::span<const SpscEntry> rest = batch; !rest.empty();) {
          const size_t pushed = queue->try_push(rest);
          if (pushed == 0) spin();
          rest = rest.subspan(pushed);
        }
      }
    };
    state.SetIterationTime(together(consume, produce) / kEntries);
    if (sum != kEntries * (kEntries - 1) / 2) state.SkipWithError("entries were lost");
  }
}

constexpr uint64_t kTrips = 1000;

/// `send(n)` here is answered there; `wait(n)` returns once the n-th answer has come.
template <class Echo, class Send, class Wait>
void round_trip(benchmark::State& state, Echo echo, Send send, Wait wait) {
  uint64_t n = 0;
  for (auto _ : state) {
    const auto trips = [&] {
      for (const uint64_t stop = n + kTrips; n < stop; ++n) {
        send(n);
        wait(n);
      }
    };
    state.SetIterationTime(together(trips, [&, first = n] { echo(first); }) / kTrips);
  }
}

void two_atomics(benchmark::State& state) {
  struct alignas(64) Line {
    std::atomic<uint64_t> number{0};
  };
  Line there, back;
  round_trip(
      state,
      [&](uint64_t first) {
        Spin spin;
        for (uint64_t n = first + 1; n <= first + kTrips; ++n) {
          while (there.number.load(std::memory_order_acquire) != n) spin();
          back.number.store(n, std::memory_order_release);
        }
      },
      [&](uint64_t n) { there.number.store(n + 1, std::memory_order_release); },
      [&, spin = Spin()](uint64_t n) mutable {
        while (back.number.load(std::memory_order_acquire) != n + 1) spin();
      });
}

void two_rings(benchmark::State& state) {
  const auto there = SpscRing::create(64), back = SpscRing::create(64);
  SpscEntry mine = {};
  round_trip(
      state,
      [&](uint64_t) {
        SpscEntry entry;
        Spin spin;
        for (uint64_t n = 0; n < kTrips; ++n) {
          while (!there->try_pop(entry)) spin();
          back->try_push(entry);
        }
      },
      [&](uint64_t n) {
        mine.sequence = n;
        there->try_push(mine);
      },
      [&, spin = Spin()](uint64_t n) mutable {
        while (!back->try_pop(mine)) spin();
        if (mine.sequence != n) state.SkipWithError("another entry came back");
      });
}

double best(const std::vector<double>& times) { return *std::ranges::min_element(times); }

void turns(benchmark::internal::Benchmark* one) {
  one->Iterations(1)->Repetitions(100)->UseManualTime()->ComputeStatistics("best", best);
}

BENCHMARK(reference)->Apply(turns);
BENCHMARK(ring)->Apply(turns);
BENCHMARK(ring_in_batches)->Arg(8)->Arg(64)->Apply(turns);
BENCHMARK(two_atomics)->Apply(turns);
BENCHMARK(two_rings)->Apply(turns);

}  // namespace
}  // namespace aegis

BENCHMARK_MAIN();
