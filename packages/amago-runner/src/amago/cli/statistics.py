"""Interquartile means with stratified bootstrap intervals, as rliable computes them.

Source: Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", 2021, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

_SAMPLES = 10_000


class Estimate(NamedTuple):
    """A value with its confidence interval, whose ends are NaN if no task has two runs."""

    value: float
    low: float
    high: float


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all scores, `scipy.stats.trim_mean(scores, 0.25, axis=None)`."""
    values = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
    if not values.size:
        raise ValueError("scores is empty: an interquartile mean needs at least one score")
    cut = values.size // 4
    return float(values[cut : values.size - cut].mean())


def bootstrap_interquartile_mean(scores: Sequence[ArrayLike]) -> Estimate:
    """Interquartile mean with the 95 % percentile interval of the stratified bootstrap.

    Each of the `_SAMPLES` bootstrap samples draws, with replacement, as many runs from every task as it has.

    Args:
        scores: the scores of each task's runs; tasks may have different numbers of runs. Scores of several tasks
            have to be normalised.
    """
    tasks = [np.asarray(task, dtype=np.float64).ravel() for task in scores]
    rng = np.random.default_rng(0)  # the same scores have the same interval
    drawn = [rng.choice(task, size=(_SAMPLES, task.size)) for task in tasks if task.size]
    value = interquartile_mean(np.concatenate(tasks))
    if max(task.size for task in tasks) < 2:
        return Estimate(value, float("nan"), float("nan"))
    samples = np.sort(np.concatenate(drawn, axis=1), axis=1)
    cut = samples.shape[1] // 4
    means = samples[:, cut : samples.shape[1] - cut].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(value, float(low), float(high))
