"""Metrics that environments report in `info`, and statistics over finished episodes.

Any number in `info` whose key begins with `AMAGO_ENV_LOG_PREFIX` is logged as `Average {metric} in {env}`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amago.envs.arguments import check_arguments

AMAGO_ENV_LOG_PREFIX = "AMAGO_LOG_METRIC"
EPISODE_LENGTH = "Episode Length"
"""Name of the metric with the number of steps of each finished episode, which needs no entry in `info`."""


def extract_metrics(info: Mapping[str, Any]) -> dict[str, float]:
    """The metrics in an unbatched environment's `info`, by name without the prefix and outer spaces.

    Raises:
        TypeError: if a metric is not one number.
    """
    if not info:
        return {}
    return {
        key[len(AMAGO_ENV_LOG_PREFIX) :].strip(): _as_number(key, value)
        for key, value in info.items()
        if isinstance(key, str) and key.startswith(AMAGO_ENV_LOG_PREFIX)
    }


def extract_batched_metrics(info: Mapping[str, Any], batched_envs: int) -> list[tuple[int, dict[str, float]]]:
    """The metrics in a batched environment's `info`, as (row, {name: value}) for rows that have any.

    A metric is an array of `batched_envs` numbers. As in gymnasium's vector environments, a boolean array under
    the key `_{key}` masks the rows that have it; rows that are NaN do not. A single number applies to every row.

    Raises:
        TypeError: if a metric is neither one number nor one per row.
    """
    if not info:
        return []
    rows: dict[int, dict[str, float]] = {}
    for key, value in info.items():
        if not isinstance(key, str) or not key.startswith(AMAGO_ENV_LOG_PREFIX):
            continue
        values = np.asarray(value)
        if values.size == 1:
            values = np.full(batched_envs, _as_number(key, value))
        if values.size != batched_envs:
            raise TypeError(
                f"info[{key!r}] has shape {values.shape}; give one number per row, {batched_envs} of them"
            )
        present = np.asarray(info.get(f"_{key}", np.ones(batched_envs, dtype=np.bool_)), dtype=np.bool_)
        for row, number in enumerate(values.reshape(-1)):
            if present[row] and not np.isnan(number):
                rows.setdefault(row, {})[key[len(AMAGO_ENV_LOG_PREFIX) :].strip()] = float(number)
    return sorted(rows.items())


def extract_vector_metrics(info: Mapping[str, Any], batched_envs: int) -> list[tuple[int, dict[str, float]]]:
    """`extract_batched_metrics` of `info` and of `info["final_info"]`, the last info of rows that were reset."""
    by_row = dict(extract_batched_metrics(info, batched_envs))
    final_info = info.get("final_info")
    if isinstance(final_info, Mapping):
        # gymnasium from 1.0 on: one array and one mask array per key
        final = extract_batched_metrics(final_info, batched_envs)
    elif final_info is not None:
        # gymnasium 0.29: one info per row, None where no episode ended
        found = ((row, extract_metrics(row_info)) for row, row_info in enumerate(final_info) if row_info)
        final = [(row, metrics) for row, metrics in found if metrics]
    else:
        final = []
    for row, metrics in final:
        by_row[row] = {**by_row.get(row, {}), **metrics}
    return sorted(by_row.items())


def _as_number(key: str, value: Any) -> float:
    try:
        return float(np.asarray(value).item())
    except (TypeError, ValueError) as error:
        raise TypeError(f"info[{key!r}] is {value!r}; a logged metric must be one number") from error


class StepCounts:
    """Counts steps by environment name, lazily: names are looped over only when they change, not in every step.

    Args:
        totals: {name: steps}, updated by `settle`.
    """

    def __init__(self, totals: dict[str, int]) -> None:
        self.totals = totals
        self._names: Sequence[str] = ()
        self._steps = 0

    def add(self, names: Sequence[str]) -> None:
        """Counts a step of every row; changed names come in a new list."""
        if names is not self._names:
            self.settle()
            self._names = names
        self._steps += 1

    def take_back(self, names: Sequence[str]) -> None:
        """Subtracts one step for each of `names`, of rows whose step was no transition."""
        for name in names:
            self.totals[name] = self.totals.get(name, 0) - 1

    def settle(self) -> None:
        """Adds the counted steps to the totals."""
        if self._steps:
            for name in self._names:
                self.totals[name] = self.totals.get(name, 0) + self._steps
            self._steps = 0


class ReturnHistory:
    """Returns of finished episodes, by environment name.

    Args:
        env_name: listed from the start, without episodes.
    """

    @check_arguments
    def __init__(self, env_name: str) -> None:
        self.data: dict[str, list[float]] = {env_name: []}

    def add_score(self, env_name: str, score: float) -> None:
        """Adds the total return of one finished episode."""
        self.data.setdefault(env_name, []).append(float(score))


class SpecialMetricHistory:
    """Episode lengths and the metrics that environments report themselves, by environment name and metric.

    Args:
        env_name: listed from the start, without metrics.
    """

    @check_arguments
    def __init__(self, env_name: str) -> None:
        self.data: dict[str, dict[str, list[float]]] = {env_name: {}}

    def add_score(self, env_name: str, key: str, value: float) -> None:
        """Adds one value of the metric `key`."""
        self.data.setdefault(env_name, {}).setdefault(key, []).append(float(value))


class EpisodeStats:
    """Returns, lengths and reported metrics of finished episodes, by environment name.

    `returns` maps a name to one number per finished episode, `specials` maps it to "Episode Length" and the
    reported metrics, and their values.
    """

    def __init__(self) -> None:
        self.returns: dict[str, list[float]] = {}
        self.specials: dict[str, dict[str, list[float]]] = {}

    def add_episode(self, env_name: str, total_return: float, length: int) -> None:
        """Adds one finished episode: its undiscounted return and its number of steps."""
        self.returns.setdefault(env_name, []).append(float(total_return))
        self.add_metrics(env_name, {EPISODE_LENGTH: length})

    def add_metrics(self, env_name: str, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of one step, as `extract_metrics` returns them."""
        named = self.specials.setdefault(env_name, {})
        for name, value in metrics.items():
            named.setdefault(name, []).append(float(value))

    def to_metrics(self) -> dict[str, float]:
        """The metrics to log, by name.

        `Average Total Return in {env}`, `Bottom Quintile Total Return in {env}` (the 20th percentile),
        `Average Episode Length in {env}` (in steps), `Average {metric} in {env}`, and `Average Total Return
        (Across All Env Names)`, the unweighted mean of the means. Environments without a finished episode have
        no entry.
        """
        metrics: dict[str, float] = {}
        means: list[float] = []
        for env_name, returns in self.returns.items():
            if returns:
                means.append(float(np.mean(returns)))
                metrics[f"Average Total Return in {env_name}"] = means[-1]
                metrics[f"Bottom Quintile Total Return in {env_name}"] = float(np.percentile(returns, 20))
        for env_name, named in self.specials.items():
            for name, values in named.items():
                if values:
                    metrics[f"Average {name} in {env_name}"] = float(np.mean(values))
        if means:
            metrics["Average Total Return (Across All Env Names)"] = float(np.mean(means))
        return metrics
