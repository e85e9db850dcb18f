"""Sections, axes and keys of the metrics as metrics.jsonl, wandb and TensorBoard have them."""

import functools
import json
import math
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from wandb.proto import wandb_internal_pb2

from amago.envs import AMAGOEnv
from amago.envs.exploration import EpsilonGreedy
from amago.experiment import Experiment
from amago.tracking import JsonlTracker, TensorboardTracker, WandbTracker
from amago.tracking.time_breakdown import PARTS, TimeBreakdown
from amago.tracking.wandb import require_wandb_login
from amago.utils import AmagoWarning, as_readable_json

MakeExperiment = Callable[..., Experiment]
X_AXES = {
    "train": "total_frames",
    "val": "total_frames",
    "test": "total_frames",
    "dataset": "total_frames",
    "train-update": "gradient_steps",
    "learning": "gradient_steps",
    "time": "Epoch",
}
DIAGNOSTICS = {
    "Loss",
    "Actor Loss",
    "Critic Loss",
    "Learning Rate",
    "Actor Grad Norm",
    "Critic Grad Norm",
    "TrajEncoder Grad Norm",
    "TstepEncoder Grad Norm",
    "Min TD Target",
    "Max TD Target",
    "Mean TD Target",
    "Std TD Target",
    "Mean TD Target gamma=0.9",
    "Mean Q(s, a) gamma=0.9",
    "Mean Q(s, a) gamma=0.999",
    "Std of Q(s, a) over the Ensemble",
    "Filter Mean",
    "Filter Approved Share",
    "Share of Positive Advantages",
    "Advantage 5th Percentile",
    "Advantage 95th Percentile",
    "Share of Sequences with a Done",
    "PopArt mu (mean over gamma)",
}


def metrics_of(experiment: Experiment) -> list[dict[str, Any]]:
    lines = (experiment.run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def train(experiment: Experiment, *, test: bool = False) -> Experiment:
    experiment.start()
    experiment.learn()
    if test:
        experiment.evaluate_test(experiment.make_val_env, timesteps=12)
    experiment.close()
    return experiment


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    content = path.read_bytes()
    block, header = 32768, 7
    position, parts = header, b""
    while position + header <= len(content):
        if block - position % block < header:
            position += block - position % block
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)
        parts += content[position + header : position + header + length]
        position += header + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def items(messages: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in messages}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No login on wandb, in the environment, a settings file or a netrc file."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home" / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "home" / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "home" / "data"))


def test_wandb_has_every_section_over_its_axis_and_the_whole_configuration(
    make_experiment: MakeExperiment, offline: None
) -> None:
    experiment = make_experiment(
        log_to_wandb=True, exploration_wrapper_type=functools.partial(EpsilonGreedy, eps_start=0.5)
    )
    train(experiment, test=True)
    wandb.teardown()  # the process that writes the file has ended
    (path,) = (experiment.run_dir / "wandb_logs").rglob("*.wandb")
    found = list(records(path))
    history = [items(record.history.item) for record in found if record.HasField("history")]
    logged = metrics_of(experiment)
    assert len(history) == len(logged)
    for row, line in zip(history, logged, strict=True):
        expected = {f"{line['section']}/{name}": value for name, value in line["metrics"].items()}
        assert expected.items() <= row.items()
        assert line["axes"].items() <= row.items()
        assert {"total_frames", "total_frames-memory", "Epoch", "gradient_steps"} >= line["axes"].keys()
    names = {name for row in history for name in row}
    assert {f"train-update/{name}" for name in DIAGNOSTICS} <= names
    assert "dataset/Size on Disk (MB)" in names
    assert {"time/steps_per_second", "time/updates_per_second"} <= names
    axes = {}
    numbered: dict[int, str] = {}
    for record in found:
        if record.HasField("metric"):
            metric = record.metric
            numbered[len(numbered) + 1] = metric.name or metric.glob_name
            axes[metric.glob_name or metric.name] = metric.step_metric or numbered.get(
                metric.step_metric_index
            )
    assert {f"{section}/*": axis for section, axis in X_AXES.items()}.items() <= axes.items()
    config: dict[str, Any] = {}
    for record in found:
        if record.HasField("run"):
            config |= items(record.run.config.update)
    assert config["Experiment.batch_size"] == 4
    assert config["Experiment.seed"] == 7
    assert config["Experiment.traj_save_len"] == 1e10
    assert config["Experiment.agent_type"] == "amago.agent.agent.Agent"
    assert config["Experiment.exploration_wrapper_type"].endswith("EpsilonGreedy(eps_start=0.5)")
    assert config["Experiment.dataset"]["dset_max_size"] == 1000
    assert config["FFTrajEncoder.d_model"] == 8
    assert config["packages"]["torch"].startswith(torch.__version__.partition("+")[0])


