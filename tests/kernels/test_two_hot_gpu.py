"""The GPU kernels of the two-hot operations: what test_two_hot.py, which runs on every backend, does not ask.

On a GPU these tests run on it. Elsewhere test_triton.py runs those of Triton's kernels in its interpreter, and
test_two_hot_cuda.py runs the CUDA kernels on the CPU.
"""

import math

import pytest
import torch

from amago import kernels
from amago.kernels import Bins
from amago.kernels.triton_runtime import INTERPRETED
from amago.kernels.two_hot import op

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32, torch.float16] + ([] if INTERPRETED else [torch.bfloat16])
LOSSES = {"two-hot": kernels.two_hot_cross_entropy, "hl-gauss": kernels.hl_gauss_cross_entropy}
on_gpu = pytest.mark.gpu if not INTERPRETED else pytest.mark.filterwarnings("default")


@pytest.fixture(params=["triton"] if INTERPRETED else ["triton", "cuda"])
def backend(request):
    return request.param


def normal(*shape, seed=0, scale=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(DEVICE, dtype)


def coin(*shape, seed=0):
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.4).to(DEVICE)


def results(call, logits):
    """What `call` makes of the logits, and the gradient of a fixed random function of it."""
    leaf = logits.detach().requires_grad_()
    out = call(leaf)
    upstream = normal(*out.shape, seed=99).to(out.dtype)
    return out, *torch.autograd.grad(out, leaf, upstream)


def assert_errs_at_most_twice_as_much_as_eager(call, logits, backend):
    """`call(logits, backend)` against float64: no worse than twice the eager version, or rounding."""
    exact = results(lambda x: call(x, "eager"), logits.double())
    eager = results(lambda x: call(x, "eager"), logits)
    ours = results(lambda x: call(x, backend), logits)
    for name, mine, plain, wanted in zip(("result", "gradient"), ours, eager, exact, strict=True):
        assert mine.dtype == plain.dtype
        assert mine.shape == wanted.shape
        largest = wanted.abs().max().item() + 1e-30
        error = (mine.double() - wanted).abs().max().item()
        allowed = (
            2 * (plain.double() - wanted).abs().max().item() + 16 * torch.finfo(torch.float32).eps * largest
        )
        assert error <= allowed, f"{name}: {error} > {allowed} of {largest}"


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 101])
@pytest.mark.parametrize("symlog", [True, False])
@pytest.mark.parametrize("kind", LOSSES)
def test_losses_err_at_most_twice_as_much_as_eager(backend, kind, symlog, n, dtype):
    bins = Bins(-300.0, 120.0, n, symlog=symlog)
    logits = normal(3, 5, 4, 2, n, scale=3.0, dtype=dtype)
    target = normal(3, 5, 1, 2, seed=1, scale=100.0)
    options = {"mask": coin(5, 1, 1), "weight": normal(3, 1, 4, 1, seed=2)}
    assert_errs_at_most_twice_as_much_as_eager(
        lambda x, name: LOSSES[kind](x, target, bins, backend=name, **options), logits, backend
    )


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 65, 1024])
@pytest.mark.parametrize("symlog", [True, False])
def test_means_err_at_most_twice_as_much_as_eager(backend, symlog, n, dtype):
    bins = Bins(-300.0, 120.0, n, symlog=symlog)
    logits = normal(7, 3, n, scale=3.0, dtype=dtype)
    assert_errs_at_most_twice_as_much_as_eager(
        lambda x, name: kernels.two_hot_mean(x, bins, backend=name), logits, backend
    )


def layouts():
    """Logits (3, 2, 4, 5, 9) in memory in several ways, some with more row axes than the kernels walk."""
    plain = normal(3, 2, 4, 5, 9)
    return {
        "critics first": plain.movedim(2, 0).contiguous().movedim(0, 2),
        "bins not last": plain.movedim(-1, 0).contiguous().movedim(0, -1),
        "every second": torch.stack((plain, plain), -1).flatten(-2)[..., ::2],
        "four axes": torch.cat((plain, plain), 3)[:, :, :, :5].transpose(0, 2).contiguous().transpose(0, 2),
        "repeated": plain[:, :1].expand_as(plain),
        "shuffled": plain.permute(1, 4, 3, 0, 2).contiguous().permute(3, 0, 4, 2, 1),
    }


@on_gpu
@pytest.mark.parametrize("layout", layouts() if INTERPRETED or torch.cuda.is_available() else ["every"])
@pytest.mark.parametrize("kind", LOSSES)
def test_tensors_are_read_and_written_where_they_lie(backend, poisoned, kind, layout):
    logits = layouts()[layout]
    bins = Bins(-10.0, 10.0, 9)
    target = normal(3, 2, 1, 5, seed=1, scale=5.0).transpose(1, 3).contiguous().transpose(1, 3)
    options = {"mask": coin(3, 1, 4, 1), "weight": normal(2, 1, 5, seed=2)}

    def call(x, name):
        loss = LOSSES[kind](x, target, bins, backend=name, **options)
        return loss + kernels.two_hot_mean(x, bins, backend=name)

    for mine, plain in zip(
        results(lambda x: call(x, backend), logits), results(lambda x: call(x, "eager"), logits), strict=True
    ):
        torch.testing.assert_close(mine, plain, atol=1e-5, rtol=1e-5)


