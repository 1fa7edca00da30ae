"""New Python processes that have imported the engine: forks of one that has done nothing else.

Importing it takes seconds, of every process anew. A fork of a process with one thread, which has imported torch and
NumPy and nothing of openmps, differs from a new process in what is imported, and in when the environment was read for
what Python's start and those imports ask of it (encodings, hashes, numbers of threads). Tests of that start processes
of their own, and so do tests of what happens before the engine is there. Where it does not matter when openmps is
imported, ``has_openmps`` forks of a process that has imported the modules that commands and trainings need; at its end
a fork waits for threads, calls exit functions and flushes streams, and leaves modules as they are: taking them apart
takes longer than most tests.

usage: forked.py SOCKET (a descriptor, over which requests come)
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

Stream = IO[Any] | int | None
OPENMPS = ("openmps.names", "openmps.formats.names", "openmps.training.names", "openmps.debug.names", "openmps.cli")
"""What ``has_openmps`` imports, but for pictures: tests ask when matplotlib is imported."""


class Process:
    """A process that runs ``python *arguments``: ``-c PROGRAM``, ``-m MODULE`` or a file, and what it is given."""

    def __init__(
        self,
        *arguments: object,
        cwd: object = None,
        env: Mapping[str, str] | None = None,
        stdout: Stream = None,
        stderr: Stream = None,
        has_openmps: bool = False,
    ) -> None:
        self.stdout: IO[str] | None = None
        """What it prints, if ``stdout`` is `subprocess.PIPE`."""
        piped: list[int] = []
        if stdout == subprocess.PIPE:
            end, stdout = os.pipe()
            self.stdout, piped = os.fdopen(end), [stdout]
        said = {
            "arguments": [*map(str, arguments)], "cwd": str(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
        }  # fmt: skip
        streams = [given if isinstance(given, int) else given.fileno() for given in (stdout or 1, stderr or 2)]
        self._server = _server(OPENMPS if has_openmps else ())
        self.pid: int = self._server.ask(said, streams)
        for stream in piped:
            os.close(stream)
        self.status: int | None = None
        """How it ended, as `subprocess` says it."""

    def poll(self) -> int | None:
        """How it ended, or None as long as it runs."""
        if self.status is None:
            self.status = self._server.ask({"ended": self.pid})
        return self.status

    def wait(self, timeout: float = 120.0) -> int:
        """How it ended; one that has not within ``timeout`` seconds is killed."""
        until = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > until:
                self.send_signal(signal.SIGKILL)
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, and wait for that."""
        self.send_signal(signal.SIGKILL)
        self.wait()


def run(
    *arguments: object,
    cwd: object = None,
    env: Mapping[str, str] | None = None,
    stdout: Stream = None,
    stderr: Stream = None,
    timeout: float = 120.0,
    has_openmps: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments`` to its end, and return what it printed, but what went to a given stream."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        streams = {"stdout": stdout or out, "stderr": stderr or error}
        status = Process(*arguments, cwd=cwd, env=env, **streams, has_openmps=has_openmps).wait(timeout)
        for file in (out, error):
            file.seek(0)
        return subprocess.CompletedProcess([*map(str, arguments)], status, out.read(), error.read())


class _Server:
    """The process that forks, as those who ask it see it: a new one, or a fork of one that may import more."""

    def __init__(self, imports: Sequence[str], forks: _Server | None = None) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        if forks:
            forks.ask({"imports": imports, "path": sys.path}, [theirs.fileno()])
            theirs.close()
            return
        environment = {**os.environ, "PYTHONPATH": "", "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-P", __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
        theirs.close()
        atexit.register(lambda: (self._socket.close(), process.wait(60)))

    def ask(self, said: dict[str, Any], streams: Sequence[int] = ()) -> Any:
        text = json.dumps(said).encode()
        with self._lock:
            socket.send_fds(self._socket, [len(text).to_bytes(8)], [*streams])
            self._socket.sendall(text)
            return json.loads(self._socket.recv(64))

    def close(self) -> None:
        """Have it end, if this process alone can ask it."""
        self._socket.close()


@functools.cache
def _server(imports: Sequence[str]) -> _Server:
    return _Server(imports, _server(()) if imports else None)


class Handed:
    """Servers for a process that this one is about to fork, which need not import what those of this one have."""

    def __init__(self) -> None:
        self._servers = {imports: _Server((), _server(imports)) for imports in ((), OPENMPS)}

    @staticmethod
    def begin() -> None:
        """Begin to import, while this process does something else."""
        _server(())

    def close(self) -> None:
        """In the process that has forked."""
        for server in self._servers.values():
            server.close()

    def take(self) -> None:
        """In the fork: what it asks is no longer what the other one asks."""
        global _server
        for imports in self._servers:
            _server(imports).close()
        _server = self._servers.__getitem__


# --- in the process that forks ----------------------------------------------------------------------------------------


def serve(requests: socket.socket) -> dict[str, Any]:
    """Answer requests; in a process that was forked for one, return it."""
    running = set[int]()
    while True:
        length, streams, _, _ = socket.recv_fds(requests, 8, 2)
        if not length:  # who asked has ended
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        said = json.loads(requests.recv(int.from_bytes(length), socket.MSG_WAITALL))
        if "ended" in said:
            pid, status = os.waitpid(said["ended"], os.WNOHANG)
            running.discard(pid)
            requests.send(json.dumps(os.waitstatus_to_exitcode(status) if pid else None).encode())
        elif pid := os.fork():
            running.add(pid)
            requests.send(json.dumps(pid).encode())
            for stream in streams:
                os.close(stream)
        elif "imports" in said:
            requests.close()
            requests, running = socket.socket(fileno=streams[0]), set[int]()
            own, sys.path[:] = sys.path[:], said["path"]
            for name in said["imports"]:
                importlib.import_module(name)
            sys.path[:] = own
            _is_ready()
        else:
            requests.close()
            for number, stream in enumerate(streams, 1):
                os.dup2(stream, number)
                os.close(stream)
            return said


def _is_ready() -> None:
    """Forks have one thread, and copy what Python collects no more."""
    assert threading.active_count() == 1
    gc.freeze()


def become(said: dict[str, Any]) -> None:
    """Run what was asked for as if this process had been started for it."""
    os.chdir(said["cwd"])
    for name in ("stdout", "stderr"):  # what they were opened for may have been sought in
        old = getattr(sys, name)
        new = open(old.fileno(), "w", 1 if name == "stderr" else -1, old.encoding, old.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, new)
    os.environ.clear()
    os.environ.update(said["env"])
    if threads := os.environ.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(threads))
    kind, *arguments = said["arguments"]
    beside = {"-c": "", "-m": os.getcwd()}.get(kind, str(Path(kind).parent))
    sys.path[:0] = [beside, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv[:] = ["-c", *arguments[1:]] if kind == "-c" else arguments if kind == "-m" else [kind, *arguments]
    if kind == "-c":
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), vars(module))
    elif kind == "-m":
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(kind, run_name="__main__")


def run_and_end(said: dict[str, Any]) -> None:
    """Run what was asked for, and end as a process does that has not to give its memory back piece by piece."""
    is_whole, status = "openmps" not in sys.modules, 0
    try:
        become(said)
    except SystemExit as end:
        if is_whole or not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    if is_whole:
        return
    threading._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError):  # which Python's own end tells
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    import numpy  # noqa: F401
    import torch  # noqa: F401

    _is_ready()
    run_and_end(serve(socket.socket(fileno=int(sys.argv[1]))))
