#include "simt/race_detector.h"

#include <algorithm>

#include "simt/block.h"
#include "simt/executor.h"
#include "simt/reports.h"

namespace aegis::simt {
namespace {

bool enabled = false;

const char* verb(AccessKind kind) {
  switch (kind) {
    case AccessKind::read:
      return " reads ";
    case AccessKind::write:
      return " writes ";
    default:
      return " atomically updates ";
  }
}

std::string subject(AccessKind kind) { return block().describe_current() + verb(kind); }

}  // namespace

void RaceDetector::begin_launch() {
  launch_epoch_ = epoch_ + 1;
  fenced_ = false;
}

void RaceDetector::begin_block() {
  block_epoch_ = ++epoch_;
  since_ = "since the block began";
}

void RaceDetector::on_barrier(const std::source_location& where) {
  ++epoch_;
  since_ = "since the barrier at " + place(where);
}

void RaceDetector::on_syncwarp(uint32_t first, uint32_t group) {
  Known joined{};
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    if (!(group >> lane & 1)) continue;
    const Known& known = known_[first + lane];
    for (uint32_t i = 0; i < kWarp; ++i) joined[i] = std::max(joined[i], known[i]);
    joined[lane] = clock_[first + lane]++;
  }
  for (uint32_t lane = 0; lane < kWarp; ++lane) {
    if (group >> lane & 1) known_[first + lane] = joined;
  }
}

bool RaceDetector::conflict(const Access& before, const Access& now, bool both_write) const {
  if (before.epoch < launch_epoch_ || (before.atomic && now.atomic)) return false;
  if (before.epoch < block_epoch_) {  // by another block
    return !fenced_ || (both_write && !before.atomic && !now.atomic);
  }
  if (before.epoch != epoch_ || before.thread == now.thread) return false;
  if (before.thread / kWarp != now.thread / kWarp) return true;
  return before.clock > known_[now.thread][before.thread % kWarp];
}

void RaceDetector::report(const Region& region, const char* address, AccessKind kind,
                          const Access& before, bool before_writes) const {
  const bool other_block = before.epoch < block_epoch_;
  const std::string what =
      !before_writes ? "read" : (before.atomic ? "updated atomically" : "written");
  reports().add("race: " + subject(kind) + region.element_at(address) + ", which " +
                (other_block ? "another block" : block().describe(before.thread)) + " has " + what +
                (other_block ? " in the same launch" : " with no order between them " + since_));
}

void RaceDetector::look(Region& region, const char* address, AccessKind kind, const Access& now,
                        const void* code) {
  Shadow& shadow = region.shadow[address - region.begin];
  const bool writes = kind != AccessKind::read, reads = kind != AccessKind::write;
  const uint32_t since = region.shared ? block_epoch_ : 1;
  if (reads && !region.initialised && shadow.write.epoch < since && reports().fresh(code)) {
    reports().add("unwritten: " + subject(kind) + region.element_at(address) +
                  ", which nothing has written");
  }
  // Shared memory of an earlier block is another memory.
  const auto races = [&](const Access& before, bool both_write) {
    return !(region.shared && before.epoch < block_epoch_) && conflict(before, now, both_write);
  };
  if (races(shadow.write, writes) && reports().fresh(code)) {
    report(region, address, kind, shadow.write, true);
  }
  if (writes) {
    for (const Access& read : shadow.reads) {
      if (races(read, false) && reports().fresh(code)) report(region, address, kind, read, false);
    }
    shadow.write = now;
  }
  if (reads && kind != AccessKind::atomic) {
    // Keep a reader of this warp and one of another, where there are two: any later writer then
    // meets a reader that it is not ordered with.
    Access* kept = shadow.reads;
    if (kept[0].epoch != epoch_ || kept[0].thread == now.thread) {
      kept[0] = now;
    } else if (kept[1].epoch != epoch_ || kept[1].thread / kWarp == kept[0].thread / kWarp ||
               kept[1].thread == now.thread) {
      kept[1] = now;
    }
  }
}

void RaceDetector::on_access(const void* address, size_t bytes, bool whole, AccessKind kind,
                             const void* code) {
  const char* at = static_cast<const char*>(address);
  Region* region = memory_map().find(at);
  if (region == nullptr) return;
  if (at < region->begin || at + bytes > region->end) {
    if (reports().fresh(code)) {
      reports().add("outside: " + subject(kind) + region->element_at(at) + " (" +
                    std::to_string(bytes) + " bytes), of " +
                    std::to_string(region->bytes() / region->element) + " elements");
    }
    return;
  }
  if (whole && reinterpret_cast<uintptr_t>(at) % bytes != 0 && reports().fresh(code)) {
    reports().add("misaligned: " + subject(kind) + std::to_string(bytes) + " bytes at " +
                  region->element_at(at));
  }
  const auto thread = static_cast<uint16_t>(block().current_thread());
  const Access now{epoch_, clock_[thread], thread, kind == AccessKind::atomic};
  for (size_t i = 0; i < bytes; ++i) look(*region, at + i, kind, now, code);
}

RaceDetector& detector() {
  static RaceDetector the_detector;
  return the_detector;
}

void enable_detector() { enabled = true; }

bool detects_races() { return enabled; }

}  // namespace aegis::simt
