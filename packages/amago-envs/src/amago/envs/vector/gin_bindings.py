"""Sends gin's bindings to worker processes that do not inherit them (spawn, forkserver).

gin's own config strings omit bound classes and objects, so bindings are sent one by one, each value pickled. gin's
tables have no public accessor, hence `gin.config._REGISTRY` and `gin.config._CONFIG`.
"""

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import gin
import gin.config

# Not used in workers, and importing them costs seconds.
_NOT_IN_WORKERS = ("amago.nets.", "amago.agent.", "amago.experiment.", "amago.loading.", "amago.utils.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBinding:
    """One gin binding.

    Attributes:
        key: `scope/selector.parameter` with the shortest unique selector, because a class of the started script
            is in module `__main__` here and in another module in a worker.
        module: where the configurable is defined.
        text: the value in gin's syntax, for references and macros (`@A`, `%A`); else None.
        pickled: the value; empty if `text` is given.
    """

    key: str
    module: str
    text: str | None
    pickled: bytes


def bindings_for_workers() -> list[SentBinding]:
    """All bindings that environments may need.

    Raises:
        ValueError: a value cannot be pickled.
    """
    registry = gin.config._REGISTRY
    sent: list[SentBinding] = []
    for (scope, selector), values in gin.config._CONFIG.items():
        if selector not in registry:
            continue
        module = getattr(registry[selector].wrapped, "__module__", "")
        if f"{module}.".startswith(_NOT_IN_WORKERS):
            continue
        prefix = f"{scope}/" if scope else ""
        for parameter, value in values.items():
            key = f"{prefix}{registry.minimal_selector(selector)}.{parameter}"
            if _holds_reference(value):
                sent.append(SentBinding(key=key, module=module, text=repr(value), pickled=b""))
            else:
                sent.append(SentBinding(key=key, module=module, text=None, pickled=_pickled(key, value)))
    return sent


def _holds_reference(value: Any) -> bool:
    if isinstance(value, gin.config.ConfigurableReference):
        return True
    if isinstance(value, Mapping):
        return any(_holds_reference(item) for pair in value.items() for item in pair)
    return isinstance(value, (list, tuple)) and any(_holds_reference(item) for item in value)


def _pickled(key: str, value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise ValueError(
            f"the gin binding {key} = {value!r} cannot be sent to worker processes that are not forked "
            f"({error}): bind something that is defined at the top level of a module, or use mp_context='fork'"
        ) from error


def bind_received(bindings: Iterable[SentBinding]) -> None:
    """Applies `bindings_for_workers` of another process; imports the modules that they configure."""
    import amago.envs  # noqa: F401 (registers exploration)

    with gin.unlock_config():
        for binding in bindings:
            if not gin.config._REGISTRY.matching_selectors(binding.key.rpartition("/")[2].rpartition(".")[0]):
                import_module(binding.module)
            if binding.text is None:
                gin.bind_parameter(binding.key, pickle.loads(binding.pickled))
            else:
                gin.parse_config(f"{binding.key} = {binding.text}")
