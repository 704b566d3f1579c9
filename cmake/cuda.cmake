# CUDA kernels: compiled for every listed architecture when nvcc is there; no GPU is needed to build.
set(AEGIS_CUDA_ENABLED OFF)
set(AEGIS_CUDA_OBJECTS "")
set(AEGIS_CUDA_LIBRARIES "")
set(AEGIS_CUDA_ARCHITECTURES "80;86;89;90a;100;120" CACHE STRING "CUDA architectures to build for")

if(NOT AEGIS_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(AEGIS_CUDA_ENABLED ON)
  elseif(AEGIS_CUDA STREQUAL "ON")
    message(FATAL_ERROR "AEGIS_CUDA=ON, but nvcc was not found: put it on PATH or set CUDACXX")
  endif()
endif()

if(AEGIS_CUDA_ENABLED)
  # PTX of the newest architecture travels along, so that later GPUs can run it.
  set(CMAKE_CUDA_ARCHITECTURES "")
  foreach(arch IN LISTS AEGIS_CUDA_ARCHITECTURES)
    list(APPEND CMAKE_CUDA_ARCHITECTURES ${arch}-real)
  endforeach()
  list(GET AEGIS_CUDA_ARCHITECTURES -1 newest)
  list(APPEND CMAKE_CUDA_ARCHITECTURES ${newest}-virtual)
  set(CMAKE_CUDA_STANDARD 20)
  enable_language(CUDA)
  # CMake 3.25 (Debian 12) does not know that nvcc takes C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
  add_library(aegis_cuda OBJECT csrc/kernels/cuda/decode_attention.cu csrc/kernels/cuda/extract_batch.cu
                                csrc/kernels/cuda/float8_linear.cu
                                csrc/kernels/cuda/float8_quantize.cu csrc/kernels/cuda/float8_tiles.cu
                                csrc/kernels/cuda/gather_records.cu csrc/kernels/cuda/tma_map.cpp
                                csrc/kernels/cuda/gather_records_scaled.cu csrc/kernels/cuda/kv_append_.cu
                                csrc/kernels/cuda/kv_move_.cu
                                csrc/kernels/cuda/sample.cu
                                csrc/kernels/cuda/skinny_linear.cu
                                csrc/kernels/cuda/ternary_linear.cu csrc/kernels/cuda/to_bfloat16_rne.cu
                                csrc/kernels/cuda/token_probabilities.cu)
  if("90a" IN_LIST AEGIS_CUDA_ARCHITECTURES)
    set_source_files_properties(csrc/kernels/cuda/float8_tiles.cu PROPERTIES COMPILE_DEFINITIONS AEGIS_SM90A)
  endif()
  # tcgen05 belongs to the 10.x family alone, and needs a name of its own to be compiled: what is built for the others,
  # this kernel does without.
  add_library(aegis_cuda_sm100 OBJECT csrc/kernels/cuda/float8_tiles_sm100.cu)
  if(AEGIS_CUDA_ARCHITECTURES MATCHES "(^|;)10[03]")
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.9)
      set(sm100 100a)
      target_compile_definitions(aegis_cuda_sm100 PRIVATE AEGIS_SM100_NEWEST=100)
    else()
      set(sm100 100f)
      target_compile_definitions(aegis_cuda_sm100 PRIVATE AEGIS_SM100_NEWEST=103)
    endif()
    set_target_properties(aegis_cuda_sm100 PROPERTIES CUDA_ARCHITECTURES OFF)
    target_compile_options(aegis_cuda_sm100 PRIVATE -gencode=arch=compute_${sm100},code=sm_${sm100})
  endif()
  target_include_directories(aegis_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  foreach(target aegis_cuda aegis_cuda_sm100)
    target_include_directories(${target} PRIVATE csrc)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Wall,-Wextra>)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    list(APPEND AEGIS_CUDA_OBJECTS $<TARGET_OBJECTS:${target}>)
  endforeach()
  # Static: the library must load where no CUDA runtime is installed.
  set(AEGIS_CUDA_LIBRARIES CUDA::cudart_static)
endif()
