"""Random environments of every kind of space, and finished runs in them, for the tests of policies."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from amago.cli_utils import use_config
from amago.envs import AMAGOEnv
from amago.experiment import Experiment
from amago.nets.traj_encoders import FFTrajEncoder, GRUTrajEncoder, TformerTrajEncoder
from amago.nets.tstep_encoders import CNNTstepEncoder, FFTstepEncoder

Made = Callable[..., Experiment]
EPISODE = 20
CONTEXT = 8

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
NESTED = gym.spaces.Dict(
    {
        "joints": gym.spaces.Dict(
            {"angle": VECTOR, "speed": gym.spaces.Box(-np.inf, np.inf, (), np.float64)}
        ),
        "room": gym.spaces.Discrete(4, start=2),
        "bits": gym.spaces.Tuple([gym.spaces.MultiBinary(3), gym.spaces.MultiDiscrete([2, 3])]),
    }
)
PIXELS = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
UNEVEN = gym.spaces.Box(np.array([[-2.0, 0.0]]), np.array([[1.0, 10.0]]), dtype=np.float64)
CHOICES = gym.spaces.MultiDiscrete([[2], [3]])


class RandomEnv(gym.Env[Any, Any]):
    """Random observations and rewards; it notes what it returns and takes."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.log: list[tuple[Any, Any, Any, Any]] = []  # obs, reward, done, the action that followed
        self.seen: tuple[Any, Any, Any] | None = None
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.time = 0
        obs = self.observation_space.sample()
        reward = 0.0 if self.seen is None else self.seen[1]
        self.seen = (obs, reward, True)
        return obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.seen is not None
        assert self.action_space.contains(action) or np.asarray(action).dtype.kind == "i"
        self.log.append((*self.seen, action))
        self.time += 1
        obs, reward = self.observation_space.sample(), float(self.np_random.normal())
        over = self.time >= EPISODE
        self.seen = (obs, reward, False)
        return obs, reward, over, False, {}


def discrete_env() -> AMAGOEnv:
    return AMAGOEnv(RandomEnv(VECTOR, gym.spaces.Discrete(5, start=3)), "random")


def box_env() -> AMAGOEnv:
    return AMAGOEnv(RandomEnv(VECTOR, UNEVEN), "random")


def choices_env() -> AMAGOEnv:
    return AMAGOEnv(RandomEnv(NESTED, CHOICES), "random")


def pixel_env() -> AMAGOEnv:
    return AMAGOEnv(RandomEnv(PIXELS, gym.spaces.MultiBinary(4)), "random")


RUNS: dict[str, tuple[Callable[[], AMAGOEnv], Any]] = {
    "discrete-gru": (discrete_env, GRUTrajEncoder),
    "box-transformer": (box_env, TformerTrajEncoder),
    "choices-transformer": (choices_env, TformerTrajEncoder),
    "pixels-gru": (pixel_env, GRUTrajEncoder),
    "discrete-ff": (discrete_env, FFTrajEncoder),
}


def as_batch(parts: list[Any]) -> Any:
    """Observations of several rows with a leading axis."""
    if isinstance(parts[0], dict):
        return {key: as_batch([part[key] for part in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(as_batch(list(column)) for column in zip(*parts, strict=True))
    return np.stack(parts)


def trained(make_experiment: Made, name: str, *, sharpened: float = 5.0, **changes: Any) -> Experiment:
    """A finished run of two updates, still open; its actor's weights are multiplied by `sharpened`."""
    make_env, traj_encoder = RUNS[name]
    settings: dict[str, Any] = {"CNNTstepEncoder.d_output": 16} if name.startswith("pixels") else {}
    if "choices" in name or "pixels" in name:
        settings |= {"Agent.online_coeff": 0.0, "Agent.offline_coeff": 1.0}
    use_config(settings, finalize=False)
    experiment = make_experiment(
        max_seq_len=CONTEXT,
        traj_save_len=CONTEXT * 2,
        make_train_env=make_env,
        make_val_env=make_env,
        traj_encoder_type=changes.pop("traj_encoder_type", traj_encoder),
        tstep_encoder_type=changes.pop(
            "tstep_encoder_type", CNNTstepEncoder if name.startswith("pixels") else FFTstepEncoder
        ),
        train_timesteps_per_epoch=2 * EPISODE,
        train_batches_per_epoch=2,
        val_interval=None,
        sample_actions_val=False,
        **changes,
    )
    experiment.start()
    experiment.learn()
    with torch.no_grad():  # after two updates it would hardly react to its inputs
        for weight in experiment.policy.actor.parameters():
            weight.mul_(sharpened)
    experiment.write_latest_policy()
    return experiment
