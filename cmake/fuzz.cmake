# libFuzzer programs for everything that reads a file: the parsers alone, for clang, by `make fuzz`.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "AEGIS_FUZZ needs clang: -DCMAKE_CXX_COMPILER=clang++")
endif()

set(AEGIS_FUZZ_FLAGS -g -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
add_library(
  aegis_parsers STATIC EXCLUDE_FROM_ALL
  csrc/core/aegis_header.cpp
  csrc/core/byte_source.cpp
  csrc/core/cpu.cpp
  csrc/core/id_scan.cpp
  csrc/core/token_header.cpp
  csrc/core/token_index.cpp
  csrc/kernels/fnv_lanes.cpp
  csrc/kernels/scalar/fnv_lanes.cpp)
target_include_directories(aegis_parsers PUBLIC csrc)
target_compile_options(aegis_parsers PUBLIC ${AEGIS_FUZZ_FLAGS})
# Checksums by the scalar kernel, so that no other has to be linked.
target_compile_options(aegis_parsers PRIVATE -UAEGIS_X86 -DAEGIS_X86=0)
target_link_libraries(aegis_parsers PUBLIC Threads::Threads)

add_custom_target(fuzzers)
# aegis_fuzzer(<name>) builds tests/fuzz/fuzz_<name>.cpp; its seeds are made by tests/fuzz/make_seeds.py.
function(aegis_fuzzer name)
  add_executable(fuzz_${name} EXCLUDE_FROM_ALL tests/fuzz/fuzz_${name}.cpp)
  target_link_libraries(fuzz_${name} PRIVATE aegis_parsers -fsanitize=fuzzer,address,undefined)
  add_dependencies(fuzzers fuzz_${name})
endfunction()
aegis_fuzzer(aegis_file)
aegis_fuzzer(datatrove_index)
aegis_fuzzer(litdata_chunk)
aegis_fuzzer(llmc_header)
aegis_fuzzer(megatron_index)
