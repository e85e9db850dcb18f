"""Policy: a trained agent that acts, without its Experiment and its training environments.

    policy = amago.Policy.load("runs/quickstart")
    obs, info = env.reset()
    reward, done = None, True
    for _ in range(1000):
        action = policy.act(obs, reward, done)
        obs, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated
        if done:
            obs, info = env.reset()

It takes observations as the environment returns them and gives actions as the environment takes them. The previous
action and reward, the index of the timestep and the memory of every stream are its own concern. It is built from
run.json; packages of environments are neither imported nor needed.

**Many streams at once.** Observations with a leading axis of B, rewards (B,) and dones (B,) give actions (B, ...):
those of gymnasium's vector environments with `autoreset_mode=AutoresetMode.SAME_STEP`, which return the first
observation of the next episode together with `done`. In gymnasium's default mode NEXT_STEP, that observation
comes one step later, so pass the dones of the step before.

**Without amago.** `amago-run export RUN policy.pt2` (`Policy.export`) writes a program of `torch.export` that
needs nothing but torch, and policy.json beside it, with the names, shapes and dtypes of its inputs:

    import json, torch
    about = json.load(open("policy.json"))
    program = torch.export.load("policy.pt2").module()
    rows = 3
    state = [torch.zeros([rows if n is None else n for n in each["shape"]], dtype=getattr(torch, each["dtype"]))
             for each in about["state"]]
    reward, done = torch.zeros(rows), torch.ones(rows, dtype=torch.bool)
    ...
    action, state = program({"observation": obs}, reward, done, state)

`reward` and `done` are those of the previous action; rows that are done forget everything. `action` is in the
units of the environment. policy.json also holds its space, and the observation space with the form of each array.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from amago.agent import BaseAgent
from amago.envs.actions import ActionCodec, make_action_codec
from amago.envs.observations import ObservationMapper
from amago.envs.space_json import space_from_json
from amago.experiment.checkpointer import Checkpointer
from amago.experiment.rollout import ActingPolicy
from amago.experiment.run_json import read_run
from amago.experiment.saved_policies import load_saved_policy, read_saved_policy
from amago.experiment.trusted import UntrustedNameError, trusting

if TYPE_CHECKING:
    from typing_extensions import Self

Rows: TypeAlias = "Sequence[int] | Sequence[bool] | npt.NDArray[Any] | None"


def find_weights(run: str | os.PathLike[str], checkpoint: int | str = "latest") -> Path:
    """The file of a run's weights.

    Args:
        run: the run's folder.
        checkpoint: "latest", or the number of an epoch that has a checkpoint.

    Raises:
        ValueError: `checkpoint` is neither of them.
        FileNotFoundError: there is no such checkpoint; names those that there are.
    """
    folder = Path(run).expanduser()
    checkpoints = Checkpointer(folder, folder.name)
    if checkpoint != "latest" and not str(checkpoint).isdecimal():
        raise ValueError(f"checkpoint is {checkpoint!r}, must be 'latest' or the number of an epoch")
    latest = checkpoint == "latest"
    path = checkpoints.latest_policy if latest else checkpoints.policy_weights(int(checkpoint))
    if not path.is_file():
        epochs = ", ".join(map(str, checkpoints.epochs())) or "none"
        raise FileNotFoundError(f"there is no file {path}; epochs with a checkpoint: {epochs}")
    return path


class Policy:
    """A trained agent that acts for one or many streams of observations and keeps their memory.

    Args:
        agent: the agent; it is in eval mode while it acts.
        observation_space: space of the environment's observations.
        action_space: space of the environment's actions.
        device: device to act on; the agent is moved there.
        autocast: act in bf16 autocast.

    Attributes:
        agent: the agent.
        observation_space: as given.
        action_space: as given.

    Raises:
        ValueError: the agent was built for other spaces.
    """

    def __init__(
        self,
        agent: BaseAgent,
        observation_space: gym.spaces.Space[Any],
        action_space: gym.spaces.Space[Any],
        *,
        device: torch.device | str = "cpu",
        autocast: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self.agent = agent.to(self.device)
        self.observation_space = observation_space
        self.action_space = action_space
        self._acting = ActingPolicy(self.agent, device=self.device, autocast=autocast)
        self._autocast = autocast
        width = make_action_codec(action_space, batched_envs=1).width
        if width != agent.action_dim:
            raise ValueError(
                f"action_space is {action_space}, whose actions have width {width}, but the agent's have width "
                f"{agent.action_dim}: pass the space of the environment that it was trained in"
            )
        self._streams: _Streams | None = None

    @classmethod
    def load(
        cls,
        run: str | os.PathLike[str],
        checkpoint: int | str = "latest",
        device: torch.device | str = "cpu",
        trust: Sequence[str] = (),
    ) -> Self:
        """The policy of a run, in the run's precision.

        Args:
            run: the run's folder.
            checkpoint: "latest", or the number of an epoch that has a checkpoint.
            device: device to act on.
            trust: names of packages whose classes run.json may name, beside those of amago.

        Raises:
            FileNotFoundError: there is no run, or it has no such checkpoint.
            ValueError: run.json is damaged or lacks something that the agent is built from; then build the agent
                yourself, load its weights by `load_policy_weights`, and call `Policy(agent, ...)`.
            UntrustedNameError: run.json names a class of a package that is neither amago nor in `trust`.
        """
        folder = Path(run).expanduser()
        record = read_run(folder)
        weights = find_weights(folder, checkpoint)
        try:
            with trusting(*trust):
                agent = record.build_agent()
        except UntrustedNameError as error:
            remedy = f"pass trust={(*trust, error.package)}"
            raise UntrustedNameError(error.problem, error.package, remedy) from error
        load_saved_policy(agent, read_saved_policy(weights), weights)
        agent.on_checkpoint_loaded(is_resume=False)
        assert record.spaces is not None  # checked by build_agent
        return cls(
            agent,
            space_from_json(record.spaces["observation"]),
            space_from_json(record.spaces["action"]),
            device=device,
            autocast=record.arguments.get("mixed_precision") == "bf16",
        )

    @property
    def rows(self) -> int | None:
        """Number of streams; None before the first `act` and after `reset()`."""
        return None if self._streams is None else self._streams.rows

    def reset(self, rows: Rows = None) -> None:
        """Forgets episodes: the next observations of these rows are the first ones of their episodes.

        Args:
            rows: indices of rows, or a bool per row. None resets all of them; the next `act` may then have another
                number of rows, and uses the agent's current weights.

        Raises:
            RuntimeError: `rows` is given, and there are no streams yet.
            IndexError: a row does not exist.
        """
        if rows is None:
            self._streams = None
            return
        if self._streams is None:
            raise RuntimeError("rows is given, but there are no streams yet: call act first, or reset()")
        chosen = np.zeros(self._streams.rows, np.bool_)
        chosen[np.asarray(rows, None if len(rows) else np.int64)] = True
        self._streams.forget(chosen, self.agent)

    def act(
        self,
        obs: Any,
        reward: float | npt.ArrayLike | None = None,
        done: bool | npt.ArrayLike | None = None,
        sample: bool = False,
    ) -> Any:
        """The actions for the current observations.

        Args:
            obs: an observation, or observations with a leading axis of B, as the environment returns them. A
                subclass of AMAGOEnv that edits its `observation_space` was trained on other ones: then a dict with
                the keys of `self.observation_space`.
            reward: reward of the previous action, a number or (B,). It may be left out in the first step of
                episodes, whose rewards are ignored.
            done: whether the previous action ended the episode, a bool or (B,), so that `obs` is the first
                observation of the next one. Left out, no episode has ended; see also `reset`.
            sample: draw actions from the policy, by torch's generator, instead of taking the most likely ones.

        Returns:
            An action, or actions with a leading axis of B, as the environment takes them.

        Raises:
            ValueError: another number of rows than before, a missing reward, an observation that lacks a key of
                its space, or numbers that do not fit their space or are not finite.
        """
        _require_keys(self.observation_space, obs)
        rows = _leading_rows(self.observation_space, obs)
        if self._streams is None:
            self.agent.eval()
            self._streams = _Streams(self, rows)
        streams = self._streams
        if rows != streams.batch:
            raise ValueError(
                f"obs is {_batch_text(rows)}, and before it was {_batch_text(streams.batch)}: call reset() before "
                "acting for another number of streams"
            )
        if done is not None and (over := streams.each("done", done, np.bool_)).any():
            streams.forget(over, self.agent)
        streams.set_rewards(reward)
        inputs = streams.inputs(obs, self.device)
        with (
            torch.inference_mode(),
            torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._autocast),
        ):
            chosen, streams.hidden_state = streams.actor.get_actions(
                **inputs, hidden_state=streams.hidden_state, sample=sample
            )
        return streams.take(chosen.squeeze(1).cpu().numpy())

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Writes the policy as a program of `torch.export` and returns its JSON file, see `export_policy`."""
        from amago.policy_export import export_policy

        return export_policy(self, path)


