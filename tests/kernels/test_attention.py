"""`attention` and `attention_step` against formulas written out in float64, on every backend."""

import math

import pytest
import torch

from amago import kernels

BACKENDS = ["eager", "sdpa"]


def reference(q, k, v, *, causal=True, window=None, sink=0, sink_bias=0.0, logit_clip=None, lengths=None):
    """One query, head and row at a time, in float64."""
    q, k, v = (x.detach().double() for x in (q, k, v))
    rows, length, heads, dim = q.shape
    out = torch.zeros_like(q)
    for b in range(rows):
        stop = length if lengths is None else int(lengths[b])
        for i in range(stop):
            seen = [
                j
                for j in range(stop)
                if (not causal or j <= i) and (window is None or abs(i - j) <= window or j < sink)
            ]
            for h in range(heads):
                scores = torch.stack([q[b, i, h] @ k[b, j, h] / math.sqrt(dim) for j in seen])
                scores = scores + torch.tensor([sink_bias if j < sink else 0.0 for j in seen]).double()
                if logit_clip is not None:
                    scores = scores.clamp(-logit_clip, logit_clip)
                weights = scores.softmax(0)
                out[b, i, h] = sum(w * v[b, j, h] for w, j in zip(weights, seen, strict=True))
    return out


def random_qkv(rows=2, length=7, heads=3, dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, length, heads, dim, generator=generator) for _ in range(3)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": False},
        {"window": 2},
        {"window": 0},
        {"causal": False, "window": 1},
        {"window": 2, "sink": 2},
        {"lengths": torch.tensor([7, 3])},
        {"lengths": torch.tensor([0, 5]), "window": 1},
        {"causal": False, "lengths": torch.tensor([4, 1])},
    ],
    ids=str,
)
def test_attention_equals_the_formula(backend, options):
    q, k, v = random_qkv()
    out = kernels.attention(q, k, v, backend=backend, **options)
    torch.testing.assert_close(out.double(), reference(q, k, v, **options), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "options", [{"logit_clip": 0.5}, {"window": 1, "sink": 2, "sink_bias": -1.5, "logit_clip": 1.0}]
)
def test_scores_are_biased_and_then_clipped(options):
    q, k, v = random_qkv(seed=1)
    out = kernels.attention(q, k, v, **options)
    torch.testing.assert_close(out.double(), reference(q, k, v, **options), atol=1e-5, rtol=1e-4)


