"""The environments of Minari datasets, in which policies trained on the data are evaluated.

`OfflineDataset.from_minari` of `amago.loading` (in amago-runner) trains on the data itself.
Tested with minari 0.5.4.
"""

from typing import Any

import gymnasium as gym
import numpy as np

from amago.envs.actions import make_action_codec
from amago.envs.amago_env import AMAGOEnv
from amago.envs.arguments import check_arguments
from amago.envs.builtin.optional import optional_import
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX
from amago.envs.observations import ObservationMapper

PREFIX = "minari/"
SCORE_KEY = f"{AMAGO_ENV_LOG_PREFIX} Normalized Return"


class MinariAMAGOEnv(AMAGOEnv):
    """The environment that a Minari dataset was collected in, or the one it names for evaluation.

    Observations, actions, rewards and ends are the environment's own. Where the dataset states reference scores,
    `info` has the metric "Normalized Return" at the end of an episode: 0 for the return of a random policy and 1
    for that of an expert.

    Args:
        dataset: a `minari.MinariDataset`, or its id, such as "D4RL/pointmaze/umaze-v2", with or without "minari/"
            in front.
        eval_env: take the environment for evaluation, if the dataset names one.
        download: download the dataset if it is not on this machine.
        env_name: name for logs; None uses the id of the dataset, with "_" for "/".

    Raises:
        ImportError: if minari is not installed.
        FileNotFoundError: if the dataset is not on this machine and `download` is False.
        ConnectionError: if it cannot be downloaded.
        ValueError: if the dataset names no environment, or one with other spaces than its own.
    """

    @check_arguments
    def __init__(
        self, dataset: Any, eval_env: bool = True, *, download: bool = False, env_name: str | None = None
    ) -> None:
        minari = optional_import("minari", extra="minari")
        if isinstance(dataset, str):
            dataset = _load(minari, dataset.removeprefix(PREFIX), download)
        dataset_id = dataset.spec.dataset_id
        env = dataset.recover_environment(eval_env=eval_env)
        _check_spaces(dataset, env)
        super().__init__(env, env_name or dataset_id.replace("/", "_"))
        scores = dataset.storage.metadata
        self.ref_min_score: float | None = scores.get("ref_min_score")
        self.ref_max_score: float | None = scores.get("ref_max_score")
        self._return = 0.0

    def normalized_return(self, total_return: float) -> float | None:
        """(return - minimum) / (maximum - minimum) of the reference scores; None if the dataset states none."""
        if self.ref_min_score is None or self.ref_max_score is None:
            return None
        return (total_return - self.ref_min_score) / (self.ref_max_score - self.ref_min_score)

    def inner_reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode."""
        self._return = 0.0
        return super().inner_reset(seed=seed, options=options)

    def inner_step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step; the last one reports the normalized return."""
        observation, reward, terminated, truncated, info = super().inner_step(action)
        self._return += float(np.asarray(reward).item())
        if terminated or truncated:
            score = self.normalized_return(self._return)
            if score is not None:
                info = {**info, SCORE_KEY: score}
        return observation, reward, terminated, truncated, info


def _load(minari: Any, dataset_id: str, download: bool) -> Any:
    if not download:
        return minari.load_dataset(dataset_id)
    try:
        return minari.load_dataset(dataset_id, download=True)
    except Exception as error:  # of the HTTP library that minari uses
        raise ConnectionError(
            f"the dataset {dataset_id} is not on this machine and cannot be downloaded ({error}): run "
            f"`minari download {dataset_id}` where there is a network, and copy ~/.minari/datasets/{dataset_id}"
        ) from error


def _check_spaces(dataset: Any, env: gym.Env[Any, Any]) -> None:
    """Raises ValueError unless policies trained on the data can act in the environment.

    Bounds and precision may differ between versions of an environment.
    """
    for kind, summary in (("observation_space", _observation_shapes), ("action_space", _action_kind)):
        recorded, found = getattr(dataset, kind), getattr(env, kind)
        if summary(recorded) != summary(found):
            raise ValueError(
                f"the {kind} of {dataset.spec.dataset_id} is {recorded}, and that of its environment {found}: a "
                "policy of one cannot act in the other"
            )


def _observation_shapes(space: gym.Space[Any]) -> Any:
    """Shapes of the arrays that a policy observes, by key."""
    return {key: box.shape for key, box in ObservationMapper(space, batched_envs=1).space.items()}


def _action_kind(space: gym.Space[Any]) -> Any:
    """Kind and width of an action's representation."""
    codec = make_action_codec(space, batched_envs=1)
    return type(codec), codec.width
