"""Double buffering: rollouts whose halves step in turns are the same rollouts, and begin and end as others do."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from amago.agent import Agent
from amago.envs import AMAGO_ENV_LOG_PREFIX, AMAGOEnv, EpisodeStats, EpsilonGreedy
from amago.envs.recorder import TrajectoryRecorder, TrajectoryWriteError
from amago.envs.vector import EnvWorkerError, make_vector_env
from amago.experiment import Experiment, double_buffer
from amago.experiment.double_buffer import Choice, is_quicker
from amago.experiment.episodes import Limits
from amago.experiment.rollout import Rollout
from amago.hindsight import load_trajectory, parse_filename
from amago.nets.traj_encoders import GRUTrajEncoder, TformerTrajEncoder, TrajEncoder
from amago.nets.tstep_encoders import FFTstepEncoder

CPU = torch.device("cpu")
ROWS = 5


class Chance(gym.Env[np.ndarray, int]):
    """Episodes of random lengths under changing names; the observation tells row, episode, time and luck.

    `trouble` is called in the step of the number `at` of the row `row`.
    """

    def __init__(self, row: int, trouble: Callable[[], Any] | None = None, at: int = 0) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self.row, self.trouble, self.at = row, trouble, at
        self.episode, self.life = -1, 0

    @property
    def env_name(self) -> str:
        return f"task {self.episode % 2}"

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time, self.life = self.time + 1, self.life + 1
        obs = self._obs()
        if self.trouble is not None and self.life == self.at:
            obs = self.trouble() or obs * np.nan
        terminated, truncated = (self.np_random.random(2) < 0.08).tolist()
        info = {f"{AMAGO_ENV_LOG_PREFIX} Luck": float(obs[-1])} if self.time % 2 else {}
        return obs, float(action) + self.time, terminated, truncated, info

    def _obs(self) -> np.ndarray:
        return np.array([self.row, self.episode, self.time, self.np_random.random()], np.float32)


MakeRollout = Callable[..., Rollout]


@pytest.fixture
def make_rollout(small_nets: None, tmp_path: Path) -> Iterator[MakeRollout]:
    """Makes rollouts that record into a folder of the test's; all are alike but for what they are told."""
    made: list[Rollout] = []

    def make(
        folder: str = "files",
        double_buffer: bool | None = True,
        encoder: type[TrajEncoder] = GRUTrajEncoder,
        env_mode: str = "async",
        trouble: tuple[int, Callable[[], Any], int] | None = None,
        **options: Any,
    ) -> Rollout:
        def maker(row: int) -> Callable[[], AMAGOEnv]:
            fails = trouble is not None and trouble[0] == row
            return lambda: AMAGOEnv(Chance(row, *trouble[1:] if fails else ()))  # type: ignore[index]

        settings: dict[str, Any] = {"envs_per_worker": 2} if env_mode == "async" else {}
        envs = make_vector_env(
            [maker(row) for row in range(ROWS)],
            env_mode=env_mode,
            exploration_wrapper_type=EpsilonGreedy,
            seed=0,
            **settings,
        )
        torch.manual_seed(0)
        agent = Agent(
            obs_space=envs.observation_space,
            rl2_space=envs.rl2_space,
            action_space=envs.action_space,
            max_seq_len=6,
            tstep_encoder_type=FFTstepEncoder,
            traj_encoder_type=encoder,
        )
        with torch.no_grad():
            for parameter in agent.parameters():
                parameter.mul_(
                    4.0
                )  # or the policy would choose the same action whatever it sees and remembers
        recorder = TrajectoryRecorder(
            ROWS,
            save_to=tmp_path / folder,
            max_seq_len=2,
            rng=np.random.default_rng(0),
            **{"save_len": 8, **options},
        )
        made.append(Rollout(agent, envs, device=CPU, recorder=recorder, double_buffer=double_buffer))
        return made[-1]

    yield make
    for rollout in made:
        rollout.vector_env.close()
    assert multiprocessing.active_children() == []


def files_of(rollout: Rollout, folder: Path) -> list[str]:
    """What each file says, in an order of their contents; writes what is unfinished first."""
    assert rollout.recorder is not None
    rollout.recorder.cut()
    rollout.recorder.flush()
    assert rollout.recorder.unsaved_frames == 0
    return sorted(
        repr(
            (
                parse_filename(path).env_name,
                {k: a.tolist() for k, a in load_trajectory(path).to_dict().items()},
            )
        )
        for path in folder.iterdir()
    )


