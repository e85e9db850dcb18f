"""Export of a policy as a program of `torch.export`, which runs with torch alone.

One call of the program is one timestep of B streams:

    action, state = program(obs, reward, done, state)

`state` holds the time indices, the previous actions and the leaves of the hidden state, each with the batch on
an axis that policy.json names. The action is the policy's most likely one, in the units of the environment.

Shapes: B rows, A width of the action representation.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from amago.agent import Agent
from amago.envs.observations import ObservationMapper
from amago.envs.space_json import space_as_json
from amago.experiment.checkpointer import write_json
from amago.hindsight import atomic_file
from amago.kernels import use_backend
from amago.nets.traj_encoders import TrajEncoder
from amago.nets.transformer import Cache, TformerHiddenState

if TYPE_CHECKING:
    from amago.agent import BaseAgent
    from amago.policy import Policy

# Rows of the example inputs: torch.export takes dimensions of 0 and 1 as constants.
_EXAMPLE_ROWS = 2
State = list[Tensor]


@dataclass(frozen=True)
class _HiddenLayout:
    """The structure of an agent's hidden state, to take it apart into tensors and to put it together again.

    Attributes:
        axes: the axis of the batch in each tensor.
    """

    axes: list[int]
    spec: TreeSpec | None  # None for the ring caches of a Transformer
    like: Any
    is_tensor: list[bool]

    @classmethod
    def of(cls, hidden_state: Any, batch_axis: int) -> _HiddenLayout:
        if isinstance(hidden_state, TformerHiddenState):
            return cls([1, 1, 0], None, hidden_state, [])
        leaves, spec = tree_flatten(hidden_state)
        is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        return cls([batch_axis] * sum(is_tensor), spec, leaves, is_tensor)

    def split(self, hidden_state: Any) -> State:
        if isinstance(hidden_state, TformerHiddenState):
            return [hidden_state.key_cache.data, hidden_state.val_cache.data, hidden_state.seq_lens]
        return [leaf for leaf in tree_flatten(hidden_state)[0] if isinstance(leaf, Tensor)]

    def join(self, tensors: State) -> Any:
        if self.spec is None:
            keys, values, lengths = tensors
            return TformerHiddenState(
                _cache_of(self.like.key_cache, keys), _cache_of(self.like.val_cache, values), lengths
            )
        remaining = iter(tensors)
        leaves = [
            next(remaining) if found else leaf for found, leaf in zip(self.is_tensor, self.like, strict=True)
        ]
        return tree_unflatten(leaves, self.spec)


def _cache_of(like: Cache, data: Tensor) -> Cache:
    cache = copy.copy(like)
    cache.data = data
    return cache


class _Step(nn.Module):
    """One timestep of a policy as a function of tensors."""

    start: Tensor
    low: Tensor
    high: Tensor
    half_range: Tensor

    def __init__(self, agent: BaseAgent, action_space: gym.spaces.Space[Any], layout: _HiddenLayout) -> None:
        super().__init__()
        self.agent = agent
        self.action_space = action_space
        self.layout = layout
        self.sizes = agent.action_spec.sizes
        if isinstance(action_space, gym.spaces.Box):
            low, high = (np.asarray(x, np.float64).reshape(-1) for x in (action_space.low, action_space.high))
            for name, numbers in (("low", low), ("high", high), ("half_range", high / 2.0 - low / 2.0)):
                self.register_buffer(name, torch.from_numpy(numbers))
        elif isinstance(action_space, (gym.spaces.Discrete, gym.spaces.MultiDiscrete)):
            start = np.asarray(action_space.start, np.int64).reshape(-1)
            self.register_buffer("start", torch.from_numpy(start))

    def forward(self, obs: dict[str, Tensor], reward: Tensor, done: Tensor, state: State) -> Any:
        time_idx, prev_action, *hidden = state
        time_idx = time_idx.masked_fill(done, 0)
        is_first = (time_idx == 0).unsqueeze(-1)
        rl2 = torch.cat((reward.unsqueeze(-1), prev_action), -1).masked_fill(is_first, 0.0)
        # Copies: acting may write into the hidden state.
        hidden_state = self._reset(self.layout.join([leaf.clone() for leaf in hidden]), done)
        chosen, hidden_state = self.agent.get_actions(
            obs={key: value.unsqueeze(1) for key, value in obs.items()},
            rl2s=rl2.unsqueeze(1),
            time_idxs=time_idx.view(-1, 1, 1),
            hidden_state=hidden_state,
            sample=False,
        )
        action, representation = self._action(chosen.squeeze(1))
        return action, [time_idx + 1, representation, *self.layout.split(hidden_state)]

    def _reset(self, hidden_state: Any, done: Tensor) -> Any:
        """`TrajEncoder.reset_hidden_state` without its checks of shapes, which a program cannot make."""
        encoder = self.agent.traj_encoder
        if isinstance(hidden_state, TformerHiddenState):
            hidden_state.seq_lens = hidden_state.seq_lens.masked_fill(done, 0)
            return hidden_state
        if type(encoder).reset_hidden_state is not TrajEncoder.reset_hidden_state:
            return encoder.reset_hidden_state(hidden_state, done)

        def reset(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            axis = encoder.hidden_batch_axis
            return leaf.masked_fill(done.view(-1, *(1,) * (leaf.dim() - axis - 1)), 0)

        return tree_map(reset, hidden_state)

    def _action(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """What the environment takes (B, ...) and the representation (B, A) of the agent's actions (B, K)."""
        space = self.action_space
        if isinstance(space, gym.spaces.Discrete):
            return chosen[:, 0] + self.start[0], F.one_hot(chosen[:, 0], self.sizes[0]).float()
        if isinstance(space, gym.spaces.MultiDiscrete):
            one_hots = [F.one_hot(chosen[:, i], size) for i, size in enumerate(self.sizes)]
            action = (chosen + self.start).to(_torch_dtype(space.dtype))
            return action.reshape(-1, *space.nvec.shape), torch.cat(one_hots, -1).float()
        if isinstance(space, gym.spaces.MultiBinary):
            return chosen.to(torch.int8).reshape(-1, *space.shape), chosen.float()
        scaled = (chosen.double() + 1.0) * self.half_range + self.low
        if np.dtype(space.dtype).kind in "iu":
            scaled = scaled.round()
        scaled = torch.minimum(scaled, self.high).to(_torch_dtype(space.dtype))
        return scaled.reshape(-1, *(space.shape or ())), chosen.float()


