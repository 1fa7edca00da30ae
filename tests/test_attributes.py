"""Names of attributes: those that a class does not have are refused, and the one that was meant is named."""

from __future__ import annotations

import ast
import copy
import dataclasses
import enum
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import openmps as mps
import openmps.training
from helpers import source_of
from in_one_test import in_one_test
from networks import Weights, convolution
from openmps.checks import KnownAttributes, NamedAttributes
from openmps.spellings import camel_case
from test_encode_calls import counted
from typical_encodes import ENCODES

DEVICE = mps.mtl_device("cpu")


def _weights() -> Weights:
    return Weights.of(np.random.default_rng(0), (2, 3, 3, 1))


def _source(kind: Any) -> Any:
    return kind(mps.MPSCNNConvolutionDescriptor(1, 1, 1, 1), np.ones((1, 1, 1, 1), np.float32))


def _graph() -> mps.MPSNNGraph:
    return mps.MPSNNGraph(DEVICE, mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode()).result_image)


_ONE_PIXEL = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 1, 1, 1)


def _open() -> mps.MPSCommandBuffer:
    return mps.MPSCommandBuffer(DEVICE.new_command_queue())


def _image(channels: int) -> mps.MPSImage:
    return mps.MPSImage.from_numpy(DEVICE, np.ones((3, 3, channels), np.float32))


THINGS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "filter node": (lambda: convolution(mps.MPSNNImageNode(), _weights()), "paddingPolicy", "padding_policy"),
    "gradient node": (
        lambda: convolution(mps.MPSNNImageNode(), _weights()).gradient_filter(mps.MPSNNImageNode()),
        "trainingStyle",
        "training_style",
    ),
    "arithmetic node": (
        lambda: mps.MPSNNAdditionNode(mps.MPSNNImageNode(), mps.MPSNNImageNode()),
        "primary_scal",
        "primary_scale",
    ),
    "image node": (mps.MPSNNImageNode, "exportFromGraph", "export_from_graph"),
    "image node, a letter": (mps.MPSNNImageNode, "stop_gradients", "stop_gradient"),
    "state node": (
        lambda: mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode()).result_state,
        "synchronizeResource",
        "synchronize_resource",
    ),
    "graph": (_graph, "destinationImageAllocator", "destination_image_allocator"),
    "graph, a letter": (_graph, "fromat", "format"),
    "kernel": (lambda: mps.MPSCNNPoolingMax(DEVICE, 2, 2), "edgeMode", "edge_mode"),
    "kernel with a word that is kept together": (
        lambda: mps.MPSCNNNeuronReLU(DEVICE, 0.0),
        "destinationFeatureChannelOffset",
        "destination_feature_channel_offset",
    ),
    "convolution descriptor": (
        lambda: mps.MPSCNNConvolutionDescriptor(3, 3, 1, 1),
        "strideInPixelsX",
        "stride_in_pixels_x",
    ),
    "loss descriptor": (
        lambda: mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.HINGE, mps.MPSCNNReductionType.SUM),
        "labelSmoothing",
        "label_smoothing",
    ),
    "optimizer": (lambda: mps.MPSNNOptimizerAdam(DEVICE, 0.1), "timeStep", "time_step"),
    "command buffer": (lambda: DEVICE.new_command_queue().command_buffer(), "lable", "label"),
    "command buffer of the framework": (lambda: mps.MPSCommandBuffer(DEVICE.new_command_queue()), "lable", "label"),
    "command queue": (DEVICE.new_command_queue, "Label", "label"),
    "image": (lambda: mps.MPSImage(DEVICE, _ONE_PIXEL), "lable", "label"),
    "temporary image": (lambda: mps.MPSTemporaryImage(_open(), _ONE_PIXEL), "readCount", "read_count"),
    "state": (lambda: mps.MPSState.temporary_state(_open(), buffer_size=4), "readCount", "read_count"),
    "gradient state": (
        lambda: mps.MPSCNNConvolution(DEVICE, weights=_weights()).result_state(_image(3)),
        "sourceWidth",
        "source_width",
    ),
    "labels": (lambda: mps.MPSCNNLossLabels.batch(DEVICE, np.ones((1, 2), np.float32))[0], "lable", "label"),
    "labels in memory": (lambda: mps.MPSCNNLossDataDescriptor([1.0]), "bytesPerRow", "bytes_per_row"),
    "vector": (lambda: mps.MPSVector(DEVICE, mps.MPSVectorDescriptor(3)), "lable", "label"),
    "temporary matrix": (
        lambda: mps.MPSTemporaryMatrix(_open(), mps.MPSMatrixDescriptor(1, 1)),
        "readCount",
        "read_count",
    ),
    "buffer": (lambda: DEVICE.new_buffer(length=4), "storageMode", "storage_mode"),
    "buffer, a letter": (lambda: DEVICE.new_buffer(length=4), "lable", "label"),
    "heap": (lambda: DEVICE.new_heap(mps.MTLHeapDescriptor(4)), "usedSize", "used_size"),
    "texture": (lambda: DEVICE.new_texture(mps.MTLTextureDescriptor()), "pixelFormat", "pixel_format"),
    "texture descriptor": (mps.MTLTextureDescriptor, "mipmapLevelCount", "mipmap_level_count"),
    "heap descriptor": (lambda: mps.MTLHeapDescriptor(4), "storageMode", "storage_mode"),
    "image descriptor": (_ONE_PIXEL.copy, "featureChannels", "feature_channels"),
    "image batch": (lambda: mps.MPSImageBatch([_image(1)]), "resourceSize", "resource_size"),
    "state batch": (lambda: mps.MPSStateBatch(), "countUnique", "count_unique"),
    "list of resources": (mps.MPSStateResourceList, "appendBuffer", "append_buffer"),
    "device": (lambda: DEVICE, "maxBufferLength", "max_buffer_length"),
    "blit encoder": (lambda: _open().blit_command_encoder(), "lable", "label"),
    "predicate": (lambda: mps.MPSPredicate(device=DEVICE), "predicateOffset", "predicate_offset"),
    "padding": (lambda: mps.MPSNNDefaultPadding(0), "paddingMethod", "padding_method"),
    "handle": (mps.Handle, "Label", "label"),
    "source of convolutions": (lambda: _source(mps.ArrayConvolutionDataSource), "dataType", "data_type"),
    "source of normalizations": (
        lambda: mps.ArrayBatchNormalizationDataSource(4),
        "numberOfFeatureChannels",
        "number_of_feature_channels",
    ),
    "counts": (lambda: openmps.training.ConfusionCounts(["a", "b"]), "classNames", "class_names"),
}


