#!/usr/bin/env bash
# Everything that only a GPU can tell, in at most 8 minutes: cheap and decisive steps first, each with its own limit and
# log. Needs nvcc 12.9 or later, cmake, ninja and a Python with torch, pybind11 and pytest; no network, no GoogleTest:
# the tests are Python's, over the same ops and cases as the C++ tests on the emulator.
#
#   bash tests/gpu/gpu_check.sh                  on a machine with a GPU; 77 without
#   bash tests/gpu/gpu_check.sh --device cpu     that the Python steps run at all, with the fp8amp that Python finds;
#                                                ten times the time
#
# The last line is "N passed, N failed, N skipped"; exit 1 if a step failed, 77 if none passed. Logs, figures and the
# summary go to benchmarks/gpu/<card>-<date>/, or to $OUT.
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root" || exit 1
PATH=$PATH:/usr/local/cuda/bin
python=${PYTHON:-python3}
device=cuda
case "${1-} ${2-}" in
  " " | "--device cuda") ;;
  "--device cpu") device=cpu ;;
  *) sed -n '2,/^[^#]/s/^# \?//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
passed=0 failed=0 skipped=0 begin=$SECONDS total=480 # seconds

card=$(timeout 60 "$python" -c 'import torch; print(torch.cuda.get_device_name(0).lower().replace(" ", "-"))' 2>/dev/null)
if [ "$device" = cuda ] && [ -z "$card" ]; then
  echo "no CUDA device that torch can use: nothing is checked"
  echo "0 passed, 0 failed, 0 skipped"
  exit 77
fi
out=${OUT:-$root/benchmarks/gpu/$card-$(date +%F)}
slower=1
[ "$device" = cuda ] || { out=${OUT:-$root/build/gpu_check} slower=10; }
mkdir -p "$out" && : >"$out/summary.txt" || exit 1

# step LIMIT NAME COMMAND...: passes with exit 0, is skipped with 77, and where less than LIMIT was left and did not do
step() {
  local limit=$(($1 * slower)) name=$2 start=$SECONDS left=$((total * slower - SECONDS + begin)) result status=77 cut=
  shift 2
  [ "$limit" -le "$left" ] || limit=$left cut=1
  if [ "$limit" -gt 0 ]; then
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1 </dev/null
    status=$?
  else
    echo "no time left" >"$out/$name.log"
  fi
  case $status in
    0) result=passed passed=$((passed + 1)) ;;
    77) result=skipped skipped=$((skipped + 1)) ;;
    124 | 137)
      if [ -n "$cut" ]; then
        result="skipped, cut at $limit s" skipped=$((skipped + 1)) status=77
      else
        result="FAILED, over $limit s" failed=$((failed + 1))
      fi
      ;;
    *) result="FAILED, exit $status" failed=$((failed + 1)) ;;
  esac
  printf '%-12s %-20s %3d s  %s\n' "$name" "$result" $((SECONDS - start)) "$(tail -n 1 "$out/$name.log" | cut -c1-100)" |
    tee -a "$out/summary.txt"
  return "$status"
}

finish() {
  local line="$passed passed, $failed failed, $skipped skipped"
  echo "$line in $((SECONDS - begin)) s" >>"$out/summary.txt"
  echo "$line"
  [ $failed = 0 ] || exit 1
  [ $passed -gt 0 ] || exit 77
  exit 0
}

environment() {
  nvidia-smi || true
  nvcc --version && cmake --version && ninja --version || return 1
  "$python" - <<'P'
import sys, torch
print(sys.version)
print(torch.__version__, "CUDA", torch.version.cuda)
p = torch.cuda.get_device_properties(0)
print(p)
x = torch.ones(1 << 20, device="cuda")
assert float(x.sum()) == 1 << 20
print(f"{p.name}, compute capability {p.major}.{p.minor}, {p.multi_processor_count} processors")
P
}

