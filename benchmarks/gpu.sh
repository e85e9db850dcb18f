#!/usr/bin/env bash
# Correctness of amago.kernels, then its benchmarks, on a machine with a GPU.
#
#   benchmarks/gpu.sh [--cpu] [FOLDER]
#
# It runs from the source tree and needs bash, Python, torch, triton and pybind11; no installation. Everything goes to
# FOLDER (else $OUT, else benchmarks/results): a log of each step, kernels.csv (of `python -m benchmarks.kernels`) and
# summary.txt. A step that fails or takes too long does not keep the next one from running; the exit status is then 1.
# All together takes less than 9 minutes: each step has a limit, and none begins after SECONDS_IN_ALL.
#
#   --cpu        the same on the CPU with small sizes, to try the script where there is no GPU
#   PYTHON       the interpreter (python3)
#   OPERATIONS   the operations to run (all)
#   COMMIT       what the rows give as the commit, where this is a copy without git's folder
set -u -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2

device=cuda
if [ "${1:-}" = --cpu ]; then
    device=cpu
    shift
fi
out=${1:-${OUT:-benchmarks/results}}
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
python=${PYTHON:-python3}
jobs=$(($(nproc) < 12 ? $(nproc) : 12)) # each takes some gigabytes of the GPU's memory
seconds_in_all=${SECONDS_IN_ALL:-520}
export PYTHONPATH="$PWD/packages/amago-kernels/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"
export AMAGO_KERNELS_CACHE=${AMAGO_KERNELS_CACHE:-$PWD/build/home/amago-kernels}
mkdir -p "$AMAGO_KERNELS_CACHE" || exit 2
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$PWD/build/home/triton}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$PWD/build/home/inductor}

if [ "$device" = cuda ] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "$python sees no CUDA device: run it on a machine with one, or try the script with --cpu" >&2
    exit 2
fi
operations=${OPERATIONS:-$("$python" -c 'from amago.kernels import available_backends; print(*available_backends())')} || exit 2

status=0
say() { echo "$*" | tee -a "$out/summary.txt"; }

# step NAME SECONDS COMMAND...: runs a command with a limit, its output in a log of that name.
step() {
    local name=$1 limit=$2 start=$SECONDS code=0
    shift 2
    local left=$((seconds_in_all - SECONDS))
    if [ "$left" -le 0 ]; then
        say "$name: not begun, out of time"
        status=1
        return
    fi
    timeout --kill-after=10 "$((limit < left ? limit : left))" "$@" >"$out/$name.log" 2>&1 || code=$?
    case $code in
        0) say "$name: done in $((SECONDS - start)) s" ;;
        124 | 137) say "$name: stopped after $((SECONDS - start)) s, $name.log holds what it did" ; status=1 ;;
        *) say "$name: FAILED with status $code after $((SECONDS - start)) s, see $name.log" ; status=1 ;;
    esac
}

# Commands for everything that can run side by side.
commands() {
    local operation backends failed
    # shellcheck disable=SC2016
    failed='|| { echo FAILED with status $?; exit 1; }'
    for operation in $operations; do
        for backends in "triton cuda mamba_ssm" "flex sdpa torch" "eager cpp onednn"; do
            echo "$python -m tests.kernels.testing --device $device --only $operation --backends $backends" \
                "--seconds 70 $failed"
        done
    done
    [ "$device" = cuda ] || return 0
    # What is compiled here side by side is found on the disk by the steps that time one thing after the other.
    # Whether it works is for those to say.
    for operation in $operations; do
        case $operation in
            attention) parts="0 1 2 3" ;;
            two_hot* | hl_gauss*) parts="0 1" ;;
            *) parts= ;;
        esac
        for part in $parts; do
            echo "$python -m benchmarks.kernels --device cuda --only $operation --compile-only $part --seconds 90" \
                "--no-save || true"
        done
    done
}

: >"$out/summary.txt"
say "amago.kernels on $device, $(date -u +%FT%TZ)"
natives="amago_two_hot_cuda amago_attention_step_cuda"
[ "$device" = cuda ] || natives="amago_two_hot amago_attention_step amago_selective_scan"
# shellcheck disable=SC2086
step build 80 "$python" -m amago.kernels.build $natives

commands >"$out/commands.txt"
step correctness 150 env OMP_NUM_THREADS=1 xargs -a "$out/commands.txt" -P "$jobs" -I '{}' sh -c '{}'

quick=
[ "$device" = cuda ] || quick=--quick
# shellcheck disable=SC2086
step benchmarks 240 "$python" -m benchmarks.kernels --device "$device" $quick --seconds 110 \
    --only $operations --output "$out/kernels.csv"
step doctor 30 "$python" -m amago.kernels.doctor
# With the time that is left, the test suite's own tests for a GPU.
if [ "$device" = cuda ] && [ $((seconds_in_all - SECONDS)) -gt 40 ] &&
    "$python" -c 'import numpy, pytest, pytest_timeout, safetensors, xdist' 2>/dev/null; then
    step pytest 200 "$python" -m pytest -n 8 -p no:cacheprovider -q -m gpu tests/kernels
fi
say "$([ $status = 0 ] && echo "all went well" || echo "something failed") after $SECONDS s"
exit $status
