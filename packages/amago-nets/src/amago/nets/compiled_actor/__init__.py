"""Encoders and actor compiled into one C++ call per timestep, for acting on a CPU.

- `actor`: `CompiledActor`, which takes the place of an agent's `get_actions` in a rollout.
- `translation`: how modules become operations of an `amago.kernels.acting.Program`; layers, norms and blocks.
- `encoders`: timestep and trajectory encoders, and the hidden states of the latter.

Modules are translated by their exact class: a subclass may compute something else, so it has no translation. A
timestep encoder without one runs as a module, and the program takes its output; any other module without one
means that the agent acts with its torch modules. `translates` registers a translation.
"""

from amago.nets.compiled_actor.actor import CompiledActor
from amago.nets.compiled_actor.translation import Builder, NotTranslatedError, translates

__all__ = ["Builder", "CompiledActor", "NotTranslatedError", "translates"]
