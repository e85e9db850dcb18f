"""The CUDA kernels of `attention_step` without a GPU: nvcc takes them, and the CPU finds the right numbers.

For the latter the file is compiled as C++ beside the headers in cuda_on_cpu/, where the threads of a block are
coroutines. On a GPU test_attention_step_gpu.py runs them.
"""

import math
import subprocess
import sys

import pytest
import torch

from amago import kernels
from amago.kernels.attention import cuda_kernels
from amago.kernels.attention.api import _cuda_step
from amago.kernels.attention.options import StepOptions
from amago.kernels.native import ATTENTION_STEP_CUDA

pytestmark = pytest.mark.source_only

# Starts a kernel on no rows and prints what CUDA objects to: to that, or that there is no GPU.
START = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location(*sys.argv[1:])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
nothing = [(0, (0, 0, 0))] * 5
try:
    module.run("float32", "bfloat16", (0, 1, 1, 16, 1, 1), nothing, [0] * 6, (-1, 0), (0, 1, 1), [], 0)
except RuntimeError as error:
    print(error)
"""
OPTIONS = [
    {},
    {"window": 0},
    {"window": 3},
    {"window": 2, "sink": 2},
    {"window": 1, "sink": 3, "sink_bias": 0.7, "logit_clip": 0.9},
    {"sink": 2, "sink_bias": -1.5, "scale": 0.3},
]


@pytest.fixture(scope="module")
def on_cpu(cuda_on_cpu):
    """The module of the CUDA kernels, on the CPU."""
    return cuda_on_cpu(ATTENTION_STEP_CUDA, "const amago::StepCall")


def step(module, q, k, v, cache, positions=None, rotary_base=10000.0, **options):
    """One step (B, 1, H, D) by the kernels on the CPU, into memory full of NaN."""
    given = {"window": None, "sink": 0, "sink_bias": 0.0, "logit_clip": None, "scale": q.shape[-1] ** -0.5}
    out = torch.full((q.shape[0], *q.shape[2:]), math.nan, dtype=q.dtype)
    options = StepOptions(**given | options, rotary_base=rotary_base)
    cuda_kernels.launch(module, q[:, 0], k[:, 0], v[:, 0], cache, out, positions, options, 0)
    return out.unsqueeze(1)


def caches(rows, size, heads, dim, dtype, lengths):
    """A cache with a past, NaN where nothing was written; and the same in float64, 0 there."""
    generator = torch.Generator().manual_seed(size)
    lengths = torch.tensor(lengths)
    written = (torch.arange(size) < lengths.unsqueeze(1))[..., None, None]
    found = []
    for _ in range(2):
        past = torch.randn(rows, size, heads, dim, generator=generator).to(dtype)
        found.append((past.masked_fill(~written, math.nan), past.double().masked_fill(~written, 0.0)))
    (keys, wide_keys), (values, wide_values) = found
    return kernels.RingCache(keys, values, lengths), kernels.RingCache(wide_keys, wide_values, lengths)


def assert_equal_to_the_formula(module, shape, lengths, dtype, *, given=None, positions=None, **options):
    cache, wide = caches(*shape, dtype, lengths)
    generator = torch.Generator().manual_seed(1)
    rows, _, heads, dim = shape
    qkv = torch.randn(rows, 1, 3, heads, dim, generator=generator).to(given or dtype).unbind(2)
    base = {} if positions is None else {"positions": torch.tensor(positions), "rotary_base": 100.0}
    out = step(module, *qkv, cache, **options, **base)
    exact = kernels.attention_step(*(x.double() for x in qkv), wide, backend="eager", **options, **base)
    assert out.dtype == qkv[0].dtype
    close = 3e-6 if dtype == torch.float32 and out.dtype == dtype else 3e-2
    torch.testing.assert_close(out.double(), exact, atol=close, rtol=close)
    for mine, wanted in ((cache.keys, wide.keys), (cache.values, wide.values)):
        torch.testing.assert_close(mine.double().nan_to_num(), wanted, atol=close, rtol=close)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_at_every_fill_of_the_ring(on_cpu, options):
    lengths = [0, 1, 3, 4, 5, 6, 11, 2**40]
    assert_equal_to_the_formula(on_cpu, (8, 5, 1, 16), lengths, torch.float32, **options)
    assert_equal_to_the_formula(on_cpu, (8, 5, 1, 16), lengths, torch.float32, positions=range(8), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [16, 40, 128])
def test_every_dtype_and_head_dimension(on_cpu, dim, dtype):
    for heads in (1, 6):
        assert_equal_to_the_formula(
            on_cpu, (1, 21, heads, dim), [30], dtype, positions=[7], window=18, sink=1
        )


@pytest.mark.parametrize(("heads", "size"), [(1, 700), (3, 1500)])
def test_slots_shared_by_several_blocks_are_joined(on_cpu, heads, size):
    for length in (0, 1, size // 2, size - 1, size + 7):
        assert_equal_to_the_formula(on_cpu, (1, size, heads, 32), [length], torch.bfloat16)
    assert_equal_to_the_formula(
        on_cpu, (1, size, heads, 32), [2 * size], torch.float32, window=size // 2, sink=9
    )


def test_inputs_of_another_dtype_or_layout_than_the_cache(on_cpu):
    assert_equal_to_the_formula(on_cpu, (2, 9, 2, 16), [4, 20], torch.float32, given=torch.bfloat16)
    assert_equal_to_the_formula(on_cpu, (2, 9, 2, 16), [4, 20], torch.float16, given=torch.float32)
    memory = torch.randn(2, 3, 9, 4, 32, generator=torch.Generator().manual_seed(0))
    cache = kernels.RingCache(*memory.clone()[:, :, :, 1:3, 8:24], torch.tensor([3, 9, 40]))
    other = kernels.RingCache(*memory.clone()[:, :, :, 1:3, 8:24], cache.lengths)
    q, k, v = torch.randn(3, 3, 1, 16, 2, generator=torch.Generator().manual_seed(1)).transpose(3, 4)
    torch.testing.assert_close(
        step(on_cpu, q, k, v, cache), kernels.attention_step(q, k, v, other, backend="eager")
    )
    assert torch.equal(cache.keys, other.keys)
    assert torch.equal(cache.values, other.values)


def test_a_cache_that_begins_between_sixteen_bytes_is_refused(on_cpu):
    memory = torch.zeros(2, 1 * 4 * 2 * 16 + 2)
    aligned, shifted = (memory[:, first : first + 128].view(2, 1, 4, 2, 16) for first in (0, 1))
    x, lengths = torch.zeros(1, 1, 2, 16), torch.zeros(1, dtype=torch.int64)
    refusal = "16 does not divide"
    for keys, values in ((shifted[0], aligned[0]), (aligned[0], shifted[0])):
        cache = kernels.RingCache(keys, values, lengths)
        with pytest.raises(RuntimeError, match=refusal):
            kernels.attention_step(x, x, x, cache, backend="cuda")
        with pytest.raises(ValueError, match=f"begin at an address that {refusal}: clone them"):
            step(on_cpu, x, x, x, cache)
    cache = kernels.RingCache(aligned[0], aligned[0], lengths)
    assert not any(refusal in reason for reason in _cuda_step.unsupported(x, x, x, cache))


def test_nvcc_builds_the_module(build_for_gpu):
    """Another process loads it, where no other module has the name."""
    path = build_for_gpu(ATTENTION_STEP_CUDA, 90)
    command = [sys.executable, "-c", START, ATTENTION_STEP_CUDA.name, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "the attention kernel could not be started: " in done.stdout


def test_a_call_that_cannot_run_says_why():
    if torch.cuda.is_available():
        return
    cache = kernels.RingCache.empty(1, 4, 2, 20, dtype=torch.float16)
    x = torch.zeros(1, 1, 2, 20)
    with pytest.raises(
        RuntimeError, match=r"cuda: its kernels need a CUDA device and q is on cpu.* to 8 numbers"
    ):
        kernels.attention_step(x, x, x, cache, backend="cuda")
    with pytest.raises(RuntimeError, match=r"triton: its kernels need a CUDA device and q is on cpu"):
        kernels.attention_step(x, x, x, cache, backend="triton")
