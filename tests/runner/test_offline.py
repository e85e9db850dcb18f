"""OfflineDataset: rows of arrays, HDF5 files and Minari datasets as trajectories, in memory or mapped."""

import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest

from amago.envs import AMAGOEnv
from amago.hindsight import FrozenTraj, Relabeler, load_trajectory
from amago.loading import DiskTrajDataset, OfflineDataset
from amago.loading.offline import episodes_from_arrays, episodes_from_file, episodes_from_minari

pytestmark = pytest.mark.source_only

LENGTHS = [3, 1, 4]
DISCRETE = gym.spaces.Discrete(3)


def rows(lengths: list[int] | None = None, **changes: Any) -> dict[str, Any]:
    """Episodes whose observations are (episode, step); the second one is cut off by time, the others terminate."""
    lengths = LENGTHS if lengths is None else lengths
    where = [(episode, step) for episode, length in enumerate(lengths) for step in range(length)]
    count = len(where)
    ends = np.zeros(count, bool)
    ends[np.cumsum(lengths) - 1] = True
    timeouts = ends & (np.array(where)[:, 0] == 1)
    arrays = {
        "observations": np.array(where, np.float32),
        "next_observations": np.array(where, np.float32) + np.array([0, 1], np.float32),
        "actions": np.arange(count) % 3,
        "rewards": np.arange(count, dtype=np.float64) / 2,
        "terminals": ends & ~timeouts,
        "timeouts": timeouts,
        **changes,
    }
    return {name: array for name, array in arrays.items() if array is not None}


def split(arrays: dict[str, Any], **spaces: Any) -> list[FrozenTraj]:
    return list(episodes_from_arrays(arrays, **{"action_space": DISCRETE, **spaces}))


def test_rows_are_split_where_an_episode_ends():
    episodes = split(rows())
    assert [len(episode) for episode in episodes] == LENGTHS
    for number, episode in enumerate(episodes):
        length = LENGTHS[number]
        expected = [(number, step) for step in range(length + 1)]
        np.testing.assert_array_equal(episode.obs["observation"], expected)
        np.testing.assert_array_equal(episode.time_idxs[:, 0], np.arange(length + 1))
        np.testing.assert_array_equal(episode.dones[:, 0], [False] * (length - 1) + [number != 1])


def test_rl2s_are_the_rewards_and_actions_of_the_step_before_zeros_first():
    for episode in split(rows()):
        np.testing.assert_array_equal(episode.rl2s[0], 0)
        np.testing.assert_array_equal(episode.rl2s[1:, :1], episode.rews)
        np.testing.assert_array_equal(episode.rl2s[1:, 1:], episode.actions)


def test_without_next_observations_truncated_episodes_lose_their_last_transition():
    episodes = split(rows([3, 2, 4], next_observations=None))
    assert [len(episode) for episode in episodes] == [3, 1, 4]
    first, second, _ = episodes
    np.testing.assert_array_equal(first.obs["observation"][:, 1], [0, 1, 2, 2])  # the last one stands in
    np.testing.assert_array_equal(second.obs["observation"][:, 1], [0, 1])
    assert not second.dones.any()
    # the fault: the first observation of the next episode taken for the final one
    all_obs = rows([3, 2, 4])["observations"]
    assert all_obs[3, 0] == 1
    assert (first.obs["observation"][:, 0] == 0).all()


def test_an_episode_without_transitions_is_skipped():
    assert [len(episode) for episode in split(rows(next_observations=None))] == [3, 4]


def test_one_observation_more_than_actions_is_the_final_one_of_a_single_episode():
    arrays = rows([4], next_observations=None)
    arrays["observations"] = np.array([[0, step] for step in range(5)], np.float32)
    (episode,) = split(arrays)
    np.testing.assert_array_equal(episode.obs["observation"][:, 1], np.arange(5))
    with pytest.raises(ValueError, match="an episode ends at row 2"):
        split({**rows(), "observations": np.zeros((9, 2)), "next_observations": None} | {"timeouts": None})


def test_data_that_ends_in_mid_episode_is_cut_off_there():
    arrays = {name: array[:6] for name, array in rows().items()}
    last = split(arrays)[-1]
    assert len(last) == 2
    assert not last.dones.any()


