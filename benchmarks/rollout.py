"""Environment steps per second of data collection, including the writing of trajectory files.

    .venv/bin/python -m benchmarks.rollout
    .venv/bin/python -m benchmarks.rollout --rounds 5
    .venv/bin/python -m benchmarks.rollout --scaling
    .venv/bin/python -m benchmarks.rollout --split
    .venv/bin/python -m benchmarks.rollout --only "lake GRU" --no-save
    .venv/bin/python -m benchmarks.rollout --only "lake FF" --memory 10000000 --no-save

Trajectory encoders are 128 wide with 3 layers; timestep encoder and actor keep their defaults, 512 and 256
wide. Exploration is on, and every finished episode becomes a file; the measurement ends when the last file is
on disk. Every row is measured in a separate process. `bare_steps_per_s` is the rate of one environment alone,
without this library, on one core; `us_per_file` is the time that the disk takes for a small file;
`reference_steps_per_s` was measured with the reference implementation, on an unknown machine.

`--memory STEPS` collects that many steps and repeatedly prints the resident memory. Rows are appended to
benchmarks/results/rollout.csv when their last round is done.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from amago.agent import Agent
from amago.envs import AMAGOEnv, EpsilonGreedy
from amago.envs.builtin.toy_gym import MetaFrozenLake
from amago.envs.metrics import EpisodeStats
from amago.envs.recorder import SplitRecorder, TrajectoryRecorder
from amago.envs.vector import make_split_vector_env, make_vector_env
from amago.experiment.rollout import ActingPolicy, Rollout
from amago.experiment.split_rollout import SplitRollout
from amago.nets.traj_encoders import FFTrajEncoder, GRUTrajEncoder, TformerTrajEncoder
from amago.nets.tstep_encoders import CNNTstepEncoder, FFTstepEncoder
from benchmarks.machine import ROOT, append, describe, version

RESULTS = Path(__file__).parent / "results" / "rollout.csv"
STEPS_PER_RUN = 200  # between two looks at the clock
WIDTH, LAYERS = 128, 3
ENCODERS: dict[str, Any] = {
    "Transformer": partial(TformerTrajEncoder, d_model=WIDTH, d_ff=4 * WIDTH, n_layers=LAYERS),
    "GRU": partial(GRUTrajEncoder, d_hidden=WIDTH, d_output=WIDTH, n_layers=LAYERS),
    "FF": partial(FFTrajEncoder, d_model=WIDTH, n_layers=LAYERS),
}
SHOWN = (
    "name",
    "actors",
    "window",
    "steps_per_s",
    "reference_steps_per_s",
    "times_reference",
    "bare_steps_per_s",
    "files_per_s",
    "us_per_file",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement.

    Args:
        env: lake, CartPole, Pendulum or the shape of an observation such as 84x84x3.
        busy_us: added to the duration of each of its steps.
        split: double buffering, with `SplitRollout`.
    """

    env: str
    encoder: str
    mode: str
    actors: int = 12
    window: int = 128
    reference: int | None = None
    busy_us: int = 0
    split: bool = False

    @property
    def name(self) -> str:
        slower = f" + {self.busy_us} us" if self.busy_us else ""
        return f"{self.env}{slower} {self.encoder} {self.mode}{' split' if self.split else ''}"


ROWS = (
    Row(env="lake", encoder="Transformer", mode="sync", reference=3850),
    Row(env="lake", encoder="GRU", mode="sync", reference=7590),
    Row(env="lake", encoder="FF", mode="sync", reference=7900),
    Row(env="lake", encoder="Transformer", mode="async", reference=1940),
    Row(env="lake", encoder="GRU", mode="async", reference=3360),
    Row(env="lake", encoder="FF", mode="async"),
    Row(env="CartPole", encoder="FF", mode="sync", reference=6880),
    Row(env="Pendulum", encoder="Transformer", mode="sync", actors=32, reference=4140),
)
SCALING = (
    *(Row(env="lake", encoder="Transformer", mode="sync", actors=n) for n in (1, 4, 16, 64, 256)),
    *(Row(env=shape, encoder="FF", mode="sync") for shape in ("4", "64", "1024", "16384", "84x84x3")),
    *(Row(env="lake", encoder="Transformer", mode="sync", window=w) for w in (64, 256, 512, 1024, 2048)),
)
SPLIT = tuple(
    Row(env="lake", encoder="Transformer", mode="async", actors=actors, busy_us=busy_us, split=split)
    for actors, busy_us in ((12, 0), (12, 50), (64, 20), (12, 1000))
    for split in (False, True)
)


