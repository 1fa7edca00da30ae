"""What objects say of themselves in a program that looks at them, and what notebooks show."""

from __future__ import annotations

import inspect
import io
from typing import Any

import numpy as np
import pytest

import openmps as mps
from catalogue import SAMPLES
from in_one_test import in_one_test
from openmps import debug, formats, training

CPU = mps.mtl_device("cpu")
NEVER_MADE = {"MPSKeyedArchiver"}
"""Functions alone."""
CLASSES = {
    each.__name__: each
    for module in (mps, debug, formats, training)
    for each in (getattr(module, name) for name in dir(module))
    if inspect.isclass(each) and each.__module__.startswith("openmps")
}
CLASSES |= {name: getattr(mps, name) for name in dir(mps) if inspect.isclass(getattr(mps, name))}


def test_no_public_class_has_pythons_own() -> None:
    made = {name: kind for name, kind in CLASSES.items() if not getattr(kind, "_is_protocol", False)}
    assert {name for name, kind in made.items() if kind.__repr__ is object.__repr__} == NEVER_MADE


def _trainable() -> mps.TrainableConvolutionDataSource:
    return mps.TrainableConvolutionDataSource.uniform(
        mps.MPSCNNConvolutionDescriptor(5, 5, 2, 3), limit=0.1, bias=None, seed=1, label="conv",
        optimizer=lambda device: mps.MPSNNOptimizerAdam(device, 1e-3),
    )  # fmt: skip


def _pooling() -> mps.MPSCNNPoolingMax:
    kernel = mps.MPSCNNPoolingMax(CPU, 3, 2, 2, 1)
    kernel.edge_mode, kernel.offset, kernel.label = mps.MPSImageEdgeMode.ZERO, mps.MPSOffset(1, -1, 0), "pool"
    return kernel


NODE = mps.MPSNNImageNode(mps.Handle("x"))
SAID: dict[str, tuple[Any, str]] = {
    "kernel": (_pooling, "<MPSCNNPoolingMax 'pool': kernel 3x2, stride 2x1, offset (1, -1) on "),
    "convolution": (
        lambda: mps.MPSCNNConvolution(CPU, weights=_trainable()),
        "<MPSCNNConvolution 'conv': kernel 5x5, input_feature_channels 2, output_feature_channels 3 on ",
    ),
    "neuron": (
        lambda: mps.MPSCNNNeuron(CPU, mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.RELU, 0.25)),
        "<MPSCNNNeuron: neuron_type RELU, a 0.25, b ",
    ),
    "optimizer": (lambda: mps.MPSNNOptimizerAdam(CPU, 2e-3), "<MPSNNOptimizerAdam: learning_rate 0.002, beta1 0.9, "),
    "dropout": (lambda: mps.MPSCNNDropout(CPU, 0.25, 7), "<MPSCNNDropout: keep_probability 0.25, seed 7, "),
    "data source": (
        _trainable,
        "<TrainableConvolutionDataSource 'conv': MPSCNNConvolutionDescriptor(5x5, 2 -> 3 channels, stride 1x1), no b",
    ),
    "node": (lambda: mps.MPSCNNPoolingMaxNode(NODE, 3, 2), "<MPSCNNPoolingMaxNode: kernel_width 3, kernel_height 3, "),
    "image node": (lambda: NODE, "<MPSNNImageNode 'x' (input)>"),
    "state": (
        lambda: mps.MPSState(CPU, resource_list=mps.MPSStateResourceList(buffer_sizes=[16, 6400])),
        "<MPSState, 2 resources of 16 bytes, 6,400 bytes>",
    ),
    "batch": (
        lambda: mps.MPSImageBatch.from_numpy(CPU, np.zeros((2, 4, 5, 3), np.float32)),
        "<MPSImageBatch of 2 x <MPSImage 5x4x3 FLOAT32 on ",
    ),
}


@in_one_test
@pytest.mark.parametrize("name", SAID)
def test_it_says_what_matters(name: str) -> None:
    make, words = SAID[name]
    assert repr(make()).startswith(words)


def test_every_kernel_can_be_looked_at() -> None:
    for kind, samples in SAMPLES.items():
        assert repr(samples[0].make(CPU)).startswith(f"<{kind.__name__}"), kind


# --- notebooks --------------------------------------------------------------------------------------------------------


def _pixels(png: bytes | None) -> np.ndarray:
    Image = pytest.importorskip("PIL.Image")
    assert png is not None
    return np.asarray(Image.open(io.BytesIO(png)))


def test_an_image_is_a_picture(rng: np.random.Generator) -> None:
    numbers = rng.uniform(size=(100, 70, 3)).astype(np.float32)
    found = _pixels(mps.MPSImage.from_numpy(CPU, numbers)._repr_png_())
    np.testing.assert_array_equal(found, np.rint(255 * numbers.astype(np.float64)))
    # Small ones are enlarged, others than 0 to 1 scaled, and what is not finite is black.
    odd = np.array([[-2.0, 0.0], [6.0, np.nan]], np.float32)[..., np.newaxis]
    found = _pixels(mps.MPSImage.from_numpy(CPU, odd)._repr_png_())
    assert found.shape == (64, 64)
    np.testing.assert_array_equal(found[::32, ::32], [[0, 64], [255, 0]])


def test_a_batch_is_a_sheet_and_so_are_channels(rng: np.random.Generator) -> None:
    numbers = rng.uniform(size=(5, 64, 80, 3)).astype(np.float32)
    found = _pixels(mps.MPSImageBatch.from_numpy(CPU, numbers)._repr_png_())
    assert found.shape == (2 * 65 - 1, 3 * 81 - 1, 3)
    np.testing.assert_array_equal(found[65:, 81:161], np.rint(255 * numbers[4].astype(np.float64)))
    assert (found[65:, 162:] == 128).all()
    channels = mps.MPSImage.from_numpy(CPU, rng.uniform(size=(64, 64, 7)).astype(np.float32))
    assert _pixels(channels._repr_png_()).shape == (3 * 65 - 1, 3 * 65 - 1)
    large = mps.MPSImage.from_numpy(CPU, rng.uniform(size=(700, 1100, 1)).astype(np.float32))
    assert _pixels(large._repr_png_()).shape == (234, 367)


def test_what_cannot_be_read_has_no_picture() -> None:
    command_buffer = CPU.new_command_queue().command_buffer()
    descriptor = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 4, 4, 3)
    assert mps.MPSTemporaryImage.temporary_image(command_buffer, descriptor)._repr_png_() is None
    assert mps.MPSImageBatch([])._repr_png_() is None


def test_graphs_and_states_are_tables() -> None:
    node = mps.MPSCNNNeuronReLUNode(mps.MPSCNNPoolingMaxNode(NODE, 3, 2).result_image)
    node.label = "<b>"
    found = mps.MPSNNGraph(CPU, node.result_image)._repr_html_()
    assert found.count("<tr>") == 3 and "kernel 3x3, stride 2x2" in found
    assert "&lt;b&gt;" in found and "<b>" not in found
    state = mps.MPSState(CPU, resource_list=mps.MPSStateResourceList(buffer_sizes=[16, 6400]))
    assert "<td>buffer</td><td>6,400</td>" in state._repr_html_()
