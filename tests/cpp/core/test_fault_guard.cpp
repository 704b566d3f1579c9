#include "core/fault_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <thread>

#include "core/mapping.h"
#include "temp_file.h"

namespace aegis {
namespace {

constexpr size_t kPages = 8;

/// A file of ones, mapped in two parts of four pages each.
class MappedFile {
 public:
  MappedFile() : range_(kPages * page_size()) {
    path_ = folder_.write("file", std::vector<char>(kPages * page_size(), 1));
    fd_ = Descriptor(open(path_.c_str(), O_RDWR));
    EXPECT_EQ(range_.map_file(0, range_.size(), fd_.get(), 0), 0);
  }

  std::vector<uintptr_t> parts() const {
    const auto begin = reinterpret_cast<uintptr_t>(range_.data());
    return {begin, begin + range_.size() / 2};
  }
  void cut(size_t bytes) { ASSERT_EQ(ftruncate(fd_.get(), static_cast<off_t>(bytes)), 0); }
  std::byte* data() const { return range_.data(); }
  size_t size() const { return range_.size(); }
  int read(size_t page) const {
    return std::to_integer<int>(
        *reinterpret_cast<volatile std::byte*>(range_.data() + page * page_size() + 9));
  }

 private:
  TempFolder folder_;
  std::string path_;
  Descriptor fd_;
  AddressRange range_;
};

TEST(FaultGuard, CutFileReadsAsZeroesAndMarksOnlyItsPart_case50) {
  MappedFile file;
  const FaultGuard guard(file.data(), file.size(), file.parts());
  EXPECT_EQ(file.read(6), 1);
  EXPECT_FALSE(guard.damaged(0));
  file.cut(5 * page_size());
  EXPECT_EQ(file.read(4), 1);
  EXPECT_FALSE(guard.damaged(1));
  EXPECT_EQ(file.read(6), 0);
  EXPECT_EQ(file.read(7), 0);
  EXPECT_TRUE(guard.damaged(1));
  EXPECT_FALSE(guard.damaged(0));
}

TEST(FaultGuard, DamageStaysWhenTheFileGrowsBack_case50) {
  MappedFile file;
  const FaultGuard guard(file.data(), file.size(), file.parts());
  file.cut(0);
  EXPECT_EQ(file.read(1), 0);
  file.cut(file.size());
  EXPECT_TRUE(guard.damaged(0));
  EXPECT_FALSE(guard.damaged(1));
}

TEST(FaultGuard, SeveralThreadsMayFaultAtOnce_case50) {
  MappedFile file;
  const FaultGuard guard(file.data(), file.size(), file.parts());
  file.cut(0);
  std::atomic<int> sum{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (size_t page = 0; page < kPages; ++page) sum += file.read((page + 2 * i) % kPages);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, 0);
  EXPECT_TRUE(guard.damaged(0) && guard.damaged(1));
}

TEST(FaultGuard, SlotsAreFreedAndCounted) {
  const Mapping memory(page_size());
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const std::vector<uintptr_t> parts{begin};
  for (int round = 0; round < 2; ++round) {
    std::deque<FaultGuard> guards;
    for (size_t i = 0; i < FaultGuard::kCapacity; ++i) {
      guards.emplace_back(memory.data(), memory.size(), parts);
    }
    EXPECT_TRUE(contains(
        message_of<std::runtime_error>([&] { FaultGuard(memory.data(), memory.size(), parts); }),
        "expected at most 4096"));
  }
}

// The cases below change the process's SIGBUS handler, so each runs in a process of its own.

/// Forks, runs `body` in the child, and returns its wait status; the child exits with `body()`.
template <class Body>
int in_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGBUS, SIG_DFL);
    _exit(body());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

bool killed_by_sigbus(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS; }
bool exited_well(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

sigjmp_buf jump;
volatile uintptr_t seen_address;
void jump_back(int, siginfo_t* info, void*) {
  seen_address = reinterpret_cast<uintptr_t>(info->si_addr);
  siglongjmp(jump, 1);
}

/// Whether reading the file ends in jump_back(). A function of its own: a jump may clobber locals.
__attribute__((noinline)) bool jumps_back(const MappedFile& file) {
  if (sigsetjmp(jump, 1) != 0) return true;
  file.read(1);
  return false;
}

/// What Python's faulthandler does: put the handler before it back, and raise the signal again.
struct sigaction before_raiser;
void raise_again(int, siginfo_t*, void*) {
  sigaction(SIGBUS, &before_raiser, nullptr);
  raise(SIGBUS);
}

void install(void (*handler)(int, siginfo_t*, void*), struct sigaction* before = nullptr) {
  struct sigaction action{};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGBUS, &action, before);
}

TEST(FaultGuardHandlers, ForeignFaultStillKills) {
  EXPECT_TRUE(killed_by_sigbus(in_child([] {
    MappedFile guarded, foreign;
    const FaultGuard guard(guarded.data(), guarded.size(), guarded.parts());
    foreign.cut(0);
    return foreign.read(1) + 2;
  })));
}

TEST(FaultGuardHandlers, ForeignFaultReachesTheHandlerBefore) {
  EXPECT_TRUE(exited_well(in_child([] {
    install(jump_back);
    MappedFile guarded, foreign;
    const FaultGuard guard(guarded.data(), guarded.size(), guarded.parts());
    foreign.cut(0);
    if (!jumps_back(foreign)) return 2;
    const auto page = reinterpret_cast<uintptr_t>(foreign.data()) + page_size();
    return seen_address - page < page_size() ? 0 : 1;
  })));
}

TEST(FaultGuardHandlers, GuardsAgainOnceArmedAfterAForeignFault_case50) {
  EXPECT_TRUE(exited_well(in_child([] {
    install(jump_back);
    MappedFile guarded, foreign;
    const FaultGuard guard(guarded.data(), guarded.size(), guarded.parts());
    foreign.cut(0);
    for (int round = 0; round < 3; ++round) {
      arm_fault_handler();
      if (!jumps_back(foreign)) return 1;
    }
    arm_fault_handler();
    guarded.cut(0);
    return guarded.read(1) == 0 && guard.damaged(0) ? 0 : 1;
  })));
}

TEST(FaultGuardHandlers, LaterHandlerThatRaisesAgainIsSurvived_case50) {
  EXPECT_TRUE(exited_well(in_child([] {
    MappedFile file;
    const FaultGuard guard(file.data(), file.size(), file.parts());
    install(raise_again, &before_raiser);
    file.cut(0);
    return file.read(1) == 0 && file.read(5) == 0 && guard.damaged(0) ? 0 : 1;
  })));
}

TEST(FaultGuardHandlers, LaterHandlerThatRaisesAgainStillKillsOnForeignFaults) {
  for (bool armed : {false, true}) {
    EXPECT_TRUE(killed_by_sigbus(in_child([armed] {
      MappedFile guarded, foreign;
      const FaultGuard guard(guarded.data(), guarded.size(), guarded.parts());
      install(raise_again, &before_raiser);
      if (armed) arm_fault_handler();
      foreign.cut(0);
      return foreign.read(1) + 2;
    })));
  }
}

TEST(FaultGuardHandlers, EarlierHandlerThatRaisesAgainDoesNotSeeGuardedFaults_case50) {
  EXPECT_TRUE(exited_well(in_child([] {
    install(raise_again, &before_raiser);
    MappedFile file;
    const FaultGuard guard(file.data(), file.size(), file.parts());
    file.cut(0);
    struct sigaction now{};
    const int value = file.read(1);
    sigaction(SIGBUS, nullptr, &now);
    return value == 0 && now.sa_sigaction != before_raiser.sa_sigaction ? 0 : 1;
  })));
}

TEST(FaultGuardHandlers, SignalFromAnotherProcessKills) {
  for (bool raiser : {false, true}) {
    EXPECT_TRUE(killed_by_sigbus(in_child([raiser]() -> int {
      MappedFile file;
      if (raiser) install(raise_again, &before_raiser);
      const FaultGuard guard(file.data(), file.size(), file.parts());
      const pid_t self = getpid();
      if (fork() == 0) _exit(kill(self, SIGBUS));
      for (;;) pause();
    })));
  }
}

TEST(FaultGuardHandlers, EndlessRaisingIsNotPassedOverForEver) {
  EXPECT_TRUE(killed_by_sigbus(in_child([] {
    MappedFile file;
    const FaultGuard guard(file.data(), file.size(), file.parts());
    for (int i = 0; i < 100; ++i) raise(SIGBUS);
    return 1;
  })));
}

}  // namespace
}  // namespace aegis
