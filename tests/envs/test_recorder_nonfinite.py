"""A trajectory with a number that is not finite does not reach the buffer."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import PolicyInput, VectorStep
from amago.hindsight import load_trajectory

BAD = pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])


def inputs(time: int) -> PolicyInput:
    return PolicyInput(
        obs={"where": np.full((2, 3), time, np.float32), "image": np.zeros((2, 2, 2), np.uint8)},
        rl2s=np.zeros((2, 3), np.float32),
        time_idxs=np.full(2, time, np.int64),
    )


def step(time: int, *, ends: bool = False) -> VectorStep:
    """A step of two rows, after which their episode is at `time`."""
    rows = np.arange(2) if ends else np.zeros(0, np.int64)
    return VectorStep(
        inputs=inputs(0 if ends else time),
        actions=np.zeros((2, 2), np.float32),
        rewards=np.ones(2, np.float32),
        terminated=np.full(2, ends),
        truncated=np.zeros(2, np.bool_),
        done_rows=rows,
        final_obs={key: array[rows] for key, array in inputs(time).obs.items()},
        final_time_idxs=np.full(len(rows), time, np.int64),
        metrics=[],
        env_names=["good", "bad"],
    )


def recorder_in(folder: Path) -> TrajectoryRecorder:
    rng = np.random.default_rng(0)
    return TrajectoryRecorder(2, save_to=folder, save_len=np.inf, max_seq_len=1, rng=rng)


def record(recorder: TrajectoryRecorder, broken: VectorStep, at: int, length: int = 5) -> None:
    """Records an episode of `length` steps with `broken` in the place of step `at`."""
    for time in range(1, length + 1):
        recorder.add(broken if time == at else step(time, ends=time == length))


@BAD
@pytest.mark.parametrize("where", ["observation", "final observation", "reward", "action"])
def test_a_trajectory_that_is_not_finite_is_refused_and_the_others_are_saved(tmp_path, where, value) -> None:
    last = where == "final observation"
    at = 5 if last else 3
    broken = step(at, ends=last)
    array = {
        "observation": broken.inputs.obs["where"],
        "final observation": broken.final_obs["where"],
        "reward": broken.rewards[:, None],
        "action": broken.actions,
    }[where]
    array[1, -1] = value
    named = "observation 'where'" if "observation" in where else f"the {where}"
    recorder = recorder_in(tmp_path)
    recorder.begin(inputs(0), ["good", "bad"])
    message = rf"environment 1 \('bad'\) is not saved: {named} is {value} in step {at} of the episode"
    with pytest.warns(UserWarning, match=message):
        record(recorder, broken, at)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a second one is only counted
        record(recorder, broken, at)
        record(recorder, step(3), 3)
    recorder.flush()
    assert recorder.refused_segments == 2
    assert recorder.saved_files == 4
    trajectories = [load_trajectory(path) for path in tmp_path.iterdir()]
    assert len(trajectories) == 4
    for trajectory in trajectories:
        assert all(np.isfinite(array).all() for array in trajectory.to_dict().values())
    recorder.close()


def test_an_unfinished_trajectory_is_refused_as_well(tmp_path) -> None:
    recorder = recorder_in(tmp_path)
    recorder.begin(inputs(0), ["good", "bad"])
    broken = step(1)
    broken.inputs.obs["where"][1] = np.nan
    recorder.add(broken)
    with pytest.warns(UserWarning, match="'bad'"):
        recorder.cut()
    recorder.close()
    assert recorder.refused_segments == 1
    assert [path.name.partition("_")[0] for path in tmp_path.iterdir()] == ["good"]
