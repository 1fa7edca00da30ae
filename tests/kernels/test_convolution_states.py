"""Gradient states of convolutions: resources, one batch and no other, options, when to read, and sizes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers
from helpers import assert_close
from in_one_test import in_one_test
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.state.batch import MPSStateBatch, MPSStateBatchSynchronize
from openmps.core.state.gradient import MPSImageSizeEncodingState
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError, MTLCommandBufferError
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionGradient,
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionTranspose,
    MPSCNNConvolutionTransposeGradient,
    MPSCNNConvolutionTransposeGradientState,
    MPSCNNFullyConnected,
    MPSCNNFullyConnectedGradient,
)
from openmps.kernels.optimizers import MPSNNOptimizerStochasticGradientDescent
from openmps.kernels.pooling import MPSCNNPoolingMax
from openmps.runtime.devices import mtl_device
from openmps.types import (
    MPSCNNConvolutionGradientOption,
    MPSNNPaddingMethod,
    MPSOffset,
    MPSStateResourceType,
    MTLStorageMode,
)
from samples.convolution import Layer
from samples.sample import BOTTOM_RIGHT, FULL, VALID

CPU = mtl_device("cpu")
TOLERANCE = 1e-5
"""Between encodes of the same sums: a GPU may add them up in another order each time."""
OPTION = MPSCNNConvolutionGradientOption
SOURCE = (3, 5, 6)
Array = np.ndarray


class Kind(NamedTuple):
    """A forward kernel, its gradient and a layer for sources of 5x6 pixels and 3 channels."""

    forward: Any
    gradient: Any
    layer: Layer

    def kernels(self, bench: Bench) -> tuple[Any, Any]:
        source = self.layer.source()
        forward, gradient = self.forward(bench.device, weights=source), self.gradient(bench.device, weights=source)
        for kernel in (forward, gradient):
            keep_results(kernel)
        return forward, gradient


KINDS = {
    "convolution": Kind(MPSCNNConvolution, MPSCNNConvolutionGradient, Layer(3, 4, 3, 2, stride=(2, 1))),
    "depthwise": Kind(MPSCNNConvolution, MPSCNNConvolutionGradient, Layer(3, 3, depthwise=True)),
    "fully connected": Kind(MPSCNNFullyConnected, MPSCNNFullyConnectedGradient, Layer(3, 4, 5, 6)),
    "transposed": Kind(
        MPSCNNConvolutionTranspose, MPSCNNConvolutionTransposeGradient, Layer(3, 4, 3, 3, stride=(2, 2))
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))


def floats(buffer: Any) -> Array:
    return buffer.contents().view(np.float32).copy()


def gradients(state: Any) -> list[Array]:
    return [floats(state.gradient_for_weights), floats(state.gradient_for_biases)]


class Scene:
    """Images, gradients of their results, and one encode of each kernel."""

    def __init__(self, bench: Bench, kind: Kind, rng: np.random.Generator, images: int = 3) -> None:
        self.bench = bench
        self.forward, self.gradient = kind.kernels(bench)
        self.images = bench.batch(rng.normal(size=(images, *SOURCE)))
        descriptor = self.forward.destination_image_descriptor([self.images[0]])
        shape = (images, descriptor.feature_channels, descriptor.height, descriptor.width)
        self.flows = bench.batch(rng.normal(size=shape))

    def run(self, states: Any, parts: list[slice], *, together: bool = True) -> list[Array]:
        """Forward and gradient encodes of some pieces of the batch, on one command buffer or on one each."""
        command_buffer = self.bench.command_buffer()
        for part in parts:
            self.forward.encode_batch(command_buffer, self.images[part], destination_states=states[part])
            self.gradient.encode_batch(command_buffer, self.flows[part], self.images[part], states[part])
            if not together:
                finish(command_buffer)
                command_buffer = self.bench.command_buffer()
        finish(command_buffer)
        return gradients(states[0])


WHOLE = [slice(0, 3)]


# --- resources --------------------------------------------------------------------------------------------------------


@every_kind
def test_the_gradients_are_resources(kind: Kind, device: torch.device) -> None:
    bench = Bench.on(device)
    forward, _ = kind.kernels(bench)
    state = forward.result_state(bench.empty((1, *SOURCE)))
    sizes = [4 * kind.layer.weights().size, 4 * kind.layer.outputs]
    assert (state.resource_count, state.resource_size(), state.is_temporary) == (2, sum(sizes), False)
    assert [state.buffer_size_at_index(index) for index in (0, 1)] == sizes
    assert [state.resource_type_at_index(index) for index in (0, 1, 2)] == [
        MPSStateResourceType.BUFFER, MPSStateResourceType.BUFFER, MPSStateResourceType.NONE,
    ]  # fmt: skip
    assert [state.resource_at_index(index, allocate_memory=False) for index in (0, 1)] == [None, None]
    assert state.gradient_for_weights is state.resource is state.resource_at_index(0)
    assert state.gradient_for_biases is state.resource_at_index(1)
    assert [each.storage_mode for each in (state.gradient_for_weights, state.gradient_for_biases)] == [
        MTLStorageMode.SHARED, MTLStorageMode.SHARED,
    ]  # fmt: skip
    assert not any(each.any() for each in gradients(state))


@every_kind
def test_temporary_states_are_private_and_used_up(kind: Kind, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    scene = Scene(bench, kind, rng)
    expected = scene.run(scene.forward.result_state_batch(scene.images), WHOLE)
    command_buffer = bench.command_buffer()
    _, states = scene.forward.encode_batch(command_buffer, scene.images, destination_state_is_temporary=True)
    state = states[0]
    assert (state.is_temporary, state.read_count, state.lives_on) == (True, 1, command_buffer)
    state.read_count = 2
    scene.gradient.encode_batch(command_buffer, scene.flows, scene.images, states)
    buffer, copy = state.gradient_for_weights, bench.device.new_buffer(length=state.gradient_for_weights.length)
    with pytest.raises(MPSArgumentError, match="contents needs memory that the CPU may touch, got PRIVATE storage"):
        buffer.contents()
    command_buffer.record("copy", lambda: copy.tensor(torch.float32).copy_(buffer.tensor(torch.float32)))
    state.count_read()
    for name in ("gradient_for_weights", "gradient_for_biases"):
        with pytest.raises(MPSLifetimeError, match="must have reads left"):
            getattr(state, name)
    finish(command_buffer)
    assert_close(floats(copy), expected[0], TOLERANCE)
    with pytest.raises(MPSLifetimeError, match="resource 0 is gone: the command buffer of a temporary object was comm"):
        state.gradient_for_weights  # noqa: B018
    with pytest.raises(MPSTypeError, match="temporary_state is not offered by this class.*Use temporary_result_state"):
        type(state).temporary_state(command_buffer, buffer_size=4)


def test_synchronize(rng: np.random.Generator) -> None:
    scene = Scene(Bench(CPU), KINDS["convolution"], rng)
    states = scene.forward.result_state_batch(scene.images)
    command_buffer = scene.bench.command_buffer()
    states[0].synchronize(command_buffer)
    MPSStateBatchSynchronize(states, command_buffer)
    assert [label for label, _ in command_buffer.recording.execution.works] == [
        "synchronize of MPSCNNConvolutionGradientState"
    ] * 2, "one state, synchronized once"


# --- one batch --------------------------------------------------------------------------------------------------------

REFUSAL = r"is good for one batch, and must not see more than the 3 image\(s\) that it was made for, got MPSCNNCon.*'g'"


@in_one_test
@every_kind
@pytest.mark.parametrize("made", ["before", "by the encode"])
@pytest.mark.parametrize("together", [True, False], ids=["one command buffer", "two command buffers"])
def test_a_second_batch_is_refused(
    kind: Kind, made: str, together: bool, device: torch.device, rng: np.random.Generator
) -> None:
    bench = Bench.on(device)
    scene = Scene(bench, kind, rng)
    command_buffer = bench.command_buffer()
    if made == "before":
        states = scene.forward.result_state_batch(scene.images)
        scene.forward.encode_batch(command_buffer, scene.images, destination_states=states)
    else:
        _, states = scene.forward.encode_batch(command_buffer, scene.images, destination_state_is_temporary=False)
    states[0].label = "g"
    scene.gradient.encode_batch(command_buffer, scene.flows, scene.images, states)
    if not together:
        finish(command_buffer)
        command_buffer = bench.command_buffer()
    who = type(scene.forward).__name__
    with pytest.raises(MPSLifetimeError, match=f"^{who} 'source': destination_state {REFUSAL}.*Make a new state for"):
        scene.forward.encode_batch(command_buffer, scene.images, destination_states=states)
    who = type(scene.gradient).__name__
    with pytest.raises(MPSLifetimeError, match=f"^{who} 'source': gradient_state {REFUSAL}.*Make a new state for each"):
        scene.gradient.encode_batch(command_buffer, scene.flows, scene.images, states)
    finish(command_buffer)
    expected = scene.run(scene.forward.result_state_batch(scene.images), WHOLE)
    for mine, theirs in zip(gradients(states[0]), expected, strict=True):
        assert_close(mine, theirs, TOLERANCE, "the refused encodes leave no trace")


@in_one_test
@every_kind
@pytest.mark.parametrize("together", [True, False], ids=["one command buffer", "several"])
def test_pieces_of_one_batch_add_up(kind: Kind, together: bool, device: torch.device, rng: np.random.Generator) -> None:
    scene = Scene(Bench.on(device), kind, rng)
    expected = scene.run(scene.forward.result_state_batch(scene.images), WHOLE)
    states = scene.forward.result_state_batch(scene.images)
    found = scene.run(states, [slice(0, 2), slice(2, 3)], together=together)
    for mine, theirs in zip(found, expected, strict=True):
        assert_close(mine, theirs, TOLERANCE)
    with pytest.raises(MPSLifetimeError, match="is good for one batch"):
        scene.run(states, [slice(0, 1)])


def test_more_images_than_the_state_was_made_for(rng: np.random.Generator) -> None:
    """The piece that goes too far is refused, not only the batch after it."""
    scene = Scene(Bench(CPU), KINDS["convolution"], rng)
    states = scene.forward.result_state_batch(scene.images[:2])
    command_buffer = scene.bench.command_buffer()
    for index in range(2):
        scene.gradient.encode(
            command_buffer, scene.flows[index], scene.images[index], states[0], scene.bench.empty((1, *SOURCE))
        )
    with pytest.raises(MPSLifetimeError, match="got MPSCNNConvolutionGradientState with the gradients of 2 already"):
        scene.gradient.encode(
            command_buffer, scene.flows[2], scene.images[2], states[0], scene.bench.empty((1, *SOURCE))
        )


def test_a_state_of_one_image_may_serve_a_batch(rng: np.random.Generator) -> None:
    """What counts is the largest forward encode that it was passed to."""
    scene = Scene(Bench(CPU), KINDS["convolution"], rng)
    expected = scene.run(scene.forward.result_state_batch(scene.images), WHOLE)
    state = scene.forward.result_state(scene.images[0])
    found = scene.run(MPSStateBatch([state] * 3), WHOLE)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_batches_that_are_added_up_on_purpose(device: torch.device, rng: np.random.Generator) -> None:
    """A state for all images of batches that do not exist yet, one command buffer each."""
    scene = Scene(Bench.on(device), KINDS["convolution"], rng, images=4)
    expected = scene.run(scene.forward.result_state_batch(scene.images), [slice(0, 4)])
    states = scene.forward.result_state_batch([scene.images[0]] * 4)
    found = scene.run(states, [slice(0, 2), slice(2, 4)], together=False)
    for mine, theirs in zip(found, expected, strict=True):
        assert_close(mine, theirs, TOLERANCE)
    with pytest.raises(MPSLifetimeError, match=r"the 4 image\(s\) that it was made for"):
        scene.run(states, [slice(0, 2)])


def test_images_of_one_object_are_a_batch(rng: np.random.Generator) -> None:
    bench = Bench(CPU)
    forward, gradient = KINDS["convolution"].kernels(bench)
    image = bench.image(rng.normal(size=(2, *SOURCE)))
    command_buffer = bench.command_buffer()
    result, state = forward.encode(command_buffer, image, destination_state_is_temporary=False)
    gradient.encode(command_buffer, result, image, state)
    with pytest.raises(MPSLifetimeError, match=r"must not see more than the 2 image\(s\)"):
        gradient.encode(command_buffer, result, image, state)


@every_kind
def test_data_gradients_alone_take_nothing_from_the_state(kind: Kind, rng: np.random.Generator) -> None:
    scene = Scene(Bench(CPU), kind, rng)
    states = scene.forward.result_state_batch(scene.images)
    scene.run(states, WHOLE)
    scene.gradient.gradient_option = OPTION.GRADIENT_WITH_DATA
    command_buffer = scene.bench.command_buffer()
    for _ in range(2):
        scene.gradient.encode_batch(command_buffer, scene.flows, scene.images, states)
    finish(command_buffer)


# --- options ----------------------------------------------------------------------------------------------------------


@in_one_test
@every_kind
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["data first", "parameters first"])
def test_two_encodes_with_one_option_each_are_one_with_both(
    kind: Kind, order: tuple[int, int], device: torch.device, rng: np.random.Generator
) -> None:
    bench = Bench.on(device)
    scene = Scene(bench, kind, rng)
    found = []
    for options in ([OPTION.ALL], [list(OPTION)[index] for index in order]):
        states = scene.forward.result_state_batch(scene.images)
        command_buffer = bench.command_buffer()
        scene.forward.encode_batch(command_buffer, scene.images, destination_states=states)
        results = {}
        for option in options:
            scene.gradient.gradient_option = option
            results[option] = scene.gradient.encode_batch(command_buffer, scene.flows, scene.images, states)
        finish(command_buffer)
        with_data = next(result for option, result in results.items() if option & OPTION.GRADIENT_WITH_DATA)
        found.append([numbers(with_data), *gradients(states[0])])
    for whole, parts in zip(*found, strict=True):
        assert_close(parts, whole, TOLERANCE)
    assert all(each.any() for each in found[0])


@pytest.mark.parametrize("value", [True, False])
def test_serializing_weights_and_biases_has_no_effect(value: bool, rng: np.random.Generator) -> None:
    scene = Scene(Bench(CPU), KINDS["convolution"], rng)
    assert scene.gradient.serialize_weights_and_biases is False
    expected = scene.run(scene.forward.result_state_batch(scene.images), WHOLE)
    scene.gradient.serialize_weights_and_biases = value
    found = scene.run(scene.forward.result_state_batch(scene.images), WHOLE)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert scene.gradient.copy().serialize_weights_and_biases is value


# --- when to read, and for how long -----------------------------------------------------------------------------------


@every_kind
def test_gradients_are_zero_until_they_have_run(kind: Kind, device: torch.device, rng: np.random.Generator) -> None:
    """Looking early is refused; a handler may look. Memory that was taken before is filled in."""
    bench = Bench.on(device)
    scene = Scene(bench, kind, rng)
    expected = scene.run(scene.forward.result_state_batch(scene.images), WHOLE)
    states = scene.forward.result_state_batch(scene.images)
    command_buffer = bench.command_buffer()
    scene.forward.encode_batch(command_buffer, scene.images, destination_states=states)
    scene.gradient.encode_batch(command_buffer, scene.flows, scene.images, states)
    early = states[0].gradient_for_weights.memory(torch.float32)
    assert not early.any()
    with pytest.raises(MTLCommandBufferError, match="cannot read what a command buffer that is not committed has yet"):
        states[0].gradient_for_weights.contents()
    seen: list[Array] = []
    command_buffer.add_completed_handler(lambda _: seen.append(floats(states[0].gradient_for_weights)))
    finish(command_buffer)
    assert_close(seen[0], expected[0], TOLERANCE, "a completed handler may read")
    np.testing.assert_array_equal(floats(states[0].gradient_for_weights), seen[0])
    np.testing.assert_array_equal(early.cpu().numpy(), seen[0])


def test_a_buffer_outlives_its_state(device: torch.device, rng: np.random.Generator) -> None:
    """Whoever holds a buffer keeps it; recorded work keeps what it needs."""
    bench = Bench.on(device)
    scene = Scene(bench, KINDS["convolution"], rng)
    expected = scene.run(scene.forward.result_state_batch(scene.images), WHOLE)
    command_buffer = bench.command_buffer()
    states = scene.forward.result_state_batch(scene.images)
    scene.forward.encode_batch(command_buffer, scene.images, destination_states=states)
    scene.gradient.encode_batch(command_buffer, scene.flows, scene.images, states)
    buffer, alive = states[0].gradient_for_biases, weakref.ref(states[0])
    del states
    gc.collect()
    assert alive() is None
    finish(command_buffer)
    assert_close(floats(buffer), expected[1], TOLERANCE)


# --- the size of the source -------------------------------------------------------------------------------------------


@every_kind
def test_the_source_size_is_known_when_the_state_is_made(kind: Kind) -> None:
    bench = Bench(CPU)
    forward, _ = kind.kernels(bench)
    command_buffer, image = bench.command_buffer(), bench.empty((1, *SOURCE))
    made = [
        forward.result_state(image),
        forward.result_state_batch([image])[0],
        forward.temporary_result_state(command_buffer, image),
        forward.temporary_result_state_batch(command_buffer, [image])[0],
    ]
    for state in made:
        kind_of_state = MPSCNNConvolutionGradientState
        if forward.is_backwards:
            kind_of_state = MPSCNNConvolutionTransposeGradientState
        assert type(state) is kind_of_state
        assert isinstance(state, MPSImageSizeEncodingState)
        assert (state.source_width, state.source_height) == (6, 5)


def test_what_encodes_a_size() -> None:
    class Mine(MPSState):
        source_width, source_height = 3, 4

    assert isinstance(Mine(), MPSImageSizeEncodingState)
    assert not isinstance(MPSState(), MPSImageSizeEncodingState)


@in_one_test
@pytest.mark.parametrize("padding", [None, BOTTOM_RIGHT, VALID, FULL], ids=["same", "bottom right", "valid", "full"])
@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_transposed_convolution_restores_every_size(size: int, stride: int, padding: Any) -> None:
    """The remainder of size / stride is lost in the result of the convolution, and comes back with its state."""
    bench = Bench(CPU)
    down = MPSCNNConvolution(CPU, weights=Layer(1, 1, size, size, stride=(stride, stride)).source())
    up = MPSCNNConvolutionTranspose(CPU, weights=Layer(1, 1, size, size, stride=(stride, stride)).source())
    if padding is not None:
        down.padding = padding
    differ = 0
    for length in range(size, 12):
        command_buffer = bench.command_buffer()
        image = bench.empty((1, 1, length, length + 1))
        small, state = down.encode(command_buffer, image, destination_state_is_temporary=False)
        by_formula = up.destination_image_descriptor([small])
        restored = up.destination_image_descriptor([small], [state])
        assert (restored.height, restored.width) == (length, length + 1)
        differ += (by_formula.height, by_formula.width) != (length, length + 1)
        result = up.encode(command_buffer, small, state)
        assert (result.height, result.width) == (length, length + 1)
    assert differ > 0 or stride == 1


# --- a state of the user's that sizes results -------------------------------------------------------------------------


class Cropping(MPSState):
    """Has its taker make a smaller image, of windows further in."""

    def destination_image_descriptor(
        self, source_images: Any, source_states: Any, for_kernel: Any, suggested_descriptor: Any
    ) -> MPSImageDescriptor:
        self.seen = (source_images, source_states, for_kernel)
        wanted = suggested_descriptor.copy()
        wanted.width -= 2
        for_kernel.offset = MPSOffset(for_kernel.offset.x + 2, for_kernel.offset.y, 0)
        return wanted


@pytest.mark.parametrize(
    "make",
    [
        lambda: MPSCNNConvolution(CPU, weights=Layer(3, 3, 3, 3).source()),
        lambda: MPSCNNPoolingMax(CPU, 3, 3, stride_in_pixels_x=1, stride_in_pixels_y=1),
    ],
    ids=["convolution", "pooling"],
)
def test_a_state_that_sizes_the_result(make: Callable[[], Any], rng: np.random.Generator) -> None:
    """The hook sees the kernel's suggestion and offset, and the encode takes what it set."""
    bench, kernel = Bench(CPU), make()
    keep_results(kernel)
    image = bench.image(rng.normal(size=(1, *SOURCE)))
    command_buffer = bench.command_buffer()
    whole = kernel.encode(command_buffer, image)
    placed = kernel.offset
    state = Cropping()
    descriptor = kernel.destination_image_descriptor([image], [state])
    assert (descriptor.width, descriptor.height) == (4, 5)
    assert kernel.offset == MPSOffset(placed.x + 2, placed.y, 0)
    assert state.seen[0][0] is image and state.seen[1] == [state] and state.seen[2] is kernel
    part = bench.empty((1, descriptor.feature_channels, 5, 4))
    kernel.encode(command_buffer, image, part)
    finish(command_buffer)
    assert_close(numbers(part), numbers(whole)[..., 2:], 1e-6)


