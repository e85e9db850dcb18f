"""POPGym, one task and many, on popgym itself."""

import gymnasium as gym
import numpy as np
import pytest
from popgym.envs import ALL
from popgym.wrappers import DiscreteAction, Flatten

from amago.envs import AMAGOEnv
from amago.envs.builtin.popgym_envs import MultiDomainPOPGym, MultiDomainPOPGymAMAGO, POPGym, POPGymAMAGO
from amago.envs.vector import make_vector_env

IDS = {spec["id"]: cls for cls, spec in ALL.items()}
LEVELS = ("Easy", "Medium", "Hard")
# Per level: numbers in the observation without the clock, actions (None: Box), steps, and whether an episode
# always has that many.
SIZES = {
    "Autoencode": ([6] * 3, [4] * 3, [103, 207, 311], True),
    "RepeatPrevious": ([4] * 3, [4] * 3, [51, 103, 155], True),
    "RepeatFirst": ([4] * 3, [4] * 3, [51, 415, 831], True),
    "CountRecall": ([4, 8, 26], [27, 27, 17], [51, 103, 207], True),
    "PositionOnlyCartPole": ([2] * 3, [2] * 3, [200, 400, 600], False),
    "VelocityOnlyCartpole": ([2] * 3, [2] * 3, [200, 400, 600], False),
    "NoisyPositionOnlyCartPole": ([2] * 3, [2] * 3, [200] * 3, False),
    "PositionOnlyPendulum": ([2] * 3, [None] * 3, [200, 150, 100], True),
    "NoisyPositionOnlyPendulum": ([2] * 3, [None] * 3, [200] * 3, True),
    "MultiarmedBandit": ([2] * 3, [10, 20, 30], [200, 400, 600], True),
    "HigherLower": ([13] * 3, [2] * 3, [51, 103, 155], True),
    "Battleship": ([2] * 3, [64, 100, 144], [64, 100, 144], False),
    "Concentration": ([156, 312, 728], [52, 104, 52], [104, 208, 104], False),
    "MineSweeper": ([3, 7, 10], [16, 36, 64], [14, 30, 54], False),
}
TASKS = [
    pytest.param(f"popgym-{name}{LEVELS[i]}-v0", sizes[i], actions[i], steps[i], always, id=name + LEVELS[i])
    for name, (sizes, actions, steps, always) in SIZES.items()
    for i in range(3)
]


def episode(env, seed=None, actions=None):
    """(observations, rewards, terminated, truncated) of one episode of random actions."""
    observation, _ = env.reset(seed=seed)
    env.action_space.seed(0)
    observations, rewards, terminated, truncated = [observation], [], False, False
    while not (terminated or truncated):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        observations.append(observation)
        rewards.append(reward)
    return observations, rewards, terminated, truncated


@pytest.mark.parametrize(("env_id", "size", "actions", "steps", "always"), TASKS)
def test_observations_actions_and_lengths_are_those_of_the_task(env_id, size, actions, steps, always):
    env = POPGym(env_id)
    assert env.observation_space.shape == (size + 1,)
    if actions is None:
        assert env.action_space == gym.spaces.Box(-2.0, 2.0, (1,), np.float32)
    else:
        assert env.action_space == gym.spaces.Discrete(actions)
    observations, rewards, *_ = episode(env, seed=0)
    assert all(observation in env.observation_space for observation in observations)
    assert len(rewards) == steps if always else len(rewards) <= steps
    assert -1.001 <= sum(rewards) <= 1.001
    clock = [observation[-1] for observation in observations]
    np.testing.assert_allclose(clock, np.arange(len(observations)) / 1000, rtol=1e-6)


