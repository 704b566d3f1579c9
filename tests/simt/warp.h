// What lanes of a warp exchange: the arithmetic of shuffles, votes, matches and reductions.
#pragma once

#include <array>
#include <cstdint>

namespace aegis::simt {

constexpr uint32_t kWarp = 32;

enum class WarpOp : uint8_t {
  sync,
  shuffle,
  shuffle_up,
  shuffle_down,
  shuffle_xor,
  ballot,
  match_any,
  match_all,
  reduce_add,
  reduce_min_signed,
  reduce_max_signed,
  reduce_min,
  reduce_max,
  reduce_and,
  reduce_or,
  reduce_xor,
};

/// "__shfl_down_sync": what CUDA calls it.
const char* name_of(WarpOp op);

/// What one lane brings.
struct WarpRequest {
  WarpOp op = WarpOp::sync;
  uint32_t mask = 0;
  uint64_t value = 0;     ///< bits of the operand
  uint32_t argument = 0;  ///< shuffles: source lane, delta or lane mask
  uint32_t width = kWarp;
};

struct WarpResult {
  uint64_t value = 0;
  bool predicate = false;  ///< match_all: all lanes agree
};

/// Lanes by number; entries of lanes outside the group are not looked at.
using WarpRequests = std::array<const WarpRequest*, kWarp>;
using WarpResults = std::array<WarpResult, kWarp>;

/// Throws Error unless `lane` may bring `request`: its own bit in the mask, a width of 1 to 32 that
/// is a power of two.
void check(const WarpRequest& request, uint32_t lane);

/// What the lanes of `group`, all with the same op and mask, take away. A shuffle from a lane that
/// is not in the group, which CUDA leaves undefined, gives 0x7f bytes.
WarpResults resolve(uint32_t group, const WarpRequests& requests);

}  // namespace aegis::simt