class Wider(MPSCNNConvolutionGradientState):
    """Has the transposed convolution go on for two columns on the left."""

    def destination_image_descriptor(
        self, source_images: Any, source_states: Any, for_kernel: Any, suggested_descriptor: Any
    ) -> MPSImageDescriptor:
        suggested_descriptor.width += 2
        for_kernel.kernel_offset_x -= 2
        return suggested_descriptor


def test_a_gradient_state_of_the_users_sizes_the_transposed_convolution(rng: np.random.Generator) -> None:
    bench = Bench(CPU)
    down = MPSCNNConvolution(CPU, weights=Layer(1, 1, 3, 3, stride=(2, 2)).source())
    up = MPSCNNConvolutionTranspose(CPU, weights=Layer(1, 1, 3, 3, stride=(2, 2)).source())
    keep_results(up)
    command_buffer, image = bench.command_buffer(), bench.image(rng.normal(size=(1, 1, 6, 7)))
    small, state = down.encode(command_buffer, image, destination_state_is_temporary=False)
    small.read_count = 2
    own = Wider(CPU, down)
    down.encode(command_buffer, image, bench.empty((1, 1, small.height, small.width)), destination_state=own)
    plain, wide = up.encode(command_buffer, small, state), up.encode(command_buffer, small, own)
    finish(command_buffer)
    assert (wide.width, wide.height, plain.width) == (9, 6, 7)
    np.testing.assert_allclose(numbers(wide)[..., 2:], numbers(plain), rtol=1e-6, atol=1e-6)


