"""Meta-World with k attempts per task, on Meta-World itself."""

import gymnasium as gym
import metaworld
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from amago.envs.builtin.metaworld_ml import KEpisodeMetaworld, LazyBenchmark, Metaworld
from amago.envs.metrics import extract_metrics
from amago.envs.vector import make_vector_env


def reach(k_episodes: int = 2, max_episode_length: int = 5, **changes) -> KEpisodeMetaworld:
    return KEpisodeMetaworld(LazyBenchmark("reach-v3"), "train", k_episodes, max_episode_length, **changes)


def rollout(env: KEpisodeMetaworld, seed=None, action_seed: int = 0) -> list[tuple]:
    """The results of `reset` and of every step of an episode."""
    rng = np.random.default_rng(action_seed)
    results = [env.reset(seed=seed)]
    while len(results) == 1 or not (results[-1][2] or results[-1][3]):
        results.append(env.step(rng.uniform(-1, 1, 4).astype(np.float32)))
    return results


@pytest.mark.filterwarnings("ignore:.*A Box observation space m.*imum value is")
def test_it_is_a_valid_gymnasium_environment():
    check_env(reach(), skip_render_check=True)


def test_observations_are_meta_world_s_with_a_hidden_goal_and_the_first_step_s_flag():
    env = reach()
    task = env.benchmark.tasks_of("train", "reach-v3")[0]
    simulator = metaworld.ML1("reach-v3", seed=0).train_classes["reach-v3"]()
    results = rollout(env, seed=0)
    assert env.action_space == gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    for observation, *_ in results:
        assert observation in env.observation_space
        assert observation.shape == (40,)
        assert not observation[36:39].any()
    assert [result[0][39] for result in results] == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    simulator.set_task(task)
    np.testing.assert_array_equal(simulator.reset()[0].astype(np.float32)[:3], results[0][0][:3])


def test_an_attempt_ends_after_its_steps_and_the_next_begins_in_the_same_step():
    results = rollout(reach(k_episodes=3), seed=0)
    ends = [result[2:4] for result in results[1:]]
    assert ends == [(False, False)] * 14 + [(True, True)]
    np.testing.assert_array_equal(results[5][0], results[0][0])  # the same task, from its beginning
    np.testing.assert_array_equal(results[10][0], results[0][0])
    assert results[5][1] > 0  # the reward of the step that ended the attempt
    assert (results[15][0] != results[0][0]).any()  # the true last observation


def test_a_step_after_the_last_attempt_needs_a_reset():
    env = reach(k_episodes=1)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros(4, np.float32))
    rollout(env)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros(4, np.float32))


def test_successes_are_reported_at_the_end_of_each_attempt():
    class Easy(KEpisodeMetaworld):
        """Moves the hand to the goal in the second attempt."""

        def step(self, action):
            if len(self._successes) == 1:
                to_goal = self._simulator._target_pos - self._simulator.get_endeff_pos()
                action = np.clip(np.append(10 * to_goal, 0.0), -1, 1).astype(np.float32)
            else:
                action = np.zeros(4, np.float32)
            return super().step(action)

    env = Easy(LazyBenchmark("reach-v3"), "train", k_episodes=3, max_episode_length=100)
    results = rollout(env, seed=0)
    metrics = {step: extract_metrics(result[4]) for step, result in enumerate(results) if step and result[4]}
    assert metrics == {
        100: {"Trial 0 Success": 0.0},
        200: {"Trial 1 Success": 1.0},
        300: {"Trial 2 Success": 0.0, "Total Successes": 1.0},
    }


@pytest.mark.parametrize("name", ["reach-v3", "reach-v2"])
def test_reward_scales_multiply_the_reward_of_a_task(name):
    class Scaled(KEpisodeMetaworld):
        reward_scales = {name: 0.5}  # noqa: RUF012

    plain, scaled = reach(), Scaled(LazyBenchmark("reach-v3"), "train", 2, 5)
    rewards = [result[1] for result in rollout(plain, seed=0)[1:]]
    assert [result[1] for result in rollout(scaled, seed=0)[1:]] == [0.5 * reward for reward in rewards]
    assert all(0 < reward <= 10 for reward in rewards)


