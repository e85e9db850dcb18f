"""Atari games on ale-py: what is observed, how joysticks map to actions, how games end, several games at once."""

import itertools

import cv2
import gin
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from amago.envs import AMAGOEnv
from amago.envs.builtin.ale_retro import ALE, ALEAction, AtariAMAGOWrapper, AtariGame
from amago.envs.vector import make_vector_env

NOOP, FIRE = 0, 1


def play(env: gym.Env, actions, seed: int | None = 0) -> list[tuple]:
    """The observations, rewards and ends of the episode, until it ends."""
    steps = [(env.reset(seed=seed)[0].tobytes(),)]
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        steps.append((observation.tobytes(), reward, terminated, truncated))
        if terminated or truncated:
            break
    return steps


def random_actions(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(18, size=count).tolist()


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({}, (3, 84, 84)),
        ({"grayscale": True}, (1, 84, 84)),
        ({"resolution": (40, 60), "channels_last": True}, (40, 60, 3)),
        ({"resolution": (40, 60), "grayscale": True, "channels_last": True}, (40, 60, 1)),
        ({"action_space": "continuous"}, (3, 84, 84)),
        ({"action_space": "multibinary"}, (3, 84, 84)),
    ],
)
def test_it_is_a_valid_gymnasium_environment(arguments, shape):
    env = AtariGame("Pong", **arguments)
    assert env.observation_space == gym.spaces.Box(0, 255, shape, np.uint8)
    check_env(env, skip_render_check=True)


def test_a_coloured_observation_is_the_resized_last_frame_of_the_step():
    env = AtariGame("Breakout", frame_skip=3)
    theirs = gym.make("ALE/Breakout-v5", full_action_space=True, frameskip=3, repeat_action_probability=0.25)
    observation, info = env.reset(seed=5)
    screen, their_info = theirs.reset(seed=5)
    for action in random_actions(100):
        resized = cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(observation, resized.transpose(2, 0, 1))
        assert info == their_info
        observation, reward, terminated, _, info = env.step(action)
        screen, their_reward, their_end, _, their_info = theirs.step(action)
        assert (reward, terminated) == (their_reward, their_end)


def test_a_grey_observation_is_the_maximum_of_the_last_two_frames():
    env = AtariGame("MsPacman", grayscale=True, resolution=(210, 160))
    frames = gym.make("ALE/MsPacman-v5", full_action_space=True, obs_type="grayscale", frameskip=1)
    first, _ = env.reset(seed=5)
    np.testing.assert_array_equal(first[0], frames.reset(seed=5)[0])
    flickered = False
    for action in random_actions(100):
        observation, reward, *_ = env.step(action)
        seen, rewards = zip(*(frames.step(action)[:2] for _ in range(4)), strict=True)
        np.testing.assert_array_equal(observation[0], np.maximum(seen[2], seen[3]))
        assert reward == sum(rewards)
        flickered = flickered or not np.array_equal(seen[2], seen[3])
    assert flickered


def test_an_observation_is_not_changed_by_later_steps():
    for grayscale in (False, True):
        env = AtariGame("Pong", grayscale=grayscale, resolution=(210, 160))
        observation, _ = env.reset(seed=0)
        before = observation.copy()
        for action in random_actions(30):
            env.step(action)
        np.testing.assert_array_equal(observation, before)


def test_the_joystick_has_eighteen_actions_in_the_order_of_ale():
    meanings = gym.make("ALE/Pong-v5", full_action_space=True).unwrapped.get_action_meanings()
    assert [name.lower() for name in meanings] == list(ALEAction.str2action)
    assert list(ALEAction.str2action.values()) == list(range(18))
    found = {ALEAction(*bits).to_discrete() for bits in itertools.product([False, True], repeat=5)}
    assert found == set(range(18))


@pytest.mark.parametrize(
    ("pressed", "name"),
    [
        ("", "noop"),
        ("up down", "noop"),
        ("left right fire", "fire"),
        ("up left", "upleft"),
        ("up down right fire", "rightfire"),
        ("down left fire", "downleftfire"),
        ("up down left right fire", "fire"),
    ],
)
def test_opposite_directions_cancel_each_other(pressed, name):
    bits = {key: key in pressed.split() for key in ("up", "down", "left", "right", "fire")}
    assert ALEAction(**bits).to_discrete() == ALEAction.str2action[name]


