# Sourced by tests/run.sh and examples/gpt/quickstart.sh, which have set $root to the repository.
#
#   fp8amp_setup [apt package ...]   makes the environment, builds fp8amp into it and puts it first on PATH
#
# Quick when nothing has changed. What may be set from outside:
#   FP8AMP_VENV    folder of the environment (default: .venv in the repository)
#   FP8AMP_TORCH   the torch to install (default: torch>=2.10); one that is there and fits is kept
#   PYTHON         the Python to make the environment with (default: python3)

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
die() { printf 'fp8amp: %s\n' "$*" >&2; exit 1; }

# Prints those of the given Debian packages that this machine lacks; it does not matter how it got the others.
missing_packages() {
  local package
  for package in "$@"; do
    case $package in
      python3) command -v "$host_python" ;;
      python3-venv) "$host_python" -c 'import ensurepip, venv' ;;
      python3-dev) "$host_python" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' ;;
      libgtest-dev) g++ -E -x c++ -include gtest/gtest.h /dev/null ;;
      *) command -v "$package" ;;
    esac &>/dev/null || printf '%s ' "$package"
  done
}

install_packages() {
  local sudo='' missing
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  [ "$(id -u)" = 0 ] || sudo='sudo -n'
  if ! command -v apt-get >/dev/null || ! ${sudo:-true} true 2>/dev/null; then
    die "missing: ${missing% }; to install: sudo apt-get install -y --no-install-recommends ${missing% }"
  fi
  say "apt-get install $missing"
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
  missing=$(missing_packages "$@")
  [ -z "$missing" ] || die "still missing after apt-get install: $missing(is $host_python another Python than apt's?)"
}

# changed NAME TEXT: whether TEXT is another than at the last `done_with NAME TEXT` in this environment
changed() { [ "$(cat "$VIRTUAL_ENV/.fp8amp-$1" 2>/dev/null)" != "$2" ]; }
done_with() { echo "$2" >"$VIRTUAL_ENV/.fp8amp-$1"; }

# One number for all that the build depends on.
sources_hash() {
  { cd "$root"
    find CMakeLists.txt pyproject.toml include kernels src python/CMakeLists.txt python/bindings -type f -print0 |
      sort -z | xargs -0 sha256sum
  } | sha256sum
}

fp8amp_setup() {
  local venv=${FP8AMP_VENV:-$root/.venv} torch=${FP8AMP_TORCH:-torch>=2.10} build
  export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
  host_python=${PYTHON:-python3}
  install_packages g++ python3 python3-venv python3-dev "$@"
  "$host_python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "needs Python 3.10 or newer, got $("$host_python" --version); name another: PYTHON=python3.12 bash $0"

  if [ ! -x "$venv/bin/pip" ]; then  # the last that venv makes
    say "new Python environment in $venv"
    "$host_python" -m venv "$venv"
  fi
  VIRTUAL_ENV=$(cd "$venv" && pwd)
  export VIRTUAL_ENV PATH="$VIRTUAL_ENV/bin:$PATH"

  if changed torch "$torch"; then
    say "torch and build tools from PyPI (torch is large: a few minutes the first time)"
    python -m pip install "$torch" 'scikit-build-core>=0.11' 'pybind11>=2.13' 'cmake>=3.25' ninja
    done_with torch "$torch"
  fi
  build="$torch $root $(sources_hash)"
  if changed build "$build"; then
    say "building fp8amp (one to two minutes the first time)"
    python -m pip install -q --no-build-isolation -e "$root[examples,test]"
    done_with build "$build"
  fi
}
