"""What cannot work is an error or a warning at the start of a run, with its name, its value and what would do."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from torch import nn

from amago.envs import AMAGOEnv
from amago.envs.vector import make_vector_env
from amago.experiment import Experiment
from amago.hindsight import FrozenTraj, save_trajectory, trajectory_filename
from amago.loading import DiskTrajDataset, DoNothingDataset, MixtureOfDatasets
from amago.utils import AmagoWarning

MakeExperiment = Callable[..., Experiment]


class Numbers(gym.Env[Any, Any]):
    """Observations and results as they are given; an episode has 5 steps."""

    def __init__(
        self,
        space: gym.Space[Any] | None = None,
        actions: gym.Space[Any] | None = None,
        first: float = 0.5,
        terminated: Any = False,
    ) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32) if space is None else space
        self.action_space = gym.spaces.Discrete(2) if actions is None else actions
        self.first, self.terminated = first, terminated

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._steps = 0
        return self._obs(self.first), {}

    def step(self, action: Any) -> tuple[Any, float, Any, bool, dict[str, Any]]:
        self._steps += 1
        return self._obs(0.5), 1.0, self.terminated, self._steps >= 5, {}

    def _obs(self, value: float) -> Any:
        space: Any = self.observation_space
        return np.full(space.shape, value).astype(space.dtype)


def numbers(**arguments: Any) -> AMAGOEnv:
    return AMAGOEnv(Numbers(**arguments), env_name="numbers")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"space": gym.spaces.Box(-1.0, 1.0, (4,), np.float32)}, "the observation space .*4,"),
        ({"space": gym.spaces.Box(0, 1, (3,), np.uint8)}, "the observation space .*uint8"),
        ({"space": gym.spaces.Box(-1.0, 1.0, (3,), np.float64)}, "the observation space .*float64"),
        ({"actions": gym.spaces.Discrete(3)}, r"the action space Discrete\(3\)"),
        ({"actions": gym.spaces.Box(-1.0, 1.0, (2,), np.float32)}, "the action space Box"),
    ],
    ids=["shape", "integer", "double", "choices", "kind"],
)
def test_validation_environments_with_other_spaces_are_an_error(
    make_experiment: MakeExperiment, other: dict[str, Any], message: str
) -> None:
    experiment = make_experiment(make_train_env=numbers, make_val_env=functools.partial(numbers, **other))
    with pytest.raises(ValueError, match=f"{message}.*same spaces as the training environments"):
        experiment.start()


def test_validation_environments_with_other_bounds_are_a_warning(make_experiment: MakeExperiment) -> None:
    wider = functools.partial(numbers, space=gym.spaces.Box(-1.0, 2.0, (3,), np.float32))
    experiment = make_experiment(make_train_env=numbers, make_val_env=wider)
    with pytest.warns(AmagoWarning, match=r"observation 'observation' is Box\(-1.0, 2.0.*Box\(-1.0, 1.0"):
        experiment.start()


@pytest.mark.parametrize("rows", [1, 2], ids=["one by one", "batched"])
@pytest.mark.parametrize("terminated", ["False", None, 2, "", [False, False]])
def test_a_termination_that_is_no_boolean_is_an_error(rows: int, terminated: Any) -> None:
    make = functools.partial(numbers, terminated=terminated)
    with make_vector_env([make] * rows, env_mode="sync", seed=0) as envs:
        envs.reset()
        with pytest.raises(ValueError, match="terminated"):
            envs.step(np.zeros((rows, 1), np.int64))


@pytest.mark.parametrize("terminated", [False, np.bool_(False), 0, 0.0, np.array([False]), np.zeros(1)])
def test_terminations_of_zero_and_one_are_booleans(terminated: Any) -> None:
    with make_vector_env([functools.partial(numbers, terminated=terminated)] * 2, env_mode="sync") as envs:
        envs.reset()
        assert not envs.step(np.zeros((2, 1), np.int64)).terminated.any()


@pytest.mark.parametrize("env_mode", ["sync", "async"])
def test_a_first_observation_that_is_not_finite_is_named_once(env_mode: str) -> None:
    makers = [numbers, functools.partial(numbers, first=np.nan)]
    with make_vector_env(makers, env_mode=env_mode, seed=0) as envs:
        with pytest.warns(UserWarning, match=r"environment 1 \('numbers'\) returned NaN.*'observation'"):
            envs.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            envs.reset()


def test_a_buffer_smaller_than_a_batch_is_a_warning(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    experiment = make_experiment(dataset=DiskTrajDataset(tmp_path, "small", 3), batch_size=4)
    with pytest.warns(AmagoWarning, match="small holds at most 3 trajectory files.*batch_size=4"):
        experiment.start()
    experiment.close()
    enough = make_experiment("enough", dataset=DiskTrajDataset(tmp_path, "large", 4), batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AmagoWarning)
        enough.start()


def save_steps(folder: Path, obs: dict[str, int], width: int = 2) -> None:
    """A file of three transitions with observations of these widths."""
    traj = FrozenTraj(
        obs={key: np.zeros((4, size), np.float32) for key, size in obs.items()},
        rl2s=np.zeros((4, 1 + width), np.float32),
        time_idxs=np.arange(4)[:, None],
        rews=np.zeros((3, 1), np.float32),
        dones=np.zeros((3, 1), np.bool_),
        actions=np.zeros((3, width), np.float32),
    )
    save_trajectory(traj, folder / trajectory_filename("env", 0, 0, 1_700_000_000), "npz", "env")


@pytest.mark.parametrize(
    ("obs", "width", "message"),
    [
        ({"position": 3}, 2, r"_OBS_KEY_observation has the shape \(3,\) in online and missing in other"),
        ({"observation": 5}, 2, r"_OBS_KEY_observation has the shape \(3,\) in online and \(5,\) in other"),
        ({"observation": 3}, 4, r"rl2s has the shape \(3,\) in online and \(5,\) in other"),
        ({"observation": 3, "map": 2}, 2, "_OBS_KEY_map has the shape missing in online"),
    ],
    ids=["key", "shape", "actions", "more keys"],
)
def test_a_mixture_of_different_datasets_is_an_error(
    make_experiment: MakeExperiment, tmp_path: Path, obs: dict[str, int], width: int, message: str
) -> None:
    online, other = DiskTrajDataset(tmp_path, "online", 100), DiskTrajDataset(tmp_path, "other", 100)
    save_steps(other.protected_folder, obs, width)
    experiment = make_experiment(dataset=MixtureOfDatasets([online, other], [0.5, 0.5]))
    with pytest.raises(ValueError, match=message):
        experiment.start()


def test_a_mixture_of_equal_datasets_starts(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    online, other = DiskTrajDataset(tmp_path, "online", 100), DiskTrajDataset(tmp_path, "other", 100)
    save_steps(other.protected_folder, {"observation": 3})
    mixture = MixtureOfDatasets([online, other, DoNothingDataset()], [0.4, 0.5, 0.1])
    make_experiment(dataset=mixture, epochs=1).start()


@pytest.mark.parametrize(("setting", "compiles"), [("auto", False), (False, False), (True, True)])
def test_the_loss_is_compiled_only_if_asked_for_on_a_cpu(
    make_experiment: MakeExperiment, setting: Any, compiles: bool
) -> None:
    experiment = make_experiment(compile=setting, epochs=1)
    experiment.start()
    quick: Any = experiment.learner._quick_model
    assert isinstance(quick, nn.Module)
    assert hasattr(quick, "_orig_mod") is compiles
    if not compiles:
        experiment.learn()
        assert experiment.grad_update_counter > 0
