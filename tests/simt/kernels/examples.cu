// Proves that the example kernels are CUDA: tools/cuda_matrix.py compiles this file with nvcc.
#include "argmax.cuh"
#include "compact.cuh"
#include "gemv.cuh"
#include "histogram.cuh"
#include "transpose.cuh"

namespace aegis::simt::examples {

template __global__ void argmax<256>(const float*, int64_t, int, int*);
template __global__ void compact<128>(const int*, int64_t, int*, int64_t*);
template __global__ void transpose<float>(const float*, int, int, float*);

}  // namespace aegis::simt::examples
