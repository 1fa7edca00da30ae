"""Names and arguments as they are written elsewhere, and plausible mistakes: each error says what is meant."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pytest

import openmps as mps
from in_one_test import in_one_test
from openmps import debug, formats, training

CPU = mps.mtl_device("cpu")
MADE_EACH_STEP = (
    mps.MPSImage,
    mps.MPSState,
    mps.MPSStateResourceList,
    mps.MPSVector,
    mps.MPSMatrix,
    mps.MPSTemporaryNDArray,
    mps.MPSCommandBuffer,
    mps.MPSImageBatch,
    mps.MPSStateBatch,
    mps.MPSCNNLossDataDescriptor,
)
"""A constructor that names arguments costs a call more; Python's own sentence names the argument that is unknown."""


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in others)


def constructors() -> list[type]:
    """The framework's classes whose constructors have an argument of two words."""
    found: list[type] = []
    for name in mps.__all__:
        kind = getattr(mps, name)
        is_class = (
            isinstance(kind, type) and not issubclass(kind, (Exception, enum.Enum)) and name[:3] in ("MPS", "MTL")
        )
        if not is_class or getattr(kind, "_is_protocol", False) or issubclass(kind, MADE_EACH_STEP):
            continue
        is_made_by_another = hasattr(kind, "_instead") and kind is not mps.MTLCommandQueue
        if not is_made_by_another and kind not in (mps.MTLDevice, mps.MTLResource) and words_of(kind):
            found.append(kind)
    return found


def words_of(kind: type) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, each in inspect.signature(kind).parameters.items() if "_" in name and each.kind in kinds]


@in_one_test
@pytest.mark.parametrize("kind", constructors(), ids=lambda kind: kind.__name__)
def test_arguments_of_constructors_in_camel_case(kind: type) -> None:
    for name in words_of(kind):
        with pytest.raises(mps.MPSTypeError, match=f"^{kind.__name__}: {camel(name)} is no argument here. Use {name}$"):
            kind(**{camel(name): 3})


def public_classes() -> list[type]:
    """All public classes that programs make objects of by calling them, but for those made in each step."""
    found: set[type] = set()
    for package in (mps, debug, formats, training):
        public = (getattr(package, name) for name in package.__all__)
        found |= {kind for kind in public if isinstance(kind, type) and not issubclass(kind, (Exception, enum.Enum))}
    made_otherwise = (mps.MTLDevice, mps.MTLResource, mps.MPSKeyedArchiver, mps.Trace, training.TrainingCallback)
    others = {kind for kind in found if getattr(kind, "_is_protocol", False) or hasattr(kind, "_instead")}
    others |= {kind for kind in found if issubclass(kind, (*MADE_EACH_STEP, *made_otherwise))}
    return sorted(found - others, key=lambda kind: kind.__name__)


@in_one_test
@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: kind.__name__)
def test_arguments_that_no_constructor_has(kind: type) -> None:
    with pytest.raises(mps.MPSTypeError, match=f"^{kind.__name__}: bananas is no argument here. The arguments are "):
        kind(bananas=3)


def records() -> list[type]:
    return [kind for kind in public_classes() if is_dataclass(kind) or hasattr(kind, "_fields")]


@in_one_test
@pytest.mark.parametrize("kind", records(), ids=lambda kind: kind.__name__)
def test_fields_of_dataclasses_and_named_tuples_in_camel_case(kind: type) -> None:
    for name in words_of(kind):
        with pytest.raises(mps.MPSTypeError, match=f"^{kind.__name__}: {camel(name)} is no argument here. Use {name}$"):
            kind(**{camel(name): 3})


OBJECTS: dict[str, Callable[[], Any]] = {
    "device": lambda: CPU,
    "queue": CPU.new_command_queue,
    "node": lambda: mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode()),
    "image node": mps.MPSNNImageNode,
    "graph": lambda: mps.MPSNNGraph(CPU, mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode()).result_image),
}


ELSEWHERE = ("encode_to_command_buffer", "encode_batch_to_command_buffer")


@pytest.mark.parametrize("kind", OBJECTS)
def test_attributes_in_camel_case_and_made(kind: str) -> None:
    """Every public name of two words, and each ``new_…`` as Swift's ``make…``."""
    thing = OBJECTS[kind]()
    for name in dir(type(thing)):
        if name[0] == "_" or "_" not in name or name in ELSEWHERE:
            continue
        made = [f"make_{name.removeprefix('new_')}", camel(f"make_{name.removeprefix('new_')}")]
        for other in (camel(name), *(made if name.startswith("new_") else [])):
            with pytest.raises(mps.MPSAttributeError, match=f"{other} is no attribute of this class.* Use {name}$"):
                getattr(thing, other)


