#include "core/schedule.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace aegis {
namespace {

const ScheduleOptions& checked(const ScheduleOptions& o) {
  using Bad = std::invalid_argument;
  check<Bad>(o.samples >= 0, "samples: expected at least 0, got ", o.samples);
  check<Bad>(o.batch_size >= 1, "batch_size: expected at least 1, got ", o.batch_size);
  check<Bad>(o.world_size >= 1, "world_size: expected at least 1, got ", o.world_size);
  check<Bad>(0 <= o.rank && o.rank < o.world_size, "rank: expected 0 to ", o.world_size - 1,
             ", got ", o.rank);
  check<Bad>(0 <= o.start && o.start <= o.samples, "start: expected 0 to ", o.samples, ", got ",
             o.start);
  check<Bad>(o.batch_size <= INT64_MAX / o.world_size,
             "batch_size: expected batch_size * world_size below 2^63, got ", o.batch_size, " * ",
             o.world_size);
  check<Bad>(o.fill == Fill::none || !o.drop_last,
             "drop_last: expected false where the last step is filled up");
  check<Bad>(o.fill == Fill::none || o.samples <= INT64_MAX - o.batch_size * o.world_size,
             "samples: expected samples + batch_size * world_size below 2^63, got ", o.samples);
  return o;
}

}  // namespace

Schedule::Schedule(const ScheduleOptions& options) : options_(checked(options)) {
  const int64_t step = options_.batch_size * options_.world_size;
  const int64_t left = options_.samples - options_.start;
  full_steps_ = left / step;
  if (options_.fill != Fill::none) {
    tail_ = left % step > 0 ? options_.batch_size : 0;
    dropped_ = 0;
    return;
  }
  tail_ = options_.drop_last ? 0 : left % step / options_.world_size;
  dropped_ = left % step - tail_ * options_.world_size;
}

Schedule::Schedule(const ScheduleOptions& options, uint64_t seed, uint64_t epoch)
    : Schedule(options) {
  if (options_.samples > 0) order_.emplace(static_cast<uint64_t>(options_.samples), seed, epoch);
}

Schedule::Schedule(const ScheduleOptions& options, std::shared_ptr<const SampleOrder> order)
    : Schedule(options) {
  own_order_ = std::move(order);
  check<std::invalid_argument>(own_order_ == nullptr || own_order_->begin() <= options_.start,
                               "start: expected at least ",
                               own_order_ == nullptr ? 0 : own_order_->begin(),
                               ", where the order begins, got ", options_.start);
}

Schedule::Run Schedule::run(int64_t step) const {
  const int64_t count = step < full_steps_ ? options_.batch_size : tail_;
  return {position_after(step) + options_.rank * count, count};
}

int64_t Schedule::position_after(int64_t step) const {
  const int64_t whole = options_.batch_size * options_.world_size;
  if (step <= full_steps_) return options_.start + step * whole;
  return std::min(options_.start + full_steps_ * whole + tail_ * options_.world_size,
                  options_.samples);
}

}  // namespace aegis
