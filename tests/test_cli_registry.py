"""``--registry``: archives of classes of one's own, in every command that reads an archive."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import openmps
import openmps as mps
import planted_networks as planted
from openmps.cli import app, main

pytestmark = pytest.mark.usefixtures(
    "unflushed", "undrawn", "in_an_empty_folder", "on_a_known_machine", "modules_of_one_test"
)
CPU = mps.mtl_device("cpu")
IMAGE = ["--image", "8x8x2"]
SAMPLES = ["--samples", "x.npz"]
LAYERS = """
import neighbour
from openmps import ArrayConvolutionDataSource, MPSNNPaddingMethod, MPSImageDescriptor

class Layer(ArrayConvolutionDataSource):
    def archived(self):
        return {"descriptor": self.descriptor(), "weights": self.weights(), "label": self.label()}

class Margin:
    def __init__(self, margin):
        self.margin = margin
    def archived(self):
        return {"margin": self.margin}
    def padding_method(self):
        return MPSNNPaddingMethod.CUSTOM
    def destination_image_descriptor(self, source_images, source_states, for_kernel, suggested_descriptor):
        suggested_descriptor.width -= self.margin
        return suggested_descriptor

class Name:
    def __init__(self, text):
        self.text = text
    def archived(self):
        return {"text": self.text}
    def label(self):
        return self.text

def layer(values):
    return Layer(values["descriptor"], values["weights"], None, values["label"])

sources = {"Layer": layer}
registry = {"Layer": layer, "Margin": lambda values: Margin(**values), "Name": lambda values: Name(**values)}
"""


@pytest.fixture
def modules_of_one_test() -> Iterator[None]:
    """Modules of an earlier test's folder are not known."""
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if not file.startswith((sys.prefix, sys.base_prefix, str(Path(openmps.__file__).parent))):
            del sys.modules[name]


def planted_archive() -> None:
    """``net.mps``, a graph of a custom data source, padding policy and handle, and ``x.npz``, an image for it."""
    Path("nets").mkdir()
    Path("nets/layers.py").write_text(LAYERS)
    Path("neighbour.py").write_text("")
    space: dict[str, Any] = {"__name__": "elsewhere"}
    sys.path.insert(0, "")
    try:
        exec(compile(LAYERS, "layers.py", "exec"), space)
    finally:
        sys.path.remove("")
    numbers = np.random.default_rng(0).normal(size=(4, 3, 3, 2)).astype(np.float32)
    source = space["Layer"](mps.MPSCNNConvolutionDescriptor(3, 3, 2, 4), numbers, None, "conv")
    node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(space["Name"]("x")), source)
    pool = mps.MPSCNNPoolingMaxNode(node.result_image, 2, 1)
    pool.padding_policy = space["Margin"](3)
    graph = mps.MPSNNGraph(CPU, pool.result_image)
    graph.format = mps.MPSImageFeatureChannelFormat.FLOAT32
    mps.MPSKeyedArchiver.archive(graph, "net.mps")
    image = np.random.default_rng(1).random((1, 8, 8, 2), dtype=np.float32)
    np.save("x.npy", image)
    np.savez("x.npz", x=image)
    mps.debug.save_golden(mps.debug.make_golden(graph, [image]), "kept")
    np.savez("conv.npz", **{"conv.weights": np.zeros((4, 3, 3, 2), np.float32)})


COMMANDS = {
    "run": ["run", "net.mps", "--input", "x=x.npy", "--out", "results"],
    "summary": ["summary", "net.mps", *IMAGE],
    "lint": ["lint", "net.mps", *IMAGE],
    "export": ["export", "--swift", "net.mps", "Net"],
    "quantize": ["quantize", "net.mps", "out.mps", *SAMPLES],
    "view": ["view", "net.mps", *IMAGE, "--out", "page.html"],
    "trace": ["trace", "net.mps", *SAMPLES],
    "compare": ["compare", "net.mps", *SAMPLES],
    "golden make": ["golden", "make", "net.mps", *SAMPLES, "--out", "golden"],
    "golden check": ["golden", "check", "kept", "net.mps"],
    "profile": ["profile", "net.mps", "--batch", "1", "--repeats", "1", *IMAGE],
    "weights show": ["weights", "show", "net.mps"],
    "weights convert": ["weights", "convert", "net.mps", "out.npz"],
}
CANNOT = {"export": "Margin"}
"""Commands that read such an archive, and cannot say one of its classes in their format."""


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_reads_classes_of_the_user_s(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    planted_archive()
    assert main(COMMANDS[name]) == 2
    error = capsys.readouterr().err
    assert "a class that is not openmps'" in error
    assert "Give --registry MODULE[:NAME], whose mapping has a function for 'Layer'" in error.replace(
        "'Name'", "'Layer'"
    )
    status = main([*COMMANDS[name], "--registry", "nets.layers"])
    error = capsys.readouterr().err
    if name in CANNOT:
        assert status == 2 and CANNOT[name] in error and "--registry" not in error
    else:
        assert status == 0, error
    assert str(Path.cwd()) not in sys.path, "what openmps imports does not come from the current folder"


def _commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} ")
        else:
            yield above + name, command


