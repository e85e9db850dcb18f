"""Programs with datasets of their own, as users of AMAGO 3 write them.

Stored games of any length hold observations that no environment has, such as masks of missing actions; nothing
collected is written back; what `on_end_of_collection` returns is logged.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from amago import Experiment
from amago.agent import Agent, Batch
from amago.envs import AMAGOEnv
from amago.hindsight import FrozenTraj, Timestep, Trajectory, save_trajectory, trajectory_filename
from amago.loading import DiskTrajDataset, MixtureOfDatasets, RLData, RLDataset
from amago.nets.cnn import GridworldCNN
from amago.nets.traj_encoders import GRUTrajEncoder
from amago.nets.tstep_encoders import CNNTstepEncoder, FFTstepEncoder, MultiModalTstepEncoder
from amago.utils import AmagoWarning

pytestmark = pytest.mark.source_only

MakeExperiment = Callable[..., Experiment]
MakeTraj = Callable[..., FrozenTraj]


class StoredGames(RLDataset):
    """Games kept in memory. Some of their actions were not recorded, which an observation key of its own tells."""

    def __init__(
        self, lengths: tuple[int, ...] = (3, 30), obs_shape: tuple[int, ...] = (3,), **keys: Any
    ) -> None:
        super().__init__(dset_name="stored games")
        self.keys = keys
        rng = np.random.default_rng(0)
        self.games = [self.make_game(length, obs_shape, rng) for length in lengths]
        self.ends = 0

    def make_game(self, length: int, obs_shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, Any]:
        obs = {"observation": rng.integers(0, 9, (length + 1, *obs_shape)).astype(np.float32), **self.keys}
        missing = (np.arange(length + 1) % 3 == 1)[:, None]
        return {
            "obs": {**obs, "missing_action_mask": missing},
            "actions": np.eye(2, dtype=np.float32)[rng.integers(0, 2, length)],
            "rews": rng.random((length, 1)).astype(np.float32),
            "dones": (np.arange(1, length + 1) == length)[:, None],
            "time_idxs": np.arange(length + 1)[:, None],
        }

    @property
    def save_new_trajs_to(self) -> None:
        return None

    def on_end_of_collection(self, experiment: Experiment) -> dict[str, Any]:
        self.ends += 1
        return {"Games": len(self.games), "Epoch Seen": experiment.epoch, "Mean": torch.tensor(0.5)}

    def get_description(self) -> str:
        return f"{len(self.games)} stored games"

    def sample_random_trajectory(self) -> RLData:
        game = self.games[self.rng.integers(len(self.games))]
        return RLData(
            obs=game["obs"],
            actions=game["actions"],
            rews=game["rews"],
            dones=game["dones"],
            time_idxs=game["time_idxs"],
        )


class RecordsBatches(Experiment):
    """Keeps the batches that it trains on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.batches: list[Batch] = []

    def train_step(self, batch: Batch, log_step: bool) -> dict[str, Any]:
        self.batches.append(batch)
        return super().train_step(batch, log_step)


class IgnoresMissingActions(Agent):
    """Trains its actor only on recorded actions."""

    def edit_actor_mask(self, batch: Batch, actor_loss: Tensor, pad_mask: Tensor) -> Tensor:
        return pad_mask & ~batch.obs["missing_action_mask"][:, :-1].unsqueeze(-1)


