"""Fine-tuning: parts of a trained policy as the start of a new run, frozen networks, and rates of single networks.

Override two methods of `Experiment`. What a checkpoint holds wins, so the same script resumes the run.

    class FineTuning(Experiment):
        def init_agent(self):
            agent = super().init_agent()
            load_policy_weights(agent, "runs/teacher", only=("tstep_encoder", "traj_encoder"))
            agent.freeze("tstep_encoder")
            return agent

        def init_optimizer(self, policy):
            groups = parameter_groups(policy, self.learning_rate, {"traj_encoder": 1e-5})
            return make_adamw(groups, self.learning_rate, self.l2_coeff, self.DEVICE)

Networks are named as the agent's attributes: tstep_encoder, traj_encoder, actor, critics and so on, or by longer
paths such as "actor.base". Networks that are not loaded keep their new weights: to reinitialise the heads of
a policy, leave them out by `except_=("actor", "critics", "popart")`. The critics' outputs are in units of
"popart", the statistics of their targets, so both are loaded or neither.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from amago.agent import BaseAgent
from amago.experiment.learner import make_adamw
from amago.experiment.saved_policies import read_saved_policy
from amago.nets.registry import did_you_mean
from amago.policy import find_weights

__all__ = ["LoadedWeights", "load_policy_weights", "make_adamw", "parameter_groups"]

_TARGETS = {"target_actor": "actor", "target_critics": "critics"}


@dataclass(frozen=True, kw_only=True)
class LoadedWeights:
    """What `load_policy_weights` did with each weight.

    Attributes:
        loaded: names of the agent's weights that were loaded.
        skipped: why others were not, by name: those of the agent, and those of the file that the agent lacks.
    """

    loaded: list[str]
    skipped: dict[str, str]


def load_policy_weights(
    agent: BaseAgent,
    run_or_file: str | os.PathLike[str],
    only: Sequence[str] | None = None,
    except_: Sequence[str] = (),
    *,
    checkpoint: int | str = "latest",
) -> LoadedWeights:
    """Loads those weights of a saved policy that the agent has too, with equal names and shapes.

    Targets follow their networks: where an actor or critics are loaded, their targets become copies of them.

    Args:
        agent: the agent; load before its optimizer is created, in `Experiment.init_agent`.
        run_or_file: folder of a run, or a file of weights, .pt or .safetensors.
        only: names of networks to load; None for all.
        except_: names of networks to leave as they are.
        checkpoint: of a run: "latest", or the number of an epoch.

    Raises:
        ValueError: a name is no network of the agent, or nothing was loaded.
        FileNotFoundError: there is no such file, or the run has no such checkpoint.
    """
    source = Path(run_or_file).expanduser()
    file = find_weights(source, checkpoint) if source.is_dir() else source
    for name in (*(only or ()), *except_):
        _network(agent, name)
    saved = read_saved_policy(file)
    own: dict[str, Any] = agent.state_dict()
    loaded, skipped = {}, {}
    for name, weight in own.items():
        if _is_in(name, _TARGETS):
            continue
        if (only is not None and not _is_in(name, only)) or _is_in(name, except_):
            skipped[name] = "not asked for"
        elif name not in saved:
            skipped[name] = "not in the file"
        elif not isinstance(weight, Tensor) or weight.shape != saved[name].shape:
            skipped[name] = f"shape {_shape(saved[name])} in the file, {_shape(weight)} in the agent"
        else:
            loaded[name] = saved[name]
    skipped |= {name: "not in the agent" for name in saved if name not in own}
    if not loaded:
        raise ValueError(f"nothing of {file} was loaded: {_first(skipped)}")
    agent.load_state_dict({**own, **loaded})
    _copy_into_targets(agent, loaded)
    return LoadedWeights(loaded=list(loaded), skipped=skipped)


def _copy_into_targets(agent: BaseAgent, loaded: Mapping[str, Tensor]) -> None:
    for target, online in _TARGETS.items():
        if hasattr(agent, target) and any(_is_in(name, [online]) for name in loaded):
            getattr(agent, target).load_state_dict(getattr(agent, online).state_dict())


def parameter_groups(
    agent: BaseAgent, learning_rate: float, rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The trainable parameters in groups with their own learning rates, for an optimizer of torch.

    Schedules such as warm-up and `LinearDecay` scale the rate of every group alike. A checkpoint holds the groups,
    so a resumed run needs the same ones.

    Args:
        agent: the agent; its frozen parameters are in no group.
        learning_rate: rate of the networks without one of their own.
        rates: learning rate by the name of a network; the longest name that fits a parameter counts.

    Raises:
        ValueError: a name is no network of the agent, a rate is not positive, or a network has nothing to train.
    """
    for name, rate in rates.items():
        _network(agent, name)
        if not 0.0 < rate < float("inf"):
            raise ValueError(
                f"rates[{name!r}] is {rate}, must be positive and finite; freeze what is not to learn"
            )
    trained = {id(parameter) for parameter in agent.trainable_params}
    members: dict[str, list[torch.nn.Parameter]] = {"": [], **{name: [] for name in rates}}
    for path, parameter in agent.named_parameters():
        if id(parameter) in trained:
            owner = max((name for name in rates if _is_in(path, [name])), key=len, default="")
            members[owner].append(parameter)
    if empty := [name for name in rates if not members[name]]:
        raise ValueError(
            f"rates names {empty}, which have no parameters to train: are they frozen, or targets?"
        )
    return [
        {"params": parameters, "lr": rates.get(name, learning_rate), "name": name or "other"}
        for name, parameters in members.items()
        if parameters
    ]


def _network(agent: BaseAgent, name: str) -> torch.nn.Module:
    """The module of that name; ValueError, with the nearest name, if there is none."""
    try:
        return agent.get_submodule(name) if name else _missing(name)
    except AttributeError as error:
        networks = [path for path, _ in agent.named_modules() if path]
        top = ", ".join(path for path in networks if "." not in path)
        raise ValueError(
            f"{type(agent).__name__} has no network {name!r}.{did_you_mean(name, networks)} It has {top}"
        ) from error


def _missing(name: str) -> torch.nn.Module:
    raise AttributeError(name)


def _is_in(name: str, networks: Any) -> bool:
    """Whether a weight belongs to one of the networks."""
    return any(name == network or name.startswith(f"{network}.") for network in networks)


def _shape(weight: Any) -> Any:
    return tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__


def _first(skipped: Mapping[str, str]) -> str:
    shown = [f"{name}: {why}" for name, why in list(skipped.items())[:3]]
    return "; ".join(shown) + (f"; and {len(skipped) - 3} more" if len(skipped) > 3 else "")
