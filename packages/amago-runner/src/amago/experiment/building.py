"""Builds what `Experiment.start` needs: environments, recorder, dataset, trackers, all from its arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import VectorEnv, make_vector_env
from amago.loading import DiskTrajDataset, RLDataset
from amago.nets.specs import as_spec
from amago.tracking import JsonlTracker, Tracker, WandbTracker
from amago.utils import gin_as_wandb_config

if TYPE_CHECKING:
    from amago.envs import AMAGOEnv
    from amago.experiment.config import ExperimentArguments
    from amago.experiment.randomness import RandomStreams

DEFAULT_BUFFER_SIZE = 20_000


class Spaces(NamedTuple):
    """The spaces of one actor, as AMAGOEnv has them."""

    observation: Any
    rl2: Any
    action: Any

    def require_same(self, other: Spaces) -> None:
        """Raises ValueError unless an agent for these spaces can act in the other ones."""
        for name in ("observation", "action"):
            if _layout(getattr(self, name)) != _layout(getattr(other, name)):
                raise ValueError(
                    f"the environments have the {name} space {getattr(other, name)}, and the agent was built for "
                    f"{getattr(self, name)}: make environments like those that it was trained in"
                )

    def as_json(self) -> dict[str, Any]:
        """Specs of the three, for run.json."""
        spaces = {"observation": self.observation, "rl2": self.rl2, "action": self.action}
        return {name: _spec_as_json(as_spec(space)) for name, space in spaces.items()}


def _layout(space: Any) -> Any:
    """What decides the shapes of networks: neither bounds nor dtypes."""
    spec = as_spec(space)
    if hasattr(spec, "arrays"):
        return {key: tuple(array.shape) for key, array in spec.arrays.items()}
    return spec.kind, tuple(spec.sizes)


def _spec_as_json(spec: Any) -> Any:
    if hasattr(spec, "arrays"):
        return {key: {"shape": list(array.shape), "dtype": array.dtype} for key, array in spec.arrays.items()}
    content = {"kind": spec.kind, "sizes": list(spec.sizes)}
    for name in ("low", "high"):
        bound = getattr(spec, name)
        content[name] = bound if bound is not None and math.isfinite(bound) else None
    return content


def build_environments(
    arguments: ExperimentArguments,
    makers: Callable[[], AMAGOEnv] | Sequence[Callable[[], AMAGOEnv]],
    streams: RandomStreams,
    *,
    training: bool,
) -> VectorEnv:
    """A vector environment; only training ones explore.

    Raises:
        ValueError: an environment that is vectorized already has another number of rows than `parallel_actors`.
    """
    vector_env = make_vector_env(
        arguments.env_makers(makers),
        env_mode=arguments.env_mode,
        exploration_wrapper_type=arguments.exploration_wrapper_type if training else None,
        seed=streams.seed,
        rank=streams.rank,
        role="env" if training else "eval",
        mp_context=arguments.async_env_mp_context,
        envs_per_worker=arguments.envs_per_worker,
        env_timeout=arguments.env_timeout,
    )
    if vector_env.num_envs != arguments.parallel_actors:
        rows = vector_env.num_envs
        vector_env.close()
        raise ValueError(
            f"parallel_actors is {arguments.parallel_actors}, but the environments have {rows} rows: "
            f"set parallel_actors={rows}, or change batched_envs of the AMAGOEnv"
        )
    return vector_env


def spaces_of(source: VectorEnv | AMAGOEnv) -> Spaces:
    """The spaces of a vector environment or of a single one."""
    return Spaces(source.observation_space, source.rl2_space, source.action_space)


def spaces_without_vector_env(arguments: ExperimentArguments) -> Spaces:
    """The spaces from one environment that is made for the purpose and closed; for learners."""
    env = arguments.env_makers(arguments.make_train_env)[0]()
    try:
        return spaces_of(env)
    finally:
        env.close()


def build_recorder(
    arguments: ExperimentArguments,
    streams: RandomStreams,
    save_to: Path | None,
    *,
    writer_id: str | None = None,
    first_number: int = 0,
) -> TrajectoryRecorder | None:
    """Writes the training trajectories; None if the dataset keeps none.

    Args:
        writer_id: see `TrajectoryRecorder`; None draws one.
        first_number: see there.
    """
    if save_to is None:
        return None
    return TrajectoryRecorder(
        arguments.parallel_actors,
        save_to=Path(save_to),
        save_as=arguments.save_trajs_as,
        save_len=arguments.traj_save_len,
        max_seq_len=arguments.max_seq_len,
        stagger=arguments.stagger_traj_file_lengths,
        rng=streams.recorder(),
        writer_id=writer_id,
        first_number=first_number,
        on_written=None if arguments.dataset is None else arguments.dataset.note_written,
    )


def build_dataset(arguments: ExperimentArguments) -> RLDataset:
    """The dataset that was given, or a DiskTrajDataset from `dset_root`, `dset_name`, `dset_max_size`."""
    if arguments.dataset is not None:
        return arguments.dataset
    assert arguments.dset_root is not None
    assert arguments.dset_name is not None
    return DiskTrajDataset(
        dset_root=Path(arguments.dset_root).expanduser(),
        dset_name=arguments.dset_name,
        dset_max_size=arguments.dset_max_size or DEFAULT_BUFFER_SIZE,
    )


def build_trackers(arguments: ExperimentArguments, wandb_run_id: str | None) -> list[Tracker]:
    """metrics.jsonl always, wandb if asked for; `wandb_run_id` continues a run there."""
    trackers: list[Tracker] = [JsonlTracker(arguments.run_dir / "metrics.jsonl")]
    if arguments.log_to_wandb:
        trackers.append(
            WandbTracker(
                project=arguments.wandb_project,
                entity=arguments.wandb_entity,
                group=arguments.wandb_group_name,
                name=arguments.run_name,
                config=gin_as_wandb_config(),
                log_dir=arguments.run_dir / "wandb_logs",
                run_id=wandb_run_id,
            )
        )
    return trackers
