"""The vector environments of a run: for training, with exploration, and for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from amago.envs.vector import SplitVectorEnv, VectorEnv, make_split_vector_env, make_vector_env
from amago.experiment.config import ExperimentConfig
from amago.experiment.random_streams import RandomStreams

if TYPE_CHECKING:
    from amago.envs import AMAGOEnv


def make_train_envs(config: ExperimentConfig, streams: RandomStreams) -> VectorEnv | SplitVectorEnv:
    """Creates the training environments, in two halves if `double_buffer` is set.

    Raises:
        ValueError: they do not have `parallel_actors` rows.
    """
    options = _options(config, streams, role="env")
    options["exploration_wrapper_type"] = config.exploration_wrapper_type
    makers = config.env_makers(config.make_train_env)
    envs: VectorEnv | SplitVectorEnv
    if config.double_buffer:
        envs = make_split_vector_env(makers, **options)
    else:
        envs = make_vector_env(makers, env_mode=config.env_mode, **options)
    _require_one_row_per_actor(config, envs)
    return envs


def make_eval_envs(
    config: ExperimentConfig,
    makers: Callable[[], AMAGOEnv] | Sequence[Callable[[], AMAGOEnv]],
    streams: RandomStreams,
    *,
    only_one: bool = False,
) -> VectorEnv:
    """Creates environments for evaluation, without exploration.

    Args:
        config: The experiment.
        makers: A function that creates an environment, or a list with one function per actor.
        streams: Random streams of this process.
        only_one: Create a single environment, for its spaces.

    Raises:
        ValueError: they do not have `parallel_actors` rows.
    """
    makers = config.env_makers(makers)
    if only_one:
        makers = makers[:1]
    envs = make_vector_env(makers, env_mode=config.env_mode, **_options(config, streams, role="eval"))
    if not only_one:
        _require_one_row_per_actor(config, envs)
    return envs


def _options(config: ExperimentConfig, streams: RandomStreams, role: str) -> dict[str, Any]:
    return {
        "seed": streams.seed,
        "rank": streams.rank,
        "role": role,
        "mp_context": config.async_env_mp_context,
        "envs_per_worker": config.envs_per_worker,
        "env_timeout": config.env_timeout,
    }


def _require_one_row_per_actor(config: ExperimentConfig, envs: VectorEnv | SplitVectorEnv) -> None:
    """Closes the environments and raises a ValueError unless they have `parallel_actors` rows."""
    actors, rows = config.parallel_actors, envs.num_envs
    if rows == actors:
        return
    envs.close()
    if config.env_mode != "already_vectorized":
        raise ValueError(
            f"env_mode={config.env_mode!r} steps parallel_actors={actors} environments of one row each, but "
            f"theirs step {rows} rows together: for one environment that steps a batch by itself use "
            "env_mode='already_vectorized' and parallel_actors = batched_envs of its AMAGOEnv"
        )
    if rows == 1:
        raise ValueError(
            f"env_mode='already_vectorized' is for one environment that steps parallel_actors={actors} rows "
            "by itself, but this one steps a single row: use env_mode='sync' or 'async', or set batched_envs "
            "of its AMAGOEnv if it does step a batch"
        )
    raise ValueError(
        f"parallel_actors is {actors}, but the environment steps {rows} rows: set parallel_actors={rows}, or "
        "change batched_envs of the AMAGOEnv"
    )
