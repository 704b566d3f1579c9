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

set(AEGIS_SIMT_SOURCES block executor fiber memory race_detector reports shared_memory warp)
list(TRANSFORM AEGIS_SIMT_SOURCES PREPEND tests/simt/)
list(TRANSFORM AEGIS_SIMT_SOURCES APPEND .cpp)

# aegis_simt_executor(<target> [flags...]): the executor, and how what links to it is compiled.
function(aegis_simt_executor target)
  add_library(${target} STATIC ${AEGIS_SIMT_SOURCES})
  target_include_directories(${target} PUBLIC csrc tests)
  target_compile_options(${target} PUBLIC ${ARGN} INTERFACE -O1 -Wno-unknown-pragmas)
  target_link_options(${target} PUBLIC ${ARGN})
  target_link_libraries(${target} PUBLIC Boost::context GTest::gtest_main)
endfunction()

set(AEGIS_SIMT_VARIANTS plain)
aegis_simt_executor(aegis_simt)
if(NOT AEGIS_SANITIZE)
  list(APPEND AEGIS_SIMT_VARIANTS races sanitized)
  # Kernels instrumented by -fsanitize=thread, but linked without its runtime: tsan_hooks.cpp takes its place.
  add_library(aegis_simt_races STATIC tests/simt/tsan_hooks.cpp)
  target_compile_options(aegis_simt_races INTERFACE -fsanitize=thread)
  target_link_libraries(aegis_simt_races PUBLIC aegis_simt)
  aegis_simt_executor(aegis_simt_sanitized -fsanitize=address,undefined -fno-sanitize-recover=all)
endif()

# aegis_simt_test(<name> [variants...]) builds tests/simt/test_<name>.cpp once for each variant (all, unless named):
# plain; races, which also sees races, unwritten reads and accesses outside of buffers; and sanitized.
function(aegis_simt_test name)
  set(variants ${ARGN})
  if(NOT variants)
    set(variants plain races sanitized)
  endif()
  foreach(variant IN LISTS variants)
    if(NOT variant IN_LIST AEGIS_SIMT_VARIANTS)
      continue()
    endif()
    set(suffix "")
    if(NOT variant STREQUAL "plain")
      set(suffix _${variant})
    endif()
    set(target simt_${name}${suffix})
    add_executable(${target} tests/simt/test_${name}.cpp $<TARGET_OBJECTS:aegis_scalar>)
    target_link_libraries(${target} PRIVATE aegis_simt${suffix})
    gtest_discover_tests(${target} DISCOVERY_MODE PRE_TEST TEST_PREFIX simt.${variant}. PROPERTIES LABELS simt)
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
aegis_simt_test(extract_batch)

# What tools/simt_mutations.py builds broken kernels with.
if(TARGET aegis_simt_races)
  file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/simt_mutations.txt CONTENT
"${CMAKE_CXX_COMPILER}
$<TARGET_FILE:aegis_simt_races>;$<TARGET_FILE:aegis_simt>;$<TARGET_FILE:aegis_simt_sanitized>
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
