// A data set for feeder tests: every sample can be told from every other.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/feeder.h"

namespace aegis {

/// Sample i is the int64 i and three bytes, each i % 251. `before` is called at the start of every
/// fill with the batch's samples and may block or throw.
class FakeFiller : public BatchFiller {
 public:
  using Before = std::function<void(const int64_t* indices, int64_t count)>;

  explicit FakeFiller(int64_t samples, Before before = {}, bool quick = false)
      : samples_(samples), before_(std::move(before)), quick_(quick) {}

  const std::vector<Field>& fields() const override { return fields_; }
  int64_t samples() const override { return samples_; }
  bool quick() const override { return quick_; }

  void fill(const int64_t* indices, int64_t count, const FieldPointers& fields) const override {
    fills_.fetch_add(1);
    if (before_) before_(indices, count);
    for (int64_t row = 0; row < count; ++row) {
      std::memcpy(fields[0] + 8 * row, &indices[row], 8);
      std::memset(fields[1] + 3 * row, static_cast<int>(indices[row] % 251), 3);
    }
  }

  /// Fills begun so far.
  int fills() const { return fills_.load(); }

 private:
  const std::vector<Field> fields_{{{0, 64}, {}}, {{1, 8}, {3}}};
  const int64_t samples_;
  const Before before_;
  const bool quick_;
  mutable std::atomic<int> fills_{0};
};

/// A feeder of fake samples, in batches of up to 64, with slots for what it may hold.
struct FakeFeed {
  FakeFeed(int64_t samples, FeederOptions options, FakeFiller::Before before = {},
           bool quick = false)
      : filler(std::make_shared<FakeFiller>(samples, std::move(before), quick)),
        pool(SlotPool::make(lay_out(filler->fields(), 64), options.depth + 1)),
        feeder(std::make_unique<Feeder>(filler, pool, options)) {}

  Feeder* operator->() { return feeder.get(); }
  void submit(const std::vector<int64_t>& indices) {
    feeder->submit(indices.data(), static_cast<int64_t>(indices.size()));
  }

  std::shared_ptr<FakeFiller> filler;
  std::shared_ptr<SlotPool> pool;
  std::unique_ptr<Feeder> feeder;
};

/// The samples in a batch, after checking that both fields agree on them.
inline std::vector<int64_t> samples_of(const Batch& batch) {
  std::vector<int64_t> samples(static_cast<size_t>(batch.count));
  if (batch.count > 0) std::memcpy(samples.data(), batch.fields[0], samples.size() * 8);
  for (size_t i = 0; i < samples.size() * 3; ++i) {
    EXPECT_EQ(batch.fields[1][i], static_cast<std::byte>(samples[i / 3] % 251));
  }
  return samples;
}

/// Keeps a core busy for about `turns` cycles.
inline void busy(unsigned turns) {
  for (unsigned i = 0; i < turns; ++i) asm volatile("" : : "r"(i));
}

}  // namespace aegis
