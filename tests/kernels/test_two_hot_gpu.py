"""The GPU kernels of the two-hot operations: what test_two_hot.py, which runs on every backend, does not ask.

On a GPU these tests run on it. Elsewhere test_interpreter.py runs the Triton kernels in the interpreter, and
test_two_hot_cuda.py runs the CUDA kernels on the CPU.
"""

import pytest
import torch

from amago import kernels
from amago.kernels import Bins
from amago.kernels.triton_runtime import INTERPRETED

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


def layouts():
    """Logits (3, 2, 4, 5, 9) in memory in several ways."""
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
def test_logits_may_lie_in_memory_in_any_order(backend, poisoned, kind, layout):
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
