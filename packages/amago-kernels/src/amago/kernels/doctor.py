"""`python -m amago.kernels.doctor`: which backends run on this machine, and why the others do not.

Below each operation stands in which order "auto" tries the backends that run here, for every class of sizes
(`amago.kernels.shape_classes`), and from which measurements: it takes the first that can run the call.

Nothing is built, unless asked for with --build: native code that is not built yet is said to be so.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator, Sequence

import torch

from amago.kernels import measured, shape_classes
from amago.kernels.backends import Backend, Implementation, operations, order
from amago.kernels.compile import BuildError, Extension, cache_folder, find_compiler, may_build
from amago.kernels.native import EXTENSIONS
from amago.kernels.triton_runtime import INTERPRETED


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
        (
            "speed",
            f"{measured.user_table()}{'' if measured.user_table().exists() else ' (not measured yet)'}",
        ),
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


_OF_CPUS = (Backend.CPP, Backend.ONEDNN)
_OF_GPUS = (Backend.FLEX, Backend.TRITON, Backend.CUDA, Backend.MAMBA_SSM)
MEASURE = "python -m amago.kernels.tune"
NEVER_MEASURED = f"never measured on this device: {MEASURE}"


def devices() -> list[torch.device]:
    """The CPU, and one of each kind of GPU that is here."""
    gpus = {torch.cuda.get_device_name(i): torch.device("cuda", i) for i in range(torch.cuda.device_count())}
    return [torch.device("cpu"), *gpus.values()]


def orders(operation: str, device: torch.device) -> Iterator[tuple[str, list[str], str]]:
    """For every class of sizes: its name, the backends in the order in which "auto" tries them, and why so."""
    elsewhere = _OF_GPUS if device.type == "cpu" and not INTERPRETED else _OF_CPUS
    for shape in shape_classes.NAMES[operation]:
        implementations, row = order(operation, device, shape)
        names = [x.backend.value for x in implementations if x.backend not in elsewhere and not x.missing()]
        yield shape, names, NEVER_MEASURED if row is None else source(row)


def source(row: measured.Row) -> str:
    """Whose measurements a row holds, how old they are, and whether the user had better measure again."""
    whose = "the package's table" if row.source == measured.PACKAGE_TABLE else str(row.source)
    notes = row.notes
    text = f"{whose}, {notes.get('date')}, torch {notes.get('torch')}, {notes.get('threads')} threads"
    others = measured.outdated(row)
    return f"{text}; {', '.join(others)}: {MEASURE} measures anew" if others else text


def print_orders(operation: str) -> None:
    """A line for the classes of sizes of an operation that have an order and its reason in common."""
    for device in devices():
        groups: dict[tuple[tuple[str, ...], str], list[str]] = {}
        for shape, names, why in orders(operation, device):
            groups.setdefault((tuple(names), why), []).append(shape)
        print(f"  auto on {shape_classes.device_class(device)}")
        for (tried, why), shapes in groups.items():
            which = "every size" if len(groups) == 1 else ", ".join(shapes)
            print(f"    {' > '.join(tried)}  [{which}]  ({why})")


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
        print_orders(operation)
    return status


if __name__ == "__main__":
    sys.exit(main())
