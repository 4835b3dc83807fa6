#!/usr/bin/env bash
# The GPU tests and the benchmark, on a machine with a GPU, CUDA 13 and Python 3.12 that need not reach a network:
#
#     tests/device/run.sh [FOLDER]
#
# FOLDER has wheels that are installed for this run alone (default: $HYAD_WHEELS, else ../shared/device-wheels beside
# the repository); NumPy and SymPy are the machine's own, JAX and PyTorch are compared with where it has them. PYTHON
# names the interpreter. It prints one table, writes it to $OUT/RESULTS-gpu.md where OUT is set, ends with a status that
# is not 0 where a test failed or there is no GPU, and takes less than eight minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
wheels=${1:-${HYAD_WHEELS:-../shared/device-wheels}}
python=${PYTHON:-python3}
started=$SECONDS

command -v "$python" >/dev/null || { echo "there is no $python: set PYTHON" >&2; exit 2; }
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
  echo "this machine has no NVIDIA GPU that nvidia-smi can see: nothing is run" >&2
  exit 2
fi
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
if compgen -G "$wheels/*.whl" >/dev/null; then
  "$python" -m pip install -q --disable-pip-version-check --no-index --no-deps --no-compile --no-cache-dir \
    --target "$place/site" "$wheels"/*.whl
else
  echo "there are no wheels in $wheels: pycuda and hy must be those of $python" >&2
fi
export PYTHONPATH="$PWD:$place/site" HYAD_CACHE="$place/cache" PYTHONUNBUFFERED=1
unset PYTHONDONTWRITEBYTECODE

status=0
"$python" tests/device/checks.py --seconds 200 || status=$?
[ $status != 2 ] || exit 2
echo "tests: $((SECONDS - started)) s"
left=$((400 - (SECONDS - started)))
"$python" tests/device/bench.py --seconds $((left > 60 ? left : 60)) ${OUT:+--output "$OUT/RESULTS-gpu.md"} || status=1
echo "all: $((SECONDS - started)) s"
exit $status