def everything_about(rollout: Rollout, folder: Path) -> dict[str, Any]:
    stats, recorder = rollout.stats, rollout.recorder
    assert recorder is not None
    return {
        "files": files_of(rollout, folder),
        "episodes": (stats.returns, stats.lengths, stats.specials),
        "steps": rollout.steps_by_env_name,
        "recorder": (recorder.total_frames, recorder.frames_by_env_name, recorder.saved_files),
    }


def shorten_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(double_buffer, "ROUNDS", 2)
    monkeypatch.setattr(double_buffer, "WARM_UP", 1)
    monkeypatch.setattr(double_buffer, "MEASURED", 4)


@pytest.mark.parametrize("encoder", [GRUTrajEncoder, TformerTrajEncoder])
@pytest.mark.parametrize("limits", [{"timesteps": 17}, {"episodes": 7}, {"timesteps": 30, "episodes": 11}])
def test_whichever_way_it_steps_a_rollout_is_the_same(encoder, limits, make_rollout, tmp_path, monkeypatch):
    shorten_trials(monkeypatch)
    found = {}
    for wanted in (False, True, None):
        rollout = make_rollout(str(wanted), wanted, encoder)
        heard: list[int] = []
        for _ in range(4):
            rollout.run(sample=False, progress=heard.append, **limits)
        found[wanted] = everything_about(rollout, tmp_path / str(wanted))
        found[wanted]["heard"] = heard
        assert sum(heard) == rollout.recorder.total_frames
    assert found[True] == found[False]
    assert found[None] == found[False]


@pytest.mark.parametrize("encoder", [GRUTrajEncoder, TformerTrajEncoder])
def test_the_hidden_state_of_all_actors_can_be_read_and_replaced_in_between(encoder, make_rollout):
    plain, halves = (make_rollout(str(wanted), wanted, encoder) for wanted in (False, True))
    for rollout in (plain, halves):
        rollout.run(timesteps=5, sample=False)
    memories = [
        rollout.hidden_state if encoder is GRUTrajEncoder else rollout.hidden_state.key_cache.data
        for rollout in (plain, halves)
    ]
    torch.testing.assert_close(memories[0], memories[1])
    halves.hidden_state = halves.agent.init_hidden_state(ROWS, CPU)
    plain.hidden_state = plain.agent.init_hidden_state(ROWS, CPU)
    for rollout in (plain, halves):
        rollout.run(timesteps=5, sample=False)
    assert halves.stats.returns == plain.stats.returns
    np.testing.assert_array_equal(halves.inputs.rl2s, plain.inputs.rl2s)


def test_reading_the_hidden_state_while_a_half_is_on_its_way_changes_nothing(make_rollout, tmp_path):
    read, unread = (make_rollout(name, True) for name in ("read", "unread"))
    read.run(timesteps=12, sample=False, progress=lambda _: read.hidden_state)
    unread.run(timesteps=12, sample=False)
    torch.testing.assert_close(read.hidden_state, unread.hidden_state, rtol=0, atol=0)
    assert files_of(read, tmp_path / "read") == files_of(unread, tmp_path / "unread")


def note_acting(rollout: Rollout) -> list[tuple[int, int]]:
    """For each call of the agent from now on: for how many actors, and how many parts are in flight then."""
    agent, envs = rollout.agent, rollout.vector_env
    acted: list[tuple[int, int]] = []
    ask = agent.get_actions

    def get_actions(**inputs: Any) -> Any:
        acted.append((len(inputs["rl2s"]), len(envs._in_flight)))
        return ask(**inputs)

    agent.get_actions = get_actions
    return acted


def test_the_agent_acts_for_one_half_while_the_other_steps(make_rollout):
    rollout = make_rollout()
    rollout.run(timesteps=1)
    acted = note_acting(rollout)
    rollout.run(timesteps=3)
    assert acted == [(2, 0), (3, 1), (2, 1), (3, 1), (2, 1), (3, 1)]
    assert not rollout.vector_env._in_flight