@pytest.mark.parametrize("dloader_workers", [0, 1])
@pytest.mark.filterwarnings("ignore:StoredGames overrides on_end_of_collection:amago.utils.AmagoWarning")
def test_stored_games_with_extra_keys_are_learned_from_beside_collection(
    make_experiment: MakeExperiment, metrics_of: Any, capsys: pytest.CaptureFixture[str], dloader_workers: int
) -> None:
    dataset = StoredGames()
    experiment: Any = make_experiment(
        cls=RecordsBatches,
        dataset=dataset,
        agent_type=IgnoresMissingActions,
        traj_encoder_type=GRUTrajEncoder,
        dloader_workers=dloader_workers,
        verbose=True,
    )
    experiment.start()
    assert "2 stored games" in capsys.readouterr().out
    before = {name: x.clone() for name, x in experiment.policy.named_parameters()}
    experiment.learn()
    # The environment does not have the mask; the agent acts and evaluates without it.
    assert set(experiment.observation_space) == {"observation"}
    assert "Average Total Return in memory" in experiment.evaluate_test(experiment.make_val_env, episodes=3)
    assert experiment.counters.env_steps == 2 * 60
    assert not list(experiment.run_dir.parent.rglob("*.npz")), "nothing collected is written"
    logged = [line["metrics"] for line in metrics_of(experiment, "dataset")]
    own = [{name: line[name] for name in ("Games", "Epoch Seen", "Mean")} for line in logged]
    assert own == [{"Games": 2, "Epoch Seen": epoch, "Mean": 0.5} for epoch in range(2)]
    assert dataset.ends == 2
    assert len(experiment.batches) == 8
    lengths = set(torch.cat([batch.lengths for batch in experiment.batches]).tolist())
    assert lengths == {4, 9}, "short games are whole, long ones are cut to max_seq_len transitions"
    for batch in experiment.batches:
        real = batch.transition_mask
        previous = torch.cat([batch.rews, batch.actions], dim=-1)[real.expand(-1, -1, 3)]
        torch.testing.assert_close(batch.rl2s[:, 1:][real.expand(-1, -1, 3)], previous)
        missing = batch.obs["missing_action_mask"]
        assert missing.dtype == torch.bool
        steps = batch.time_idxs[batch.timestep_mask]
        assert torch.equal(missing[batch.timestep_mask], steps % 3 == 1)
    assert not all(torch.equal(x, before[name]) for name, x in experiment.policy.named_parameters())


def test_a_dataset_that_restarts_its_workers_is_told_how_to_keep_them(
    make_experiment: MakeExperiment,
) -> None:
    with pytest.warns(AmagoWarning, match="StoredGames overrides on_end_of_collection without worker_state"):
        make_experiment(dataset=StoredGames(), dloader_workers=1).start()


@pytest.mark.parametrize(
    ("padded_sampling", "expected"),
    [("none", {8}), ("left", set(range(1, 9))), ("right", set(range(2, 9))), ("both", set(range(1, 9)))],
)
def test_games_are_cut_as_padded_sampling_says(padded_sampling: str, expected: set[int]) -> None:
    dataset = StoredGames(lengths=(30,))
    dataset.configure(
        items_per_epoch=400, max_seq_len=8, padded_sampling=padded_sampling, has_edit_rights=True
    )
    dataset.seed_sampling(0)
    assert {len(dataset[i]) for i in range(400)} == expected


def test_rl2s_are_made_from_rewards_and_actions_before_a_game_is_cut() -> None:
    dataset = StoredGames(lengths=(30,))
    dataset.configure(items_per_epoch=20, max_seq_len=8, padded_sampling="none", has_edit_rights=True)
    dataset.seed_sampling(0)
    game = dataset.games[0]
    for i in range(20):
        window = dataset[i]
        start = int(window.time_idxs[0, 0])
        if start:  # a window from the middle of a game knows what came before it
            assert window.rl2s[0, 0] == game["rews"][start - 1, 0]
            np.testing.assert_array_equal(window.rl2s[0, 1:], game["actions"][start - 1])
        else:
            assert not window.rl2s[0].any()


def test_rl_data_of_torch_tensors_and_lists() -> None:
    data = RLData(
        obs={"observation": torch.zeros(3, 2), "missing_action_mask": [[False], [True], [False]]},
        actions=torch.ones(2, 4, dtype=torch.float64),
        rews=[[1.0], [2.0]],
        dones=torch.tensor([[False], [True]]),
        time_idxs=torch.arange(3).unsqueeze(-1),
    )
    assert (data.actions.dtype, data.rews.dtype, data.time_idxs.dtype) == (np.float32, np.float32, np.int64)
    assert data.rl2s.tolist() == [[0.0] * 5, [1.0] * 5, [2.0, 1.0, 1.0, 1.0, 1.0]]


