"""`python -m amago.kernels.doctor`: which backends run on this machine, and why the others do not.

It builds nothing, unless asked to with --build: native code that is not built yet is said to be so.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence

import torch

from amago.kernels.backends import Implementation, operations
from amago.kernels.compile import BuildError, Extension, cache_folder, find_compiler, may_build
from amago.kernels.native import EXTENSIONS


def machine() -> list[tuple[str, str]]:
    """What the backends depend on, as (name, value)."""
    compiler = find_compiler()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [
        ("Python", f"{platform.python_version()} on {platform.platform()}"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        ("CPU", torch.backends.cpu.get_cpu_capability()),
        ("GPU", ", ".join(gpus) or "none"),
        ("compiler", "none" if compiler is None else f"{' '.join(compiler.command)}: {compiler.version}"),
        ("cache", str(cache_folder())),
        ("building", "when first needed" if may_build() else "never (AMAGO_KERNELS_BUILD)"),
    ]


def state(extension: Extension) -> str:
    """Whether a native module is built, can be, or why not."""
    built = extension.built_file() if extension.has_hardware() else None
    if built is not None:
        return f"built: {built.name}"
    reasons = extension.missing()
    return "; ".join(reasons) if reasons else "not built yet: that happens when it is first needed"


def verdict(implementation: Implementation) -> str:
    """Whether a backend runs here, or why it does not."""
    reasons = implementation.missing()
    return "no: " + "; ".join(reasons) if reasons else "runs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report; returns the exit status, 1 if --build was given and something could not be built."""
    parser = argparse.ArgumentParser(prog="python -m amago.kernels.doctor", description=__doc__)
    parser.add_argument("--build", action="store_true", help="build and load what can be, first")
    options = parser.parse_args(arguments)
    status = 0
    if options.build:
        for extension in (extension for extension in EXTENSIONS if extension.has_hardware()):
            try:
                extension.load()
            except BuildError:
                status = 1  # the report says why
    for name, value in machine():
        print(f"{name:10} {value}")
    print("\nnative code")
    for extension in EXTENSIONS:
        print(f"  {extension.name:24} {state(extension)}")
    for operation, implementations in operations().items():
        print(f"\n{operation}")
        for implementation in implementations:
            print(f"  {implementation.backend.value:10} {verdict(implementation)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
