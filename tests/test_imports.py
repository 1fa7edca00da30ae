"""A name is imported by itself: what each kind of program loads, and that it does not matter what was loaded before."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import forked
import pytest

import openmps

SOURCE = Path(openmps.__file__).parent
LAZY = ["openmps", *(f"openmps.{path.parent.name}" for path in sorted(SOURCE.glob("*/names.py")))]
"""The packages with a `names.py`."""

KERNEL = """
import torch
import openmps as mps
device = mps.mtl_device("cpu")
image = mps.MPSImage.from_tensor(device, torch.ones(1, 4, 8, 8))
command_buffer = device.new_command_queue().command_buffer()
mps.MPSCNNNeuronReLU(device, 0.1).encode(command_buffer, image)
command_buffer.commit()
command_buffer.wait_until_completed()
assert command_buffer.error is None
"""
GRAPH = """
import torch
import openmps as mps
device = mps.mtl_device("cpu")
graph = mps.MPSNNGraph(device, mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode(), 0.1).result_image, True)
command_buffer = device.new_command_queue().command_buffer()
graph.encode(command_buffer, [mps.MPSImage.from_tensor(device, torch.ones(1, 4, 8, 8))])
command_buffer.commit()
command_buffer.wait_until_completed()
assert command_buffer.error is None
"""
TRAINING = """
import tempfile
from pathlib import Path
import numpy as np
import openmps as mps
from openmps.training import DataSplit, Dataset, RunFolder, TrainingOptions, describe_run, train
images = np.random.default_rng(0).integers(0, 255, (12, 4, 4, 1), np.uint8)
data = DataSplit(*(Dataset(images, np.arange(12) % 2, ("a", "b"), "noise") for _ in range(2)))
options = TrainingOptions(epochs=1, batch_size=6)
with tempfile.TemporaryDirectory() as folder:
    run = RunFolder.create(folder, describe_run(data, options, data={"path": None}), name="run")
    train(data, run, options, mps.mtl_device("cpu"))
"""
WEIGHTS = """
import tempfile
from pathlib import Path
import numpy as np
from openmps.formats import load_tensors, save_safetensors, save_tensors
with tempfile.TemporaryDirectory() as folder:
    save_safetensors(Path(folder) / "a.safetensors", {"conv.weights": np.ones((2, 1, 1, 3), np.float32)})
    save_tensors(Path(folder) / "a.npz", load_tensors(Path(folder) / "a.safetensors"))
"""
HELP = """
from openmps.cli import main
assert main({arguments}) == 0
"""
NOTHING_THERE = """
from openmps.cli import main
networks = "evaluate", "summary", "trace", "profile", "view", "compare", "lint", "convert", "run", "golden check"
commands = *(name.split() for name in networks), ["train", "--resume"], ["train", "--data"], ["export", "--swift"]
assert [main([*command, "nothing", "out"][: -1 if "-" in command[-1] else None]) for command in commands] == [2] * 13
"""
ENGINE = {"torch", "numpy"}
ABOVE_KERNELS = {"openmps.graph", "openmps.formats", "openmps.training", "openmps.debug"}
ABOVE_GRAPHS = ABOVE_KERNELS - {"openmps.graph"}
MODELS = {"openmps.formats.onnx", "openmps.formats.swift", "onnx"}


class Program(NamedTuple):
    """How many modules of the package a program may load, and of which packages, here or elsewhere, none."""

    text: str
    budget: int
    never: set[str]


PROGRAMS = {
    "nothing": Program("import openmps", 1, ENGINE),
    "a struct": Program("import openmps; openmps.MPSSize(1, 1, 1)", 13, {"torch"}),
    "a kernel": Program(KERNEL, 110, {*ABOVE_KERNELS, "openmps.ops.rewrite", "openmps.ops.convolution", "rich", "cv2"}),
    "a graph": Program(GRAPH, 300, {*ABOVE_GRAPHS, "rich"}),
    "a training run": Program(TRAINING, 364, {*MODELS, "openmps.debug", "openmps.formats.archive.forms", "rich"}),
    "a file of weights": Program(WEIGHTS, 24, {*MODELS, "openmps.metal", "openmps.ops", "rich"}),
    "--help": Program(HELP.format(arguments=["--help"]), 33, {*ENGINE, "rich"}),
    "commands on nothing": Program(NOTHING_THERE, 38, ENGINE),
    "train --help": Program(HELP.format(arguments=["train", "--help"]), 33, {*ENGINE, "rich"}),
}
"""A budget has room for a few files; where a program loads far less, its test wants the budget lowered."""


def _run(program: str, *, imports_engine: bool = True) -> Any:
    """What a program in a process of its own says of itself, as JSON in its last line."""
    # To take all that was imported apart at the end takes longer than most programs.
    command = "-c", f"import json, os, sys\n{program}\nsys.stdout.flush()\nos._exit(0)"
    if imports_engine:
        child = forked.run(*command)
    else:
        child = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_loads_what_it_needs(name: str) -> None:
    program = PROGRAMS[name]
    imports_engine = not ENGINE & program.never
    loaded = _run(f"{program.text}\nprint(json.dumps(sorted(sys.modules)))", imports_engine=imports_engine)
    own = [module for module in loaded if module.partition(".")[0] == "openmps"]
    assert [module for module in loaded if any(f"{module}.".startswith(f"{each}.") for each in program.never)] == []
    assert len(own) <= program.budget, own
    assert len(own) > 0.9 * program.budget, f"lower the budget to {len(own)}"


# --- it does not matter what was loaded before -----------------------------------------------------------------------


def test_archives_hold_every_class_that_there_is() -> None:
    """Also kernels that a program has not asked for, be it the one that writes or the one that reads."""
    program = """