class _Streams:
    """What a policy keeps of the streams that it acts for.

    Args:
        policy: the policy.
        batch: number of rows; None for a single stream without a batch axis.
    """

    def __init__(self, policy: Policy, batch: int | None) -> None:
        self.batch = batch
        self.rows = rows = 1 if batch is None else batch
        self.codec: ActionCodec = make_action_codec(policy.action_space, batched_envs=rows)
        self.mapper = ObservationMapper(policy.observation_space, batched_envs=rows)
        self.space = policy.observation_space
        self.actor = policy._acting.with_current_weights()
        self.hidden_state = policy.agent.init_hidden_state(rows, policy.device)
        self.rl2s = np.zeros((rows, 1 + self.codec.width), np.float32)
        self.time_idxs = np.zeros(rows, np.int64)

    def forget(self, rows: npt.NDArray[np.bool_], agent: BaseAgent) -> None:
        """Starts new episodes in the rows with True in `rows` (B,)."""
        self.rl2s[rows] = 0
        self.time_idxs[rows] = 0
        with torch.inference_mode():
            self.hidden_state = agent.reset_hidden_state(self.hidden_state, rows)

    def each(self, name: str, value: Any, dtype: Any) -> npt.NDArray[Any]:
        """`value`, one number per row, as an array (B,)."""
        array = np.asarray(value, dtype)
        if array.size != self.rows:
            raise ValueError(
                f"{name} has shape {array.shape}, must be one number for each of {self.rows} row(s)"
            )
        return array.reshape(self.rows)

    def set_rewards(self, reward: Any) -> None:
        """Sets the previous rewards of the rows that are not in their first step."""
        running = self.time_idxs > 0
        if not running.any():
            return
        if reward is None:
            raise ValueError(
                "reward is None: pass the reward of the previous action, or call reset() if a new episode begins"
            )
        rewards = self.each("reward", reward, np.float32)
        if not np.isfinite(rewards).all():
            raise ValueError(f"reward is {reward!r}, must be finite in float32")
        self.rl2s[:, 0] = np.where(running, rewards, 0.0)

    def inputs(self, obs: Any, device: torch.device) -> dict[str, Any]:
        """The agent's inputs for observations of the environment."""
        if self.batch == 1:  # for a single row the mapper takes no batch axis
            obs = _first_row(self.space, obs)
        arrays = self.mapper(obs)
        for key, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError(f"observation {key!r} is not finite: {array}")
        tensors = {key: torch.from_numpy(array).unsqueeze(1).to(device) for key, array in arrays.items()}
        # Copies, since a hidden state may keep its inputs.
        rl2s = torch.from_numpy(self.rl2s.copy()).unsqueeze(1).to(device)
        time_idxs = torch.from_numpy(self.time_idxs.copy()).view(-1, 1, 1).to(device)
        return {"obs": tensors, "rl2s": rl2s, "time_idxs": time_idxs}

    def take(self, chosen: npt.NDArray[Any]) -> Any:
        """Remembers the agent's actions (B, K) and returns them as the environment takes them."""
        checked = self.codec.check(chosen)
        self.rl2s[:, 1:] = self.codec.represent(checked)
        self.time_idxs += 1
        action = self.codec.to_env(checked)
        return np.asarray(action)[None] if self.batch == 1 else action