def test_rl_data_of_a_trajectory(make_traj: MakeTraj) -> None:
    frozen = make_traj(5)
    data = RLData(frozen)
    assert len(data) == 5
    for name in ("rl2s", "time_idxs", "rews", "dones", "actions"):
        np.testing.assert_array_equal(getattr(data, name), getattr(frozen, name))
    steps = Trajectory(
        Timestep(
            obs={"observation": np.full((1, 2), step, np.float32)},
            prev_action=np.full((1, 2), step, np.float32),
            reward=np.array([step], np.float32),
            time_idx=np.array([step]),
            terminal=np.array([step == 3]),
            batched_envs=1,
        )
        for step in range(4)
    )
    grown = RLData(steps)
    assert grown.rews.tolist() == [[1.0], [2.0], [3.0]]
    assert grown.dones.tolist() == [[False], [False], [True]]
    assert grown.rl2s[2].tolist() == [2.0, 2.0, 2.0]


def test_rl_data_without_an_array_names_it(make_traj: MakeTraj) -> None:
    with pytest.raises(TypeError, match="missing the arguments rews, time_idxs"):
        RLData(obs=make_traj(2).obs, actions=make_traj(2).actions, dones=make_traj(2).dones)


def test_a_dataset_is_true_before_it_is_configured(tmp_path: Path) -> None:
    for dataset in (StoredGames(), DiskTrajDataset(tmp_path, "dset", 10)):
        assert dataset
        assert (dataset or None) is dataset
        with pytest.raises(RuntimeError, match="not configured"):
            len(dataset)


# Networks and keys that they were not built for


