#!/usr/bin/env bash
# Runs every test of fp8amp on a bare Debian or Ubuntu: sets up .venv itself (.ci/setup.sh says what can be set from
# outside) and stops at the first step that fails. Quick the second time.
#
#   bash tests/run.sh               all steps but the last three
#   bash tests/run.sh cpp python    only these
#
#   lint       clang-format, ruff, include direction, rules for files, mypy --strict
#   cpp        C++ tests, those of the CUDA kernels on an emulator too, warnings as errors
#   sanitize   C++ tests under AddressSanitizer and UBSan
#   threads    those with threads, and the CUDA kernels, under ThreadSanitizer
#   install    cmake --install, find_package, the C++ example from the installed package
#   compilers  C++ tests with clang, the C++ example on aarch64 (qemu), where these are installed
#   cuda       the kernels as nvcc sees them, the CUDA library for one GPU (where nvcc is installed)
#   python     tests of the Python package
#   example    examples/gpt/quickstart.sh for a few steps
#   exhaustive all 2^32 floats through the conversions, minutes to an hour
#   mutation   faults seeded in the CUDA backend, one by one: do its tests find them? Five minutes, and a build
#   newest     the same binary with the newest torch, in .venv-newest
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
source .ci/setup.sh

step_lint() {
  git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 clang-format --dry-run -Werror
  ruff check .
  python .ci/check_includes.py
  python .ci/check_files.py
  mypy python/fp8amp
}

# configure FOLDER [cmake option ...]
configure() {
  local folder=build/$1
  shift
  cmake -S . -B "$folder" -G Ninja -DPython_EXECUTABLE="$VIRTUAL_ENV/bin/python" -DFP8AMP_WERROR=ON "$@" | grep -- '-- fp8amp'
}

# build FOLDER [cmake option ...]: configures and builds build/FOLDER
build() {
  configure "$@"
  cmake --build "build/$1"
}

step_cpp() {
  build cpp
  ctest --test-dir build/cpp --no-tests=error --output-on-failure -j "$(nproc)"
}

step_sanitize() {
  build sanitize -DFP8AMP_SANITIZE=address,undefined
  FP8AMP_TEST_QUICK=1 ctest --test-dir build/sanitize --no-tests=error --output-on-failure -j "$(nproc)"
}

step_threads() {
  build threads -DFP8AMP_SANITIZE=thread \
    -DFP8AMP_TEST_FILTER='parallel|gemm_threads|adam_driver|norm|quantize|emulator|fake_runtime|casts_cuda|column_sums|adam_cuda|gemm_cuda|blocks_cuda|gemm_blocks|sum_shards|fused|grids'
  FP8AMP_TEST_QUICK=1 ctest --test-dir build/threads --no-tests=error --output-on-failure -j "$(nproc)"
}

site_packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("platlib"))'; }

# build_consumer SOURCE FOLDER PREFIX [cmake option ...]: a project that knows of fp8amp only what find_package tells
build_consumer() {
  local source=$1 folder=build/$2 prefix=$3
  shift 3
  rm -rf "$folder"
  cmake -S "$source" -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" \
    -DCMAKE_CXX_FLAGS='-Wall -Wextra -Werror -ffp-contract=off' --log-level=WARNING "$@" >/dev/null
  cmake --build "$folder"
}

step_install() {
  build cpp
  rm -rf build/prefix
  cmake --install build/cpp --prefix build/prefix --component core >/dev/null
  build_consumer examples/cpp two_layer_net "$root/build/prefix"
  build/two_layer_net/two_layer_net
  # the Python package holds the same, for C++ programs of those who have it from pip
  build_consumer tests/consumer consumer "$(site_packages python)/fp8amp"
  build/consumer/consumer
}

step_compilers() {
  if command -v clang++ >/dev/null; then
    build clang -DCMAKE_CXX_COMPILER=clang++
    FP8AMP_TEST_QUICK=1 ctest --test-dir build/clang --no-tests=error --output-on-failure -j "$(nproc)"
  else
    echo "skipped: no clang++"
  fi
  if command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null; then
    local target=(-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++)
    build aarch64 "${target[@]}" -DFP8AMP_TESTS=OFF
    cmake --install build/aarch64 --prefix build/prefix-aarch64 --component core >/dev/null
    build_consumer examples/cpp two_layer_net-aarch64 "$root/build/prefix-aarch64" "${target[@]}"
    echo "the example on aarch64 and here, number for number:"
    diff <(LD_LIBRARY_PATH=build/prefix-aarch64/lib qemu-aarch64 -L /usr/aarch64-linux-gnu \
      build/two_layer_net-aarch64/two_layer_net | tail -n +2) <(build/two_layer_net/two_layer_net | tail -n +2) && echo "equal"
  else
    echo "skipped: no aarch64-linux-gnu-g++ or qemu-aarch64"
  fi
}

