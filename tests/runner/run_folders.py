"""Folders of runs as `amago-run` leaves them behind, without training."""

import json
import socket
import time
from pathlib import Path
from typing import Any

RETURN = "Average Total Return (Across All Env Names)"


def make_run(
    parent: Path,
    name: str,
    *,
    seed: int = 0,
    env: str = "MetaFrozenLake",
    evaluations: tuple[float, ...] = (0.5, 1.0, 2.0),
    attempts: bool = True,
    finished: bool = True,
    activities: bool = False,
    **settings: Any,
) -> Path:
    """A run of three epochs with 1600 environment steps and 100 updates each."""
    folder = parent / name
    training_state = folder / "ckpts" / "training_states" / f"{name}_epoch_2"
    training_state.mkdir(parents=True)
    (training_state / "state.json").write_text("{}")
    record = {
        "format": 2,
        "run_name": name,
        "run_id": name,
        "seed": seed,
        "packages": {"torch": "2.6.0"},
        "environment": {
            "name": env,
            "args": {"size": 3},
            "recipe": {"env": env, "env_args": {"size": 3}, "seed": seed, **settings},
        },
        "arguments": {"run_name": name, "ckpt_base_dir": str(parent), "epochs": 3},
        "gin": {"amago.agent.Agent.gamma": 0.99},
    }
    (folder / "run.json").write_text(json.dumps(record))
    lines = []
    for epoch, value in enumerate(evaluations):
        before = {"total_frames": 1600 * epoch, "Epoch": epoch, "gradient_steps": 100 * epoch}
        after = {**before, "total_frames": 1600 * (epoch + 1)}
        rates = {f"Average Episode {i} Success in {env}": value / 4 + i / 10 for i in range(3) if attempts}
        seconds = {"environments": 1.0, "update": 7.0, "other": 2.0, "total": 10.0}
        sections: list[tuple[str, dict[str, int], dict[str, float]]] = [
            ("val", before, {RETURN: value, **rates}),
            ("train", after, {RETURN: value - 0.2}),
            ("dataset", after, {"Trajectory Files in FIFO": 16.0}),
            ("train-update", {**after, "gradient_steps": 100 * epoch + 1}, {"Loss": 0.25}),
            ("learning", after, {"skipped_updates": 0}),
        ]
        sections += [("time", after, seconds)] if activities else []
        for section, axes, metrics in sections:
            line = {"section": section, "axes": axes, "metrics": metrics, "time": 1e9 + 10 * epoch}
            lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    if finished:
        summary = {
            "run": name,
            "env": env,
            "env_args": {"size": 3},
            "seed": seed,
            "status": "finished",
            "mean_return": evaluations[-1] + 1.0,
            "success_by_attempt": [0.25, 0.5, 0.75] if attempts else [],
            "eval_episodes": 100,
            "env_steps": 4800,
            "gradient_steps": 300,
            "skipped_updates": 0,
            "wall_seconds": 65.0,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_status(folder: Path, pid: int, role: str = "both", **values: Any) -> None:
    """The status file of a process of the run."""
    status = {
        "role": role,
        "index": 0,
        "pid": pid,
        "host": socket.gethostname(),
        "phase": "collecting",
        "epoch": 2,
        "epochs": 3,
        "env_steps": 3200,
        "gradient_steps": 200,
        "steps_per_second": 1234.5,
        "updates_per_second": 15.5,
        "policy_epoch": None,
        "buffer_files": 48,
        "return": 1.5,
        "time": time.time(),
        **values,
    }
    (folder / "status").mkdir(exist_ok=True)
    (folder / "status" / f"{role}-0.json").write_text(json.dumps(status))
