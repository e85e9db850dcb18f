"""What an Experiment measures: validation, tests, and the metrics of the episodes that finish."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from amago.envs.metrics import EpisodeStats, ReturnHistory, SpecialMetricHistory
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import VectorEnv
from amago.experiment.building import build_environments, build_recorder, spaces_of
from amago.experiment.checkpointing import CheckpointedExperiment
from amago.experiment.evaluate import evaluate
from amago.experiment.rollout import Rollout
from amago.utils import amago_warning

if TYPE_CHECKING:
    from amago.envs import AMAGOEnv
    from amago.experiment.experiment import Experiment

ACROSS_ALL_NAMES = "Average Total Return (Across All Env Names)"


class EvaluatedExperiment(CheckpointedExperiment):
    """Evaluates the agent, without exploration, and reports on rollouts."""

    def evaluate_val(self) -> dict[str, float]:
        """Evaluates for `val_timesteps_per_epoch` steps per actor and logs under `val/`; returns the metrics."""
        self._require_started("evaluate_val()")
        if self._val_envs is None:
            self._val_envs = build_environments(self, self.make_val_env, self._streams, training=False)
        steps = self.val_timesteps_per_epoch
        stats = self._evaluate("val", self._val_envs, self.counters.epoch, timesteps=steps)
        return self._report("val", stats)

    def evaluate_test(
        self,
        make_test_env: Callable[[], AMAGOEnv] | Sequence[Callable[[], AMAGOEnv]],
        timesteps: int | None = None,
        render: bool = False,
        save_trajs_to: str | Path | None = None,
        episodes: int | None = None,
    ) -> dict[str, float]:
        """Evaluates in new environments, without exploration, and logs under `test/`.

        Args:
            make_test_env: makes one environment, or a list with one function per actor.
            timesteps: most steps per actor. None: as many as `episodes` need; without `episodes`,
                `val_timesteps_per_epoch`.
            render: render the environments after every step.
            save_trajs_to: folder for the whole episodes that finish, in the format of `save_trajs_as`.
            episodes: stop once so many episodes are counted. Each actor contributes the same number, since the
                first ones to finish would tend to be the short ones.

        Returns:
            The metrics by name, without those that no finished episode backs; a warning says so if none did.

        Raises:
            ValueError: a count below 1, or environments with other spaces than the agent was built for.
        """
        self._require_started("evaluate_test()")
        for name, count in (("timesteps", timesteps), ("episodes", episodes)):
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}, must be at least 1, or None")
        if timesteps is None and episodes is None:
            timesteps = self.val_timesteps_per_epoch
        envs = build_environments(self, make_test_env, self._streams, training=False)
        try:
            self._spaces.require_same(spaces_of(envs))
        except ValueError:
            envs.close()
            raise
        recorder = None
        if save_trajs_to is not None:
            recorder = TrajectoryRecorder(
                envs.num_envs,
                save_to=Path(save_trajs_to).expanduser(),
                save_as=self.save_trajs_as,
                save_len=math.inf,
                max_seq_len=self.max_seq_len,
                stagger=False,
                rng=self._streams.recorder(),
            )
        try:
            stats = self._evaluate(
                "test",
                envs,
                self._streams.next_test(),
                timesteps=timesteps,
                episodes=None if episodes is None else math.ceil(episodes / self.processes.count),
                render=render,
                recorder=recorder,
            )
        finally:
            if recorder is not None:
                recorder.close()
            envs.close()
        metrics = self._report("test", stats)
        if not metrics:
            amago_warning(
                f"no episode finished within {timesteps} steps per actor, so there is nothing to report: give "
                "evaluate_test more timesteps, or a number of episodes and no limit"
            )
        return metrics

    def interact(
        self,
        envs: VectorEnv,
        timesteps: int | None,
        hidden_state: Any = None,
        render: bool = False,
        save_on_done: bool = False,
        episodes: int | None = None,
        sample: bool = True,
    ) -> tuple[Any, EpisodeStats]:
        """Acts in environments of the caller's, from a reset.

        Args:
            envs: a vector environment, see `amago.envs.vector.make_vector_env`.
            timesteps: most steps per actor; None for no limit.
            hidden_state: to begin with; None for a blank one.
            render: render after every step.
            save_on_done: write the episodes that finish to where the dataset keeps new trajectories.
            episodes: episodes to count, evenly over the actors; None for no limit.
            sample: draw actions from the policy; False takes its mode.

        Returns:
            The hidden state after the last step, and the finished episodes.
        """
        self._require_started("interact()")
        assert self.dataset is not None
        recorder = (
            build_recorder(self, self._streams, self.dataset.save_new_trajs_to) if save_on_done else None
        )
        rollout = Rollout(
            self._agent,
            envs,
            device=self.DEVICE,
            autocast=self._autocast,
            recorder=recorder,
        )
        rollout.reset()
        if hidden_state is not None:
            rollout.hidden_state = hidden_state
        try:
            with self._streams.evaluating(self._streams.next_test()):
                rollout.run(timesteps=timesteps, episodes=episodes, sample=sample, render=render)
        finally:
            if recorder is not None:
                recorder.close()
        return rollout.hidden_state, rollout.stats

    def _evaluate(
        self, section: str, envs: VectorEnv, index: int, *, timesteps: int | None, **options: Any
    ) -> EpisodeStats:
        total = None if timesteps is None else timesteps * self.parallel_actors * self.processes.count
        self._notify("on_rollout_start", section, total)
        with self._streams.evaluating(index):
            return evaluate(
                self._agent,
                envs,
                device=self.DEVICE,
                autocast=self._autocast,
                seed=self._streams.eval_seed(index),
                timesteps=timesteps,
                sample=self.sample_actions_val,
                progress=self._progress(section),
                **options,
            )

    def policy_metrics(
        self, returns: Iterable[ReturnHistory], specials: Iterable[SpecialMetricHistory]
    ) -> dict[str, float]:
        """The metrics of episodes that were gathered as histories."""
        stats = EpisodeStats()
        for history in returns:
            for name, scores in history.data.items():
                stats.returns.setdefault(name, []).extend(scores)
        for special in specials:
            for name, metrics in special.data.items():
                for metric, values in metrics.items():
                    stats.specials.setdefault(name, {}).setdefault(metric, []).extend(values)
        return stats.to_metrics()

    def _report(self, section: str, stats: EpisodeStats) -> dict[str, float]:
        """Metrics over the episodes of all processes; logged unless no episode finished."""
        together = EpisodeStats()
        for each in self.processes.gather(stats):
            together.merge(each)
        metrics = together.to_metrics()
        self._notify("on_rollout_end", section, metrics)
        self._latest_return[section] = metrics.get(ACROSS_ALL_NAMES, math.nan)
        if metrics:
            self.log(metrics, section)
        return metrics

    def _progress(self, section: str) -> Callable[[int], None]:
        """What a rollout calls after every step: counts, and tells the callbacks."""
        experiment = cast("Experiment", self)
        listeners = [callback.on_rollout_step for callback in self.callbacks]
        counters, processes, training = self.counters, self.processes.count, section == "train"

        def progress(env_steps: int) -> None:
            env_steps *= processes
            if training:
                counters.env_steps += env_steps
            for listener in listeners:
                listener(experiment, section, env_steps)

        return progress
