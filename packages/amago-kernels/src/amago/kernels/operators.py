"""Custom operators of torch: schema, fake implementation, autograd and native call, declared in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_SCHEMA_TYPES = {
    "bool": "bool",
    "int": "SymInt",
    "int | None": "SymInt?",
    "float": "float",
    "float | None": "float?",
}


def require_tensors(**arguments: object) -> None:
    """Raises TypeError for an argument that is not a tensor, by its name."""
    for name, x in arguments.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether autograd records operations on these tensors."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


class Operator:
    """A function of tensors as a custom operator in torch's namespace `amago_kernels`.

    A call runs the function itself unless autograd or torch.compile is tracing: the dispatcher costs up to 50 us,
    more than a small step.

    Args:
        name: name of the operator.
        function: takes the tensors, then an `options` instance if there are options.
        arguments: schema of the tensors, such as "Tensor x, Tensor? mask, Tensor(a!) out" ("!" marks one that the
            function writes to); further arguments may follow if there are no options.
        returns: schema of the results, such as "(Tensor, Tensor)".
        fake: takes what the operator takes, options as separate arguments; returns empty tensors of the results'
            shapes, dtypes and strides.
        options: dataclass of bools, ints and floats; the operator's schema has its fields one by one.
        device: device type that it runs on; all by default.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: str,
        returns: str,
        *,
        fake: Callable[..., Any],
        options: type[Any] | None = None,
        device: str | None = None,
    ) -> None:
        self.function = function
        self._tensors = arguments.count("Tensor")
        fields = () if options is None else dataclasses.fields(options)
        self._fields = tuple(field.name for field in fields)
        schema = ", ".join([arguments, *(f"{_SCHEMA_TYPES[str(f.type)]} {f.name}" for f in fields)])
        written = [part.split()[-1] for part in arguments.split(", ") if "!" in part]

        def flat(*args: Any) -> Any:
            if options is None:
                return function(*args)
            values = dict(zip(self._fields, args[self._tensors :], strict=True))
            return function(*args[: self._tensors], options(**values))

        self.op: Any = torch.library.custom_op(
            f"amago_kernels::{name}",
            flat,
            mutates_args=written,
            device_types=device,
            schema=f"({schema}) -> {returns}",
        )
        self.op.register_fake(fake)

    def __call__(self, *args: Any) -> Any:
        """Runs the operator on the tensors, and the options if there are any."""
        if not torch.compiler.is_compiling() and not needs_gradient(*args[: self._tensors]):
            return self.function(*args)
        return self.dispatch(*args)

    def dispatch(self, *args: Any) -> Any:
        """Runs the operator through torch's dispatcher."""
        if not self._fields:
            return self.op(*args)
        options = args[-1]
        return self.op(*args[:-1], *[getattr(options, name) for name in self._fields])

    def differentiate(
        self, backward: Operator, *, keep: Sequence[int] = (), auxiliary: Sequence[int] = ()
    ) -> None:
        """Registers the backward pass.

        Args:
            backward: takes the gradients of the differentiable outputs, this operator's tensors, the outputs in
                `keep`, and this operator's other arguments; returns the gradients of the leading tensors.
            keep: indices of outputs that the backward pass needs.
            auxiliary: indices of outputs without gradient.
        """

        def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            ctx.save_for_backward(*inputs[: self._tensors], *(outputs[i] for i in keep))
            ctx.others = inputs[self._tensors :]
            ctx.mark_non_differentiable(*(outputs[i] for i in auxiliary))
            ctx.set_materialize_grads(False)  # zeros for auxiliary outputs would cost their memory
            ctx.like = [(x.shape, x.dtype, x.device) for x in outputs]

        def differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
            upstream = []
            for i, (grad, (shape, dtype, device)) in enumerate(zip(grads, ctx.like, strict=True)):
                if i not in auxiliary:
                    zeros = grad is None
                    upstream.append(torch.zeros(shape, dtype=dtype, device=device) if zeros else grad)
            saved = ctx.saved_tensors  # activation checkpointing allows to read them once
            found = backward.op(*upstream, *saved, *ctx.others)
            found = found if isinstance(found, tuple | list) else (found,)
            given = [
                None if x is None else grad for x, grad in zip(saved[: self._tensors], found, strict=False)
            ]
            return *given, *[None] * (self._tensors + len(ctx.others) - len(given))

        self.op.register_autograd(differentiate, setup_context=setup)