def test_gymnasium_names_of_the_flags_are_accepted():
    arrays = rows()
    arrays["terminations"], arrays["truncations"] = arrays.pop("terminals"), arrays.pop("timeouts")
    for one, other in zip(split(arrays), split(rows()), strict=True):
        np.testing.assert_array_equal(one.dones, other.dones)


@pytest.mark.parametrize(
    ("space", "taken"),
    [
        (gym.spaces.Discrete(3, start=5), np.array([5, 7, 6])),
        (gym.spaces.MultiDiscrete([2, 3]), np.array([[0, 2], [1, 1], [1, 0]])),
        (gym.spaces.MultiBinary(3), np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0]], np.int8)),
        (gym.spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32)), None),
        (gym.spaces.Box(-3.0, 1.0, (2, 2), np.float32), None),
    ],
)
def test_actions_are_represented_as_the_environment_records_them(space: gym.Space, taken: Any):
    class Takes(gym.Env):
        observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        action_space = space

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.received = action
            return np.zeros(1, np.float32), 0.0, False, False, {}

    env = Takes()
    recorder = AMAGOEnv(env, "takes")
    recorder.reset()
    rng = np.random.default_rng(0)
    received, recorded = [], []
    for step in range(3):
        if taken is None:
            action = rng.uniform(-1, 1, (1, *recorder.action_space.shape)).astype(np.float32)
        else:
            action = (taken[step] - getattr(space, "start", 0)).reshape(1, -1)
        timestep = recorder.step(action)[0]
        received.append(np.array(env.received))
        recorded.append(timestep.prev_action[0])
    arrays = {
        "observations": np.zeros((3, 1)),
        "next_observations": np.zeros((3, 1)),
        "actions": np.array(received),
        "rewards": np.zeros(3),
        "terminals": [False, False, True],
    }
    (episode,) = episodes_from_arrays(arrays, space)
    np.testing.assert_allclose(episode.actions, recorded, atol=1e-6)