class Noise(gym.Env[Any, int]):
    """Observations of any shape at no cost, in episodes of 200 steps."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        image = len(shape) == 3
        self.observation_space = (
            gym.spaces.Box(0, 255, shape, np.uint8) if image else gym.spaces.Box(-1.0, 1.0, shape, np.float32)
        )
        self.action_space = gym.spaces.Discrete(5)  # type: ignore[assignment]
        self._obs = np.full(shape, 100 if image else 0.5, self.observation_space.dtype)
        self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._time = 0
        return self._obs, {}

    def step(self, action: int) -> Any:
        self._time += 1
        return self._obs, 0.0, self._time == 200, False, {}


class Busy(gym.Wrapper[Any, Any, Any, Any]):
    """Makes every step longer by computing."""

    def __init__(self, env: gym.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            pass
        return self.env.step(action)


def make_env(row: Row) -> gym.Env[Any, Any]:
    """The environment of a row, without any of our wrappers."""
    env: gym.Env[Any, Any]
    if row.env == "lake":
        env = MetaFrozenLake(4, k_episodes=5)
    elif row.env in ("CartPole", "Pendulum"):
        env = gym.make({"CartPole": "CartPole-v1", "Pendulum": "Pendulum-v1"}[row.env])
    else:
        env = Noise(tuple(int(size) for size in row.env.split("x")))
    return Busy(env, 1e-6 * row.busy_us) if row.busy_us else env


def make_amago_env(row: Row) -> AMAGOEnv:
    """One actor's environment."""
    return AMAGOEnv(make_env(row), env_name=row.env)


def bare_rate(row: Row, seconds: float) -> float:
    """Steps per second of one environment with random actions, resets included."""
    env = make_env(row)
    env.action_space.seed(0)
    actions = itertools.cycle([env.action_space.sample() for _ in range(1000)])
    env.reset(seed=0)
    steps, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        for _ in range(500):
            _, _, terminated, truncated, _ = env.step(next(actions))
            if terminated or truncated:
                env.reset()
        steps += 500
    return steps / passed


class Collection:
    """A rollout with agent, environments and recorder."""

    def __init__(self, row: Row, folder: Path, *, keep_files: bool = True) -> None:
        make_envs = [partial(make_amago_env, row)] * row.actors
        options: dict[str, Any] = {"exploration_wrapper_type": EpsilonGreedy, "seed": 0}
        envs: Any = (
            make_split_vector_env(make_envs, **options)
            if row.split
            else make_vector_env(make_envs, env_mode=row.mode, **options)
        )
        torch.manual_seed(0)
        image = len(envs.observation_space["observation"].shape or ()) == 3
        agent = Agent(
            obs_space=envs.observation_space,
            rl2_space=envs.rl2_space,
            action_space=envs.action_space,
            max_seq_len=row.window,
            tstep_encoder_type=CNNTstepEncoder if image else FFTstepEncoder,
            traj_encoder_type=ENCODERS[row.encoder],
        )

        def recorder(actors: int, writer_id: str) -> TrajectoryRecorder:
            return TrajectoryRecorder(
                actors,
                save_to=folder,
                save_len=1e10,
                max_seq_len=row.window,
                rng=np.random.default_rng(0),
                writer_id=writer_id,
                on_written=None if keep_files else Path.unlink,
            )

        policy = ActingPolicy(agent, device=torch.device("cpu"))
        self.envs = envs
        self.recorder: Any
        self.rollout: Any
        if row.split:
            first, second = envs.halves
            self.recorder = SplitRecorder(recorder(first.num_envs, "000"), recorder(second.num_envs, "001"))
            self.rollout = SplitRollout(policy, envs, recorder=self.recorder)
        else:
            self.recorder = recorder(row.actors, "000")
            self.rollout = Rollout(policy, envs, recorder=self.recorder)

    def run_for(self, seconds: float) -> tuple[int, float]:
        """Vector steps, and the seconds until their files were written."""
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            self.rollout.run(timesteps=STEPS_PER_RUN)
            steps += STEPS_PER_RUN
        self.recorder.flush()
        return steps, time.perf_counter() - start

    def close(self) -> None:
        """Closes recorder and environments."""
        self.recorder.close()
        self.envs.close()


def us_per_new_file(folder: Path) -> float:
    """The median time to write a small file."""
    content, seconds = bytes(3000), []
    for i in range(300):
        start = time.perf_counter()
        (folder / str(i)).write_bytes(content)
        seconds.append(time.perf_counter() - start)
    return 1e6 * statistics.median(seconds)


