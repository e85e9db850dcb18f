"""Metric tracking: a JSON lines file, Weights & Biases and TensorBoard behind one MetricLogger; time breakdown.

`WandbTracker` and `TensorboardTracker` import their libraries when they are created.
"""

from amago.tracking.jsonl import JsonlTracker
from amago.tracking.metric_logger import MetricLogger, Tracker
from amago.tracking.tensorboard import TensorboardTracker
from amago.tracking.time_breakdown import TimeBreakdown
from amago.tracking.wandb import WandbTracker

__all__ = ["JsonlTracker", "MetricLogger", "TensorboardTracker", "TimeBreakdown", "Tracker", "WandbTracker"]