def test_the_fault_of_one_hidden_state_for_both_halves_is_noticed(make_rollout, tmp_path):
    files = []
    for spoil in (False, True):
        rollout = make_rollout(str(spoil))
        rollout.run(timesteps=10, sample=False)
        if spoil:
            first, second = rollout._halves.lanes
            first.hidden_state = second.hidden_state[:, :2] + 5.0
        rollout.run(timesteps=30, sample=False)
        files.append(files_of(rollout, tmp_path / str(spoil)))
    assert files[0] != files[1]


def test_rendered_steps_are_taken_together(make_rollout, tmp_path):
    rollout, plain = make_rollout("halves"), make_rollout("plain", False)
    for each in (rollout, plain):
        for envs_render in (False, True, False):
            each.vector_env.render = lambda: None
            acted = note_acting(each)
            each.run(timesteps=9, sample=False, render=envs_render)
            assert not envs_render or {rows for rows, _ in acted} == {ROWS}
    assert everything_about(rollout, tmp_path / "halves") == everything_about(plain, tmp_path / "plain")


def test_a_reset_begins_new_episodes_in_both_halves(make_rollout):
    rollout = make_rollout()
    rollout.run(timesteps=5)
    rollout.stats = EpisodeStats()
    rollout.reset()
    assert rollout.inputs.time_idxs.tolist() == [0] * ROWS
    assert rollout.hidden_state is None or not rollout.hidden_state.any()
    rollout.run(timesteps=1)
    assert rollout.stats.episodes == sum(np.asarray(rollout.inputs.time_idxs) == 0)


# What goes wrong


def pieces_are_whole(rollout: Rollout, folder: Path) -> None:
    """No transition twice, none missing inside of a piece, and none of two episodes in one."""
    assert rollout.recorder is not None
    rollout.recorder.cut()
    rollout.recorder.flush()
    found: set[tuple[float, ...]] = set()
    for path in folder.iterdir():
        obs = load_trajectory(path).obs["observation"]
        assert (np.diff(obs[:, 2]) == 1).all()
        assert len(np.unique(obs[:, :2], axis=0)) == 1
        transitions = {tuple(row.tolist()) for row in obs[1:]}
        assert not transitions & found
        found |= transitions
    assert len(found) == rollout.recorder.total_frames


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("count", range(4))
def test_an_interrupt_between_any_two_calls_loses_nothing_that_was_recorded(
    part, count, make_rollout, tmp_path
):
    rollout = make_rollout()
    rollout.run(timesteps=4)
    envs, calls = rollout.vector_env, 0
    for name in ("send", "receive"):
        call = getattr(envs, name)

        def interrupted(number: int, *args: Any, call: Any = call) -> Any:
            nonlocal calls
            result = call(number, *args)
            if number == part:
                calls += 1
                if calls == count + 1:
                    raise KeyboardInterrupt
            return result

        setattr(envs, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        rollout.run(timesteps=50)
    rollout.run(timesteps=20)
    pieces_are_whole(rollout, tmp_path / "files")


def test_after_an_error_of_a_caller_the_next_run_begins_new_episodes(make_rollout, tmp_path):
    rollout = make_rollout()

    def complain(_: int) -> None:
        if rollout.recorder.total_frames >= 7 * ROWS:
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        rollout.run(timesteps=50, progress=complain)
    assert not rollout.started
    rollout.run(timesteps=1)
    assert set(rollout.inputs.time_idxs.tolist()) <= {0, 1}
    pieces_are_whole(rollout, tmp_path / "files")


@pytest.mark.parametrize("row", [0, ROWS - 1])
@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "killed by SIGKILL"),
    ],
)
def test_a_worker_that_fails_is_reported(row, trouble, message, make_rollout, tmp_path):
    rollout = make_rollout(trouble=(row, trouble, 6))
    with pytest.raises(EnvWorkerError, match=message):
        rollout.run(timesteps=50)
    assert multiprocessing.active_children() == []
    pieces_are_whole(rollout, tmp_path / "files")
    with pytest.raises(RuntimeError, match="closed"):
        rollout.run(timesteps=1)


def test_a_worker_killed_from_outside_is_reported(make_rollout):
    rollout = make_rollout()
    before = set(multiprocessing.active_children())
    assert before

    def kill_one(_: int) -> None:
        os.kill(max(worker.pid for worker in before), signal.SIGKILL)

    with pytest.raises(EnvWorkerError, match="SIGKILL"):
        rollout.run(timesteps=50, progress=kill_one)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("row", [0, ROWS - 1])
