"""A registry of named classes: the one way in which encoders, agents and exploration are chosen by name.

The file stands in amago-nets and, unchanged, in amago-envs, so that neither package needs the other.
"""

import difflib
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Class = TypeVar("Class", bound=type[Any])


def did_you_mean(name: Any, options: Iterable[str]) -> str:
    """Suggestion for error messages: " Did you mean 'transformer'?", or "" if no option is similar to `name`."""
    similar = difflib.get_close_matches(str(name), list(options), n=1)
    return f" Did you mean {similar[0]!r}?" if similar else ""


class Registry(Generic[T]):
    """Maps names to classes; a name can be taken once, and an unknown one is answered with the nearest.

    Args:
        kind: what the registry holds, in words for error messages, e.g. "trajectory encoder".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[Class], Class]:
        """Class decorator that enters the class as `name`.

        Raises:
            ValueError: if another class has the name. The same class, from a module that was loaded again, may
                take its own name.
        """

        def enter(cls: Class) -> Class:
            taken = self._classes.get(name)
            if taken is not None and (taken.__module__, taken.__qualname__) != (
                cls.__module__,
                cls.__qualname__,
            ):
                raise ValueError(
                    f"{self.kind} {name!r} is already registered as {taken.__module__}.{taken.__qualname__}"
                )
            self._classes[name] = cls
            return cls

        return enter

    def get(self, name: str) -> type[T]:
        """The class registered as `name`; raises ValueError that suggests the nearest name."""
        if name in self._classes:
            return self._classes[name]
        hint = did_you_mean(name, self._classes)
        raise ValueError(f"unknown {self.kind} {name!r}.{hint} Registered are {', '.join(self.names())}.")

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._classes)
