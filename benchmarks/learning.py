"""What agents learn: runs of tasks x policies (memory, none, other libraries) x seeds, and a random policy.

    .venv-envs/bin/python -m benchmarks.learning                              # all missing rows
    .venv/bin/python -m benchmarks.learning --only quickstart --policy memory none --seeds 0 1 2 --jobs 2
    .venv/bin/python -m benchmarks.learning --list                            # rows that exist
    .venv/bin/python -m benchmarks.learning --draw                            # docs/learning*.png
    .venv/bin/python -m benchmarks.learning --table                           # the table in docs/results.md

Every run is a separate process with one thread, in runs/learning-TASK-POLICY-SEED. Its row goes to
benchmarks/results/learning.csv and its evaluations during training to benchmarks/results/learning_curves.csv. A
run whose row exists is not repeated unless `--again` is given; then the newest row is used. A stopped run
continues from its checkpoint. "cpu_seconds" is the processor time of the whole process, which depends little on
other work on the machine. `make test-envs` creates .venv-envs, which contains the packages of all environments;
RecurrentPPO also needs `pip install --no-deps stable-baselines3 sb3-contrib`, LunarLander `pip install box2d`,
and "offline-pendulum" a dataset: `python -m benchmarks.learning_envs RUN`.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import numpy as np

from amago.cli.environments import resolve_environment
from amago.cli.options import parse_arguments
from amago.cli.report import mean_return
from benchmarks.learning_envs import DATASETS
from benchmarks.learning_report import CURVES, RESULTS, draw_all, read_rows, write_table
from benchmarks.learning_tasks import NEIGHBOURS, TASKS, Task
from benchmarks.machine import ROOT, describe

Row = dict[str, str]
FIGURES = ("seed", "mean_return", "eval_episodes", "env_steps", "gradient_steps", "wall_seconds")
POLICIES = ("memory", "none", *NEIGHBOURS)


class Run(NamedTuple):
    """One run; `policy` is "memory", "none" or a neighbour."""

    task: str
    policy: str
    seed: int

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return ROOT / "runs" / f"learning-{self.task}-{self.policy}-{self.seed}"

    def command(self) -> list[str]:
        """Command line, without the path of the interpreter's folder.

        Raises:
            SystemExit: a neighbour whose number of steps is not known, since no row with memory is there.
        """
        arguments = shlex.split(TASKS[self.task].arguments_of(self.policy))
        if self.policy not in NEIGHBOURS:
            return [
                "amago-run",
                "train",
                *arguments,
                "--seed",
                str(self.seed),
                "--run-name",
                self.folder.name,
            ]
        steps = [
            row["env_steps"] for row in read_rows() if (row["task"], row["policy"]) == (self.task, "memory")
        ]
        if not steps:
            raise SystemExit(f"{self.policy} takes as many steps as AMAGO: run {self.task} with memory first")
        module = f"benchmarks.neighbours.{self.policy.replace('-', '_')}"
        sizes = ["--steps", steps[-1], "--seed", str(self.seed), "--out", str(self.folder.relative_to(ROOT))]
        return ["python", "-m", module, *arguments, *sizes]


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


def train(run: Run, again: bool) -> tuple[Row, list[Row]]:
    """Trains one run in a process with one thread; returns its row and the points of its curve.

    A run that was stopped goes on from its checkpoint, if its command is still the same, unless `again`.

    Raises:
        RuntimeError: the process failed; shows the end of its output.
    """
    program, *arguments = run.command()
    note = run.folder.with_suffix(".command")
    goes_on = not again and note.exists() and note.read_text() == shlex.join(run.command())
    if run.policy not in NEIGHBOURS:
        arguments.append("--auto-resume" if goes_on else "--overwrite")
    note.parent.mkdir(exist_ok=True)
    note.write_text(shlex.join(run.command()))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / program), *arguments],
            cwd=ROOT,
            env={**os.environ, **threads},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{shlex.join(run.command())} failed:\n{output.read()[-3000:]}")
    row, points = results_of(run)
    if goes_on:  # times would count the pause, or this session alone
        points = [point | {"seconds": ""} for point in points[:-1]] + points[-1:]
    else:
        row["cpu_seconds"] = f"{usage.ru_utime + usage.ru_stime:.1f}"
    return row, points


def results_of(run: Run) -> tuple[Row, list[Row]]:
    """Row and curve of a run, whose replay buffer it deletes; RuntimeError if the run was stopped."""
    summary = json.loads((run.folder / "summary.json").read_text())
    if summary.get("status", "finished") != "finished":
        raise RuntimeError(f"{run.folder.name} was stopped")
    row = {"task": run.task, "policy": run.policy, "arguments": TASKS[run.task].arguments_of(run.policy)}
    row |= {key: str(summary[key]) for key in FIGURES}
    row["success_by_attempt"] = " ".join(f"{rate:.3f}" for rate in summary["success_by_attempt"])
    row["command"] = shlex.join(run.command())
    ended = (summary["env_steps"], summary["gradient_steps"], summary["wall_seconds"], summary["mean_return"])
    shutil.rmtree(run.folder / "buffer", ignore_errors=True)
    points = [
        {
            "task": run.task,
            "policy": run.policy,
            "seed": str(run.seed),
            "env_steps": f"{steps:.0f}",
            "gradient_steps": f"{updates:.0f}",
            "seconds": f"{seconds:.1f}",
            "return": f"{value:.4f}",
        }
        for steps, updates, seconds, value in [*evaluations(run.folder), ended]
    ]
    return row, points


def evaluations(folder: Path) -> Iterator[tuple[float, float, float, float]]:
    """Environment steps, updates, seconds since the start and mean return of each evaluation during training."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        value = mean_return(record["metrics"])
        if record["section"] == "val" and value is not None:
            axes = record["axes"]
            seconds = record["time"] - records[0]["time"]
            yield axes["total_frames"], axes["gradient_steps"], seconds, value


