"""Acting on a CPU without Python between the layers: a list of operations on one timestep of a few rows.

A network of some dozen small layers takes a few microseconds to compute for one timestep, and some hundred to be
called layer by layer. A `StepProgram` holds its operations in C++: packed weights, a workspace that stays in the
caches, the ring caches or hidden states of an episode written where they lie. `amago.nets.stepping` makes programs
of networks; `Watch` tells when one has to be made anew or given its weights again.
"""

from amago.kernels.step_program.program import (
    Memory,
    Run,
    StepProgram,
    native_watch,
    peak_rate,
    wanted,
    why_not,
)

__all__ = ["Memory", "Run", "StepProgram", "native_watch", "peak_rate", "wanted", "why_not"]
