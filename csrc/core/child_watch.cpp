#include "core/child_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace aegis {
namespace {

struct Registry {
  std::mutex mutex;  // held through a fork, so that the child finds it free
  std::vector<ForkListener*> listeners;
  std::shared_ptr<ChildWatch> child;  // of the fork that is under way
};

Registry& registry() {
  static Registry* const only = new Registry;  // outlives every static object that listens
  return *only;
}

}  // namespace

std::shared_ptr<ChildWatch> ChildWatch::make() noexcept {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return nullptr;
  Descriptor reading(ends[0]), writing(ends[1]);
  try {
    std::shared_ptr<ChildWatch> watch(new ChildWatch);
    watch->reading_ = std::move(reading);
    watch->writing_ = std::move(writing);
    return watch;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

bool ChildWatch::ended() const noexcept {
  pollfd look{reading_.get(), POLLIN, 0};
  return poll(&look, 1, 0) == 1;
}

void ForkListener::listen() {
  static const int registered =
      pthread_atfork(&ForkListener::prepare, [] { done(false); }, [] { done(true); });
  (void)registered;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.listeners.push_back(this);
}

void ForkListener::stop_listening() noexcept {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase(all.listeners, this);
}

void ForkListener::prepare() noexcept {
  Registry& all = registry();
  all.mutex.lock();
  for (ForkListener* listener : all.listeners) {
    if (!listener->before_fork()) continue;
    if (all.child == nullptr) all.child = ChildWatch::make();
    listener->watch(all.child);
  }
}

void ForkListener::done(bool in_child) noexcept {
  Registry& all = registry();
  if (all.child != nullptr && !in_child) all.child->writing_ = Descriptor();
  // What refers to it in the child are copies that may be destroyed there: the pipe must stay.
  if (in_child) new (std::nothrow) std::shared_ptr<ChildWatch>(all.child);
  all.child.reset();
  all.mutex.unlock();
}

}  // namespace aegis
