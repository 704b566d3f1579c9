#include "core/spsc_ring.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/fork.h"

namespace aegis {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr uint64_t kMostEntries = uint64_t{1} << 30;
constexpr auto kSpin = 50us;
constexpr std::chrono::nanoseconds kShortestSleep = 50us, kLongestSleep = 1ms;
constexpr auto kLook = 10ms;  // between two looks whether the other process lives: system calls

/// When a process started, in clock ticks since boot; 0 where it is none, or has ended and waits
/// for its parent to ask. Field 22 of /proc/<id>/stat; the state is field 3, behind a name in
/// parentheses that may hold anything.
uint64_t start_time(uint64_t id) noexcept {
  char path[64], text[1024];
  std::snprintf(path, sizeof path, "/proc/%llu/stat", static_cast<unsigned long long>(id));
  const Descriptor file(open(path, O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return 0;
  const ssize_t size = read(file.get(), text, sizeof text - 1);
  if (size <= 0) return 0;
  text[size] = '\0';
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X') return 0;
  ++at;
  for (int field = 2; field < 22; ++field) {
    at = std::strchr(at, ' ');
    if (at == nullptr) return 0;
    ++at;
  }
  return std::strtoull(at, nullptr, 10);
}

}  // namespace

std::shared_ptr<SpscRing> SpscRing::create(uint64_t capacity, bool shared) {
  check<std::invalid_argument>(1 <= capacity && capacity <= kMostEntries,
                               "capacity: expected 1 to ", kMostEntries, " entries, got ",
                               capacity);
  capacity = std::bit_ceil(capacity);
  Mapping memory(sizeof(Shared) + capacity * sizeof(SpscEntry), {.shared = shared});
  auto* head = new (memory.data()) Shared{};
  head->capacity = capacity;
  head->magic = kMagic;
  return std::shared_ptr<SpscRing>(new SpscRing(std::move(memory), Descriptor(), capacity));
}

std::shared_ptr<SpscRing> SpscRing::attach(int fd) {
  Descriptor own(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  struct stat about = {};
  check<std::runtime_error>(own.get() >= 0 && fstat(own.get(), &about) == 0,
                            "fd: expected the descriptor of a ring, got ", fd);
  uint64_t words[2] = {};
  const bool read = pread(own.get(), words, sizeof words, 0) == sizeof words;
  const auto size = static_cast<uint64_t>(about.st_size);
  const bool whole = read && words[0] == kMagic && std::has_single_bit(words[1]) &&
                     words[1] <= kMostEntries &&
                     size == round_up(sizeof(Shared) + words[1] * sizeof(SpscEntry), page_size());
  check<std::runtime_error>(whole, "fd: expected the descriptor of a ring, got that of ", size,
                            " other bytes");
  Mapping memory = Mapping::of_file(own.get(), 0, size);
  return std::shared_ptr<SpscRing>(new SpscRing(std::move(memory), std::move(own), words[1]));
}

SpscRing::SpscRing(Mapping memory, Descriptor attached, uint64_t capacity)
    : memory_(std::move(memory)),
      attached_(std::move(attached)),
      shared_(std::launder(reinterpret_cast<Shared*>(memory_.data()))),
      entries_(std::launder(reinterpret_cast<SpscEntry*>(memory_.data() + sizeof(Shared)))),
      mask_(capacity - 1) {
  producer_.seen = shared_->head.load(std::memory_order_acquire);
}

/// Returns whether it was not registered before, or another process was since.
bool SpscRing::register_as(Process& process, Side& side) noexcept {
  const uint64_t generation = fork_generation() + 1;
  const bool same = side.registered == generation;
  if (same && process.id.load(std::memory_order_relaxed) == side.id) return false;
  const auto id = static_cast<uint64_t>(getpid());
  side.registered = generation;
  side.id = id;
  process.id.store(0, std::memory_order_relaxed);  // nobody, while the two do not belong together
  process.started.store(start_time(id), std::memory_order_release);
  process.id.store(id, std::memory_order_release);
  return true;
}

/// The producer before may have been killed when entries had come and `tail` did not say so yet.
void SpscRing::count_what_came() noexcept {
  uint64_t tail = shared_->tail.load(std::memory_order_relaxed);
  const uint64_t end = tail + capacity();
  while (tail != end && has(tail)) ++tail;
  shared_->tail.store(tail, std::memory_order_release);
}

template <class Ready>
SpscRing::Wait SpscRing::wait(std::chrono::nanoseconds limit, const Process& other, bool drains,
                              Ready ready) noexcept {
  // The last look comes after the news that there is no more to come, so that nothing is missed.
  const auto last = [&](Wait end) { return ready() ? Wait::ready : end; };
  if (!drains && closed()) return Wait::closed;
  if (ready()) return Wait::ready;
  const Clock::time_point start = Clock::now();
  Clock::time_point look = start + kLook;
  std::chrono::nanoseconds sleep = kShortestSleep;
  while (true) {
    if (closed()) return drains ? last(Wait::closed) : Wait::closed;
    const Clock::time_point now = Clock::now();
    if (now - start >= limit) return last(Wait::timeout);
    if (now >= look) {
      const uint64_t id = other.id.load(std::memory_order_acquire);
      const uint64_t started = other.started.load(std::memory_order_acquire);
      if (id != 0 && start_time(id) != started && other.id.load() == id) return last(Wait::gone);
      look = now + kLook;
    }
    if (now - start < kSpin) {
      sched_yield();
    } else {
      const auto nap = std::min<std::chrono::nanoseconds>(sleep, limit - (now - start));
      const timespec time = {0, std::max<long>(nap.count(), 1)};
      if (nanosleep(&time, nullptr) != 0 && errno == EINTR) return last(Wait::timeout);
      sleep = std::min(2 * sleep, kLongestSleep);
    }
    if (ready()) return Wait::ready;
  }
}

SpscRing::Wait SpscRing::wait_room(std::chrono::nanoseconds limit) noexcept {
  be_producer();
  return wait(limit, shared_->consumer, false, [&] {
    producer_.seen = shared_->head.load(std::memory_order_acquire);
    return shared_->tail.load(std::memory_order_relaxed) - producer_.seen < capacity();
  });
}

SpscRing::Wait SpscRing::wait_entry(std::chrono::nanoseconds limit) noexcept {
  be_consumer();
  return wait(limit, shared_->producer, true,
              [&] { return has(shared_->head.load(std::memory_order_relaxed)); });
}

}  // namespace aegis
