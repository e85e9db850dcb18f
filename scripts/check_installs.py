"""Builds the five wheels, installs each package alone into a clean environment and runs its tests there.

For each package: a new virtual environment, the package's wheel with its siblings from dist/ and everything else
from the index, an import of every module with nothing else installed, then the package's tests, copied into a
temporary folder so that no source tree is in reach. The runner's environment also type-checks a user's script
against the installed wheels.

torch is not installed again: it is 190 MB, needed four times. The clean environments see torch and its own
requirements through links to the environment that runs this script, and pip takes them as installed. Any other
requirement of a package has to be declared by it.

`--python 3.13` uses another interpreter. The packages that need torch are then skipped, with a message, because
the linked torch is built for the interpreter of this script.
"""

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PACKAGES = (
    "kernels",
    "nets",
    "envs",
    "agents",
    "runner",
)  # an order in which siblings come before their users
SIBLINGS = {
    "kernels": set(),
    "nets": {"kernels"},
    "envs": set(),
    "agents": {"kernels", "nets"},
    "runner": {"kernels", "nets", "envs", "agents"},
}
WITHOUT_TORCH = {"envs"}
CONSTRAINTS = {"pinned": "constraints.txt", "oldest": "constraints-oldest.txt", "newest": None}
TEST_TOOLS = ("pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "numpy", "safetensors")
TESTED_WITH = {
    "kernels": ("triton",),  # its interpreter runs the kernels on the CPU
    "nets": ("gymnasium",),  # real spaces to read
    "agents": ("gymnasium",),
    "runner": ("h5py", "imageio-ffmpeg", "minari", "tensorboard"),
}  # what their tests need; they do without
SHARED_TEST_FILES = (
    "conftest.py",
    "pyproject.toml",
    "tests/conftest.py",
    "tests/golden",
)

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys, amago
names = [module.name for module in pkgutil.walk_packages(amago.__path__, "amago.")]
names = [name for name in names if not name.endswith(".__main__")]
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "triton" or not name.rpartition(".")[2].startswith("triton_"):
            raise
print(f"imported {len(names)} modules")
"""


def run(command: list[str | Path], cwd: Path) -> None:
    """Runs a command with no setting inherited that could show it this repository; its failure ends the check."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "MYPYPATH", "VIRTUAL_ENV"}
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    if "PIP_BUILD_CONSTRAINT" in env:
        env["PIP_BUILD_CONSTRAINT"] = str(ROOT / "constraints.txt")  # the Makefile's is relative to the root
    print("+", *(str(word) if "\n" not in str(word) else "..." for word in command), flush=True)
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"failed with exit status {done.returncode}")


def build_wheels() -> None:
    """The five wheels, each from its own isolated build, as the only amago wheels in dist/."""
    for old in DIST.glob("amago_*.whl"):
        old.unlink()
    sources = [ROOT / "packages" / f"amago-{name}" for name in PACKAGES]
    run([sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "-w", DIST, *sources], cwd=ROOT)


def wheel_of(package: str) -> Path:
    (wheel,) = DIST.glob(f"amago_{package}-*.whl")
    return wheel


def requirement_closure(name: str) -> dict[str, importlib.metadata.Distribution]:
    """A distribution of this environment and all that it requires here, optional extras left out."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [name]
    while waiting:
        wanted = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if wanted in found:
            continue
        try:
            found[wanted] = importlib.metadata.distribution(wanted)
        except importlib.metadata.PackageNotFoundError:
            continue  # a requirement for another platform or Python
        for requirement in found[wanted].requires or []:
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            if match and "extra ==" not in requirement:
                waiting.append(match[0])
    return found


def link_torch(folder: Path) -> None:
    """Fills `folder` with links to the installed files of torch and of what it requires."""
    folder.mkdir()
    for distribution in requirement_closure("torch").values():
        for top in {file.parts[0] for file in distribution.files or []}:
            source = Path(str(distribution.locate_file(top)))
            if top not in {"..", "__pycache__"} and not (folder / top).exists():
                (folder / top).symlink_to(source)


def find_interpreter(version: str) -> Path | None:
    """The interpreter of a Python version such as "3.13", from PATH or from pyenv; None if there is none."""
    commands = [[f"python{version}", "-c", "import sys; print(sys.executable)"], ["pyenv", "prefix", version]]
    for command in commands:
        if shutil.which(command[0]) is None:
            continue
        found = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if found.returncode == 0:
            path = Path(found.stdout.strip())
            return path / "bin" / "python" if path.is_dir() else path
    return None


def clean_environment(folder: Path, torch_links: Path | None, interpreter: Path) -> Path:
    """A new virtual environment, with links to torch if `torch_links` is given; returns its interpreter."""
    run([interpreter, "-m", "venv", folder], cwd=folder.parent)
    if torch_links is not None:
        site_packages = next(folder.glob("lib/python*/site-packages"))
        (site_packages / "linked_torch.pth").write_text(f"{torch_links}\n")
    return folder / "bin" / "python"


def installed_names(python: Path) -> set[str]:
    command = [str(python), "-m", "pip", "list", "--format=freeze"]
    listing = subprocess.run(
        command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    ).stdout
    return {line.split("==")[0].lower() for line in listing.splitlines()}


def copy_tests(package: str, folder: Path) -> None:
    """The package's tests, its README (whose examples are tests) and what all tests share, laid out as here."""
    for name in (*SHARED_TEST_FILES, f"tests/{package}", f"packages/amago-{package}/README.md"):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target)


