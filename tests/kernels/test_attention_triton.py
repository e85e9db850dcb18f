"""The Triton kernels of `attention` against the eager version in float64.

On a GPU these tests run on it. Elsewhere test_interpreter.py runs them in Triton's interpreter.
"""

import math

import pytest
import torch

from amago import kernels
from amago.kernels.triton_runtime import INTERPRETED

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32, torch.float16] + ([] if INTERPRETED else [torch.bfloat16])
on_gpu = pytest.mark.gpu if not INTERPRETED else pytest.mark.filterwarnings("default")


def packed_qkv(rows=2, length=9, heads=2, dim=16, *, scale=1.0, dtype=torch.float32, seed=0):
    """q, k and v that lie in one tensor, (rows, length, 3, heads, dim)."""
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randn(rows, length, 3, heads, dim, generator=generator, dtype=torch.float64) * scale
    return packed.to(DEVICE, dtype).unbind(2)


def results(qkv, backend, **options):
    """The output, and the gradients of a fixed random function of it."""
    leaves = [x.detach().requires_grad_() for x in qkv]
    out = kernels.attention(*leaves, backend=backend, **options)
    generator = torch.Generator().manual_seed(99)
    upstream = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    return out, *torch.autograd.grad(out, leaves, upstream)


def assert_errs_at_most_twice_as_much_as_eager(qkv, **options):
    """Triton against float64: no worse than twice the eager version, or rounding.

    Gradients of q and k are differences, which cancel where a query sees one key alone: float32 rounds their
    terms, however small the difference. The backward pass computes scores again, and rounds them again.
    """
    wide = [x.double() for x in qkv]
    q, k, v = (x.abs().max().item() if x.numel() else 0.0 for x in wide)
    scale = abs(options.get("scale", wide[0].shape[-1] ** -0.5))
    terms = 4.0 * v * max(q, k) * scale  # 4: of the upstream gradient
    score = (torch.einsum("bihd,bjhd->bhij", *wide[:2]).abs().max() * scale).item()
    found = [results(x, name, **options) for x, name in ((qkv, "triton"), (qkv, "eager"), (wide, "eager"))]
    for name, ours, plain, exact in zip(("out", "q", "k", "v"), *found, strict=True):
        assert (ours.dtype, ours.shape) == (plain.dtype, plain.shape)
        largest = exact.abs().max().item() + 1e-30
        error = (ours.double() - exact).abs().max().item()
        rounding = max(2e-6, torch.finfo(ours.dtype).eps) * largest
        if name != "out":
            rounding += 2**-23 * score * largest
        if name in ("q", "k"):
            rounding += 2e-6 * terms
        allowed = 2 * (plain.double() - exact).abs().max().item() + rounding
        assert error <= allowed, f"{name}: {error} > {allowed} of {largest}"


@on_gpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"window": 0},
        {"window": 3},
        {"window": 70},
        {"window": 5, "sink": 2},
        {"window": 2, "sink": 70, "sink_bias": -1.5},
        {"sink": 300, "sink_bias": 2.0},
        {"logit_clip": 0.5},
        {"window": 5, "sink": 3, "sink_bias": 1.0, "logit_clip": 1.0, "scale": 0.7},
        {"scale": -0.4},
        {"scale": 0.0},
    ],
    ids=str,
)
def test_triton_skips_only_fully_masked_blocks(poisoned, options, causal):
    assert_errs_at_most_twice_as_much_as_eager(packed_qkv(1, 140, 1), causal=causal, **options)


@on_gpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", [{}, {"window": 120}, {"window": 70, "sink": 40}], ids=str)
def test_triton_computes_whole_blocks_without_a_mask(poisoned, options, causal):
    """Blocks that everybody sees lie between those that the diagonal, the window or the end cuts through."""
    qkv = packed_qkv(1, 210, 1)
    lengths = torch.tensor([205], device=DEVICE)
    assert_errs_at_most_twice_as_much_as_eager(qkv, causal=causal, lengths=lengths, **options)


@on_gpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", [{}, {"window": 9, "sink": 2, "logit_clip": 0.5}], ids=str)
def test_triton_masks_padding_and_outputs_zeros_there(poisoned, options, causal):
    lengths = torch.tensor([0, 1, 65, 70], device=DEVICE)
    qkv = packed_qkv(4, 70, 1)
    assert_errs_at_most_twice_as_much_as_eager(qkv, causal=causal, lengths=lengths, **options)
    for x in qkv:
        x[1, 1:], x[2, 65:] = math.nan, math.nan
    for x in results(qkv, "triton", causal=causal, lengths=lengths, **options):
        assert not x[0].any()
        assert not x[1, 1:].any()
        assert not x[2, 65:].any()
        assert x.isfinite().all()


@on_gpu
def test_triton_drops_the_same_weights_backward_as_forward():
    length = dim = 128
    q, k, v = packed_qkv(1, length, 2, dim, scale=0.3)
    options = {"dropout_p": 0.25, "backend": "triton"}
    identity = torch.eye(length, device=DEVICE).view(1, length, 1, dim).expand_as(v)
    torch.manual_seed(7)
    dropped = kernels.attention(q, k, identity, **options)  # the weights themselves
    whole = kernels.attention(q, k, identity, backend="eager")
    seen = whole > 0
    kept = torch.where(dropped > 0, 1 / 0.75, 0.0) * seen
    torch.testing.assert_close(dropped, whole * kept, atol=1e-6, rtol=1e-4)
    assert abs((dropped > 0).sum() / seen.sum() - 0.75) < 0.02
    assert not torch.equal(kept[:, :, 0], kept[:, :, 1])
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    upstream = packed_qkv(1, length, 2, dim, seed=5)[0]
    torch.manual_seed(7)
    ours = torch.autograd.grad(kernels.attention(*leaves, **options), leaves, upstream)
    weights = torch.einsum("blhd,bmhd->blhm", *leaves[:2]) * dim**-0.5
    weights = weights.masked_fill(~seen, -math.inf).softmax(-1) * kept
    exact = torch.autograd.grad(torch.einsum("blhm,bmhd->blhd", weights, leaves[2]), leaves, upstream)
    for mine, wanted in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-4)
    assert not torch.equal(kernels.attention(q, k, identity, **options), dropped)