def test_dropout_keeps_the_expectation():
    torch.manual_seed(0)
    q, k, v = random_qkv(rows=1, length=4, heads=1)
    draws = torch.stack([kernels.attention(q, k, v, dropout_p=0.3) for _ in range(4000)])
    torch.testing.assert_close(draws.mean(0), kernels.attention(q, k, v), atol=0.08, rtol=0.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("options", [{}, {"window": 1}, {"window": 1, "sink": 1}], ids=str)
def test_steps_equal_the_whole_sequence_within_the_cache(backend, options):
    q, k, v = random_qkv(length=6, seed=4)
    cache = kernels.RingCache.empty(2, 6, 3, 8)
    whole = kernels.attention(q, k, v, **options)
    for t in range(6):
        step = kernels.attention_step(
            *(x[:, t : t + 1] for x in (q, k, v)), cache, backend=backend, **options
        )
        cache.advance()
        torch.testing.assert_close(step[:, 0], whole[:, t], atol=1e-5, rtol=1e-4)


def same_parity(b, h, q_idx, kv_idx):
    return (q_idx - kv_idx) % 2 == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_full_ring_attends_to_the_last_steps_of_every_row(backend):
    q, k, v = random_qkv(length=11, seed=5)
    size, reset_row, reset_at = 4, 1, 6
    cache = kernels.RingCache.empty(2, size, 3, 8)
    starts = [0, 0]
    for t in range(11):
        if t == reset_at:
            cache.reset(torch.tensor([False, True]))
            starts[reset_row] = t
        out = kernels.attention_step(*(x[:, t : t + 1] for x in (q, k, v)), cache, backend=backend)
        cache.advance()
        for row in range(2):
            first = max(starts[row], t + 1 - size)
            history = [x[row : row + 1, first : t + 1] for x in (q, k, v)]
            expected = reference(*history)[0, -1]
            torch.testing.assert_close(out[row, 0].double(), expected, atol=1e-5, rtol=1e-4)


def test_sinks_of_a_full_ring_are_the_first_steps_it_remembers():
    q, k, v = random_qkv(rows=1, length=9, seed=6)
    options = {"window": 1, "sink": 1, "sink_bias": 0.7, "logit_clip": 2.0}
    cache = kernels.RingCache.empty(1, 5, 3, 8)
    for t in range(9):
        out = kernels.attention_step(*(x[:, t : t + 1] for x in (q, k, v)), cache, **options)
        cache.advance()
        first = max(0, t + 1 - 5)
        history = [x[:, first : t + 1] for x in (q, k, v)]
        torch.testing.assert_close(
            out[0, 0].double(), reference(*history, **options)[0, -1], atol=1e-5, rtol=1e-4
        )


def turned(x, position, base):
    """One head (D,) as the nets' RotaryPosEmb rotates it (Su et al. 2021, eq. 34), pair by pair in float64."""
    half = len(x) // 2
    out = x.detach().double().clone()
    for i in range(half):
        angle = position * base ** (-i / half)
        a, b = float(x[i]), float(x[i + half])
        out[i] = a * math.cos(angle) - b * math.sin(angle)
        out[i + half] = a * math.sin(angle) + b * math.cos(angle)
    return out


def turned_sequence(x, positions, base):
    """(L, H, D) at L positions."""
    rows = [
        torch.stack([turned(head, p, base) for head in step]) for step, p in zip(x, positions, strict=True)
    ]
    return torch.stack(rows)


STEP_BACKENDS = [*BACKENDS, "cpp"]


@pytest.mark.parametrize("backend", STEP_BACKENDS)
@pytest.mark.parametrize("positions", ["of the cache", "of their own"])
def test_rotary_steps_attend_like_the_rotated_history(backend, positions):
    q, k, v = random_qkv(length=9, seed=7)
    size, base = 5, 100.0
    cache = kernels.RingCache.empty(2, size, 3, 8)
    cache.lengths[1] = 2  # a row that began before the others; what it took then was all zeros
    earlier = torch.zeros(2, 3, 8)
    for t in range(9):
        chosen = cache.lengths if positions == "of the cache" else torch.tensor([3 * t + 1, 1000 - t])
        out = kernels.attention_step(
            *(x[:, t : t + 1] for x in (q, k, v)),
            cache,
            rotary_base=base,
            positions=None if positions == "of the cache" else chosen.to(torch.int32),
            backend=backend,
        )
        cache.advance()
        for row in range(2):
            where = [i if row == 0 else i + 2 for i in range(t + 1)]
            if positions == "of their own":
                where = [3 * i + 1 if row == 0 else 1000 - i for i in range(t + 1)]
            queries, keys = (turned_sequence(x[row, : t + 1], where, base) for x in (q, k))
            values = v[row, : t + 1].double()
            if row == 1:
                queries, keys, values = (torch.cat((earlier, x)) for x in (queries, keys, values))
            history = [x[-size:].unsqueeze(0) for x in (queries, keys, values)]
            torch.testing.assert_close(out[row, 0].double(), reference(*history)[0, -1], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", STEP_BACKENDS)
def test_keys_enter_the_cache_rotated_and_inputs_stay_as_they_are(backend):
    q, k, v = random_qkv(length=1, seed=8)
    copies = [x.clone() for x in (q, k, v)]
    cache = kernels.RingCache.empty(2, 4, 3, 8)
    kernels.attention_step(q, k, v, cache, rotary_base=10.0, positions=torch.tensor([3, 40]), backend=backend)
    for row, position in enumerate((3, 40)):
        expected = turned_sequence(k[row], [position], 10.0)[0]
        torch.testing.assert_close(cache.keys[row, 0].double(), expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(cache.values[:, :1], v)
    assert cache.lengths.tolist() == [0, 0]
    assert all(torch.equal(x, copy) for x, copy in zip((q, k, v), copies, strict=True))


def test_an_explicit_backend_that_cannot_run_says_why():
    q, k, v = random_qkv()
    with pytest.raises(RuntimeError, match=r"sdpa: .*cannot clip logits"):
        kernels.attention(q, k, v, logit_clip=1.0, backend="sdpa")
    with kernels.use_backend("sdpa"), pytest.raises(RuntimeError, match="cannot bias sinks"):
        kernels.attention(q, k, v, window=1, sink=1, sink_bias=1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "fastest"}, "backend must be 'auto' or one of eager, sdpa"),
        ({"window": -1}, "window must be None or at least 0"),
        ({"sink": -1}, "sink must be at least 0"),
        ({"logit_clip": 0.0}, "logit_clip must be None or positive"),
        ({"dropout_p": 1.0}, r"dropout_p must lie in \[0, 1\)"),
        ({"lengths": torch.tensor([1])}, r"lengths must be \(2,\)"),
        ({"k": torch.zeros(2, 6, 3, 8)}, "k must have the shape of q"),
        ({"v": torch.zeros(2, 7, 3, 8, dtype=torch.float64)}, "v must be torch.float32"),
        (
            {"q": torch.zeros(2, 7, 3, 8, dtype=torch.int64)},
            "q must be floating-point numbers, got torch.int64",
        ),
        ({"q": torch.zeros(2, 7, 8)}, r"q must be \(batch, length, heads, head dim\)"),
    ],
)
def test_bad_arguments_raise_errors_that_name_them(change, message):
    arguments = dict(zip("qkv", random_qkv(), strict=True)) | change
    with pytest.raises(ValueError, match=message):
        kernels.attention(**arguments)


