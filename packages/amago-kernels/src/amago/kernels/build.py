"""`python -m amago.kernels.build`: builds the native code ahead of time, for an image or a cluster's shared cache.

Afterwards AMAGO_KERNELS_BUILD=never keeps later processes from building anything themselves.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from amago.kernels.compile import BuildError
from amago.kernels.native import EXTENSIONS


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds and loads every module or those named; returns the exit status, 1 if one failed."""
    names = [extension.name for extension in EXTENSIONS]
    parser = argparse.ArgumentParser(prog="python -m amago.kernels.build", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"what to build: {', '.join(names)}; by default all that this machine has hardware for",
    )
    parser.add_argument("--again", action="store_true", help="build even what was built before")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(names))
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(names)}")
    status = 0
    for extension in EXTENSIONS:
        wanted = extension.name in options.names if options.names else extension.has_hardware()
        if not wanted:
            continue
        start = time.perf_counter()
        try:
            path = extension.build(again=options.again)
            extension.load()
        except BuildError as error:
            print(f"{extension.name}: {error}", file=sys.stderr)
            status = 1
        else:
            print(f"{extension.name}: {path} ({time.perf_counter() - start:.1f} s)")
    return status


if __name__ == "__main__":
    sys.exit(main())