@pytest.mark.parametrize("env_id", IDS)
def test_observations_and_rewards_equal_those_of_popgym_s_own_wrappers(env_id):
    env, theirs = POPGym(env_id), Flatten(IDS[env_id]())
    if isinstance(theirs.action_space, gym.spaces.MultiDiscrete):
        theirs = DiscreteAction(theirs)
    space = theirs.observation_space

    def one_hots(observation):
        if isinstance(space, gym.spaces.Box):
            return observation
        width = int(space.n if isinstance(space, gym.spaces.Discrete) else space.nvec.max())
        return np.eye(width)[np.asarray(observation, np.int64)].reshape(-1)

    (observations, rewards, terminated, truncated) = episode(env, seed=3)
    expected = episode(theirs, seed=3)
    np.testing.assert_allclose(
        [observation[:-1] for observation in observations],
        [one_hots(each) for each in expected[0]],
        rtol=1e-6,
    )
    assert rewards == expected[1]
    assert (terminated, truncated) == (True, expected[3])


def test_a_truncation_is_an_end_only_if_asked_for():
    assert episode(POPGym("popgym-MultiarmedBanditEasy-v0"))[2:] == (True, True)
    assert episode(POPGym("popgym-MultiarmedBanditEasy-v0", truncated_is_done=False))[2:] == (False, True)
    assert episode(POPGym("popgym-RepeatPreviousEasy-v0", truncated_is_done=False))[2:] == (True, False)


@pytest.mark.parametrize("env_id", IDS)
def test_a_seed_fixes_the_episode(env_id):
    env = POPGym(env_id)
    first, again, other, fresh = (np.stack(episode(env, seed)[0][:10]) for seed in (0, 0, 1, None))
    np.testing.assert_array_equal(first, again)
    if "Concentration" in env_id or "Battleship" in env_id or "MineSweeper" in env_id:
        return  # their first observations do not tell boards apart
    rewards = [episode(env, seed)[1] for seed in (0, 1, None)]
    assert first.shape != other.shape or (first != other).any() or rewards[0] != rewards[1]
    assert first.shape != fresh.shape or (first != fresh).any() or rewards[0] != rewards[2]


def test_the_agent_s_environment_is_named_after_the_id():
    env = POPGymAMAGO("popgym-MineSweeperEasy-v0")
    assert env.env_name == "popgym-MineSweeperEasy-v0"
    timestep, _ = env.reset(seed=0)
    assert timestep.obs["observation"].shape == (1, 4)
    assert env.step(np.array([[15]]))[0].obs["observation"][0, -1] == np.float32(0.001)


def test_box_actions_are_scaled_to_their_bounds():
    env = POPGymAMAGO("popgym-PositionOnlyPendulumEasy-v0")
    plain = POPGym("popgym-PositionOnlyPendulumEasy-v0")
    assert env.action_space == gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    env.reset(seed=0)
    plain.reset(seed=0)
    timestep, *_ = env.step(np.array([[0.25]], np.float32))
    np.testing.assert_array_equal(timestep.obs["observation"][0], plain.step(np.array([0.5], np.float32))[0])


def test_an_unknown_id_is_named_with_the_nearest_one():
    with pytest.raises(ValueError, match=r"got 'RepeatPreviousEasy'.*mean 'popgym-RepeatPreviousEasy-v0'"):
        POPGym("RepeatPreviousEasy")


def test_it_runs_in_a_vector_environment():
    envs = make_vector_env([lambda: POPGymAMAGO("popgym-RepeatPreviousEasy-v0")] * 2, env_mode="sync", seed=0)
    envs.reset()
    ends = [envs.step(np.zeros((2, 1), np.int64)).done_rows.tolist() for _ in range(102)]
    assert [i for i, rows in enumerate(ends) if rows == [0, 1]] == [50, 101]
    envs.close()


# Many tasks.


@pytest.fixture(scope="module")
def multi_domain() -> MultiDomainPOPGym:
    """One environment for all tests, because building the tasks takes a second."""
    return MultiDomainPOPGym()


def start(env: MultiDomainPOPGym, task: str, seed: int = 0) -> np.ndarray:
    """Resets until `task` is drawn; returns the first observation."""
    observation, _ = env.reset(seed=seed)
    while env.current_task != task:
        observation, _ = env.reset()
    return observation


