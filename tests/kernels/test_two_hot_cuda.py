"""The CUDA kernels of the two-hot operations without a GPU: nvcc takes them, and the CPU finds the right numbers.

For the latter the file is compiled as C++ beside the headers in cuda_on_cpu/, where the threads of a block are
coroutines. On a GPU test_two_hot_gpu.py runs them.
"""

import math
import subprocess
import sys

import pytest
import torch

from amago import kernels
from amago.kernels import Bins
from amago.kernels.native import DTYPES, TWO_HOT_CUDA

pytestmark = pytest.mark.source_only

# Starts a kernel on no rows and prints what CUDA objects to: to that, or that there is no GPU.
START = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location(*sys.argv[1:])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
try:
    module.run("float32", "mean", 0, 4, True, (0, 1, 0, 1, 0), [0] * 6, 0)
except RuntimeError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def on_cpu(cuda_on_cpu):
    """The module of the CUDA kernels, on the CPU."""
    return cuda_on_cpu(TWO_HOT_CUDA, "const amago::Call")


def run(module, task, bins, sharpness, *tensors):
    """A task by its name on logits, target, mask, weight, incoming gradient and result."""
    addresses = [0 if x is None else x.data_ptr() for x in tensors]
    assert all(x is None or x.is_contiguous() for x in tensors)
    numbers = (bins.low, bins.high, bins.start, bins.width, sharpness)
    logits = tensors[0]
    rows = logits.numel() // bins.n
    module.run(DTYPES[logits.dtype], task, rows, bins.n, bins.symlog, numbers, addresses, 0)
    return tensors[-1]


def case(n, dtype):
    """Logits (3, 5, 4, n), targets, mask, weights, and an incoming gradient."""
    g = torch.Generator().manual_seed(n)
    rows = (3, 5, 4)
    logits = (3 * torch.randn(*rows, n, generator=g)).to(dtype)
    target = 60 * torch.randn(rows, generator=g)
    mask = torch.rand(rows, generator=g) > 0.3
    weight = torch.rand(rows, generator=g)
    return logits, target, mask, weight, torch.randn(rows, generator=g)


def close(dtype):
    return {"atol": 2e-4, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 2e-3, "rtol": 1e-2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [2, 33, 136, 1000])
@pytest.mark.parametrize("sigma", [None, 0.75])
def test_losses_and_gradients_equal_the_eager_ones(on_cpu, sigma, n, dtype):
    bins = Bins(-100.0, 80.0, n, symlog=n != 33)
    logits, target, mask, weight, incoming = case(n, dtype)
    logits.requires_grad_()
    options = {"mask": mask, "weight": weight, "backend": "eager"}
    if sigma is None:
        expected = kernels.two_hot_cross_entropy(logits, target, bins, **options)
    else:
        expected = kernels.hl_gauss_cross_entropy(logits, target, bins, sigma=sigma, **options)
    gradient = torch.autograd.grad(expected, logits, incoming)[0]
    sharpness = 0.0 if sigma is None else 1.0 / (sigma * math.sqrt(2.0))
    inputs = (logits.detach(), target, mask, weight)
    loss = run(on_cpu, "loss", bins, sharpness, *inputs, None, torch.full((3, 5, 4), math.nan))
    torch.testing.assert_close(loss, expected.detach(), **close(torch.float32))
    out = torch.full_like(logits, math.nan).detach()
    run(on_cpu, "loss_gradient", bins, sharpness, *inputs, incoming, out)
    torch.testing.assert_close(out, gradient, **close(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [2, 33, 136, 1000])
@pytest.mark.parametrize("symlog", [True, False])
def test_means_and_gradients_equal_the_eager_ones(on_cpu, symlog, n, dtype):
    bins = Bins(-100.0, 80.0, n, symlog=symlog)
    logits, *_, incoming = case(n, dtype)
    logits.requires_grad_()
    expected = kernels.two_hot_mean(logits, bins, backend="eager")
    gradient = torch.autograd.grad(expected, logits, incoming)[0]
    nothing = (None, None, None)
    result = torch.full((3, 5, 4), math.nan)
    value = run(on_cpu, "mean", bins, 0.0, logits.detach(), *nothing, None, result)
    torch.testing.assert_close(value, expected.detach(), **close(torch.float32))
    out = torch.full_like(logits, math.nan).detach()
    run(on_cpu, "mean_gradient", bins, 0.0, logits.detach(), *nothing, incoming, out)
    torch.testing.assert_close(out, gradient, **close(dtype))


@pytest.mark.parametrize("sharpness", [0.0, 1.0])
def test_masked_rows_are_zero_and_a_nan_stays_in_its_row(on_cpu, sharpness):
    bins = Bins(-10.0, 10.0, 12)
    logits = 1e4 * torch.randn(6, 12, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([1.0, math.nan, math.inf, -math.inf, -3e38, 10.0])
    logits[0] = math.nan
    mask = torch.tensor([False, True, True, True, True, True])
    inputs = (logits, target, mask, None)
    loss = run(on_cpu, "loss", bins, sharpness, *inputs, None, torch.full((6,), math.nan))
    out = run(on_cpu, "loss_gradient", bins, sharpness, *inputs, torch.ones(6), torch.full_like(logits, 7.0))
    assert loss[0] == 0.0
    assert not out[0].any()
    assert loss[1].isnan()
    assert out[1].isnan().all()
    assert loss[2:].isfinite().all()
    assert out[2:].isfinite().all()
    for row, end in ((2, 11), (3, 0), (4, 0), (5, 11)):
        if sharpness == 0.0:
            wanted = logits[row].double().logsumexp(0) - logits[row, end].double()
            torch.testing.assert_close(loss[row].double(), wanted, atol=1e-2, rtol=1e-5)


def test_nvcc_builds_the_module(build_for_gpu):
    """Another process loads it, where no other module has the name."""
    command = [sys.executable, "-c", START, TWO_HOT_CUDA.name, str(build_for_gpu(TWO_HOT_CUDA, 80))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "the two-hot kernel could not be started: " in done.stdout


def test_without_a_gpu_a_call_says_what_is_missing():
    if torch.cuda.is_available():
        return
    with pytest.raises(RuntimeError, match=r"cuda: its kernels need a CUDA device and logits is on cpu"):
        kernels.two_hot_mean(torch.zeros(2, 5), Bins(-1.0, 1.0, 5), backend="cuda")
    assert "there is no CUDA device" in TWO_HOT_CUDA.missing()
    assert "cuda" not in kernels.available_backends()["two_hot_mean"]