@in_one_test
@pytest.mark.parametrize("kind", THINGS)
def test_another_spelling_is_refused_and_the_right_one_is_named(kind: str) -> None:
    make, wrong, right = THINGS[kind]
    thing = make()
    before = dict(getattr(thing, "__dict__", {}))
    with pytest.raises(mps.MPSAttributeError) as fault:
        setattr(thing, wrong, 1)
    assert fault.value.argument == wrong and fault.value.remedy == f"Use {right}"
    assert fault.value.who.startswith(type(thing).__name__)
    assert getattr(thing, "__dict__", {}) == before
    is_named = isinstance(thing, NamedAttributes) or wrong == camel_case(right) != right
    kind = mps.MPSAttributeError if is_named else AttributeError
    words = f"{wrong} is no attribute of this class. Use {right}$" if is_named else wrong
    with pytest.raises(kind, match=words):
        getattr(thing, wrong)
    assert not hasattr(thing, wrong) and getattr(thing, wrong, 3) == 3


def _several_words(kind: Any) -> list[str]:
    """The public attributes and methods of a class whose names have several words."""
    had = {name for base in kind.__mro__ for name, at in vars(base).items() if not hasattr(type(at), "is_elsewhere")}
    names = had.union(*(getattr(base, "__annotations__", ()) for base in kind.__mro__))
    return sorted(name for name in names if "_" in name.strip("_") and name[0] != "_" and name.islower())