def test_nested_settings_are_readable() -> None:
    value = {
        "layers": (nn.Linear, functools.partial(nn.Linear, 3, bias=False)),
        "limit": math.inf,
        "size": np.int64(3),
        "folder": Path("a/b"),
    }
    assert as_readable_json(value) == {
        "layers": [
            "torch.nn.modules.linear.Linear",
            "torch.nn.modules.linear.Linear(3, bias=False)",
        ],
        "limit": "inf",
        "size": 3,
        "folder": "a/b",
    }


def test_wandb_without_a_login_is_an_error_before_anything_is_written(
    make_experiment: MakeExperiment, nobody: None, tmp_path: Path
) -> None:
    experiment = make_experiment(log_to_wandb=True)
    with pytest.raises(RuntimeError, match=r"wandb login.*WANDB_MODE=offline"):
        experiment.start()
    assert not experiment.run_dir.exists()
    command = [sys.executable, "-m", "amago.cli", "train", "--wandb", "--run-dir", str(tmp_path / "cli")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "wandb login" in refused.stderr
    assert not (tmp_path / "cli").exists()


@pytest.mark.parametrize("login", [{"WANDB_MODE": "disabled"}, {"WANDB_API_KEY": "0" * 40}])
def test_a_key_or_a_mode_without_a_server_is_enough(
    nobody: None, monkeypatch: pytest.MonkeyPatch, login: dict[str, str]
) -> None:
    for name, value in login.items():
        monkeypatch.setenv(name, value)
    threads = threading.active_count()
    require_wandb_login()
    assert threading.active_count() == threads


def test_without_a_network_a_run_is_logged_offline(
    nobody: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
        wandb.teardown()
        with pytest.warns(AmagoWarning, match=r"logged offline.*wandb sync .*offline-run"):
            tracker = WandbTracker(project="tests", log_dir=tmp_path / "wandb_logs")
        tracker.log({"Average": 0.5}, section="val", axes={"total_frames": 3.0})
        tracker.close()
        wandb.teardown()
    (path,) = (tmp_path / "wandb_logs").glob("wandb/offline-run-*/*.wandb")
    rows = [items(record.history.item) for record in records(path) if record.HasField("history")]
    assert [row["val/Average"] for row in rows] == [0.5]


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The points that TensorBoard shows, by tag."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def expected_points(lines: list[dict[str, Any]]) -> dict[str, list[tuple[int, Any]]]:
    expected: dict[str, list[tuple[int, Any]]] = {}
    for line in lines:
        for name, value in line["metrics"].items():
            step = line["axes"][X_AXES[line["section"]]]
            number = pytest.approx(math.nan if value is None else value, rel=1e-6, nan_ok=True)
            expected.setdefault(f"{line['section']}/{name}", []).append((step, number))
    return expected


def test_tensorboard_shows_each_metric_over_its_axis_also_after_a_resume(
    make_experiment: MakeExperiment,
) -> None:
    for epochs, resume in ((1, False), (3, True)):
        experiment = train(make_experiment(epochs=epochs, resume=resume, log_to_tensorboard=True))
    assert points(experiment.run_dir / "tensorboard") == expected_points(metrics_of(experiment))


def test_tensorboard_drops_the_points_that_a_resumed_run_repeats(tmp_path: Path) -> None:
    history = tmp_path / "metrics.jsonl"

    def session(epochs: range) -> None:
        trackers = JsonlTracker(history), TensorboardTracker(tmp_path / "tensorboard", history=history)
        for epoch in epochs:
            for tracker in trackers:
                tracker.log({"total": epoch / 8}, section="time", axes={"Epoch": float(epoch)})
        for tracker in trackers:
            tracker.close()

    session(range(5))
    # The run was killed and is resumed from a checkpoint of epoch 2, with its metrics.
    history.write_text("".join(history.read_text().splitlines(keepends=True)[:3]))
    session(range(3, 6))
    assert points(tmp_path / "tensorboard") == {"time/total": [(epoch, epoch / 8) for epoch in range(6)]}


def test_the_time_of_an_epoch_is_divided_without_gaps(make_experiment: MakeExperiment) -> None:
    experiment = train(make_experiment(epochs=3, ckpt_interval=1, val_interval=1))
    lines = [line["metrics"] for line in metrics_of(experiment) if line["section"] == "time"]
    assert len(lines) == 3
    for line in lines:
        assert set(line) == {*PARTS, "total", "steps_per_second", "updates_per_second"}
        collecting = line["environments"] + line["policy"] + line["recording"]
        assert line["steps_per_second"] == pytest.approx(60 / collecting)
        assert line["updates_per_second"] == pytest.approx(4 / (line["loading"] + line["update"]))
        assert line["total"] == pytest.approx(sum(line[part] for part in PARTS))
        for part in ("environments", "policy", "recording", "loading", "update", "evaluation"):
            assert line[part] > 0
    assert [line["checkpoint"] > 0 for line in lines] == [False, True, True]


def test_double_buffering_is_timed_as_well(make_experiment: MakeExperiment) -> None:
    experiment = train(make_experiment(env_mode="async", double_buffer=True, parallel_actors=4, epochs=1))
    (line,) = (line["metrics"] for line in metrics_of(experiment) if line["section"] == "time")
    assert min(line["environments"], line["policy"], line["recording"]) > 0


def test_a_part_of_another_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        TimeBreakdown().lap("lunch")


def test_skipped_updates_are_logged_in_every_epoch_and_warned_of_in_every_session(
    make_experiment: MakeExperiment,
) -> None:
    class Broken(Experiment):
        def train_step(self, batch: Any, log_step: bool) -> dict[str, Any]:
            if self.learner.gradient_steps % 4 == 1:
                batch.rews[:] = float("nan")
            return super().train_step(batch, log_step)

    for epochs, resume in ((2, False), (3, True)):
        with pytest.warns(AmagoWarning, match="skipped_updates"):
            experiment = train(make_experiment(cls=Broken, epochs=epochs, resume=resume))
    lines = [line["metrics"] for line in metrics_of(experiment) if line["section"] == "learning"]
    assert [(line["gradient_steps"], line["skipped_updates"]) for line in lines] == [(4, 1), (8, 2), (12, 3)]


@pytest.mark.filterwarnings("ignore:continuing with the current weights")
def test_the_time_of_a_collector_does_not_mix_with_that_of_its_run(make_experiment: MakeExperiment) -> None:
    collector = make_experiment(
        start_learning_at_epoch=math.inf, ckpt_interval=None, always_save_latest=False
    )
    sections = {line["section"] for line in metrics_of(train(collector))}
    assert sections == {"train", "val", "dataset", "time-collector"}


class BrokenAtTheEnd(gym.Env[np.ndarray, int]):
    """Episodes of six steps; the last observation of every second one is NaN."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.episode, self.time = self.episode + 1, 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        broken = self.time == 6 and self.episode % 2 == 0
        return np.full(2, np.nan if broken else 0.5, np.float32), 1.0, self.time == 6, False, {}


def test_an_observation_that_is_not_finite_reaches_neither_buffer_nor_updates(
    make_experiment: MakeExperiment,
) -> None:
    def make_env() -> AMAGOEnv:
        return AMAGOEnv(BrokenAtTheEnd(), env_name="broken")

    experiment = make_experiment(
        make_train_env=make_env, make_val_env=make_env, train_timesteps_per_epoch=24, epochs=2
    )
    with pytest.warns(
        UserWarning, match=r"'broken'\) is not saved: observation 'observation' is nan in step 6"
    ):
        train(experiment)
    assert experiment.counters.gradient_steps == 8
    assert experiment.counters.skipped_updates == 0
    lines = [line["metrics"] for line in metrics_of(experiment) if line["section"] == "dataset"]
    assert [line["Trajectories Refused (not finite)"] for line in lines] == [6, 12]
    assert [line["Trajectory Files in FIFO"] for line in lines] == [6, 12]


def test_the_command_line_writes_tensorboard_files(tmp_path: Path) -> None:
    settings = ["--memory-size", "16", "--memory-layers", "1", "--actors", "4", "--batch-size", "4"]
    budget = [
        "--epochs",
        "1",
        "--timesteps-per-epoch",
        "60",
        "--batches-per-epoch",
        "3",
        "--eval-episodes",
        "4",
    ]
    command = [sys.executable, "-m", "amago.cli", "train", "--tensorboard", "--run-dir", str(tmp_path)]
    subprocess.run([*command, *settings, *budget], check=True, capture_output=True)
    shown = points(tmp_path / "quickstart" / "tensorboard")
    assert {"time/total", "learning/skipped_updates", "dataset/Size on Disk (MB)"} <= shown.keys()
    assert any(tag.startswith("test/") for tag in shown)
