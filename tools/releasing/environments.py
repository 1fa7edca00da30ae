"""Bare environments: the wheel installed by every Python that the project names, with and without extras, and tried."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from releasing.project import ROOT, metadata

EXTRAS = ("train", "onnx", "tensorboard")
"""Those for users; the others are for this repository."""
_SHIMS = Path.home() / ".pyenv" / "versions"
_ASKS = "import ensurepip, sys, venv; print('.'.join(map(str, sys.version_info[:3])))"
_README = "import importlib.metadata; print(importlib.metadata.metadata('openmps').get_payload())"


@dataclass
class Tried:
    """What an environment was, and how it went; ``fault`` is empty where all was well."""

    python: str
    versions: str
    """Those of constraints.txt, or the oldest that the package allows."""
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each step took."""
    bytes_without_extras: int = 0
    bytes_with_extras: int = 0
    torch: str = ""
    numpy: str = ""
    fault: str = ""


class StepError(Exception):
    """A command that ended otherwise than it should."""


def find(wanted: str, given: list[Path]) -> Path | None:
    """The interpreter of a version such as 3.12: of those given, on the path, or pyenv's."""
    on_path = shutil.which(f"python{wanted}")
    for path in [*given, *([Path(on_path)] if on_path else []), *sorted(_SHIMS.glob(f"{wanted}.*/bin/python"))]:
        if version_of(path).rpartition(".")[0] == wanted:
            return path
    return None


def version_of(python: Path) -> str:
    """What an interpreter says that it is; empty where it does not run or cannot make environments."""
    try:
        done = subprocess.run([python, "-c", _ASKS], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def oldest(root: Path = ROOT) -> str:
    """Constraints that leave the oldest version of each package that openmps needs."""
    needed = [Requirement(text) for text in metadata(root)["dependencies"]]
    bounds = {each.name: next(iter(each.specifier)).version for each in needed}
    return "".join(f"{name}=={bound}.*\n" for name, bound in bounds.items())


@dataclass
class Environment:
    """A virtual environment in a folder, and the wheel that is tried there."""

    folder: Path
    wheel: Path
    constraints: Path
    tried: Tried

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def step(self, name: str, *arguments: str) -> str:
        """Run its interpreter, and keep how long that took."""
        variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        variables |= {"PYTHONNOUSERSITE": "1"}
        began = time.monotonic()
        command = [str(self.python), *arguments]
        done = subprocess.run(command, cwd=self.folder, env=variables, capture_output=True, text=True, check=False)
        self.tried.seconds[name] = round(time.monotonic() - began, 1)
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
            raise StepError(f"{name}: {' '.join(arguments)} ended with {done.returncode}:\n{said}")
        return done.stdout

    def install(self, name: str, extras: str = "") -> None:
        """Install the wheel with some extras."""
        wanted = f"{self.wheel}[{extras}]" if extras else str(self.wheel)
        self.step(name, "-m", "pip", "install", "-q", "-c", str(self.constraints), wanted)
        self.step("pip check", "-m", "pip", "check")

    def doctor(self, name: str, extras: tuple[str, ...] = ()) -> dict[str, Any]:
        """What ``openmps doctor`` says: libraries of the extras must be there, and all devices compute."""
        told = self.step(name, "-m", "openmps", "doctor", "--json")
        try:
            facts = json.loads(told)
        except ValueError as error:
            raise StepError(f"{name}: openmps doctor --json must print JSON, got {told[:200]!r}") from error
        states = {each["name"]: each["state"] for each in facts["libraries"] if each["extra"] in ("", *extras)}
        absent = [library for library, state in states.items() if state != "ok"]
        if absent:
            raise StepError(f"{name}: {', '.join(absent)} must be there with the extras {extras}")
        return facts

    def packages(self) -> set[str]:
        """Names of all packages that are installed."""
        told = json.loads(self.step("pip list", "-m", "pip", "list", "--format", "json"))
        return {each["name"] for each in told}

    def size(self) -> int:
        """Bytes of what is installed."""
        (library,) = self.folder.glob("lib/python*/site-packages")
        return sum(path.stat().st_size for path in library.rglob("*") if path.is_file() and not path.is_symlink())

    def run_readme(self, name: str) -> None:
        """Run the example of the README that the wheel carries."""
        page = self.folder / "README.md"
        page.write_text(self.step("its README", "-c", _README), encoding="utf-8")
        self.step(name, str(ROOT / "tools" / "run_doc_examples.py"), str(page))


def make(python: Path, folder: Path, wheel: Path, constraints: Path, versions: str) -> Environment:
    """An environment of an interpreter with nothing in it but pip."""
    tried = Tried(version_of(python), versions)
    began = time.monotonic()
    subprocess.run([python, "-m", "venv", folder], check=True, capture_output=True)
    tried.seconds["venv"] = round(time.monotonic() - began, 1)
    return Environment(folder, wheel, constraints, tried)


def try_out(environment: Environment, *, each_extra: bool) -> Tried:
    """Install the wheel alone, with each extra alone if asked for, and with all; check it each time; run its README."""
    tried = environment.tried
    try:
        environment.install("install")
        tried.bytes_without_extras = environment.size()
        facts = environment.doctor("doctor")
        found = {each["name"]: each["version"] for each in facts["libraries"]}
        tried.torch, tried.numpy = found["torch"], found["numpy"]
        for extra in EXTRAS if each_extra else ():
            before = environment.packages()
            environment.install(f"install [{extra}]", extra)
            environment.doctor(f"doctor [{extra}]", (extra,))
            added = sorted(environment.packages() - before)
            environment.step(f"uninstall [{extra}]", "-m", "pip", "uninstall", "-q", "-y", *added)
        environment.install("install all", ",".join(EXTRAS))
        tried.bytes_with_extras = environment.size()
        environment.doctor("doctor all", EXTRAS)
        environment.run_readme("README")
    except (StepError, subprocess.CalledProcessError) as error:
        tried.fault = str(error)
    return tried


def row(tried: Tried) -> dict[str, Any]:
    """A line of the manifest."""
    return asdict(tried)
