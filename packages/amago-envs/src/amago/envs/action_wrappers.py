"""Action wrappers for plain gymnasium environments: they take actions in the policy's form.

AMAGOEnv converts actions by itself; these are for environments that are used without it.
"""

from typing import Any, ClassVar

import gymnasium as gym

from amago.envs.action_codecs import make_action_codec
from amago.envs.compat import ForwardingWrapper


class _CodecWrapper(ForwardingWrapper, gym.ActionWrapper):
    """Takes actions of the codec's policy space.

    Args:
        env: an unbatched environment.

    Raises:
        TypeError: if its action space is of another kind than the wrapper's.
        ValueError: for an unbounded Box.
    """

    space_type: ClassVar[type[gym.spaces.Space[Any]]]

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        if not isinstance(env.action_space, self.space_type):
            raise TypeError(
                f"{type(self).__name__} is for {self.space_type.__name__} action spaces, and the environment's is "
                f"{env.action_space}"
            )
        super().__init__(env)
        self._codec = make_action_codec(env.action_space, batched_envs=1)
        self.action_space = self._codec.policy_space

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Resets the environment; arguments are those of its own `reset`."""
        return self.env.reset(*args, **kwargs)

    def action(self, action: Any) -> Any:
        """The environment's form of a policy action; ValueError if it is outside of `action_space`."""
        return self._codec.to_env(self._codec.check(action))


class DiscreteActionWrapper(_CodecWrapper):
    """Discrete actions counted from 0, as a number or an array of one, for an environment with any `start`."""

    space_type = gym.spaces.Discrete


class ContinuousActionWrapper(_CodecWrapper):
    """A flat vector in [-1, 1], scaled to the bounds and the shape of the environment's Box."""

    space_type = gym.spaces.Box


class MultiBinaryActionWrapper(_CodecWrapper):
    """A flat vector of zeros and ones of any dtype, for an environment that takes int8 bits."""

    space_type = gym.spaces.MultiBinary
