"""What torch asks of operations, of every backend: gradients that are those of the function, true operators.

test_correctness_triton.py runs this file in Triton's interpreter.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from amago.kernels import testing


def test_gradients_pass_gradcheck_in_float64_where_the_backend_has_it(case_or_eager):
    example = case_or_eager.small(torch.float64)
    if not case_or_eager.with_gradients(example):
        return
    fixed = {name: x for name, x in example.tensors.items() if name not in example.gradients}

    def call(*leaves):
        named = dict(zip(example.gradients, leaves, strict=True))
        return example.call(**fixed, **named, backend=case_or_eager.backend)

    leaves = [example.tensors[name].clone().requires_grad_() for name in example.gradients]
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


class Recorded(TorchDispatchMode):
    """The calls of our operators that torch sees, the last of each."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[torch._ops.OpOverload, tuple] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "amago_kernels":
            self.calls[func] = args
        return func(*args, **(kwargs or {}))


def test_operators_keep_torchs_contract_backward_passes_too(case):
    example = case.small()
    with Recorded() as recorded:
        testing.results(example, case.backend, gradients=case.with_gradients(example))
    for operator, arguments in recorded.calls.items():
        differentiable = not operator.name().endswith("_backward")
        arguments = [
            x.detach().clone().requires_grad_(differentiable and x.is_floating_point())
            if isinstance(x, Tensor)
            else x
            for x in arguments
        ]
        torch.library.opcheck(operator, tuple(arguments))