@in_one_test
@pytest.mark.parametrize("kind", [
    kind for name in mps.__all__ if inspect.isclass(kind := getattr(mps, name))
    if issubclass(kind, KnownAttributes) and not issubclass(kind, NamedAttributes)
], ids=lambda kind: kind.__name__)  # fmt: skip
def test_every_attribute_is_named_where_it_is_read_in_camel_case(kind: Any) -> None:
    """Of classes whose attributes an encode reads: no ``__getattr__`` slows them down."""
    assert not hasattr(kind, "__getattr__")
    thing = object.__new__(kind)
    for name in _several_words(kind):
        other = camel_case(name)
        with pytest.raises(mps.MPSAttributeError) as fault:
            getattr(thing, other)
        said = str(fault.value)
        assert said.startswith(f"{kind.__name__}: {other} is no attribute ") and said.endswith(f" Use {name}")
        assert not hasattr(thing, other) and not hasattr(kind, other) and getattr(thing, other, 3) == 3
    assert not {camel_case(name) for name in _several_words(kind)} & {*dir(thing)}


def test_attributes_in_camel_case_name_the_object() -> None:
    kernel = mps.MPSCNNPoolingMax(DEVICE, 2, 2)
    kernel.label = "pool1"
    with pytest.raises(mps.MPSAttributeError, match="MPSCNNPoolingMax 'pool1': kernelWidth .* Use kernel_width$"):
        _ = kernel.kernelWidth  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(mps.MPSAttributeError, match="MPSImage: featureChannels .* Use feature_channels$"):
        _ = _image(1).featureChannels  # pyright: ignore[reportAttributeAccessIssue]


def test_a_user_s_class_may_have_names_in_camel_case() -> None:
    class Pooling(mps.MPSCNNPoolingMax):
        kernelWidth = 5
        strideRule = "none"

    pooling = Pooling(DEVICE, 2, 2)
    assert (pooling.kernelWidth, pooling.strideRule) == (5, "none") and "kernelWidth" in dir(pooling)


def test_a_name_that_is_like_no_other_is_refused_too() -> None:
    with pytest.raises(mps.MPSAttributeError, match="MPSNNImageNode: colour .* A subclass can have attributes"):
        mps.MPSNNImageNode().colour = "red"  # pyright: ignore[reportAttributeAccessIssue]


def test_the_label_is_named() -> None:
    kernel = mps.MPSCNNPoolingMax(DEVICE, 2, 2)
    kernel.label = "pool1"
    with pytest.raises(mps.MPSAttributeError, match="^MPSCNNPoolingMax 'pool1': edgeMode"):
        kernel.edgeMode = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_methods_of_nodes_in_another_spelling_are_named() -> None:
    node = mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode())
    with pytest.raises(mps.MPSAttributeError, match="Use gradient_filter$"):
        node.gradientFilter(mps.MPSNNImageNode())  # pyright: ignore[reportAttributeAccessIssue]


def test_a_property_that_is_not_set_yet_is_not_called_unknown() -> None:
    node = mps.MPSNNAdditionGradientNode.__new__(mps.MPSNNAdditionGradientNode)
    with pytest.raises(AttributeError, match="primary_scale is not set"):
        _ = node.primary_scale


@pytest.mark.parametrize(
    ("make", "name", "remedy"),
    [
        (lambda: DEVICE.new_buffer(length=4), "length", r"new_buffer\(length=…\) of the device"),
        (lambda: DEVICE.new_buffer(length=4), "storage_mode", r"new_buffer\(…, options=…\) of the device"),
        (lambda: DEVICE.new_heap(mps.MTLHeapDescriptor(4)), "size", r"new_heap\(MTLHeapDescriptor\(size=…\)\) of the"),
        (DEVICE.new_command_queue, "device", r"new_command_queue\(\) of the other device"),
        (lambda: mps.MPSVectorDescriptor(3), "vector_bytes", r"MPSVectorDescriptor\(…, vector_bytes=…\)"),
    ],
)
def test_what_can_be_read_only_says_which_call_makes_another(make: Any, name: str, remedy: str) -> None:
    with pytest.raises(mps.MPSAttributeError, match=f"{name} is read-only. Make another with {remedy}"):
        setattr(make(), name, 1)


# --- subclasses -------------------------------------------------------------------------------------------------------


