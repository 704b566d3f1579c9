// token_probabilities on the GPU: a block for each row, which makes the passes of sample and then
// writes the whole row, bit for bit what the CPU versions write.
#pragma once

#include "kernels/cuda/sample.cuh"
#include "kernels/token_probabilities.h"
#include "kernels/token_probabilities_row.h"

namespace aegis::kernels::cuda {

/// The Row of token_probabilities_row.h. All threads of the block call every function together.
template <class Element>
class BlockWrittenRow : public BlockRow<Element> {
 public:
  __device__ BlockWrittenRow(SampleShared& shared, const Element* row, int64_t count, float* out)
      : BlockRow<Element>(shared, row, count), row_(row), out_(out) {}

  __device__ void write_one(int64_t index) {
    write([=](int64_t i) { return i == index ? 1.0f : 0.0f; });
  }
  __device__ void write_listed(int64_t n, float share) {
    write([](int64_t) { return 0.0f; });
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += kSampleThreads) {
      out_[this->listed_index(i)] = this->listed_weight(i) * share;
    }
  }
  __device__ void write_cut(float at, float floor, int64_t end, float share) {
    write([=, this](int64_t i) {
      const float value = to_float(row_[i]), weight = this->weight(value);
      const bool within = value > at || (value == at && i < end);
      return within && weight >= floor ? weight * share : 0.0f;
    });
  }

 private:
  template <class Probability>
  __device__ void write(Probability probability) {
    for (int64_t i = threadIdx.x; i < this->count(); i += kSampleThreads) out_[i] = probability(i);
  }

  const Element* row_;
  float* out_;
};

template <class Element>
__global__ void __launch_bounds__(kSampleThreads)
    token_probabilities(TokenProbabilities<Element> job, int64_t rows) {
  AEGIS_SHARED(SampleShared, shared);
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    BlockWrittenRow<Element> row(shared, job.scores + r * job.stride, job.count,
                                 job.out + r * job.out_stride);
    write_probabilities(row, job.settings[r * job.settings_stride], job.keep_ties);
  }
}

}  // namespace aegis::kernels::cuda
