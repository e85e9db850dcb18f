"""A rollout acts step by step on its hidden state, counts finished episodes fairly and lets them carry over."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from amago.agent import Agent
from amago.envs import AMAGO_ENV_LOG_PREFIX, AMAGOEnv, EpisodeStats
from amago.envs.vector import VectorEnv, make_vector_env
from amago.experiment.rollout import ActingPolicy, Rollout
from amago.nets.traj_encoders import GRUTrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder

CPU = torch.device("cpu")


class FixedLengthEnv(gym.Env[np.ndarray, int]):
    """Episodes of a fixed length, reward 1 in every step; the observation counts the steps of its whole life."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.life = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.life += 1
        info = {f"{AMAGO_ENV_LOG_PREFIX} Step": float(self.time)}
        return np.array([self.time, self.life], np.float32), 1.0, self.time >= self.length, False, info


MakeRollout = Callable[..., Rollout]


@pytest.fixture
def make_rollout(small_nets: None) -> Iterator[MakeRollout]:
    """Makes rollouts over environments of the given episode lengths, named by them."""
    opened: list[VectorEnv] = []

    def make(*lengths: int, autocast: bool = False, **options: Any) -> Rollout:
        def maker(length: int) -> Callable[[], AMAGOEnv]:
            return lambda: AMAGOEnv(FixedLengthEnv(length), env_name=f"length {length}")

        envs = make_vector_env([maker(length) for length in lengths], env_mode="sync", seed=0)
        opened.append(envs)
        torch.manual_seed(0)
        agent = Agent(
            obs_space=envs.observation_space,
            rl2_space=envs.rl2_space,
            action_space=envs.action_space,
            max_seq_len=16,
            tstep_encoder_type=FFTstepEncoder,
            traj_encoder_type=GRUTrajEncoder,
        )
        return Rollout(ActingPolicy(agent, device=CPU, autocast=autocast), envs, **options)

    yield make
    for envs in opened:
        envs.close()


def test_returns_lengths_and_reported_metrics_of_finished_episodes(make_rollout: MakeRollout) -> None:
    rollout = make_rollout(2, 3)
    rollout.run(timesteps=6)
    assert rollout.stats.returns == {"length 2": [2.0] * 3, "length 3": [3.0] * 2}
    assert rollout.stats.specials == {
        "length 2": {"Episode Length": [2.0] * 3, "Step": [1.0, 2.0] * 3},
        "length 3": {"Episode Length": [3.0] * 2, "Step": [1.0, 2.0, 3.0] * 2},
    }


def test_an_unfinished_episode_is_not_in_the_statistics(make_rollout: MakeRollout) -> None:
    rollout = make_rollout(4)
    rollout.run(timesteps=3)
    assert rollout.stats.to_metrics() == {}


def test_episodes_carry_over_from_run_to_run(make_rollout: MakeRollout) -> None:
    rollout = make_rollout(4)
    rollout.run(timesteps=3)
    rollout.stats = EpisodeStats()
    rollout.run(timesteps=1)
    assert rollout.stats.returns == {"length 4": [4.0]}


def test_a_reset_begins_new_episodes(make_rollout: MakeRollout) -> None:
    rollout = make_rollout(4)
    rollout.run(timesteps=3)
    rollout.reset()
    rollout.run(timesteps=3)
    assert rollout.stats.returns == {}


def first_to_finish(lengths: tuple[int, ...], episodes: int) -> dict[str, list[float]]:
    """The fault: whichever episodes finish first are counted."""
    returns: dict[str, list[float]] = {}
    for step in range(1, 1000):
        for length in lengths:
            if step % length == 0:
                returns.setdefault(f"length {length}", []).append(float(length))
        if sum(map(len, returns.values())) >= episodes:
            return returns
    raise AssertionError("no end")


def every_actor_counts_equally(returns: dict[str, list[float]], actors: int) -> bool:
    return len(returns) == actors and len({len(scores) for scores in returns.values()}) == 1


def test_counting_episodes_does_not_favour_short_ones(make_rollout: MakeRollout) -> None:
    lengths = (2, 3, 10)
    rollout = make_rollout(*lengths)
    rollout.run(episodes=6)
    assert every_actor_counts_equally(rollout.stats.returns, actors=3)
    assert not every_actor_counts_equally(first_to_finish(lengths, 6), actors=3)


def test_episodes_that_do_not_divide_go_to_the_first_actors(make_rollout: MakeRollout) -> None:
    rollout = make_rollout(2, 3, 4)
    rollout.run(episodes=4)
    assert {name: len(scores) for name, scores in rollout.stats.returns.items()} == {
        "length 2": 2,
        "length 3": 1,
        "length 4": 1,
    }


def test_a_step_limit_ends_the_count(make_rollout: MakeRollout) -> None:
    rollout = make_rollout(2, 50)
    rollout.run(episodes=10, timesteps=6)
    assert rollout.stats.returns == {"length 2": [2.0] * 3}


def test_a_rollout_without_a_limit_is_refused(make_rollout: MakeRollout) -> None:
    with pytest.raises(ValueError, match="timesteps or episodes"):
        make_rollout(2).run()