@in_one_test
@pytest.mark.parametrize(
    ("read", "meant"),
    [
        (lambda: CPU.make_command_queue, "Use new_command_queue"),
        (lambda: CPU.makeBuffer, "Use new_buffer"),
        (lambda: CPU.new_command_queue().makeCommandBuffer, "Use command_buffer"),
        (lambda: mps.MPSCNNNeuronReLU(CPU, 0.0).encodeToCommandBuffer(None, None), "Use encode$"),
        (lambda: mps.MPSCNNNeuronReLU(CPU, 0.0).encode_batch_to_command_buffer(source_images=[]), "Use encode_batch$"),
        (lambda: mps.MTKTextureLoader, "load_texture"),
        (lambda: mps.MTLSizeMake, "MTLSize"),
        (lambda: mps.NSMakeRange, "NSRange"),
        (lambda: mps.MPSNNImageNode().training_graph(), "training_graph\\(\\) of the loss node"),
    ],
)  # fmt: skip
def test_names_of_swift(read: Callable[[], Any], meant: str) -> None:
    with pytest.raises(mps.MPSAttributeError, match=meant):
        read()


class Broken(mps.ArrayConvolutionDataSource):
    def load(self) -> bool:
        raise OSError("no such disk")


def _source(kind: type = mps.ArrayConvolutionDataSource) -> Any:
    return kind(mps.MPSCNNConvolutionDescriptor(4, 4, 5, 2), np.ones((2, 4, 4, 5)), label="last")


@pytest.mark.parametrize("make", [mps.MPSCNNConvolution, mps.MPSCNNFullyConnected, mps.MPSCNNConvolutionTranspose])
def test_a_load_that_raises_names_its_layer(make: Any) -> None:
    with pytest.raises(OSError, match="no such disk") as caught:
        make(CPU, _source(Broken))
    assert caught.value.__notes__ == [f"{make.__name__} 'last': raised by load() of its data source"]


def test_long_values_are_cut() -> None:
    with pytest.raises(mps.MPSArgumentError) as caught:
        mps.MPSCNNNeuronReLU(CPU, "x" * 100_000)  # type: ignore[arg-type]
    assert len(str(caught.value)) < 300 and str(caught.value).count("x") > 100


def test_the_number_of_images_of_a_graph() -> None:
    buffer, image = CPU.new_command_queue().command_buffer(), mps.MPSImage.from_numpy(CPU, np.ones((1, 1, 4)))
    for labels, rule in (
        ([None], "must have 1 entry, one for each input, got 3"),
        ([None, None], "must have 2 entries, one for each input, got 3"),
        (["x", None], "must have 2 entries, one for each input: 'x', one without a label, got 3"),
    ):
        nodes = [mps.MPSNNImageNode(None if label is None else mps.Handle(label)) for label in labels]
        node = mps.MPSCNNNeuronReLUNode(nodes[0]) if len(nodes) == 1 else mps.MPSNNAdditionNode(*nodes)
        with pytest.raises(mps.MPSArgumentError, match=rule):
            mps.MPSNNGraph(CPU, node.result_image).encode(buffer, [image] * 3)


@pytest.mark.parametrize("shape", [(1, 1, 80), (2, 2, 20), (4, 3, 5)])
def test_a_fully_connected_layer_of_another_shape(shape: tuple[int, int, int]) -> None:
    """Feature channels are named beside the pixels: a flattened image is the usual mistake."""
    height, width, channels = shape
    image, buffer = mps.MPSImage.from_numpy(CPU, np.ones(shape)), CPU.new_command_queue().command_buffer()
    graph = mps.MPSNNGraph(CPU, mps.MPSCNNFullyConnectedNode(mps.MPSNNImageNode(), _source()).result_image)
    rule = rf"'last': source_image must be 4x4x5 \(width x height x feature channels\).*got {width}x{height}x{channels}"
    for encode in (
        lambda: mps.MPSCNNFullyConnected(CPU, _source()).encode(buffer, image),
        lambda: graph.encode(buffer, [image]),
    ):
        with pytest.raises(mps.MPSArgumentError, match=rule):
            encode()


def test_a_concatenation_of_unequal_sizes_names_the_layers_and_their_padding() -> None:
    source = mps.MPSNNImageNode()
    pooled, whole = mps.MPSCNNPoolingMaxNode(source, 2, 2, 2, 2), mps.MPSCNNNeuronReLUNode(source)
    pooled.label, pooled.padding_policy = "pool", mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_VALID_ONLY)
    joined = mps.MPSNNConcatenationNode([pooled.result_image, whole.result_image, source])
    buffer, image = CPU.new_command_queue().command_buffer(), mps.MPSImage.from_numpy(CPU, np.ones((4, 4, 3)))
    rule = (
        r"sources must have the same width and height, got 2x2 of MPSCNNPoolingMax 'pool' \(padding: valid "
        r"only, .*\), 4x4 of MPSCNNNeuronReLU \(padding: same, .*\), 4x4 of an input"
    )
    with pytest.raises(mps.MPSArgumentError, match=rule):
        mps.MPSNNGraph(CPU, joined.result_image).encode(buffer, [image])
