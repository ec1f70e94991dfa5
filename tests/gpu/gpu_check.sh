#!/usr/bin/env bash
# Everything that only a GPU can tell, in at most 8 minutes: cheap and decisive steps first, each with its own limit and
# log. Needs nvcc 12.8 or later, cmake, ninja and a Python with torch, pybind11 and pytest; no network, no GoogleTest:
# the tests are Python's, over the same ops and cases as the C++ tests on the emulator.
#
#   bash tests/gpu/gpu_check.sh                  on a machine with a GPU; 77 without
#   bash tests/gpu/gpu_check.sh --device cpu     that the Python steps run at all, with the fp8amp that Python finds
#
# The last line is "N passed, N failed, N skipped"; exit 1 if a step failed, 77 if none passed. Logs, figures and the
# summary go to benchmarks/gpu/<card>-<date>/, or to $OUT.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root" || exit 1
python=${PYTHON:-python3}
device=cuda
[ "${1-}" != --device ] || device=${2-}
passed=0 failed=0 skipped=0 begin=$SECONDS total=480 # seconds

card=$("$python" -c 'import torch; print(torch.cuda.get_device_name(0).lower().replace(" ", "-"))' 2>/dev/null)
if [ "$device" = cuda ] && [ -z "$card" ]; then
  echo "no CUDA device that torch can use: nothing is checked"
  echo "0 passed, 0 failed, 0 skipped"
  exit 77
fi
out=${OUT:-$root/benchmarks/gpu/${card:-cpu}-$(date +%F)}
mkdir -p "$out" && : >"$out/summary.txt"

# step LIMIT NAME COMMAND...: passes with exit 0, is skipped with 77
step() {
  local limit=$1 name=$2 start=$SECONDS left=$((total - SECONDS + begin)) result status
  shift 2
  [ "$limit" -le "$left" ] || limit=$left
  [ "$limit" -gt 0 ] || limit=1
  timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
  status=$?
  case $status in
    0) result=passed passed=$((passed + 1)) ;;
    77) result=skipped skipped=$((skipped + 1)) ;;
    124 | 137) result="failed: over $limit s" failed=$((failed + 1)) ;;
    *) result="failed: exit $status" failed=$((failed + 1)) ;;
  esac
  printf '%-12s %-20s %3d s  %s\n' "$name" "$result" $((SECONDS - start)) "$(tail -n 1 "$out/$name.log" | cut -c1-100)" |
    tee -a "$out/summary.txt"
  return "$status"
}

environment() {
  nvidia-smi || return 1
  "$python" -c 'import sys, torch; print(sys.version); print(torch.__version__, torch.version.cuda, torch.cuda.get_device_name(0))'
}

# The package of this tree, for this GPU alone, in build/gpu/package.
build() {
  local arch
  arch=$("$python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability(0))') &&
    cmake -S . -B build/gpu -G Ninja -DPython_EXECUTABLE="$(command -v "$python")" -DFP8AMP_CUDA=ON \
      -DFP8AMP_CUDA_ARCHS="$arch" -DFP8AMP_PYTHON=ON -DFP8AMP_TESTS=OFF -DCMAKE_INSTALL_LIBDIR=lib &&
    cmake --build build/gpu && rm -rf build/gpu/package && mkdir -p build/gpu/package &&
    cp -r python/fp8amp build/gpu/package/ &&
    cmake --install build/gpu --prefix "$root/build/gpu/package/fp8amp" --component core &&
    cmake --install build/gpu --prefix "$root/build/gpu/package/fp8amp" --component python &&
    "$python" -c 'import fp8amp; print(fp8amp.build_info())'
}

tests() { "$python" -m pytest -q -p no:cacheprovider "$@" --device "$device"; }

sanitize() {
  local log status
  command -v compute-sanitizer >/dev/null || return 77
  log=$(compute-sanitizer --tool "$1" --error-exitcode 9 "$python" -m pytest -q -x -p no:cacheprovider \
    tests/gpu/test_kernels.py -k 'transpose or accumulate or into' --device cuda 2>&1)
  status=$?
  echo "$log"
  ! grep -qi 'device not supported' <<<"$log" || return 77
  return $status
}

export -f environment build tests sanitize
export root python device
small=()
if [ "$device" = cuda ]; then
  step 30 environment bash -c environment
  export PYTHONPATH=$root/build/gpu/package CUDA_MODULE_LOADING=LAZY
  step 180 build bash -c build || { echo "$passed passed, $failed failed, $skipped skipped"; exit 1; }
else
  small=(--small)
fi
step 60 kernels bash -c 'tests tests/gpu/test_kernels.py'
step 60 training bash -c 'tests tests/gpu/test_training.py'
step 40 bandwidth "$python" benchmarks/gpu.py kernels --device "$device" --json "$out/kernels.json" "${small[@]}"
step 40 linear "$python" benchmarks/gpu.py linear --device "$device" --json "$out/linear.json" "${small[@]}"
step 40 block "$python" benchmarks/gpu.py block --device "$device" --json "$out/block.json" "${small[@]}"
# 2^32 floats where there is a GPU; the CPU backend, with which they are compared, takes most of the time
chunks=128
[ "$device" = cuda ] || chunks=1
step 120 all_floats "$python" tests/gpu/all_floats.py --device "$device" --chunks $chunks
if [ "$device" = cuda ]; then
  for tool in memcheck racecheck; do
    step 40 $tool bash -c "sanitize $tool"
  done
fi
echo "$passed passed, $failed failed, $skipped skipped in $((SECONDS - begin)) s" >>"$out/summary.txt"
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] || exit 1
[ $passed -gt 0 ] || exit 77
