// Running a piece of a test in a forked child.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace aegis {

enum class Child { ok, wrong, hung, crashed };

/// Forks and runs `f` in the child, which exits without running destructors or exit handlers. A
/// child that is not done after 20 s ends by SIGALRM, so that a deadlock there cannot hang the
/// test.
template <class F>
Child in_child(F&& f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(f() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return Child::crashed;
  if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGALRM ? Child::hung : Child::crashed;
  if (!WIFEXITED(status) || WEXITSTATUS(status) > 1) return Child::crashed;
  return WEXITSTATUS(status) == 0 ? Child::ok : Child::wrong;
}

}  // namespace aegis
