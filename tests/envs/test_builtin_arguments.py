"""Arguments of builtin environments that cannot be are named."""

import pytest

from amago.envs.builtin.tmaze import TMazeAltActive, TMazeAltPassive
from amago.envs.builtin.toy_gym import MetaFrozenLake, RoomKeyDoor


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MetaFrozenLake("foo"), "size must be a whole number, got 'foo'"),
        (lambda: MetaFrozenLake(3.5), "size must be a whole number, got 3.5"),
        (lambda: MetaFrozenLake(3, k_episodes=2.0), "k_episodes must be a whole number, got 2.0"),
        (lambda: RoomKeyDoor(size="x"), "size must be a whole number, got 'x'"),
        (lambda: TMazeAltPassive("a"), "corridor_length must be a whole number, got 'a'"),
    ],
)
def test_a_size_that_is_no_whole_number_is_named(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MetaFrozenLake(1), "size must be at least 2, got 1"),
        (lambda: RoomKeyDoor(meta_rollout_horizon=0), "meta_rollout_horizon must be at least 1, got 0"),
        (lambda: TMazeAltActive(0), "corridor_length must be at least 1, got 0"),
    ],
)
def test_a_size_that_is_too_small_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
