"""ONNX's own node cases as models: each is built and gives ONNX's numbers, or is refused by name."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from node_cases.case import generated
from onnx_models import asked, ours, saved
from openmps.errors import MPSError, MPSOperatorError
from openmps.formats.onnx.build import BUILDERS

pytest.importorskip("onnx")
TYPED = 1e-4  # some cases are typed in with four decimals
AGREE = {"first": 229, "all": 40}
TRAINED = 42
"""Arrays of the cases, all but the first input constants, that layers train."""
"""Cases that are built, with the first input alone or all of them free and the others constants."""


@cache
def _cases():
    return [
        each
        for each in generated()
        if len(each.model.graph.node) == 1
        and each.model.graph.node[0].op_type in BUILDERS
        and all(np.asarray(value).dtype != object for value in each.data_sets[0][0] if not isinstance(value, list))
        and not any(isinstance(value, list) or value is None for value in each.data_sets[0][0])
    ]


@pytest.mark.parametrize("free", AGREE)
def test_node_cases(free: str, tmp_path: Path) -> None:
    built = 0
    for case in _cases():
        inputs, outputs = case.data_sets[0]
        names = [value.name for value in case.model.graph.input]
        if free == "all" and len(names) < 2:
            continue
        variable = names if free == "all" else names[:1]
        made = _with_constants(case.model, dict(zip(names, inputs, strict=True)), variable)
        try:
            found = ours(saved(made, tmp_path))
        except MPSOperatorError:
            continue
        built += 1
        feeds = {port.name: np.asarray(inputs[names.index(port.name)]) for port in found.inputs}
        got = found.run(feeds)
        for value, wanted in zip(made.graph.output, outputs, strict=True):
            wanted = np.asarray(wanted)
            assert (got[value.name].shape, got[value.name].dtype) == (wanted.shape, wanted.dtype), case.name
            close = np.allclose(got[value.name].astype(float), wanted.astype(float), TYPED, TYPED, equal_nan=True)
            assert close, case.name
    assert built == AGREE[free]


def test_every_operator_trains_what_its_file_has(tmp_path: Path) -> None:
    """Each array that a data source is asked for is one of the case's constants: none that the reader made."""
    found = 0
    for case in _cases():
        inputs = [np.asarray(value) for value in case.data_sets[0][0]]
        names = [value.name for value in case.model.graph.input]
        made = _with_constants(case.model, dict(zip(names, inputs, strict=True)), names[:1])
        try:
            arrays = [each for layer in asked(made, tmp_path) for each in layer]
        except MPSError:
            continue
        known = {tuple(np.sort(np.float32(value), None).tolist()) for value in inputs[1:]}
        assert all(tuple(np.sort(each, None).tolist()) in known for each in arrays), case.name
        found += len(arrays)
    assert found == TRAINED


def _with_constants(model, values, variable):
    from onnx import numpy_helper

    made = copy.deepcopy(model)
    constants = [(name, value) for name, value in values.items() if name not in variable]
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in constants)
    return made
