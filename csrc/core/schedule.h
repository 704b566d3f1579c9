// Which samples make up which batch: the global order first, this rank's slice of it second.
#pragma once

#include <cstdint>
#include <optional>

#include "core/permutation.h"

namespace aegis {

/// What a schedule is made from. `start` is where in the epoch it begins: a count of samples
/// delivered before, over all ranks, so that a run can be resumed on another number of ranks.
struct ScheduleOptions {
  int64_t samples = 0;     ///< in an epoch
  int64_t batch_size = 1;  ///< samples a rank gets in a step
  bool drop_last = false;  ///< leave out the incomplete step at the end
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t start = 0;
};

/// One epoch's batches for one rank, in order, each found in O(1).
///
/// Step k takes the next world_size * batch_size samples of the global order; rank r gets the r-th
/// run of batch_size of them. Every rank has the same number of steps: when the last step is
/// incomplete, its samples are shared equally, and the fewer than world_size that are left over are
/// dropped.
class Schedule {
 public:
  /// A run of positions in the global order.
  struct Run {
    int64_t begin;
    int64_t count;
  };

  /// Samples in order 0, 1, 2, … Throws std::invalid_argument naming the option that is wrong.
  explicit Schedule(const ScheduleOptions& options);
  /// Samples in the order of a Permutation keyed by (seed, epoch).
  Schedule(const ScheduleOptions& options, uint64_t seed, uint64_t epoch);

  int64_t steps() const { return full_steps_ + (tail_ > 0); }
  int64_t dropped() const { return dropped_; }
  const ScheduleOptions& options() const { return options_; }

  /// This rank's positions in step `step`, 0 <= step < steps().
  Run run(int64_t step) const;

  /// Samples delivered over all ranks once `step` steps are done: what a resumed run passes as
  /// `start`.
  int64_t position_after(int64_t step) const;

  /// The sample at a position of the global order.
  int64_t sample(int64_t position) const {
    return order_ ? static_cast<int64_t>((*order_)(static_cast<uint64_t>(position))) : position;
  }

 private:
  ScheduleOptions options_;
  std::optional<Permutation> order_;
  int64_t full_steps_;
  int64_t tail_;     // samples of each rank in the incomplete last step
  int64_t dropped_;  // samples of the epoch that no rank gets
};

}  // namespace aegis
