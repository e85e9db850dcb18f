"""`python -m amago.kernels.doctor`: the backends that run on this machine, and why the others do not.

Below each operation stands the order in which "auto" tries its backends; it takes the first that can run a call.
Nothing is built.
"""

from __future__ import annotations

import platform

import torch

from amago.kernels import build
from amago.kernels.backends import ORDERS, Implementation, operations, order


def _verdict(implementation: Implementation) -> str:
    reasons = implementation.missing(False)
    return "no: " + "; ".join(reasons) if reasons else "runs"


def main() -> None:
    """Prints the report."""
    compiler = build.find_compiler()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    print(f"Python     {platform.python_version()} on {platform.platform()}")
    print(f"torch      {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"CPU        {torch.backends.cpu.get_cpu_capability()}")
    print(f"GPU        {', '.join(gpus) or 'none'}")
    print(f"compiler   {' '.join(compiler or ['none'])}")
    print(f"cache      {build.cache_folder()}")
    device = torch.device("cuda" if gpus else "cpu")
    for operation, implementations in operations().items():
        print(f"\n{operation}")
        for implementation in implementations:
            print(f"  {implementation.backend.value:10} {_verdict(implementation)}")
        for kind in (operation, f"masked_{operation}"):
            if kind in ORDERS:
                names = " > ".join(backend.value for backend in order(kind, device))
                print(f"  auto on {device}{', masked' if kind != operation else ''}: {names}")


if __name__ == "__main__":
    main()