from openmps.formats.archive import forms
found = sorted(forms.classes())
forms.classes.cache_clear()
import openmps.names, openmps.debug.names, openmps.formats.names, openmps.training.names
print(json.dumps([found, sorted(forms.classes())]))
"""
    alone, beside_all = _run(program)
    assert alone == beside_all
    assert len(alone) > 100


def test_an_image_comes_with_its_batches_and_allocators() -> None:
    program = """
import torch
import openmps as mps
image = mps.MPSImage.from_tensor(mps.mtl_device("cpu"), torch.ones(1, 4, 8, 8))
kinds = [image.batch_representation(), mps.MPSImage.default_allocator(), mps.MPSTemporaryImage.default_allocator()]
print(json.dumps([type(each).__name__ for each in kinds]))
"""
    assert _run(program) == ["MPSImageBatch", "OrdinaryImages", "TemporaryImages"]


def test_threads_that_ask_for_names_at_once_get_whole_ones() -> None:
    """None waits for another for ever, and none gets what another has begun to load."""
    program = """
import threading
import openmps as mps
sys.setswitchinterval(1e-6)
barrier, found = threading.Barrier(6), {}
def ask(name, use):
    barrier.wait(60)
    try:
        found[name] = use(getattr(mps, name))
    except BaseException as fault:
        found[name] = repr(fault)
relu = lambda kind: kind(mps.MPSNNImageNode()).result_image.producer.label
image = lambda: mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode()).result_image
gradients = lambda kind: len(kind(image(), mps.MPSCNNLossDescriptor(0, 0)).training_graph())
asked = {
    "MPSCNNNeuronReLUNode": relu,
    "MPSCNNLossNode": gradients,
    "MPSKeyedArchiver": lambda kind: kind.__name__,
    "MPSImage": lambda kind: type(kind.default_allocator()).__name__,
    "debug": lambda package: package.watch.__name__,
    "training": lambda package: package.train.__name__,
}
threads = [threading.Thread(target=ask, args=each, daemon=True) for each in asked.items()]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(120)
print(json.dumps(found))
"""
    assert _run(program) == {
        "MPSCNNNeuronReLUNode": None,
        "MPSCNNLossNode": 1,
        "MPSKeyedArchiver": "MPSKeyedArchiver",
        "MPSImage": "OrdinaryImages",
        "debug": "watch",
        "training": "train",
    }


@pytest.mark.parametrize("package", LAZY)
def test_names_are_those_that_a_type_checker_sees(package: str) -> None:
    """What `names.py` binds when it is imported as any module: the same objects under the same names."""
    names = import_module(f"{package}.names")
    seen = {name: value for name, value in vars(names).items() if name[0] != "_"}
    whole = import_module(package)
    assert {name: getattr(whole, name) for name in seen} == seen
    assert whole.__all__ == sorted(name for name, value in seen.items() if not isinstance(value, ModuleType))
    assert set(dir(whole)) >= {*seen, "__name__", "__doc__", "names"}
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = whole.nothing


def _imports_of_names(path: Path) -> Iterator[str]:
    """Lines of a module that ask a package for its names while the module itself is loaded."""
    text = path.read_text()
    if not any(f"from {package} import" in text for package in LAZY):
        return
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module in LAZY:
            yield from (f"{path}:{node.lineno}" for name in node.names if not name.name.startswith("__"))


def test_no_module_needs_a_name_of_a_package_to_be_loaded() -> None:
    """It would wait, locked as a module, for another thread that loads a name and may wait for the module."""
    paths = [path for path in SOURCE.rglob("*.py") if path.name != "names.py"]
    assert [line for path in paths for line in _imports_of_names(path)] == []


def test_names_are_found_where_pytest_loads_the_package(tmp_path: Path) -> None:
    """An installed plugin has pytest rewrite the assertions of all modules beside it, with a loader of its own."""
    about = tmp_path / "plugin-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[pytest11]\nown = own_plugin\n")
    (tmp_path / "own_plugin.py").touch()
    (about / "RECORD").write_text("openmps/__init__.py,,\nopenmps/names.py,,\n")
    (tmp_path / "test_own.py").write_text(
        "def test_own():\n    import openmps\n    assert openmps.__all__\n    assert openmps.debug.__dir__()\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "test_own.py"]
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    found = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, timeout=280
    )
    assert found.returncode == 0, found.stdout
