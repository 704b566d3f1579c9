#include "core/fork.h"

#include <gtest/gtest.h>

#include "core/child.h"

namespace aegis {
namespace {

TEST(Fork, GenerationIsNewInEveryChildAndSettledInTheParent) {
  const uint64_t mine = fork_generation();
  EXPECT_EQ(in_child([&] {
              const uint64_t childs = fork_generation();
              if (childs == mine || fork_generation() != childs) return false;
              const Child grandchild = in_child(
                  [&] { return fork_generation() != mine && fork_generation() != childs; });
              return grandchild == Child::ok && fork_generation() == childs;
            }),
            Child::ok);
  EXPECT_EQ(fork_generation(), mine);
}

}  // namespace
}  // namespace aegis
