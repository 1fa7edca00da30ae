"""What random calls found to end in an error of Python, NumPy or torch: each ends in one of openmps's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from in_one_test import in_one_test
from openmps import formats, training
from openmps.formats.atomic import flush, make_folder, remove_leftovers, write_atomic
from openmps.formats.paths import path_of
from openmps.training.checkpoint import CheckpointFolder
from openmps.training.data import has_class_folders
from openmps.training.idx import read_idx
from openmps.training.json_lines import JsonLines
from openmps.training.network import optimizer_factory
from openmps.training.options import TrainingOptions

DEVICE = mps.mtl_device("cpu")
RUN: dict[str, object] = {}
ONES = np.ones(4, np.float32)


def _padding() -> mps.MPSNNDefaultPadding:
    return mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_SAME)


def _adam(device: mps.MTLDevice) -> mps.MPSNNOptimizerAdam:
    return mps.MPSNNOptimizerAdam(device, 1e-3)


def _trainable() -> mps.TrainableConvolutionDataSource:
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 4, 4)
    return mps.TrainableConvolutionDataSource(descriptor, np.eye(4, dtype=np.float32), optimizer=_adam)


# --- paths ------------------------------------------------------------------------------------------------------------

TAKES_PATHS: dict[str, Callable[[Any], object]] = {
    "MPSKeyedArchiver.archive": lambda path: mps.MPSKeyedArchiver.archive(_padding(), path),
    "write_atomic": lambda path: write_atomic(path, b"1"),
    "make_folder": make_folder,
    "flush": flush,
    "remove_leftovers": remove_leftovers,
    "save_dat": lambda path: formats.save_dat(path, ONES),
    "load_dat": lambda path: formats.load_dat(path, (4,)),
    "save_dat_files": lambda path: formats.save_dat_files(path, {"conv1.weights": ONES.reshape(1, 2, 2, 1)}),
    "load_dat_files": lambda path: formats.load_dat_files(path, {"conv1.weights": (1, 2, 2, 1)}),
    "save_safetensors": lambda path: formats.save_safetensors(path, {"conv1.weights": ONES.reshape(1, 2, 2, 1)}),
    "load_safetensors": formats.load_safetensors,
    "load_idx": training.load_idx,
    "read_idx": lambda path: read_idx(path, 1),
    "load_image": training.load_image,
    "load_image_folder": training.load_image_folder,
    "load_dataset": training.load_dataset,
    "has_class_folders": has_class_folders,
    "RunFolder.create": lambda path: training.RunFolder.create(path, RUN),
    "RunFolder.open": training.RunFolder.open,
    "CheckpointFolder": CheckpointFolder,
    "JsonLines": JsonLines,
}


@in_one_test
@pytest.mark.parametrize("name", TAKES_PATHS)
@pytest.mark.parametrize("path", ["a\0b", Path("a\0b"), "\ud800"], ids=["text", "path", "surrogate"])
def test_a_path_that_no_file_can_have_is_a_file_error(
    name: str, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mps.MPSFileError, match="must be a path that the system can have, without null characters"):
        TAKES_PATHS[name](path)
    assert list(tmp_path.iterdir()) == []


@in_one_test
@pytest.mark.parametrize("name", TAKES_PATHS)
def test_a_number_is_no_path(name: str) -> None:
    with pytest.raises(mps.MPSTypeError):
        TAKES_PATHS[name](987_654)


def test_the_archive_of_a_name_with_a_null_character_is_a_file_error() -> None:
    with pytest.raises(mps.MPSFileError, match="without null characters"):
        mps.MPSKeyedUnarchiver(Path("a\0b"), DEVICE)


def test_a_run_of_a_name_with_a_null_character_is_a_file_error(tmp_path: Path) -> None:
    with pytest.raises(mps.MPSFileError, match="RunFolder.create: name must be a path"):
        training.RunFolder.create(tmp_path, RUN, name="a\0b")


def test_a_path_is_given_back(tmp_path: Path) -> None:
    assert path_of(str(tmp_path), "test") == path_of(tmp_path, "test") == tmp_path


# --- attributes -------------------------------------------------------------------------------------------------------


def _image() -> mps.MPSImage:
    return mps.MPSImage.from_numpy(DEVICE, np.ones((2, 2, 4), np.float32))


READ_ONLY: dict[str, tuple[Callable[[], Any], str]] = {
    "descriptor": (lambda: mps.MPSVectorDescriptor(4), "vector_bytes"),
    "shown part of a descriptor": (lambda: mps.MPSVectorDescriptor(4), "vectors"),
    "property of a descriptor": (lambda: mps.MPSCNNConvolutionDescriptor(1, 1, 4, 4), "channel_multiplier"),
    "kernel": (lambda: mps.MPSCNNPoolingMax(DEVICE, 2, 2), "kernel_width"),
    "kernel with two sources": (lambda: mps.MPSCNNAddGradient(DEVICE, True), "is_secondary_source_filter"),
    "node": (lambda: mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode()), "result_image"),
    "graph": (
        lambda: mps.MPSNNGraph(DEVICE, mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode()).result_image),
        "source_image_handles",
    ),
    "image": (_image, "width"),
    "state": (lambda: mps.MPSState(DEVICE, buffer_size=4), "resource_count"),
    "vector": (lambda: mps.MPSVector(DEVICE.new_buffer(16), mps.MPSVectorDescriptor(4)), "length"),
    "buffer": (lambda: DEVICE.new_buffer(4), "length"),
    "command buffer": (lambda: DEVICE.new_command_queue().command_buffer(), "status"),
    "factory": (lambda: mps.MPSVectorDescriptor(4), "vector_descriptor"),
}


@in_one_test
@pytest.mark.parametrize("kind", READ_ONLY)
def test_a_read_only_property_says_so(kind: str) -> None:
    make, name = READ_ONLY[kind]
    thing = make()
    before = getattr(thing, name)
    with pytest.raises(mps.MPSAttributeError) as fault:
        setattr(thing, name, 3)
    assert fault.value.argument == name and fault.value.remedy
    assert fault.value.who.startswith(type(thing).__name__)
    assert getattr(thing, name) is before or getattr(thing, name) == before


def test_a_property_of_a_users_class_stays_pythons() -> None:
    class Own(mps.MPSNNImageNode):
        @property
        def rate(self) -> int:
            return 2

    with pytest.raises(AttributeError) as fault:
        Own().rate = 3  # pyright: ignore[reportAttributeAccessIssue]
    assert not isinstance(fault.value, mps.MPSError)


@pytest.mark.parametrize("make", [mps.MTLCommandQueue.command_buffer, mps.MPSCommandBuffer])
def test_the_label_of_a_command_buffer_is_text(make: Callable[[Any], Any]) -> None:
    command_buffer = make(DEVICE.new_command_queue())
    with pytest.raises(mps.MPSTypeError, match="label must be text or None"):
        command_buffer.label = np.ones(2)
    command_buffer.label = "step 1"
    command_buffer.commit()
    command_buffer.wait_until_completed()
    assert command_buffer.label == "step 1"


def test_the_label_of_a_queue_is_text() -> None:
    with pytest.raises(mps.MPSTypeError, match="label must be text or None"):
        DEVICE.new_command_queue().label = np.ones(2)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_record_of_a_state_is_one() -> None:
    _, state = mps.MPSCNNNeuronReLU(DEVICE, 0.0).encode(
        mps.MPSCommandBuffer(DEVICE.new_command_queue()), _image(), destination_state_is_temporary=False
    )
    with pytest.raises(mps.MPSTypeError, match="record must be a ForwardRecord or None"):
        state.record = 5
    assert state.source_height == 2


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "kind"), [(2**70, mps.MPSArgumentError), (-1, mps.MPSArgumentError), (None, mps.MPSTypeError)]
)
def test_a_buffer_checks_its_length(length: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="MTLBuffer: length must be"):
        mps.MTLBuffer(DEVICE, length)


def test_a_heap_that_cannot_be_had_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(mps.MPSMemoryError, match="MTLHeap: descriptor.size must fit the free memory of .*16 bytes"):
        DEVICE.new_heap(mps.MTLHeapDescriptor(16))


def test_a_buffer_keeps_no_masked_array() -> None:
    with pytest.raises(mps.MPSTypeError, match="MTLBuffer: data must have no mask, got a masked array"):
        DEVICE.new_buffer(data=np.ma.masked_array(ONES, [1, 0, 0, 0]))


# --- numbers and flags ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["input_feature_channels", "output_feature_channels"])
@pytest.mark.parametrize("value", [0, -2, "4"])
def test_channel_multiplier_needs_channels(name: str, value: Any) -> None:
    descriptor = mps.MPSCNNDepthWiseConvolutionDescriptor(3, 3, 2, 4)
    assert descriptor.channel_multiplier == 2
    setattr(descriptor, name, value)
    with pytest.raises(mps.MPSArgumentError, match=f"descriptor.{name} must be an integer of at least 1"):
        _ = descriptor.channel_multiplier


RATES: dict[str, Callable[[float], object]] = {
    "descriptor": lambda rate: mps.MPSNNOptimizerDescriptor(rate),
    "descriptor, set": lambda rate: setattr(mps.MPSNNOptimizerDescriptor(), "learning_rate", rate),
    "SGD": lambda rate: mps.MPSNNOptimizerStochasticGradientDescent(DEVICE, rate),
    "RMSProp": lambda rate: mps.MPSNNOptimizerRMSProp(DEVICE, rate),
    "Adam": lambda rate: mps.MPSNNOptimizerAdam(DEVICE, rate),
    "set_learning_rate": lambda rate: _adam(DEVICE).set_learning_rate(rate),
    "data source": lambda rate: _trainable().set_learning_rate(rate),
    "TrainingOptions": lambda rate: TrainingOptions(1, learning_rate=rate),
    "optimizer_factory": lambda rate: optimizer_factory("adam", rate),
}


@in_one_test
@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("rate", [math.inf, -math.inf, math.nan, 1e300])
def test_a_learning_rate_is_finite(name: str, rate: float) -> None:
    RATES[name](0.5)
    with pytest.raises(mps.MPSArgumentError, match="learning_rate must be"):
        RATES[name](rate)


def _digits() -> training.Dataset:
    return training.load_digits_dataset()


FLAGS: dict[str, Callable[[Any], object]] = {
    "load_dataset": lambda value: training.load_dataset(skip_broken=value),
    "load_image_folder": lambda value: training.load_image_folder(".", skip_broken=value),
    "iterate_batches": lambda value: training.iterate_batches(
        _digits(), 10, seed=0, epoch=0, last_batch="keep", shuffle=value
    ),
}


@in_one_test
@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", ["no", 2, None, np.ones(2)])
def test_flags_of_training_are_flags(name: str, value: Any) -> None:
    with pytest.raises(mps.MPSTypeError, match="(skip_broken|shuffle) must be True or False"):
        FLAGS[name](value)


def test_data_is_for_prelu() -> None:
    with pytest.raises(mps.MPSArgumentError, match="data must be None: only PRELU reads it, got 2 number"):
        mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.RELU, data=[1.0, 2.0])
    descriptor = mps.MPSNNNeuronDescriptor(data=[1.0, 2.0])
    descriptor.neuron_type = mps.MPSCNNNeuronType.RELU
    assert descriptor.copy().data is None
    archive = mps.MPSKeyedArchiver.archived_data(descriptor)
    assert mps.MPSKeyedUnarchiver(archive, DEVICE).decode_root_object() == descriptor.copy()


def test_upsampling_gradients_by_infinity_are_refused() -> None:
    node = mps.MPSCNNUpsamplingBilinearNode(mps.MPSNNImageNode(), 2, 2)
    with pytest.raises(mps.MPSArgumentError, match="scale_factor_y must be a whole number"):
        mps.MPSCNNUpsamplingBilinearGradientNode(
            mps.MPSNNImageNode(), mps.MPSNNImageNode(), node.result_state, 2, math.inf
        )


# --- arguments that do not go together --------------------------------------------------------------------------------


def test_an_argument_by_place_and_by_name_is_named() -> None:
    source = _trainable()
    with pytest.raises(mps.MPSTypeError, match="MPSCNNConvolution: weights must be given once"):
        mps.MPSCNNConvolution(DEVICE, source, weights=source)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("sources", [[], [np.ones(2)], [3]])
def test_an_explicit_padding_places_images(sources: list[Any]) -> None:
    policy, kernel = mps.ExplicitPadding(0, 0, 0, 0), mps.MPSCNNPoolingMax(DEVICE, 2, 2)
    with pytest.raises(mps.MPSTypeError, match="source_images must begin with an image"):
        policy.destination_image_descriptor(sources, None, kernel, None)


def test_an_explicit_padding_places_windows_of_kernels() -> None:
    policy = mps.ExplicitPadding(0, 0, 0, 0, edge_mode=mps.MPSImageEdgeMode.CLAMP)
    with pytest.raises(mps.MPSTypeError, match="for_kernel must have a window"):
        policy.destination_image_descriptor([_image()], None, policy, None)


@in_one_test
@pytest.mark.parametrize("name", ["source", "kernel", "stride", "dilation"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_an_explicit_padding_places_whole_numbers(name: str, value: Any) -> None:
    numbers: dict[str, Any] = {"source": 7, "kernel": 3, "stride": 1, "dilation": 1, name: value}
    with pytest.raises(mps.MPSArgumentError, match=f"ExplicitPadding.placement: {name} must be an integer"):
        mps.ExplicitPadding(0, 0, 0, 0).placement(**numbers)