def test_buttons_play_as_the_discrete_action_that_they_stand_for():
    up_right_fire = [1, 0, 0, 1, 1]
    discrete = play(AtariGame("Qbert"), [ALEAction.str2action["uprightfire"]] * 100)
    assert play(AtariGame("Qbert", action_space="multibinary"), [up_right_fire] * 100) == discrete


def test_a_continuous_action_is_a_radius_an_angle_and_fire_rescaled_from_the_policys_range():
    game = AtariGame("Qbert", action_space="continuous")
    assert game.action_space == gym.spaces.Box(
        np.float32([0, -np.pi, 0]), np.float32([1, np.pi, 1]), (3,), np.float32
    )
    env = AtariAMAGOWrapper(game)
    assert env.action_space == gym.spaces.Box(-1, 1, (3,), np.float32)
    left = AtariGame("Qbert")
    timestep, _ = env.reset(seed=0)
    observation, _ = left.reset(seed=0)
    for _ in range(100):
        np.testing.assert_array_equal(timestep.obs["observation"][0], observation)
        timestep, *_ = env.step(np.float32([[1.0, 1.0, -1.0]]))  # full radius, angle pi, no fire
        observation, *_ = left.step(ALEAction.str2action["left"])


def test_the_threshold_decides_which_continuous_actions_count():
    slightly_left = np.float32([0.4, np.pi, 0.0])

    def play_left(threshold: float) -> list:
        game = AtariGame(
            "Qbert", action_space="continuous", continuous_action_threshold=threshold, sticky_action_prob=0.0
        )
        return play(game, [slightly_left] * 100)

    def play_discrete(action: int) -> list:
        return play(AtariGame("Qbert", sticky_action_prob=0.0), [action] * 100)

    assert play_left(0.5) == play_discrete(NOOP)
    assert play_left(0.3) == play_discrete(ALEAction.str2action["left"])


@pytest.mark.parametrize("grayscale", [False, True])
def test_a_time_limit_truncates_counted_in_frames(grayscale):
    env = AtariGame("Pong", time_limit=50, grayscale=grayscale)
    ends = [step[2:] for step in play(env, random_actions(100))[1:]]
    assert ends == [(False, False)] * 12 + [(False, True)]  # 13 steps of 4 frames


def test_a_time_limit_beyond_that_of_the_registered_environment_counts():
    env = AtariGame("Pong", time_limit=200_000)
    assert env.time_limit == 200_000
    assert env._emulator.ale.getInt("max_num_frames_per_episode") == 200_000


def test_game_over_terminates():
    env = AtariGame("Breakout", sticky_action_prob=0.0)
    end = play(env, [FIRE] * 2000)[-1]
    assert end[2:] == (True, False)
    assert env.step(NOOP)[4]["lives"] == 0


def test_the_loss_of_a_life_can_terminate_and_the_next_reset_starts_a_new_game():
    env = AtariGame("Breakout", terminal_on_life_loss=True)
    assert play(env, [FIRE] * 2000)[-1][2:] == (True, False)
    assert env.step(NOOP)[4]["lives"] == 4
    _, info = env.reset()
    assert (info["lives"], info["episode_frame_number"]) == (5, 0)


def test_rewards_are_the_score_and_can_be_clipped():
    raw, clipped = (
        [step[1] for step in play(AtariGame("MsPacman", clip_rewards=clip), random_actions(300))[1:]]
        for clip in (False, True)
    )
    assert set(clipped) == {0.0, 1.0}
    assert max(raw) >= 10.0
    assert clipped == np.clip(raw, -1.0, 1.0).tolist()


def test_the_seed_decides_sticky_actions_and_without_one_they_are_fresh():
    actions = random_actions(200)
    assert play(AtariGame("Pong"), actions, seed=1) == play(AtariGame("Pong"), actions, seed=1)
    assert play(AtariGame("Pong"), actions, seed=1) != play(AtariGame("Pong"), actions, seed=2)
    assert play(AtariGame("Pong"), actions, seed=None) != play(AtariGame("Pong"), actions, seed=None)


def test_without_sticky_actions_a_game_always_plays_the_same():
    actions = random_actions(100)
    runs = [play(AtariGame("Pong", sticky_action_prob=0.0), actions, seed) for seed in (1, 2)]
    assert runs[0] == runs[1]


