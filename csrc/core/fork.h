// Threads do not survive fork(): objects that own some must notice that they are in a child.
#pragma once

#include <cstdint>

namespace aegis {

/// Changes in the child of every fork(). An object that keeps the value from its construction and
/// finds another one later is a copy in a child process: its threads do not exist there and its
/// locks may be held for ever. Costs one relaxed load. Safe from any thread.
uint64_t fork_generation();

}  // namespace aegis
