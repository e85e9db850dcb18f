"""`flex_attention` and `flex_attention_step`: attention with functions of the caller, on every backend."""

import math

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention as torch_flex_attention

from amago import kernels
from amago.kernels.attention import flex, mods
from amago.kernels.attention.options import FlexOptions

CLOSE = {"atol": 1e-5, "rtol": 1e-4}
CPU = torch.device("cpu")


def random_qkv(rows=2, length=7, heads=3, dim=8, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, length, heads, dim, generator=generator, dtype=dtype) for _ in range(3)]


def softmax_of(scores, seen, v):
    """(B, H, L, L) scores and mask, (B, L, H, D) values -> (B, L, H, D); 0 where nothing is seen."""
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


class Example:
    """A score function with a table per head and a mask of segments per row, and both as a formula."""

    def __init__(self, rows, length, heads, dtype=torch.float64, seed=0, device=CPU):
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(heads, length, generator=generator, dtype=dtype).to(device)
        self.segments = torch.randint(0, 2, (rows, length), generator=generator).to(device)

    def score_mod(self, score, b, h, q_idx, kv_idx):
        return torch.where(h == 0, score, score + self.table[h, (q_idx - kv_idx).abs()])

    def mask_mod(self, b, h, q_idx, kv_idx):
        return (self.segments[b, q_idx] == self.segments[b, kv_idx]) | (h == 1)

    def formula(self, q, k, v, causal=True, lengths=None):
        _, length, heads, dim = q.shape
        step, h = torch.arange(length), torch.arange(heads).view(1, -1, 1, 1)
        i, j = step.view(-1, 1), step
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(dim)
        scores = scores + (h > 0) * self.table.to(q.dtype)[:, (i - j).abs()]
        same = self.segments.unsqueeze(2) == self.segments.unsqueeze(1)  # (B, L, L)
        seen = same.unsqueeze(1) | (h == 1)
        if causal:
            seen = seen & (j <= i)
        if lengths is not None:
            seen = seen & (j < lengths.view(-1, 1, 1, 1)) & (i < lengths.view(-1, 1, 1, 1))
        return softmax_of(scores, seen, v)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"lengths": True}], ids=str)
def test_functions_that_read_tensors_equal_the_formula_with_all_gradients(seed, options):
    sizes = torch.Generator().manual_seed(seed)
    rows, heads, half = (int(torch.randint(1, 4, (), generator=sizes)) for _ in range(3))
    length = (1, 2, 13, 40)[seed]
    example = Example(rows, length, heads, seed=seed)
    if options.get("lengths"):
        options = {"lengths": torch.randint(0, length + 1, (rows,), generator=sizes)}
    inputs = [
        x.requires_grad_() for x in random_qkv(rows, length, heads, 8 * (2 * half - 1), seed, torch.float64)
    ]
    inputs.append(example.table.requires_grad_())
    out = kernels.flex_attention(
        *inputs[:3], score_mod=example.score_mod, mask_mod=example.mask_mod, **options
    )
    expected = example.formula(*inputs[:3], **options)
    torch.testing.assert_close(out, expected)
    direction = torch.randn_like(out)
    grads = torch.autograd.grad(out, inputs, direction)
    for grad, wanted in zip(grads, torch.autograd.grad(expected, inputs, direction), strict=True):
        torch.testing.assert_close(grad, wanted)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a_query_that_sees_nothing_gets_zero_and_a_finite_gradient(backend):
    qkv = [x.requires_grad_() for x in random_qkv()]
    out = kernels.flex_attention(*qkv, mask_mod=lambda b, h, i, j: i > 2, backend=backend)
    assert (out[:, :3] == 0).all()
    assert (out[:, 3:] != 0).all()
    out.square().sum().backward()
    assert all(x.grad.isfinite().all() for x in qkv)


def test_scores_of_minus_infinity_hide_a_key():
    q, k, v = random_qkv()
    hidden = kernels.flex_attention(
        q, k, v, score_mod=lambda s, b, h, i, j: torch.where(j > 1, s, -float("inf")), mask_mod=None
    )
    masked = kernels.flex_attention(q, k, v, mask_mod=lambda b, h, i, j: j > 1)
    torch.testing.assert_close(hidden, masked)