def append(file: Path, rows: list[Row]) -> None:
    """Adds rows to a file of results, in the order of its columns; what a row lacks stays empty."""
    with file.open(newline="") as lines:
        columns = next(csv.reader(lines))
    with file.open("a", newline="") as lines:
        csv.DictWriter(lines, fieldnames=columns, restval="").writerows(rows)


def is_there(run: Run, rows: list[Row]) -> bool:
    """Whether there is a row of the run, with the arguments of today."""
    arguments = TASKS[run.task].arguments_of(run.policy)
    return any(
        (row["task"], row["policy"], row["seed"], row["arguments"]) == (*run[:2], str(run.seed), arguments)
        for row in rows
    )


def run_all(runs: list[Run], jobs: int, again: bool) -> list[Run]:
    """Trains the runs and keeps their rows; returns those that failed."""
    random: Mapping[str, float] = {task: random_return(TASKS[task]) for task in {run.task for run in runs}}
    failed = []
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(train, run, again): run for run in runs}
        for done in as_completed(waiting):
            run = waiting[done]
            try:
                row, points = done.result()
            except RuntimeError as error:
                print(error, file=sys.stderr, flush=True)
                failed.append(run)
                continue
            row |= {"random_return": f"{random[run.task]:.4f}", "jobs": str(jobs)}
            row["load"] = f"{os.getloadavg()[0]:.1f}"
            append(RESULTS, [row | describe()])
            append(CURVES, points)
            print(
                f"{run.task} {run.policy} {run.seed}: return {float(row['mean_return']):.3f} "
                f"after {row['env_steps']} steps in {row['wall_seconds']} s",
                flush=True,
            )
    return failed


def main() -> None:
    """Trains what is missing, or draws, lists or tabulates what is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(TASKS), default=list(TASKS), metavar="TASK")
    parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each with one thread")
    parser.add_argument("--again", action="store_true", help="run also what has a row")
    parser.add_argument(
        "--list", action="store_true", help="only show which rows are there and which missing"
    )
    parser.add_argument("--draw", action="store_true", help="only draw the rows that are there")
    parser.add_argument("--table", action="store_true", help="only write the table into docs/results.md")
    arguments = parser.parse_args()
    if arguments.draw:
        draw_all(arguments.only)
    if arguments.table:
        write_table()
    if arguments.draw or arguments.table:
        return
    os.environ["MINARI_DATASETS_PATH"] = str(DATASETS)
    rows = read_rows()
    # Policies with memory first: neighbours take as many steps as they.
    wanted = [
        Run(task, policy, seed)
        for task in arguments.only
        for seed in arguments.seeds
        for policy in TASKS[task].policies
        if policy in arguments.policy
    ]
    missing = [run for run in wanted if arguments.again or not is_there(run, rows)]
    if arguments.list:
        for run in wanted:
            state = "there  " if is_there(run, rows) else "missing"
            print(f"{state} {run.task} {run.policy} {run.seed}")
        return
    for neighbours in (False, True):
        now = [run for run in missing if (run.policy in NEIGHBOURS) == neighbours]
        failed = run_all(now, arguments.jobs, arguments.again)
        if failed:
            raise SystemExit(f"failed: {', '.join(run.folder.name for run in failed)}")


if __name__ == "__main__":
    main()