def test_every_task_can_be_drawn_and_has_at_most_26_numbers(multi_domain):
    assert len(multi_domain.mt_names) == 27
    assert multi_domain.action_space.n == 26
    drawn = set()
    multi_domain.reset(seed=0)
    for _ in range(250):
        observation, _ = multi_domain.reset()
        drawn.add(multi_domain.current_task)
        assert observation in multi_domain.observation_space
        assert observation.shape == (30,)
        np.testing.assert_array_equal(observation[26:], [0, 0, 1, 0])
        size = POPGym(f"popgym-{multi_domain.current_task}-v0").observation_space.shape[0] - 1
        assert not observation[size:26].any()
    assert drawn == set(multi_domain.mt_names)
    assert all(f"popgym-{name}-v0" in IDS for name in drawn)


def test_environments_are_built_when_their_task_is_drawn():
    env = MultiDomainPOPGym()
    assert env._envs == {}
    env.reset(seed=0)
    assert list(env._envs) == [env.current_task]


@pytest.mark.parametrize("warmup_episodes", [0, 1, 2])
def test_warm_up_attempts_have_no_reward_and_an_extra_step_begins_each_attempt(warmup_episodes):
    env = MultiDomainPOPGym(warmup_episodes)
    start(env, "RepeatPreviousEasy")
    attempts, steps = warmup_episodes + 1, 51 + 1
    for attempt in range(attempts):
        for step in range(steps):
            observation, reward, terminated, truncated, _ = env.step(step % 4)
            extra = step == steps - 1
            np.testing.assert_allclose(observation[26], (attempt * steps + step + 1) / 1000, rtol=1e-6)
            np.testing.assert_allclose(observation[27], (attempt + extra) / max(warmup_episodes, 1))
            assert observation in env.observation_space
            assert reward == pytest.approx(0.0 if extra or attempt < warmup_episodes else observation[29])
            assert (observation[29] == 0.0) == (extra or step < 3)
            assert terminated == (extra and attempt == warmup_episodes)
            assert not truncated
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)


def test_an_action_that_the_task_lacks_is_replaced_by_a_valid_one(multi_domain):
    start(multi_domain, "MultiarmedBanditEasy")
    flags = [multi_domain.step(action)[0][28] for action in (9, 10, 25, 0)]
    assert flags == [1.0, 0.0, 0.0, 1.0]
    with pytest.raises(ValueError, match="from 0 to 25, got 26"):
        multi_domain.step(26)


def test_a_seed_fixes_tasks_attempts_and_replaced_actions():
    def rollout(seed):
        env = MultiDomainPOPGym()
        seen = []
        for episode_seed in (seed, None, None):
            seen.append(env.reset(seed=episode_seed)[0])
            terminated = False
            while not terminated:
                observation, _, terminated, *_ = env.step(len(seen) % 26)
                seen.append(observation)
        return np.stack(seen)

    np.testing.assert_array_equal(rollout(4), rollout(4))
    assert rollout(4).shape != rollout(5).shape or (rollout(4) != rollout(5)).any()
    assert rollout(None).shape != rollout(None).shape or (rollout(None) != rollout(None)).any()


def test_the_agent_s_environment_is_named_after_the_task():
    env = MultiDomainPOPGymAMAGO(warmup_episodes=2)
    names = set()
    for seed in range(5):
        env.reset(seed=seed)
        names.add(env.env_name)
    assert len(names) > 2
    assert all(
        name.startswith("MultiDomainPOPGym-") and name[18:] in env.multi_domain.mt_names for name in names
    )
    assert AMAGOEnv(MultiDomainPOPGym()).env_name == "MultiDomainPOPGym-AutoencodeEasy"


def test_a_negative_number_of_warm_up_attempts_is_refused():
    with pytest.raises(ValueError, match="warmup_episodes"):
        MultiDomainPOPGym(-1)


def test_an_agent_trains_on_one_task(short_training):
    experiment = short_training(lambda: POPGymAMAGO("popgym-RepeatPreviousEasy-v0"))
    metrics = experiment.evaluate_test(lambda: POPGymAMAGO("popgym-RepeatPreviousEasy-v0"), timesteps=60)
    assert -1 <= metrics["Average Total Return in popgym-RepeatPreviousEasy-v0"] <= 1


def test_an_agent_trains_on_many_tasks(short_training):
    short_training(MultiDomainPOPGymAMAGO)