def test_states_come_before_a_custom_policy(rng: np.random.Generator) -> None:
    class Policy:
        def padding_method(self) -> MPSNNPaddingMethod:
            return MPSNNPaddingMethod.CUSTOM | MPSNNPaddingMethod.SIZE_SAME

        def destination_image_descriptor(
            self, source_images: Any, source_states: Any, for_kernel: Any, suggested_descriptor: Any
        ) -> Any:
            assert suggested_descriptor.width == 4, "the state has had its say"
            suggested_descriptor.height = 1
            return suggested_descriptor

    kernel = MPSCNNConvolution(CPU, weights=Layer(3, 3, 3, 3).source())
    kernel.padding = Policy()
    descriptor = kernel.destination_image_descriptor([Bench(CPU).empty((1, *SOURCE))], [Cropping()])
    assert (descriptor.width, descriptor.height) == (4, 1)


# --- a step of each kind of layer -------------------------------------------------------------------------------------


@every_kind
def test_a_step_on_the_device_is_the_step_on_the_cpu(
    kind: Kind, device: torch.device, rng: np.random.Generator
) -> None:
    """Way 3 beside way 2: the optimizer, the reload of both kernels, and what they compute afterwards."""
    bench = Bench.on(device)
    scene = Scene(bench, kind, rng)
    states = scene.forward.result_state_batch(scene.images)
    optimizer = MPSNNOptimizerStochasticGradientDescent(bench.device, 0.25)
    command_buffer = bench.command_buffer()
    scene.forward.encode_batch(command_buffer, scene.images, destination_states=states)
    scene.gradient.encode_batch(command_buffer, scene.flows, scene.images, states)
    new = scene.forward.export_weights_and_biases(command_buffer)
    optimizer.encode(
        command_buffer, convolution_gradient_state=states[0], convolution_source_state=new, result_state=new
    )
    for kernel in (scene.forward, scene.gradient):
        kernel.reload_weights_and_biases(command_buffer, new)
    finish(command_buffer)
    source = kind.layer.source()
    for name, slope in zip(("_weights", "_biases"), gradients(states[0]), strict=True):
        before = getattr(source, name)
        setattr(source, name, before - np.float32(0.25) * slope.reshape(before.shape))
    assert_close(floats(new.weights), source._weights.ravel(), 1e-6)
    again = Kind(
        lambda device, weights: kind.forward(device, weights=source),
        lambda device, weights: kind.gradient(device, weights=source),
        kind.layer,
    )
    found = []
    for forward, gradient in ((scene.forward, scene.gradient), again.kernels(bench)):
        command_buffer = bench.command_buffer()
        result, made = forward.encode_batch(command_buffer, scene.images, destination_state_is_temporary=False)
        flow = gradient.encode_batch(command_buffer, scene.flows, scene.images, made)
        finish(command_buffer)
        found.append((numbers(result), numbers(flow)))
    for mine, theirs in zip(*found, strict=True):
        assert_close(mine, theirs, TOLERANCE)


