"""summary.json and learning_curve.png: the figures of a run when it ended or was stopped."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from amago.agent import get_agent_cls, list_registered_agents
from amago.experiment.checkpointer import write_json
from amago.experiment.run_folder import METRICS_FILE, PICTURE_FILE, SUMMARY_FILE
from amago.experiment.run_json import installed_versions
from amago.nets.traj_encoders import get_traj_encoder_cls, list_registered_traj_encoders
from amago.nets.tstep_encoders import get_tstep_encoder_cls, list_registered_tstep_encoders

if TYPE_CHECKING:
    from amago.experiment.experiment import Experiment

RETURN_METRIC = "Average Total Return (Across All Env Names)"
_ATTEMPT_METRIC = re.compile(r"Average Episode (\d+) Success in .+")


class Evaluation(NamedTuple):
    """An evaluation whose figures the summary holds.

    Attributes:
        metrics: Metrics of the finished episodes, by name.
        episodes: Number of these episodes, or that was asked for; None if it is not known any more.
        env_steps: Training timesteps that had been collected before it.
    """

    metrics: Mapping[str, float]
    episodes: int | None
    env_steps: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures of a run.

    Attributes:
        run: Name of the run.
        run_id: Identity of the run, as in run.json.
        env, env_args: The environment and its arguments.
        agent, tstep_encoder, traj_encoder: Registered names, or names of classes that are not registered.
        seed: Seed of the run.
        status: "finished", or "stopped" by a signal.
        mean_return: Mean return of the evaluation; None if no episode was finished, or nothing was evaluated.
        success_by_attempt: Success rate of each attempt in an episode; empty if the environment does not report
            "Episode {i} Success".
        metrics: All metrics of the evaluation: of the last one during training, or of that after it.
        eval_episodes: Number of its episodes; None if not known.
        eval_env_steps: Training timesteps before it; None without an evaluation.
        env_steps: Training timesteps of all actors.
        gradient_steps: Updates, including skipped ones.
        skipped_updates: Updates that were skipped because of a non-finite loss or gradient.
        wall_seconds: Duration of training with its evaluations, of all sessions of a resumed run.
        versions: Versions of Python and of the most important packages.
    """

    run: str
    run_id: str = ""
    env: str
    env_args: Mapping[str, Any]
    agent: str
    tstep_encoder: str
    traj_encoder: str
    seed: int
    status: str = "finished"
    mean_return: float | None
    success_by_attempt: list[float]
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    eval_episodes: int | None
    eval_env_steps: int | None = None
    env_steps: int
    gradient_steps: int
    skipped_updates: int = 0
    wall_seconds: float
    versions: Mapping[str, str] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Writes `summary.json` into the run's folder, atomically."""
        write_json(asdict(self), folder / SUMMARY_FILE)

    @classmethod
    def load(cls, folder: Path) -> Summary:
        """Reads `summary.json`; raises FileNotFoundError if the run has not ended."""
        return cls(**json.loads((folder / SUMMARY_FILE).read_text()))


def summary_of(experiment: Experiment, evaluation: Evaluation | None, status: str) -> Summary:
    """The summary of an experiment that is started.

    Args:
        experiment: The experiment.
        evaluation: The evaluation to report; None takes the last one in metrics.jsonl.
        status: "finished" or "stopped".
    """
    evaluation = evaluation or _logged_evaluation(experiment.run_dir / METRICS_FILE)
    metrics = evaluation.metrics if evaluation is not None else {}
    description = experiment.env_description or {}
    names = sorted(experiment.counters.env_steps_by_name or set(experiment.val_envs.env_names))
    policy, counters = experiment.policy, experiment.counters
    return Summary(
        run=experiment.run_name,
        run_id=experiment.run_id or "",
        env=description.get("name") or ", ".join(names),
        env_args=description.get("args", {}),
        agent=_name_of(policy, list_registered_agents(), get_agent_cls),
        tstep_encoder=_name_of(policy.tstep_encoder, list_registered_tstep_encoders(), get_tstep_encoder_cls),
        traj_encoder=_name_of(policy.traj_encoder, list_registered_traj_encoders(), get_traj_encoder_cls),
        seed=experiment.streams.seed,
        status=status,
        mean_return=mean_return(metrics),
        success_by_attempt=success_by_attempt(metrics),
        metrics={name: value if math.isfinite(value) else None for name, value in metrics.items()},
        eval_episodes=evaluation and evaluation.episodes,
        eval_env_steps=evaluation and evaluation.env_steps,
        env_steps=counters.env_steps,
        gradient_steps=counters.gradient_steps,
        skipped_updates=counters.skipped_updates,
        wall_seconds=round(counters.wall_seconds, 2),
        versions=installed_versions(),
    )


def draw_learning_curve(folder: Path) -> Path | None:
    """Draws the learning curve of the run in `folder`; returns the picture, None if there is nothing to draw."""
    from amago.cli.plots import draw_runs, read_figures

    figures = read_figures(folder)
    if not (figures.evaluation.returns or figures.training.returns):
        return None
    draw_runs([figures], folder / PICTURE_FILE)
    return folder / PICTURE_FILE


def success_by_attempt(metrics: Mapping[str, float | None]) -> list[float]:
    """Success rates of attempts 0, 1, … in evaluation metrics, averaged over environment names."""
    rates: dict[int, list[float]] = {}
    for name, value in metrics.items():
        if value is not None and (found := _ATTEMPT_METRIC.fullmatch(name.rpartition("/")[2])):
            rates.setdefault(int(found[1]), []).append(value)
    return [math.fsum(rates[attempt]) / len(rates[attempt]) for attempt in sorted(rates)]


def mean_return(metrics: Mapping[str, float | None]) -> float | None:
    """Mean return in evaluation metrics; None if no episode was finished."""
    found = [value for name, value in metrics.items() if name.endswith(RETURN_METRIC)]
    return found[0] if found and found[0] is not None and math.isfinite(found[0]) else None


def _logged_evaluation(path: Path) -> Evaluation | None:
    """The last evaluation in a metrics.jsonl: one from before the run was resumed."""
    lines = path.read_text().splitlines() if path.is_file() else []
    for line in reversed(lines):
        record = json.loads(line)
        if record["section"] == "val":
            metrics = {name: value for name, value in record["metrics"].items() if value is not None}
            return Evaluation(metrics, None, int(record["axes"]["total_frames"]))
    return None


def _name_of(part: object, names: Sequence[str], get: Callable[[str], type]) -> str:
    """The name under which the class of an agent or encoder is registered, or else the class's own."""
    registered = [name for name in names if get(name) is type(part)]
    return registered[0] if registered else type(part).__name__
