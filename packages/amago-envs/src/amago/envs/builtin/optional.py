"""Imports of the third-party packages that builtin environments need."""

from importlib import import_module
from types import ModuleType


def optional_import(module: str, *, extra: str | None = None, install: str | None = None) -> ModuleType:
    """Imports a module of an optional dependency.

    Args:
        module: name of the module, such as "popgym.envs".
        extra: extra of amago-envs that installs it.
        install: the command that installs it, for packages that an extra cannot install.

    Raises:
        ImportError: if the module cannot be imported; the message has the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        command = install or f"pip install 'amago-envs[{extra}]'"
        raise ImportError(
            f"this environment needs {module.partition('.')[0]} ({error}): {command}"
        ) from error
