"""Time of an epoch with and without `overlap_collection`.

    .venv/bin/python -m benchmarks.overlap
    .venv/bin/python -m benchmarks.overlap --only compute --rounds 1 --no-save

Environments in 4 worker processes either sleep for 5 ms in every step, as if they waited for another program,
or compute for 2 ms; the quickstart's environment steps in the main process. An epoch makes 60 updates of a
small agent, and collects 15, 60 or 120 steps per actor. Each run is a separate process; runs with and without
overlap alternate. Seconds are medians of whole epochs after the first one, which collects before it learns.
"waits_s" is the time in which the main process waits for environments. Medians over the rounds are appended to
benchmarks/results/overlap.csv.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from amago.agent import Agent
from amago.cli_utils import use_config
from amago.envs import AMAGOEnv
from amago.envs.builtin.frozen_lake import MetaFrozenLake
from amago.experiment import Experiment
from amago.nets.traj_encoders import FFTrajEncoder, TformerTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder
from benchmarks.machine import ROOT, append, describe

RESULTS = ROOT / "benchmarks" / "results" / "overlap.csv"
UPDATES = 60
EPOCHS = 5
SHOWN = (
    "environment",
    "timesteps",
    "updates",
    "env_s",
    "update_s",
    "seconds",
    "overlap_s",
    "times",
    "waits_s",
)
WIDTH = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """Environment, and steps per actor and epoch."""

    environment: str
    timesteps: int
    actors: int = 4


ROWS = (
    Row(environment="quickstart", timesteps=80, actors=16),
    *(Row(environment="sleep 5 ms", timesteps=timesteps) for timesteps in (15, 60, 120)),
    *(Row(environment="compute 2 ms", timesteps=timesteps) for timesteps in (15, 60, 120)),
)


class Slow(gym.Env[Any, Any]):
    """Episodes of 20 steps that take a while."""

    def __init__(self, what: str, seconds: float) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
        self.action_space = gym.spaces.Discrete(4)
        self._computes, self._seconds = what == "compute", seconds
        self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return self._obs(), {}

    def step(self, action: int) -> Any:
        if self._computes:
            begun = time.thread_time()  # unlike the clock, it stands still while another process has the core
            while time.thread_time() - begun < self._seconds:
                pass
        else:
            time.sleep(self._seconds)
        self._time += 1
        return self._obs(), float(action == 0), self._time == 20, False, {}

    def _obs(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 8).astype(np.float32)


def make_env(row: Row) -> AMAGOEnv:
    """One actor's environment."""
    if row.environment == "quickstart":
        return AMAGOEnv(MetaFrozenLake(3, k_episodes=5), env_name="lake")
    what, milliseconds, _ = row.environment.split()
    return AMAGOEnv(Slow(what, 1e-3 * float(milliseconds)), env_name=what)


def measure(row: Row, overlap: bool, folder: Path) -> dict[str, float]:
    """Median seconds of the parts of an epoch."""
    is_quick = row.environment == "quickstart"
    use_config(
        {
            "FFTstepEncoder.d_hidden": WIDTH,
            "FFTstepEncoder.d_output": WIDTH,
            "FFTrajEncoder.d_model": WIDTH,
            "TformerTrajEncoder.d_model": WIDTH,
            "TformerTrajEncoder.d_ff": 4 * WIDTH,
            "TformerTrajEncoder.n_heads": 4,
            "TformerTrajEncoder.n_layers": 2,
            "Actor.d_hidden": WIDTH,
            "NCritics.d_hidden": WIDTH,
            "Agent.use_multigamma": is_quick,
        }
    )
    experiment = Experiment(
        run_name="run",
        ckpt_base_dir=folder,
        dset_root=folder,
        dset_name="buffer",
        max_seq_len=45 if is_quick else 10,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=TformerTrajEncoder if is_quick else FFTrajEncoder,
        agent_type=Agent,
        make_train_env=partial(make_env, row),
        make_val_env=partial(make_env, row),
        val_timesteps_per_epoch=0,
        val_interval=None,
        ckpt_interval=None,
        parallel_actors=row.actors,
        env_mode="sync" if is_quick else "async",
        envs_per_worker=1,
        dloader_workers=0,
        epochs=EPOCHS + 1,
        train_timesteps_per_epoch=row.timesteps,
        train_batches_per_epoch=UPDATES,
        traj_save_len=45 if is_quick else 10,
        stagger_traj_file_lengths=False,
        batch_size=24 if is_quick else 16,
        seed=0,
        verbose=False,
        threads=1,
        overlap_collection=overlap,
    )
    experiment.start()
    experiment.learn()
    experiment.close()
    lines = [json.loads(line) for line in (experiment.run_dir / "metrics.jsonl").read_text().splitlines()]
    epochs = [line["metrics"] for line in lines if line["section"] == "time"][1:]
    assert experiment.counters.gradient_steps == UPDATES * len(epochs) + UPDATES
    return {part: statistics.median(epoch[part] for epoch in epochs) for part in epochs[0]}


def measure_in_subprocess(row: Row, overlap: bool) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.overlap",
        "--row",
        json.dumps([dataclasses.asdict(row), overlap]),
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"{row} failed:\n{run.stderr[-2000:]}")
    result: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return result


def result_of(row: Row, runs: dict[bool, list[dict[str, float]]]) -> dict[str, str]:
    """The columns of a row: medians over the rounds."""
    plain, overlapping = (
        {part: statistics.median(run[part] for run in runs[overlap]) for part in runs[overlap][0]}
        for overlap in (False, True)
    )
    seconds = {
        "env_s": plain["environments"] + plain["policy"] + plain["recording"],
        "update_s": plain["update"] + plain["loading"],
        "seconds": plain["total"],
        "overlap_s": overlapping["total"],
        "waits_s": overlapping["environments"],
    }
    return {
        **{name: str(value) for name, value in dataclasses.asdict(row).items()},
        "updates": str(UPDATES),
        **{name: f"{value:.3f}" for name, value in seconds.items()},
        "times": f"{plain['total'] / overlapping['total']:.2f}",
        "steps_per_s": f"{row.timesteps * row.actors / plain['total']:.0f}",
        "overlap_steps_per_s": f"{row.timesteps * row.actors / overlapping['total']:.0f}",
        "rounds": str(len(runs[True])),
    }


def main() -> None:
    """Measures every row, prints it, and appends it to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs with and without overlap")
    parser.add_argument("--only", default="", help="rows whose environment contains this")
    parser.add_argument("--no-save", action="store_true", help="print, but leave the results file alone")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        row, overlap = json.loads(arguments.row)
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(Row(**row), overlap, Path(folder))))
        return
    print(" | ".join(SHOWN))
    for row in ROWS:
        if arguments.only not in row.environment:
            continue
        runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for overlap in [False, True] * arguments.rounds:
            runs[overlap].append(measure_in_subprocess(row, overlap))
        result = result_of(row, runs)
        print(" | ".join(result[name] for name in SHOWN), flush=True)
        if not arguments.no_save:
            append(RESULTS, result | describe())


if __name__ == "__main__":
    main()
