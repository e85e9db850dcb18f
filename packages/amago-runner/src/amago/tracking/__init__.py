"""Trackers: where the metrics of a run go.

`JsonlTracker` always works and needs nothing; `WandbTracker` and `TensorboardTracker` import their libraries
when they are made. `MultiTracker` joins several.
"""

from amago.tracking.base import MultiTracker, Tracker
from amago.tracking.jsonl import JsonlTracker
from amago.tracking.tensorboard import TensorboardTracker
from amago.tracking.wandb import WandbTracker

__all__ = ["JsonlTracker", "MultiTracker", "TensorboardTracker", "Tracker", "WandbTracker"]
