"""A program that trains one run in many lives: each is killed with SIGKILL at a random moment, the next resumes.

    python killed_run.py FOLDER ENV_MODE KILLS SEED

ENV_MODE is "sync", "async", or "overlap": async with `overlap_collection`.

It trains the same run once more without a kill, prints what happened, and exits with 1 unless weights, counters
and metrics are the same. Lives are forked, so that none has to import torch again.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tests.runner.conftest import SMALL_NETS, make_memory_env

from amago.agent import Agent
from amago.cli_utils import use_config
from amago.experiment import Experiment
from amago.experiment.checkpointer import Checkpointer
from amago.loading import DiskTrajDataset
from amago.nets.traj_encoders import GRUTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder


def train(root: Path, env_mode: str, epochs: int) -> None:
    """Starts or continues the run in `root`, and trains it to its end."""
    resume = bool(Checkpointer(root / "run", "run").epochs())
    if not resume:
        shutil.rmtree(root, ignore_errors=True)
    experiment = Experiment(
        run_name="run",
        ckpt_base_dir=root,
        max_seq_len=8,
        # Small enough that the oldest files are deleted; they have to come back after a kill.
        dataset=DiskTrajDataset(dset_root=root, dset_name="buffer", dset_max_size=40),
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=GRUTrajEncoder,
        agent_type=Agent,
        val_timesteps_per_epoch=12,
        make_train_env=make_memory_env,
        make_val_env=make_memory_env,
        parallel_actors=3,
        env_mode="sync" if env_mode == "sync" else "async",
        overlap_collection=env_mode == "overlap",
        verbose=False,
        dloader_workers=0 if env_mode == "sync" else 1,
        epochs=epochs,
        train_timesteps_per_epoch=40,
        train_batches_per_epoch=15,
        val_interval=3,
        ckpt_interval=2,
        batch_size=4,
        log_interval=2,
        seed=7,
        keep_last=2,
        resume=resume,
    )
    experiment.start()
    experiment.learn()
    experiment.close()


def live(
    root: Path, env_mode: str, epochs: int, seconds: float | None, *, once_it_trains: bool = False
) -> bool:
    """Forks a life of the run, and kills it after `seconds` if it is still alive; whether it was.

    The seconds count from the fork, or from the first metrics that this life logs.
    """
    alive_read, alive_write = os.pipe()  # every process of the life holds it open
    metrics = root / "run" / "metrics.jsonl"
    before = metrics.stat().st_mtime_ns if metrics.exists() else 0
    pid = os.fork()
    if pid == 0:
        try:
            train(root, env_mode, epochs)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os.close(alive_write)
    if seconds is not None:
        while once_it_trains and not (metrics.exists() and metrics.stat().st_mtime_ns > before):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break  # it failed, or is finished already
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.read(alive_read, 1) == b""  # returns when the workers have ended, too
    os.close(alive_read)
    if os.WIFSIGNALED(status):
        return True
    if os.WEXITSTATUS(status):
        sys.exit("a life of the run failed")
    return False


def results(root: Path) -> tuple[dict[str, Any], list[Any]]:
    """Weights, optimizer and counters of the last checkpoint, and the metrics without their times."""
    checkpointer = Checkpointer(root / "run", "run")
    folder = checkpointer.training_state(checkpointer.newest_epoch())
    tensors = {name: torch.load(folder / f"{name}.pt", weights_only=True) for name in ("policy", "optimizer")}
    counters = json.loads((folder / "state.json").read_text())["counters"]
    counters.pop("wall_seconds", None)
    lines = [json.loads(line) for line in (root / "run" / "metrics.jsonl").read_text().splitlines()]
    metrics = [
        (line["section"], line["axes"], line["metrics"]) for line in lines if line["section"] != "time"
    ]
    moments = tensors["optimizer"]["state"]
    flat = {f"{i}/{name}": value for i, state in moments.items() for name, value in state.items()}
    return {**tensors["policy"], **flat, "counters": counters}, metrics


def equal(first: Any, second: Any) -> bool:
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else bool(first == second)


def main(folder: str, env_mode: str, kills: str, seed: str) -> int:
    use_config(SMALL_NETS)
    torch.set_num_threads(1)
    rng = random.Random(int(seed))
    unbroken, killed = Path(folder) / "unbroken", Path(folder) / "killed"
    epochs = 2 * int(kills) + 4
    began = time.time()
    live(unbroken, env_mode, epochs, None)
    lines = (unbroken / "run" / "metrics.jsonl").read_text().splitlines()
    times = [json.loads(line)["time"] for line in lines]
    startup, epoch_seconds = times[0] - began, (times[-1] - times[0]) / epochs
    newest = []
    for done in range(int(kills)):
        starting = rng.random() < 0.25
        seconds = rng.uniform(0.0, startup if starting else 4 * epoch_seconds)
        if not live(killed, env_mode, epochs, seconds, once_it_trains=not starting):
            sys.exit(f"the run ended after {done} kills")
        newest.append(max(Checkpointer(killed / "run", "run").epochs(), default=None))
    live(killed, env_mode, epochs, None)
    (first, first_metrics), (second, second_metrics) = results(unbroken), results(killed)
    same = first.keys() == second.keys() and all(equal(first[name], second[name]) for name in first)
    print(f"{env_mode}: {len(newest)} kills; newest checkpoint after each: {newest}; {epochs} epochs")
    print(f"tensors equal bit for bit: {same}; metrics equal: {first_metrics == second_metrics}")
    print(f"counters: {second['counters']}")
    return 0 if same and first_metrics == second_metrics else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