def _torch_dtype(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.zeros(1, dtype)).dtype


@contextmanager
def _plain_operations() -> Iterator[None]:
    """Kernels in plain torch, and distributions without checks, which depend on values."""
    validates = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with use_backend("eager"), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        Distribution.set_default_validate_args(validates)


def export_policy(policy: Policy, path: str | os.PathLike[str]) -> Path:
    """Writes a policy as a program of `torch.export`, and beside it a JSON file with its inputs and outputs.

    The program acts as the policy does without sampling, in float32 on the policy's device, for any number of
    streams. See `amago.policy` for how to run it.

    Args:
        policy: the policy; it is not changed.
        path: the file to write; its name ends with ".pt2", that of the other one with ".json".

    Returns:
        The path of the JSON file.

    Raises:
        ValueError: the path does not end with ".pt2", or a module of the agent cannot be exported.
    """
    path = Path(path).expanduser()
    if path.suffix != ".pt2":
        raise ValueError(f"path is {str(path)!r}, must end with '.pt2'")
    agent = _acting_part(policy.agent)
    arrays = ObservationMapper(policy.observation_space, batched_envs=1).space
    obs = {
        key: torch.zeros(
            (_EXAMPLE_ROWS, *(box.shape or ())), dtype=_torch_dtype(box.dtype), device=policy.device
        )
        for key, box in arrays.spaces.items()
    }
    reward = torch.zeros(_EXAMPLE_ROWS, device=policy.device)
    done = torch.ones(_EXAMPLE_ROWS, dtype=torch.bool, device=policy.device)
    with _plain_operations():
        layout, hidden = _hidden_example(agent, obs, policy.device)
        step = _Step(agent, policy.action_space, layout).to(policy.device).eval()
        time_idx = torch.zeros(_EXAMPLE_ROWS, dtype=torch.int64, device=policy.device)
        prev_action = torch.zeros(_EXAMPLE_ROWS, agent.action_dim, device=policy.device)
        state = [time_idx, prev_action, *hidden]
        axes = [0, 0, *layout.axes]
        rows = torch.export.Dim("rows", min=1)
        shapes = {
            "obs": {key: {0: rows} for key in obs},
            "reward": {0: rows},
            "done": {0: rows},
            "state": [{axis: rows} for axis in axes],
        }
        try:
            program = torch.export.export(
                step, (obs, reward, done, state), dynamic_shapes=shapes, strict=False
            )
        except Exception as error:  # torch raises many kinds
            raise ValueError(
                f"{type(agent).__name__} cannot be exported: a module branches on the values of tensors or on the "
                f"number of rows. torch says: {str(error).strip().splitlines()[0] if str(error) else error!r}"
            ) from error
        action, _ = step(obs, reward, done, state)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        torch.export.save(program, temporary)
    hidden_names = [f"hidden/{i}" for i in range(len(hidden))]
    about = {
        "format": 1,
        "torch": torch.__version__,
        "obs": [{"name": key, **_described(value, 0)} for key, value in obs.items()],
        "reward": _described(reward, 0),
        "done": _described(done, 0),
        "state": [
            {"name": name, **_described(tensor, axis)}
            for name, tensor, axis in zip(
                ["time_idx", "prev_action", *hidden_names], state, axes, strict=True
            )
        ],
        "action": _described(action, 0),
        "observation_space": space_as_json(policy.observation_space),
        "action_space": space_as_json(policy.action_space),
    }
    described = path.with_suffix(".json")
    write_json(about, described)
    return described


