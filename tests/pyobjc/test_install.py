"""How the modules become importable, and how a script is run, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=folder, timeout=280)


def test_nothing_is_there_until_it_is_asked_for(tmp_path: Path) -> None:
    program = """
import importlib.util, sys
import openmps
assert "openmps.pyobjc" not in sys.modules
names = ("objc", "Foundation", "Metal", "MetalPerformanceShaders")
assert not any(importlib.util.find_spec(each) for each in names)
platform, finders = sys.platform, len(sys.meta_path)
import openmps.pyobjc
assert openmps.pyobjc.install() is True
assert openmps.pyobjc.install() is True
assert len(sys.meta_path) == finders + 1
assert sys.platform == platform
assert all(importlib.util.find_spec(each) for each in names)
assert not any(importlib.util.find_spec(each) for each in ("Quartz", "libdispatch", "PyObjCTools"))
import objc, objc.simd, Foundation
assert objc.simd.vector_float2(1, 2) == (1, 2)
assert "torch" not in sys.modules
"""
    found = run("-c", program, folder=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")


def test_an_installed_pyobjc_stays(tmp_path: Path) -> None:
    (tmp_path / "objc.py").write_text("mine = True\n")
    program = """
import sys
finders = [*sys.meta_path]
import openmps.pyobjc
assert openmps.pyobjc.install() is False
assert sys.meta_path == finders
import objc
assert objc.mine
try:
    import Metal
except ImportError:
    print("no Metal")
"""
    found = run("-c", program, folder=tmp_path)
    assert (found.stdout, found.stderr) == ("no Metal\n", "")


def test_a_script_is_not_run_with_another_objc(tmp_path: Path) -> None:
    (tmp_path / "objc.py").write_text("mine = True\n")
    (tmp_path / "script.py").write_text("print('ran')\n")
    found = run("-m", "openmps.pyobjc", "script.py", folder=tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert "a module objc is installed" in found.stderr


def test_a_module_of_the_users_wins(tmp_path: Path) -> None:
    (tmp_path / "Metal.py").write_text("mine = True\n")
    program = "import openmps.pyobjc; openmps.pyobjc.install(); import objc, Metal; assert Metal.mine"
    assert run("-c", program, folder=tmp_path).stderr == ""


def test_a_script_runs_as_the_main_program(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "beside.py").write_text("value = 7\n")
    (folder / "script.py").write_text(
        "import sys\n"
        "import beside, objc\n"
        "from Foundation import NSObject\n"
        "assert __name__ == '__main__' and beside.value == 7\n"
        "print(sys.argv[0].endswith('script.py'), sys.argv[1:], NSObject.__name__)\n"
        "sys.exit(3)\n"
    )
    found = run("-m", "openmps.pyobjc", "scripts/script.py", "--steps", "2", folder=tmp_path)
    assert (found.returncode, found.stdout, found.stderr) == (3, "True ['--steps', '2'] NSObject\n", "")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ((), 2, "usage: python -m openmps.pyobjc"),
        (("--help",), 0, "usage"),
        (("nothing.py",), 2, "nothing.py is no file"),
    ],
)
def test_the_command_line_says_what_it_takes(
    arguments: tuple[str, ...], status: int, said: str, tmp_path: Path
) -> None:
    found = run("-m", "openmps.pyobjc", *arguments, folder=tmp_path)
    assert found.returncode == status
    assert said in found.stdout + found.stderr
