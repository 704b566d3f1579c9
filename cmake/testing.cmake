# GoogleTest and Google Benchmark programs; the libraries come from the system, or from the network where there is one.
include(FetchContent)
enable_testing()

if(AEGIS_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    FetchContent_Declare(googletest GIT_REPOSITORY https://github.com/google/googletest GIT_TAG v1.15.2)
    FetchContent_MakeAvailable(googletest)
  endif()
  include(GoogleTest)

  # aegis_test(core/arena) builds tests/cpp/core/test_arena.cpp.
  function(aegis_test path)
    get_filename_component(folder ${path} DIRECTORY)
    get_filename_component(name ${path} NAME)
    add_executable(test_${name} tests/cpp/${folder}/test_${name}.cpp)
    target_include_directories(test_${name} PRIVATE tests/cpp)
    target_link_libraries(test_${name} PRIVATE aegis GTest::gtest_main)
    gtest_discover_tests(test_${name} DISCOVERY_MODE PRE_TEST)
  endfunction()
  aegis_test(core/cpu)
  aegis_test(kernels/extract_batch)
endif()