def test_steps_are_counted_by_environment_name(make_rollout: MakeRollout) -> None:
    rollout = make_rollout(2, 2, 3)
    rollout.run(timesteps=5)
    rollout.run(timesteps=2)
    assert rollout.steps_by_env_name == {"length 2": 14, "length 3": 7}


def test_progress_is_called_after_every_step(make_rollout: MakeRollout) -> None:
    heard: list[int] = []
    make_rollout(2, 3).run(timesteps=4, progress=heard.append)
    assert heard == [2, 2, 2, 2]


def test_the_agent_acts_in_eval_mode_and_is_put_back(make_rollout: MakeRollout) -> None:
    rollout = make_rollout(3)
    rollout.agent.train()
    modes: list[bool] = []
    rollout.run(timesteps=2, progress=lambda _: modes.append(rollout.agent.training))
    assert (modes, rollout.agent.training) == ([False, False], True)


def test_the_hidden_state_of_a_finished_row_is_blank_and_others_stay(make_rollout: MakeRollout) -> None:
    rollout = make_rollout(2, 5)
    rollout.run(timesteps=2)
    hidden = rollout.hidden_state  # (layers, 2, width)
    assert not hidden[:, 0].any()
    assert hidden[:, 1].any()


def test_acting_step_by_step_equals_a_forward_over_the_whole_history(make_rollout: MakeRollout) -> None:
    rollout = make_rollout(100)
    rollout.reset()
    seen: list[tuple[np.ndarray, np.ndarray, int]] = []
    taken: list[int] = []

    def note(_: int) -> None:
        inputs = rollout.inputs
        seen.append((inputs.obs["observation"].copy(), inputs.rl2s.copy(), int(inputs.time_idxs[0])))
        taken.append(int(inputs.rl2s[0, 1:].argmax()))

    first = rollout.inputs
    seen.append((first.obs["observation"].copy(), first.rl2s.copy(), int(first.time_idxs[0])))
    rollout.run(timesteps=10, sample=False, progress=note)
    obs = torch.from_numpy(np.stack([row[0] for row in seen], axis=1))  # (1, 11, 2)
    rl2s = torch.from_numpy(np.stack([row[1] for row in seen], axis=1))
    times = torch.tensor([row[2] for row in seen]).view(1, -1, 1)
    agent = rollout.agent.eval()
    with torch.inference_mode():
        states, _ = agent.get_state_embedding({"observation": obs}, rl2s, times)
        best = agent.actor(states).probs[:, :, -1].argmax(-1)[0].tolist()
    assert best[:10] == taken


def dtypes_of_the_actor(rollout: Rollout) -> set[torch.dtype]:
    """Dtypes that the actor's first layer computes in, over a few steps."""
    seen: set[torch.dtype] = set()
    layer = next(module for module in rollout.agent.actor.modules() if isinstance(module, torch.nn.Linear))
    handle = layer.register_forward_hook(lambda _, __, output: seen.add(output.dtype))
    rollout.run(timesteps=3)
    handle.remove()
    return seen


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_rollouts_follow_mixed_precision_on_their_own_device(make_rollout: MakeRollout) -> None:
    assert dtypes_of_the_actor(make_rollout(3, 3, autocast=True)) == {torch.bfloat16}
    assert dtypes_of_the_actor(make_rollout(3, 3, autocast=False)) == {torch.float32}
    # The fault: one device by name, whatever the agent is on, and in that device's default dtype.
    with torch.autocast("cuda"):
        assert dtypes_of_the_actor(make_rollout(3, 3, autocast=False)) != {torch.bfloat16}


def test_actions_stay_integers_in_bf16(make_rollout: MakeRollout) -> None:
    rollout = make_rollout(3, 3, autocast=True)
    rollout.run(timesteps=6)
    assert len(rollout.stats.returns["length 3"]) == 4


class DividesByZero(FixedLengthEnv):
    """Observes NaN from its third step on."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs * (np.nan if self.time > 2 else 1.0), reward, terminated, truncated, info


@pytest.mark.parametrize(
    "action_space", [gym.spaces.Discrete(2), gym.spaces.Box(-1.0, 1.0, (2,))], ids=["discrete", "continuous"]
)
def test_an_observation_that_is_not_finite_is_an_error_that_names_the_environment(
    small_nets: None, action_space: Any
) -> None:
    def make() -> AMAGOEnv:
        env = DividesByZero(9)
        env.action_space = action_space
        return AMAGOEnv(env, env_name="broken")

    envs = make_vector_env([make], env_mode="sync", seed=0)
    agent = Agent(
        obs_space=envs.observation_space,
        rl2_space=envs.rl2_space,
        action_space=envs.action_space,
        max_seq_len=8,
        tstep_encoder_type=FFTstepEncoder,
        traj_encoder_type=GRUTrajEncoder,
    )
    with pytest.raises(
        ValueError, match=r"observation 'observation' of environment 0 \('broken'\) is not finite"
    ):
        Rollout(ActingPolicy(agent, device=CPU), envs).run(timesteps=9)
    envs.close()
