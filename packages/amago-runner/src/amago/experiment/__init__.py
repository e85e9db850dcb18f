"""Experiment, its callbacks, and the objects that it is composed of."""

from amago.experiment.callbacks import Callback, Counters
from amago.experiment.experiment import Experiment
from amago.experiment.learner import NonFiniteUpdateError
from amago.experiment.schedule import LinearDecay
from amago.experiment.stop_signals import RunStopped

__all__ = ["Callback", "Counters", "Experiment", "LinearDecay", "NonFiniteUpdateError", "RunStopped"]
