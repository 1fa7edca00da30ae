"""Facts of Macs as cases, and their answers as recordings; the facts themselves stand in tests/mac_facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import openmps as mps
from conformance_list.describe import DEVICE, described, listed
from conformance_list.kernels import family_of
from conformance_list.nodes import FLOAT32
from mac_facts import arrays, graphs, image_filters, kernels, matrices, storage
from mac_facts.fact import Fact
from mac_facts.storage import COLUMNS, ELEMENTS
from openmps.conformance.arrays import written_number
from openmps.conformance.cases import FORMAT
from openmps.formats.archive.sources import ArchivedNormalizationParameters

FACTS = {
    fact.name: fact
    for fact in (
        *(*kernels.FACTS, *graphs.FACTS, *storage.FACTS, *matrices.FACTS, *arrays.FACTS, *image_filters.FACTS),
        *(*graphs.SWITCHED, *storage.SWITCHED, *matrices.SWITCHED, *arrays.SWITCHED),
    )
}
PLACES = {
    "macOS 27.0": "macOS-27.0-Apple_M4_Pro",
    "macOS 26.5": "macOS-26.5-Apple_M4_Pro",
}
"""Folders of goldens by the system that facts name; the GPU is the same."""
SOURCE = "kern0x1b/charon, packages/a/apple-backports/facts/MetalPerformanceShaders"
CONTROLS = ("linear", "relu-quarter", "absolute")
"""Facts that are beyond doubt: a recorder must find them, and must see that it changed them."""
APART = {
    "fresh-image-3": "no kernel answers", "fresh-image-4": "no kernel answers",
    "graph-two-nodes-of-an-image": "an encode of too few images, which ends the process there",
    "graph-image-as-handle": "identity of objects", "graph-no-intermediates": "as graph-no-source-states",
    "graph-intermediates-of-clients": "seen in a client's program, on no machine that is named",
    "graph-arithmetic-defaults": "properties of a node alone", "graph-result-is-not-needed": "a result that is nil",
    "no-clip": "a constant", "read-counts-of-batches": "counts of states", "state-of-a-buffer": "states by themselves",
    "state-with-a-size": "states by themselves", "state-of-a-list": "states by themselves",
    "row-bytes": "a case for each type", "row-bytes-of-none": "as row-bytes", "vector-bytes": "as row-bytes",
    "matrix-bytes": "a descriptor by itself",
    "philox-uniform-printed": "as philox-uniform", "philox-small-matrix": "as philox-words-0",
    "state-resource-size": "states by themselves", "short-row-bytes": "a descriptor by itself",
    "graph-result-handle": "identity of objects",
    **dict.fromkeys((fact.name for fact in (*matrices.FACTS, *matrices.SWITCHED)), "a fact of matrices by themselves"),
    **dict.fromkeys((fact.name for fact in (*arrays.FACTS, *arrays.SWITCHED)), "the list has no arrays"),
    **dict.fromkeys((fact.name for fact in image_filters.FACTS), "the list has no filters of pictures"),
}  # fmt: skip
"""Facts that the list does not ask, and why."""
NINE, SIXTEEN, SIGNED, FOUR = kernels.NINE, kernels.SIXTEEN, kernels.SIGNED, kernels.FOUR
Entry = dict[str, Any]


def _image(numbers: Any) -> Entry:
    array = np.asarray(numbers, np.float32)
    side = round(array.size**0.5)
    return listed(array if array.ndim == 3 else array.reshape(side, side, 1))


def _kernel(kernel: Any, numbers: Any, side: int = 0, **properties: Any) -> Entry:
    """A kernel that writes into a given image, as large as its source unless said."""
    for name, value in properties.items():
        setattr(kernel, name, value)
    source = _image(numbers)
    height, width, channels = source["shape"]
    return {
        "kind": "kernel", "classes": [type(kernel).__name__], "kernel": described(kernel), "sources": [source],
        "destination": [side or width, side or height, channels], "read": ["result"],
    }  # fmt: skip


def _object(thing: Any, *shows: str) -> Entry:
    kind = type(thing).__name__
    return {"kind": "object", "classes": [kind], "object": described(thing), "shows": list(shows)}


def _normalized() -> Entry:
    rows = [np.array([number], np.float32) for number in (2.0, 0.5, 4.0, 1.5)]
    source = ArchivedNormalizationParameters(*rows, epsilon_value=1e-3)
    entry = _kernel(mps.MPSCNNBatchNormalization(DEVICE, source), NINE)
    names = ("gamma", "beta", "mean", "variance")
    written = {name: listed(row) for name, row in zip(names, rows, strict=True)}
    entry["kernel"]["arguments"]["dataSource"] |= written
    entry["kernel"]["properties"] = {"epsilon": 0.25}
    return entry


def _node(name: str, *images: int | str, **properties: Any) -> Entry:
    """An arithmetic node over sources by number, or over the node before it."""
    left, right = ({"node": 0} if each == "before" else {"source": each} for each in images)
    entry: Entry = {"class": f"MPSNN{name}Node", "arguments": {"leftSource": left, "rightSource": right}}
    return {**entry, "properties": properties} if properties else entry


def _graph(
    nodes: Sequence[Entry], *, read: Sequence[str] = ("result",), arrays: Any = None, is_float32: bool = True
) -> Entry:
    arrays = ([[1, 2, 3, 4], [10, 20, 30, 40]]) if arrays is None else arrays
    return {
        "kind": "graph", "classes": sorted({node["class"] for node in nodes}), "nodes": list(nodes),
        **({"format": FLOAT32} if is_float32 else {}), "sources": [_image(each) for each in arrays], "read": list(read),
    }  # fmt: skip


def _joined(*channels: int) -> Entry:
    """Concatenated 1x1 images: the first holds 1, 2, …, the second 5, 6, …"""
    arrays = [[[[first + place for place in range(count)]]] for first, count in zip((1, 5), channels, strict=False)]
    sources = [{"source": place} for place in range(len(channels))]
    return _graph([{"class": "MPSNNConcatenationNode", "arguments": {"sources": sources}}], arrays=arrays)


def _pooled(kind: str) -> Entry:
    arguments = {"source": {"source": 0}, "filterSize": 2, "stride": 1}
    return _graph([{"class": f"MPSCNNPooling{kind}Node", "arguments": arguments}], arrays=[NINE], read=["size"])


def _drawn(kind: mps.MPSDataType, seed: int = 0, **distribution: Sequence[float]) -> Entry:
    """Eight numbers; of a distribution by its name and its two numbers."""
    kernel = {"class": "MPSMatrixRandomPhilox", "arguments": {"destinationDataType": int(kind), "seed": seed}}
    if distribution:
        kernel["arguments"]["distributionDescriptor"] = distribution
    return {"kind": "random", "classes": [kernel["class"]], "kernel": kernel, "matrix": [4, 2], "read": ["matrix"]}


def _row_bytes() -> Iterator[Entry]:
    for kind in ELEMENTS:
        yield {
            "name": f"fact: row-bytes of {kind.name}", "family": "random numbers", "kind": "spacing",
            "classes": ["MPSMatrixDescriptor"], "dataType": int(kind), "columns": list(COLUMNS), "read": ["rowBytes"],
        }  # fmt: skip


def _distribution(described_as: Entry) -> Entry:
    kind = "MPSMatrixRandomDistributionDescriptor"
    shows = ["minimum", "maximum", "mean", "standardDeviation"]
    return {"kind": "object", "classes": [kind], "object": described_as, "shows": shows}


UINT32, FLOATS = mps.MPSDataType.UINT32, mps.MPSDataType.FLOAT32
CASES: Mapping[str, Callable[[], Entry]] = {
    "average-divides-by-window": lambda: _kernel(mps.MPSCNNPoolingAverage(DEVICE, 3, 3), NINE),
    "average-zero-pad-size": lambda: _kernel(
        mps.MPSCNNPoolingAverage(DEVICE, 3, 3), NINE, zero_pad_size_x=1, zero_pad_size_y=1
    ),
    "maximum-3": lambda: _kernel(mps.MPSCNNPoolingMax(DEVICE, 3, 3), NINE),
    "average-2-into-2": lambda: _kernel(mps.MPSCNNPoolingAverage(DEVICE, 2, 2), NINE, 2),
    "average-2-into-3": lambda: _kernel(mps.MPSCNNPoolingAverage(DEVICE, 2, 2), NINE),
    "average-2-into-4": lambda: _kernel(mps.MPSCNNPoolingAverage(DEVICE, 2, 2), SIXTEEN),
    "fresh-pooling-edge-mode": lambda: _object(mps.MPSCNNPoolingAverage(DEVICE, 3, 3), "edgeMode"),
    "relu-0": lambda: _kernel(mps.MPSCNNNeuronReLU(DEVICE, 0.0), SIGNED),
    "relu-quarter": lambda: _kernel(mps.MPSCNNNeuronReLU(DEVICE, 0.25), SIGNED),
    "relu-parameters": lambda: _object(mps.MPSCNNNeuronReLU(DEVICE, 0.0), "a", "b", "c"),
    "linear": lambda: _kernel(mps.MPSCNNNeuronLinear(DEVICE, 2.0, 0.5), SIXTEEN),
    "absolute": lambda: _kernel(mps.MPSCNNNeuronAbsolute(DEVICE), SIGNED),
    "sigmoid": lambda: _kernel(mps.MPSCNNNeuronSigmoid(DEVICE), SIXTEEN),
    "tanh": lambda: _kernel(mps.MPSCNNNeuronTanH(DEVICE, 3.0, 0.5), SIXTEEN),
    "batch-normalization-first": _normalized,
    "batch-normalization": _normalized,
    "softmax-over-channels": lambda: _kernel(mps.MPSCNNSoftMax(DEVICE), [[[1, 2], [2, 1]]]),
    "softmax-of-one-channel": lambda: _kernel(mps.MPSCNNSoftMax(DEVICE), NINE),
    "softmax-of-four": lambda: _kernel(mps.MPSCNNSoftMax(DEVICE), FOUR),
    "log-softmax-of-four": lambda: _kernel(mps.MPSCNNLogSoftMax(DEVICE), FOUR),
    "spatial-defaults": lambda: _object(mps.MPSCNNSpatialNormalization(DEVICE, 3, 3), "alpha", "beta", "delta"),
    "spatial-3-corner": lambda: _kernel(mps.MPSCNNSpatialNormalization(DEVICE, 3, 3), SIXTEEN),
    "spatial-3": lambda: _kernel(mps.MPSCNNSpatialNormalization(DEVICE, 3, 3), SIXTEEN),
    "spatial-2": lambda: _kernel(mps.MPSCNNSpatialNormalization(DEVICE, 2, 2), SIXTEEN),
    "contrast-defaults": lambda: _object(
        mps.MPSCNNLocalContrastNormalization(DEVICE, 3, 3), "alpha", "beta", "delta", "p0", "pm", "ps"
    ),
    "contrast-alpha-0": lambda: _kernel(mps.MPSCNNLocalContrastNormalization(DEVICE, 3, 3), SIXTEEN),
    "contrast-alpha-1": lambda: _kernel(mps.MPSCNNLocalContrastNormalization(DEVICE, 3, 3), SIXTEEN, alpha=1.0),
    "cross-channel-defaults": lambda: _object(
        mps.MPSCNNCrossChannelNormalization(DEVICE, 3), "alpha", "beta", "delta", "kernelSize"
    ),
    "cross-channel-divisor": lambda: _kernel(mps.MPSCNNCrossChannelNormalization(DEVICE, 3), [[[1, 2, 5]]]),
    "cross-channel-3-of-four": lambda: _kernel(mps.MPSCNNCrossChannelNormalization(DEVICE, 3), FOUR),
    "cross-channel-1-of-four": lambda: _kernel(mps.MPSCNNCrossChannelNormalization(DEVICE, 1), FOUR),
    "graph-add": lambda: _graph([_node("Addition", 0, 1)]),
    "graph-subtract": lambda: _graph([_node("Subtraction", 0, 1)]),
    "graph-multiply": lambda: _graph([_node("Multiplication", 0, 1)]),
    "graph-divide": lambda: _graph([_node("Division", 0, 1)]),
    "graph-one-node-an-image-add": lambda: _graph([_node("Addition", 0, 1), _node("Addition", "before", 1)]),
    "graph-one-node-an-image-subtract": lambda: _graph([_node("Addition", 0, 1), _node("Subtraction", "before", 1)]),
    "graph-order-of-sources": lambda: _graph([_node("Addition", 0, 1)], read=["sourceOrder"]),
    "graph-no-source-states": lambda: _graph([_node("Addition", 0, 1)], read=["sourceStateCount"]),
    "graph-format": lambda: _graph([_node("Addition", 0, 1)], read=["pixelFormat", "result"], is_float32=False),
    "graph-concatenation-1-1": lambda: _joined(1, 1),
    "graph-concatenation-2-2": lambda: _joined(2, 2),
    "graph-concatenation-1-4": lambda: _joined(1, 4),
    "graph-concatenation-3-1": lambda: _joined(3, 1),
    "graph-concatenation-1": lambda: _joined(1),
    "graph-concatenation-2": lambda: _joined(2),
    "graph-concatenation-4-4": lambda: _joined(4, 4),
    "graph-pooling-average-size": lambda: _pooled("Average"),
    "graph-pooling-maximum-size": lambda: _pooled("Max"),
    "graph-primary-scale": lambda: _graph([_node("Addition", 0, 1, primaryScale=2.0)]),
    "philox-words-0": lambda: _drawn(UINT32, 0),
    "philox-words-1": lambda: _drawn(UINT32, 1),
    "philox-words-2": lambda: _drawn(UINT32, 2),
    "philox-uniform": lambda: _drawn(FLOATS),
    "philox-uniform-bounds": lambda: _drawn(FLOATS, uniform=(-2, 3)),
    "descriptor-uniform": lambda: _distribution({"uniform": [-2, 3]}),
    "descriptor-normal": lambda: _distribution({"normal": [2, 3]}),
    "descriptor-default": lambda: _distribution({"class": "MPSMatrixRandomDistributionDescriptor", "arguments": {}}),
    "philox-normal": lambda: _drawn(FLOATS, normal=(0, 1)),
}
"""How each fact is asked; row bytes are a case for each type besides."""


def fact_cases() -> Iterator[Entry]:
    """Cases named after the facts."""
    for name, make in CASES.items():
        entry = make()
        questions = [*FACTS[name].switch] if FACTS[name].switch else []
        yield {
            "name": f"fact: {name}", "family": family_of(entry["classes"][0]), "questions": questions, **entry,
        }  # fmt: skip
    yield from _row_bytes()


def controls() -> list[Entry]:
    """The cases of `CONTROLS` with all that they read."""
    return [{"case": f"fact: {name}", "values": _values(name, FACTS[name], CASES[name]())} for name in CONTROLS]


# --- what the Macs answered -------------------------------------------------------------------------------------------


def _numbers(answer: Any, *, unknown: int = 0, over: float = 1.0) -> Entry:
    """Numbers of a result from the first one on, behind some that nobody printed."""
    known = np.asarray(answer).reshape(-1)
    return {"numbers": [*[None] * unknown, *(written_number(float(each / known.dtype.type(over))) for each in known)]}


def _half_format(answer: tuple[int, int, tuple[int, ...]]) -> Entry:
    halves = np.array(answer[2], np.uint16).view(np.float16)
    return {"pixelFormat": answer[1], "result": _numbers(halves)}


_VALUES: Mapping[str, Callable[[Any], Entry]] = {
    "average-2-into-4": lambda answer: {"result": _numbers(answer, over=4.0)},
    "cross-channel-divisor": lambda answer: {"result": _numbers(answer, unknown=1)},
    "graph-order-of-sources": lambda answer: {"sourceOrder": ["ab".index(each) for each in answer]},
    "graph-no-source-states": lambda answer: {"sourceStateCount": len(answer)},
    "graph-format": _half_format,
}
"""Answers that the list reads in another form."""


def _values(name: str, fact: Fact, entry: Entry) -> Entry:
    if name in _VALUES:
        return _VALUES[name](fact.answer)
    if entry["kind"] == "object":
        answer = _numbers(fact.answer)["numbers"]
        return dict(zip(entry["shows"], answer, strict=True))
    (read,) = entry["read"]
    return {read: list(fact.answer) if read == "size" else _numbers(fact.answer)}


def recordings() -> Mapping[str, Entry]:
    """What each machine answered, by the folder that it goes to."""
    rows = FACTS["row-bytes"]
    per_type = len(COLUMNS)
    found: dict[str, Entry] = {}
    for system, folder in PLACES.items():
        machine = {"framework": "Apple", "gpu": "Apple M4 Pro", "system": system}
        found[folder] = {"format": FORMAT, "source": SOURCE, "machine": machine, "answers": {}}
    for name, make in CASES.items():
        fact = FACTS[name]
        _answers(found, fact)[f"fact: {name}"] = _answer(fact, _values(name, fact, make()))
    for place, entry in enumerate(_row_bytes()):
        spacings = rows.answer[place * per_type : (place + 1) * per_type]
        _answers(found, rows)[entry["name"]] = _answer(rows, {"rowBytes": spacings})
    return found


def _answers(found: Mapping[str, Entry], fact: Fact) -> Entry:
    system = "macOS 26.5" if fact in storage.FACTS else "macOS 27.0"
    return found[PLACES[system]]["answers"]


def _answer(fact: Fact, values: Entry) -> Entry:
    return {"values": values, "tolerance": fact.tolerance, "grade": fact.grade, "says": fact.says}
