"""The C++ of the two-hot operations: what test_two_hot.py, which runs on every backend, does not ask of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from amago import kernels
from amago.kernels import Bins
from amago.kernels.two_hot import native

HALVES = [torch.float16, torch.bfloat16]


@pytest.fixture
def threads():
    """Sets the number of torch's threads, and puts it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_are_rounded_to_the_nearest_half_precision_number(dtype):
    """A sure row hands the incoming gradient on as it is, so what is written is that number, rounded."""
    g = torch.Generator().manual_seed(0)
    bits = torch.randint(-(1 << 31), 1 << 31, (200_000,), generator=g).to(torch.int32)
    ties = torch.arange(0, 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    ties = torch.cat((ties.nextafter(torch.tensor(torch.inf)), (ties[1:] + ties[:-1]) / 2, ties))
    grad = torch.cat((bits.view(torch.float32), ties, -ties))
    grad = grad[~grad.isnan()]
    logits = torch.tensor([0.0, -torch.inf], dtype=dtype).expand(len(grad), 2)
    first, label = torch.ones(len(grad), dtype=torch.int64), torch.zeros(len(grad), 1)
    softmax = torch.tensor([0.0, 1.0]).expand(len(grad), 2).contiguous()
    out = native._cross_entropy_backward(grad, logits, first, label, None, None, softmax)
    finite = grad.isfinite()
    assert torch.equal(out[finite, 0], grad[finite].to(dtype))


def test_exponentials_are_exact_to_the_last_digits_and_vanish_where_they_should():
    x = torch.cat((torch.linspace(-86.9, 0.0, 100_001), torch.tensor([-88.0, -104.0, -1e4, -torch.inf])))
    logits = torch.stack((torch.zeros_like(x), x), dim=-1)
    softmax = torch.tensor([0.0, 1.0]).expand(len(x), 2).contiguous()
    zeros = torch.zeros(len(x), dtype=torch.int64)
    out = native._cross_entropy_backward(
        torch.ones(len(x)), logits, zeros, zeros.float().unsqueeze(-1), None, None, softmax
    )[:, 1]
    expected = x.double().exp()
    assert ((out[:-4].double() - expected[:-4]) / expected[:-4]).abs().max() < 2e-7
    assert out[-4:].tolist() == [0.0] * 4


def test_threads_change_nothing(threads):
    bins = Bins(-1e4, 1e4, 128)
    logits = torch.randn(3001, 4, 128, generator=torch.Generator().manual_seed(0))
    target = torch.linspace(-2e4, 2e4, 3001).unsqueeze(-1)
    results = []
    for count in (1, 2, 3):
        threads(count)
        x = logits.clone().requires_grad_()
        loss = kernels.two_hot_cross_entropy(x, target, bins, backend="cpp")
        (loss.sum() + kernels.two_hot_mean(x, bins, backend="cpp").sum()).backward()
        results.append((loss.detach(), x.grad))
    for loss, grad in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(grad, results[0][1])


def test_the_process_has_one_openmp_library_that_torchs_threads_and_ours_come_from():
    native.TWO_HOT.load()
    maps = Path("/proc/self/maps").read_text().splitlines()
    libraries = {line.split()[-1] for line in maps if "omp" in line.rpartition("/")[2] and ".so" in line}
    assert len(libraries) == 1, libraries


WITHOUT_A_COMPILER = """
import torch
from amago import kernels
from amago.kernels import build, doctor

assert "cpp" not in kernels.available_backends()["two_hot_mean"]
bins, logits = kernels.Bins(-1.0, 1.0, 5), torch.randn(3, 5)
assert torch.equal(kernels.two_hot_mean(logits, bins), kernels.two_hot_mean(logits, bins, backend="eager"))
try:
    kernels.two_hot_mean(logits, bins, backend="cpp")
except RuntimeError as error:
    print(error)
doctor.main()
assert build.main([]) == 1
"""


def test_without_a_compiler_eager_runs_and_a_request_for_cpp_says_why_not(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_COMPILER],
        env={**os.environ, "AMAGO_KERNELS_CACHE": str(tmp_path / "cache"), "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no backend can run this call of two_hot_mean: cpp: no C++ compiler")
    assert "cpp        no: no C++ compiler" in done.stdout
    assert "amago_two_hot: no C++ compiler" in done.stderr


def test_the_builder_prints_what_it_built(capsys):
    from amago.kernels import build

    assert build.main([]) == 0
    assert capsys.readouterr().out.startswith("amago_two_hot: ")