def test_what_takes_an_archive_takes_a_registry() -> None:
    found = dict(_commands(typer.main.get_command(app)))
    taken = {
        name
        for name, command in found.items()
        for each in command.params
        if each.param_type_name == "argument" and "archive" in f"{each.metavar} {each.help} {each.name}".lower()
        and not (name == "convert" and each.name == "out")
    }  # fmt: skip
    assert taken == {name for name, command in found.items() if "registry" in {each.name for each in command.params}}
    assert taken == set(COMMANDS)


def test_no_reader_of_archives_drops_the_registry() -> None:
    """Every call of the unarchiver passes a registry on."""
    texts = {file: file.read_text() for file in Path(openmps.__file__).parent.rglob("*.py")}
    calls = [
        (file, call)
        for file, text in texts.items()
        if "MPSKeyedUnarchiver(" in text
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "MPSKeyedUnarchiver"
    ]
    assert len(calls) > 3
    for file, call in calls:
        assert "registry" in {each.arg for each in call.keywords}, f"{file}:{call.lineno}"


def test_the_numbers_are_those_of_python() -> None:
    planted_archive()
    assert main([*COMMANDS["run"], "--registry", "nets.layers:registry"]) == 0
    sys.path.insert(0, "")
    try:
        from nets.layers import registry  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove("")
    graph = mps.MPSKeyedUnarchiver(Path("net.mps"), CPU, registry=registry).decode_root_object()
    command_buffer = mps.MPSCommandBuffer(CPU.new_command_queue())
    batch = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(CPU, np.load("x.npy"))])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    found = np.load("results/result.npy")
    assert found.shape == (1, 7, 4, 4)
    np.testing.assert_array_equal(found, np.stack([image.numpy() for image in batch]))


def test_a_data_source_of_the_user_s_takes_no_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    planted_archive()
    command = ["weights", "convert", "conv.npz", "net.mps", "--from", "openmps", "--force", "--registry", "nets.layers"]
    before = Path("net.mps").read_bytes()
    assert main(command) == 2
    assert "must keep 'conv' in numbers of its own, got a data source of class Layer" in capsys.readouterr().err
    assert Path("net.mps").read_bytes() == before


BROKEN = {
    "raises.py": "\n\n1 / 0\n",
    "exits.py": "import sys\nsys.exit(3)\n",
    "wrong.py": "def f(:\n",
    "needs.py": "import nothing_of_that_name\n",
    "stops.py": "raise GeneratorExit('many')\n",
    "empty.py": "makers = {'Layer': print}\nregistry_list = [1]\nnumbers = {'Layer': 3}\nkeys = {3: print}\n",
}


