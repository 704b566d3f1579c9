// Threads of the library take no signals.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace aegis {

/// Threads that are started while this lives take no signals, so that Ctrl-C interrupts the
/// consumer; those that a fault in a thread raises stay deliverable there.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t signals;
    sigfillset(&signals);
    for (int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&signals, fault);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace aegis