@pytest.mark.parametrize(
    ("functions", "options"),
    [
        ({}, {}),
        ({"mask_mod": kernels.SlidingWindow(2)}, {"window": 2}),
        ({"mask_mod": kernels.SlidingWindow(1, 2)}, {"window": 1, "sink": 2}),
        ({"score_mod": kernels.ClippedSinks(logit_clip=0.5)}, {"logit_clip": 0.5}),
        (
            {"score_mod": kernels.ClippedSinks(2, -0.7, 0.5), "mask_mod": kernels.SlidingWindow(1, 2)},
            {"window": 1, "sink": 2, "sink_bias": -0.7, "logit_clip": 0.5},
        ),
        ({"score_mod": kernels.ClippedSinks(2, -0.7)}, {"sink": 2, "sink_bias": -0.7}),
    ],
    ids=str,
)
@pytest.mark.parametrize("causal", [True, False])
def test_functions_that_equal_options_run_as_options(functions, options, causal):
    assert mods.as_options(functions.get("score_mod"), functions.get("mask_mod")) is not None
    q, k, v = random_qkv(length=9, seed=4)
    expected = kernels.attention(q, k, v, causal=causal, backend="eager", **options)
    torch.testing.assert_close(kernels.flex_attention(q, k, v, causal=causal, **functions), expected, **CLOSE)
    as_functions = {name: lambda *x, f=f: f(*x) for name, f in functions.items()}
    assert mods.as_options(as_functions.get("score_mod"), as_functions.get("mask_mod")) in (None, {})
    torch.testing.assert_close(
        kernels.flex_attention(q, k, v, causal=causal, **as_functions), expected, **CLOSE
    )