def check_user_script(python: Path, work: Path) -> None:
    """mypy on a script that uses the installed wheels, as a user without this repository would run it."""
    script = work / "user_script.py"
    shutil.copy(ROOT / "tests" / "install" / "user_script.py", script)
    (work / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    mypy: list[str | Path] = [sys.executable, "-m", "mypy", "--cache-dir", work / "mypy"]
    run([*mypy, "--python-executable", python, script], cwd=work)


def check_package(package: str, work: Path, *, interpreter: Path, versions: str, jobs: int) -> None:
    """Installs one package into a clean environment under `work` and runs its tests there."""
    needs_torch = package not in WITHOUT_TORCH
    torch_links = work / "torch" if needs_torch else None
    if torch_links is not None:
        link_torch(torch_links)
    python = clean_environment(work / "venv", torch_links, interpreter)
    constraints = CONSTRAINTS[versions]
    pins: list[str | Path] = ["-c", ROOT / constraints] if constraints else []
    siblings = work / "siblings.txt"  # an index may hold packages of these names: these wheels it must be
    siblings.write_text("".join(f"amago-{name} @ {wheel_of(name).as_uri()}\n" for name in PACKAGES))
    pip_install: list[str | Path] = [python, "-m", "pip", "install", "-qq", "-c", siblings, *pins]
    run([*pip_install, f"amago-{package}"], cwd=work)

    ours = {name for name in installed_names(python) if name.startswith("amago-")}
    expected = {f"amago-{name}" for name in SIBLINGS[package] | {package}}
    if ours != expected:
        raise SystemExit(f"amago-{package} installed {sorted(ours)}, want {sorted(expected)}")
    run([python, "-m", "pip", "check"], cwd=work)
    run([python, "-c", IMPORT_EVERYTHING], cwd=work)
    if package == "runner":
        run([work / "venv" / "bin" / "amago-run", "--help"], cwd=work)
        check_user_script(python, work)

    run([*pip_install, *TEST_TOOLS, *TESTED_WITH.get(package, ())], cwd=work)
    if not needs_torch and "torch" in installed_names(python):
        raise SystemExit(f"amago-{package} is for use without torch, but its environment has one")
    copy_tests(package, work / "outside")
    selection = ["-m", "not slow and not gpu and not source_only", "-n", str(jobs)]
    run([python, "-m", "pytest", "-q", *selection, f"tests/{package}"], cwd=work / "outside")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "packages", nargs="*", help=f"which to check, of: {' '.join(PACKAGES)} (default: all)"
    )
    parser.add_argument("--versions", choices=CONSTRAINTS, default="pinned", help="of third-party packages")
    parser.add_argument(
        "--python", metavar="VERSION", help="Python version, such as 3.13 (default: this one)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="test processes (default: 2)")
    parser.add_argument("--wheels-only", action="store_true", help="build the wheels into dist/ and stop")
    arguments = parser.parse_args()
    unknown = set(arguments.packages) - set(PACKAGES)
    if unknown:
        parser.error(f"no such packages: {' '.join(sorted(unknown))}; there are {' '.join(PACKAGES)}")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    build_wheels()
    if arguments.wheels_only:
        return
    own_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    version, interpreter = arguments.python or own_version, Path(sys.executable)
    if version != own_version:
        found = find_interpreter(version)
        if found is None:
            print(
                f"There is no Python {version} on this machine: amago-envs is tested on {own_version} instead"
            )
        interpreter = found or interpreter
    tested = version if interpreter != Path(sys.executable) else own_version
    seconds = {}
    for package in arguments.packages or PACKAGES:
        if package not in WITHOUT_TORCH and version != own_version:
            print(f"SKIPPED: amago-{package} on Python {version}, for which this machine has no torch")
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=f"amago-{package}-") as name:
            check_package(
                package, Path(name), interpreter=interpreter, versions=arguments.versions, jobs=arguments.jobs
            )
        seconds[package] = time.monotonic() - started
    for package, taken in seconds.items():
        print(f"amago-{package} passed alone, {arguments.versions} versions, Python {tested} ({taken:.0f} s)")


if __name__ == "__main__":
    main()
