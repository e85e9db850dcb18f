"""Evaluation: fresh episodes without exploration, from a blank hidden state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from amago.envs.metrics import EpisodeStats
from amago.envs.recorder import TrajectoryRecorder
from amago.envs.vector import VectorEnv
from amago.experiment.rollout import Rollout

if TYPE_CHECKING:
    import torch

    from amago.agent import BaseAgent


def evaluate(
    agent: BaseAgent,
    vector_env: VectorEnv,
    *,
    device: torch.device,
    autocast: bool,
    seed: int,
    timesteps: int | None,
    episodes: int | None = None,
    sample: bool = True,
    render: bool = False,
    recorder: TrajectoryRecorder | None = None,
    progress: Callable[[int], None] | None = None,
) -> EpisodeStats:
    """The finished episodes of a rollout from a reset with `seed`.

    Args:
        timesteps: most steps per actor; None for no limit.
        episodes: episodes to count, spread evenly over the actors so that short ones are not favoured; None
            counts all that finish within `timesteps`.
        sample: draw actions from the policy; False takes its mode.
        recorder: writes the episodes that finish.
    """
    rollout = Rollout(agent, vector_env, device=device, autocast=autocast, recorder=recorder)
    rollout.reset(seed=seed)
    rollout.run(timesteps=timesteps, episodes=episodes, sample=sample, render=render, progress=progress)
    if recorder is not None:
        recorder.flush()
    return rollout.stats