@on_gpu
@pytest.mark.parametrize("kind", LOSSES)
def test_gradients_that_come_in_may_be_broadcast_or_strided(backend, kind):
    bins = Bins(-10.0, 10.0, 9)
    logits, target = normal(4, 3, 9).requires_grad_(), normal(4, 1, seed=1)
    for reduce in (torch.mean, lambda x: x[:, ::2].sum(), lambda x: (x.mT * normal(3, 4, seed=5)).sum()):
        both = [
            torch.autograd.grad(reduce(LOSSES[kind](logits, target, bins, backend=name)), logits)[0]
            for name in (backend, "eager")
        ]
        torch.testing.assert_close(*both, atol=1e-6, rtol=1e-5)


@on_gpu
@pytest.mark.parametrize("kind", LOSSES)
def test_it_skips_what_is_masked_and_keeps_a_nan_to_its_row(backend, poisoned, kind):
    bins = Bins(-10.0, 10.0, 12)
    logits, target = normal(6, 12, scale=1e4), normal(6, seed=1)
    logits[0], target[1] = math.nan, math.nan
    target[2], target[3], target[4] = math.inf, -math.inf, -3e38
    mask = torch.tensor([False, True, True, True, True, True], device=DEVICE)
    call = lambda x, name: LOSSES[kind](x, target, bins, mask=mask, backend=name)  # noqa: E731
    loss, grad = results(lambda x: call(x, backend), logits)
    assert loss[0] == 0.0
    assert not grad[0].any()
    assert loss[1].isnan()
    assert grad[1].isnan().all()
    for mine, plain in zip((loss, grad), results(lambda x: call(x, "eager"), logits), strict=True):
        assert mine[2:].isfinite().all()
        torch.testing.assert_close(mine[2:], plain[2:], atol=1e-2, rtol=1e-5)
    nothing = torch.zeros(6, dtype=torch.bool, device=DEVICE)
    loss, grad = results(lambda x: LOSSES[kind](x, target, bins, mask=nothing, backend=backend), logits)
    assert not loss.any()
    assert not grad.any()


@on_gpu
@pytest.mark.parametrize("shape", [(9,), (0, 9), (3, 0, 2, 9)])
def test_it_takes_one_row_and_none(backend, shape):
    bins = Bins(-10.0, 10.0, 9)
    call = lambda x: kernels.two_hot_mean(x, bins, backend=backend)  # noqa: E731
    out, grad = results(call, normal(*shape))
    assert (out.shape, grad.shape) == (shape[:-1], shape)


@on_gpu
@pytest.mark.parametrize("sharpness", [0.0, 0.9])
def test_operators_keep_torchs_contract(backend, sharpness):
    logits = normal(2, 3, 9).requires_grad_()
    target, mask, weight = normal(2, 1, seed=1).expand(2, 3), coin(2, 3), normal(2, 3, seed=2)
    numbers = (-5.0, 6.0, True, sharpness, backend)
    torch.library.opcheck(op.cross_entropy_op, (logits, target, mask, weight, *numbers))
    torch.library.opcheck(op.cross_entropy_op, (logits, target, None, None, *numbers))
    torch.library.opcheck(op.expected_return_op, (logits, -5.0, 6.0, True, backend))


@on_gpu
def test_it_compiles_to_one_graph(backend):
    bins = Bins(-10.0, 10.0, 9)
    logits, target, mask = normal(4, 3, 9), normal(4, 1, seed=1), coin(4, 1)

    def both(x):
        loss = kernels.two_hot_cross_entropy(x, target, bins, mask=mask, backend=backend)
        return loss + kernels.two_hot_mean(x, bins, backend=backend)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager" if INTERPRETED else "inductor")
    for mine, plain in zip(results(compiled, logits), results(both, logits), strict=True):
        torch.testing.assert_close(mine, plain)


@pytest.mark.gpu
def test_bins_are_found_beyond_two_to_the_thirty_first_number(backend):
    """With bins first in memory the last one lies far behind the first."""
    bins = Bins(-10.0, 10.0, 128)
    logits = torch.zeros(128, (1 << 24) + 3, dtype=torch.bfloat16, device="cuda").T  # 4.3 GB
    logits[-1, -1] = 8.0
    call = lambda x, name: kernels.two_hot_mean(x, bins, backend=name)  # noqa: E731
    torch.testing.assert_close(call(logits, backend)[-3:], call(logits[-3:].contiguous(), "eager"))
    leaf = logits.detach().requires_grad_()
    grad = torch.autograd.grad(call(leaf, backend).sum(), leaf)[0]
    last = logits[-3:].contiguous().requires_grad_()
    torch.testing.assert_close(grad[-3:], torch.autograd.grad(call(last, "eager").sum(), last)[0])


@pytest.mark.gpu
def test_rows_are_found_beyond_two_to_the_thirty_first_number(backend):
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    bins = Bins(-10.0, 10.0, 128)
    logits = torch.zeros((1 << 24) + 3, 128, dtype=torch.bfloat16, device="cuda")  # 4.3 GB
    logits[-1, 5] = 8.0
    loss = kernels.two_hot_cross_entropy(logits, torch.zeros((), device="cuda"), bins, backend=backend)
    exact = kernels.two_hot_cross_entropy(logits[-3:], torch.zeros((), device="cuda"), bins, backend="eager")
    torch.testing.assert_close(loss[-3:], exact)
