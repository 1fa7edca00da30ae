"""The sdist and the wheel: built twice to the same bits, looked at by others' tools, with their hashes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

from releasing.project import ROOT, ReleaseError

_TREES = ({"TZ": "UTC"}, 0o022), ({"TZ": "Pacific/Auckland", "LANG": "C"}, 0o077)
"""What differs between the two builds, beside the folder and the time: none of it may show."""
_BUILDERS = ("build", "hatchling", "twine", "check-wheel-contents", "validate-pyproject", "pyroma", "cyclonedx-bom")
_LEAST_RATING = "10"


def head(root: Path = ROOT) -> str:
    """The commit that is built: the tree must be that, and nothing else."""
    changed = _git(root, "status", "--porcelain")
    if changed:
        raise ReleaseError(f"what is built is the last commit, and files differ from it: commit them first\n{changed}")
    return _git(root, "rev-parse", "HEAD")


def build(commit: str, epoch: int, folder: Path, root: Path = ROOT) -> list[Path]:
    """The sdist and the wheel of a commit, which two builds have made alike."""
    made: list[dict[str, Path]] = []
    for number, (settings, mask) in enumerate(_TREES):
        # Paths of other lengths: a path that got into an artifact would show.
        tree, out = folder / f"tree{'x' * 10 * number}", folder / f"artifacts{number}"
        _export(root, commit, tree)
        before = os.umask(mask)
        try:
            environment = {**os.environ, **settings, "SOURCE_DATE_EPOCH": str(epoch)}
            _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)], environment)
        finally:
            os.umask(before)
        made.append({path.name: path for path in sorted(out.iterdir())})
    first, second = made
    different = [
        name for name in {*first, *second} if name not in first or name not in second
        or first[name].read_bytes() != second[name].read_bytes()
    ]  # fmt: skip
    if different:
        raise ReleaseError(f"two builds of one commit differ: {', '.join(different)}")
    return [*first.values()]


def checks(artifacts: list[Path], root: Path = ROOT) -> dict[str, str]:
    """Which of others' tools found nothing wrong with the artifacts; ReleaseError where one finds something."""
    wheel = next(path for path in artifacts if path.suffix == ".whl")
    sdist = next(path for path in artifacts if path.name.endswith(".tar.gz"))
    commands = {
        "twine check --strict": ["-m", "twine", "check", "--strict", *map(str, artifacts)],
        "check-wheel-contents": ["-m", "check_wheel_contents", str(wheel)],
        "validate-pyproject": ["-m", "validate_pyproject", str(root / "pyproject.toml")],
        f"pyroma --min {_LEAST_RATING}": ["-m", "pyroma", "--min", _LEAST_RATING, str(sdist)],
    }
    for command in commands.values():
        _run([sys.executable, *command])
    return dict.fromkeys(commands, "passed")


def bill_of_materials(python: Path, path: Path, epoch: int, root: Path = ROOT) -> None:
    """Write what an environment holds as a CycloneDX SBOM."""
    command = ["environment", str(python), "--pyproject", str(root / "pyproject.toml"), "--mc-type", "library"]
    more = ["--output-reproducible", "--output-format", "JSON", "--output-file", str(path)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    _run([sys.executable, "-m", "cyclonedx_py", *command, *more], environment)


def hashes(files: list[Path]) -> list[dict[str, object]]:
    """Name, size and SHA-256 of each file."""
    return [
        {"file": path.name, "bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in files
    ]


def builders() -> dict[str, str]:
    """The versions of what builds and looks."""
    return {"python": sys.version.split()[0], **{name: importlib.metadata.version(name) for name in _BUILDERS}}


def _export(root: Path, commit: str, folder: Path) -> None:
    """The files of a commit, as git has them: nothing that lies beside them gets into an artifact."""
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    _git(root, "archive", "--output", str(archive), commit)
    shutil.unpack_archive(archive, folder, filter="data")
    archive.unlink()


def _git(root: Path, *arguments: str) -> str:
    return _run(["git", "-C", str(root), *arguments]).rstrip()


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-40:])
        raise ReleaseError(f"{' '.join(command)} ended with {done.returncode}:\n{said}")
    return done.stdout or done.stderr
