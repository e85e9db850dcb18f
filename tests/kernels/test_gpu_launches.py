"""GPU kernels run on the caller's stream and in CUDA graphs.

For every backend with kernels of our own. Steps of attention have such tests in test_attention_step_gpu.py.
"""

import pytest
import torch

from amago import kernels
from amago.kernels import Bins

pytestmark = pytest.mark.gpu
BINS = Bins(-10.0, 10.0, 64)


def normal(*shape, seed, device, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(device, dtype)


def two_hot(backend):
    def call(logits, target):
        loss = kernels.two_hot_cross_entropy(logits, target, BINS, backend=backend)
        return loss + kernels.two_hot_mean(logits, BINS, backend=backend)

    return call, ((300, 4, 64), (300, 1)), 1


def attention(backend):
    def call(q, k, v):
        return kernels.attention(q, k, v, window=30, sink=2, backend=backend)

    return call, ((2, 90, 2, 32),) * 3, 3


def scan(backend):
    def call(u, delta, A, B, C, z):
        return kernels.selective_scan(u, delta, -A.exp(), B, C, z=z, delta_softplus=True, backend=backend)

    sequence, shared = (2, 20, 40), (2, 8, 40)
    return call, (sequence, sequence, (20, 8), shared, shared, sequence), 6


CASES = {
    "two-hot in triton": two_hot("triton"),
    "two-hot in cuda": two_hot("cuda"),
    "attention in triton": attention("triton"),
    "scan in triton": scan("triton"),
}
EAGER = {"two-hot": two_hot("eager")[0], "attention": attention("eager")[0], "scan": scan("eager")[0]}


@pytest.fixture(params=CASES)
def launched(request):
    """The call, the eager one, the shapes of its inputs, and how many of them have gradients."""
    call, shapes, leaves = CASES[request.param]
    return call, EAGER[request.param.split()[0]], shapes, leaves


def inputs_of(shapes, device="cuda", seed=0):
    return [normal(*shape, seed=seed + i, device=device) for i, shape in enumerate(shapes)]


def results(call, inputs, leaves):
    """The output and the gradients of the sum of its squares."""
    given = [x.detach().requires_grad_(i < leaves) for i, x in enumerate(inputs)]
    out = call(*given)
    return out, *torch.autograd.grad(out.square().sum(), given[:leaves])


def assert_close(found, wanted):
    for mine, exact in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, exact, atol=1e-4, rtol=1e-3)


def test_kernels_run_on_the_stream_of_the_caller(launched):
    """Behind something slow on it, whose result they need."""
    call, eager, shapes, leaves = launched
    inputs = inputs_of(shapes)
    wanted = results(eager, inputs, leaves)
    results(call, inputs, leaves)  # compiled before, for that takes long
    late = [torch.full_like(x, float("nan")) for x in inputs]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        busy = torch.randn(4096, 4096, device="cuda")
        for _ in range(20):
            busy = busy @ busy * 1e-2
        for x, now in zip(late, inputs, strict=True):
            x.copy_(now)
        found = results(call, late, leaves)
    stream.synchronize()
    assert_close(found, wanted)


def test_kernels_replay_in_a_cuda_graph_with_new_numbers(launched):
    call, eager, shapes, leaves = launched
    inputs = inputs_of(shapes)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results(call, inputs, leaves)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = results(call, inputs, leaves)
    for seed in (50, 60):
        for x, now in zip(inputs, inputs_of(shapes, seed=seed), strict=True):
            x.copy_(now)
        graph.replay()
        assert_close(found, results(eager, inputs, leaves))
