#include "core/fault_guard.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "core/mapping.h"

namespace aegis {

/// What the signal handler reads. It may run in the middle of anything on any thread, so all it
/// meets are lock-free atomics, and all it calls are system calls. Nothing here is on a hot path:
/// every access is sequentially consistent, which makes the order of the generation counters below
/// hold without fences.
struct FaultTable {
  struct Slot {
    /// Odd while the slot holds a range. A reader that sees the same odd value before and after has
    /// read one range, not halves of two.
    std::atomic<uint64_t> generation{0};
    std::atomic<uintptr_t> begin{0};
    std::atomic<uintptr_t> end{0};
    std::atomic<FaultGuard*> guard{nullptr};
  };
  static_assert(std::atomic<uintptr_t>::is_always_lock_free);
  static_assert(std::atomic<bool>::is_always_lock_free);

  static constexpr int kMaxPassedOver = 64;

  std::array<Slot, FaultGuard::kCapacity> slots{};
  std::atomic<size_t> used{0};         ///< slots at or above were never taken
  std::atomic<size_t> page{0};         ///< page_size(), which a handler could not safely ask for
  std::atomic<int> foreign_faults{0};  ///< since the handler was last installed
  std::atomic<int> passed_over{0};     ///< raise(SIGBUS) since the last fault that was mended

  /// Serialises whoever changes the table or the disposition; the handler takes no lock.
  std::mutex mutex;
  /// The disposition to go back to. The handler reads it: `previous_at` is the one in force, and
  /// the other one is written before the index moves.
  std::array<struct sigaction, 2> previous{};
  std::atomic<size_t> previous_at{0};

  void add(FaultGuard* guard);
  void remove(const FaultGuard& guard);

  /// The rest runs in the handler. mend() returns whether the address was under guard and has
  /// memory now.
  bool mend(uintptr_t address);
  bool zero_from(uintptr_t address, FaultGuard& guard);
  bool pass_over(const siginfo_t& info);
  void step_back();
};

namespace {

/// Ready before any code runs and never destroyed: a fault may come while the process exits.
constinit FaultTable table;
static_assert(std::is_trivially_destructible_v<FaultTable>);

/// SIGBUS that some process sent, as opposed to a fault of this thread.
bool was_sent(const siginfo_t& info) { return info.si_code <= 0; }

void on_sigbus(int, siginfo_t* info, void*) {
  const int saved = errno;
  if (was_sent(*info)) {
    if (!table.pass_over(*info)) {
      table.step_back();
      syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGBUS);  // delivered on return
    }
  } else if (table.mend(reinterpret_cast<uintptr_t>(info->si_addr))) {
    table.passed_over.store(0);
  } else {
    table.step_back();
  }
  errno = saved;
}

}  // namespace

bool FaultTable::mend(uintptr_t address) {
  const size_t last = used.load();
  for (size_t i = 0; i < last; ++i) {
    const Slot& slot = slots[i];
    const uint64_t generation = slot.generation.load();
    const uintptr_t begin = slot.begin.load(), end = slot.end.load();
    FaultGuard* guard = slot.guard.load();
    if (generation % 2 == 0 || slot.generation.load() != generation) continue;
    if (begin <= address && address < end) return zero_from(address, *guard);
  }
  return false;
}

bool FaultTable::zero_from(uintptr_t address, FaultGuard& guard) {
  const std::vector<uintptr_t>& starts = guard.part_starts_;
  size_t part = 0;
  while (part + 1 < starts.size() && starts[part + 1] <= address) ++part;
  // To the end of the part rather than one page: beyond the end of a file everything faults, and a
  // mapping per page could exhaust the kernel's count of them.
  const uintptr_t from = address / page.load() * page.load();
  const uintptr_t to = part + 1 < starts.size() ? starts[part + 1] : guard.end_;
  // Before the memory: whoever reads the zeroes must already find the flag.
  guard.damaged_[part].store(true);
  const long mapped = syscall(SYS_mmap, from, to - from, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  return mapped == static_cast<long>(from);
}

bool FaultTable::pass_over(const siginfo_t& info) {
  // Only while no fault was given away: the handler that got it may be raising it again to die.
  return info.si_code == SI_TKILL && info.si_pid == getpid() && foreign_faults.load() == 0 &&
         passed_over.fetch_add(1) < kMaxPassedOver;
}

void FaultTable::step_back() {
  struct sigaction fallback{};
  fallback.sa_handler = SIG_DFL;
  const bool first = foreign_faults.fetch_add(1) == 0;
  sigaction(SIGBUS, first ? &previous[previous_at.load()] : &fallback, nullptr);
}

void FaultTable::add(FaultGuard* guard) {
  const std::lock_guard lock(mutex);
  page.store(page_size());
  size_t at = 0;
  while (at < slots.size() && slots[at].generation.load() % 2 == 1) ++at;
  check<std::runtime_error>(at < slots.size(), "expected at most ", slots.size(),
                            " token stores open at once");
  Slot& slot = slots[at];
  slot.guard.store(guard);
  slot.begin.store(guard->begin_);
  slot.end.store(guard->end_);
  slot.generation.fetch_add(1);
  used.store(std::max(used.load(), at + 1));
  guard->slot_ = at;
}

void FaultTable::remove(const FaultGuard& guard) {
  const std::lock_guard lock(mutex);
  slots[guard.slot_].generation.fetch_add(1);
}

FaultGuard::FaultGuard(std::byte* begin, size_t bytes, std::vector<uintptr_t> part_starts)
    : begin_(reinterpret_cast<uintptr_t>(begin)),
      end_(begin_ + bytes),
      part_starts_(std::move(part_starts)),
      damaged_(std::make_unique<std::atomic<bool>[]>(part_starts_.size())) {
  check<std::invalid_argument>(!part_starts_.empty() && part_starts_.front() == begin_,
                               "part_starts: expected the first part at the range's begin");
  table.add(this);
  arm_fault_handler();
}

FaultGuard::~FaultGuard() { table.remove(*this); }

void arm_fault_handler() {
  static const int once = pthread_atfork([] { table.mutex.lock(); }, [] { table.mutex.unlock(); },
                                         [] { table.mutex.unlock(); });
  (void)once;  // a child must not inherit the mutex locked by a thread it does not have
  const std::lock_guard lock(table.mutex);
  struct sigaction current{};
  sigaction(SIGBUS, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_sigbus) return;
  const size_t other = 1 - table.previous_at.load();
  table.previous[other] = current;
  table.previous_at.store(other);
  table.foreign_faults.store(0);
  struct sigaction ours{};
  ours.sa_sigaction = on_sigbus;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace aegis
