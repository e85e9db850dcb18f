"""The GPU kernels of `attention_step` against the eager version in float64.

On a GPU these tests run on it. Elsewhere test_interpreter.py runs those of Triton's kernels in its
interpreter, and test_attention_step_cuda.py runs the CUDA kernels on the CPU.
"""

import math

import pytest
import torch

from amago import kernels
from amago.kernels.triton_runtime import INTERPRETED

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32, torch.float16] + ([] if INTERPRETED else [torch.bfloat16])
on_gpu = pytest.mark.gpu if not INTERPRETED else pytest.mark.filterwarnings("default")
BACKENDS = ["triton"] if INTERPRETED else ["triton", "cuda"]
EVERYTHING = {"window": 3, "sink": 2, "sink_bias": -0.5, "logit_clip": 1.0, "rotary_base": 100.0}
OPTIONS = [
    {},
    {"window": 0},
    {"window": 2, "sink": 2},
    {"sink": 2, "sink_bias": -1.5, "scale": 0.3},
    {"rotary_base": 10000.0},
    EVERYTHING,
]


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def normal(*shape, seed=0, dtype=torch.float32, device=DEVICE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)


def assert_step_errs_at_most_twice_as_much_as_eager(qkv, cache, backend, **options):
    """One step against float64: output and what the cache holds then, no worse than twice eager, or rounding.

    Slots without a step of the episode are NaN: whoever reads them fails.
    """
    size = cache.window
    written = (torch.arange(size, device=cache.lengths.device) < cache.lengths.unsqueeze(1))[..., None, None]

    def past(x, filler, dtype):
        return x.to(dtype, copy=True).masked_fill(~written, filler)

    found = []
    for name, filler, dtype in (
        (backend, math.nan, None),
        ("eager", 0.0, None),
        ("eager", 0.0, torch.float64),
    ):
        keys, values = (past(x, filler, dtype or x.dtype) for x in (cache.keys, cache.values))
        given = [x.to(dtype or x.dtype) for x in qkv]
        ring = kernels.RingCache(keys, values, cache.lengths)
        out = kernels.attention_step(*given, ring, backend=name, **options)
        found.append((out, keys.nan_to_num(), values.nan_to_num()))
    for name, mine, plain, exact in zip(("out", "keys", "values"), *found, strict=True):
        assert (mine.dtype, mine.shape) == (plain.dtype, exact.shape)
        largest = exact.abs().max().item() + 1e-30
        error = (mine.double() - exact).abs().max().item()
        rounding = max(2e-6, torch.finfo(mine.dtype).eps) * largest
        allowed = 2 * (plain.double() - exact).abs().max().item() + rounding
        assert error <= allowed, f"{name}: {error} > {allowed} of {largest}"


def ring(rows, size, heads, dim, lengths, dtype=torch.float32):
    keys, values = (normal(rows, size, heads, dim, seed=seed, dtype=dtype) for seed in (1, 2))
    return kernels.RingCache(keys, values, torch.tensor(lengths, device=DEVICE))


def packed_qkv(rows, heads, dim, dtype=torch.float32):
    return normal(rows, 1, 3, heads, dim, dtype=dtype).unbind(2)


@on_gpu
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_triton_and_cuda_match_eager_at_every_fill_of_the_ring(backend, poisoned, options):
    cache = ring(8, 5, 2, 16, [0, 1, 3, 4, 5, 6, 11, 1003])
    assert_step_errs_at_most_twice_as_much_as_eager(packed_qkv(8, 2, 16), cache, backend, **options)


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", [[0], [350], [1500]], ids=str)
def test_triton_and_cuda_join_the_splits_of_a_row(backend, poisoned, lengths, dtype):
    cache = ring(1, 700, 2, 64, lengths, dtype)
    qkv = packed_qkv(1, 2, 64, dtype)
    assert_step_errs_at_most_twice_as_much_as_eager(qkv, cache, backend)
    assert_step_errs_at_most_twice_as_much_as_eager(qkv, cache, backend, window=300, sink=70)


@on_gpu
def test_triton_and_cuda_follow_a_rollout_with_resets(backend):
    caches = {
        name: kernels.RingCache.empty(3, 4, 2, 16, device=DEVICE, dtype=torch.float32)
        for name in (backend, "eager")
    }
    for t in range(9):
        qkv = normal(3, 1, 3, 2, 16, seed=t).unbind(2)
        outs = []
        for name, cache in caches.items():
            if t == 6:
                cache.reset(torch.tensor([1], device=DEVICE))
            outs.append(kernels.attention_step(*qkv, cache, backend=name, window=2, rotary_base=10.0))
            cache.advance()
        torch.testing.assert_close(*outs, atol=1e-5, rtol=1e-5)


@on_gpu
def test_triton_takes_a_cache_that_begins_anywhere_and_cuda_says_why_not(backend):
    memory = normal(2, 4 * 2 * 16 + 1)[:, 1:].view(2, 1, 4, 2, 16)
    x, lengths = normal(1, 1, 2, 16), torch.tensor([2], device=DEVICE)
    caches = [kernels.RingCache(*memory.clone(), lengths), kernels.RingCache(*memory, lengths)]
    if backend == "cuda":
        with pytest.raises(RuntimeError, match="begins at an address that 16 does not divide"):
            kernels.attention_step(x, x, x, caches[1], backend=backend)
        return
    ours, other = (kernels.attention_step(x, x, x, cache, backend=backend) for cache in caches)
    torch.testing.assert_close(ours, other)


@pytest.mark.gpu
def test_steps_replay_in_a_cuda_graph(backend):
    """The lengths move inside: a graph that was recorded once goes through a whole rollout."""
    cache, other = (kernels.RingCache.empty(4, 300, 2, 64, device="cuda") for _ in range(2))
    qkv = [torch.zeros(4, 1, 2, 64, device="cuda") for _ in range(3)]
    options = {"rotary_base": 10000.0, "backend": backend}
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # compiles and loads the kernels before the recording
        kernels.attention_step(*qkv, kernels.RingCache.empty(4, 300, 2, 64, device="cuda"), **options)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernels.attention_step(*qkv, cache, **options)
        cache.advance()
    for t in range(310):
        for i, x in enumerate(qkv):
            x.copy_(normal(4, 1, 2, 64, seed=3 * t + i, device="cuda"))
        graph.replay()
        if t % 50 in (0, 9):
            expected = kernels.attention_step(*qkv, other, rotary_base=10000.0, backend="eager")
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
        other.keys.copy_(cache.keys)
        other.values.copy_(cache.values)
        other.advance()