def test_a_seed_fixes_the_episode_and_without_one_tasks_are_fresh():
    env, other = reach(), reach()

    def observed(env, seed):
        return np.stack([result[0] for result in rollout(env, seed)])

    first = observed(env, 7)
    np.testing.assert_array_equal(first, observed(other, 7))
    np.testing.assert_array_equal(observed(env, None), observed(other, None))
    np.testing.assert_array_equal(first, observed(env, 7))  # the simulator's past does not matter
    # In reach, the object's place differs between tasks.
    starts = {env.reset(seed=seed)[0].tobytes() for seed in range(10)}
    starts |= {env.reset()[0].tobytes() for _ in range(10)}
    assert len(starts) > 12


def test_goals_are_the_same_in_every_environment_and_those_of_meta_world():
    def tasks(benchmark, split="train"):
        return [task.data for task in benchmark.tasks_of(split, "reach-v3")]

    theirs = metaworld.ML1("reach-v3", seed=0)
    assert tasks(LazyBenchmark("reach-v3")) == [task.data for task in theirs.train_tasks]
    assert tasks(LazyBenchmark("reach-v3"), "test") == [task.data for task in theirs.test_tasks]
    fresh = tasks(LazyBenchmark("reach-v3", seed=None))
    assert len(fresh) == 50
    assert fresh != tasks(LazyBenchmark("reach-v3"))


@pytest.mark.parametrize(("name", "train", "test"), [("ml10", 10, 5), ("ml25", 25, 5), ("ML45", 45, 5)])
def test_benchmarks_have_their_classes(name, train, test):
    assert len(LazyBenchmark(name).train_classes) == train
    assert len(LazyBenchmark(name).test_classes) == test


def test_simulators_and_tasks_are_made_when_their_class_is_drawn():
    env = KEpisodeMetaworld(LazyBenchmark("ml45"), "train", 1, max_episode_length=2)
    assert env._simulators == {}
    env.reset(seed=0)
    assert list(env._simulators) == list(env._tasks) == [env.env_name]
    env.close()


def test_a_benchmark_of_the_package_may_be_passed_and_all_its_classes_are_drawn():
    benchmark = metaworld.CustomML(["reach-v3", "push-v3"], [], seed=5)
    env = KEpisodeMetaworld(benchmark, "train", 1, max_episode_length=3)
    names = set()
    for seed in range(10):
        env.reset(seed=seed)
        names.add(env.env_name)
    assert names == {"reach-v3", "push-v3"}
    with pytest.raises(ValueError, match="CustomML has no tasks in its test split"):
        KEpisodeMetaworld(benchmark, "test", 1)


def test_names_of_version_2_stand_for_version_3_with_a_warning():
    with pytest.warns(UserWarning, match="using reach-v3"):
        env = Metaworld("reach-v2", "train", 3)
    assert env.env_name == "reach-v3"


def test_the_agent_s_environment_has_attempts_of_500_steps():
    env = Metaworld("reach-v3", "test", k_episodes=1)
    timestep, _ = env.reset(seed=0)
    assert timestep.obs["observation"].shape == (1, 40)
    for _ in range(500):
        timestep, _, terminated, truncated, info = env.step(np.zeros((1, 4), np.float32))
    assert terminated[0]
    assert truncated[0]
    assert extract_metrics(info) == {"Trial 0 Success": 0.0, "Total Successes": 0.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reech-v3", "train", 3), "Did you mean 'reach-v3'"),
        (("ml11", "train", 3), "Did you mean 'ml10'"),
        (("reach-v3", "validation", 3), "split"),
        (("reach-v3", "train", 0), "k_episodes"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Metaworld(*arguments)


def test_attempts_longer_than_meta_world_s_are_refused():
    with pytest.raises(ValueError, match="max_episode_length must be at most 500"):
        reach(max_episode_length=501)


def test_it_runs_in_a_vector_environment():
    envs = make_vector_env([lambda: Metaworld("reach-v3", "train", 1)] * 2, env_mode="sync", seed=0)
    envs.reset()
    for _ in range(500):
        step = envs.step(np.zeros((2, 4), np.float32))
    assert step.terminated.all()
    assert [(row, sorted(found)) for row, found in step.metrics] == [
        (row, ["Total Successes", "Trial 0 Success"]) for row in range(2)
    ]
    envs.close()


def test_an_agent_trains_on_it(short_training):
    experiment = short_training(lambda: Metaworld("reach-v3", "train", 1))
    metrics = experiment.evaluate_test(lambda: Metaworld("reach-v3", "test", 1), timesteps=501)
    assert 0 < metrics["Average Total Return in reach-v3"] <= 5000
    assert metrics["Average Total Successes in reach-v3"] in (0.0, 0.5, 1.0)