@pytest.mark.parametrize("functions", ["both", "mask"])
@pytest.mark.parametrize("seed", range(3))
def test_steps_of_rows_at_different_positions_see_their_own_window(functions, seed):
    size, length = (1, 4, 6)[seed], 17
    q, k, v = random_qkv(rows=3, length=length, seed=seed, dtype=torch.float64)
    example = Example(3, size, 3, seed=seed)
    mods_of = {"mask_mod": example.mask_mod}
    if functions == "both":
        mods_of["score_mod"] = example.score_mod
    cache, starts = kernels.RingCache.empty(3, size, 3, 8, dtype=torch.float64), [0, 0, 0]
    for t in range(length):
        if t % 5 == 3:  # one row after the other begins anew
            row = (t // 5) % 3
            cache.reset(torch.tensor([row]))
            starts[row] = t
        out = kernels.flex_attention_step(*(x[:, t : t + 1] for x in (q, k, v)), cache, **mods_of)
        cache.advance()
        for row in range(3):
            first = max(starts[row], t + 1 - size)
            one = Example(3, size, 3, seed=seed)
            one.segments = one.segments[row : row + 1, : t + 1 - first]
            if functions == "mask":
                one.table = one.table * 0.0
            history = [x[row : row + 1, first : t + 1] for x in (q, k, v)]
            torch.testing.assert_close(out[row, 0], one.formula(*history)[0, -1])


@pytest.mark.parametrize(
    ("functions", "error", "message"),
    [
        (
            {"score_mod": lambda s, b, h, i, j: s if i > j else -s},
            ValueError,
            "score_mod must take .*tensor operations only.*data-dependent control flow",
        ),
        ({"score_mod": lambda s, b, h, i: s}, ValueError, r"\(score, b, h, q_idx, kv_idx\).*positional arg"),
        ({"score_mod": lambda s, b, h, i, j: 1.0}, ValueError, "must only return Tensors"),
        ({"score_mod": lambda s, b, h, i, j: i > j}, ValueError, "return the changed score, got torch.bool"),
        ({"mask_mod": lambda b, h, i, j: i - j}, ValueError, "mask_mod must return bool.* got torch.int64"),
        ({"mask_mod": lambda b, h, i, j: i.item() > 0}, ValueError, r"mask_mod must take \(b, h, q_idx"),
        ({"mask_mod": torch.ones(7, 7)}, TypeError, "mask_mod must be None or a function, got tensor"),
    ],
)
def test_functions_that_cannot_be_vectorised_raise_errors(functions, error, message):
    q, k, v = random_qkv()
    with pytest.raises(error, match=message):
        kernels.flex_attention(q, k, v, **functions)
    cache = kernels.RingCache.empty(2, 4, 3, 8)
    with pytest.raises(error, match=message):
        kernels.flex_attention_step(q[:, :1], k[:, :1], v[:, :1], cache, **functions)


def test_an_explicit_backend_that_cannot_run_says_why():
    q, k, v = random_qkv()
    functions = {"score_mod": lambda s, b, h, i, j: s * 2}
    with pytest.raises(RuntimeError, match=r"sdpa: .*cannot apply a score_mod"):
        kernels.flex_attention(q, k, v, backend="sdpa", **functions)
    with pytest.raises(RuntimeError, match=r"flex: .*runs on CUDA devices only.* q is on cpu"):
        kernels.flex_attention(q, k, v, backend="flex", **functions)


def test_masks_are_no_larger_than_what_they_depend_on():
    shape = torch.Size((5, 3, 7, 7))
    segments = torch.arange(35).view(5, 7) % 2
    masks = {
        (1, 1, 7, 7): lambda b, h, i, j: i - j < 3,
        (1, 3, 7, 7): lambda b, h, i, j: i - j < h,
        (5, 1, 7, 7): lambda b, h, i, j: segments[b, i] == segments[b, j],
        (5, 3, 7, 7): lambda b, h, i, j: (b == h) | (i == j),
    }
    for expected, mask_mod in masks.items():
        assert mods.mask_of(mask_mod, shape, CPU).shape == expected
        looks_at = [mods.depends_on(mask_mod, axis, shape[axis], CPU) for axis in (0, 1)]
        assert looks_at == [expected[0] > 1, expected[1] > 1]


# torch's own flex_attention runs on a CPU too, uncompiled and without gradients: enough to see that what it is
# given is right.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("dim", [8, 24, 32])
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"lengths": torch.tensor([4, 0, 9])}], ids=str)
def test_torchs_flex_attention_gets_equivalent_arguments(dim, options):
    q, k, v = random_qkv(rows=3, length=9, dim=dim, seed=7)
    example = Example(3, 9, 3, dtype=torch.float32)
    causal, lengths = options.get("causal", True), options.get("lengths")
    shared = {"causal": causal, "scale": 1 / math.sqrt(dim), "dropout_p": 0.0}
    functions = {"score_mod": example.score_mod, "mask_mod": example.mask_mod}
    with torch.no_grad():
        given = FlexOptions(**functions, **shared)
        out = flex.flex_attention(q, k, v, lengths, given, torch_flex_attention)
        torch.testing.assert_close(out, kernels.flex_attention(q, k, v, **functions, **options), **CLOSE)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dim", [24, 32, 64])
@pytest.mark.parametrize("length", [1, 100])
def test_the_compiled_backend_equals_the_written_out_one_on_a_gpu(dtype, dim, length):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device = torch.device("cuda")
    example = Example(2, length, 3, dtype=torch.float32, device=device)
    options = {"score_mod": example.score_mod, "mask_mod": example.mask_mod}
    close = {"atol": 2e-2, "rtol": 2e-2} if dtype == torch.bfloat16 else {"atol": 2e-3, "rtol": 2e-3}
    lengths = torch.tensor([length, length // 2], device=device)
    for kwargs in (options, options | {"lengths": lengths}):
        results = []
        for backend in ("flex", "eager"):
            qkv = [x.to(device, dtype).requires_grad_() for x in random_qkv(2, length, 3, dim)]
            out = kernels.flex_attention(*qkv, backend=backend, **kwargs)
            out.square().sum().backward()
            results.append([out, *(x.grad for x in qkv)])
        for fused, exact in zip(*results, strict=True):
            torch.testing.assert_close(fused, exact, **close)
