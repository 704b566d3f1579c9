// Memory that a forked child still sees must not change under it: noticing forks, and their end.
#pragma once

#include <memory>

#include "core/descriptor.h"

namespace aegis {

/// A forked child, and its own children, as their parent sees them.
class ChildWatch {
 public:
  /// Whether they have all ended, or run other programs by now. One system call. From any thread.
  bool ended() const noexcept;

 private:
  friend class ForkListener;
  ChildWatch() = default;
  static std::shared_ptr<ChildWatch> make() noexcept;  // null without descriptors or memory

  // A pipe nobody writes to. The child keeps the writing end open for as long as it lives; when the
  // last copy is closed, the reading end hangs up.
  Descriptor reading_, writing_;
};

/// An object that hears of every fork() of this process.
class ForkListener {
 public:
  ForkListener() = default;
  ForkListener(const ForkListener&) = delete;
  ForkListener& operator=(const ForkListener&) = delete;

 protected:
  ~ForkListener() = default;

  /// From here on the members below may be called, until stop_listening() returns: the object must
  /// be complete. A final class calls them at the end of its making and first in its destructor.
  void listen();
  void stop_listening() noexcept;

  /// Called in the forking thread right before the child comes to be. Returns whether the child
  /// will see memory that must not change; then watch() follows.
  virtual bool before_fork() noexcept = 0;

  /// `child` is null where the system has no descriptors left: the child must be taken to live for
  /// ever.
  virtual void watch(const std::shared_ptr<const ChildWatch>& child) noexcept = 0;

 private:
  static void prepare() noexcept;
  static void done(bool in_child) noexcept;
};

}  // namespace aegis