def test_an_observation_that_is_not_finite_is_named_by_its_row_among_all(row, make_rollout):
    rollout = make_rollout(trouble=(row, lambda: None, 6))
    with pytest.raises(
        ValueError, match=rf"'observation' of environment {row} \('task [01]'\) is not finite"
    ):
        rollout.run(timesteps=50)


@pytest.mark.parametrize("failing_add", range(1, 6))
def test_a_failed_write_waits_until_all_actors_have_taken_equally_many_steps(
    failing_add, make_rollout, tmp_path, monkeypatch
):
    rollout = make_rollout()
    recorder, adds = rollout.recorder, 0
    add = recorder.add

    def failing(*args: Any) -> None:
        nonlocal adds
        add(*args)
        adds += 1
        if adds == failing_add:
            raise TrajectoryWriteError("the disk is full")

    monkeypatch.setattr(recorder, "add", failing)
    with pytest.raises(TrajectoryWriteError):
        rollout.run(timesteps=50, sample=False)
    assert rollout.started
    assert not rollout.vector_env._in_flight
    steps, rest = divmod(recorder.total_frames, ROWS)
    assert rest == 0
    assert steps <= (failing_add + 1) // 2 + 1
    rollout.run(timesteps=40 - steps, sample=False)
    plain = make_rollout("plain", False)
    plain.run(timesteps=40, sample=False)
    assert files_of(rollout, tmp_path / "files") == files_of(plain, tmp_path / "plain")


# The choice


