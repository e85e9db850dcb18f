"""What a run folder may load by name: parts of amago, and the packages that the user trusts.

A run folder may be from elsewhere, and importing a module or calling what it names runs code.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

import gymnasium
from torch import nn

from amago.experiment import gin_config

_trusted: ContextVar[tuple[str, ...]] = ContextVar("_trusted", default=())


class UntrustedNameError(RuntimeError):
    """A file in a run folder names something that is neither a part of amago nor of a trusted package.

    Args:
        problem: what it names.
        package: the package that could be trusted; "" if that would not help.
        remedy: how to trust it, for the message.

    Attributes:
        problem, package: as given.
    """

    def __init__(self, problem: str, package: str = "", remedy: str = "") -> None:
        remedy = remedy or f"do this inside `with trusting({package!r}):`"
        remedy = f": if you trust it, {remedy}" if package else ""
        super().__init__(problem + remedy)
        self.problem = problem
        self.package = package


@contextmanager
def trusting(*packages: str) -> Iterator[None]:
    """Run folders may name what is in these packages or modules, besides the parts of amago.

    Example:
        with trusting("my_envs"):
            record = read_run(folder)
            experiment = Experiment(**record.experiment_arguments())

    Raises:
        TypeError: a name is not a string.
    """
    if not all(isinstance(package, str) for package in packages):
        raise TypeError(f"trusting takes names of packages, such as 'my_envs', not {packages!r}")
    token = _trusted.set((*_trusted.get(), *packages))
    try:
        yield
    finally:
        _trusted.reset(token)


def trust_only(packages: Sequence[str]) -> None:
    """Replaces the trusted packages, for the rest of a program; see `trusting`."""
    _trusted.set(tuple(packages))


def require_trusted_module(module: str, name: str) -> None:
    """Checks that a module may be imported because a run folder names it.

    Args:
        module: the module.
        name: the complete name in the run folder, for the error.

    Raises:
        UntrustedNameError: it is neither of amago nor of a trusted package.
    """
    if not _is_within(module, ("amago", *_trusted.get())):
        raise UntrustedNameError(
            f"the run folder names {name!r}, which is not a part of amago, and loading it runs its code",
            module.partition(".")[0],
        )


def load_by_name(name: str) -> Any:
    """The class or function with an import path, "module:qualified.name", that a run folder names.

    Raises:
        UntrustedNameError: it is neither a part of amago (a configurable, network, dataset, environment or
            dataclass) nor defined in a trusted package.
        ImportError, AttributeError: it does not exist.
    """
    module, _, qualified = name.partition(":")
    require_trusted_module(module, name)
    gin_config.add_working_folder_to_path()
    with gin_config.unlocked():  # the module may define configurables
        target = functools.reduce(getattr, qualified.split("."), import_module(module))
    home = str(getattr(target, "__module__", ""))  # where it is defined; the module may only import it
    if _is_within(home, _trusted.get()) or (_is_within(home, ("amago",)) and _is_part(target)):
        return target
    require_trusted_module(home or module, name)
    raise UntrustedNameError(
        f"the run folder names {name!r}, which is no configurable, network, dataset or environment of amago"
    )


def _is_part(target: Any) -> bool:
    from amago.loading import RLDataset

    if gin_config.selector_of(target) is not None:
        return True
    bases = (nn.Module, RLDataset, gymnasium.Env)
    return isinstance(target, type) and (issubclass(target, bases) or is_dataclass(target))


def _is_within(module: str, packages: Sequence[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
