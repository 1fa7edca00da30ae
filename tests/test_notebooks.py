"""What notebooks show: everything that prints as a table, in a class and in a notebook that is run."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
from enum import Enum
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest

import openmps as mps
from in_one_test import in_one_test
from openmps.formats import onnx, swift
from openmps.runtime.devices import mtl_device

CPU = mtl_device("cpu")
FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32
OF_ONE_LINE = {
    "Augmentation",
    "CpuChoice",
    "CpuFeatures",
    "Extent",
    "Finding",
    "MachineLimits",
    "Order",
    "Preprocessing",
    "Processor",
    "Target",
}
"""Classes whose text stands within a line of something else; so does that of enumerations."""

NOTEBOOK = """
import numpy as np
import openmps as mps
from openmps.debug import limits, profiling
profiling.machine_limits = lambda device: limits.MachineLimits("a machine", {"float32": 1e9}, 1e9)
device = mps.mtl_device("cpu")
node = mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode(None))
node.label = "a<b>"
graph = mps.MPSNNGraph(device, node.result_image)
descriptor = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 4, 4, 1)
images = mps.MPSImageBatch.from_numpy(device, np.ones((1, 4, 4, 1), np.float32))
---
graph
---
mps.graph_summary(graph, descriptor)
---
mps.lint(graph, descriptor)
---
graph.trace([images])
---
mps.debug.compare(graph.trace([images]), graph.trace([images]))
---
mps.debug.profile(device, lambda command_buffer: graph.encode_batch(command_buffer, [images]), repeats=1)
"""
SHOWN = ("MPSCNNNeuronReLUNode", "total", "errors", "source 0", "values agree", "of the limit")
"""What each cell after the first shows."""
SHELL = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

shell, shown = InteractiveShell.instance(), []
for cell in sys.argv[1:]:
    ran = shell.run_cell(cell)
    ran.raise_error()
    shown.append(shell.display_formatter.format(ran.result)[0].get("text/html"))
print()
print(json.dumps(shown))
"""
"""The shell that runs a notebook's cells, and what it hands over of each result to be shown."""


def _printing() -> list[type]:
    """Classes of the package that have a text of their own."""
    found: dict[str, type] = {}
    for module in pkgutil.walk_packages(mps.__path__, "openmps."):
        if "__main__" in module.name or ".triton" in module.name:
            continue
        for kind in vars(importlib.import_module(module.name)).values():
            is_ours = isinstance(kind, type) and kind.__module__.startswith("openmps")
            if is_ours and "__str__" in vars(kind) and not issubclass(kind, Enum | BaseException):
                found[f"{kind.__module__}.{kind.__qualname__}"] = kind
    return list(found.values())


@in_one_test
@pytest.mark.parametrize("kind", _printing(), ids=lambda kind: kind.__name__)
def test_what_prints_as_lines_is_shown_as_lines(kind: Any) -> None:
    assert hasattr(kind, "_repr_html_") or kind.__name__ in OF_ONE_LINE


def test_a_notebook_shows_tables(tmp_path: Path) -> None:
    pytest.importorskip("IPython", reason="notebooks are run by it")
    cells = [text.strip() for text in NOTEBOOK.split("---")]
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    done = forked.run("-c", SHELL, *cells, cwd=tmp_path, env=environment, has_openmps=True)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *shown = json.loads(done.stdout.splitlines()[-1])
    assert first is None
    for cell, html, wanted in zip(cells[1:], shown, SHOWN, strict=True):
        assert wanted in html, cell
        assert "<b>" not in html


def test_a_model_out_of_onnx_shows_its_ports_and_its_graph(tmp_path: Path) -> None:
    helper = pytest.importorskip("onnx", reason="models are made with it").helper
    ports = [helper.make_tensor_value_info(name, 1, ["batch", 3, 4, 4]) for name in ("x<", "y")]
    made = helper.make_graph([helper.make_node("Relu", ["x<"], ["y"])], "g", ports[:1], ports[1:])
    made_model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "g.onnx").write_bytes(made_model.SerializeToString())
    model = onnx.network(tmp_path / "g.onnx").model(CPU)
    html = model._repr_html_()
    assert "<td>input</td><td>x&lt;</td>" in html
    assert "<td>output</td><td>y</td>" in html
    assert "MPSCNNNeuronReLUNode" in html
    assert repr(model) == "<OnnxModel: x< → y, 1 kernels>"


def _nameless() -> mps.MPSNNGraph:
    node = mps.MPSNNAdditionNode(mps.MPSNNImageNode(None), mps.MPSNNImageNode(None))
    return mps.MPSNNGraph(CPU, node.result_image)


def test_a_source_without_a_name_has_one_name_everywhere() -> None:
    graph = _nameless()
    images = mps.MPSImageBatch.from_numpy(CPU, np.ones((1, 4, 4, 1), np.float32))
    names = ["source 0", "source 1"]
    assert list(graph.trace([images, images]))[:2] == names
    assert "source 0, source 1" in graph._repr_html_()
    text = swift.source(graph)["Model.swift"].decode()
    assert "'source 0', 'source 1'" in text
    assert 'ModelHandle("source 0")' in text
