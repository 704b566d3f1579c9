// Functions that run on the CPU and on the GPU.
#pragma once

#ifdef __CUDACC__
#define AEGIS_HOST_DEVICE __host__ __device__
#else
#define AEGIS_HOST_DEVICE
#endif
