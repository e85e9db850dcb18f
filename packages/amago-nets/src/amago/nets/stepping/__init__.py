"""From networks to step programs: the same results for one timestep, on a CPU, without Python between the layers.

- `builder`: `Builder`, which appends operations for modules by their exact class and watches what they depend on;
  `translates` registers how a class is translated; `NotTranslatedError` says why something cannot be.
- `layers`, `encoders`, `heads`: how our own modules are translated; `memory`: what trajectory encoders remember.
- `policy`: `StepPolicy`, encoders and actor as one program, made anew when something about them changes.

A module of a class of your own is not translated. Where it is the timestep encoder, it is called as ever and the
program takes its output; else whoever asks for actions calls all modules as ever.
"""

from amago.nets.stepping.builder import Builder, NotTranslatedError, translates
from amago.nets.stepping.policy import BegunStep, StepPolicy

__all__ = ["BegunStep", "Builder", "NotTranslatedError", "StepPolicy", "translates"]
