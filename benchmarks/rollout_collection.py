"""A rollout with all that collecting data needs, and the seconds that its parts take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from amago.agent import Agent
from amago.envs import EpsilonGreedy
from amago.envs.recorder import TrajectoryRecorder, writer
from amago.envs.vector import make_vector_env
from amago.experiment.lane import Lane
from amago.experiment.rollout import Rollout
from amago.nets.tstep_encoders import CNNTstepEncoder, FFTstepEncoder
from benchmarks.rollout_rows import ENCODERS, Row, make_amago_env

STEPS_PER_RUN = 200  # between two looks at the clock; each run puts the agent into eval mode and back


class Timer:
    """Seconds that the main thread spent in functions that were replaced by timed ones."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._active: set[str] = set()

    def time(self, owner: Any, method: str, name: str) -> None:
        """Times every call of a method of an object or class, or of a function of a module, from now on."""
        original: Callable[..., Any] = getattr(owner, method)
        self.seconds.setdefault(name, 0.0)

        def timed(*args: Any, **kwargs: Any) -> Any:
            if name in self._active or threading.current_thread() is not threading.main_thread():
                return original(*args, **kwargs)
            self._active.add(name)
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - start
                self._active.remove(name)

        setattr(owner, method, timed)


class Later(Agent):
    """Begins with nothing before it is asked for its actions."""

    def begin_actions(self, *args: Any, **kwargs: Any) -> None:
        """None, to be asked by `get_actions`."""


class Collection:
    """A rollout with everything that collecting data needs, into a temporary folder."""

    def __init__(self, row: Row, folder: Path, *, keep_files: bool = True) -> None:
        make_envs = [partial(make_amago_env, row)] * row.actors
        self.envs = make_vector_env(
            make_envs, env_mode=row.mode, exploration_wrapper_type=EpsilonGreedy, seed=0
        )
        torch.manual_seed(0)
        image = len(self.envs.observation_space["observation"].shape or ()) == 3
        agent = (Agent if row.ahead else Later)(
            obs_space=self.envs.observation_space,
            rl2_space=self.envs.rl2_space,
            action_space=self.envs.action_space,
            max_seq_len=row.window,
            tstep_encoder_type=CNNTstepEncoder if image else FFTstepEncoder,
            traj_encoder_type=ENCODERS[row.encoder],
        )
        self.recorder = TrajectoryRecorder(
            row.actors,
            save_to=folder,
            save_len=1e10,
            max_seq_len=row.window,
            rng=np.random.default_rng(0),
            on_written=None if keep_files else Path.unlink,
        )
        self.rollout = Rollout(
            agent,
            self.envs,
            device=torch.device("cpu"),
            recorder=self.recorder,
            double_buffer=row.double_buffer,
        )
        self.timer = Timer()
        for method in ("step", "send", "receive") if row.mode == "async" else ("_step",):
            self.timer.time(self.envs, method, "vector_step")
        for method in ("act", "begin"):
            self.timer.time(Lane, method, "policy")
        for method in ("add", "flush"):
            self.timer.time(self.recorder, method, "recording")
        self.timer.time(writer, "write_trajectory", "writing")

    def run_for(self, seconds: float) -> tuple[int, float]:
        """Vector steps, and the seconds until their files were written."""
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            self.rollout.run(timesteps=STEPS_PER_RUN)
            steps += STEPS_PER_RUN
        self.recorder.flush()
        return steps, time.perf_counter() - start

    def close(self) -> None:
        """Ends writing and the environments."""
        self.recorder.close()
        self.envs.close()