def _require_keys(space: gym.spaces.Space[Any], obs: Any, name: str = "obs") -> None:
    """Raises ValueError if `obs` lacks keys of its space, nested ones included."""
    if isinstance(space, gym.spaces.Dict):
        found = list(obs) if isinstance(obs, Mapping) else []
        if missing := [key for key in space.spaces if key not in found]:
            got = f"has the keys {found}" if isinstance(obs, Mapping) else f"is a {type(obs).__name__}"
            raise ValueError(f"{name} lacks {missing}: expected are {list(space.spaces)}, and it {got}")
        for key, child in space.spaces.items():
            _require_keys(child, obs[key], f"{name}[{key!r}]")


def _first_leaf(space: gym.spaces.Space[Any], obs: Any) -> tuple[gym.spaces.Space[Any], Any]:
    """A space without parts in `space`, and its value in `obs`."""
    while isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        key: Any = next(iter(space.spaces)) if isinstance(space, gym.spaces.Dict) else 0
        try:
            obs = obs[key]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"obs has no {key!r}; it must be in {space}") from error
        space = space.spaces[key]
    return space, obs


def _leading_rows(space: gym.spaces.Space[Any], obs: Any) -> int | None:
    """The length of the batch axis of `obs`; None if it is a single observation in `space`."""
    leaf, value = _first_leaf(space, obs)
    if leaf.dtype is not None and leaf.dtype.kind == "U":
        return None if isinstance(value, str) else len(value)
    shape, axes = np.shape(value), len(leaf.shape or ())
    if len(shape) not in (axes, axes + 1) or (len(shape) > axes and shape[0] < 1):
        raise ValueError(
            f"obs has an array of shape {shape}, and its space says {leaf.shape}, or (B, ...) of these"
        )
    return None if len(shape) == axes else int(shape[0])


def _first_row(space: gym.spaces.Space[Any], obs: Any) -> Any:
    """The only row of observations with a leading axis of 1."""
    if isinstance(space, gym.spaces.Dict):
        return {key: _first_row(child, obs[key]) for key, child in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(_first_row(child, part) for child, part in zip(space.spaces, obs, strict=True))
    return obs[0]


def _batch_text(rows: int | None) -> str:
    return "a single observation" if rows is None else f"a batch of {rows}"