def test_a_step_that_does_not_fit_the_cache_is_an_error():
    q, k, v = random_qkv(length=1)
    with pytest.raises(ValueError, match="to fit the cache"):
        kernels.attention_step(q, k, v, kernels.RingCache.empty(3, 4, 3, 8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": torch.tensor([1, 2])}, "give rotary_base"),
        ({"rotary_base": 0.0}, "rotary_base must be None or a positive number"),
        ({"rotary_base": math.nan}, "rotary_base must be None or a positive number"),
        (
            {"rotary_base": 1e4, "positions": torch.tensor([1])},
            r"positions must be \(2,\), one per row, got \(1,\)",
        ),
        (
            {"rotary_base": 1e4, "positions": torch.tensor([1.0, 2.0])},
            "positions must be integers, got torch.float32",
        ),
        (
            {"rotary_base": 1e4, "positions": torch.tensor([True, False])},
            "positions must be integers, got torch.bool",
        ),
        (
            {"rotary_base": 1e4, "positions": torch.zeros(2, dtype=torch.int64, device="meta")},
            "positions must be on cpu like q, got meta",
        ),
    ],
)
def test_bad_rotary_positions_are_named(change, message):
    q, k, v = random_qkv(length=1)
    with pytest.raises(ValueError, match=message):
        kernels.attention_step(q, k, v, kernels.RingCache.empty(2, 4, 3, 8), **change)


def test_an_odd_head_dimension_cannot_be_rotated():
    q, k, v = random_qkv(length=1, dim=7)
    with pytest.raises(ValueError, match="q must have an even head dimension to be rotated in pairs, got 7"):
        kernels.attention_step(q, k, v, kernels.RingCache.empty(2, 4, 3, 7), rotary_base=10.0)