def measure(row: Row, seconds: float, folder: Path) -> dict[str, str]:
    """The columns of a row of results; trajectories are left in `folder`."""
    bare = bare_rate(row, min(1.0, seconds))
    collection = Collection(row, Path(tempfile.mkdtemp(dir=folder)))
    collection.run_for(seconds / 4)
    files = collection.recorder.saved_files
    steps, passed = collection.run_for(seconds)
    collection.close()
    rate = steps * row.actors / passed
    return {
        "name": row.name,
        "actors": str(row.actors),
        "window": str(row.window),
        "steps_per_s": f"{rate:.0f}",
        "us_per_vector_step": f"{passed / steps * 1e6:.0f}",
        "reference_steps_per_s": "" if row.reference is None else str(row.reference),
        "times_reference": "" if row.reference is None else f"{rate / row.reference:.1f}",
        "bare_steps_per_s": f"{bare:.0f}",
        "files_per_s": f"{(collection.recorder.saved_files - files) / passed:.0f}",
        "us_per_file": f"{us_per_new_file(Path(tempfile.mkdtemp(dir=folder))):.0f}",
        "threads": str(torch.get_num_threads()),
        "gymnasium": version("gymnasium"),
    }


def resident_mib(process: str = "self") -> float:
    """Resident memory of a process (Linux)."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return float(next(line.split()[1] for line in status if line.startswith("VmRSS"))) / 1024


def watch_memory(row: Row, total_steps: int) -> None:
    """Collects `total_steps` steps of all actors together; prints the resident memory twenty times."""
    with tempfile.TemporaryDirectory() as folder:
        collection = Collection(row, Path(folder), keep_files=False)
        timesteps = max(1, total_steps // row.actors // 20)
        for done in range(1, 21):
            collection.rollout.stats = EpisodeStats()  # as after every collection of an experiment
            collection.rollout.run(timesteps=timesteps)
            workers = [f"{resident_mib(str(worker.pid)):.1f}" for worker in multiprocessing.active_children()]
            of_workers = f", workers {', '.join(workers)} MiB" if workers else ""
            steps = done * timesteps * row.actors
            print(f"{row.name}: {steps} steps, {resident_mib():.1f} MiB{of_workers}", flush=True)
        collection.close()


def measure_in_subprocess(row: Row, seconds: float, folder: str) -> dict[str, str]:
    """`measure` in a new process, so that no row inherits memory or threads of another."""
    command = [sys.executable, "-m", "benchmarks.rollout", "--row", json.dumps(dataclasses.asdict(row))]
    run = subprocess.run(
        [*command, "--seconds", str(seconds), "--folder", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise SystemExit(f"{row} failed:\n{run.stderr[-2000:]}{run.stdout[-500:]}")
    result: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return result


def median_of(results: list[dict[str, str]]) -> dict[str, str]:
    """The run of median rate (the slower of the middle two), with the rates of all runs."""
    ordered = sorted(results, key=lambda result: float(result["steps_per_s"]))
    rates = " ".join(result["steps_per_s"] for result in ordered)
    return ordered[(len(ordered) - 1) // 2] | {"rates_of_all_runs": rates}


def rows_of(arguments: argparse.Namespace) -> Iterator[Row]:
    """The rows that the arguments select."""
    for row in SCALING if arguments.scaling else SPLIT if arguments.split else ROWS:
        if arguments.only is None or arguments.only in row.name:
            yield row


def main() -> None:
    """Measures every row, prints it, and appends it to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="measured time of a row")
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        help="measure every row this many times, in turns; the median goes to the results",
    )
    parser.add_argument("--scaling", action="store_true", help="numbers of actors, observations and windows")
    parser.add_argument("--split", action="store_true", help="with and without double buffering")
    parser.add_argument("--memory", type=int, metavar="STEPS", help="watch the memory over so many steps")
    parser.add_argument("--only", help="rows whose name contains this")
    parser.add_argument("--no-save", action="store_true", help="print, but leave the results file alone")
    parser.add_argument("--folder", help="where trajectories go until the end; by default below build/")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        row = Row(**json.loads(arguments.row))
        print(json.dumps(measure(row, arguments.seconds, Path(arguments.folder))))
        return
    if arguments.memory:
        for row in rows_of(arguments):
            watch_memory(row, arguments.memory)
        return
    print(" | ".join(SHOWN))
    runs: dict[Row, list[dict[str, str]]] = {row: [] for row in rows_of(arguments)}
    # Files are deleted at the very end: for minutes after deletions, ext4 without a journal is slow to find room
    # for new files.
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder or ROOT / "build", prefix="rollout-") as folder:
        for row in list(runs) * arguments.rounds:
            runs[row].append(measure_in_subprocess(row, arguments.seconds, folder))
            print(" | ".join(runs[row][-1][key] for key in SHOWN), flush=True)
            if len(runs[row]) == arguments.rounds and not arguments.no_save:
                append(RESULTS, median_of(runs[row]) | describe())


if __name__ == "__main__":
    main()
