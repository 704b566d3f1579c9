#!/usr/bin/env bash
# Build, test and measure aegis on this machine's GPU.
#
#   tools/gpu_check.sh [build] [test] [bench] [--dry-run]      all three parts when none is named
#
# Needs Python with torch (CUDA), numpy and pybind11, nvcc, CMake, Ninja and pytest; no network and no GoogleTest.
# Builds for the GPU that is there, into build/gpu, and leaves logs and results in build/gpu/results.
# --dry-run needs no GPU: it prints the commands and checks the files they name.
# Ends with 'N passed, N failed'; exits 1 where something failed and 3, after one line, where there is no GPU.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
BUILD=build/gpu
SITE=$BUILD/site
RESULTS=$BUILD/results
PATH=$PATH:/usr/local/cuda/bin

die() {
  echo "gpu_check: $1" >&2
  exit "${2:-2}"
}

parts=()
dry=
for argument in "$@"; do
  case $argument in
    build | test | bench) parts+=("$argument") ;;
    --dry-run) dry=yes ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) die "expected build, test, bench or --dry-run, got $argument" ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=(build test bench)

passed=0
failed=0
count() {
  passed=$((passed + $1))
  failed=$((failed + $2))
}

# step NAME SECONDS COMMAND...: one check. A last line 'N passed, N failed', or pytest's, counts as that many.
step() {
  local name=$1 seconds=$2 log=$RESULTS/$1.log start=$SECONDS status last
  shift 2
  if [ -n "$dry" ]; then
    dry_step "$name" "$@"
    return
  fi
  echo "== $name"
  timeout "$seconds" "$@" > "$log" 2>&1
  status=$?
  last=$(grep -E '[0-9]+ (passed|failed|error|skipped)' "$log" | tail -n 1)
  local good=$(number_before passed "$last") bad=$(($(number_before failed "$last") + $(number_before error "$last")))
  if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
    [ "$status" -eq 124 ] && echo "not done after $seconds s" >> "$log"
    tail -n 30 "$log"
    good=0 bad=1
  elif [ "$bad" -gt 0 ]; then
    tail -n 60 "$log"
  elif [ "$good" -eq 0 ] && [[ $last == *skipped* ]]; then
    tail -n 30 "$log" # every test was skipped, on a machine that has a GPU
    bad=1
  elif [ "$good" -eq 0 ]; then
    good=1
  fi
  count "$good" "$bad"
  echo "   $good passed, $bad failed, $((SECONDS - start)) s"
  [ "$bad" -eq 0 ]
}

number_before() {
  grep -oE "[0-9]+ $1" <<< "$2" | grep -oE '^[0-9]+' || echo 0
}

# Prints the command; every file of the repository that it names has to be there.
dry_step() {
  local name=$1 missing= argument
  shift
  echo "== $name: $*"
  for argument in "$@"; do
    case $argument in
      -* | /* | "$BUILD"* | *=*) continue ;;
      */*) [ -e "$argument" ] || missing+=" $argument" ;;
    esac
  done
  if [ -n "$missing" ]; then
    echo "   missing:$missing"
    count 0 1
  else
    count 1 0
  fi
  [ -z "$missing" ]
}

# "86" for compute capability 8.6.
capability() {
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. '
}

# "90a" for compute capability 9.0, whose own instructions need the letter. Those of 10.x are CMake's to name.
architecture() {
  local number
  number=$(capability)
  [ "$number" = 90 ] && number=90a
  echo "$number"
}

# CUDA tests are named test_*_cuda*.py or marked `cuda`.
cuda_tests() {
  {
    find tests/python -name 'test_*_cuda*.py'
    grep -rlE 'mark\.cuda\b' tests/python --include='test_*.py'
  } | sort -u
}

build() {
  local arch=90a
  [ -n "$dry" ] || arch=$(architecture)
  step configure 60 cmake -S . -B $BUILD/cmake -G Ninja -DAEGIS_CUDA=ON "-DAEGIS_CUDA_ARCHITECTURES=$arch" \
    "-DPython_EXECUTABLE=$(command -v "$PYTHON")" || return
  step compile 240 cmake --build $BUILD/cmake || return
  # The wheel's content without pip, which may lack the packages it builds with.
  step install 60 cmake --install $BUILD/cmake --prefix $SITE/aegis
  step copy-python 60 cp -r python/aegis/. $SITE/aegis
  step import 60 env "PYTHONPATH=$SITE" "$PYTHON" -c "import aegis; assert aegis.build_info()['cuda']"
  step compile-hardware 120 nvcc -std=c++20 -O3 -Werror=all-warnings -Icsrc -Itests "-arch=sm_$arch" \
    -o $BUILD/hardware tests/simt/hardware.cu csrc/kernels/scalar/extract_batch.cpp
}

tests() {
  local files tool
  mapfile -t files < <(cuda_tests)
  if [ -n "$dry" ]; then
    step imports-of-tests 60 "$PYTHON" tools/gpu_imports.py "${files[@]}"
    "$PYTHON" tools/gpu_imports.py "${files[@]}" || count 0 1
  fi
  step hardware 60 $BUILD/hardware
  if [ -n "$dry" ] || command -v compute-sanitizer > /dev/null; then
    for tool in memcheck racecheck synccheck; do
      step "$tool" 90 compute-sanitizer --tool "$tool" --error-exitcode 9 $BUILD/hardware
    done
  else
    echo "== compute-sanitizer is not installed: not run"
  fi
  step pytest 120 env "PYTHONPATH=$SITE" "$PYTHON" -m pytest -q -rs -p no:cacheprovider -m cuda "${files[@]}"
  # Kernels that have to be asked for: of Hopper, and of Blackwell's data-centre GPUs.
  if [ -n "$dry" ] || [[ $(capability) =~ ^(90|100|103)$ ]]; then
    step float8-tiles 120 env "PYTHONPATH=$SITE" AEGIS_FLOAT8_TILES=1 "$PYTHON" -m pytest -q -rs -p no:cacheprovider \
      -m cuda tests/python/ops/test_float8_linear_cuda.py
  fi
}

bench() {
  step benchmarks 300 env "PYTHONPATH=$SITE" "$PYTHON" benchmarks/python/gpu/run.py --out $RESULTS
  [ -n "$dry" ] || [ ! -f $RESULTS/gpu.md ] || cat $RESULTS/gpu.md
}

if [ -z "$dry" ]; then
  nvidia-smi -L 2> /dev/null | grep -q '^GPU' || die "expected a GPU, found none (nvidia-smi lists no device)" 3
  mkdir -p $RESULTS
  rm -f $RESULTS/gpu.md
fi
for part in "${parts[@]}"; do
  [ -n "$dry" ] || [ "$part" = build ] || [ -d $SITE ] || die "nothing is built: run tools/gpu_check.sh build first"
  case $part in
    test) tests ;;
    *) "$part" ;;
  esac
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
