// The ring between two threads beside a plain single-producer queue of the same entries, and its
// round trip beside two atomics. The reference follows rigtorp::SPSCQueue: indices that wrap, each
// with a copy of the other side's in its own line, and slots that are written one by one.
#include <benchmark/benchmark.h>
#include <sched.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "core/spsc_ring.h"

namespace aegis {
namespace {

constexpr size_t kCapacity = 4096;
constexpr uint64_t kEntries = uint64_t{1} << 20;  // of one turn
constexpr int kPatience = 200;                    // looks before the other thread may have the CPU

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

/// One by one: `push` and `pop` return whether they could.
template <class Push, class Pop>
void transfer(benchmark::State& state, Push push, Pop pop) {
  for (auto _ : state) {
    std::thread producer([&] {
      SpscEntry entry = {};
      Spin spin;
      for (uint64_t n = 0; n < kEntries; ++n) {
        entry.sequence = n;
        while (!push(entry)) spin();
      }
    });
    SpscEntry entry;
    Spin spin;
    uint64_t sum = 0;
    for (uint64_t n = 0; n < kEntries; ++n) {
      while (!pop(entry)) spin();
      sum += entry.sequence;
    }
    producer.join();
    if (sum != kEntries * (kEntries - 1) / 2) state.SkipWithError("entries were lost");
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kEntries));
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
    std::thread producer([&] {
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
    });
    std::vector<SpscEntry> batch(size);
    Spin spin;
    uint64_t sum = 0;
    for (uint64_t n = 0; n < kEntries;) {
      const size_t popped = queue->try_pop(std::span(batch));
      if (popped == 0) spin();
      for (size_t i = 0; i < popped; ++i) sum += batch[i].sequence;
      n += popped;
    }
    producer.join();
    if (sum != kEntries * (kEntries - 1) / 2) state.SkipWithError("entries were lost");
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kEntries));
}

constexpr uint64_t kTrips = 20'000;

/// `send(n)` here is answered there; `wait(n)` returns once the n-th answer has come.
template <class Echo, class Send, class Wait>
void round_trip(benchmark::State& state, Echo echo, Send send, Wait wait) {
  uint64_t n = 0;
  for (auto _ : state) {
    std::thread other([&, first = n] { echo(first); });
    for (const uint64_t stop = n + kTrips; n < stop; ++n) {
      send(n);
      wait(n);
    }
    other.join();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kTrips));
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

BENCHMARK(reference)->UseRealTime();
BENCHMARK(ring)->UseRealTime();
BENCHMARK(ring_in_batches)->Arg(8)->Arg(64)->UseRealTime();
BENCHMARK(two_atomics)->UseRealTime();
BENCHMARK(two_rings)->UseRealTime();

}  // namespace
}  // namespace aegis

BENCHMARK_MAIN();
