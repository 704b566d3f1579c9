# CUDA kernels executed on the CPU (docs/notes/simt.md). Neither nvcc nor CUDA's headers are needed.
find_package(Boost QUIET CONFIG COMPONENTS context)
if(NOT TARGET Boost::context)
  message(WARNING "The SIMT tests are left out: Boost.Context was not found (Debian: libboost-context-dev)")
  return()
endif()
if(AEGIS_SANITIZE MATCHES "thread")
  message(STATUS "The SIMT tests are left out: they run on fibers, which ThreadSanitizer's runtime does not know")
  return()
endif()

set(AEGIS_SIMT_SOURCES block executor fiber memory race_detector reports shared_memory thread_set warp)
list(TRANSFORM AEGIS_SIMT_SOURCES PREPEND tests/simt/)
list(TRANSFORM AEGIS_SIMT_SOURCES APPEND .cpp)

# aegis_simt_executor(<target> [flags...]): the executor, and how what links to it is compiled.
function(aegis_simt_executor target)
  add_library(${target} STATIC ${AEGIS_SIMT_SOURCES})
  target_include_directories(${target} PUBLIC csrc tests)
  target_compile_options(${target} PUBLIC ${ARGN} INTERFACE -O1 -Wno-unknown-pragmas)
  target_link_options(${target} PUBLIC ${ARGN})
  target_link_libraries(${target} PUBLIC Boost::context)
endfunction()

# Variants of a program: plain; races, which also sees races, unwritten reads and accesses outside of buffers; and, where
# the whole build is sanitized, only sanitized.
if(AEGIS_SANITIZE MATCHES "address")
  set(AEGIS_SIMT_VARIANTS sanitized)
  aegis_simt_executor(aegis_simt_sanitized -fno-sanitize-recover=all)
elseif(AEGIS_SANITIZE)
  set(AEGIS_SIMT_VARIANTS plain)
  aegis_simt_executor(aegis_simt_plain)
else()
  set(AEGIS_SIMT_VARIANTS plain races)
  aegis_simt_executor(aegis_simt_plain)
  # Kernels instrumented by -fsanitize=thread, but linked without its runtime: tsan_hooks.cpp takes its place.
  add_library(aegis_simt_races STATIC tests/simt/tsan_hooks.cpp)
  target_compile_options(aegis_simt_races INTERFACE -fsanitize=thread)
  target_link_libraries(aegis_simt_races PUBLIC aegis_simt_plain)
  # For the mutations alone.
  aegis_simt_executor(aegis_simt_sanitized -fsanitize=address,undefined -fno-sanitize-recover=all)
  set_target_properties(aegis_simt_sanitized PROPERTIES EXCLUDE_FROM_ALL ON)
endif()

# aegis_simt_program(<name> <variant> <source>) adds a program; AEGIS_SIMT_TARGET is its target.
function(aegis_simt_program name variant source)
  set(target ${name}_${variant})
  add_executable(${target} ${source} $<TARGET_OBJECTS:aegis_scalar>)
  target_link_libraries(${target} PRIVATE aegis_simt_${variant})
  set(AEGIS_SIMT_TARGET ${target} PARENT_SCOPE)
endfunction()

# aegis_simt_test(<name> [variants...]) builds tests/simt/test_<name>.cpp once for each variant, all unless named.
function(aegis_simt_test name)
  foreach(variant IN LISTS AEGIS_SIMT_VARIANTS)
    if(ARGN AND NOT variant IN_LIST ARGN)
      continue()
    endif()
    aegis_simt_program(simt_${name} ${variant} tests/simt/test_${name}.cpp)
    target_link_libraries(${AEGIS_SIMT_TARGET} PRIVATE GTest::gtest_main)
    gtest_discover_tests(${AEGIS_SIMT_TARGET} DISCOVERY_MODE PRE_TEST TEST_PREFIX simt.${variant}. PROPERTIES LABELS simt)
  endforeach()
endfunction()

# The executor itself.
aegis_simt_test(block)
aegis_simt_test(warp)
aegis_simt_test(intrinsics)
aegis_simt_test(memory)
aegis_simt_test(garbage plain)
aegis_simt_test(races races)
aegis_simt_test(sanitizers sanitized)
aegis_simt_test(convert plain)
# Kernels of realistic shape that are no part of the library.
aegis_simt_test(example_kernels)
# The library's CUDA kernels, each against its scalar oracle.
aegis_simt_test(decode_attention)
aegis_simt_test(extract_batch)
aegis_simt_test(float8_linear)
aegis_simt_test(float8_quantize)
aegis_simt_test(float8_tiles plain)  # arithmetic alone: TMA and tensor cores are hardware's
aegis_simt_test(float8_tiles_sm100 plain)
aegis_simt_test(gather_records)
aegis_simt_test(gather_records_scaled)
aegis_simt_test(kv_append_)
aegis_simt_test(kv_move_)
aegis_simt_test(sample)
aegis_simt_test(skinny_linear)
aegis_simt_test(ternary_linear)
aegis_simt_test(to_bfloat16_rne)
aegis_simt_test(token_probabilities)

# The program that also runs on GPUs, here on the executor.
set_source_files_properties(tests/simt/hardware.cu PROPERTIES LANGUAGE CXX)
foreach(variant IN LISTS AEGIS_SIMT_VARIANTS)
  aegis_simt_program(simt_hardware ${variant} tests/simt/hardware.cu)
  add_test(NAME simt.${variant}.hardware COMMAND ${AEGIS_SIMT_TARGET})
endforeach()

# What tools/simt_mutations.py builds broken kernels with.
if(TARGET aegis_simt_races)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/simt_mutations.txt CONTENT
"${CMAKE_CXX_COMPILER}
$<TARGET_FILE:aegis_simt_races>;$<TARGET_FILE:aegis_simt_plain>;$<TARGET_FILE:aegis_simt_sanitized>
$<JOIN:$<TARGET_OBJECTS:aegis_scalar>,;>
$<TARGET_FILE:GTest::gtest_main>;$<TARGET_FILE:GTest::gtest>;$<TARGET_FILE:Boost::context>;-lpthread
$<JOIN:$<TARGET_PROPERTY:GTest::gtest,INTERFACE_INCLUDE_DIRECTORIES>,;>
")
endif()

# Where CUDA's headers are, the shim's conversions and vector types are compared with them.
find_path(AEGIS_CUDA_HEADERS cuda_fp8.h PATHS /usr/local/cuda/include ENV CUDA_HOME PATH_SUFFIXES include)
if(AEGIS_CUDA_HEADERS)
  add_executable(simt_cuda_headers tests/simt/test_cuda_headers.cpp)
  target_include_directories(simt_cuda_headers PRIVATE csrc tests)
  target_include_directories(simt_cuda_headers SYSTEM PRIVATE ${AEGIS_CUDA_HEADERS})
  target_link_libraries(simt_cuda_headers PRIVATE GTest::gtest_main)
  gtest_discover_tests(simt_cuda_headers DISCOVERY_MODE PRE_TEST TEST_PREFIX simt. PROPERTIES LABELS simt)
else()
  message(STATUS "The comparison with CUDA's headers is left out: cuda_fp8.h was not found")
endif()