# The package of this tree, for this GPU alone, in build/gpu/package. Its sitecustomize.py takes away the finder of an
# editable install of fp8amp, which goes before PYTHONPATH.
build() {
  local arch package=$root/build/gpu/package
  arch=$("$python" -c 'import torch; print("%d%d" % torch.cuda.get_device_capability(0))') &&
    cmake -S . -B build/gpu -G Ninja -DPython_EXECUTABLE="$(command -v "$python")" -DFP8AMP_CUDA=ON \
      -DFP8AMP_CUDA_ARCHS="$arch" -DFP8AMP_PYTHON=ON -DFP8AMP_TESTS=OFF -DCMAKE_INSTALL_LIBDIR=lib &&
    cmake --build build/gpu && rm -rf "$package" && mkdir -p "$package" && cp -r python/fp8amp "$package/" &&
    cmake --install build/gpu --prefix "$package/fp8amp" --component core &&
    cmake --install build/gpu --prefix "$package/fp8amp" --component python &&
    echo 'import sys; sys.meta_path[:] = [f for f in sys.meta_path if "fp8amp" not in getattr(f, "__module__", "")]' \
      >"$package/sitecustomize.py" && PYTHONPATH=$package "$python" - "$package/fp8amp" <<'P'
import pathlib, sys, fp8amp
found, wanted = pathlib.Path(fp8amp.__file__).parent, pathlib.Path(sys.argv[1])
assert found.samefile(wanted), f"python finds fp8amp in {found}, not in {wanted}: uninstall it"
print(fp8amp.build_info())
P
}

tests() { "$python" -m pytest -q -p no:cacheprovider "$@" --device "$device"; }

# Every tensor is an allocation of its own, so that an access behind one is seen.
sanitize() {
  local log status
  command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer"; return 77; }
  log=$(PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$1" --error-exitcode 9 "$python" -m pytest -q -x \
    -p no:cacheprovider tests/gpu/test_first.py -k 'not products' --device cuda 2>&1)
  status=$?
  echo "$log"
  ! grep -qi 'device not supported' <<<"$log" || return 77
  return $status
}

export -f environment build tests sanitize
export root python device
export PYTHONDONTWRITEBYTECODE=1 CUDA_MODULE_LOADING=LAZY
measure=(--device "$device") chunks=128
if [ "$device" = cuda ]; then
  step 40 environment bash -c environment || finish
  step 180 build bash -c build || finish
  export PYTHONPATH=$root/build/gpu/package
else
  measure+=(--small) chunks=1
fi
step 60 first bash -c 'tests tests/gpu/test_first.py'
step 90 training bash -c 'tests tests/gpu/test_training.py'
step 60 bandwidth "$python" benchmarks/gpu.py kernels "${measure[@]}" --json "$out/kernels.json"
step 60 linear "$python" benchmarks/gpu.py linear "${measure[@]}" --json "$out/linear.json"
step 60 block "$python" benchmarks/gpu.py block "${measure[@]}" --json "$out/block.json"
step 40 graph "$python" benchmarks/gpu.py graph "${measure[@]}" --json "$out/graph.json"
step 60 products bash -c 'tests tests/gpu/test_products.py'
step 40 accuracy "$python" benchmarks/gpu.py products "${measure[@]}" --json "$out/products.json"
step 60 casts bash -c 'tests tests/gpu/test_kernels.py'
step 60 fused bash -c 'tests tests/gpu/test_fused.py'
step 60 adam bash -c 'tests tests/gpu/test_adam.py'
step 40 large bash -c 'tests tests/gpu/test_large.py'
# the CPU backend, with which they are compared, takes most of the time
step 120 all_floats "$python" tests/gpu/all_floats.py --device "$device" --chunks $chunks
if [ "$device" = cuda ]; then
  for tool in memcheck racecheck; do
    step 60 $tool bash -c "sanitize $tool"
  done
fi
finish