@in_one_test
@every_kind
@pytest.mark.parametrize("option", [4, -1, "data", None, True])
def test_options_that_there_are_not(kind: Kind, option: Any) -> None:
    _, gradient = kind.kernels(Bench(CPU))
    with pytest.raises(MPSArgumentError, match="'source': gradient_option must be GRADIENT_WITH_DATA, GRADIENT_WITH_W"):
        gradient.gradient_option = option
    assert gradient.gradient_option is OPTION.ALL


@every_kind
def test_a_reload_from_nothing_is_refused(kind: Kind) -> None:
    """An update() that gave None, passed on, must not read the data source instead."""
    bench = Bench(CPU)
    for kernel in kind.kernels(bench):
        state = kind.kernels(bench)[0].export_weights_and_biases(bench.command_buffer())
        with pytest.raises(MPSTypeError, match="state must be an MPSCNNConvolutionWeightsAndBiasesState, got NoneType"):
            kernel.reload_weights_and_biases(bench.command_buffer(), None)
        with pytest.raises(MPSTypeError, match="command_buffer must be a command buffer, got NoneType"):
            kernel.reload_weights_and_biases(None, state)


def test_pieces_are_read_alike_or_differentiated_one_by_one(device: torch.device) -> None:
    """There is one record: a piece that is read in another way would overrule that of the piece before it."""
    bench = Bench.on(device)
    forward, gradient = KINDS["convolution"].kernels(bench)
    images = list(bench.batch(np.ones((2, *SOURCE))))
    command_buffer = bench.command_buffer()
    states = forward.result_state_batch(images)
    flow = None
    for index, offset in enumerate((0, 1)):
        forward.offset = MPSOffset(offset, 0, 0)
        result = bench.batch(np.zeros((1, 4, 3, 6)))
        forward.encode_batch(command_buffer, images[index : index + 1], result, states[index : index + 1])
        flow = gradient.encode_batch(command_buffer, result, images[index : index + 1], states[index : index + 1])
    assert flow is not None
    states = forward.result_state_batch(images)
    forward.encode_batch(command_buffer, images[:1], bench.batch(np.zeros((1, 4, 3, 6))), states[:1])
    forward.offset = MPSOffset(0, 0, 0)
    with pytest.raises(MPSArgumentError, match="before a piece that is read in another way"):
        forward.encode_batch(command_buffer, images[1:], bench.batch(np.zeros((1, 4, 3, 6))), states[1:])
    finish(command_buffer)


def test_weights_go_with_the_kernel_that_held_them(device: torch.device) -> None:
    """At once, not when the garbage collector comes: other kernels count versions by those that are there."""
    bench = Bench.on(device)
    gc.disable()
    try:
        forward, _ = KINDS["convolution"].kernels(bench)
        command_buffer = bench.command_buffer()
        forward.encode_batch(command_buffer, bench.batch(np.ones((1, *SOURCE))))
        forward.parameters.state()
        finish(command_buffer)
        weights = weakref.ref(forward.parameters)
        del forward, command_buffer
        assert weights() is None
    finally:
        gc.enable()
