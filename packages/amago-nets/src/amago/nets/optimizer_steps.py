"""How often weights may have changed without torch's own count of it.

torch counts the changes of a tensor in `_version`, by which what was computed from weights can be kept until they
change. A fused optimizer step changes them uncounted.
"""

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


class OptimizerSteps:
    """Counts the steps of all of torch's optimizers in this process."""

    def __init__(self) -> None:
        self.count = 0
        self._started = False

    def start(self) -> None:
        """Counts from now on."""
        if not self._started:
            self._started = True
            register_optimizer_step_post_hook(self._add)

    def _add(self, *_: Any) -> None:
        self.count += 1


OPTIMIZER_STEPS = OptimizerSteps()
