#include "core/background_chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/child.h"
#include "core/errors.h"

namespace aegis {
namespace {

using namespace std::chrono_literals;

/// What the thread calls, held back until it is let go: shows what waits meanwhile.
class Gate {
 public:
  BackgroundChain::Add add() {
    return [opened = opened_.get_future().share()](auto& chain, auto step, auto loss, auto& parts) {
      opened.wait_for(60s);
      chain.add(step, loss, parts);
    };
  }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> opened_;
};

std::vector<std::byte> bytes(size_t size, int64_t step) {
  return std::vector<std::byte>(size, static_cast<std::byte>(step));
}

TEST(BackgroundChain, HashesWhatWasThereWhenItWasAdded) {
  for (int bits : {32, 64}) {
    IntegrityChain want(bits, true);
    BackgroundChain chain(bits, true);
    std::vector<std::byte> first, second;
    for (int64_t step = 0; step < 3 * BackgroundChain::kRecords; ++step) {
      first =
          bytes(static_cast<size_t>(step * step) % 700, step);  // grows and shrinks; one is empty
      second = bytes(40, -step);
      want.add(step, 0.25, {first, second, {}});
      chain.add(step, 0.25, {first, second, {}});
      std::fill(first.begin(), first.end(), std::byte{0xEE});
      std::fill(second.begin(), second.end(), std::byte{0xEE});
    }
    EXPECT_EQ(chain.state().value, want.state().value);
    EXPECT_EQ(chain.state().records, want.state().records);
  }
}

TEST(BackgroundChain, GoesOnFromAState) {
  IntegrityChain want(64, false);
  want.add(1, 0.5, {});
  BackgroundChain chain(64, false);
  chain.add(7, 0.0, {});
  chain.restore(want.state());
  want.add(2, 0.5, {});
  chain.add(2, 0.5, {});
  EXPECT_EQ(chain.state().value, want.state().value);
  EXPECT_EQ(chain.state().records, 2u);
  EXPECT_THROW(chain.restore({32, false, 0, 0}), std::invalid_argument);
  EXPECT_EQ(chain.state().records, 2u);
  EXPECT_THROW(BackgroundChain(16, true), std::invalid_argument);
}

TEST(BackgroundChain, WaitsAreBounded) {
  Gate gate;
  BackgroundChain chain(32, true, gate.add());
  EXPECT_TRUE(chain.wait_idle(0ns));
  for (uint32_t i = 0; i < BackgroundChain::kRecords; ++i) {
    EXPECT_TRUE(chain.wait_room(0ns));
    chain.add(i, 0.0, {});
  }
  EXPECT_FALSE(chain.wait_room(0ns));
  EXPECT_FALSE(chain.wait_room(1ms));
  EXPECT_FALSE(chain.wait_idle(1ms));
  gate.open();
  EXPECT_TRUE(chain.wait_room(60s));
  EXPECT_TRUE(chain.wait_idle(std::chrono::nanoseconds::max()));
  EXPECT_EQ(chain.state().records, uint64_t{BackgroundChain::kRecords});
}

TEST(BackgroundChain, CloseHashesWhatWaitsAndRefusesMore) {
  Gate gate;
  BackgroundChain chain(32, true, gate.add());
  IntegrityChain want(32, true);
  for (int64_t step = 0; step < 5; ++step) {
    chain.add(step, 1.0, {});
    want.add(step, 1.0, {});
  }
  gate.open();
  chain.close();
  chain.close();
  EXPECT_EQ(chain.state().value, want.state().value);
  EXPECT_EQ(message_of<std::runtime_error>([&] { chain.add(5, 1.0, {}); }),
            "IntegrityChain: expected to be open, but close() was called");
  EXPECT_EQ(chain.state().records, 5u);
}

TEST(BackgroundChain, AnErrorOfTheThreadIsToldToEveryCall) {
  BackgroundChain chain(32, true, [](auto& into, auto step, auto loss, auto& parts) {
    if (step == 3) throw std::length_error("no such record");
    into.add(step, loss, parts);
  });
  const std::string want = "IntegrityChain: the background thread failed: no such record";
  for (int64_t step = 0; step < 4; ++step) chain.add(step, 0.0, {});
  EXPECT_TRUE(chain.wait_idle(60s));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(message_of<std::runtime_error>([&] { chain.add(4, 0.0, {}); }), want);
    EXPECT_EQ(message_of<std::runtime_error>([&] { (void)chain.state(); }), want);
    EXPECT_EQ(message_of<std::runtime_error>([&] { chain.restore({32, true, 0, 0}); }), want);
  }
  chain.close();
  EXPECT_EQ(message_of<std::runtime_error>([&] { (void)chain.state(); }), want);
}

TEST(BackgroundChain, ACallThatWaitsForRoomHearsOfAnError) {
  Gate gate;
  BackgroundChain chain(32, true,
                        [wait = gate.add()](auto& into, auto step, auto loss, auto& parts) {
                          wait(into, step, loss, parts);
                          throw 7;
                        });
  for (uint32_t i = 0; i < BackgroundChain::kRecords; ++i) chain.add(i, 0.0, {});
  auto waiting = std::async(std::launch::async, [&] {
    return message_of<std::runtime_error>([&] { chain.add(99, 0.0, {}); });
  });
  gate.open();
  EXPECT_EQ(waiting.get(), "IntegrityChain: the background thread failed: an unknown exception");
}

TEST(BackgroundChain, ThreadsTakeTurnsAndCloseComesAtAnyTime) {
  for (int round = 0; round < 20; ++round) {
    BackgroundChain chain(32, true);
    std::atomic<uint64_t> added{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&] {
        const std::vector<std::byte> batch = bytes(300, 1);
        try {
          for (int i = 0; i < 200; ++i) {
            chain.add(i, 0.0, {batch});
            ++added;
            if (i % 50 == 0) (void)chain.state();
          }
        } catch (const std::runtime_error&) {  // closed
        }
      });
    }
    if (round % 2 == 0) chain.close();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(chain.state().records, added.load());
  }
}

TEST(BackgroundChain, MayFailWhileItIsClosedAndAddedTo) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<bool> closing = false;
    BackgroundChain chain(32, true, [&](auto&&...) {
      while (!closing) std::this_thread::yield();
      throw std::logic_error("of the thread");
    });
    chain.add(0, 0.0, {});
    std::thread closer([&] {
      closing = true;
      chain.close();
    });
    std::string told;
    while (told.empty()) {
      try {
        chain.add(1, 0.0, {});
      } catch (const std::runtime_error& error) {
        told = error.what();
      }
    }
    closer.join();
    EXPECT_TRUE(told.starts_with("IntegrityChain: ")) << told;
    EXPECT_EQ(message_of<std::runtime_error>([&] { (void)chain.state(); }),
              "IntegrityChain: the background thread failed: of the thread");
  }
}

TEST(BackgroundChain, IsMissedInAForkedChild) {
  Gate gate;
  BackgroundChain chain(32, true, gate.add());
  chain.add(1, 0.0, {});
  EXPECT_EQ(in_child([&] {
              const std::string want =
                  "IntegrityChain: the background thread does not run in this process";
              const bool told =
                  message_of<std::runtime_error>([&] { chain.add(2, 0.0, {}); }) == want &&
                  message_of<std::runtime_error>([&] { (void)chain.state(); }) == want &&
                  message_of<std::runtime_error>([&] { chain.wait_room(1ms); }) == want;
              chain.close();
              chain.~BackgroundChain();
              return told;
            }),
            Child::ok);
  gate.open();
  EXPECT_EQ(chain.state().records, 1u);
}

}  // namespace
}  // namespace aegis