@pytest.mark.parametrize(("given", "sentences"), [
    ("nowhere", ["--registry nowhere must be a module", "there is no 'nowhere'", "the current folder, ", "PYTHONPATH"]),
    ("nets.nowhere", ["there is no 'nets.nowhere'", "Searched"]),
    ("nowhere.layers", ["there is no 'nowhere'", "the current folder"]),
    ("nets.layers:nothing", ["must have 'nothing' in ", "layers.py", "nets.layers:registry"]),
    ("empty", ["must have 'registry' in ", "empty.py", "or give empty:makers"]),
    ("empty:registry_list", ["--registry empty:registry_list must map the names of classes", "got list"]),
    ("empty:numbers", ["must map the names of classes", "'Layer': int"]),
    ("empty:keys", ["must map the names of classes", "3: builtin_function_or_method"]),
    ("raises", ["ZeroDivisionError: division by zero", "raises.py, line 3"]),
    ("exits", ["SystemExit: 3", "exits.py, line 2"]),
    ("wrong", ["SyntaxError", "wrong.py, line 1"]),
    ("needs", ["No module named 'nothing_of_that_name'", "needs.py, line 1"]),
    ("stops", ["GeneratorExit: many", "stops.py, line 1"]),
    ("nets/layers.py", ["must be package.module or package.module:NAME", "not the path of its file"]),
    ("", ["must be package.module or package.module:NAME"]),
    ("a b", ["must be package.module"]),
    ("nets.layers:", ["must be package.module"]),
    (".layers", ["must be package.module"]),
])  # fmt: skip
def test_what_is_wrong_with_a_module_is_said(
    given: str, sentences: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    planted_archive()
    for name, text in BROKEN.items():
        Path(name).write_text(text)
    assert main([*COMMANDS["weights show"], "--registry", given]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("error: openmps: --registry") and "Traceback" not in output.err and not output.out
    for each in sentences:
        assert each in output.err


def test_registries_are_joined(capsys: pytest.CaptureFixture[str]) -> None:
    planted_archive()
    Path("more.py").write_text("from nets.layers import registry, sources\nother = {'Layer': print}\n")
    command = COMMANDS["weights show"]
    assert main([*command, "--registry", "nets.layers:sources"]) == 2
    assert "whose mapping has a function for '" in capsys.readouterr().err
    assert main([*command, "--registry", "nets.layers:sources", "--registry", "more"]) == 0
    assert main([*command, "--registry", "nets.layers", "--registry", "more:other"]) == 2
    assert "must make 'Layer' once: nets.layers and more:other both do" in capsys.readouterr().err


def test_where_no_archive_is_read_a_registry_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    planted_archive()
    planted.run("good")
    Path("m.onnx").touch()
    for command in (["summary", "good"], ["weights", "show", "conv.npz"], ["profile", "tiny"], ["trace", "m.onnx"]):
        assert main([*command, "--registry", "nets.layers"]) == 2
        assert "--registry must be left out" in capsys.readouterr().err
    assert main(["weights", "show", "missing.mps", "--registry", "nets.layers"]) == 2
    assert "nothing there" in capsys.readouterr().err
    assert main(["compare", "good", "net.mps", "--registry", "nets.layers"]) != 0
    assert "--registry" not in capsys.readouterr().err


def test_a_function_that_raises_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    planted_archive()
    Path("late.py").write_text("from nets.layers import registry\nregistry = {**registry, 'Layer': lambda v: 1 / 0}\n")
    assert main([*COMMANDS["weights show"], "--registry", "late"]) == 2
    error = capsys.readouterr().err
    assert "division by zero" in error and "Traceback" not in error


def test_without_the_option_nothing_is_imported(capsys: pytest.CaptureFixture[str]) -> None:
    planted_archive()
    Path("Layer.py").write_text("raise SystemExit('run')")
    Path("onnx.py").write_text("raise SystemExit('run')")
    assert main(COMMANDS["weights show"]) == 2
    assert main([*COMMANDS["weights show"], "--registry", "nets.layers"]) == 0
    assert "Layer" not in sys.modules


@pytest.mark.parametrize(("text", "words"), [
    ("def __getattr__(name): raise ValueError(name)", "have a mapping that can be read, got ValueError: registry"),
    ("from collections import UserDict\nclass R(UserDict):\n  def __iter__(self): 1 / 0\nregistry = R()",
     "have a mapping that can be read, got ZeroDivisionError"),
    ("from nets.layers import registry\nregistry['Layer'] = lambda values: exit(0)", "make objects, got SystemExit"),
    ("from nets.layers import registry\nregistry['Layer'] = lambda values: open('none')", "objects, got FileNotFound"),
])  # fmt: skip
def test_a_registry_that_raises_or_exits_is_said(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    planted_archive()
    Path("odd.py").write_text(text)
    assert main([*COMMANDS["weights show"], "--registry", "odd"]) == 2
    said = capsys.readouterr()
    assert words in said.err and "Traceback" not in said.err and not said.out


def test_modules_beside_the_data_are_not_run() -> None:
    """``python -m`` searches the current folder first."""
    for name in ("numpy", "json", "random", "typer"):
        Path(f"{name}.py").write_text(f"raise SystemExit('{name} was run')")
    command = [sys.executable, "-m", "openmps", "explain-padding", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
