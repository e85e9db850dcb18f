"""What networks know of a space: specs from gymnasium's spaces, from plain shapes, and what is refused."""

import numpy as np
import pytest
from gymnasium import spaces

from amago.nets.specs import (
    ActionSpec,
    ArraySpec,
    as_action_spec,
    as_array_spec,
    as_obs_spec,
    as_spec,
)


@pytest.mark.parametrize(
    ("space", "spec", "width"),
    [
        (spaces.Discrete(5, start=2), ActionSpec("discrete", (5,)), 5),
        (spaces.MultiDiscrete([3, 2]), ActionSpec("multidiscrete", (3, 2)), 5),
        (spaces.MultiDiscrete([[3, 2], [4, 1]]), ActionSpec("multidiscrete", (3, 2, 4, 1)), 10),
        (spaces.MultiBinary(4), ActionSpec("multibinary", (4,)), 4),
        (spaces.MultiBinary([2, 3]), ActionSpec("multibinary", (6,)), 6),
        (spaces.Box(-2.0, 3.0, (2, 3)), ActionSpec("box", (2, 3), -2.0, 3.0), 6),
        (spaces.Box(-1.0, 1.0, ()), ActionSpec("box", (), -1.0, 1.0), 1),
    ],
    ids=str,
)
def test_every_action_space_has_a_kind_sizes_and_a_width(space, spec, width):
    assert as_spec(space) == spec
    assert spec.dim == width
    assert spec.is_discrete == isinstance(space, spaces.Discrete)


def test_spaces_of_other_libraries_are_read_by_the_name_of_their_class():
    class Discrete:
        n = 4

    class Renamed(Discrete):
        pass

    assert as_action_spec(Renamed()) == ActionSpec("discrete", (4,))


def test_observations_are_read_from_spaces_and_from_plain_shapes():
    from_space = as_spec(
        spaces.Dict(
            {
                "bits": spaces.MultiBinary(4),
                "choice": spaces.Discrete(3),
                "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
            }
        )
    )
    from_shapes = as_spec(
        {
            "bits": ArraySpec((4,), "int8", low=0, high=1),
            "choice": ArraySpec((3,), low=0, high=1),
            "image": ArraySpec((8, 8, 3), "uint8", low=0, high=255),
        }
    )
    assert from_space == from_shapes
    assert list(from_space) == ["bits", "choice", "image"]
    assert from_space["image"].dim == 192


@pytest.mark.parametrize(
    ("space", "low", "high"),
    [
        (spaces.Box(np.array([-3, 0]), np.array([5, 90]), (2,), np.int64), -3, 90),
        (spaces.Box(-np.inf, np.inf, (2,)), None, None),
        (spaces.Box(0.0, np.inf, (2,)), 0, None),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), 0, 255),
        ((2,), None, None),
    ],
    ids=str,
)
def test_bounds_hold_for_all_elements_and_an_infinite_one_is_unknown(space, low, high):
    spec = as_array_spec(space)
    assert (spec.low, spec.high) == (low, high)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"outer": spaces.Dict({"inner": spaces.Box(0.0, 1.0, (3,))})}),
        spaces.Tuple([spaces.Box(0.0, 1.0, (3,))]),
        {"observation": "three"},
    ],
    ids=str,
)
def test_an_observation_without_a_shape_is_a_type_error_with_the_remedy(space):
    with pytest.raises(TypeError, match=r"cannot determine the shape of .*pass a shape like"):
        as_obs_spec(space)


def test_unsupported_action_space_raises_type_error():
    with pytest.raises(
        TypeError, match=r"unsupported action space.*Discrete, MultiDiscrete, MultiBinary or Box"
    ):
        as_action_spec(spaces.Tuple([spaces.Discrete(2)]))


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        (
            "continuous",
            (2,),
            "kind must be one of discrete, multidiscrete, multibinary, box, got 'continuous'",
        ),
        ("discrete", (), r"sizes must be positive, got \(\)"),
        ("multidiscrete", (2, 0), r"sizes must be positive, got \(2, 0\)"),
    ],
)
def test_an_impossible_action_spec_is_refused(kind, sizes, message):
    with pytest.raises(ValueError, match=message):
        ActionSpec(kind, sizes)
