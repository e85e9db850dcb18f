"""`attention_step` in C++ against histories of every row written out in float64."""

import math

import pytest
import torch

from amago import kernels

OPTIONS = [
    {},
    {"window": 0},
    {"window": 3},
    {"window": 2, "sink": 2},
    {"window": 1, "sink": 3, "sink_bias": 0.7, "logit_clip": 0.9},
    {"sink": 2, "sink_bias": -1.5, "scale": 0.3},
]


def expected(q, history, *, window=None, sink=0, sink_bias=0.0, logit_clip=None, scale=None):
    """Attention of one query (H, D) to the keys and values (n, H, D) of its row, the oldest first; float64."""
    k, v = (torch.stack([step[i] for step in history]).double() for i in range(2))
    place = torch.arange(len(history))
    scores = torch.einsum("hd,nhd->hn", q.double(), k) * (scale or 1 / math.sqrt(q.shape[-1]))
    scores = scores + sink_bias * (place < sink)
    if logit_clip is not None:
        scores = scores.clamp(-logit_clip, logit_clip)
    if window is not None:
        seen = (len(history) - 1 - place <= window) | (place < sink)
        scores = scores.masked_fill(~seen, -math.inf)
    return torch.einsum("hn,nhd->hd", scores.softmax(-1), v)


def play(shape, steps, options, dtype=torch.float32, seed=0, packed=False):
    """A rollout with resets; yields what C++ computes and the float64 truth at each step and row."""
    rows, size, heads, dim = shape
    g = torch.Generator().manual_seed(seed)
    cache = kernels.RingCache.empty(rows, size, heads, dim, dtype=dtype)
    cache.keys.fill_(math.nan)  # what was never written is never read
    cache.values.fill_(math.nan)
    histories = [[] for _ in range(rows)]
    for t in range(steps):
        if t % 7 == 5:
            cache.reset(torch.tensor([t % rows]))
            histories[t % rows] = []
        qkv = torch.randn(rows, 1, 3, heads, dim, generator=g).to(dtype)
        q, k, v = qkv.unbind(2) if packed else (x.contiguous() for x in qkv.unbind(2))
        out = kernels.attention_step(q, k, v, cache, backend="cpp", **options)
        cache.advance()
        for row, history in enumerate(histories):
            history.append((k[row, 0], v[row, 0]))
            del history[:-size]
            yield out[row, 0], expected(q[row, 0], history, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 2, 8), (1, 1, 1, 3), (2, 9, 3, 32), (2, 6, 2, 24)], ids=str)
def test_every_step_equals_the_formula(shape, options):
    for seed, packed in ((0, False), (1, True)):
        for out, truth in play(shape, 16, options, seed=seed, packed=packed):
            torch.testing.assert_close(out.double(), truth, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dim", [1, 8, 16, 24, 33, 64, 80, 128])
@pytest.mark.parametrize("options", [{}, {"window": 30, "sink": 3, "sink_bias": 0.5}], ids=str)
def test_vector_widths_and_their_remainders(dim, options):
    for out, truth in play((3, 43, 2, dim), 60, options):
        torch.testing.assert_close(out.double(), truth, atol=1e-5, rtol=1e-5)


def test_threads_change_nothing_and_the_cache_may_be_part_of_something():
    before = torch.get_num_threads()
    g = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 5, 1, 3, 32, generator=g)
    memory = torch.randn(2, 5, 300, 4, 32, generator=g)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        keys, values = memory.clone()[:, :, :, 1:]
        cache = kernels.RingCache(keys, values, torch.tensor([0, 3, 299, 300, 1000]))
        results.append((kernels.attention_step(q, k, v, cache, backend="cpp"), keys, values))
    torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True))


def test_a_row_of_a_negative_length_is_refused_and_nothing_is_written():
    cache = kernels.RingCache.empty(3, 4, 2, 8)
    cache.lengths[1] = -2
    with pytest.raises(ValueError, match="lengths must be at least 0, but row 1 has -2"):
        kernels.attention_step(*torch.ones(3, 3, 1, 2, 8), cache, backend="cpp")
    assert not cache.keys.any()
    assert not cache.values.any()


def test_a_call_that_needs_a_gradient_or_another_dtype_says_so_and_auto_computes_it():
    cache = kernels.RingCache.empty(1, 4, 2, 8)
    q, k, v = torch.randn(3, 1, 1, 2, 8)
    q.requires_grad_()
    with pytest.raises(RuntimeError, match="cpp: it has no gradient, and an input needs one"):
        kernels.attention_step(q, k, v, cache, backend="cpp")
    assert kernels.attention_step(q, k, v, cache).requires_grad
    with torch.no_grad():
        kernels.attention_step(q, k, v, cache, backend="cpp")
