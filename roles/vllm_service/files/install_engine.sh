#!/usr/bin/env bash
# Fill the engine's virtual environment from its lock, and see that its command runs. Run on the host by the role:
#   install_engine.sh UV VENV SOURCE BUILD TORCH_BACKEND LOG
# What uv says goes to LOG as it comes, and to the caller when it ends.
set -euo pipefail
uv=$1 venv=$2 source=$3 build=$4 torch_backend=$5 log=$6
python=$venv/bin/python

say() { printf '%(%H:%M:%S)T %s\n' -1 "$*"; }

install() {
  if [ "$build" = cpu ]; then
    # torch alone comes from the place of --torch-backend. The hashes of the other packages that uv would take from
    # there as well are those of the default index.
    say "torch"
    "$uv" pip install --python "$python" --no-deps --require-hashes --only-binary :all: --compile-bytecode \
      ${torch_backend:+--torch-backend "$torch_backend"} --requirements "$source/cpu-torch.txt"
    torch_backend=
  fi
  say "the engine and all that it needs"
  "$uv" pip sync --python "$python" --require-hashes --only-binary :all: --compile-bytecode \
    ${torch_backend:+--torch-backend "$torch_backend"} "$source/$build.txt"
  if [ "$build" = cpu ]; then
    say "metadata and import hook"
    "$uv" pip install --python "$python" --no-deps --no-index --no-cache --reinstall "$source/cpu_shim"
  fi
  say "proof: the engine's own command"
  output=$(cd / && "$venv/bin/vllm" --version 2>&1)
  printf '%s\n' "$output"
  # The command runs even where a library of the system is missing that the engine's own code needs.
  if [ "$build" = cpu ] && grep -q 'Failed to import from vllm' <<<"$output"; then
    say "the engine's compiled code cannot be loaded (see above)"
    exit 1
  fi
  say "done"
}

install 2>&1 | tee "$log"
