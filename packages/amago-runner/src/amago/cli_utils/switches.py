"""Parts chosen by the name under which they are registered, their arguments written into a gin dictionary.

Each function returns the class and adds `{selector: value}` entries to `config`, which `use_config` then binds.
"""

from __future__ import annotations

from typing import Any, TypeVar

from amago.agent import BaseAgent, get_agent_cls
from amago.envs.exploration import ExplorationWrapper, get_exploration_cls
from amago.experiment.gin_bindings import nearest, parameters_of, selector_of
from amago.nets.traj_encoders import TrajEncoder, get_traj_encoder_cls
from amago.nets.tstep_encoders import TstepEncoder, get_tstep_encoder_cls

T = TypeVar("T")

# What `memory_size` and `layers` mean for the encoders that come with AMAGO: {argument: multiple of memory_size}.
_SIZES: dict[str, dict[str, int]] = {
    "identity": {},
    "ff": {"d_model": 1},
    "rnn": {"d_hidden": 1, "d_output": 1},
    "transformer": {"d_model": 1, "d_ff": 4},
    "mamba": {"d_model": 1},
}


def switch_tstep_encoder(config: dict[str, Any], arch: str, **kwargs: Any) -> type[TstepEncoder]:
    """Chooses the timestep encoder registered as `arch` and sets `kwargs` of its constructor.

    Raises:
        ValueError: an unknown name or argument; the message suggests the nearest.
    """
    return _choose(config, get_tstep_encoder_cls(arch), kwargs)


def switch_agent(config: dict[str, Any], agent: str, **kwargs: Any) -> type[BaseAgent]:
    """Chooses the agent registered as `agent` and sets `kwargs` of its constructor.

    Raises:
        ValueError: an unknown name or argument; the message suggests the nearest.
    """
    return _choose(config, get_agent_cls(agent), kwargs)


def switch_exploration(config: dict[str, Any], strategy: str, **kwargs: Any) -> type[ExplorationWrapper]:
    """Chooses the exploration wrapper registered as `strategy` and sets `kwargs` of its constructor.

    Raises:
        ValueError: an unknown name or argument; the message suggests the nearest.
    """
    return _choose(config, get_exploration_cls(strategy), kwargs)


def switch_traj_encoder(
    config: dict[str, Any],
    arch: str,
    memory_size: int | None = None,
    layers: int | None = None,
    **kwargs: Any,
) -> type[TrajEncoder]:
    """Chooses the trajectory encoder registered as `arch` and sets its size and `kwargs` of its constructor.

    Args:
        config: receives the settings.
        arch: "identity", "ff", "rnn", "transformer", "mamba" or a name that you registered.
        memory_size: width of the model. A Transformer's feed-forward blocks are four times as wide. An encoder
            of your own receives it as `memory_size` if its constructor has that argument.
        layers: number of layers, `n_layers`.
        kwargs: further arguments; they win over the two sizes.

    Raises:
        ValueError: an unknown name or argument; the message suggests the nearest.
    """
    cls = get_traj_encoder_cls(arch)
    sizes: dict[str, Any] = {}
    if arch in _SIZES:
        if memory_size is not None:
            sizes.update({name: multiple * memory_size for name, multiple in _SIZES[arch].items()})
        if layers is not None and arch != "identity":
            sizes["n_layers"] = layers
    else:
        offered = {"memory_size": memory_size, "n_layers": layers}
        taken = parameters_of(cls)
        sizes = {name: value for name, value in offered.items() if value is not None and name in taken}
    return _choose(config, cls, {**sizes, **kwargs})


def _choose(config: dict[str, Any], cls: type[T], kwargs: dict[str, Any]) -> type[T]:
    """Writes `kwargs` under the class's gin selector, wherever its file lies; returns the class."""
    if not kwargs:
        return cls
    selector = selector_of(cls)
    if selector is None:
        raise ValueError(
            f"{cls.__name__} takes no settings ({', '.join(kwargs)}): it is not gin-configurable. "
            "Decorate the class with @gin.configurable."
        )
    known = parameters_of(cls)
    for name, value in kwargs.items():
        if name not in known:
            hint = nearest(name, known) or f"its arguments are {', '.join(known)}"
            raise ValueError(f"{cls.__name__} has no argument {name!r}: {hint}")
        config[f"{selector}.{name}"] = value
    return cls
