"""Spaces survive JSON, with what policies see of them."""

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from amago.envs import AMAGOEnv
from amago.envs.observations import ObservationMapper
from amago.envs.space_json import space_as_json, space_from_json

VECTOR = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
SPACES = [
    VECTOR,
    gym.spaces.Box(0, 255, (36, 36, 3), np.uint8),
    gym.spaces.Box(np.array([[-2.0, 0.0]]), np.array([[1.0, 10.0]]), dtype=np.float64),
    gym.spaces.Box(np.array([-np.inf, 0], np.float32), np.array([1, np.inf], np.float32)),
    gym.spaces.Box(-np.inf, np.inf, (), np.float64),
    gym.spaces.Box(-(2**40), 2**40, (1,), np.int64),
    gym.spaces.Discrete(4, start=-1),
    gym.spaces.MultiDiscrete([[2], [3]]),
    gym.spaces.MultiDiscrete([2, 3], start=[1, -1]),
    gym.spaces.MultiBinary([2, 3]),
    gym.spaces.MultiBinary(3),
    gym.spaces.Text(5, charset="abc"),
    gym.spaces.Dict(
        {"b": gym.spaces.Tuple([VECTOR, gym.spaces.Discrete(2)]), "a": gym.spaces.Dict({"c": VECTOR})}
    ),
]


def through_json(space: gym.Space[Any]) -> gym.Space[Any]:
    return space_from_json(json.loads(json.dumps(space_as_json(space), allow_nan=False)))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_survive_json(space: gym.Space[Any]) -> None:
    assert through_json(space) == space


def test_images_take_a_few_bytes() -> None:
    assert len(json.dumps(space_as_json(gym.spaces.Box(0, 255, (84, 84, 3), np.uint8)))) < 100


class MissionSpace(gym.spaces.Space[str]):
    """As minigrid's, as far as tokens need it."""

    def __init__(self) -> None:
        super().__init__(dtype=str)
        self.ordered_placeholders = [["red", "zebra"], ["ball", "key"]]

    def mission_func(self, color: str, thing: str) -> str:
        return f"go to the {color} {thing}"


def test_missions_keep_their_tokens_without_minigrid() -> None:
    space = gym.spaces.Dict({"mission": MissionSpace(), "direction": gym.spaces.Discrete(4)})
    observation = {"mission": "Go to the zebra key, please", "direction": 2}
    before, after = (ObservationMapper(each, 1) for each in (space, through_json(space)))
    assert before.space == after.space
    for key, array in before(observation).items():
        np.testing.assert_array_equal(after(observation)[key], array)


@pytest.mark.parametrize(
    "content", [{}, {"box": {}}, {"sphere": 3}, {"discrete": {"n": "x", "start": 0}}, None]
)
def test_other_contents_are_errors(content: Any) -> None:
    with pytest.raises(ValueError, match="describes no space"):
        space_from_json(content)


def test_spaces_that_policies_cannot_use_are_errors() -> None:
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        space_as_json(gym.spaces.Sequence(VECTOR))


class AddsAKey(AMAGOEnv):
    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        assert isinstance(self.observation_space, gym.spaces.Dict)
        self.observation_space["goal"] = VECTOR


def test_an_environment_tells_its_own_spaces_or_the_edited_ones() -> None:
    plain, edited = (
        space_from_json(env.spaces_as_json["observation"])
        for env in (AMAGOEnv(gym.make("CartPole-v1")), AddsAKey())
    )
    assert plain == gym.make("CartPole-v1").observation_space
    assert isinstance(edited, gym.spaces.Dict)
    assert list(edited.spaces) == ["goal", "observation"]
    assert space_from_json(AddsAKey().spaces_as_json["action"]) == gym.spaces.Discrete(2)
