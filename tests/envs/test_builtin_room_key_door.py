"""RoomKeyDoor: the key, then the door, again and again in the same room."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from amago.envs.builtin.toy_gym import RoomKeyDoor

Y_DOWN, X_DOWN, Y_UP, X_UP, STAY = range(5)


def corridor_room(**kwargs) -> RoomKeyDoor:
    """Start at (0, 0), key at (1, 0), door at (1, 1)."""
    env = RoomKeyDoor(
        **{"size": 4, "start_location": (0, 0), "key_location": (1, 0), "goal_location": (1, 1), **kwargs}
    )
    env.reset(seed=0)
    return env


@pytest.mark.parametrize("kwargs", [{}, {"dark": False, "randomize_actions": True}])
def test_it_is_a_valid_gymnasium_environment(kwargs):
    check_env(RoomKeyDoor(**kwargs), skip_render_check=True)


def test_actions_move_in_the_documented_directions_and_stop_at_walls():
    env = corridor_room(key_location=(3, 3))
    seen = []
    for action in (X_UP, Y_UP, X_DOWN, X_DOWN, Y_DOWN, Y_DOWN, STAY):
        obs, *_ = env.step(action)
        seen.append((round(obs[0] * 4), round(obs[1] * 4)))
    assert seen == [(1, 0), (1, 1), (0, 1), (0, 1), (0, 0), (0, 0), (0, 0)]


def test_the_key_and_then_the_door_give_one_each():
    env = corridor_room()
    rewards = [env.step(action)[1] for action in (X_UP, STAY, Y_UP)]
    assert rewards == [1.0, 0.0, 1.0]


def test_the_door_gives_nothing_without_the_key():
    env = corridor_room()
    assert [env.step(action)[1] for action in (Y_UP, X_UP, Y_UP)] == [0.0, 0.0, 0.0]


def test_after_the_door_the_next_step_leads_back_to_the_start_whatever_its_action():
    env = corridor_room()
    env.step(X_UP)
    obs, *_ = env.step(Y_UP)
    np.testing.assert_allclose(obs, [1 / 4, 1 / 4, 1, 2 / 50])
    obs, reward, terminated, truncated, _ = env.step(X_UP)
    assert (reward, terminated, truncated) == (0.0, False, False)
    np.testing.assert_array_equal(obs, [0, 0, 0, 0])
    assert env.step(X_UP)[1] == 1.0  # the same room, with a new key


def test_a_visit_ends_after_its_limit():
    env = corridor_room(max_episode_steps=3)
    times = [env.step(STAY)[0][3] for _ in range(5)]
    np.testing.assert_allclose(times, [1 / 3, 2 / 3, 1, 0, 1 / 3])


def test_the_rollout_ends_terminated_and_truncated_after_its_horizon_and_then_needs_a_reset():
    env = corridor_room(meta_rollout_horizon=7)
    ends = [env.step(STAY)[2:4] for _ in range(7)]
    assert ends == [(False, False)] * 6 + [(True, True)]
    with pytest.raises(RuntimeError, match="reset"):
        env.step(STAY)


def test_in_the_light_the_door_and_the_key_are_seen():
    env = corridor_room(dark=False)
    obs, *_ = env.step(STAY)
    np.testing.assert_allclose(obs, [0, 0, 0, 1 / 50, 1 / 4, 1 / 4, 1 / 4, 0])


def test_random_locations_differ_from_each_other_and_between_resets():
    env = RoomKeyDoor(dark=False, size=3)
    rooms = set()
    for seed in range(50):
        obs, _ = env.reset(seed=seed)
        start, door, key = (tuple((obs[i : i + 2] * 3).round()) for i in (0, 4, 6))
        assert len({start, door, key}) == 3
        rooms.add((start, door, key))
    assert len(rooms) > 40


def test_shuffled_actions_stay_the_same_within_a_room_and_change_between_rooms():
    env = RoomKeyDoor(size=9, start_location=(4, 4), key_location=(0, 0), randomize_actions=True)
    effects = set()
    for seed in range(20):
        env.reset(seed=seed)
        effect = []
        for _ in range(2):
            before = env.reset_same_task()
            effect.append(tuple(np.sign(env.step(X_UP)[0][:2] - before[:2])))
        assert effect[0] == effect[1]
        effects.add(effect[0])
    assert len(effects) == 5


@pytest.mark.parametrize(
    ("kwargs", "named"),
    [
        ({"size": 1}, "size"),
        ({"max_episode_steps": 0}, "max_episode_steps"),
        ({"meta_rollout_horizon": 0}, "meta_rollout_horizon"),
        ({"key_location": (9, 0)}, "key_location"),
        ({"goal_location": "left"}, "goal_location"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(kwargs, named):
    with pytest.raises(ValueError, match=named):
        RoomKeyDoor(**kwargs)


def test_the_limits_have_the_names_of_the_reference_as_well():
    env = RoomKeyDoor(max_episode_steps=3, meta_rollout_horizon=7)
    assert (env.H, env.H_meta) == (3, 7)
