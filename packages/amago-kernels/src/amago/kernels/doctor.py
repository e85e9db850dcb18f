"""`python -m amago.kernels.doctor`: the backends that run on this machine, and why the others do not.

Below each operation stands the order in which "auto" tries its backends; it takes the first that can run a call.
Nothing is built unless --build is given.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator, Sequence

import torch

from amago.kernels import build
from amago.kernels.backends import Implementation, operations, order
from amago.kernels.native import EXTENSIONS, BuildError, Extension


def machine() -> list[tuple[str, str]]:
    """Versions and devices that the backends depend on, as (name, value)."""
    compiler = build.find_compiler()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [
        ("Python", f"{platform.python_version()} on {platform.platform()}"),
        ("torch", f"{torch.__version__}, {torch.get_num_threads()} threads"),
        ("CPU", torch.backends.cpu.get_cpu_capability()),
        ("GPU", ", ".join(gpus) or "none"),
        ("compiler", "none" if compiler is None else f"{' '.join(compiler.command)}: {compiler.version}"),
        ("cache", str(build.cache_folder())),
        ("building", "when first needed" if build.may_build() else "never (AMAGO_KERNELS_BUILD)"),
    ]


def state(extension: Extension) -> str:
    """Whether a native module is built or can be built, or why not."""
    built = build.built_file(extension) if extension.has_hardware() else None
    if built is not None:
        return f"built: {built.name}"
    reasons = extension.missing()
    return "; ".join(reasons) if reasons else "not built yet: the first call that needs it builds it"


def verdict(implementation: Implementation) -> str:
    """Whether a backend runs here, or why not."""
    reasons = implementation.missing()
    return "no: " + "; ".join(reasons) if reasons else "runs"


def orders(operation: str) -> Iterator[str]:
    """A line for each device type and kind of call of an operation: the order of backends that run here."""
    runs = {impl.backend for impl in operations()[operation] if not impl.missing()}
    kinds = {operation: ""}
    if operation == "attention":
        kinds["masked_attention"] = " with a window, biased sinks, a clip or lengths"
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for kind, words in kinds.items():
            names = [backend.value for backend in order(kind, torch.device(device)) if backend in runs]
            yield f"auto on {device}{words}: {' > '.join(names)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report; returns the exit status, 1 if --build was given and a build failed."""
    parser = argparse.ArgumentParser(
        prog="python -m amago.kernels.doctor",
        description="Prints the backends that run on this machine, why the others do not, and the order in which "
        "'auto' tries them.",
    )
    parser.add_argument("--build", action="store_true", help="first build and load all native code")
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
        for line in orders(operation):
            print(f"  {line}")
    return status


if __name__ == "__main__":
    sys.exit(main())
