"""Builds sdists and wheels of the five packages into dist/ and checks what is in them.

Each wheel is built from its sdist, so the sdist is complete. The check covers the files, that all versions are
equal, and that packages ask for siblings of that version. twine checks the descriptions. Nothing is uploaded.
"""

import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PACKAGES = ("kernels", "nets", "envs", "agents", "runner")
TYPED = {
    "kernels": ["amago/kernels/py.typed"],
    "nets": ["amago/nets/py.typed"],
    "envs": ["amago/envs/py.typed", "amago/hindsight/py.typed"],
    "agents": ["amago/agent/py.typed"],
    "runner": ["amago/py.typed"],
}
SUFFIXES = {".py", ".typed", ".cpp", ".cu", ".h", ".html"}
BESIDE_SOURCES = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", ".gitignore"}
UV = [sys.executable, "-m", "uv"]


def run(command: list[str]) -> None:
    print("+", *command, flush=True)
    if subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode:
        raise SystemExit("failed")


def build(package: str) -> tuple[Path, Path]:
    """The sdist and the wheel of a package."""
    folder = f"packages/amago-{package}"
    run([*UV, "build", "-q", "--build-constraints", "constraints.txt", "--out-dir", str(DIST), folder])
    (sdist,) = DIST.glob(f"amago_{package}-*.tar.gz")
    (wheel,) = DIST.glob(f"amago_{package}-*.whl")
    return sdist, wheel


def source_files(package: str) -> set[str]:
    """The files of the package in the repository, as "amago/..."; SystemExit for one that does not belong."""
    src = ROOT / "packages" / f"amago-{package}" / "src"
    files = {path for path in src.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    if strange := sorted(str(path) for path in files if path.suffix not in SUFFIXES):
        raise SystemExit(f"not part of a package: {', '.join(strange)}")
    return {path.relative_to(src).as_posix() for path in files}


def require_equal(what: str, found: set[str], expected: set[str]) -> None:
    if found != expected:
        raise SystemExit(f"{what}: unexpected {sorted(found - expected)}, missing {sorted(expected - found)}")


def check_files(package: str, sdist: Path, wheel: Path) -> Message:
    """Compares both archives with the repository; returns the wheel's metadata."""
    sources = source_files(package)
    missing = [name for name in TYPED[package] if name not in sources]
    if missing:
        raise SystemExit(f"amago-{package} lacks {missing}: type checkers would ignore its types")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    require_equal(sdist.name, names, {f"src/{name}" for name in sources} | BESIDE_SOURCES)
    with zipfile.ZipFile(wheel) as zipped:
        names = set(zipped.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        parsed = Parser().parsestr(zipped.read(metadata).decode())
    info = metadata.rpartition("/")[0]
    own = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "licenses/LICENSE")}
    own |= {f"{info}/entry_points.txt"} if package == "runner" else set()
    require_equal(wheel.name, names, sources | own)
    return parsed


def check_versions(metadata: dict[str, Message]) -> str:
    """The version of all packages; SystemExit unless it is one, and every package asks for it of its siblings."""
    versions = {str(each["Version"]) for each in metadata.values()}
    if len(versions) != 1:
        raise SystemExit(f"the packages have different versions: {sorted(versions)}")
    (version,) = versions
    major, minor = version.split(".")[:2]
    for package, each in metadata.items():
        for requirement in each.get_all("Requires-Dist") or []:
            name = requirement.replace("<", " ").replace(">", " ").replace("=", " ").split()[0]
            wanted = {
                f"{name}<{int(major) + 1},>={major}.{minor}",
                f"{name}>={major}.{minor},<{int(major) + 1}",
            }
            if name.startswith("amago-") and requirement not in wanted:
                raise SystemExit(f"amago-{package} requires {requirement!r}, want {min(wanted)!r}")
        changelog = (ROOT / "packages" / f"amago-{package}" / "CHANGELOG.md").read_text()
        if f"## {version}" not in changelog:
            raise SystemExit(f"the changelog of amago-{package} says nothing about {version}")
    return version


def main() -> None:
    for old in [*DIST.glob("amago_*.whl"), *DIST.glob("amago_*.tar.gz")]:
        old.unlink()
    metadata, archives = {}, []
    for package in PACKAGES:
        sdist, wheel = build(package)
        metadata[package] = check_files(package, sdist, wheel)
        archives += [str(sdist), str(wheel)]
    version = check_versions(metadata)
    run([*UV, "tool", "run", "twine", "check", "--strict", *archives])
    print(f"{len(archives)} archives of version {version} in {DIST.relative_to(ROOT)}/")


if __name__ == "__main__":
    main()