def test_an_observation_space_makes_what_the_environment_wrapper_makes():
    space = gym.spaces.Dict(
        {"room": gym.spaces.Discrete(4), "image": gym.spaces.Box(0, 255, (2, 2), np.uint8)}
    )
    observations = {"room": np.array([0, 3, 1]), "image": np.zeros((3, 2, 2), np.uint8)}
    arrays = rows([3], observations=observations, next_observations=None)
    (episode,) = split(arrays, observation_space=space)
    np.testing.assert_array_equal(episode.obs["room"], np.eye(4)[[0, 3, 1, 1]])
    assert episode.obs["image"].dtype == np.uint8
    (as_it_is,) = split(arrays)
    np.testing.assert_array_equal(as_it_is.obs["room"], [0, 3, 1, 1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": None}, "no array 'rewards'"),
        ({"rewards": np.zeros(0)}, "rewards is empty"),
        ({"rewards": np.zeros((8, 2))}, r"rewards has shape \(8, 2\)"),
        ({"actions": np.zeros(7, int)}, r"actions has shape \(7,\), but rewards has 8 rows"),
        ({"observations": np.zeros((6, 2))}, r"observations 'observation' has shape \(6, 2\)"),
        ({"next_observations": np.zeros((6, 2))}, r"next_observations 'observation' has shape \(6, 2\)"),
        ({"next_observations": {"other": np.zeros((8, 2))}}, "keys"),
        ({"next_observations": np.zeros((8, 3))}, r"shape \(2,\), but of next_observations \(3,\)"),
        ({"terminals": np.zeros(5)}, r"terminals has shape \(5,\)"),
        ({"terminals": None, "timeouts": None}, "neither terminals nor timeouts"),
        ({"terminals": np.zeros(8), "timeouts": np.zeros(8)}, "row 2 is not the observation of row 3"),
        ({"actions": np.full(8, 3)}, "do not fit the action space"),
        ({"actions": np.zeros((8, 2), int)}, "each action has shape"),
        ({"actions": np.full(8, np.nan)}, "not finite"),
        ({"actions": np.array(["a"] * 8)}, "must be numbers"),
    ],
)
def test_arrays_that_do_not_fit_are_named(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        split(rows(**changes))


def test_without_an_action_space_actions_must_be_represented_already():
    with pytest.raises(ValueError, match="action_space"):
        split(rows(), action_space=None)
    with pytest.raises(ValueError, match=r"beyond \[-1, 1\]"):
        split(rows(actions=np.full((8, 2), 2.0)), action_space=None)
    with pytest.raises(ValueError, match="outside of the action space"):
        split(rows(actions=np.full((8, 2), 2.0)), action_space=gym.spaces.Box(-1, 1, (2,), np.float32))


# Files


def write_hdf5(path: Path, arrays: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
        file["metadata/algorithm"] = "SAC"
        file["infos/qpos"] = np.zeros((8, 3))
    return path


def assert_same(first: Iterator[FrozenTraj], second: Iterator[FrozenTraj]) -> None:
    for one, other in zip(first, second, strict=True):
        arrays, others = one.to_dict(), other.to_dict()
        assert arrays.keys() == others.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, others[name])


def test_hdf5_and_npz_files_hold_what_arrays_do(tmp_path: Path):
    np.savez(tmp_path / "data.npz", infos=np.zeros(3), **rows())
    write_hdf5(tmp_path / "data.hdf5", rows())
    for name in ("data.npz", "data.hdf5"):
        assert_same(episodes_from_file(tmp_path / name, DISCRETE), iter(split(rows())))


def test_dict_observations_are_members_with_a_slash_or_groups(tmp_path: Path):
    observations = {"a": rows()["observations"], "b": rows()["rewards"]}
    arrays = rows(observations=observations, next_observations=None)
    expected = split(arrays)
    flat = {name: array for name, array in arrays.items() if name != "observations"}
    flat |= {f"observations/{key}": array for key, array in observations.items()}
    np.savez(tmp_path / "data.npz", **flat)
    write_hdf5(tmp_path / "data.h5", flat)
    for name in ("data.npz", "data.h5"):
        assert_same(episodes_from_file(tmp_path / name, DISCRETE), iter(expected))
    assert set(expected[0].obs) == {"a", "b"}


def test_a_file_of_another_type_is_refused(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no file .*data\.npz"):
        OfflineDataset(tmp_path / "data.npz")
    with pytest.raises(ValueError, match=r"suffixes are \.npz, \.h5, \.hdf5"):
        OfflineDataset(tmp_path / "data.csv")
    np.savez(tmp_path / "data.npz", rewards=np.zeros(3))
    with pytest.raises(ValueError, match=r"data\.npz: there is no array 'actions'|neither terminals"):
        OfflineDataset(tmp_path / "data.npz")
    np.savez(tmp_path / "objects.npz", rewards=np.array([object()]))
    with pytest.raises(ValueError, match="allow_pickle"):
        OfflineDataset(tmp_path / "objects.npz")


def test_a_library_that_is_missing_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    real_import = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in ("h5py", "minari"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    write_hdf5(tmp_path / "data.h5", rows())
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install h5py"):
        OfflineDataset(tmp_path / "data.h5")
    with pytest.raises(ImportError, match=r"pip install .minari\[hdf5\]"):
        OfflineDataset.from_minari("tiny/tiny-v0")


# Minari


class Corridor(gym.Env):
    """Walk right five times; the observation is the position, one-hot and as a number."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Dict(
            {"cell": gym.spaces.Discrete(6), "x": gym.spaces.Box(0, 5, (1,), np.float32)}
        )
        self.action_space = gym.spaces.Discrete(2, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = 0
        return self._observe(), {}

    def step(self, action):
        self.x = max(0, self.x + (1 if action == 2 else -1))
        return self._observe(), float(self.x), self.x == 5, False, {}

    def _observe(self):
        return {"cell": self.x, "x": np.array([self.x], np.float32)}


@pytest.fixture
def minari_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A real Minari dataset of four episodes, the last of which is cut off after 3 steps."""
    import minari
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = gym.wrappers.TimeLimit(Corridor(), 9)
    rng = np.random.default_rng(0)
    buffers = []
    for limit in (99, 99, 99, 3):
        seen, actions, results = [env.reset(seed=0)[0]], [], []
        while len(actions) < limit and not (results and (results[-1][1] or results[-1][2])):
            actions.append(1 + int(rng.random() < 0.8))
            obs, *result, _ = env.step(actions[-1])
            seen.append(obs)
            results.append(result)
        rewards, terminations, truncations = map(list, zip(*results, strict=True))
        truncations[-1] = not terminations[-1]
        buffers.append(
            EpisodeBuffer(
                observations={key: np.array([obs[key] for obs in seen]) for key in ("cell", "x")},
                actions=np.array(actions),
                rewards=rewards,
                terminations=terminations,
                truncations=truncations,
            )
        )
    return minari.create_dataset_from_buffers(
        "tiny/corridor-v0",
        buffers,
        observation_space=env.observation_space,
        action_space=env.action_space,
        algorithm_name="random",
        author="tests",
        author_email="tests@example.com",
        code_permalink="https://example.com",
        description="a corridor",
    )


@pytest.mark.filterwarnings("ignore")
def test_a_minari_dataset_gives_its_episodes_in_the_form_of_the_environment(
    minari_dataset: Any, tmp_path: Path
):
    episodes = list(episodes_from_minari(minari_dataset))
    stored = list(minari_dataset.iterate_episodes())
    assert len(episodes) == len(stored) == 4
    for episode, raw in zip(episodes, stored, strict=True):
        np.testing.assert_array_equal(episode.obs["cell"], np.eye(6)[raw.observations["cell"]])
        np.testing.assert_array_equal(episode.obs["x"], raw.observations["x"])
        np.testing.assert_array_equal(episode.actions.argmax(1) + 1, raw.actions)
        np.testing.assert_array_equal(episode.rews[:, 0], raw.rewards.astype(np.float32))
        np.testing.assert_array_equal(episode.dones[:, 0], raw.terminations)
    assert not episodes[-1].dones.any()
    spaces = minari_dataset.action_space, minari_dataset.observation_space
    assert_same(iter(episodes), episodes_from_file(tmp_path / "tiny" / "corridor-v0", *spaces))


@pytest.mark.filterwarnings("ignore")
def test_a_minari_dataset_is_found_by_its_id(minari_dataset: Any):
    dataset = OfflineDataset.from_minari("tiny/corridor-v0")
    assert "tiny/corridor-v0: 4 episodes" in dataset.get_description()
    with pytest.raises(ValueError, match="has its own"):
        OfflineDataset(minari_dataset, DISCRETE)


# The dataset


def configured(dataset: OfflineDataset, max_seq_len: int = 2) -> OfflineDataset:
    dataset.configure(
        items_per_epoch=400, max_seq_len=max_seq_len, padded_sampling="none", has_edit_rights=False
    )
    dataset.seed_sampling(0)
    return dataset


def long_rows() -> dict[str, Any]:
    return rows([3, 1, 4, 40])


def drawn(dataset: OfflineDataset) -> list[list[list[float]]]:
    return [dataset[i].obs["observation"].tolist() for i in range(len(dataset))]


@pytest.mark.parametrize("stored", [False, True])
def test_windows_are_those_of_the_episodes(tmp_path: Path, stored: bool):
    episodes = split(long_rows())
    store = tmp_path / "store" if stored else None
    dataset = configured(OfflineDataset(long_rows(), DISCRETE, store=store))
    seen = set()
    for i in range(len(dataset)):
        window = dataset[i]
        number, start = window.obs["observation"][0].astype(int)
        whole = episodes[number]
        stop = start + len(window)
        assert len(window) == min(2, len(whole))
        np.testing.assert_array_equal(window.obs["observation"], whole.obs["observation"][start : stop + 1])
        np.testing.assert_array_equal(window.rl2s, whole.rl2s[start : stop + 1])
        np.testing.assert_array_equal(window.time_idxs, whole.time_idxs[start : stop + 1])
        np.testing.assert_array_equal(window.rews, whole.rews[start:stop])
        np.testing.assert_array_equal(window.dones, whole.dones[start:stop])
        np.testing.assert_array_equal(window.actions, whole.actions[start:stop])
        seen.add((number, start))
    assert {number for number, _ in seen} == {0, 1, 2, 3}


@pytest.mark.parametrize(("sample_by", "expected"), [("episodes", 1 / 4), ("timesteps", 40 / 48)])
def test_episodes_or_timesteps_have_the_same_chance(sample_by: str, expected: float):
    dataset = configured(OfflineDataset(long_rows(), DISCRETE, sample_by=sample_by))
    share = np.mean([windows[0][0] == 3 for windows in drawn(dataset)])
    assert share == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 400))


def test_a_store_is_converted_once(tmp_path: Path):
    source, store = tmp_path / "data.npz", tmp_path / "store"
    np.savez(source, **long_rows())
    first = configured(OfflineDataset(source, DISCRETE, store=store))
    files = {path: path.stat().st_mtime_ns for path in store.rglob("*.npz")}
    second = configured(OfflineDataset(source, DISCRETE, store=store))
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*.npz")} == files
    assert drawn(first) == drawn(second) == drawn(configured(OfflineDataset(source, DISCRETE)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "store"]
    buffer = DiskTrajDataset(tmp_path, "store", 10)
    assert (len(buffer.index.protected), len(buffer.index.fifo)) == (4, 0)


def test_a_store_of_another_source_is_refused(tmp_path: Path):
    source, store = tmp_path / "one.npz", tmp_path / "store"
    np.savez(source, **rows())
    OfflineDataset(source, DISCRETE, store=store)
    np.savez(tmp_path / "two.npz", **rows())
    for other, space in ((tmp_path / "two.npz", DISCRETE), (source, gym.spaces.Discrete(4))):
        with pytest.raises(ValueError, match=r"was made from one\.npz"):
            OfflineDataset(other, space, store=store)
    np.savez(source, **rows(rewards=rows()["rewards"] + 1))
    with pytest.raises(ValueError, match=r"was made from one\.npz"):
        OfflineDataset(source, DISCRETE, store=store)
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match="not a converted dataset"):
        OfflineDataset(source, DISCRETE, store=tmp_path / "mine")


def test_a_store_of_other_arrays_is_refused(tmp_path: Path):
    OfflineDataset(rows(), DISCRETE, store=tmp_path / "store")
    OfflineDataset(rows(), DISCRETE, store=tmp_path / "store")
    with pytest.raises(ValueError, match="was made from"):
        OfflineDataset(rows(rewards=rows()["rewards"] + 1), DISCRETE, store=tmp_path / "store")


@pytest.mark.parametrize("value", [np.nan, 0.5, 2.0])
def test_an_end_that_is_neither_0_nor_1_is_refused(value: float):
    terminals = rows()["terminals"].astype(np.float64)
    terminals[1] = value
    with pytest.raises(ValueError, match=r"terminals\[1\] is .*it needs 0 or 1"):
        split(rows(terminals=terminals))


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path):
    arrays = rows(actions=np.array([0, 1, 2, 0, 1, 2, 0, 9]))
    with pytest.raises(ValueError, match="do not fit the action space"):
        OfflineDataset(arrays, DISCRETE, store=tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


class RewardsTen(Relabeler):
    def relabel(self, traj: FrozenTraj) -> FrozenTraj:
        assert traj.time_idxs[0, 0] == 0  # a relabeler sees whole episodes
        traj.rews[:] = 10
        return traj


def test_a_relabeler_sees_whole_episodes_and_changes_no_stored_one(tmp_path: Path):
    for store in (None, tmp_path / "store"):
        dataset = configured(OfflineDataset(long_rows(), DISCRETE, relabeler=RewardsTen(), store=store))
        assert all((dataset[i].rews == 10).all() for i in range(50))
        first = sorted(dataset.protected_folder.iterdir())[0]
        assert load_trajectory(first).rews[:3].tolist() == [[0.0], [0.5], [1.0]]


def test_trajectories_can_be_given_directly_and_must_have_the_same_arrays():
    episodes = split(rows())
    assert len(OfflineDataset(episodes).index.files) == 3
    with pytest.raises(TypeError, match="FrozenTraj"):
        OfflineDataset([1, 2])
    with pytest.raises(TypeError, match="source is 7"):
        OfflineDataset(7)
    other = split(rows(), action_space=gym.spaces.Discrete(4))
    with pytest.raises(ValueError, match=r"episode 3 has .* must have the same arrays"):
        OfflineDataset([*episodes, *other])
    with pytest.raises(ValueError, match="no episode"):
        OfflineDataset([])


README = Path(__file__).parents[2] / "packages" / "amago-runner" / "README.md"


def test_the_example_of_the_readme_runs_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    text = README.read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(README), "exec"), {"__name__": "__main__"})
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("random:"))
    assert f"    {said}\n" in text
    assert (tmp_path / "runs" / "offline" / "ckpts" / "latest" / "policy.pt").exists()
