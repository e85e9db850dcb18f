#!/usr/bin/env bash
# Correctness of amago.kernels, then its benchmarks, on a machine with a GPU: benchmarks/gpu.sh [FOLDER]
#
# Runs from the source tree and needs Python (PYTHON names it), torch, triton, pybind11 and nvcc; no installation. FOLDER
# (benchmarks/results by default) gets a log of each step, and kernels.csv. A step that fails does not stop the next one;
# the exit status is then 1. All together takes less than 9 minutes.
set -u -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
out=${1:-benchmarks/results}
python=${PYTHON:-python3}
mkdir -p "$out"
export PYTHONPATH="$PWD/packages/amago-kernels/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"
export AMAGO_KERNELS_CACHE=${AMAGO_KERNELS_CACHE:-$PWD/build/home/amago-kernels}
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$PWD/build/home/triton}

status=0
step() { # NAME SECONDS COMMAND...: runs a command with a time limit, its output in a log of that name
    local name=$1 limit=$2 begin=$SECONDS
    shift 2
    timeout --kill-after=10 "$limit" "$@" >"$out/$name.log" 2>&1
    local code=$?
    echo "$name: status $code after $((SECONDS - begin)) s"
    [ $code = 0 ] || status=1
}

operations=$("$python" -c 'from amago.kernels import available_backends; print(*available_backends())') || exit 2
step build 80 "$python" -m amago.kernels.build
step doctor 30 "$python" -m amago.kernels.doctor
# shellcheck disable=SC2086
step correctness 180 env OMP_NUM_THREADS=1 xargs -P 8 -n 1 "$python" -m tests.kernels.testing --device cuda --only \
    <<<"$operations"
step benchmarks 240 "$python" -m benchmarks.kernels --device cuda --seconds 110 --output "$out/kernels.csv"
exit $status
