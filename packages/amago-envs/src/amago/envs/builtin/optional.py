"""Imports of the third-party packages that builtin environments need, and the commands that install them."""

from importlib import import_module
from types import ModuleType

# Packages that an extra cannot install: dm_alchemy is not on PyPI. procgen2 declares numpy 1 and the unmaintained
# gym, and needs neither here, so pip must not resolve its dependencies.
ALCHEMY_INSTALL = "pip install dm_env 'dm_alchemy @ git+https://github.com/google-deepmind/dm_alchemy'"
PROCGEN_INSTALL = "pip install --no-deps procgen2==0.10.7 gym3==0.3.3 && pip install cffi imageio"


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
