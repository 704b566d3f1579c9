#!/usr/bin/env bash
# Run one fuzzer for a time, from its seeds and what earlier runs have found; used by `make fuzz`.
# Usage: fuzz.sh BUILD_FOLDER NAME SECONDS. What breaks a parser stays in BUILD_FOLDER/broken-NAME-*.
set -euo pipefail
build=$1 name=$2 seconds=$3

mkdir -p "$build/corpus/$name"
if ! "$build/fuzz_$name" -max_total_time="$seconds" -max_len=8192 -timeout=20 -rss_limit_mb=2048 \
  -artifact_prefix="$build/broken-$name-" "$build/corpus/$name" "$build/seeds/$name" > "$build/$name.log" 2>&1; then
  tail -n 40 "$build/$name.log"
  echo "fuzz: $name: broken" >&2
  exit 1
fi
echo "fuzz: $name: $(tail -n 1 "$build/$name.log")"
