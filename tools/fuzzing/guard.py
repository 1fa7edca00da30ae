"""One case, watched: what it opens, what it runs, the memory and the time that it takes, and what comes of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.limits import LONGEST_MESSAGE, RESIDENT_ALLOWANCE, TRACED_ALLOWANCE
from fuzzing.mutations import Special
from fuzzing.target import Target
from openmps.errors import MPSError

_FORBIDDEN = (
    "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "os.fork", "pty.", "socket.",
    "ctypes.", "import", "compile", "exec", "code.__new__", "pickle.", "marshal.", "builtins.input", "urllib.",
    "os.putenv", "os.kill", "sys.settrace", "sys.setprofile",
)  # fmt: skip
_PATHS = (
    "open", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
    "os.chown", "os.utime", "os.listdir", "os.scandir", "os.chdir", "shutil.", "os.mkfifo", "os.mknod",
)  # fmt: skip


class Watch:
    """Python's audit events while a case runs: none may run code, and every path lies in the case's folder."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        folder, self.folder = self.folder, None  # what follows is ours
        try:
            if event.startswith(_FORBIDDEN):
                self.seen.append(f"{event} {arguments!r}"[:200])
            elif event.startswith(_PATHS):
                self.seen += [f"{event} {path!r}"[:200] for path in _paths(arguments) if not _is_in(path, folder)]
        finally:
            self.folder = folder

    @contextlib.contextmanager
    def on(self, folder: Path) -> Iterator[None]:
        self.folder = os.path.realpath(folder)
        try:
            yield
        finally:
            self.folder = None


def _paths(arguments: tuple[Any, ...]) -> list[str]:
    return [
        os.fsdecode(each) for each in arguments[:2] if isinstance(each, str | bytes | os.PathLike) and len(each) > 2
    ]


def _is_in(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(folder + os.sep) or os.path.realpath(path) == folder


def _resident(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))


class Memory:
    """The most memory that a piece of work takes: Python's own count, and the process's, where Linux tells it."""

    traced = resident = 0

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        before = self._reset()
        tracemalloc.start()
        try:
            yield
        finally:
            self.traced = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            self.resident = 0 if before is None else max(0, _resident("VmHWM") - before)

    def _reset(self) -> int | None:
        try:
            Path("/proc/self/clear_refs").write_text("5")
            return _resident("VmRSS")
        except OSError:
            return None


@dataclass(frozen=True)
class Taken:
    """What loading took: bytes of Python's memory, bytes of the whole process, and seconds."""

    traced: int = 0
    resident: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """What came of a case: ``equal``, ``as written``, ``refused``, or a failure that says what happened."""

    kind: str
    message: str = ""
    taken: Taken = Taken()


