"""Registry of classes by name, for encoders, agents and exploration strategies; and suggestions for mistyped
names.

amago-nets and amago-envs carry equal copies of this file, so that neither package depends on the other.
"""

import difflib
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Class = TypeVar("Class", bound=type[Any])


def did_you_mean(name: Any, options: Iterable[str]) -> str:
    """A suggestion to append to an error message: " Did you mean 'x'?", or "" if no option is similar."""
    similar = difflib.get_close_matches(str(name), list(options), n=1)
    return f" Did you mean {similar[0]!r}?" if similar else ""


class Registry(Generic[T]):
    """Maps names to classes. A name can be registered once; looking up an unknown name suggests the nearest.

    Args:
        kind: what the registry holds, for error messages, e.g. "trajectory encoder".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[Class], Class]:
        """Class decorator that registers the class as `name`.

        Raises:
            ValueError: if another class has the name. The same class may be registered again, as happens when
                its module is reloaded.
        """

        def decorate(cls: Class) -> Class:
            registered = self._classes.get(name)
            if registered is not None and (registered.__module__, registered.__qualname__) != (
                cls.__module__,
                cls.__qualname__,
            ):
                raise ValueError(
                    f"{self.kind} {name!r} is already registered as "
                    f"{registered.__module__}.{registered.__qualname__}"
                )
            self._classes[name] = cls
            return cls

        return decorate

    def get(self, name: str) -> type[T]:
        """The class registered as `name`.

        Raises:
            ValueError: if the name is unknown; suggests the nearest.
        """
        if name in self._classes:
            return self._classes[name]
        raise ValueError(
            f"unknown {self.kind} {name!r}. Registered are {', '.join(self.names())}."
            f"{did_you_mean(name, self._classes)}"
        )

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._classes)
