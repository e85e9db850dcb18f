"""Spaces: observations of every kind become a flat dict of arrays, and actions of every kind find their way."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from amago.envs.actions import make_action_codec
from amago.envs.env_utils import (
    ContinuousActionWrapper,
    DiscreteActionWrapper,
    MultiBinaryActionWrapper,
    extend_box_obs_space_by,
    space_convert,
)
from amago.envs.observations import ObservationMapper

UNBOUNDED = spaces.Box(-np.inf, np.inf, (3,), np.float32)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (UNBOUNDED, {"observation": ((3,), np.float32)}),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), {"observation": ((4, 4, 3), np.uint8)}),
        (spaces.Box(-5, 5, (2,), np.int64), {"observation": ((2,), np.int64)}),
        (spaces.Box(-5, 5, (2,), np.float64), {"observation": ((2,), np.float64)}),
        (spaces.Box(0, 1, (), np.float32), {"observation": ((1,), np.float32)}),
        (spaces.Discrete(4, start=-2), {"observation": ((4,), np.float32)}),
        (spaces.MultiDiscrete([2, 3]), {"observation": ((5,), np.float32)}),
        (spaces.MultiBinary((2, 3)), {"observation": ((2, 3), np.int8)}),
        (spaces.Tuple((spaces.Discrete(2), UNBOUNDED)), {"0": ((2,), np.float32), "1": ((3,), np.float32)}),
        (
            spaces.Dict(
                {
                    "robot": spaces.Dict({"joints": UNBOUNDED, "grip": spaces.Discrete(2)}),
                    "goals": spaces.Tuple((UNBOUNDED, spaces.MultiBinary(2))),
                    "image": spaces.Box(0, 255, (4, 4, 3), np.uint8),
                }
            ),
            {
                "robot/joints": ((3,), np.float32),
                "robot/grip": ((2,), np.float32),
                "goals/0": ((3,), np.float32),
                "goals/1": ((2,), np.int8),
                "image": ((4, 4, 3), np.uint8),
            },
        ),
    ],
)
def test_every_observation_becomes_a_dict_of_arrays_that_its_space_contains(space, expected):
    space.seed(0)
    mapper = ObservationMapper(space, batched_envs=1)
    assert {key: (box.shape, box.dtype) for key, box in mapper.space.spaces.items()} == expected
    for _ in range(5):
        mapped = mapper(space.sample())
        assert list(mapped) == list(mapper.space.spaces)
        for key, array in mapped.items():
            assert array.shape == (1, *expected[key][0])
            assert mapper.space[key].contains(array[0])


def test_discrete_observations_are_one_hot_from_their_start():
    mapper = ObservationMapper(spaces.Discrete(4, start=-2), batched_envs=1)
    np.testing.assert_array_equal(mapper(-2)["observation"], [[1, 0, 0, 0]])
    np.testing.assert_array_equal(mapper(np.int64(1))["observation"], [[0, 0, 0, 1]])
    with pytest.raises(ValueError, match="outside its discrete space"):
        mapper(2)


def test_multidiscrete_observations_are_one_hots_in_a_row():
    mapper = ObservationMapper(spaces.MultiDiscrete([2, 3], start=[0, 10]), batched_envs=2)
    mapped = mapper(np.array([[1, 10], [0, 12]]))["observation"]
    np.testing.assert_array_equal(mapped, [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]])


def test_mapped_observations_do_not_change_when_the_environment_reuses_its_array():
    mapper = ObservationMapper(UNBOUNDED, batched_envs=1)
    reused = np.zeros(3, dtype=np.float32)
    first = mapper(reused)["observation"]
    reused += 1.0
    np.testing.assert_array_equal(first, np.zeros((1, 3)))


@pytest.mark.parametrize("wrong", [np.zeros(2), np.zeros((1, 3)), np.float32(0)])
def test_an_observation_of_another_shape_is_named_instead_of_broadcast(wrong):
    with pytest.raises(ValueError, match=r"'observation' has shape"):
        ObservationMapper(UNBOUNDED, batched_envs=1)(wrong)


def test_values_that_the_dtype_of_the_space_cannot_hold_are_an_error():
    mapper = ObservationMapper(spaces.Box(0, 255, (2,), np.uint8), batched_envs=1)
    np.testing.assert_array_equal(mapper(np.array([0, 255]))["observation"], [[0, 255]])
    for wrong in (np.array([0, 256]), np.array([0.5, 1.0]), np.array([-1, 0])):
        with pytest.raises(ValueError, match="cannot hold"):
            mapper(wrong)


@pytest.mark.parametrize(
    "space", [spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)]
)
def test_spaces_without_a_fixed_shape_are_a_type_error(space):
    with pytest.raises(TypeError, match="no fixed shape"):
        ObservationMapper(spaces.Dict({"part": space}), batched_envs=1)


def test_two_parts_with_one_key_are_an_error():
    with pytest.raises(ValueError, match=r"key 'a/b'"):
        ObservationMapper(spaces.Dict({"a/b": UNBOUNDED, "a": spaces.Dict({"b": UNBOUNDED})}), batched_envs=1)


ACTION_SPACES = [
    spaces.Discrete(5),
    spaces.Discrete(1000, start=-7),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 3)),
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(-2, 5, (2, 3), np.float32),
    spaces.Box(np.array([0, -10]), np.array([1, -3]), dtype=np.float64),
    spaces.Box(0, 10, (2,), np.int32),
    spaces.Box(-3, 3, (), np.float32),
]


@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
@pytest.mark.parametrize("batched_envs", [1, 3])
def test_every_policy_action_reaches_the_environment_inside_of_its_space(space, batched_envs):
    codec = make_action_codec(space, batched_envs)
    codec.policy_space.seed(0)
    for _ in range(20):
        action = np.stack([np.asarray(codec.policy_space.sample()).reshape(-1) for _ in range(batched_envs)])
        checked = codec.check(action)
        received = codec.to_env(checked)
        for row in [received] if batched_envs == 1 else list(received):
            plain = int(row) if isinstance(space, spaces.Discrete) else np.asarray(row, dtype=space.dtype)
            assert space.contains(plain), (row, space)
        representation = codec.represent(checked)
        assert representation.shape == (batched_envs, codec.width)
        assert representation.dtype == np.float32
        assert np.abs(representation).max() <= 1.0


@pytest.mark.parametrize("space", ACTION_SPACES, ids=str)
def test_the_policy_can_reach_both_ends_of_every_action_space(space):
    codec = make_action_codec(space, 1)
    policy = codec.policy_space
    if isinstance(policy, spaces.Discrete):
        assert codec.to_env(codec.check(np.array([0]))) == space.start
        assert codec.to_env(codec.check(np.array([policy.n - 1]))) == space.start + space.n - 1
    elif isinstance(policy, spaces.Box):
        np.testing.assert_array_equal(codec.to_env(codec.check(policy.low)), space.low)
        np.testing.assert_array_equal(codec.to_env(codec.check(policy.high)), space.high)
    else:
        sizes = policy.nvec if isinstance(policy, spaces.MultiDiscrete) else np.full(policy.shape, 2)
        highest = codec.to_env(codec.check(sizes - 1)).reshape(-1)
        np.testing.assert_array_equal(highest, sizes - 1)


def test_multidiscrete_representation_is_one_hots_in_a_row():
    codec = make_action_codec(spaces.MultiDiscrete([3, 2], start=[10, 0]), 2)
    checked = codec.check(np.array([[2, 0], [0, 1]]))
    np.testing.assert_array_equal(codec.represent(checked), [[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]])
    np.testing.assert_array_equal(codec.to_env(checked), [[12, 0], [10, 1]])


def test_more_than_256_discrete_actions_do_not_wrap_around():
    def reach_environment_as_uint8(action):
        return int(np.array(action).astype(np.uint8).item())

    codec = make_action_codec(spaces.Discrete(1000), 1)
    for action in (255, 256, 999):
        assert codec.to_env(codec.check(np.array([[action]]))) == action
        assert codec.represent(action).argmax() == action
    assert reach_environment_as_uint8([[999]]) != 999


def test_discrete_actions_begin_at_the_start_of_the_space():
    space = spaces.Discrete(3, start=5)
    codec = make_action_codec(space, 1)
    assert [codec.to_env(codec.check(np.array([[a]]))) for a in range(3)] == [5, 6, 7]
    np.testing.assert_array_equal(codec.represent(2), [[0, 0, 1]])
    # The fault: the policy's number goes to the environment as it is.
    assert not space.contains(2)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float32])
def test_whole_numbers_of_any_dtype_are_the_same_action(dtype):
    codec = make_action_codec(spaces.Discrete(2, start=1), 1)
    for action, one_hot in ((0, [[1, 0]]), (1, [[0, 1]])):
        checked = codec.check(np.array([[action]], dtype=dtype))
        np.testing.assert_array_equal(codec.represent(checked), one_hot)
        assert codec.to_env(checked) == action + 1


def test_a_matrix_of_actions_counts_all_its_numbers():
    space = spaces.Box(-2, 2, (2, 3), np.float32)
    codec = make_action_codec(space, 1)
    assert codec.width == 6
    received = codec.to_env(codec.check(np.linspace(-1, 1, 6)[None]))
    np.testing.assert_allclose(received, np.linspace(-2, 2, 6).reshape(2, 3), rtol=1e-6)
    # The fault: only the last axis is counted.
    assert space.shape[-1] != codec.width


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (2,), np.float32),
        spaces.Box(0.0, np.inf, (2,), np.float32),
        spaces.Box(np.array([-1, -np.inf]), np.array([1.0, 1.0]), dtype=np.float64),
        spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (2,), np.float32),
    ],
    ids=str,
)
def test_an_unbounded_action_box_is_an_error_that_says_so(space):
    def rescale(action, space):
        return space.low + (action + 1.0) * 0.5 * (space.high - space.low)

    with pytest.raises(ValueError, match=r"unbounded.*finite bounds"):
        make_action_codec(space, 1)
    with np.errstate(all="ignore"):
        assert not np.isfinite(rescale(np.zeros(2), space)).all()


@pytest.mark.parametrize(
    "space", [spaces.Tuple((spaces.Discrete(2),)), spaces.Dict({"a": spaces.Discrete(2)})]
)
def test_composite_action_spaces_are_a_type_error_with_the_remedy(space):
    with pytest.raises(TypeError, match="ActionWrapper"):
        make_action_codec(space, 1)


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(3), np.array([[3]])),
        (spaces.Discrete(3), np.array([[-1]])),
        (spaces.Discrete(3), np.array([[0.5]])),
        (spaces.Discrete(3), np.array([[0, 1]])),
        (spaces.Discrete(3), np.array([["a"]])),
        (spaces.Discrete(3), np.array([[np.nan]])),
        (spaces.MultiDiscrete([2, 3]), np.array([[0, np.nan]])),
        (spaces.MultiDiscrete([2, 3]), np.array([[2, 0]])),
        (spaces.MultiDiscrete([2, 3]), np.array([[0, 0.5]])),
        (spaces.MultiBinary(2), np.array([[0, 2]])),
        (spaces.MultiBinary(2), np.array([[0, -1]])),
        (spaces.Box(-5, 5, (2,), np.float32), np.array([[0.0, 1.5]])),
        (spaces.Box(-5, 5, (2,), np.float32), np.array([[0.0, np.nan]])),
        (spaces.Box(-5, 5, (2,), np.float32), np.array([[0.0]])),
    ],
    ids=str,
)
def test_actions_outside_of_the_policy_space_are_refused(space, action):
    with pytest.raises(ValueError, match="action"):
        make_action_codec(space, 1).check(action)


class Taking(gym.Env):
    """Returns the action it received as its info."""

    observation_space = UNBOUNDED

    def __init__(self, action_space):
        self.action_space = action_space

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {"action": action}

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}


def test_action_wrappers_convert_for_plain_environments():
    discrete = DiscreteActionWrapper(Taking(spaces.Discrete(3, start=5)))
    assert discrete.action_space == spaces.Discrete(3)
    assert discrete.step(np.array([1]))[4]["action"] == 6
    assert discrete.step(1)[4]["action"] == 6
    continuous = ContinuousActionWrapper(Taking(spaces.Box(0, 10, (2,), np.float32)))
    np.testing.assert_array_equal(continuous.step(np.array([-1.0, 0.5]))[4]["action"], [0.0, 7.5])
    bits = MultiBinaryActionWrapper(Taking(spaces.MultiBinary(2))).step(np.array([1.0, 0.0]))[4]["action"]
    assert bits.dtype == np.int8
    assert discrete.reset(seed=1)[1] == {}


def test_an_action_wrapper_for_another_kind_of_space_is_refused():
    with pytest.raises(TypeError, match=r"DiscreteActionWrapper is for Discrete.*Box"):
        DiscreteActionWrapper(Taking(spaces.Box(0, 1, (2,), np.float32)))


def test_a_vector_observation_space_is_extended_at_its_end():
    extended = extend_box_obs_space_by(spaces.Box(-2, 2, (3,), np.float32), by=2, low=0.0, high=1.0)
    np.testing.assert_array_equal(extended.low, [-2, -2, -2, 0, 0])
    np.testing.assert_array_equal(extended.high, [2, 2, 2, 1, 1])
    assert extended.dtype == np.float32
    with pytest.raises(ValueError, match="only a vector"):
        extend_box_obs_space_by(spaces.Box(0, 1, (2, 2), np.float32), by=1, low=0, high=1)


def test_spaces_of_the_older_gym_library_are_converted_by_their_names():
    def old(name, **attributes):
        return type(name, (), attributes)()

    box = old(
        "Box",
        low=np.zeros(2, np.float32),
        high=np.ones(2, np.float32),
        shape=(2,),
        dtype=np.dtype(np.float32),
    )
    nested = old("Dict", spaces={"a": box, "b": old("Tuple", spaces=[old("Discrete", n=3)])})
    expected = spaces.Dict({"a": spaces.Box(0, 1, (2,), np.float32), "b": spaces.Tuple([spaces.Discrete(3)])})
    assert space_convert(nested) == expected
    assert space_convert(expected) is expected
    with pytest.raises(TypeError, match="Graph"):
        space_convert(old("Graph"))
