# One OBJECT library per instruction set, each with flags of its own; the choice is made at run time (core/cpu.h).
set(AEGIS_KERNELS decode_attention extract_batch float8_linear float8_quantize fnv_lanes gather_records
    gather_records_scaled kv_append_ page_query sample skinny_linear to_bfloat16_rne
    token_probabilities)
# Levels that have more kernels than these, or only some.
set(AEGIS_KERNELS_scalar ${AEGIS_KERNELS} kv_move_ pack_ternary ternary_linear unpack_ternary)
set(AEGIS_KERNELS_avx2 ${AEGIS_KERNELS} ternary_linear)
set(AEGIS_KERNELS_avx512_vnni ternary_linear)
set(AEGIS_KERNELS_avx512_bf16 decode_attention float8_linear skinny_linear)

# gcc 12 warns of uninitialised reads inside its AVX-512 headers that are none.
set(AEGIS_FLAGS_scalar "")
set(AEGIS_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(AEGIS_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c
    -Wno-maybe-uninitialized -Wno-uninitialized)
set(AEGIS_FLAGS_avx512_vnni ${AEGIS_FLAGS_avx512} -mavx512vnni)
set(AEGIS_FLAGS_avx512_bf16 ${AEGIS_FLAGS_avx512} -mavx512bf16)

# Looks bytes up in tables; csrc/kernels/float8_linear.cpp asks the CPU whether it can.
set_source_files_properties(csrc/kernels/avx512_bf16/float8_linear.cpp PROPERTIES COMPILE_OPTIONS -mavx512vbmi)

set(AEGIS_ISAS scalar)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND AEGIS_ISAS avx2 avx512 avx512_vnni avx512_bf16)
endif()

set(AEGIS_ISA_OBJECTS "")
foreach(isa IN LISTS AEGIS_ISAS)
  set(sources ${AEGIS_KERNELS})
  if(DEFINED AEGIS_KERNELS_${isa})
    set(sources ${AEGIS_KERNELS_${isa}})
  endif()
  list(TRANSFORM sources PREPEND csrc/kernels/${isa}/)
  list(TRANSFORM sources APPEND .cpp)
  add_library(aegis_${isa} OBJECT ${sources})
  target_include_directories(aegis_${isa} PRIVATE csrc)
  # Products and sums are fused where a kernel says so and nowhere else: the versions give the same bits.
  target_compile_options(aegis_${isa} PRIVATE -O3 -ffp-contract=off ${AEGIS_FLAGS_${isa}})
  list(APPEND AEGIS_ISA_OBJECTS $<TARGET_OBJECTS:aegis_${isa}>)
endforeach()
if("avx512" IN_LIST AEGIS_ISAS)
  set(AEGIS_X86 1)
else()
  set(AEGIS_X86 0)
endif()
add_compile_definitions(AEGIS_X86=${AEGIS_X86})
