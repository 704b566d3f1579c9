// Which samples make up which batch: the global order first, this rank's slice of it second.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/batch_filler.h"
#include "core/permutation.h"

namespace aegis {

/// An order of its own: which sample comes at each position of an epoch. Called from any thread.
class SampleOrder {
 public:
  virtual ~SampleOrder() = default;
  /// `position` is at least begin().
  virtual int64_t sample(int64_t position) const = 0;
  /// The first position that the order has.
  virtual int64_t begin() const { return 0; }
  /// All that sample() returns is below this.
  virtual int64_t end() const = 0;
};

/// What completes an epoch's last step where samples run out.
enum class Fill {
  none,
  pad,  ///< rows of padding: kPadding in place of a sample
  wrap  ///< the epoch's first samples again
};

/// What a schedule is made from. `start` is where in the epoch it begins: a count of samples
/// delivered before, over all ranks, so that a run can be resumed on another number of ranks.
struct ScheduleOptions {
  int64_t samples = 0;     ///< in an epoch
  int64_t batch_size = 1;  ///< samples a rank gets in a step
  bool drop_last = false;  ///< leave out the incomplete step at the end
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t start = 0;
  Fill fill = Fill::none;
};

/// One epoch's batches for one rank, in order, each found in O(1).
///
/// Step k takes the next world_size * batch_size samples of the global order; rank r gets the r-th
/// run of batch_size of them. Every rank has the same number of steps: when the last step is
/// incomplete, it is filled up as `fill` says, or its samples are shared equally, and the fewer
/// than world_size that are left over are dropped.
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
  /// Samples in an order that goes on to options.samples positions or beyond. Also throws where it
  /// begins behind options.start.
  Schedule(const ScheduleOptions& options, std::shared_ptr<const SampleOrder> order);

  int64_t steps() const { return full_steps_ + (tail_ > 0); }
  int64_t dropped() const { return dropped_; }
  const ScheduleOptions& options() const { return options_; }

  /// This rank's positions in step `step`, 0 <= step < steps().
  Run run(int64_t step) const;

  /// Samples delivered over all ranks once `step` steps are done: what a resumed run passes as
  /// `start`.
  int64_t position_after(int64_t step) const;

  /// The sample at a position of the global order, or kPadding behind its end.
  int64_t sample(int64_t position) const {
    if (position >= options_.samples) {
      if (options_.fill == Fill::pad) return kPadding;
      position %= options_.samples;
    }
    if (own_order_) return own_order_->sample(position);
    return order_ ? static_cast<int64_t>((*order_)(static_cast<uint64_t>(position))) : position;
  }

  /// All samples are below this.
  int64_t end() const { return own_order_ ? own_order_->end() : options_.samples; }

 private:
  ScheduleOptions options_;
  std::optional<Permutation> order_;
  std::shared_ptr<const SampleOrder> own_order_;
  int64_t full_steps_;
  int64_t tail_;     // samples of each rank in the incomplete last step
  int64_t dropped_;  // samples of the epoch that no rank gets
};

}  // namespace aegis
