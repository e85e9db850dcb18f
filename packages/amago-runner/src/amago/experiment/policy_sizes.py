"""Tells from the names and shapes of weights what kind of agent they are of, and how large its parts are.

Every size that shows is a `Fact` with the setting that decides it, so that a run can be made that fits, and the
difference between a file and a run can be said in words. What leaves no trace in weights (activations, dropout,
the discounts' values, the length of sequences) is not here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from amago.experiment.policy_kinds import (
    ACTORS,
    TRAJ_ENCODERS,
    TSTEP_ENCODERS,
    Kind,
    Weights,
    axis_length,
    num_modules,
)
from amago.nets.cnn import DrQCNN, GridworldCNN, IMPALAishCNN, NatureishCNN
from amago.nets.policy_dists import GMM

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Fact:
    """Something that weights tell.

    Attributes:
        part: what it is about: "agent", "actions", "timestep encoder", "memory", "actor" or "critics".
        name: of the size, e.g. "n_layers"; "kind" for which one the part is.
        value: the size, or the kind's name.
        setting: what decides it: a gin parameter such as "FFTstepEncoder.d_hidden", or the option that chooses
            the kind, e.g. "--traj-encoder"; None if the environment does.
        bound: what gin is given for it, if that is not the value itself.
    """

    part: str
    name: str
    value: Any
    setting: str | None = None
    bound: Any = None

    @property
    def binding(self) -> dict[str, Any]:
        """What gin has to be given for it: one entry, or none where gin does not decide it."""
        if self.value == UNKNOWN or self.setting is None or "." not in self.setting:
            return {}
        return {self.setting: self.value if self.bound is None else self.bound}

    @property
    def remedy(self) -> str:
        """The option of `amago-run` that makes an agent with this value; empty where there is none."""
        if self.value == UNKNOWN or self.setting is None:
            return ""
        if not self.binding:
            return f"{self.setting} {self.value}"
        value = self.binding[self.setting]
        return f"--set {self.setting}={'@' + value.__name__ if isinstance(value, type) else repr(value)}"


_STATE = ("actor.base.in_layer.weight", "actor.inp.in_layer.weight")
_POLICY = ("actor.base.out_layer.weight", "actor.out.weight")


def facts_of(weights: Weights) -> list[Fact]:
    """What the weights of an agent tell, part by part; a part that is not ours has the kind "unknown"."""
    heads = _Heads.read(weights)
    facts = heads.facts()
    facts += _part("timestep encoder", "--tstep-encoder", "tstep_encoder.", TSTEP_ENCODERS, weights)
    if seen := axis_length("tstep_encoder.base.in_layer.weight", 1)(weights):
        facts.append(Fact("timestep encoder", "numbers that it sees", seen))
    facts += _images(weights)
    facts += _part("memory", "--traj-encoder", "traj_encoder.", TRAJ_ENCODERS, weights)
    if any(fact.setting == "LearnablePosEmb.max_time_idx" for fact in facts):
        facts.append(Fact("memory", "pos_emb", "learned", "TformerTrajEncoder.pos_emb"))
    facts += _part("actor", f"{heads.selector}.actor_type", "actor.", ACTORS, weights)
    return [*facts, *_critics(weights, heads)]


def differences(found: Iterable[Fact], wanted: Iterable[Fact]) -> list[tuple[Fact, Fact]]:
    """The facts that two agents both have and that differ; of a part whose kind differs, the kind alone."""
    others = {(fact.part, fact.name): fact for fact in wanted}
    pairs = ((fact, others.get((fact.part, fact.name))) for fact in found)
    unlike = [(fact, other) for fact, other in pairs if other is not None and fact.value != other.value]
    other_kinds = {fact.part for fact, _ in unlike if fact.name == "kind"}
    return [(fact, other) for fact, other in unlike if fact.name == "kind" or fact.part not in other_kinds]


def _part(part: str, setting: str, prefix: str, kinds: Iterable[Kind], weights: Weights) -> list[Fact]:
    """Which of `kinds` a part is, and its sizes, without those that do not show."""
    for kind in kinds:
        if any(name.startswith(kind.marker) for name in weights):
            sizes = {setting: read(weights) for setting, read in kind.sizes.items()}
            return [
                Fact(part, "kind", kind.name, setting, kind.bound),
                *(
                    Fact(part, key.partition(".")[2], value, key)
                    for key, value in sizes.items()
                    if isinstance(value, bool) or value > 0
                ),
            ]
    without_weights = part == "memory" and not any(name.startswith(prefix) for name in weights)
    return [Fact(part, "kind", "identity" if without_weights else UNKNOWN, setting)]


def _images(weights: Weights) -> list[Fact]:
    """Which convolutional network a timestep encoder has; its strides do not show."""
    kernel = axis_length("tstep_encoder.cnn.conv1.weight", 2)(weights)
    cnn: type
    if any(name.startswith("tstep_encoder.cnn.blocks.") for name in weights):
        cnn = IMPALAishCNN
    elif kernel:
        fourth = "tstep_encoder.cnn.conv4.weight" in weights
        cnn = DrQCNN if fourth else GridworldCNN if kernel == 2 else NatureishCNN
    else:
        return []
    return [Fact("timestep encoder", "cnn_type", cnn.__name__, "CNNTstepEncoder.cnn_type", cnn)]


@dataclass(frozen=True, kw_only=True)
class _Heads:
    """What the widths of actor and critics tell together; `width` is 0 if they are not ours."""

    agent: str
    discounts: int
    actions: str = UNKNOWN
    width: int = 0
    modes: int = 0

    @property
    def selector(self) -> str:
        """The agent's class, as gin knows it."""
        return "MultiTaskAgent" if self.agent == "multitask" else "Agent"

    @classmethod
    def read(cls, weights: Weights) -> _Heads:
        """Critics of one kind see the state alone and value every action; the others see action and discount."""
        discounts = axis_length("popart.mu", 0)(weights)
        state = max(axis_length(name, 1)(weights) for name in _STATE)
        policy = max(axis_length(name, 0)(weights) for name in _POLICY)
        seen = axis_length("critics.net.inp_layer.weight", 1)(weights)
        values = axis_length("critics.net.output_layer.weight", 2)(weights)
        if not (discounts and state and policy and values) or seen < state:
            return cls(agent=UNKNOWN, discounts=discounts)
        if seen == state:
            return cls(agent="agent", discounts=discounts, actions="discrete", width=values // discounts)
        agent = "agent" if values == 1 else "multitask"
        width, per_discount = seen - state - 1, policy // discounts
        modes = per_discount // (2 * width + 1) if per_discount % (2 * width + 1) == 0 else 0
        if per_discount == width:
            actions = "bits or several choices" if agent == "agent" else "discrete or bits"
        else:
            actions = "continuous" if modes or per_discount == 2 * width else UNKNOWN
        return cls(agent=agent, discounts=discounts, actions=actions, width=width, modes=modes)

    def facts(self) -> list[Fact]:
        """Agent, discounts and actions."""
        facts = [Fact("agent", "kind", self.agent, "--agent")]
        if self.discounts == 1:
            facts.append(Fact("agent", "discounts", 1, f"{self.selector}.use_multigamma", bound=False))
        elif self.discounts:
            facts.append(Fact("agent", "discounts", self.discounts))
        if self.width:
            facts += [Fact("actions", "kind", self.actions), Fact("actions", "width", self.width)]
        if self.modes:
            facts += [
                Fact("actor", "distribution", "GMM", "Actor.continuous_dist_type", GMM),
                Fact("actor", "gmm_modes", self.modes, "GMM.gmm_modes"),
            ]
        return facts


def _critics(weights: Weights, heads: _Heads) -> list[Fact]:
    if not heads.width:
        return []
    name = "NCriticsTwoHot" if heads.agent == "multitask" else "NCritics"
    sizes = {
        f"{heads.selector}.num_critics": axis_length("critics.net.inp_layer.weight", 0),
        f"{name}.n_layers": num_modules("critics.net.core_layers.", more=1),
        f"{name}.d_hidden": axis_length("critics.net.inp_layer.weight", 2),
    }
    if heads.agent == "multitask":
        sizes[f"{name}.output_bins"] = axis_length("critics.net.output_layer.weight", 2)
    return [Fact("critics", key.partition(".")[2], read(weights), key) for key, read in sizes.items()]
