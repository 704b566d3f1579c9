#include "simt/warp.h"

#include <algorithm>
#include <bit>
#include <string>

#include "simt/executor.h"

namespace aegis::simt {
namespace {

constexpr uint64_t kUndefined = 0x7f7f7f7f7f7f7f7fu;

bool has(uint32_t group, uint32_t lane) { return group >> lane & 1; }

/// The lane a shuffle reads, its own where the source lies outside its segment of `width` lanes.
uint32_t source_of(const WarpRequest& request, uint32_t lane) {
  const uint32_t first = lane & ~(request.width - 1), last = first + request.width - 1;
  const uint32_t argument = request.argument % kWarp;
  switch (request.op) {
    case WarpOp::shuffle_up:
      return lane >= first + argument ? lane - argument : lane;
    case WarpOp::shuffle_down:
      return lane + argument <= last ? lane + argument : lane;
    case WarpOp::shuffle_xor:  // earlier segments may be read, later ones not
      return (lane ^ argument) <= last ? lane ^ argument : lane;
    default:
      return first + (argument & (request.width - 1));
  }
}

uint64_t combine(WarpOp op, uint64_t a, uint64_t b) {
  const auto x = static_cast<uint32_t>(a), y = static_cast<uint32_t>(b);
  switch (op) {
    case WarpOp::reduce_add:
      return x + y;
    case WarpOp::reduce_min_signed:
      return static_cast<uint32_t>(std::min(static_cast<int32_t>(x), static_cast<int32_t>(y)));
    case WarpOp::reduce_max_signed:
      return static_cast<uint32_t>(std::max(static_cast<int32_t>(x), static_cast<int32_t>(y)));
    case WarpOp::reduce_min:
      return std::min(x, y);
    case WarpOp::reduce_max:
      return std::max(x, y);
    case WarpOp::reduce_and:
      return x & y;
    case WarpOp::reduce_or:
      return x | y;
    default:
      return x ^ y;
  }
}

/// The lanes of `group` that brought `value`.
uint32_t lanes_with(uint64_t value, uint32_t group, const WarpRequests& requests) {
  uint32_t lanes = 0;
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    if (has(group, lane) && requests[lane]->value == value) lanes |= 1u << lane;
  }
  return lanes;
}

/// The operation that gives every lane the same.
WarpResult collective(uint32_t group, const WarpRequests& requests) {
  const WarpRequest& first = *requests[std::countr_zero(group)];
  if (first.op == WarpOp::sync) return {};
  if (first.op == WarpOp::ballot) return {lanes_with(1, group, requests)};
  if (first.op == WarpOp::match_all) {
    const bool all = lanes_with(first.value, group, requests) == group;
    return {all ? group : 0, all};
  }
  uint64_t value = first.value;
  for (uint32_t lane = std::countr_zero(group) + 1; lane < kWarp; ++lane) {
    if (has(group, lane)) value = combine(first.op, value, requests[lane]->value);
  }
  return {value};
}

}  // namespace

const char* name_of(WarpOp op) {
  static constexpr const char* kNames[] = {
      "__syncwarp",        "__shfl_sync",       "__shfl_up_sync",
      "__shfl_down_sync",  "__shfl_xor_sync",   "a vote",
      "__match_any_sync",  "__match_all_sync",  "__reduce_add_sync",
      "__reduce_min_sync", "__reduce_max_sync", "__reduce_min_sync",
      "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync",
      "__reduce_xor_sync"};
  return kNames[static_cast<int>(op)];
}

void check(const WarpRequest& request, uint32_t lane) {
  if (!has(request.mask, lane)) {
    throw Error(std::string(name_of(request.op)) + ": mask: expected the bit of the calling lane " +
                std::to_string(lane) + ", got mask " + std::to_string(request.mask));
  }
  if (!std::has_single_bit(request.width) || request.width > kWarp) {
    throw Error(std::string(name_of(request.op)) + ": width: expected 1, 2, 4, 8, 16 or 32, got " +
                std::to_string(request.width));
  }
}

WarpResults resolve(uint32_t group, const WarpRequests& requests) {
  WarpResults results;
  const WarpOp op = requests[std::countr_zero(group)]->op;
  const bool shuffles = WarpOp::shuffle <= op && op <= WarpOp::shuffle_xor;
  const WarpResult same =
      shuffles || op == WarpOp::match_any ? WarpResult{} : collective(group, requests);
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    if (!has(group, lane)) continue;
    if (shuffles) {
      const uint32_t source = source_of(*requests[lane], lane);
      results[lane].value = has(group, source) ? requests[source]->value : kUndefined;
    } else if (op == WarpOp::match_any) {
      results[lane].value = lanes_with(requests[lane]->value, group, requests);
    } else {
      results[lane] = same;
    }
  }
  return results;
}

}  // namespace aegis::simt
