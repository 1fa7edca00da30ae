"""`openmps doctor`: what it says, and that nothing broken keeps it from saying it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

import openmps
from openmps.cli import diagnosis, main
from openmps.ops import numba

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"].keys() - {"train", "docs", "bench", "release", "dev"}
"""Extras for users as pyproject has them: the rest is another name of ``demo``, and builds and measures the project."""


def _names(texts: list[str]) -> list[str]:
    return [Requirement(text).name for text in texts]


def test_it_looks_at_what_the_package_asks_for() -> None:
    asked = dict.fromkeys(_names(PROJECT["dependencies"]), "")
    for extra in EXTRAS:
        asked |= dict.fromkeys(_names(PROJECT["optional-dependencies"][extra]), "train" if extra == "demo" else extra)
    asked["onnx"] = "onnx"  # Core AI needs it, too
    looked = {name: extra for name, _, extra in diagnosis._LIBRARIES if extra != "CUDA"}
    assert looked == asked


def test_the_text_and_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"openmps {openmps.__version__}, in ")
    assert text.rstrip().endswith("nothing is wrong")
    assert "computes as it should" in text and f"Python {sys.version.split()[0]} " in text
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["faults"] == [] and facts["openmps"] == openmps.__version__
    assert {each["name"]: each["state"] for each in facts["libraries"]}["torch"] == "ok"
    assert facts["devices"][0]["device"] == "cpu" and 0 < facts["devices"][0]["seconds"] < 30
    assert facts["threads"]["usable"] >= 1


def test_each_line_is_printed_as_soon_as_it_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And not only written to a buffer: what a file holds at each step."""
    written, seen = tmp_path / "out", []
    monkeypatch.setattr(sys, "stdout", written.open("w"))
    for name in ("_caches", "_imported", "_checked"):
        step = getattr(diagnosis, name)

        def watched(*given: object, step: Callable[..., object] = step) -> object:
            seen.append(written.read_text())
            return step(*given)

        monkeypatch.setattr(diagnosis, name, watched)
    monkeypatch.setattr(diagnosis, "_devices", lambda: ["cpu", "cpu"])
    assert main(["doctor"]) == 0
    sys.stdout.close()
    lines, counts = written.read_text().splitlines(), [len(each.splitlines()) for each in seen]
    place, engine = lines.index(next(line for line in lines if line.startswith("torch "))), "PyTorch: "
    libraries = len(diagnosis._LIBRARIES)
    missing = len([each for each in diagnosis.begun_diagnosis().libraries if each.state == diagnosis.MISSING])
    assert counts[0] == place and lines[place - 2].startswith("library ")
    assert sorted({*counts[1 : libraries + 1]}) == [*range(place, place + libraries - missing)]
    first, second = (each.splitlines() for each in seen[libraries + 1 :])
    assert first[-1].startswith(engine) and second[-1].endswith(" s") and len(second) - len(first) == 3
    assert lines[: len(second)] == second


def test_it_names_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "somebody"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "somebody"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "somebody" / "kernels"))
    (tmp_path / "somebody" / "kernels").mkdir(parents=True)
    (tmp_path / "somebody" / "kernels" / "one").write_bytes(bytes(1000))
    monkeypatch.setattr(diagnosis, "_LIBRARIES", diagnosis._LIBRARIES[:2])
    found = diagnosis.diagnosis()
    assert found.environment["TRITON_CACHE_DIR"] == os.path.join("~", "kernels")
    (cache,) = [each for each in found.caches if each.of == "triton"]
    assert cache == diagnosis.Cache("triton", os.path.join("~", "kernels"), 1000)
    assert "somebody" not in json.dumps(found.facts())


BROKEN = {
    "onnx": ("raise ImportError('libonnx.so: cannot open\\nand more')", "ImportError: libonnx.so: cannot open"),
    "tensorboard": ("import sys; sys.exit('\\x1b[31mno')", "SystemExit: \\x1b[31mno"),
    "torch": ("raise OSError('libc10.so')", "OSError: libc10.so"),
}  # fmt: skip


def test_broken_libraries_are_told(tmp_path: Path) -> None:
    for name, (source, _) in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(source)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])}
    command = [sys.executable, "-m", "openmps", "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1, done.stderr
    facts = json.loads(done.stdout)
    told = {each["name"]: each["fault"] for each in facts["libraries"] if each["state"] == "broken"}
    needs_onnx = "coreai-onnx"
    assert told.pop(needs_onnx, BROKEN["onnx"][1]) == BROKEN["onnx"][1]
    assert told == {name: fault for name, (_, fault) in BROKEN.items()}
    assert facts["devices"] == [] and facts["engine"] == ""
    faults = sorted({*facts["faults"]} - {f"{needs_onnx} is broken"})
    assert faults == ["onnx is broken", "tensorboard is broken", "torch is broken"]


def test_a_package_is_found_by_another_name_for_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_LIBRARIES", (("another-array-library", "numpy", "filters"),))
    (found,) = diagnosis.begun_diagnosis().libraries
    assert (found.name, found.version, found.extra) == ("numpy", np.__version__, "filters")


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    absent = (("no-such-needed", "no_such", ""), ("no-such-optional", "no_such", "train"))
    monkeypatch.setattr(diagnosis, "_LIBRARIES", (*diagnosis._LIBRARIES[:2], *absent))
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "no-such-optional  -" in text and text.count("not installed") == 2
    assert text.rstrip().endswith("at fault: no-such-needed is missing")


def test_a_device_that_computes_wrongly_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_devices", lambda: ["cpu", "cuda:99"])
    monkeypatch.setattr(diagnosis, "_LIBRARIES", diagnosis._LIBRARIES[:1])
    assert diagnosis._checked("cpu").fault == ""
    monkeypatch.setattr(openmps.MPSImageBatch, "numpy", lambda batch: 0.5)
    found = diagnosis.diagnosis()
    assert found.devices[0].fault == "4096 of 4096 results of a convolution are wrong"
    assert found.devices[1].fault.startswith(("MPSDeviceError: ", "MPSArgumentError: "))
    assert found.faults == ["cpu does not compute as it should", "cuda:99 does not compute as it should"]


def _filter_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith(("image filters", "cache of numba"))]


def test_what_computes_filters_and_where_loops_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("cv2")
    caching = pytest.importorskip("numba.core.caching")
    rows = [row for row in diagnosis._LIBRARIES if row[0] in ("torch", "numpy", "opencv-python-headless", "numba")]
    monkeypatch.setattr(diagnosis, "_LIBRARIES", tuple(rows))
    monkeypatch.setattr(caching.config, "CACHE_DIR", str(tmp_path))
    every, kept = _filter_lines(capsys)
    assert every == "image filters on the CPU: by Numba, OpenCV, PyTorch"
    (folder,) = tmp_path.iterdir()
    assert kept == f"cache of numba: {diagnosis._without_home(folder)}, 0.0 MiB"
    (folder / "loop.nbi").write_bytes(bytes(3 << 20))
    (folder / "loop.py").write_bytes(bytes(3 << 20))
    assert _filter_lines(capsys)[1].endswith(", 3.0 MiB")
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert (
        _filter_lines(capsys)[1] == "cache of numba: none can be written, so each process compiles the loops of filters"
    )
    monkeypatch.setattr(numba, "library", lambda: None)
    assert _filter_lines(capsys) == ["image filters on the CPU: by OpenCV, PyTorch"]
    monkeypatch.setattr(diagnosis, "_LIBRARIES", tuple(rows[:2]))
    assert _filter_lines(capsys) == ["image filters on the CPU: by PyTorch"]
