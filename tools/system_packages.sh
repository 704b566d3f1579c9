#!/usr/bin/env bash
# Make sure that Debian packages are there: with apt when run as root, otherwise by telling the command to run.
# Usage: system_packages.sh [--required] PACKAGE...   Without --required a missing one is no error: CMake has a way out.
set -euo pipefail

required=0
if [ "${1:-}" = --required ]; then
  required=1
  shift
fi
python=${PYTHON:-python3}

# The run-time library of -fsanitize=fuzzer, which in some releases is a package of its own.
has_libfuzzer() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer,address -x c++ - -o /dev/null > /dev/null 2>&1
}

has_header() { echo "#include <$1>" | "${CXX:-g++}" -E -x c++ - > /dev/null 2>&1; }

present() {
  case $1 in
    libgtest-dev) has_header gtest/gtest.h ;;
    libboost-context-dev) has_header boost/context/fiber.hpp ;;
    libbenchmark-dev) has_header benchmark/benchmark.h ;;
    libclang-rt-dev) has_libfuzzer ;;
    clang) command -v clang++ > /dev/null ;;
    python3-venv) "$python" -c 'import ensurepip' 2> /dev/null ;;
    python3-dev) "$python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2> /dev/null ;;
    *) dpkg -s "$1" > /dev/null 2>&1 ;;
  esac
}

missing=()
for package in "$@"; do
  present "$package" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
  echo "== installing ${missing[*]} with apt-get"
  if apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "${missing[@]}" > /dev/null; then
    exit 0
  fi
fi
echo "missing: ${missing[*]}. To install: sudo apt-get install ${missing[*]}" >&2
exit $required
