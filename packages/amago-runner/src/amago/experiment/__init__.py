"""Experiment, its callbacks, and the objects that it is composed of.

Names are imported on first use, so that importing `amago.experiment.callbacks` does not import torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amago.experiment.callbacks import Callback as Callback
    from amago.experiment.callbacks import Counters as Counters
    from amago.experiment.experiment import Experiment as Experiment
    from amago.experiment.learner import NonFiniteUpdateError as NonFiniteUpdateError

_EXPORTS = {
    "Callback": "amago.experiment.callbacks",
    "Counters": "amago.experiment.callbacks",
    "Experiment": "amago.experiment.experiment",
    "NonFiniteUpdateError": "amago.experiment.learner",
}

__all__ = ["Callback", "Counters", "Experiment", "NonFiniteUpdateError"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