class Scheduled(mps.MPSCNNConvolutionNode):
    """A node of a user's, with attributes of its own."""

    rate: float
    paddingRule = "none"

    def __init__(self, source: mps.MPSNNImageNode, rate: float) -> None:
        super().__init__(source, _weights())
        self.rate = rate
        self.weight = 2 * rate  # nearly `weights`, and the class's own affair
        self._private = rate

    def misspell(self) -> None:
        self.paddingPolicy = self.padding_policy


def test_a_subclass_of_a_users_has_attributes_of_its_own() -> None:
    node = Scheduled(mps.MPSNNImageNode(), 0.5)
    node.paddingRule = "mine"
    node.note = "from outside"  # pyright: ignore[reportAttributeAccessIssue]
    assert (node.rate, node.weight, node.paddingRule, node.note) == (0.5, 1.0, "mine", "from outside")  # pyright: ignore[reportAttributeAccessIssue]


def test_a_subclass_of_a_users_spells_the_frameworks_properties_as_openmps_does() -> None:
    node = Scheduled(mps.MPSNNImageNode(), 0.5)
    with pytest.raises(mps.MPSAttributeError, match="^Scheduled: paddingPolicy .* Use padding_policy"):
        node.misspell()
    with pytest.raises(mps.MPSAttributeError, match="Use training_style"):
        node.trainingStyle = 0  # pyright: ignore[reportAttributeAccessIssue]


def test_a_data_source_of_a_users_is_left_alone() -> None:
    class Source(mps.ArrayConvolutionDataSource):
        def __init__(self) -> None:
            descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 1, 1)
            super().__init__(descriptor, np.ones((1, 1, 1, 1), np.float32))
            self.momentum = 0.9

    assert Source().momentum == 0.9


def test_a_padding_policy_of_a_users_has_attributes_of_its_own() -> None:
    class Policy(mps.MPSNNDefaultPadding):
        def destination_image_descriptor(self, *_: Any) -> Any:
            self.calls = getattr(self, "calls", 0) + 1
            return _[-1]

    policy = Policy(mps.MPSNNPaddingMethod.CUSTOM)
    policy.destination_image_descriptor(None)
    assert policy.calls == 1


# --- the rest of Python -----------------------------------------------------------------------------------------------


def test_copies_have_all_attributes() -> None:
    kernel = mps.MPSCNNPoolingMax(DEVICE, 2, 2)
    kernel.edge_mode = mps.MPSImageEdgeMode.CLAMP
    assert copy.copy(kernel).edge_mode is mps.MPSImageEdgeMode.CLAMP
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, 1, 1)
    assert vars(copy.deepcopy(descriptor)) == vars(descriptor)


STRICT = [
    kind for name in mps.__all__ if inspect.isclass(kind := getattr(mps, name)) and issubclass(kind, KnownAttributes)
]


@in_one_test
@pytest.mark.parametrize("kind", STRICT, ids=lambda kind: kind.__name__)
def test_every_public_attribute_that_a_class_sets_is_declared_in_it(kind: type) -> None:
    """Else its own methods would be refused."""
    tree = ast.parse(source_of(kind))
    stored = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    declared = {name for base in kind.__mro__ for name in (*vars(base), *getattr(base, "__annotations__", ()))}
    assert {name for name in stored if name[0] != "_"} <= declared


def _enumerations(kind: type) -> dict[str, Any]:
    """The attributes of a class's objects that are declared to be of an enumeration, and which."""
    declared = {name: text for base in kind.__mro__ for name, text in getattr(base, "__annotations__", {}).items()}
    found = {name: getattr(mps, str(text), None) for name, text in declared.items() if name[0] != "_"}
    return {name: each for name, each in found.items() if isinstance(each, enum.EnumMeta)}


ENUMERATED = [kind for kind in STRICT if _enumerations(kind) and not issubclass(kind, mps.MPSKernel)]


