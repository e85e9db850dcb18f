"""Every backend of every operation within torch.compile."""

import dataclasses

import torch

from amago.kernels import testing


def test_calls_compile_to_one_graph_gradients_included(case):
    example = case.small()
    gradients = case.with_gradients(example)
    plain = testing.results(example, case.backend, gradients=gradients)
    torch._dynamo.reset()
    compiled = dataclasses.replace(
        example, call=torch.compile(example.call, fullgraph=True, backend="aot_eager")
    )
    torch.testing.assert_close(testing.results(compiled, case.backend, gradients=gradients), plain)
