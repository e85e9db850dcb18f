"""Translating modules into the operations of a step program, and knowing when a translation no longer holds.

A translation reads modules, parameters and settings. Each of them is watched: replace a layer, load other weights,
register a hook or change a setting that was read, and the program is made anew before the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from amago.kernels.step_program import StepProgram, native_watch


class NotTranslatedError(Exception):
    """Something cannot become part of a step program; the message says what and why."""


Translation = Callable[..., Any]
_TRANSLATIONS: dict[type, Translation] = {}
_WAYS_TO_FORGET: dict[type, Any] = {}


def translates(*kinds: type) -> Callable[[Translation], Translation]:
    """Decorator: the function appends the operations of a module of exactly these classes.

    It is called with the builder, the module and whatever `Builder.translate` was given besides, and returns the
    value that stands for the module's output. Subclasses are not meant: they may compute something else.
    """

    def register(function: Translation) -> Translation:
        for kind in kinds:
            _TRANSLATIONS[kind] = function
            _WAYS_TO_FORGET[kind] = getattr(kind, "reset_hidden_state", None)
        return function

    return register


def forgets_as_ever(module: Any) -> bool:
    """Whether the module's `reset_hidden_state` is that of its class when this was registered, not a patch."""
    kind = type(module)
    original = _WAYS_TO_FORGET.get(kind)
    return getattr(kind, "reset_hidden_state", None) is original and "reset_hidden_state" not in vars(module)


class Builder:
    """A step program in the making, `program`, and the `watch` over what it is made from."""

    def __init__(self) -> None:
        self.program = StepProgram()
        self.watch = native_watch()
        self.attention_layers = 0
        self._tensors: set[int] = set()
        self._modules: set[int] = set()

    def no_global_hooks(self) -> None:
        """Raises NotTranslatedError if hooks are registered for all modules; watches them."""
        for hooks in ("_global_forward_hooks", "_global_forward_pre_hooks"):
            self._no_hooks(getattr(torch_module, hooks), "every module")

    def translate(self, module: Any, *arguments: Any, **options: Any) -> Any:
        """What the module's translation returns.

        Raises:
            NotTranslatedError: if its class has none, it is in training mode, or hooks are registered on it.
        """
        if isinstance(module, nn.Module):
            self.visit(module)
        translation = _TRANSLATIONS.get(type(module))
        if translation is None:
            raise NotTranslatedError(f"{type(module).__name__} has no translation")
        return translation(self, module, *arguments, **options)

    def visit(self, module: nn.Module) -> None:
        """Watches a module: its mode, hooks, parameters and the identity of its parts."""
        if id(module) in self._modules:
            return
        self._modules.add(id(module))
        attributes = vars(module)
        name = type(module).__name__
        for key in ("training", "forward"):
            self.watch.entry(attributes, key)
        for hooks in ("_forward_hooks", "_forward_pre_hooks"):
            self._no_hooks(attributes[hooks], name)
        for holder in ("_modules", "_parameters", "_buffers"):
            self.watch.size(attributes[holder])  # what is added
            for key in attributes[holder]:
                self.watch.entry(attributes[holder], key)
        if module.training:
            raise NotTranslatedError(f"{name} is in training mode")
        if "forward" in attributes:
            raise NotTranslatedError(f"{name} has a forward of its own")

    def _no_hooks(self, hooks: dict[int, Any], name: str) -> None:
        self.watch.size(hooks)
        if hooks:
            raise NotTranslatedError(f"{name} has hooks")

    def setting(self, owner: Any, name: str) -> Any:
        """An attribute of an object, watched."""
        self.watch.entry(vars(owner), name)
        return getattr(owner, name)

    def weight(self, tensor: Tensor) -> Tensor:
        """A parameter or buffer, watched.

        Raises:
            NotTranslatedError: if it is not float32 on the CPU, or torch does not count its changes.
        """
        if id(tensor) in self._tensors:
            return tensor
        if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) or tensor.is_inference():
            raise NotTranslatedError(
                f"changes of a {type(tensor).__name__} made in inference mode go unnoticed"
            )
        self._tensors.add(id(tensor))
        self.watch.tensor(tensor)
        _require_plain(tensor)
        return tensor

    def weights(self, *tensors: Tensor | None) -> Callable[[], tuple[Tensor | None, ...]]:
        """What gives these tensors as they are at the time, all of them watched."""
        for tensor in tensors:
            if tensor is not None:
                self.weight(tensor)

        def present() -> tuple[Tensor | None, ...]:
            for tensor in tensors:
                if tensor is not None:
                    _require_plain(tensor)
            return tensors

        return present


def _require_plain(tensor: Tensor) -> None:
    """Raises NotTranslatedError unless a program can read the tensor."""
    if tensor.device.type != "cpu" or tensor.dtype != torch.float32 or tensor.layout != torch.strided:
        raise NotTranslatedError(f"a weight is {tensor.dtype} on {tensor.device}, not float32 on the CPU")