class Case:
    """The cases of one target: the honest file, what it takes, and a folder that is made anew where it was touched."""

    def __init__(self, target: Target, place: Path, watch: Watch, seed: int, most_seconds: float) -> None:
        self._target, self._watch, self._seed, self._most_seconds = target, watch, seed, most_seconds
        self._honest, self.folder = place / "honest", place / "case"
        self._honest.mkdir(parents=True)
        target.write(self._honest)
        self._files = sorted(path.relative_to(self._honest) for path in self._honest.rglob("*") if path.is_file())
        self._fresh()
        for _ in range(2):  # the first load imports and caches what later ones only use
            memory = Memory()
            with memory.counted():
                loaded = target.load(self.folder)
            self._says = target.says(loaded)
            if not target.is_as_written(self.folder, loaded):
                raise SystemExit(f"{target.name}: the honest file does not say what was loaded")
            target.use(loaded)
            self._fresh()
        self._taken = Taken()
        self.traced, self.resident = memory.traced, max(memory.resident, memory.traced)
        self._length = sum((self._honest / file).stat().st_size for file in self._files)

    def _fresh(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self._honest, self.folder)

    def run(self, number: int) -> Outcome:
        """Case ``number``, which follows from the seed, the target's name and the number alone."""
        random = np.random.default_rng([self._seed, zlib.crc32(self._target.name.encode()), number])
        name, is_knowing, growth = self._mutate(random)
        try:
            found = self._judged(growth, is_knowing)
        finally:
            self._fresh()
        return Outcome(found.kind, f"{name}: {found.message}" if found.message else "", self._taken)

    def _mutate(self, random: np.random.Generator) -> tuple[str, bool, float]:
        """Change one file; which mutation it was, whether it was a knowing one, and by what factor the files grew."""
        target = self._target
        file = self._files[int(random.integers(len(self._files)))]
        is_knowing = bool(target.knowing) and random.random() < 0.6
        pool = target.knowing if is_knowing else target.blind
        mutation = pool[int(random.integers(len(pool)))]
        changed = mutation((self._honest / file).read_bytes(), random)
        place_in(self.folder / file, changed)
        longer = len(changed) - (self._honest / file).stat().st_size if isinstance(changed, bytes) else 0
        return mutation.__name__, is_knowing, max(1.0, (self._length + longer) / self._length)

    def _judged(self, growth: float, is_knowing: bool) -> Outcome:
        memory, loaded, refusal = Memory(), None, None
        self._watch.seen.clear()
        began = time.perf_counter()
        try:
            with memory.counted(), self._watch.on(self.folder):
                loaded = self._target.load(self.folder)
        except MPSError as error:
            refusal = error
        except Exception as error:
            return Outcome("failed", f"raised {type(error).__name__}: {str(error)[:300]}")
        finally:
            self._taken = Taken(memory.traced, memory.resident, time.perf_counter() - began)
        excess = self._excess(self._taken, growth)
        if self._watch.seen or excess:
            return Outcome("failed", excess or f"did {self._watch.seen[0]}")
        if refusal is not None:
            is_long = len(str(refusal)) > LONGEST_MESSAGE
            return Outcome("failed", f"an error of {len(str(refusal))} characters") if is_long else Outcome("refused")
        return self._compared(loaded, is_knowing)

    def _excess(self, taken: Taken, growth: float) -> str:
        limits = (
            ("traced", taken.traced, 2 * self.traced * growth + TRACED_ALLOWANCE),
            ("resident", taken.resident, 2 * self.resident * growth + RESIDENT_ALLOWANCE),
        )
        for name, count, limit in limits:
            if count > limit:
                return f"took {count:,} bytes of {name} memory, more than {int(limit):,}"
        return f"took {taken.seconds:.1f} s" if taken.seconds > self._most_seconds else ""

    def _compared(self, loaded: Any, is_knowing: bool) -> Outcome:
        """What was loaded is the original, or what the changed file says where nothing could show the change."""
        try:
            with self._watch.on(self.folder):
                if self._target.says(loaded) == self._says:
                    return Outcome("equal")
                if self._target.has_checksum and not is_knowing:
                    return Outcome("failed", "loaded as something else, although there is a checksum")
                is_as_written = self._target.is_as_written(self.folder, loaded)
        except Exception as error:
            return Outcome("failed", f"loaded, and then raised {type(error).__name__}: {str(error)[:300]}")
        if self._watch.seen:
            return Outcome("failed", f"did {self._watch.seen[0]} with what was loaded")
        if not is_as_written:
            return Outcome("failed", "loaded as what the file does not say")
        return self._used(loaded)

    def _used(self, loaded: Any) -> Outcome:
        """Whether what was loaded can be used, or says what is wrong with it."""
        try:
            self._target.use(loaded)
        except MPSError:
            pass
        except Exception as error:
            return Outcome("failed", f"loaded, used, and then raised {type(error).__name__}: {str(error)[:300]}")
        return Outcome("as written")


def place_in(path: Path, changed: bytes | Special) -> None:
    """Put bytes, or something that is no file, under a name."""
    if isinstance(changed, bytes):
        path.write_bytes(changed)
        return
    path.unlink()
    if changed.kind == "folder":
        path.mkdir()
    elif changed.kind == "pipe":
        os.mkfifo(path)
    elif changed.kind == "device":
        path.symlink_to("/dev/zero")
    elif changed.kind == "broken link":
        path.symlink_to(path.parent / "gone")
    elif changed.kind == "endless link":
        path.symlink_to(path)