class Pictures(gym.Env[Any, int]):
    """Sees a picture, or a picture and a vector."""

    def __init__(self, with_vector: bool) -> None:
        picture = gym.spaces.Box(0, 255, (12, 12, 3), np.uint8)
        parts = {"observation": picture, "speed": gym.spaces.Box(-1.0, 1.0, (2,), np.float32)}
        self.observation_space = gym.spaces.Dict(parts if with_vector else {"observation": picture})
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._see(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._see(), 1.0, self.time >= 6, False, {}

    def _see(self) -> Any:
        return {
            key: np.full(space.shape, self.time, space.dtype) for key, space in self.observation_space.items()
        }


class StoredPictures(StoredGames):
    """Games of `Pictures`, in the dtypes of the environment."""

    def make_game(self, length: int, obs_shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, Any]:
        game = super().make_game(length, obs_shape, rng)
        game["obs"]["observation"] = game["obs"]["observation"].astype(np.uint8)
        if self.keys:
            game["obs"]["speed"] = np.zeros((length + 1, 2), np.float32)
        return game


@pytest.mark.parametrize(
    ("encoder", "make_env", "make_dataset"),
    [
        (FFTstepEncoder, None, StoredGames),
        (
            functools.partial(CNNTstepEncoder, cnn_type=GridworldCNN),
            lambda: AMAGOEnv(Pictures(with_vector=False), env_name="memory"),
            lambda: StoredPictures(obs_shape=(12, 12, 3)),
        ),
        (
            MultiModalTstepEncoder,
            lambda: AMAGOEnv(Pictures(with_vector=True), env_name="memory"),
            lambda: StoredPictures(obs_shape=(12, 12, 3), speed=()),
        ),
    ],
    ids=["FFTstepEncoder", "CNNTstepEncoder", "MultiModalTstepEncoder"],
)
def test_networks_ignore_keys_that_they_were_not_built_for(
    make_experiment: MakeExperiment, encoder: Any, make_env: Any, make_dataset: Callable[[], StoredGames]
) -> None:
    """Training on games with an extra key is training on the same games without it."""
    weights = []
    for drop_key in (False, True):
        dataset = make_dataset()
        if drop_key:
            for game in dataset.games:
                del game["obs"]["missing_action_mask"]
        envs = {} if make_env is None else {"make_train_env": make_env, "make_val_env": make_env}
        folder = f"runs, {drop_key=}"
        experiment = make_experiment(folder, dataset=dataset, tstep_encoder_type=encoder, epochs=1, **envs)
        experiment.start()
        experiment.learn()
        assert experiment.counters.gradient_steps == 4
        weights.append(list(experiment.policy.parameters()))
    assert all(map(torch.equal, *weights))


# Mixtures, and files of another environment


def test_a_mixture_of_stored_games_and_a_replay_buffer(
    make_experiment: MakeExperiment, tmp_path: Path, metrics_of: Any
) -> None:
    """Games without the mask key do not mix with games that have it, so this program drops it."""

    class PlainGames(StoredGames):
        def sample_random_trajectory(self) -> RLData:
            data = super().sample_random_trajectory()
            del data.obs["missing_action_mask"]
            return data

    buffer = DiskTrajDataset(tmp_path, "collected", 100)
    mixture = MixtureOfDatasets([PlainGames(), buffer], sampling_weights=[0.5, 0.5])
    experiment = make_experiment(dataset=mixture)
    experiment.start()
    experiment.learn()
    assert len(list(buffer.fifo_folder.iterdir())) > 3
    names = metrics_of(experiment, "dataset")[-1]["metrics"]
    assert any("Games" in name for name in names)
    assert names["stored games Normalized Sample Weight"] == 0.5


class WiderEnv(gym.Env[np.ndarray, int]):
    """Another environment than that of the other tests: its observations have five numbers."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (5,), np.float32)
    action_space = gym.spaces.Discrete(2)


def _stray(folder: Path, number: int, transitions: int = 6, width: int = 5) -> Path:
    """A file of an environment with wider observations, newer than all others."""
    rng = np.random.default_rng(number)
    actions = np.eye(2, dtype=np.float32)[rng.integers(0, 2, transitions)]
    rews = np.zeros((transitions, 1), np.float32)
    rl2s = np.concatenate([np.zeros((1, 3), np.float32), np.concatenate([rews, actions], axis=1)])
    traj = FrozenTraj(
        obs={"observation": np.zeros((transitions + 1, width), np.float32)},
        rl2s=rl2s,
        time_idxs=np.arange(transitions + 1)[:, None],
        rews=rews,
        dones=np.zeros((transitions, 1), bool),
        actions=actions,
    )
    path = folder / trajectory_filename("stray", 9, number, 4_000_000_000 + number)
    return save_trajectory(traj, path, "npz", "stray")


@pytest.mark.parametrize("strays", [1, 3])
def test_a_newer_file_of_another_environment_is_the_one_that_goes(
    make_experiment: MakeExperiment, strays: int
) -> None:
    first = make_experiment(epochs=1, start_learning_at_epoch=float("inf"), train_timesteps_per_epoch=60)
    first.start()
    first.learn()
    first.close()
    folder = first.dataset.fifo_folder
    good = {path.name for path in folder.iterdir()}
    assert len(good) >= 16
    for number in range(strays):
        _stray(folder, number)
    learner = make_experiment(
        run_name="learner",
        epochs=2,
        start_collecting_at_epoch=float("inf"),
        val_interval=None,
        batch_size=16,
    )
    learner.start()
    with pytest.warns(AmagoWarning, match=r"stray_.*observation is float32\(5,\) instead of float32\(3,\)"):
        learner.learn()
    assert learner.counters.gradient_steps == 8
    assert {path.name for path in folder.iterdir()} == good
    quarantine = folder.parent / "quarantine"
    assert len(list(quarantine.iterdir())) == strays


def test_files_with_keys_that_the_environment_lacks_fit_it(make_experiment: MakeExperiment) -> None:
    """A buffer that a program filled itself, with a mask that only its loss reads."""
    experiment = make_experiment(
        epochs=1, start_collecting_at_epoch=float("inf"), val_interval=None, agent_type=IgnoresMissingActions
    )
    games = StoredGames(lengths=(6, 7, 20))
    for number, game in enumerate(games.games):
        data = RLData(**game)
        traj = FrozenTraj(data.obs, data.rl2s, data.time_idxs, data.rews, data.dones, data.actions)
        path = experiment.dataset.protected_folder / trajectory_filename("game", 1, number, 1_700_000_000)
        save_trajectory(traj, path, "npz", "game")
    experiment.start()
    experiment.learn()
    assert experiment.counters.gradient_steps == 4
    assert len(list(experiment.dataset.protected_folder.iterdir())) == 3
