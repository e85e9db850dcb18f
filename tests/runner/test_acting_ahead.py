"""An agent that begins with actions while environments step and are recorded acts as it would later."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from amago.agent import Agent
from amago.envs import AMAGOEnv, EpsilonGreedy
from amago.envs.recorder import TrajectoryRecorder, TrajectoryWriteError
from amago.envs.vector import SyncVectorEnv, make_vector_env
from amago.experiment.episodes import Limits
from amago.experiment.rollout import Rollout
from amago.hindsight import load_trajectory
from amago.nets.traj_encoders import (
    FFTrajEncoder,
    GRUTrajEncoder,
    MambaTrajEncoder,
    TformerTrajEncoder,
    TrajEncoder,
)
from amago.nets.tstep_encoders import FFTstepEncoder

CPU = torch.device("cpu")
DISCRETE = gym.spaces.Discrete(3)
ROWS = 25  # three stages
ENCODERS = [FFTrajEncoder, GRUTrajEncoder, TformerTrajEncoder, MambaTrajEncoder]


class Dice(gym.Env[np.ndarray, int]):
    """Episodes of random lengths, rather short; rewards tell the actions. `trouble` is raised in step `at`."""

    def __init__(
        self,
        at: int = 0,
        trouble: BaseException | None = None,
        action_space: gym.Space[Any] = DISCRETE,
    ) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = action_space
        self.at, self.trouble, self.life = at, trouble, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.random(3).astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.life += 1
        if self.life == self.at and self.trouble is not None:
            raise self.trouble
        obs = self.np_random.random(3).astype(np.float32)
        return obs, float(np.sum(action)), bool(obs[0] < 0.1), bool(obs[1] < 0.05), {}


class Later(Agent):
    """Begins with nothing before it is asked for its actions."""

    def begin_actions(self, *args: Any, **kwargs: Any) -> None:
        return None


MakeRollout = Callable[..., Rollout]


@pytest.fixture
def make_rollout(small_nets: None, tmp_path: Path) -> Iterator[MakeRollout]:
    """Makes rollouts that record into a folder of their own; all are alike but for what they are told."""
    made: list[Rollout] = []

    def make(
        agent_type: type[Agent] = Agent,
        encoder: type[TrajEncoder] = GRUTrajEncoder,
        env_mode: str = "sync",
        trouble: dict[int, Dice] | None = None,
        rows: int = ROWS,
        action_space: gym.Space[Any] = DISCRETE,
        tstep_encoder: type[FFTstepEncoder] = FFTstepEncoder,
    ) -> Rollout:
        def maker(row: int) -> Callable[[], AMAGOEnv]:
            dice = (trouble or {}).get(row) or Dice(action_space=action_space)
            return lambda: AMAGOEnv(dice, env_name="dice")

        makers = [maker(row) for row in range(rows)]
        if env_mode == "already_vectorized":
            vectorized = gym.vector.SyncVectorEnv(
                [Dice] * rows, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP
            )
            makers = [lambda: AMAGOEnv(vectorized, env_name="dice", batched_envs=rows)]

        envs = make_vector_env(
            makers,
            env_mode=env_mode,
            exploration_wrapper_type=EpsilonGreedy,
            seed=0,
        )
        torch.manual_seed(0)
        agent = agent_type(
            obs_space=envs.observation_space,
            rl2_space=envs.rl2_space,
            action_space=envs.action_space,
            max_seq_len=6,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=encoder,
            online_coeff=0.0,  # which all action spaces allow
            offline_coeff=1.0,
        )
        with torch.no_grad():
            for parameter in agent.parameters():
                parameter.mul_(4.0)  # or the policy would hardly depend on what it sees and remembers
        recorder = TrajectoryRecorder(
            rows, save_to=tmp_path / str(len(made)), save_len=8, max_seq_len=2, rng=np.random.default_rng(0)
        )
        made.append(Rollout(agent, envs, device=CPU, recorder=recorder, double_buffer=False))
        return made[-1]

    yield make
    for rollout in made:
        assert rollout.recorder is not None
        rollout.recorder.close()
        rollout.vector_env.close()


def files_of(rollout: Rollout) -> list[str]:
    """What each file says, in an order of their contents; writes what is unfinished first."""
    recorder = rollout.recorder
    assert recorder is not None
    assert recorder._writer is not None
    recorder.cut()
    recorder.flush()
    stored = [load_trajectory(path).to_dict() for path in recorder._writer.folder.iterdir()]
    return sorted(repr({key: array.tolist() for key, array in found.items()}) for found in stored)


def note_calls(rollout: Rollout, name: str) -> list[Any]:
    """What `begin_actions` or `get_actions` gives from now on."""
    calls: list[Any] = []
    kind = type(rollout.agent)
    original = getattr(kind, name)

    def noting(self: Agent, *args: Any, **kwargs: Any) -> Any:
        calls.append(original(self, *args, **kwargs))
        return calls[-1]

    # A class of its own, as an agent that has `get_actions` overridden is not asked to begin
    rollout.agent.__class__ = type("Noted", (kind,), {name: noting})
    return calls


@pytest.mark.parametrize("env_mode", ["sync", "async", "already_vectorized"])
@pytest.mark.parametrize("encoder", ENCODERS)
def test_an_agent_that_begins_early_acts_as_one_that_does_not(encoder, env_mode, make_rollout):
    random, files, counts, begun = [], [], [], []
    for agent_type in (Agent, Later):
        rollout = make_rollout(agent_type, encoder, env_mode)
        begun.append(note_calls(rollout, "begin_actions"))
        torch.manual_seed(1)
        for limits in ({"timesteps": 60}, {"episodes": 90}, {"timesteps": 3}):
            rollout.run(**limits)
        random.append(torch.rand(1))  # as many numbers were drawn
        files.append(files_of(rollout))
        counts.append((rollout.stats.returns, rollout.stats.lengths, rollout.steps_by_env_name))
    assert random[0] == random[1]
    assert files[0] == files[1]
    assert counts[0] == counts[1]
    assert sum(call is not None for call in begun[0]) > 60


@pytest.mark.parametrize(
    "action_space",
    [
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.MultiBinary(3),  # the program gives a distribution, which draws at the end
        gym.spaces.Box(-2.0, 1.0, (2,), np.float32),
    ],
    ids=lambda space: type(space).__name__,
)
def test_so_it_does_in_every_action_space(action_space, make_rollout):
    files = []
    for agent_type in (Agent, Later):
        rollout = make_rollout(agent_type, action_space=action_space)
        torch.manual_seed(1)
        rollout.run(timesteps=70)
        files.append(files_of(rollout))
    assert files[0] == files[1]


def test_environments_of_this_process_are_acted_for_while_others_step(make_rollout):
    rollout = make_rollout()
    assert isinstance(rollout.vector_env, SyncVectorEnv)
    rows: list[int] = []
    released = []
    whole = rollout._whole
    release = whole.release

    def noting(ready: slice, ended: Any) -> None:
        release(ready, ended)
        rows.append(ready.stop)
        released.append(whole.has_begun)

    whole.release = noting
    rollout.run(timesteps=10)
    assert rows == [8, 16, 25] * 9  # nothing is begun in the last step
    assert all(released)


def test_nothing_is_begun_that_may_not_be_needed(make_rollout):
    rollout = make_rollout()
    begun = note_calls(rollout, "begin_actions")
    rollout.run(timesteps=1)
    assert begun == []
    rollout.run(timesteps=2)
    assert len(begun) == 1
    rollout.run(timesteps=20, render=False, episodes=1)
    assert not rollout._whole.has_begun


def test_rendered_steps_are_not_begun_early(make_rollout, monkeypatch):
    rollout = make_rollout()
    begun = note_calls(rollout, "begin_actions")
    monkeypatch.setattr(rollout.vector_env, "render", lambda: None)
    rollout.run(timesteps=5, render=True)
    assert begun == []


class Own(Agent):
    """Acts in its own way."""

    def get_actions(self, *args: Any, **kwargs: Any) -> Any:
        actions, hidden_state = super().get_actions(*args, **kwargs)
        return torch.full_like(actions, 2), hidden_state


class OwnReset(Agent):
    """Forgets in its own way."""

    def reset_hidden_state(self, hidden_state: Any, dones: Any) -> Any:
        return super().reset_hidden_state(hidden_state, dones)


def test_an_agent_that_acts_in_its_own_way_is_asked_at_every_step(make_rollout):
    rollout = make_rollout(Own)
    asked = note_calls(rollout, "get_actions")
    rollout.run(timesteps=7)
    assert len(asked) == 7
    assert all((actions == 2).all() for actions, _ in asked)


def test_an_agent_that_forgets_in_its_own_way_is_asked_to(make_rollout):
    def run(agent_type: type[Agent]) -> tuple[int, list[str]]:
        rollout = make_rollout(agent_type)
        torch.manual_seed(1)
        forgotten = note_calls(rollout, "reset_hidden_state")
        rollout.run(timesteps=50)
        return len(forgotten), files_of(rollout)

    assert run(OwnReset) == run(Later)


def test_a_method_that_was_replaced_on_the_agent_itself_is_called(make_rollout):
    rollout = make_rollout()
    asked, get_actions = [], rollout.agent.get_actions

    def noting(*args: Any, **kwargs: Any) -> Any:
        asked.append(1)
        return get_actions(*args, **kwargs)

    rollout.agent.get_actions = noting
    rollout.run(timesteps=7)
    assert len(asked) == 7


@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_failed_write_leaves_no_trace_in_what_the_agent_does(encoder, make_rollout, monkeypatch):
    rollout, plain = make_rollout(encoder=encoder), make_rollout(Later, encoder)
    add, adds = rollout.recorder.add, 0

    def failing(*args: Any) -> None:
        nonlocal adds
        add(*args)
        adds += 1
        if adds in (3, 4, 20):
            raise TrajectoryWriteError("the disk is full")

    monkeypatch.setattr(rollout.recorder, "add", failing)
    torch.manual_seed(1)
    left = 40
    while left:
        before = adds
        try:
            rollout.run(timesteps=left)
        except TrajectoryWriteError:
            assert not rollout._whole.has_begun
        left -= adds - before
    torch.manual_seed(1)
    plain.run(timesteps=40)
    assert files_of(rollout) == files_of(plain)


@pytest.mark.parametrize("row", [0, 7, 8, 24])
def test_an_error_of_an_environment_arrives_and_the_next_run_begins_new_episodes(row, make_rollout):
    rollout = make_rollout(trouble={row: Dice(6, ZeroDivisionError("no dice"))})
    with pytest.raises(ZeroDivisionError, match="no dice"):
        rollout.run(timesteps=20)
    assert not rollout.started
    assert not rollout._whole.has_begun
    rollout.run(timesteps=20)
    assert rollout.recorder.total_frames == ROWS * 25


@pytest.mark.parametrize("row", [3, 20])
def test_an_observation_that_is_not_finite_is_an_error_that_names_the_environment(row, make_rollout):
    class Broken(Dice):
        def step(self, action: int) -> Any:
            obs, *rest = super().step(action)
            return (obs * np.nan if self.life == 5 else obs, *rest)

    rollout = make_rollout(trouble={row: Broken()})
    with pytest.raises(ValueError, match=rf"environment {row} \('dice'\) is not finite"):
        rollout.run(timesteps=20)


def every_third_step(act: Callable[[], Any]) -> Callable[[int], None]:
    """For `progress`."""
    steps = 0

    def progress(_: int) -> None:
        nonlocal steps
        steps += 1
        if steps % 3 == 0:
            act()

    return progress


def replace_hidden_state(rollout: Rollout) -> None:
    rollout.hidden_state = torch.zeros_like(rollout.hidden_state)


def write_to_hidden_state(rollout: Rollout) -> None:
    with torch.inference_mode():
        rollout.hidden_state.mul_(-1.0)


def start_anew(rollout: Rollout) -> None:
    rollout.reset(seed=7)


@pytest.mark.parametrize("meddle", [replace_hidden_state, write_to_hidden_state, start_anew])
def test_what_a_caller_changes_in_between_is_acted_on(meddle, make_rollout):
    def run(agent_type: type[Agent]) -> list[str]:
        rollout = make_rollout(agent_type)
        torch.manual_seed(1)
        rollout.run(timesteps=30, progress=every_third_step(lambda: meddle(rollout)))
        return files_of(rollout)

    assert run(Agent) == run(Later)


def test_the_agent_may_act_elsewhere_in_between(make_rollout):
    def run(agent_type: type[Agent]) -> list[str]:
        rollout = make_rollout(agent_type)
        other = make_rollout(rows=13)
        other.reset()
        other._whole.agent = rollout.agent
        rollout.run(
            timesteps=30,
            sample=False,
            progress=every_third_step(lambda: other.run(timesteps=2, sample=False)),
        )
        return files_of(rollout)

    assert run(Agent) == run(Later)


def test_an_environment_may_ask_the_agent_in_its_own_step(make_rollout):
    asked: list[Agent] = []

    class Advised(Dice):
        def step(self, action: int) -> Any:
            if asked and self.life % 4 == 0:
                obs = {"observation": torch.ones(ROWS, 1, 3)}
                rl2s, times = torch.zeros(ROWS, 1, 4), torch.zeros(ROWS, 1, 1, dtype=torch.int64)
                asked[0].get_actions(obs, rl2s, times, sample=False)
            return super().step(action)

    def run(agent_type: type[Agent]) -> list[str]:
        asked.clear()
        rollout = make_rollout(agent_type, trouble={11: Advised(), 24: Advised()})
        asked.append(rollout.agent)
        rollout.run(timesteps=30, sample=False)
        return files_of(rollout)

    assert run(Agent) == run(Later)


def test_episodes_outgrow_the_table_of_positions(make_rollout):
    class Long(Dice):
        def step(self, action: Any) -> Any:
            obs, reward, _, _, info = super().step(action)
            return obs, reward, self.life % 1100 == 0, False, info

    def run(agent_type: type[Agent]) -> list[str]:
        rows = {row: Long() for row in range(12)}
        rollout = make_rollout(agent_type, TformerTrajEncoder, trouble=rows, rows=12)
        torch.manual_seed(1)
        rollout.run(timesteps=1110)
        return files_of(rollout)

    assert run(Agent) == run(Later)


class Doubled(SyncVectorEnv):
    """Does something else after a step."""

    def step(self, actions: Any) -> Any:
        step = super().step(actions)
        step.rewards *= 2.0
        step.inputs.rl2s[:, 0] *= 2.0
        return step


def test_a_vector_environment_with_a_step_of_its_own_is_asked_for_it(make_rollout):
    def run(agent_type: type[Agent]) -> list[str]:
        rollout = make_rollout(agent_type)
        rollout.vector_env.__class__ = Doubled
        rollout.run(timesteps=30, sample=False)
        return files_of(rollout)

    assert run(Agent) == run(Later)


def test_a_step_that_was_replaced_on_a_vector_environment_is_called(make_rollout):
    rollout = make_rollout()
    steps, step = [], rollout.vector_env.step

    def noting(actions: Any) -> Any:
        steps.append(actions)
        return step(actions)

    rollout.vector_env.step = noting
    rollout.run(timesteps=7)
    assert len(steps) == 7


@pytest.mark.parametrize("place", ["agent", "encoder", "class of the encoder"])
def test_a_way_to_forget_that_was_replaced_is_asked(place, make_rollout, monkeypatch):
    def run(agent_type: type[Agent]) -> int:
        rollout = make_rollout(agent_type)
        encoder = rollout.agent.traj_encoder
        owner = {"agent": rollout.agent, "encoder": encoder, "class of the encoder": type(encoder)}[place]
        calls, reset_hidden_state = [], owner.reset_hidden_state

        def noting(*args: Any) -> Any:
            calls.append(1)
            return reset_hidden_state(*args)

        with monkeypatch.context() as patch:
            patch.setattr(owner, "reset_hidden_state", noting)
            rollout.run(timesteps=30, sample=False)
        return len(calls)

    assert run(Agent) == run(Later)


def test_after_a_run_that_broke_off_seeds_count_at_once(make_rollout):
    def run(agent_type: type[Agent]) -> list[str]:
        rollout = make_rollout(agent_type)

        def break_off() -> None:
            raise InterruptedError

        with pytest.raises(InterruptedError):
            rollout.run(timesteps=30, progress=every_third_step(break_off))
        assert rollout.recorder is not None
        first = files_of(rollout)
        torch.manual_seed(5)
        rollout.reset(seed=3)
        rollout.run(timesteps=10)
        return first + files_of(rollout)

    assert run(Agent) == run(Later)


def test_random_numbers_of_what_was_dropped_are_given_back_unless_others_drew(make_rollout):
    rollout = make_rollout()
    rollout.reset()
    lane = rollout._whole
    lane.agent.eval()
    torch.manual_seed(1)
    untouched = torch.random.get_rng_state()
    lane.begin(sample=True)
    assert lane.has_begun
    assert not torch.equal(torch.random.get_rng_state(), untouched)
    lane.drop_begun()
    assert torch.equal(torch.random.get_rng_state(), untouched)
    lane.begin(sample=True)
    torch.rand(1)
    drawn = torch.random.get_rng_state()
    lane.drop_begun()
    assert torch.equal(torch.random.get_rng_state(), drawn)


def test_actions_that_were_dropped_cannot_be_finished_nor_the_other_way_round(make_rollout):
    rollout = make_rollout()
    rollout.reset()
    lane, agent = rollout._whole, rollout.agent
    agent.eval()
    given = (*lane._views(rollout.inputs), agent.init_hidden_state(ROWS, CPU))
    dropped = agent.begin_actions(*given)
    dropped.drop()
    with pytest.raises(RuntimeError, match="it was dropped"):
        dropped.finish()
    finished = agent.begin_actions(*given)
    actions, _ = finished.finish()
    after = torch.random.get_rng_state()
    finished.drop()
    assert torch.equal(torch.random.get_rng_state(), after)
    assert actions.shape == (ROWS, 1, 1)


class Picky(FFTstepEncoder):
    """Not translated, and raises what a program would not."""

    def forward(self, obs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not obs["observation"].isfinite().all():
            raise RuntimeError("the encoder got NaN")
        embedded: torch.Tensor = super().forward(obs, *args, **kwargs)
        return embedded


def test_an_error_of_an_encoder_comes_after_the_step_was_recorded(make_rollout):
    class Broken(Dice):
        def step(self, action: int) -> Any:
            obs, *rest = super().step(action)
            return (obs * np.nan if self.life == 5 else obs, *rest)

    rollout = make_rollout(trouble={3: Broken()}, tstep_encoder=Picky)
    with pytest.raises(ValueError, match=r"environment 3 \('dice'\) is not finite"):
        rollout.run(timesteps=20)
    assert rollout.recorder.total_frames == 5 * ROWS


@pytest.mark.parametrize(
    ("timesteps", "remaining", "ends", "expected"),
    [
        (10, None, 25, True),
        (1, None, 0, False),
        (None, [1, 1], 1, True),
        (None, [1, 1], 2, False),
        (None, [5, 0], 2, True),
        (1, [5, 5], 0, False),
    ],
)
def test_whether_a_rollout_goes_on_is_known_before_its_episodes_end(timesteps, remaining, ends, expected):
    limits = Limits(timesteps, None, 2)
    if remaining is not None:
        limits.remaining = np.array(remaining)
    assert limits.outlast(ends) is expected