@pytest.mark.parametrize("kind", [*ENUMERATED, mps.MPSKernel], ids=lambda kind: kind.__name__)
def test_what_is_declared_to_be_of_an_enumeration_is_of_that(kind: type) -> None:
    """Its members' numbers are turned into these; other numbers, truth values and other enumerations are refused."""
    for name, declared in _enumerations(kind).items():
        thing = object.__new__(kind)
        member = mps.MPSDataType.FLOAT32 if declared is mps.MPSDataType else next(iter(declared))
        setattr(thing, name, int(member))
        assert getattr(thing, name) is member
        for wrong in ("x", None, -1, 1.5, True, np.True_, [], 1 << 40, mps.MPSRNNMatrixId(0)):
            with pytest.raises(mps.MPSArgumentError, match=f"^{kind.__name__}: {name} must ") as fault:
                setattr(thing, name, wrong)
            assert declared.__name__ in str(fault.value) or member.name in str(fault.value)
            assert getattr(thing, name) is member


def test_enumerations_of_descriptors_are_looked_at() -> None:
    named = {kind.__name__ for kind in ENUMERATED if kind.__name__.endswith("Descriptor")}
    assert named >= {"MTLTextureDescriptor", "MTLHeapDescriptor", "MPSImageDescriptor", "MPSVectorDescriptor"}
    with pytest.raises(mps.MPSArgumentError, match="^MTLTextureDescriptor: usage must combine SHADER_READ"):
        mps.MTLTextureDescriptor(usage=mps.MTLStorageMode.PRIVATE)  # type: ignore[arg-type]
    with pytest.raises(mps.MPSArgumentError, match="^MPSImageDescriptor: usage must combine SHADER_READ"):
        mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.UNORM8, usage=77)  # type: ignore[arg-type]


PLAIN = [
    kind
    for package in (mps, openmps.training)
    for name in package.__all__
    if inspect.isclass(kind := getattr(package, name)) and not issubclass(kind, enum.Enum | BaseException)
    if not getattr(kind, "_is_protocol", False)
]


def _is_frozen(kind: Any) -> bool:
    return issubclass(kind, tuple) or (dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen)


def test_every_public_class_refuses_unknown_attributes() -> None:
    """Those whose values cannot change at all do so by themselves."""
    assert [kind for kind in PLAIN if not (_is_frozen(kind) or issubclass(kind, KnownAttributes))] == []


@pytest.mark.parametrize("name", ENCODES)
def test_an_encode_writes_no_attribute_that_is_checked(name: str) -> None:
    found = [each for each in counted(name) if "KnownAttributes" in each]
    assert found == []


# --- names of the package ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["MPSImageFindKeypoints", "MTLRenderCommandEncoder", "NSArray"])
def test_a_class_that_is_not_there_yet_says_so_by_name(name: str) -> None:
    with pytest.raises(mps.MPSAttributeError, match=f"^openmps: {name} is not here: openmps does not have it yet"):
        getattr(mps, name)
    assert not hasattr(mps, name)
    with pytest.raises(ImportError, match=name):
        exec(f"from openmps import {name}")


@pytest.mark.parametrize(("name", "remedy"), [
    ("MPSImageEdgeModeClamp", "Use MPSImageEdgeMode.CLAMP"),
    ("MPSCNNLossTypeSoftMaxCrossEntropy", "Use MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY"),
    ("MPSCNNConvolutoin", "If MPSCNNConvolution is meant, use that; dir(openmps) lists what there is"),
    ("MPSImageFindKeypoints", "dir(openmps) lists what there is"),
])  # fmt: skip
def test_a_name_of_the_package_in_another_spelling_names_the_right_one(name: str, remedy: str) -> None:
    with pytest.raises(mps.MPSAttributeError) as fault:
        getattr(mps, name)
    assert fault.value.remedy == remedy
    assert not hasattr(mps, name)


def test_other_names_of_the_package_fail_as_ever() -> None:
    with pytest.raises(AttributeError, match="module 'openmps' has no attribute 'nothing'"):
        _ = mps.nothing  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("value", [5, b"conv1", ["a"]], ids=repr)
def test_a_label_is_text(value: Any) -> None:
    """Another value would be written to archives that cannot be read."""
    relu = mps.MPSCNNNeuronReLU(mps.mtl_device("cpu"), 0.0)
    with pytest.raises(mps.MPSTypeError, match="MPSCNNNeuronReLU: label must be text or None"):
        relu.label = value
