"""Acting on a CPU in one C++ call: a list of operations on one timestep of a few rows.

A network of some dozen small layers takes a few microseconds to compute for one timestep, and some hundred to be
called layer by layer. A `Program` holds its operations in C++: packed weights, a workspace that stays in the
caches, and attention or recurrences that update hidden states in the caller's memory.
`amago.nets.compiled_actor` builds programs from networks.
"""

from amago.kernels.acting.program import Program, StateBuffers, unavailable

__all__ = ["Program", "StateBuffers", "unavailable"]