step_cuda() {
  local PATH=$PATH:/usr/local/cuda/bin
  if command -v nvcc >/dev/null; then
    rm -rf build/kernels
    python .ci/kernel_lint.py --keep build/kernels
    python benchmarks/kernels.py --check --ptx build/kernels || [ $? = 77 ]
    build cuda -DFP8AMP_CUDA=ON -DFP8AMP_CUDA_ARCHS=90 -DFP8AMP_TESTS=OFF
    [ ! -x build/consumer/consumer ] || LD_LIBRARY_PATH=build/cuda build/consumer/consumer # loads without a driver
  else
    echo "skipped: no nvcc"
  fi
}

step_python() {
  local targets
  configure cpp
  targets=$(cmake --build build/cpp --target help)
  if [[ $targets == *fp8amp_torch_emulated* ]]; then
    cmake --build build/cpp --target fp8amp_torch_emulated
    export FP8AMP_EMULATED_TORCH=$root/build/cpp/tests/emulator/fp8amp_torch_emulated.so
  fi
  # a process forked after a thousand other tests inherits what they left: those that fork run by themselves
  local forks=tests/python/test_example_gpt_faults.py
  python -m pytest $forks -q
  python -m pytest tests/python -q --durations=5 -n "$(nproc)" --ignore=$forks
  python -m pytest tests/gpu -q --device cpu # what gpu_check.sh runs on a GPU: here, that it runs
}

step_example() {
  bash examples/gpt/quickstart.sh --steps 5 --out build/quickstart --overwrite
  ls -l build/quickstart/{summary.json,metrics.jsonl,loss.png}
}

step_exhaustive() {
  local test
  build cpp
  for test in numerics cast dequantize fused_rows; do
    FP8AMP_TEST_EXHAUSTIVE=1 "build/cpp/tests/test_$test" --gtest_brief=1
  done
}

step_mutation() {
  configure cpp
  python tests/mutation/run.py build/cpp
}

# A second environment, made while other steps compile: the newest torch, without fp8amp.
newest_environment() {
  [ -x .venv-newest/bin/python ] || python3 -m venv .venv-newest
  .venv-newest/bin/python -m pip install -q --upgrade torch numpy pytest safetensors
}

step_newest() {
  local python=.venv-newest/bin/python torch='import torch; print(torch.__version__)'
  rm -rf build/wheel
  python -m pip wheel -q --no-build-isolation --no-deps -w build/wheel .
  $python -m pip install -q --no-deps --force-reinstall build/wheel/fp8amp-*.whl
  cmp "$(site_packages python)/fp8amp/fp8amp_torch.so" "$(site_packages $python)/fp8amp/fp8amp_torch.so"
  echo "built with torch $(python -c "$torch"), tested with torch $($python -c "$torch")"
  $python -m pytest -q tests/python/test_{quantize,scaled_tensor,linear,gradients,initialize,optimizer,compile,package}.py
}

current=setup
summary=()

run_step() {
  local log=build/log/$1.log start=$SECONDS
  current=$1
  say "$1: $(sed -n "s/^#   $1 \+//p" tests/run.sh)"
  "step_$1" 2>&1 | tee "$log"
  summary+=("$(printf '%-10s %4d s  %s' "$1" $((SECONDS - start)) "$(grep -E '[0-9]+ passed|tests passed' "$log" | tail -n 1)")")
}

steps=(lint cpp sanitize threads install compilers cuda python example)
case ${1-} in
  -h | --help) sed -n '2,/^[^#]/s/^# \?//p' tests/run.sh; exit ;;
  ?*) steps=("$@") ;;
esac
for step in "${steps[@]}"; do
  declare -F "step_$step" >/dev/null || die "no step '$step'; bash tests/run.sh --help lists them"
done

newest_job=
trap '[ $? = 0 ] || { printf "FAILED: %s\n" "$current"; kill $newest_job 2>/dev/null; }' EXIT
fp8amp_setup git libgtest-dev
mkdir -p build/log
if [[ " ${steps[*]} " == *" newest "* ]]; then
  newest_environment &>build/log/newest-environment.log &
  newest_job=$!
fi
for step in "${steps[@]}"; do
  [ "$step" != newest ] || wait $newest_job || die "$(cat build/log/newest-environment.log)"
  run_step "$step"
done
say "summary"
printf '%s\n' "${summary[@]}"
echo "all tests passed"