def test_the_screen_is_rendered_in_its_own_resolution():
    env = AtariGame("Pong", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (210, 160, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"action_space": "joystick"}, ValueError, "joystick"),
        ({"frame_skip": 0}, ValueError, "frame_skip"),
        ({"time_limit": 0}, ValueError, "time_limit"),
        ({"sticky_action_prob": 1.5}, ValueError, "sticky_action_prob"),
        ({"resolution": (84,)}, ValueError, "resolution"),
        ({"version": "v9"}, gym.error.VersionNotFound, "v9"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(arguments, error, named):
    with pytest.raises(error, match=named):
        AtariGame("Pong", **arguments)


def test_an_unknown_game_is_refused():
    with pytest.raises(gym.error.NameNotFound, match="Pongg"):
        AtariGame("Pongg")


def test_settings_come_from_gin():
    gin.parse_config("AtariGame.frame_skip = 5\nale_retro.AtariGame.grayscale = True")
    try:
        game = ALE(["Pong"])
        assert game.observation_space.shape == (1, 84, 84)
        game.reset(seed=0)
        assert game.step(NOOP)[4]["episode_frame_number"] == 5
    finally:
        gin.clear_config()


def test_several_games_are_drawn_uniformly_and_named():
    env = AtariAMAGOWrapper(ALE(["Pong", "Breakout", "Qbert"]))
    assert env.env_name in ("Pong", "Breakout", "Qbert")
    env.reset(seed=0)
    names = []
    for _ in range(60):
        env.reset()
        names.append(env.env_name)
    counts = [names.count(name) for name in ("Pong", "Breakout", "Qbert")]
    assert min(counts) >= 10
    assert sum(counts) == 60


def test_each_game_keeps_one_emulator():
    env = ALE(["Pong", "Breakout"])
    emulators = set()
    for _ in range(20):
        env.reset()
        emulators.add((env.rom_name, id(env._current._emulator)))
    assert len(emulators) == 2
    assert (env.resolution, env.time_limit) == ((84, 84), 108_000)


def test_the_seed_decides_the_games_and_what_happens_in_them():
    def rollouts(seed: int) -> list:
        env = ALE(["Pong", "Breakout", "Qbert"])
        rollouts = [play(env, random_actions(20), seed)]
        for _ in range(4):
            rollouts.append([env.rom_name, play(env, random_actions(20), seed=None)])
        return rollouts

    assert rollouts(0) == rollouts(0)
    assert rollouts(0) != rollouts(1)


def play_all(env: ALE) -> None:
    while len(env._games) < len(env.game_names):
        env.reset()


def test_games_of_other_settings_and_other_spaces():
    env = ALE(["Pong"], lambda name: AtariGame(name, resolution=(20, 30)))
    assert env.observation_space.shape == (3, 20, 30)
    mixed = ALE(["Pong", "Qbert"], lambda name: AtariGame(name, grayscale=name == "Pong"))
    with pytest.raises(ValueError, match="observation_space"):
        play_all(mixed)
    with pytest.raises(ValueError, match="game_names"):
        ALE([])


def test_only_atari_games_are_wrapped():
    with pytest.raises(TypeError, match="AtariGame"):
        AtariAMAGOWrapper(gym.make("CartPole-v1"))


def test_vector_environments_step_a_game_per_process():
    makers = [lambda game=game: AtariAMAGOWrapper(AtariGame(game)) for game in ("Pong", "Breakout")]
    runs = []
    for env_mode in ("sync", "async"):
        with make_vector_env(makers, env_mode=env_mode, seed=0) as envs:
            envs.reset()
            for action in random_actions(20):
                step = envs.step(np.full((2, 1), action))
            assert list(step.env_names) == ["Pong", "Breakout"]
            runs.append(step.inputs.obs["observation"].copy())
    assert runs[0].shape == (2, 3, 84, 84)
    np.testing.assert_array_equal(runs[0], runs[1])


def test_an_agent_trains(short_training):
    def make_env() -> AMAGOEnv:
        return AtariAMAGOWrapper(AtariGame("Pong", time_limit=40))

    experiment = short_training(make_env)
    returns = experiment.evaluate_test(make_env, timesteps=30)
    assert returns["Average Total Return in Pong"] == 0.0
