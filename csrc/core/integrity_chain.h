// A running checksum over the steps of a training run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace aegis {

/// FNV-1a over records, one for each step, in their order. A record is these bytes, numbers lowest
/// byte first: the step (8), the loss as a float64 (8), the number of parts (8), and of each part
/// its size (8) and its digest (4, kernels::fnv_lanes_digest) or, without lanes, its bytes.
///
/// Tells whether two runs saw the same batches and losses, and from where on they did not. It is no
/// defence against somebody who wants to deceive: FNV-1a is not cryptographic.
///
/// One thread at a time.
class IntegrityChain {
 public:
  /// Throws std::invalid_argument unless `bits` is 32 or 64.
  IntegrityChain(int bits, bool lanes);

  using Part = std::span<const std::byte>;
  /// Adds the record of a step.
  void add(int64_t step, double loss, const std::vector<Part>& parts);

  struct State {
    int bits;
    bool lanes;
    uint64_t value;
    uint64_t records;
  };
  /// All that the chain is; restore() makes another one go on from it.
  State state() const { return state_; }
  /// Throws std::invalid_argument where `state` is of a chain of another kind, or cannot be.
  void restore(const State& state);

 private:
  void feed(Part bytes);
  void feed_number(uint64_t number, int bytes);

  State state_;
};

}  // namespace aegis
