"""Registry of classes by name, and "Did you mean" suggestions for unknown names.

amago-nets and amago-envs contain identical copies of this file, so that neither package depends on the other.
"""

import difflib
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Class = TypeVar("Class", bound=type[Any])


def did_you_mean(name: Any, options: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" with the most similar option, or "" if no option is similar."""
    similar = difflib.get_close_matches(str(name), list(options), n=1)
    return f" Did you mean {similar[0]!r}?" if similar else ""


class Registry(Generic[T]):
    """Maps names to classes. Registering a name twice or looking up an unknown name raises ValueError.

    Args:
        kind: kind of class in error messages, e.g. "trajectory encoder".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[T]] = {}
        self._aliases: dict[str, str] = {}

    def register(self, name: str) -> Callable[[Class], Class]:
        """Class decorator that registers the class as `name`.

        Raises:
            ValueError: if another class has the name. The same class may be registered again, for example
                after a module reload.
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

    def alias(self, name: str, other: str) -> None:
        """Makes `name` mean `other` where no class is registered as `name`. `names` does not list it."""
        self._aliases[name] = other

    def get(self, name: str) -> type[T]:
        """Returns the class registered as `name`.

        Raises:
            ValueError: if the name is unknown; the message suggests the most similar name.
        """
        if name not in self._classes:
            name = self._aliases.get(name, name)
        if name in self._classes:
            return self._classes[name]
        known = sorted({*self._classes, *self._aliases})
        raise ValueError(
            f"unknown {self.kind} {name!r}. Registered are {', '.join(known)}.{did_you_mean(name, known)}"
        )

    def names(self) -> list[str]:
        """Returns all registered names, sorted."""
        return sorted(self._classes)
