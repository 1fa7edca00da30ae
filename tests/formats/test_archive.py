"""Archives: what they keep, what they refuse, and that damaged or hostile bytes do no harm."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps
import openmps.training
from in_one_test import in_one_test
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.core.padding.explicit import ExplicitPadding
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.core.state.state import MPSState
from openmps.core.vector import MPSVectorDescriptor
from openmps.errors import MPSArgumentError, MPSDeviceError, MPSError, MPSFileError, MPSTypeError
from openmps.formats.archive import MPSKeyedArchiver, MPSKeyedUnarchiver, forms
from openmps.formats.archive.container import pack, unpack
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.kernels.batch_normalization import MPSCNNBatchNormalization
from openmps.kernels.convolution import MPSCNNConvolution, MPSCNNConvolutionDescriptor, MPSCNNConvolutionGradient
from openmps.kernels.dropout import MPSCNNDropout
from openmps.kernels.group_normalization import MPSCNNGroupNormalization, MPSCNNInstanceNormalization
from openmps.kernels.optimizers import MPSNNOptimizerAdam, MPSNNOptimizerDescriptor
from openmps.kernels.pooling import MPSCNNPoolingAverage, MPSCNNPoolingMax
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.training.data_sources import ArrayConvolutionDataSource
from openmps.types import (
    MPSCNNNeuronType,
    MPSImageEdgeMode,
    MPSImageFeatureChannelFormat,
    MPSKernelOptions,
    MPSNNPaddingMethod,
    MPSNNRegularizationType,
    MPSOffset,
    MTLOrigin,
    MTLRegion,
    MTLSize,
)


@pytest.fixture
def cpu() -> MTLDevice:
    return mtl_device("cpu")


def again(thing: Any, device: MTLDevice, **options: Any) -> Any:
    data = MPSKeyedArchiver.archived_data(thing)
    return MPSKeyedUnarchiver.unarchived_object_of_class(type(thing), data, device, **options)


class Policy:
    """A padding policy of a user."""

    def __init__(self, margin: int) -> None:
        self.margin = margin

    def padding_method(self) -> MPSNNPaddingMethod:
        return MPSNNPaddingMethod.CUSTOM

    def destination_image_descriptor(self, images: Any, states: Any, kernel: Any, suggested: Any) -> Any:
        suggested.width += self.margin
        return suggested

    def archived(self) -> dict[str, Any]:
        return {"margin": self.margin}


class Source(ArrayConvolutionDataSource):
    """A data source of a user that knows how to be archived."""

    def archived(self) -> dict[str, Any]:
        return {"descriptor": self.descriptor(), "weights": self.weights(), "biases": self.bias_terms()}


REGISTRY = {
    "Policy": lambda values: Policy(values["margin"]),
    "Source": lambda values: Source(values["descriptor"], values["weights"], values["biases"]),
}


def convolution(device: MTLDevice, kind: Any = ArrayConvolutionDataSource) -> MPSCNNConvolution:
    descriptor = MPSCNNConvolutionDescriptor(3, 2, 4, 5)
    descriptor.stride_in_pixels_x = 2
    descriptor.fused_neuron_descriptor = MPSNNNeuronDescriptor(MPSCNNNeuronType.RELU, 0.25)
    descriptor.set_batch_normalization_parameters_for_inference(np.arange(5.0), np.ones(5), np.full(5, 2.0), None, 0.5)
    weights = np.random.default_rng(3).normal(size=descriptor.weight_shape())
    return MPSCNNConvolution(device, weights=kind(descriptor, weights, np.arange(5.0), label="conv1"))


# --- what is kept ----------------------------------------------------------------------------------------------------


def test_every_property_of_a_kernel(cpu: MTLDevice) -> None:
    kernel = MPSCNNPoolingAverage(cpu, 3, 2, 2, 1)
    kernel.label, kernel.options = "pool", MPSKernelOptions.SKIP_API_VALIDATION
    kernel.offset, kernel.edge_mode = MPSOffset(1, -2, 3), MPSImageEdgeMode.CLAMP
    kernel.clip_rect = MTLRegion(MTLOrigin(1, 2, 0), MTLSize(3, 4, 1))
    kernel.source_feature_channel_offset, kernel.source_feature_channel_max_count = 4, 3
    kernel.destination_feature_channel_offset = 8
    kernel.zero_pad_size_x, kernel.zero_pad_size_y = 1, 2
    kernel.padding = MPSNNDefaultPadding.tensorflow_same()
    kernel.destination_image_allocator = MPSImage.default_allocator()
    found = again(kernel, cpu)
    names = [name for name in dir(kernel) if not name.startswith("_")]
    public = [name for name in names if not callable(getattr(kernel, name)) and name != "device"]
    assert len(public) > 15
    for name in public:
        assert getattr(found, name) == getattr(kernel, name), name
    assert found.device is cpu


def test_a_convolution_without_an_archivable_source_keeps_its_numbers(cpu: MTLDevice) -> None:
    kernel = convolution(cpu)
    found = again(kernel, cpu)
    assert found.label == "conv1"
    descriptor, wanted = found.convolution_descriptor, kernel.convolution_descriptor
    assert descriptor.stride_in_pixels_x == 2
    assert descriptor.fused_neuron_descriptor == wanted.fused_neuron_descriptor
    assert np.array_equal(descriptor.batch_normalization.scale, wanted.batch_normalization.scale)
    assert np.array_equal(descriptor.batch_normalization.shift, wanted.batch_normalization.shift)
    assert np.array_equal(found.data_source.weights(), kernel.data_source.weights())
    assert np.array_equal(found.data_source.bias_terms(), np.arange(5.0))


def test_a_source_of_a_registered_class_comes_back_as_itself(cpu: MTLDevice) -> None:
    kernel = convolution(cpu, Source)
    found = again(kernel, cpu, registry=REGISTRY)
    assert type(found.data_source) is Source
    assert np.array_equal(found.data_source.weights(), kernel.data_source.weights())


def test_kernels_over_one_data_source_share_what_stands_for_it(cpu: MTLDevice) -> None:
    """Unless their numbers have come apart."""
    descriptor = MPSCNNConvolutionDescriptor(3, 2, 4, 5)
    numbers = np.random.default_rng(3).normal(size=descriptor.weight_shape())
    source = ArrayConvolutionDataSource(descriptor, numbers, label="conv1")
    kernels = [MPSCNNConvolution(cpu, weights=source), MPSCNNConvolutionGradient(cpu, source)]
    kernels[0].label = "another name"
    forward, gradient = again(kernels, cpu)
    assert forward.data_source is gradient.data_source
    assert (forward.label, gradient.label, forward.data_source.label()) == ("another name", "conv1", "conv1")
    kernels[0].parameters.weights.mul_(2.0)
    forward, gradient = again(kernels, cpu)
    assert forward.data_source is not gradient.data_source
    assert np.array_equal(forward.data_source.weights(), 2.0 * gradient.data_source.weights())


def test_a_convolution_of_bare_numbers(cpu: MTLDevice) -> None:
    """The framework cannot archive those; here they come back with a data source of their numbers."""
    descriptor = MPSCNNConvolutionDescriptor(2, 2, 1, 3)
    numbers = np.arange(12, dtype=np.float32)
    kernel = MPSCNNConvolution(cpu, convolution_descriptor=descriptor, kernel_weights=numbers, bias_terms=[1, 2, 3])
    assert kernel.data_source is None
    found = again(kernel, cpu)
    assert np.array_equal(found.data_source.weights().reshape(-1), numbers)
    assert found.data_source.bias_terms().tolist() == [1, 2, 3]


class Rows:
    """A data source of a normalization that knows how to be archived."""

    def __init__(self, gamma: Any) -> None:
        self.row = np.asarray(gamma, np.float32)

    def number_of_feature_channels(self) -> int:
        return self.row.size

    def number_of_groups(self) -> int:
        return 2

    def gamma(self) -> Any:
        return self.row

    beta = mean = variance = gamma

    def load(self) -> bool:
        return True

    def purge(self) -> None:
        pass

    def label(self) -> str:
        return "rows"

    def archived(self) -> dict[str, Any]:
        return {"gamma": self.row}


@pytest.mark.parametrize(
    "kind",
    [MPSCNNBatchNormalization, MPSCNNInstanceNormalization, MPSCNNGroupNormalization],
    ids=lambda kind: kind.__name__,
)
def test_normalizations_keep_data_sources_that_can_be_archived(kind: Any, cpu: MTLDevice) -> None:
    found = again(kind(cpu, Rows([1, 2, 3, 4])), cpu, registry={"Rows": lambda values: Rows(values["gamma"])})
    assert type(found.data_source) is Rows
    assert found.data_source.row.tolist() == [1, 2, 3, 4]


def test_dropout_keeps_its_place(cpu: MTLDevice) -> None:
    kernel = MPSCNNDropout(cpu, 0.5, 3)
    for _ in range(5):
        kernel._number("step", None)
    copies = again(kernel, cpu), kernel.copy(), kernel
    assert [each._number("step", None) for each in copies] == [5, 5, 5]
    for value in (-1, 2**63, True, 1.0, "1"):
        with pytest.raises(MPSArgumentError, match=r"step must be an integer of 0 to 2\*\*63 - 1"):
            kernel.step = value


@in_one_test
@pytest.mark.parametrize(
    "make",
    [
        lambda cpu: MPSImage(cpu, MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT32, 1, 1, 1)),
        lambda cpu: MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT32, 1, 1, 1),
        lambda cpu: MPSVectorDescriptor(4),
        lambda cpu: MPSState(cpu, resource=cpu.new_buffer(length=4)),
        lambda cpu: cpu,
        lambda cpu: cpu.new_buffer(length=4),
        lambda cpu: cpu.new_command_queue(),
        lambda cpu: MPSCNNPoolingMax,
        lambda cpu: print,
    ],
)
def test_what_is_never_archived(make: Any, cpu: MTLDevice) -> None:
    with pytest.raises(MPSTypeError, match=r"^MPSKeyedArchiver: .*cannot be archived"):
        MPSKeyedArchiver.archived_data([1, make(cpu)])


def test_a_custom_policy(cpu: MTLDevice) -> None:
    kernel = MPSCNNPoolingMax(cpu, 2, 2)
    kernel.padding = Policy(3)
    assert again(kernel, cpu, registry=REGISTRY).padding.margin == 3


@pytest.mark.parametrize(
    "policy",
    [MPSNNDefaultPadding(16), MPSNNDefaultPadding.tensorflow_same(), ExplicitPadding(1, 2, 3, 4, ceil_mode=True)],
    ids=str,
)
def test_policies(policy: Any, cpu: MTLDevice) -> None:
    assert again(policy, cpu) == policy


def test_an_optimizer(cpu: MTLDevice) -> None:
    descriptor = MPSNNOptimizerDescriptor(
        0.25, 0.5, apply_gradient_clipping=True, gradient_clip_max=2.0, gradient_clip_min=-1.0,
        regularization_type=MPSNNRegularizationType.L2, regularization_scale=0.125,
    )  # fmt: skip
    numbers = {"beta1": 0.5, "beta2": 0.75, "epsilon": 1e-3, "time_step": 7}
    optimizer = MPSNNOptimizerAdam(cpu, **numbers, optimizer_descriptor=descriptor)
    found = again(optimizer, cpu)
    for name in (*numbers, *vars(descriptor)):
        assert getattr(found, name) == getattr(optimizer, name), name


def test_an_optimizer_with_a_weight_decay_is_refused(cpu: MTLDevice) -> None:
    optimizer = MPSNNOptimizerAdam(cpu, 0.25)
    optimizer.weight_decay = 0.5
    with pytest.raises(MPSTypeError, match=r"MPSNNOptimizerAdam cannot be archived with weight_decay 0\.5"):
        MPSKeyedArchiver.archived_data(optimizer)


def test_one_object_named_twice_stays_one(cpu: MTLDevice) -> None:
    policy = Policy(1)
    kernels = [MPSCNNPoolingMax(cpu, 2, 2), MPSCNNPoolingMax(cpu, 3, 3)]
    for kernel in kernels:
        kernel.padding = policy
    data = MPSKeyedArchiver.archived_data(kernels)
    first, second = MPSKeyedUnarchiver(data, cpu, registry=REGISTRY).decode_root_object()
    assert first.padding is second.padding


def test_the_same_object_gives_the_same_bytes(cpu: MTLDevice) -> None:
    assert len({MPSKeyedArchiver.archived_data(convolution(cpu)) for _ in range(8)}) == 1


@in_one_test
@pytest.mark.parametrize("kind", ["<f4", ">f4", ">f8", ">i2", "?", "<f2"])
@pytest.mark.parametrize("layout", [slice(None), slice(None, None, -1), slice(None, None, 2), slice(0)], ids=str)
def test_arrays_of_every_layout(kind: str, layout: slice, cpu: MTLDevice) -> None:
    array = np.arange(12).reshape(3, 4).astype(kind).T[layout]
    for each in (array, np.asfortranarray(array), np.array(7).astype(kind)):
        (found,) = MPSKeyedUnarchiver(MPSKeyedArchiver.archived_data([each]), cpu).decode_root_object()
        assert (found.shape, found.tolist()) == (each.shape, each.tolist())


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([None]), np.ones(2, complex), np.ma.masked_array([1.0], [True])], ids=repr
)
def test_arrays_that_no_file_keeps(array: Any) -> None:
    with pytest.raises(MPSTypeError, match="MPSKeyedArchiver: array must"):
        MPSKeyedArchiver.archived_data([array])


def test_files(tmp_path: Path, cpu: MTLDevice) -> None:
    MPSKeyedArchiver.archive(MPSCNNPoolingMax(cpu, 5, 4), tmp_path / "pool.mps")
    found = MPSKeyedUnarchiver.unarchived_object_of_class(MPSCNNPoolingMax, tmp_path / "pool.mps", cpu)
    assert (found.kernel_width, found.kernel_height) == (5, 4)
    (tmp_path / "cut.mps").write_bytes((tmp_path / "pool.mps").read_bytes()[:-1])
    with pytest.raises(MPSFileError, match=r"cut\.mps is damaged or none of openmps"):
        MPSKeyedUnarchiver.unarchived_object_of_class(MPSCNNPoolingMax, tmp_path / "cut.mps", cpu)


# --- the unarchiver's forms -------------------------------------------------------------------------------------------


def test_forms(cpu: MTLDevice) -> None:
    data = MPSKeyedArchiver.archived_data(MPSCNNPoolingMax(cpu, 5, 4))
    reader = MPSKeyedUnarchiver(data, cpu)
    assert reader.mps_mtl_device() is cpu
    found = [
        reader.decode_root_object(),
        MPSKeyedUnarchiver(bytearray(data), cpu).decode_root_object(),
        MPSKeyedUnarchiver.unarchived_object_of_class(MPSCNNPoolingMax, from_data=memoryview(data), device=cpu),
        MPSKeyedUnarchiver.unarchived_object_of_classes([MPSCNNPoolingAverage, MPSCNNPoolingMax], data, cpu),
        MPSKeyedUnarchiver.unarchived_object_of_classes({MPSCNNPoolingMax}, data, cpu),
    ]
    assert {(type(each), each.kernel_width, each.kernel_height) for each in found} == {(MPSCNNPoolingMax, 5, 4)}
    assert reader.decode_root_object() is reader.decode_root_object()


@in_one_test
@pytest.mark.parametrize(
    "form",
    [
        lambda data, cpu: MPSKeyedUnarchiver(),
        lambda data, cpu: MPSKeyedUnarchiver(device=cpu),
        lambda data, cpu: MPSKeyedUnarchiver(init_for_reading_with_data=data, device=cpu),
        lambda data, cpu: MPSKeyedUnarchiver.unarchive_object(data),
        lambda data, cpu: MPSKeyedUnarchiver.unarchive_object(data, cpu),
        lambda data, cpu: MPSKeyedUnarchiver.unarchive_object(file="pool.mps", device=cpu),
        lambda data, cpu: MPSKeyedUnarchiver.unarchive_top_level_object(data),
        lambda data, cpu: MPSKeyedUnarchiver.unarchive_top_level_object(data, cpu),
    ],
)
def test_what_gives_nil_in_the_framework_says_what_to_use(form: Any, cpu: MTLDevice) -> None:
    data = MPSKeyedArchiver.archived_data(MPSCNNPoolingMax(cpu, 5, 4))
    with pytest.raises(MPSTypeError, match=r"is not offered.*Use MPSKeyedUnarchiver\.unarchived_object_of_class\("):
        form(data, cpu)


def test_misuse(cpu: MTLDevice, tmp_path: Path) -> None:
    data = MPSKeyedArchiver.archived_data(MPSCNNPoolingMax(cpu, 5, 4))
    with pytest.raises(MPSTypeError, match=r"archive must hold a MPSCNNPoolingAverage, got MPSCNNPoolingMax"):
        MPSKeyedUnarchiver.unarchived_object_of_class(MPSCNNPoolingAverage, data, cpu)
    with pytest.raises(MPSTypeError, match=r"device must be given"):
        MPSKeyedUnarchiver(data)
    with pytest.raises(MPSError, match=r"device"):
        MPSKeyedUnarchiver(data, "cpu")
    with pytest.raises(MPSTypeError, match=r"data must be bytes, or the Path of a file, got str"):
        MPSKeyedUnarchiver("text", cpu)
    with pytest.raises(MPSTypeError, match=r"classes must be classes, got 'MPSCNNPoolingMax'"):
        MPSKeyedUnarchiver.unarchived_object_of_classes(["MPSCNNPoolingMax"], data, cpu)
    with pytest.raises(MPSTypeError, match=r"registry must map the names of classes to functions"):
        MPSKeyedUnarchiver(data, cpu, registry={"Policy": "Policy"})
    with pytest.raises(MPSFileError, match=r"nothing there"):
        MPSKeyedUnarchiver(tmp_path / "x", cpu)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(MPSArgumentError, match=r"object must not hold itself"):
        MPSKeyedArchiver.archived_data(endless)
    with pytest.raises(MPSArgumentError, match=r"requiring_secure_coding must be True"):
        MPSKeyedArchiver.archived_data(MPSCNNPoolingMax(cpu, 5, 4), requiring_secure_coding=False)
    with pytest.raises(MPSTypeError, match=r"object cannot be archived.*archived\(\)"):
        MPSKeyedArchiver.archived_data(object())
    kernel = MPSCNNPoolingMax(cpu, 2, 2)
    kernel.padding = Policy(3)
    with pytest.raises(MPSFileError, match=r"registry must have 'Policy'"):
        again(kernel, cpu)
    assert issubclass(MPSDeviceError, MPSError)


def test_an_error_of_a_registered_function_is_the_cause(cpu: MTLDevice) -> None:
    kernel = MPSCNNPoolingMax(cpu, 2, 2)
    kernel.padding = Policy(3)
    with pytest.raises(MPSFileError, match=r"object 0 \(Policy\) cannot be made again, got division by zero") as caught:
        again(kernel, cpu, registry={"Policy": lambda values: 1 / 0})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# --- hostile documents, whose checksum is right -----------------------------------------------------------------------

POOL = {"class": "MPSCNNPoolingMax", "arguments": {"kernel_width": 2, "kernel_height": 2}, "properties": {}}


def _changed(**changes: Any) -> dict[str, Any]:
    return {**POOL, **changes}


@in_one_test
@pytest.mark.parametrize(
    "entry",
    [
        _changed(**{"class": "os.system"}),
        _changed(**{"class": "MTLDevice"}),
        _changed(**{"class": ["MPSCNNPoolingMax"]}),
        _changed(arguments={"kernel_width": -1, "kernel_height": 2}),
        _changed(arguments={"kernel_width": "2", "kernel_height": 2}),
        _changed(arguments={"kernel_width": 2**80, "kernel_height": None}),
        _changed(arguments={"kernel_width": 2, "kernel_height": 2, "shell": "rm"}),
        _changed(arguments={"kernel_width": 2, "kernel_height": 2, "device": 1}),
        _changed(arguments=[1, 2]),
        _changed(properties={"_sources": 1}),
        _changed(properties={"__class__": "x"}),
        _changed(properties={"copy": 1}),
        _changed(properties={"device": None}),
        _changed(properties={"edge_mode": {"enum": "MPSImageEdgeMode", "value": 99}}),
        _changed(properties={"edge_mode": {"enum": "annotations", "value": 0}}),
        _changed(properties={"offset": {"struct": "MPSOffset", "fields": [1]}}),
        _changed(properties={"offset": {"struct": "IntEnum", "fields": [1]}}),
        _changed(properties={"offset": "here"}),
        _changed(properties={"padding": {"object": 0}}),
        _changed(properties={"padding": {"object": -1}}),
        _changed(properties={"padding": {"object": True}}),
        _changed(properties={"padding": {"array": "7"}}),
        _changed(properties={"padding": {"list": [], "array": "0"}}),
        _changed(properties={"destination_image_allocator": {"allocator": "mine"}}),
        _changed(properties={"label": 7}),
        _changed(properties={"label": {"list": []}}),
        {"custom": "Policy", "values": {}},
        {"custom": ["Policy"], "values": {}},
        {},
        [],
        None,
        7,
    ],
    ids=str,
)
def test_hostile_objects_are_refused(entry: Any, cpu: MTLDevice) -> None:
    data = pack({"root": {"object": 0}, "objects": [entry]}, {})
    with pytest.raises(MPSFileError, match=r"^MPSKeyedUnarchiver: "):
        MPSKeyedUnarchiver(data, cpu)


@pytest.mark.parametrize(
    "document",
    [{}, {"root": 1}, {"objects": []}, {"root": {"object": 0}, "objects": []}, {"root": [], "objects": []},
     {"root": {"object": 0}, "objects": "x"}, {"root": {"a": 1}, "objects": []}],
    ids=str,
)  # fmt: skip
def test_hostile_documents_are_refused(document: dict[str, Any], cpu: MTLDevice) -> None:
    with pytest.raises(MPSFileError):
        MPSKeyedUnarchiver(pack(document, {}), cpu)


@pytest.mark.parametrize(
    "name", ["_Resizing", "_Gradient", "KernelProperties", "PlannedKernel", "ImageKernel", "ConvolutionKernel"]
)
def test_a_private_class_cannot_be_named(name: str, cpu: MTLDevice) -> None:
    entry = {"class": name, "arguments": {}, "properties": {}}
    with pytest.raises(MPSFileError, match=rf"object 0 \({name}\) cannot be made again, got '{name}'"):
        MPSKeyedUnarchiver(pack({"root": {"object": 0}, "objects": [entry]}, {}), cpu)


def test_archives_name_public_classes_only() -> None:
    training = {"AlternatingFlip", "ImageAugmentation", "ImageSelection", "MixUp"}
    own = {
        "ArchivedConvolutionWeights",
        "ArchivedQuantizedWeights",
        "ArchivedNormalizationParameters",
        "BatchNormalizationFold",
    }
    assert {name for name in forms.classes() if not hasattr(openmps, name)} == own | training
    assert all(hasattr(openmps.training, name) for name in training)


def _naming(kind: str, before: Any) -> dict[str, Any]:
    """An object that names ``before`` in each of its places."""
    if kind == "list":
        return {"custom": "list", "values": {"list": {"list": [before, before]}}}
    arguments = list(forms.signature(forms.classes()[kind]).parameters)
    return {"class": kind, "arguments": dict.fromkeys(arguments, before), "properties": {}}


@pytest.mark.parametrize(
    "kind",
    [
        "ArchivedConvolutionWeights",
        "ArchivedQuantizedWeights",
        "ArchivedNormalizationParameters",
        "BatchNormalizationFold",
        "list",
    ],
)
@pytest.mark.parametrize("leaf", [None, "x" * 10_000, {"array": "a"}], ids=["nothing", "text", "array"])
def test_objects_that_name_one_another_again_and_again(kind: str, leaf: Any, cpu: MTLDevice) -> None:
    """An error that prints the tree would take gigabytes and minutes."""
    objects = [_naming(kind, {"object": place - 1} if place else leaf) for place in range(40)]
    wide = _changed(arguments={"kernel_width": {"list": [{"object": 5}] * 2000}, "kernel_height": 2})
    for last in (_changed(arguments={"kernel_width": {"object": 11}, "kernel_height": 2}), wide):
        for entries in ([*objects[:12], last], [*objects, last]):
            data = pack({"root": {"object": len(entries) - 1}, "objects": entries}, {"a": np.ones(2000)})
            tracemalloc.start()
            with pytest.raises(MPSFileError, match="cannot be made again") as caught:
                MPSKeyedUnarchiver(data, cpu, registry={"list": lambda values: values["list"]})
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 50e6 and len(str(caught.value)) < 2000


def test_lists_as_deep_as_they_are_read(cpu: MTLDevice) -> None:
    value: Any = 1
    for _ in range(128):
        value = [value]
    data = MPSKeyedArchiver.archived_data(value)
    assert MPSKeyedUnarchiver(data, cpu).decode_root_object() == value
    with pytest.raises(MPSArgumentError, match="must not hold itself, nor lists deeper than 128 in one another"):
        MPSKeyedArchiver.archived_data([value])
    document: Any = 1
    for _ in range(129):
        document = {"list": [document]}
    with pytest.raises(MPSFileError, match="lists are no deeper than 128 in one another"):
        MPSKeyedUnarchiver(pack({"root": document, "objects": []}, {}), cpu)


def test_long_lists_and_large_graphs_are_no_trees(cpu: MTLDevice) -> None:
    numbers = list(range(300_000))
    found = MPSKeyedUnarchiver(MPSKeyedArchiver.archived_data([numbers]), cpu).decode_root_object()
    assert found == [numbers]
    descriptor = MPSCNNConvolutionDescriptor(1, 1, 8, 8)
    image = MPSNNImageNode()
    for index in range(400):
        source = ArrayConvolutionDataSource(descriptor, np.ones((8, 1, 1, 8)), np.ones(8), label=f"{index}")
        image = MPSCNNConvolutionNode(image, source).result_image
    graph = again(MPSNNGraph(cpu, image), cpu)
    assert len(graph.kernels) == 400


def test_another_version(cpu: MTLDevice) -> None:
    with pytest.raises(MPSFileError, match=r"must be of version 1, got 2"):
        MPSKeyedUnarchiver(pack({"root": 1, "objects": [], "version": 2}, {}), cpu)


def test_deep_nesting(cpu: MTLDevice) -> None:
    value: Any = 1
    for _ in range(100):
        value = {"list": [value]}
    found = MPSKeyedUnarchiver(pack({"root": value, "objects": []}, {}), cpu).decode_root_object()
    for _ in range(100):
        (found,) = found
    assert found == 1
    deep = '{"list":[' * 100_000 + "1" + "]}" * 100_000
    header = json.dumps({"__metadata__": {"openmps.archive": "0 " + deep}}).encode()
    with pytest.raises(MPSFileError):
        MPSKeyedUnarchiver(len(header).to_bytes(8, "little") + header, cpu)


# --- damage ----------------------------------------------------------------------------------------------------------


def _mutated(data: bytes, random: np.random.Generator) -> bytes:
    """One of: a flipped bit, a cut, a length made huge, bytes put in, bytes taken out, two pieces exchanged."""
    at, kind = int(random.integers(len(data))), int(random.integers(6))
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << int(random.integers(8)))]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return int(random.integers(2**63)).to_bytes(8, "little") + data[8:]
    if kind == 3:
        return data[:at] + random.bytes(int(random.integers(1, 16))) + data[at:]
    if kind == 4:
        return data[:at] + data[at + int(random.integers(1, 64)) :]
    other = int(random.integers(len(data)))
    low, high = min(at, other), max(at, other)
    return data[high:] + data[low:high] + data[:low]


def test_mutations_give_an_error_or_the_same(cpu: MTLDevice) -> None:
    random = np.random.default_rng(11)
    whole = MPSKeyedArchiver.archived_data([convolution(cpu), MPSCNNPoolingAverage(cpu, 3, 2)])
    refused = 0
    for _ in range(600):
        data = _mutated(whole, random)
        try:
            found = MPSKeyedUnarchiver(data, cpu).decode_root_object()
        except MPSFileError:
            refused += 1
        else:
            assert MPSKeyedArchiver.archived_data(found) == whole
    assert refused > 500


def test_a_lying_length_takes_no_memory(cpu: MTLDevice) -> None:
    data = MPSKeyedArchiver.archived_data(convolution(cpu))
    document, arrays = unpack(data, "test")
    assert document["objects"]
    assert arrays
    tracemalloc.start()
    for length in (2**63, 2**40, len(data) - 8, len(data)):
        with pytest.raises(MPSFileError):
            MPSKeyedUnarchiver(length.to_bytes(8, "little") + data[8:], cpu)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50 * len(data) + 2**20
