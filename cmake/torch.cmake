# The operators (the only target that sees torch) and the Python module (which never does).
# torch's own CMake package refuses to configure with CUDA wheels on machines without CUDA, so Python is asked for paths.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)

function(aegis_ask_python out code)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "${code}" OUTPUT_VARIABLE answer
                  OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${Python_EXECUTABLE} could not run: ${code}")
  endif()
  set(${out} ${answer} PARENT_SCOPE)
endfunction()

aegis_ask_python(AEGIS_TORCH_DIR "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])")
aegis_ask_python(pybind11_DIR "import pybind11; print(pybind11.get_cmake_dir())")

set(AEGIS_OPS csrc/ops/library.cpp csrc/ops/cpu/decode_attention.cpp csrc/ops/cpu/extract_batch.cpp
    csrc/ops/cpu/float8_linear.cpp csrc/ops/cpu/float8_quantize.cpp
    csrc/ops/cpu/gather_records.cpp csrc/ops/cpu/gather_records_scaled.cpp csrc/ops/cpu/kv_append_.cpp
    csrc/ops/cpu/kv_move_.cpp
    csrc/ops/cpu/pack_ternary.cpp csrc/ops/cpu/sample.cpp csrc/ops/cpu/skinny_linear.cpp
    csrc/ops/cpu/ternary_linear.cpp csrc/ops/cpu/to_bfloat16_rne.cpp
    csrc/ops/cpu/token_probabilities.cpp csrc/ops/cpu/unpack_ternary.cpp)
if(AEGIS_CUDA_ENABLED)
  list(APPEND AEGIS_OPS csrc/ops/cuda/stream.cpp csrc/ops/cuda/extract_batch.cpp
       csrc/ops/cuda/decode_attention.cpp csrc/ops/cuda/float8_linear.cpp csrc/ops/cuda/float8_quantize.cpp
       csrc/ops/cuda/gather_records.cpp csrc/ops/cuda/gather_records_scaled.cpp
       csrc/ops/cuda/kv_append_.cpp csrc/ops/cuda/kv_move_.cpp csrc/ops/cuda/sample.cpp csrc/ops/cuda/skinny_linear.cpp
       csrc/ops/cuda/ternary_linear.cpp csrc/ops/cuda/to_bfloat16_rne.cpp
       csrc/ops/cuda/token_probabilities.cpp)
endif()
add_library(aegis_ops MODULE ${AEGIS_OPS})
target_include_directories(aegis_ops SYSTEM PRIVATE ${AEGIS_TORCH_DIR}/include
                                                    ${AEGIS_TORCH_DIR}/include/torch/csrc/api/include)
if(AEGIS_CUDA_ENABLED)
  target_include_directories(aegis_ops SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endif()
# 2.11: the oldest torch whose binaries load this library; see docs/notes/abi.md.
target_compile_definitions(aegis_ops PRIVATE TORCH_TARGET_VERSION=0x020b000000000000)
target_link_libraries(aegis_ops PRIVATE aegis ${AEGIS_TORCH_DIR}/lib/libtorch_cpu.so)
# CMAKE_SKIP_RPATH would drop $ORIGIN too: torch is found because Python imported it first.
set_target_properties(aegis_ops PROPERTIES INSTALL_RPATH "$ORIGIN" CXX_VISIBILITY_PRESET hidden)
install(TARGETS aegis_ops LIBRARY DESTINATION lib)

find_package(pybind11 CONFIG REQUIRED)
set(archs "")
if(AEGIS_CUDA_ENABLED)
  string(REPLACE ";" " " archs "${AEGIS_CUDA_ARCHITECTURES}")
endif()
pybind11_add_module(_C NO_EXTRAS csrc/python/bindings.cpp csrc/python/bind_arena.cpp
                    csrc/python/bind_documents.cpp csrc/python/bind_evidence.cpp
                    csrc/python/bind_feeder.cpp csrc/python/bind_kv.cpp csrc/python/bind_page_table.cpp
                    csrc/python/bind_records.cpp csrc/python/bind_slots.cpp csrc/python/bind_spsc_ring.cpp
                    csrc/python/bind_store.cpp csrc/python/bind_token_files.cpp csrc/python/bind_token_tree.cpp)
target_link_libraries(_C PRIVATE aegis)
target_compile_definitions(_C PRIVATE AEGIS_VERSION="${AEGIS_VERSION}"
                                      AEGIS_CUDA_ARCHS="${archs}")
set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
install(TARGETS _C LIBRARY DESTINATION .)
