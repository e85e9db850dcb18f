"""The commands around trained policies: videos, evaluation, export."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gin
import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image
from tests.runner.policy_runs import Made
from typer.testing import CliRunner, Result

from amago.cli.app import app
from amago.cli.video import as_frame, write_video
from amago.envs import AMAGOEnv

TINY = [
    *("--memory-size", "16", "--memory-layers", "1", "--actors", "2", "--batch-size", "4", "--epochs", "1"),
    *("--timesteps-per-epoch", "60", "--batches-per-epoch", "2", "--eval-episodes", "2"),
]
EPISODE = 5


class SignEnv(gym.Env[Any, int]):
    """Episodes of five steps; a frame shows the step as its brightness, if there is a render mode."""

    metadata = {"render_modes": ["rgb_array", "human"], "render_fps": 25}  # noqa: RUF012
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        super().reset(seed=seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observation_space.sample(), 1.0, self.time >= EPISODE, False, {}

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        return np.full((21, 30, 3), 50 * self.time, np.uint8)


class PlainEnv(SignEnv):
    """The same without the argument `render_mode`."""

    def __init__(self) -> None:
        super().__init__()


class BlindEnv(PlainEnv):
    """Renders nothing."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def render(self) -> Any:
        return None


def make_plain_env() -> AMAGOEnv:
    return AMAGOEnv(PlainEnv(), "plain")


def amago_run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


def brightness(path: Path) -> list[int]:
    """The frames of a .gif of SignEnv, repeated as often as they are shown."""
    steps = []
    with Image.open(path) as image:
        for number in range(image.n_frames):
            image.seek(number)
            repeated = round(image.info["duration"] / 40)
            steps += [round(float(np.asarray(image.convert("RGB")).mean()) / 50)] * repeated
    return steps


@pytest.fixture(autouse=True)
def _gin_as_before() -> Iterator[None]:
    yield
    gin.clear_config()


@pytest.mark.parametrize("env", ["SignEnv", "PlainEnv"])
def test_a_video_shows_every_step_of_its_episodes(env: str, tmp_path: Path) -> None:
    """Whether the environment takes a render mode or only has the attribute."""
    name = f"tests.runner.test_using_policies:{env}"
    amago_run("train", name, "--run-name", "run", "--run-dir", tmp_path, *TINY)
    printed = amago_run(
        "eval", "run", "--run-dir", tmp_path, "--episodes", 4, "--render", "--trust", "tests"
    ).output
    assert "Average Total Return" in printed
    assert "2 episodes, mean return 5.000" in printed
    assert brightness(tmp_path / "run" / "episodes.gif") == [0, 1, 2, 3, 4, 5] * 2


def test_text_is_filmed_and_success_is_told_by_attempt(tmp_path: Path) -> None:
    amago_run("train", "--run-dir", tmp_path, *TINY, "--env-arg", "k_episodes=2")
    video = tmp_path / "videos" / "lake.mp4"
    options = ["--run-dir", tmp_path, "--video", video, "--video-episodes", 1]
    printed = amago_run("eval", "quickstart", *options).output
    assert "Attempt  Success" in printed
    assert re.search(r"1 episodes, mean return [\d.]+, success by attempt \d+% \d+%", printed)
    assert "FF" not in printed  # the environment prints what it renders
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(video))
    assert frames > 3
    assert seconds == pytest.approx(frames / 10)


def test_a_run_from_python_is_evaluated_and_filmed(make_experiment: Made) -> None:
    experiment = make_experiment(make_train_env=make_plain_env, make_val_env=make_plain_env)
    experiment.start()
    experiment.learn()
    printed = amago_run("eval", experiment.run_dir, "--render", "--trust", "tests").output
    assert "Average Total Return in plain" in printed
    assert len(brightness(experiment.run_dir / "episodes.gif")) == 12
    program = experiment.run_dir / "policy.pt2"
    amago_run("export", experiment.run_dir, program)
    assert program.is_file()


def test_what_cannot_be_evaluated_or_filmed_says_why(make_experiment: Made, tmp_path: Path) -> None:
    local: Callable[[], AMAGOEnv] = lambda: AMAGOEnv(BlindEnv(), "blind")  # noqa: E731
    experiment = make_experiment(make_train_env=local, make_val_env=local)
    experiment.start()
    experiment.learn()
    told = " ".join(amago_run("eval", experiment.run_dir, code=2).output.split())
    assert "run.json lacks make_val_env: a lambda" in told
    assert "define it at the top level of a module" in told
    name = "tests.runner.test_using_policies:BlindEnv"
    amago_run("train", name, "--run-name", "run", "--run-dir", tmp_path, *TINY)
    assert "renders NoneType, neither an image" in amago_run(
        "eval", "run", "--run-dir", tmp_path, "--render", "--trust", "tests", code=2
    ).output.replace("\n", " ")
    told = amago_run("eval", "run", "--run-dir", tmp_path, "--video", tmp_path / "x.avi", code=2).output
    assert "must end with .gif or .mp4" in " ".join(told.split())
    told = amago_run("export", "run", tmp_path / "x.onnx", "--run-dir", tmp_path, code=2).output
    assert "must end with '.pt2'" in " ".join(told.split())


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_frames_of_several_sizes_make_one_video(suffix: str, tmp_path: Path) -> None:
    frames = [np.full((height, 25, 3), 80 * i, np.uint8) for i, height in enumerate((31, 17, 40))]
    path = tmp_path / f"video{suffix}"
    write_video(frames, path, fps=5)
    if suffix == ".gif":
        with Image.open(path) as image:
            assert (image.n_frames, image.size) == (3, (25, 40))
    else:
        assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 3
    assert os.listdir(tmp_path) == [path.name]


def test_text_becomes_an_image() -> None:
    small, large = as_frame("SF\nFG", "lake"), as_frame("SFFFF\nFFFFF\nFFFFG", "lake")
    assert small.dtype == np.uint8
    assert small.max() == 255
    assert large.shape[0] > small.shape[0]
    assert large.shape[1] > small.shape[1]
