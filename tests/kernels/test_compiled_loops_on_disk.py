"""What Numba compiles is kept on disk where that can be, and nothing fails where it cannot."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import openmps
from openmps.ops.numba.primitives import code_of

if find_spec("numba") is None:
    pytest.skip("Numba, of the extra 'filters', is not installed", allow_module_level=True)

PROGRAM = """
import numpy as np
import openmps as mps
assert __import__("sys").modules.get("numba") is None
x = np.random.default_rng(0).random((300, 301, 1), np.float32)
device = mps.mtl_device("cpu")
source = mps.MPSImage.from_numpy(device, x)
result = mps.MPSImage(device, mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 301, 300, 1))
kernel = mps.MPSImageSubtract(device)
kernel.primary_scale = 3.0
command_buffer = device.new_command_queue().command_buffer()
kernel.encode(command_buffer, source, source, result)
command_buffer.commit()
np.testing.assert_allclose(result.numpy().reshape(300, 301), 2.0 * x[..., 0], rtol=1e-6)
from openmps.ops.numba.pixels import _combine
print(mps.__file__, sum(_combine["float32", "float32"]._compiled.stats.cache_hits.values()))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with a copy of the package, nothing of which has been compiled."""
    shutil.copytree(
        Path(openmps.__file__).parent, tmp_path / "path" / "openmps", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path / "path"


def _start(path: Path, home: Path) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    places = {"PYTHONPATH": str(path), "HOME": str(home), "XDG_CACHE_HOME": str(home), "LOCALAPPDATA": str(home)}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={**kept, **places, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=path.parent,
    )


def _loads(process: subprocess.Popen[str], path: Path) -> int:
    """How many loops the process has loaded from disk; raises unless it came to its end."""
    out, fault = process.communicate(timeout=200)
    assert process.returncode == 0, fault
    file, loaded = out.split()
    assert file.startswith(str(path))
    return int(loaded)


@pytest.mark.slow
def test_processes_load_what_others_compiled(package: Path, tmp_path: Path) -> None:
    """Two that compile at once, then one that finds it, then one that finds it damaged."""
    together = [_start(package, tmp_path / "home") for _ in range(2)]
    for process in together:
        _loads(process, package)
    assert _loads(_start(package, tmp_path / "home"), package) == 1
    files = [*package.rglob("*.nbi"), *package.rglob("*.nbc")]
    assert files
    for file in files:
        file.write_bytes(b"damaged")
    assert _loads(_start(package, tmp_path / "home"), package) == 0


@pytest.mark.slow
def test_a_folder_that_cannot_be_written(package: Path, tmp_path: Path) -> None:
    """The user's cache has it then; where that cannot be written either, each process compiles."""
    (package / "openmps" / "ops" / "numba" / "__pycache__").write_text("no folder")
    assert _loads(_start(package, tmp_path / "home"), package) == 0
    assert _loads(_start(package, tmp_path / "home"), package) == 1
    (tmp_path / "file").write_text("no folder")
    for _ in range(2):
        assert _loads(_start(package, tmp_path / "file" / "home"), package) == 0


@pytest.mark.slow
def test_a_package_in_an_archive(package: Path, tmp_path: Path) -> None:
    archive = tmp_path / "openmps.zip"
    with zipfile.ZipFile(archive, "w") as written:
        for file in package.rglob("*"):
            written.write(file, file.relative_to(package))
    for _ in range(2):
        _loads(_start(archive, tmp_path / "home"), archive)


def test_the_code_of_a_loop_tells_it_from_others() -> None:
    """Constants of each kind, and functions within: Python 3.14 makes a constant of a slice."""

    def one(x: Any) -> Any:
        return x[:2], [(lambda y: y + 1.5)(each) for each in x[1:3]]

    def two(x: Any) -> Any:
        return x[:2], [(lambda y: y + 2.5)(each) for each in x[1:3]]

    def three(x: Any) -> Any:
        return x[:4], [(lambda y: y + 1.5)(each) for each in x[1:3]]

    again = types.FunctionType(one.__code__.replace(co_name="again", co_firstlineno=7), {})
    assert code_of(one) == code_of(again)
    assert len({code_of(each) for each in (one, two, three)}) == 3
