#!/usr/bin/env bash
# Sets up .venv, builds fp8amp and trains the tiny GPT at O2, about five minutes on two cores. Arguments go to train.py.
# A run of before in out/quickstart is deleted; --resume goes on with it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source "$root/.ci/setup.sh"

fp8amp_setup
if [[ -e $root/out/quickstart && " $* " != *" --resume "* ]]; then
  say "out/quickstart of before is replaced (--resume goes on with it)"
fi
say "training the tiny GPT at O2"
exec python "$root/examples/gpt/train.py" --size tiny --precision O2 --out "$root/out/quickstart" --overwrite "$@"
