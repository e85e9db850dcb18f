"""Minari datasets, made here by minari's own collector: training on the data and acting in its environment."""

import gymnasium as gym
import minari
import numpy as np
import pytest

from amago.envs import AMAGOEnv
from amago.envs.builtin.minari_envs import MinariAMAGOEnv
from amago.envs.vector import make_vector_env
from amago.loading import OfflineDataset

SCORE = "AMAGO_LOG_METRIC Normalized Return"


@pytest.fixture(autouse=True)
def _local_datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def collect(dataset_id: str = "toy/cartpole-v0", env_id: str = "CartPole-v1", episodes: int = 4, **arguments):
    """A dataset of random episodes."""
    env = minari.DataCollector(gym.make(env_id, **arguments.pop("env_arguments", {})))
    env.action_space.seed(0)
    for seed in range(episodes):
        env.reset(seed=seed)
        done = False
        while not done:
            *_, terminated, truncated, _ = env.step(env.action_space.sample())
            done = terminated or truncated
    return env.create_dataset(
        dataset_id,
        algorithm_name="random",
        author="us",
        author_email="us@us",
        code_permalink="-",
        **arguments,
    )


SCORES = {"ref_min_score": 10.0, "ref_max_score": 110.0}


def test_the_environment_is_recovered_from_the_id_or_the_dataset():
    dataset = collect()
    for source in (dataset, "toy/cartpole-v0", "minari/toy/cartpole-v0"):
        env = MinariAMAGOEnv(source)
        assert env.env_name == "toy_cartpole-v0"
        assert env.unwrapped.spec.id == "CartPole-v1"
        assert env.action_space == gym.spaces.Discrete(2)
    assert MinariAMAGOEnv(dataset, env_name="mine").env_name == "mine"


def test_the_environment_for_evaluation_is_taken_if_there_is_one():
    dataset = collect(eval_env=gym.spec("CartPole-v0"))
    assert MinariAMAGOEnv(dataset).unwrapped.spec.id == "CartPole-v0"
    assert MinariAMAGOEnv(dataset, eval_env=False).unwrapped.spec.id == "CartPole-v1"


def returns_and_scores(env: AMAGOEnv, episodes: int = 3) -> tuple[list[float], list[float | None]]:
    returns, scores = [], []
    rng = np.random.default_rng(0)
    for seed in range(episodes):
        env.reset(seed=seed)
        returns.append(0.0)
        done = False
        while not done:
            _, reward, terminated, truncated, info = env.step(rng.integers(2, size=(1, 1)))
            returns[-1] += float(reward[0])
            done = terminated[0] or truncated[0]
            assert done or SCORE not in info
        scores.append(info.get(SCORE))
    return returns, scores


def test_the_end_of_an_episode_reports_the_normalized_return():
    dataset = collect(**SCORES)
    returns, scores = returns_and_scores(MinariAMAGOEnv(dataset))
    assert len(set(returns)) > 1
    np.testing.assert_allclose(scores, minari.get_normalized_score(dataset, np.array(returns)))
    np.testing.assert_allclose(scores, (np.array(returns) - 10.0) / 100.0)


def test_without_reference_scores_nothing_is_reported():
    env = MinariAMAGOEnv(collect())
    assert returns_and_scores(env)[1] == [None] * 3
    assert env.normalized_return(50.0) is None


def test_the_seed_decides_the_episode():
    env = MinariAMAGOEnv(collect())
    assert returns_and_scores(env) == returns_and_scores(env)
    first, again, other = (env.reset(seed=seed)[0].obs["observation"].tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_an_environment_with_other_spaces_is_refused():
    dataset = collect(eval_env=gym.spec("Acrobot-v1"))
    with pytest.raises(ValueError, match="observation_space of toy/cartpole-v0"):
        MinariAMAGOEnv(dataset)


def test_a_dataset_that_is_not_here_is_an_error_of_minari():
    with pytest.raises(FileNotFoundError, match="toy/missing-v0"):
        MinariAMAGOEnv("toy/missing-v0")


@pytest.mark.parametrize("by_id", [True, False])
def test_the_data_is_converted_once_into_protected_trajectories(tmp_path, by_id):
    dataset = collect()
    store = tmp_path / "store"

    def load() -> OfflineDataset:
        if by_id:
            return OfflineDataset.from_minari("minari/toy/cartpole-v0", store=store)
        return OfflineDataset(dataset, store=store)

    load()
    files = {path: path.stat().st_mtime_ns for path in (store / "buffer" / "protected").iterdir()}
    assert len(files) == 4
    offline = load()
    assert {path: path.stat().st_mtime_ns for path in (store / "buffer" / "protected").iterdir()} == files
    assert offline.save_new_trajs_to is None
    offline.configure(8, 1000, "none", has_edit_rights=False)
    recorded = {len(episode): episode for episode in dataset.iterate_episodes()}
    sample = offline.sample_random_trajectory()
    episode = recorded[len(sample.actions)]
    np.testing.assert_array_equal(sample.obs["observation"], episode.observations)
    np.testing.assert_array_equal(sample.actions.argmax(-1), episode.actions)
    np.testing.assert_array_equal(sample.rews[:, 0], episode.rewards)
    np.testing.assert_array_equal(sample.dones[:, 0], episode.terminations)
    np.testing.assert_array_equal(sample.time_idxs[:, 0], np.arange(len(episode) + 1))


def test_the_agent_observes_the_same_keys_in_the_data_and_in_the_environment():
    dataset = collect("toy/pendulum-v0", "Pendulum-v1", 1, env_arguments={"max_episode_steps": 20})
    env = MinariAMAGOEnv(dataset)
    sample = OfflineDataset(dataset)
    sample.configure(8, 1000, "none", has_edit_rights=False)
    trajectory = sample.sample_random_trajectory()
    assert set(trajectory.obs) == set(env.observation_space.spaces)
    assert trajectory.actions.shape == (20, 1)
    np.testing.assert_allclose(
        trajectory.actions * 2.0, next(dataset.iterate_episodes()).actions, rtol=1e-6
    )  # Pendulum's torque is in [-2, 2]


def test_vector_environments_report_the_score():
    dataset = collect(**SCORES)
    with make_vector_env([lambda: MinariAMAGOEnv(dataset)] * 2, env_mode="sync", seed=0) as envs:
        envs.reset()
        reported = set()
        for _ in range(100):
            for _, metrics in envs.step(np.ones((2, 1), np.int64)).metrics:
                reported |= set(metrics)
    assert reported == {"Normalized Return"}


def test_an_agent_trains_offline_and_is_evaluated(short_training, tmp_path):
    collect(**SCORES)

    def make_env() -> AMAGOEnv:
        return MinariAMAGOEnv("minari/toy/cartpole-v0")

    experiment = short_training(
        make_env,
        dataset=OfflineDataset.from_minari("toy/cartpole-v0", store=tmp_path / "store"),
        train_timesteps_per_epoch=0,
        start_collecting_at_epoch=float("inf"),
    )
    metrics = experiment.evaluate_test(make_env, timesteps=300)
    score = metrics["Average Normalized Return in toy_cartpole-v0"]
    assert score == pytest.approx((metrics["Average Total Return in toy_cartpole-v0"] - 10.0) / 100.0)