class Clock:
    """Tells a time that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("overlapped", "chosen"), [(0.9, True), (0.96, False), (1.0, False), (1.5, False)])
def test_the_way_that_was_clearly_quicker_is_kept(overlapped, chosen):
    clock = Clock()
    choice = Choice(None, clock)
    ways = []
    while choice.undecided:
        clock.now += 1000.0  # between runs
        choice.begin()
        for _ in range(10):
            ways.append(choice.overlapped)
            clock.now += overlapped if choice.overlapped else 1.0
            if choice.undecided:
                choice.note()
    trial = double_buffer.WARM_UP + double_buffer.MEASURED
    one_round = [False] * trial + [True] * trial
    assert ways[: 2 * trial * double_buffer.ROUNDS] == one_round * double_buffer.ROUNDS
    assert choice.overlapped is chosen


def test_a_few_steps_that_take_long_do_not_decide():
    plain = [1.0] * 60
    assert is_quicker([0.8] * 50 + [100.0] * 10, plain)
    assert not is_quicker([1.1] * 50 + [0.0] * 10, plain)


def test_the_first_steps_of_a_trial_do_not_decide():
    clock = Clock()
    choice = Choice(None, clock)
    half = double_buffer.MEASURED // 2
    plain = [1.0] * (double_buffer.WARM_UP + double_buffer.MEASURED)
    overlapped = [1.1] * double_buffer.WARM_UP + [0.9] * (half + 1) + [1.1] * (half - 1)
    for seconds in (*plain, *overlapped) * double_buffer.ROUNDS:
        clock.now += seconds
        choice.note()
    assert choice.overlapped
    assert not choice.undecided


def test_what_was_told_is_not_tried():
    for wanted in (True, False):
        choice = Choice(wanted)
        assert (choice.overlapped, choice.undecided) == (wanted, False)


@pytest.mark.parametrize("quicker", [True, False])
def test_a_rollout_tries_both_ways_and_keeps_one(quicker, make_rollout, monkeypatch):
    shorten_trials(monkeypatch)
    monkeypatch.setattr(double_buffer, "is_quicker", lambda overlapped, plain: quicker)
    rollout = make_rollout(double_buffer=None)
    acted = note_acting(rollout)
    rollout.run(timesteps=10)
    rollout.run(timesteps=30)
    trial = 1 + 4
    looked_at = [1, 2, 3, ROWS]  # how the memory divides
    kept = [2, 3] if quicker else [ROWS]
    first, second = [ROWS] * trial + looked_at + [2, 3] * trial, [ROWS] * trial + [2, 3] * trial
    expected = first + second + kept * (40 - 4 * trial)
    assert [rows for rows, _ in acted] == expected
    assert rollout.double_buffered is quicker


@pytest.mark.parametrize("wanted", [True, None])
def test_environments_of_this_process_are_stepped_together(wanted, make_rollout):
    rollout = make_rollout(double_buffer=wanted, env_mode="sync")
    rollout.run(timesteps=3)
    assert not rollout.double_buffered
    assert not rollout._choice.undecided


class Foreign:
    """A hidden state that tells nothing of itself."""


class ForeignEncoder(GRUTrajEncoder):
    """Remembers in an object that cannot be divided."""

    def forward(self, seq: Any, time_idxs: Any, hidden_state: Any = None, log_dict: Any = None) -> Any:
        memory = Foreign()
        out, memory.tensor = super().forward(seq, time_idxs, getattr(hidden_state, "tensor", None))
        return out, memory

    def reset_hidden_state(self, hidden_state: Any, dones: Any) -> Any:
        return hidden_state


def test_an_agent_whose_memory_cannot_be_divided_acts_for_all_at_once(make_rollout, monkeypatch):
    shorten_trials(monkeypatch)
    rollout = make_rollout(double_buffer=None, encoder=ForeignEncoder)
    rollout.run(timesteps=40)
    assert not rollout.double_buffered
    assert rollout.recorder.total_frames == 40 * ROWS
    with pytest.raises(TypeError, match="hidden_tensors"):
        make_rollout("told", double_buffer=True, encoder=ForeignEncoder).run(timesteps=1)


class OfSoManyRows(GRUTrajEncoder):
    """Acts for all actors at once and for no other number of them."""

    def forward(self, seq: Any, time_idxs: Any, hidden_state: Any = None, log_dict: Any = None) -> Any:
        assert len(seq) == ROWS
        return super().forward(seq, time_idxs, hidden_state)


def test_an_agent_that_acts_for_no_fewer_rows_acts_for_all_at_once(make_rollout, monkeypatch):
    shorten_trials(monkeypatch)
    rollout = make_rollout(double_buffer=None, encoder=OfSoManyRows)
    rollout.run(timesteps=40)
    assert not rollout.double_buffered
    assert rollout.recorder.total_frames == 40 * ROWS
    with pytest.raises(AssertionError):
        make_rollout("told", double_buffer=True, encoder=OfSoManyRows).run(timesteps=1)


@pytest.mark.parametrize(
    ("timesteps", "remaining", "expected"),
    [
        (5, None, False),
        (1, None, True),
        (None, [0, 0, 1, 0], True),
        (None, [0, 0, 2, 1], False),
        (None, [1, 0, 1, 1], False),
    ],
)
def test_a_half_waits_for_the_other_where_the_rollout_may_be_over(timesteps, remaining, expected):
    limits = Limits(timesteps, None if remaining is None else sum(remaining), 4)
    if remaining is not None:
        limits.remaining = np.array(remaining)
    assert limits.next_may_be_last(slice(2, 4)) is expected


# Experiments


def run(experiment: Experiment) -> dict[str, float]:
    experiment.start()
    experiment.learn()
    return experiment.evaluate_test(experiment.make_val_env, timesteps=14)


def test_a_seeded_experiment_with_double_buffering_repeats_itself(make_experiment):
    results = []
    for folder in ("first", "second"):
        experiment = make_experiment(
            folder, env_mode="async", envs_per_worker=1, double_buffer=True, traj_encoder_type=GRUTrajEncoder
        )
        metrics = run(experiment)
        assert experiment._train_rollout.double_buffered
        assert experiment.counters.env_steps == 2 * 20 * 3
        weights = [p.detach().clone() for p in experiment.policy.parameters()]
        results.append((metrics, weights))
        experiment.close()
    assert results[0][0] == results[1][0]
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))


@pytest.mark.parametrize(
    ("seed", "wanted", "expected"),
    [(7, None, False), (7, True, True), (None, None, None), (None, False, False)],
)
def test_with_a_seed_nothing_depends_on_the_clock(seed, wanted, expected, make_experiment):
    assert make_experiment(seed=seed, double_buffer=wanted)._double_buffer is expected


def test_another_value_is_refused(make_experiment):
    with pytest.raises(TypeError, match="double_buffer is 'auto', must be True, False or None"):
        make_experiment(double_buffer="auto")
