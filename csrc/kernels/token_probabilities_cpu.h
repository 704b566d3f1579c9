// The Row of token_probabilities_row.h for CPUs.
#pragma once

#include <algorithm>

#include "kernels/sample_cpu.h"
#include "kernels/token_probabilities.h"
#include "kernels/token_probabilities_row.h"

namespace aegis::kernels {

template <class Element>
class CpuWrittenRow : public CpuRow<Element> {
 public:
  CpuWrittenRow(const SampleScans<Element>& scans, ShareScan<Element> shares,
                SampleScratch& scratch, const Element* row, int64_t count, float* out)
      : CpuRow<Element>(scans, scratch, row, count), shares_(shares), row_(row), out_(out) {}

  void write_one(int64_t index) {
    std::fill_n(out_, this->count(), 0.0f);
    out_[index] = 1;
  }
  void write_listed(int64_t n, float share) {
    std::fill_n(out_, this->count(), 0.0f);
    for (int64_t i = 0; i < n; ++i) out_[this->listed_index(i)] = this->listed_weight(i) * share;
  }
  void write_cut(float at, float floor, int64_t end, float share) {
    const Weighing weighing = this->weighing(at, floor);
    shares_(row_, 0, end, weighing, true, share, out_);
    shares_(row_, end, this->count(), weighing, false, share, out_);
  }

 private:
  const ShareScan<Element> shares_;
  const Element* row_;
  float* out_;
};

/// Writes rows [begin, end) of the job.
template <class Element>
void write_rows(const SampleScans<Element>& scans, ShareScan<Element> shares,
                SampleScratch& scratch, const TokenProbabilities<Element>& job, int64_t begin,
                int64_t end) {
  scratch.fit(job.count);
  for (int64_t r = begin; r < end; ++r) {
    CpuWrittenRow<Element> row(scans, shares, scratch, job.scores + r * job.stride, job.count,
                               job.out + r * job.out_stride);
    write_probabilities(row, job.settings[r * job.settings_stride], job.keep_ties);
  }
}

}  // namespace aegis::kernels
