"""Videos of episodes, for `amago-run eval --render`: environments that render, and files of frames.

A .gif is written by Pillow, an .mp4 by imageio-ffmpeg, which is optional. What an environment renders as text
is drawn as an image.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from amago.cli.environments import EnvMaker
from amago.cli.options import UsageProblem
from amago.envs import AMAGOEnv
from amago.envs.vector import make_vector_env
from amago.experiment import Experiment
from amago.hindsight import atomic_file

Frame = npt.NDArray[np.uint8]  # (H, W, 3)
SUFFIXES = (".gif", ".mp4")
_DEFAULT_FPS = 10
_MARGIN = 16  # pixels around text
_MACRO_BLOCK = 2  # sides of H.264 videos are even


def check_video_path(path: Path) -> None:
    """Raises UsageProblem for a file that cannot be written, before anything is played."""
    if path.suffix not in SUFFIXES:
        raise UsageProblem(f"{path} must end with {' or '.join(SUFFIXES)}.", "--video")
    if path.suffix == ".mp4":
        try:
            import imageio_ffmpeg  # noqa: F401
        except ImportError as error:
            remedy = "run `pip install 'amago-runner[video]'`, or name a .gif."
            raise UsageProblem(f"an .mp4 needs imageio-ffmpeg: {remedy}", "--video") from error


def film_episodes(
    experiment: Experiment, make_env: Callable[[], AMAGOEnv], episodes: int, path: Path
) -> dict[str, float]:
    """Plays episodes in one environment, writes them to a video, and returns their metrics.

    Raises:
        UsageProblem: the environment renders neither images nor text.
    """
    film = _Film(episodes)

    def make_filmed_env() -> AMAGOEnv:
        env = _rendering(make_env)()
        film.record(env)
        return env

    try:
        with make_vector_env([make_filmed_env], env_mode="sync", seed=experiment.streams.seed) as envs:
            _, histories = experiment.interact(
                envs, None, episodes=episodes, sample=experiment.sample_actions_val
            )
    except (gymnasium.error.DependencyNotInstalled, NotImplementedError) as error:
        reason = str(error) or "it has no render()"
        raise UsageProblem(f"the environment cannot render: {reason}", "--render") from error
    write_video(film.frames, path, film.fps)
    return dict(experiment.policy_metrics(*histories))


def _rendering(make_env: Callable[[], AMAGOEnv]) -> Callable[[], AMAGOEnv]:
    """A maker of the same environment with a render mode, if it has one for images."""
    if isinstance(make_env, EnvMaker):
        make_env = dataclasses.replace(make_env, num_envs=1)
        if make_env.takes_render_mode:
            return dataclasses.replace(make_env, args={**make_env.args, "render_mode": "rgb_array"})

    def make() -> AMAGOEnv:
        env = make_env()
        if env.render_mode is None and "rgb_array" in (env.metadata or {}).get("render_modes", ()):
            env.unwrapped.render_mode = "rgb_array"
        return env

    return make


class _Film:
    """The frames of the first `episodes` episodes of an environment, the last of each included."""

    def __init__(self, episodes: int) -> None:
        self.frames: list[Frame] = []
        self.fps = _DEFAULT_FPS
        self._remaining = episodes

    def record(self, env: AMAGOEnv) -> None:
        """Adds a frame after every reset and step of the environment inside `env`."""
        self.fps = int((env.metadata or {}).get("render_fps") or _DEFAULT_FPS)
        inner: Any = env.env
        reset, step = inner.reset, inner.step

        @functools.wraps(reset)
        def filmed_reset(*args: Any, **kwargs: Any) -> Any:
            result = reset(*args, **kwargs)
            self._add(env)
            return result

        @functools.wraps(step)
        def filmed_step(action: Any) -> Any:
            result = step(action)
            self._add(env)
            self._remaining -= bool(result[2] or result[3])
            return result

        inner.reset, inner.step = filmed_reset, filmed_step

    def _add(self, env: AMAGOEnv) -> None:
        if self._remaining > 0:
            with contextlib.redirect_stdout(io.StringIO()):  # some environments print their text as well
                rendered = env.render()
            self.frames.append(as_frame(rendered, env.env_name))


def as_frame(rendered: Any, env_name: str) -> Frame:
    """What `render` returned as an image (H, W, 3).

    Raises:
        UsageProblem: it is neither an image nor text.
    """
    if isinstance(rendered, str):
        return _drawn(rendered)
    image = np.asarray(rendered)
    if image.ndim != 3 or image.shape[-1] not in (3, 4) or image.dtype != np.uint8:
        raise UsageProblem(
            f"{env_name} renders {type(rendered).__name__}, neither an image (H, W, 3) of uint8 nor text.",
            "--render",
        )
    return image[..., :3]


def _drawn(text: str) -> Frame:
    """Text in white on black, with letters of equal width."""
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSansMono.ttf", 32)
    blank = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    _, _, width, height = blank.multiline_textbbox((0, 0), text, font)
    image = Image.new("RGB", (int(width) + 2 * _MARGIN, int(height) + 2 * _MARGIN))
    ImageDraw.Draw(image).multiline_text((_MARGIN, _MARGIN), text, font=font)
    return np.asarray(image)


def write_video(frames: Sequence[Frame], path: Path, fps: int) -> None:
    """Writes frames to a .gif or .mp4; smaller ones get a black border, so that all have one size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = (max(frame.shape[axis] for frame in frames) for axis in (0, 1))
    if path.suffix == ".gif":
        first, *others = (Image.fromarray(_padded(frame, height, width)) for frame in frames)
        with atomic_file(path) as file:
            # Browsers slow down gifs of more than 50 frames a second.
            duration = max(20, round(1000 / fps))
            first.save(file, "GIF", save_all=True, append_images=others, duration=duration, loop=0)
        return
    import imageio_ffmpeg

    height, width = (-(-side // _MACRO_BLOCK) * _MACRO_BLOCK for side in (height, width))
    writer = imageio_ffmpeg.write_frames(str(path), (width, height), fps=fps, macro_block_size=_MACRO_BLOCK)
    writer.send(None)
    try:
        for frame in frames:
            writer.send(_padded(frame, height, width))
    finally:
        writer.close()


def _padded(frame: Frame, height: int, width: int) -> Frame:
    below, right = height - frame.shape[0], width - frame.shape[1]
    return np.ascontiguousarray(np.pad(frame, ((0, below), (0, right), (0, 0))))
