#include "core/fork.h"

#include <pthread.h>

#include <atomic>

namespace aegis {
namespace {

std::atomic<uint64_t> generation{0};

const int registered =
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint64_t fork_generation() {
  (void)registered;
  return generation.load(std::memory_order_relaxed);
}

}  // namespace aegis
