"""One kernel in two threads: the framework leaves it undefined; here each encode is decided as a whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from encoding import Bench, finish, keep_results, numbers, run
from exercises import drawn, vector
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.core.vector import MPSVector, MPSVectorDescriptor
from openmps.kernels.dropout import MPSCNNDropout
from openmps.kernels.optimizers import MPSNNOptimizerAdam
from openmps.kernels.pooling import MPSCNNPoolingMax
from openmps.kernels.random import MPSMatrixRandomPhilox
from openmps.kernels.reshape import MPSNNReshape
from openmps.runtime.devices import mtl_device
from openmps.types import MPSDataType, MPSNNPaddingMethod
from stress import hasty_threads, run_threads

CPU = mtl_device("cpu")
ENCODES = 200


def _twice(encode: Callable[[int], None]) -> None:
    with hasty_threads():
        run_threads(*(partial(encode, index) for index in range(2)))


def test_encodes_with_images_of_different_sizes(device: torch.device) -> None:
    """The padding policy gives each size an offset of its own, which the other thread's encode must not use."""
    bench = Bench.on(device)
    kernel = MPSCNNPoolingMax(bench.device, 2, 2, 2, 2)
    kernel.padding = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_SAME)
    keep_results(kernel)
    images = [bench.image(drawn(f"image {size}", (1, 4, size, size))) for size in (7, 8)]
    expected = [run(bench, kernel.copy(), [image]) for image in images]
    assert len({kernel.destination_image_descriptor([image]) and kernel.offset for image in images}) == 2
    found: list[list[Any]] = [[], []]

    def encode(index: int) -> None:
        command_buffer = bench.device.new_command_queue().command_buffer()
        found[index] = [kernel.encode(command_buffer, images[index]) for _ in range(ENCODES)]
        finish(command_buffer)

    _twice(encode)
    for results, wanted in zip(found, expected, strict=True):
        for result in results:
            np.testing.assert_array_equal(numbers(result), wanted)


def test_each_encode_of_a_reshape_has_the_shape_that_it_asks_for() -> None:
    bench, kernel = Bench(CPU), MPSNNReshape(CPU)
    keep_results(kernel)
    image = bench.image(drawn("image", (1, 4, 3, 2)))
    shapes = [(24, 1, 1), (2, 3, 4)]
    found: list[list[Any]] = [[], []]

    def encode(index: int) -> None:
        command_buffer = CPU.new_command_queue().command_buffer()
        names = ("reshaped_width", "reshaped_height", "reshaped_feature_channels")
        asked: Any = dict(zip(names, shapes[index], strict=True))
        found[index] = [kernel.encode(command_buffer, image, **asked) for _ in range(ENCODES)]
        finish(command_buffer)

    _twice(encode)
    for results, shape in zip(found, shapes, strict=True):
        assert {(result.width, result.height, result.feature_channels) for result in results} == {shape}


def test_each_encode_of_a_dropout_has_a_mask_of_its_own() -> None:
    bench, ones = Bench(CPU), np.ones((1, 1, 8, 8))
    kernel = MPSCNNDropout(CPU, 0.5)
    image = bench.image(ones)
    expected = {run(bench, kernel, [image]).tobytes() for kernel in [kernel.copy()] for _ in range(2 * ENCODES)}
    found: list[Any] = []

    def encode(index: int) -> None:
        command_buffer = CPU.new_command_queue().command_buffer()
        found.extend([kernel.encode(command_buffer, image) for _ in range(ENCODES)])
        finish(command_buffer)

    keep_results(kernel)
    _twice(encode)
    assert {numbers(result).tobytes() for result in found} == expected


def test_counts_of_encodes_miss_none() -> None:
    bench = Bench(CPU)
    optimizer, generator = MPSNNOptimizerAdam(CPU, 0.1), MPSMatrixRandomPhilox(CPU)
    drawn_words: list[MPSVector] = []

    def encode(_: int) -> None:
        command_buffer = CPU.new_command_queue().command_buffer()
        for _ in range(ENCODES):
            operands = {
                f"{name}_vector": vector(bench, np.ones(2))
                for name in ("input_gradient", "input_values", "input_momentum", "input_velocity", "result_values")
            }
            optimizer.encode(command_buffer, **operands)
            words = MPSVector(device=CPU, descriptor=MPSVectorDescriptor(4, MPSDataType.UINT32))
            generator.encode(command_buffer, words)
            drawn_words.append(words)
        finish(command_buffer)

    _twice(encode)
    assert optimizer.time_step == 2 * ENCODES
    assert len({words.numpy().tobytes() for words in drawn_words}) == 2 * ENCODES


def test_a_kernel_that_was_encoded_can_be_copied() -> None:
    bench, x = Bench(CPU), drawn("image", (1, 4, 4, 4))
    kernel = MPSCNNPoolingMax(CPU, 2, 2)
    expected = run(bench, kernel, [bench.image(x)])
    for twin in (kernel.copy(), copy.copy(kernel), copy.deepcopy(kernel)):
        np.testing.assert_array_equal(run(bench, twin, [bench.image(x)]), expected)


def test_properties_that_change_meanwhile() -> None:
    """Each encode of a kernel's own copy keeps its properties, whatever another thread does with the original."""
    bench = Bench(CPU)
    image = bench.image(drawn("image", (1, 4, 9, 9)))
    original = MPSCNNPoolingMax(CPU, 2, 2)
    keep_results(original)
    mine = original.copy()
    expected = run(bench, original.copy(), [image])
    results: list[Any] = []

    def encode(index: int) -> None:
        command_buffer = CPU.new_command_queue().command_buffer()
        for number in range(ENCODES):
            if index:
                original.edge_mode, original.label = type(original.edge_mode)(number % 2), str(number)
                original.padding = MPSNNDefaultPadding(MPSNNPaddingMethod(16 * (number % 2)))
                original.encode(command_buffer, image)
            else:
                results.append(mine.encode(command_buffer, image))
        finish(command_buffer)

    _twice(encode)
    for result in results:
        np.testing.assert_array_equal(numbers(result), expected)
