"""What differs between the gymnasium releases that are supported: 0.29, and 1.1 up to 2."""

import re
from typing import Any

import gymnasium as gym

# Of vector environments; before 1.1 there is no choice.
HAS_AUTORESET_MODES = hasattr(gym.vector, "AutoresetMode")


def check_gymnasium_version(version: str) -> None:
    """Raises ImportError, with the remedy, unless environments of this gymnasium release can be stepped.

    Releases before 0.29 lack parts of the interface, 1.0 has neither of the two ways in which vector environments
    reset themselves in the step that ends an episode, and 2 is not known yet.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    if release < (0, 29) or release == (1, 0) or release >= (2, 0):
        raise ImportError(
            f"gymnasium {version} is installed, and amago.envs works with 0.29 and with 1.1 up to 2 (not 1.0): "
            "pip install 'gymnasium>=1.1,<2'"
        )


def find_attribute(env: Any, name: str) -> Any:
    """The attribute `name` of the outermost layer of wrappers that has it itself.

    gymnasium's own wrappers forward attributes before 1.0 (with a warning) and do not from 1.0 on, so nothing here
    relies on that.

    Raises:
        AttributeError: if no layer has it.
    """
    owner = find_owner(env, name)
    if owner is None:
        raise AttributeError(
            f"neither {type(env).__name__!r} nor an environment inside it has an attribute {name!r}"
        )
    return getattr(owner, name)


def find_owner(env: Any, name: str) -> Any | None:
    """The outermost layer of wrappers that has the attribute `name` itself, or None."""
    layer = env
    while isinstance(layer, gym.Wrapper):
        # Past gymnasium's __getattr__, which would forward and warn.
        if name in layer.__dict__ or hasattr(type(layer), name):
            return layer
        layer = layer.env
    return layer if hasattr(layer, name) else None


class ForwardingWrapper(gym.Wrapper):
    """A wrapper through which the attributes of everything inside can be read, on every gymnasium release."""

    def __getattr__(self, name: str) -> Any:
        # Only called for what the wrapper lacks. Private names stay private, and `env` is missing only while the
        # object is being made or unpickled.
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return find_attribute(self.env, name)
