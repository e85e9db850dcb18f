"""How "auto" chooses within torch.compile: as without it, in one graph."""

import pytest
import torch

from amago import kernels
from amago.kernels import backends, examples, measured, shape_classes


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    """The folder of the user's table, and a package's table of its own; both empty at first."""
    monkeypatch.setattr(measured, "user_table", lambda: tmp_path / "user.json")
    monkeypatch.setattr(measured, "PACKAGE_TABLE", tmp_path / "package.json")
    backends.forget_orders()
    yield tmp_path
    monkeypatch.undo()
    backends.forget_orders()


@pytest.mark.parametrize("fastest", ["torch", "cpp", "eager"])
def test_torch_compile_follows_the_choice_in_one_graph(tables, fastest):
    here = shape_classes.device_class(torch.device("cpu"))
    times = {"two_hot_cross_entropy": {"small single": {fastest: 1.0}}}
    measured.write(tables / "user.json", {"device": here, "microseconds": times})
    backends.forget_orders()
    logits = torch.randn(6, 4, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    target = torch.linspace(-1, 1, 6).view(6, 1)

    bins = kernels.Bins(-1.0, 1.0, 8)

    def loss(x):
        return kernels.two_hot_cross_entropy(x, target, bins).sum()

    torch._dynamo.reset()
    explanation = []

    def watching(graph, inputs):
        explanation.append(str(graph.graph))
        return graph.forward

    compiled = torch.compile(loss, fullgraph=True, backend=watching)
    torch.testing.assert_close(compiled(logits), loss(logits))
    assert ("windowed_cross_entropy" in explanation[0]) == (fastest == "cpp")
    (plain,) = torch.autograd.grad(loss(logits), logits)
    torch._dynamo.reset()
    (grad,) = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(logits), logits)
    torch.testing.assert_close(grad, plain)


@pytest.mark.parametrize("operation", list(shape_classes.NAMES))
def test_torch_compile_follows_every_operation_with_sizes_that_change(operation):
    torch._dynamo.reset()
    example = next(examples.sample_calls(operation, "cpu"))
    with torch.no_grad():
        call = torch.compile(example.call, fullgraph=True, backend="eager", dynamic=True)
        torch.testing.assert_close(call(**example.tensors, backend=None), example.run())