def _acting_part(agent: BaseAgent) -> BaseAgent:
    """A copy of the agent without the networks that only learning needs."""
    agent = copy.deepcopy(agent).eval().requires_grad_(False)
    if type(agent).get_actions is Agent.get_actions:
        for name in ("critics", "target_critics", "target_actor"):
            delattr(agent, name)
    return agent


def _hidden_example(
    agent: BaseAgent, obs: dict[str, Tensor], device: torch.device
) -> tuple[_HiddenLayout, list[Tensor]]:
    """The layout of the hidden state after a step, and one of zeros; before the first step it may be None."""
    initial = agent.init_hidden_state(_EXAMPLE_ROWS, device)
    _, hidden_state = agent.get_actions(
        obs={key: value.unsqueeze(1) for key, value in obs.items()},
        rl2s=torch.zeros(_EXAMPLE_ROWS, 1, 1 + agent.action_dim, device=device),
        time_idxs=torch.zeros(_EXAMPLE_ROWS, 1, 1, dtype=torch.int64, device=device),
        hidden_state=initial,
        sample=False,
    )
    layout = _HiddenLayout.of(hidden_state, agent.traj_encoder.hidden_batch_axis)
    return layout, [torch.zeros_like(leaf) for leaf in layout.split(hidden_state)]


def _described(tensor: Tensor, batch_axis: int) -> dict[str, Any]:
    """Shape and dtype as JSON, with null for the number of rows."""
    shape = [None if axis == batch_axis else size for axis, size in enumerate(tensor.shape)]
    return {"shape": shape, "dtype": str(tensor.dtype).removeprefix("torch.")}
