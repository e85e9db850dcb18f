"""What agents learn: whole runs of `amago-run train` for several seeds, beside a random policy.

    .venv-envs/bin/python -m benchmarks.learning                      # every task, seeds 0, 1 and 2
    .venv/bin/python -m benchmarks.learning --only quickstart --jobs 2

Every seed of a task is a run in a process of its own, in runs/learning-TASK-SEED. Its row goes to
benchmarks/results/learning.csv and its evaluations during training to benchmarks/results/learning_curves.csv.
`--draw` only draws docs/learning-TASK.png from these files. `make test-envs` creates .venv-envs,
which has the packages of all environments.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from amago.cli.environments import resolve_environment
from amago.cli.options import parse_arguments
from amago.cli.report import mean_return
from benchmarks.machine import ROOT, append, describe

RESULTS = Path(__file__).parent / "results" / "learning.csv"
CURVES = Path(__file__).parent / "results" / "learning_curves.csv"
FIGURES = ("seed", "mean_return", "eval_episodes", "env_steps", "gradient_steps", "wall_seconds")


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task: the arguments of `amago-run train`, and the episodes that a random policy plays for comparison."""

    arguments: str
    random_episodes: int = 100


TASKS = {
    "quickstart": Task(arguments="MetaFrozenLake"),
    "cartpole": Task(arguments="CartPole-v1"),
    "pendulum": Task(arguments="Pendulum-v1"),
    "popgym-repeat-previous": Task(arguments="popgym-RepeatPreviousEasy-v0"),
    "babyai-go-to-red-ball": Task(arguments="BabyAI-GoToRedBallNoDists-v0"),
    "atari-pong": Task(arguments="ALE/Pong-v5 --env-arg frame_skip=12", random_episodes=20),
}


def random_return(task: Task) -> float:
    """Mean return of a policy that draws its actions uniformly."""
    name, *options = shlex.split(task.arguments)
    env_args = [value for option, value in itertools.pairwise(options) if option == "--env-arg"]
    env = resolve_environment(name, parse_arguments(env_args, "--env-arg"))()
    env.action_space.seed(0)
    returns = []
    for episode in range(task.random_episodes):
        env.reset(seed=episode)
        total, is_over = 0.0, False
        while not is_over:
            _, reward, terminated, truncated, _ = env.step(np.asarray(env.action_space.sample())[None])
            total += float(reward[0])
            is_over = bool(terminated[0] or truncated[0])
        returns.append(total)
    env.close()
    return float(np.mean(returns))


def train(name: str, seed: int) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Trains one seed; returns its row and the points of its curve."""
    run_name = f"learning-{name}-{seed}"
    command = [str(Path(sys.executable).parent / "amago-run"), "train", *shlex.split(TASKS[name].arguments)]
    command += ["--seed", str(seed), "--run-name", run_name, "--overwrite"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    folder = ROOT / "runs" / run_name
    summary = json.loads((folder / "summary.json").read_text())
    row = {key: str(summary[key]) for key in FIGURES}
    row["success_by_attempt"] = " ".join(f"{rate:.3f}" for rate in summary["success_by_attempt"])
    curve = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        value = mean_return(record["metrics"])
        if record["section"] == "val" and value is not None:
            curve.append((record["axes"]["total_frames"], record["axes"]["gradient_steps"], value))
    curve.append((summary["env_steps"], summary["gradient_steps"], summary["mean_return"]))
    points = [
        {
            "task": name,
            "seed": str(seed),
            "env_steps": f"{x:.0f}",
            "gradient_steps": f"{u:.0f}",
            "return": f"{y:.4f}",
        }
        for x, u, y in curve
    ]
    return row, points


def draw(
    name: str, rows: Sequence[Mapping[str, str]], points: Sequence[Mapping[str, str]], path: Path
) -> None:
    """Draws the evaluations of every seed and their mean over environment steps, above the random policy."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(6.4, 3.8), dpi=150, layout="constrained")
    panel = figure.subplots()
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(alpha=0.25, linewidth=0.6)
    curves: dict[str, dict[float, float]] = {}
    for point in points:  # of a seed that ran twice, the later run
        curves.setdefault(point["seed"], {})[float(point["env_steps"])] = float(point["return"])
    for curve in curves.values():
        panel.plot(*zip(*sorted(curve.items()), strict=True), color="#0072B2", alpha=0.35, linewidth=1.0)
    common = sorted(set.intersection(*(set(curve) for curve in curves.values())))
    mean = [float(np.mean([curve[x] for curve in curves.values()])) for x in common]
    panel.plot(
        common,
        mean,
        color="#0072B2",
        linewidth=2.2,
        marker="o",
        markersize=4,
        label=f"mean of {len(curves)} seeds",
    )
    random = float(np.mean([float(row["random_return"]) for row in rows]))
    panel.axhline(
        random, color="#D55E00", linestyle="--", linewidth=1.4, label=f"random policy: {random:.3g}"
    )
    panel.set_xlabel("environment steps")
    panel.set_ylabel("mean return of an episode")
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.set_title(f"amago-run train {TASKS[name].arguments}", fontsize=11)
    panel.legend(frameon=False, loc="best", fontsize=9)
    figure.savefig(path, facecolor="white")


def read(file: Path, name: str) -> list[dict[str, str]]:
    """The rows of a task."""
    with file.open(newline="") as lines:
        return [row for row in csv.DictReader(lines) if row["task"] == name]


def main() -> None:
    """Trains every seed of the tasks, prints its row and draws the curves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=sorted(TASKS), default=sorted(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--draw", action="store_true", help="only draw the rows that are there")
    arguments = parser.parse_args()
    for name in arguments.only:
        if not arguments.draw:
            random = random_return(TASKS[name])
            with ThreadPoolExecutor(arguments.jobs) as pool:
                for row, points in pool.map(train, [name] * len(arguments.seeds), arguments.seeds):
                    row = {
                        "task": name,
                        "arguments": TASKS[name].arguments,
                        **row,
                        "random_return": f"{random:.4f}",
                    }
                    row |= {"jobs": str(arguments.jobs), "load": f"{os.getloadavg()[0]:.1f}"}
                    append(RESULTS, row | describe())
                    for point in points:
                        append(CURVES, point)
                    print(row, flush=True)
        draw(name, read(RESULTS, name), read(CURVES, name), ROOT / "docs" / f"learning-{name}.png")


if __name__ == "__main__":
    main()
