"""What a user can get wrong at every gradient kernel: states, sizes, and properties set by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from encoding import Bench, encode, keep_results
from in_one_test import in_one_test
from openmps.core.state.state import MPSState
from openmps.errors import (
    MPSArgumentError,
    MPSLifetimeError,
    MPSTypeError,
)
from openmps.kernels.neuron import MPSCNNNeuronSigmoid
from openmps.kernels.normalization import MPSCNNSpatialNormalization, MPSCNNSpatialNormalizationGradient
from openmps.kernels.pooling import MPSCNNPoolingMax, MPSCNNPoolingMaxGradient
from openmps.types import MPSOffset
from scenes import CPU, TRAINED, Backward


def of_every_gradient(test: Any) -> Any:
    """The test of each gradient kernel, in one."""
    return in_one_test(backward=Backward)(pytest.mark.parametrize("backward", TRAINED)(test))


@of_every_gradient
def test_a_gradient_needs_its_state(backward: Backward) -> None:
    scene = backward
    scene.refused(
        MPSTypeError, "gradient_state", lambda: scene.run(states=None), "is needed: an encode that returns an"
    )
    scene.refused(
        MPSArgumentError, "gradient_states", lambda: scene.run(states=[]), "must be one state an image, 2, got 0"
    )
    scene.refused(
        MPSArgumentError,
        "gradient_states",
        lambda: scene.run(states=[scene.states[0]]),
        "must be one state an image, 2, got 1 state(s)",
    )
    single = lambda: scene.kernel.encode(scene.bench.command_buffer(), scene.flow[0], scene.image[0])  # noqa: E731
    scene.refused(MPSTypeError, "gradient_state", single, "is needed")


@of_every_gradient
def test_states_that_are_not_gradient_states(backward: Backward) -> None:
    scene = backward
    plain = MPSState(CPU, buffer_size=4)
    scene.refused(
        MPSTypeError, "gradient_states", lambda: scene.run(states=[plain] * 2), "must be an MPSNNGradientState"
    )
    scene.refused(MPSTypeError, "gradient_states[0]", lambda: scene.run(states=[1, 2]), "must be an MPSState, got int")
    scene.refused(
        MPSTypeError, "gradient_states", lambda: scene.run(states=7), "must be a sequence of MPSState, got int"
    )


@of_every_gradient
def test_states_of_another_kernel(backward: Backward) -> None:
    scene = backward
    other = MPSCNNPoolingMax(CPU, 1, 1) if "neuron" in scene.sample.name else MPSCNNNeuronSigmoid(CPU)
    keep_results(other)
    command_buffer = scene.bench.command_buffer()
    _, states = other.encode_batch(command_buffer, scene.image, destination_state_is_temporary=False)
    scene.refused(
        MPSArgumentError,
        "gradient_states",
        lambda: scene.run(states=states, destination=scene.bench.batch(scene.forward.gradients[0])),
        "must come from an encode of MPS",
    )


@of_every_gradient
def test_states_without_a_forward_encode(backward: Backward) -> None:
    scene = backward
    states = scene.forward.kernel.result_state_batch(*scene.batch)
    scene.refused(
        MPSArgumentError, "gradient_state", lambda: scene.run(states=states), "must come from a forward encode"
    )


@of_every_gradient
def test_images_of_other_sizes(backward: Backward) -> None:
    scene = backward
    images, channels, height, width = scene.forward.result.shape
    for shape in ((images, channels, height + 1, width), (images, channels + 4, height, width)):
        flow = scene.bench.batch(np.zeros(shape))
        expected = f"must be {width}x{height}x{channels} (width x height x channels), as in the forward encode"
        scene.refused(MPSArgumentError, "source_gradient", lambda flow=flow: scene.run(flow=flow), expected)
    first = scene.image[0]
    image = scene.bench.batch(np.zeros((images, first.feature_channels, first.height, first.width + 1)))
    scene.refused(MPSArgumentError, "source_image", lambda: scene.run(image=image), "must be")


@of_every_gradient
def test_temporary_states_elsewhere_and_used_up(backward: Backward) -> None:
    scene = backward
    keep_results(scene.forward.kernel)
    command_buffer = scene.bench.command_buffer()
    _, states = encode(scene.forward.kernel, command_buffer, scene.batch, destination_state_is_temporary=True)
    scene.refused(
        MPSLifetimeError, "gradient_states", lambda: scene.run(states=states), "is temporary and must be used"
    )
    scene.run(states=states, command_buffer=command_buffer)
    scene.refused(
        MPSLifetimeError,
        "gradient_states",
        lambda: scene.run(states=states, command_buffer=command_buffer),
        "must have reads left",
    )


@of_every_gradient
def test_gradient_destination(backward: Backward) -> None:
    scene = backward
    scene.run()
    images, channels, height, width = scene.forward.gradients[0].shape
    read = scene.kernel.secondary_source_feature_channel_max_count
    if read > 1 and channels > 1:
        small = scene.bench.batch(np.zeros((images, channels - 1, height, width)))
        scene.refused(
            MPSArgumentError, "destination_gradient", lambda: scene.run(destination=small), "must have at lea"
        )
    single = scene.bench.image(scene.forward.gradients[0][:1])
    scene.refused(MPSTypeError, "destination_gradients", lambda: scene.run(destination=single), "must be a sequence")
    short = scene.bench.batch(scene.forward.gradients[0][:1])
    scene.refused(MPSArgumentError, "destination_gradients", lambda: scene.run(destination=short), "must be 2 image(s)")
    if scene.image[0].feature_channels >= channels:
        scene.refused(
            MPSArgumentError,
            "destination_gradient",
            lambda: scene.run(destination=scene.image),
            "must not share memory",
        )


@of_every_gradient
def test_gradient_pixels_out_of_range(backward: Backward) -> None:
    scene = backward
    scene.run()
    destination = scene.bench.batch(scene.forward.gradients[0])
    for offset in (MPSOffset(999, 0, 0), MPSOffset(0, -1, 0)):
        scene.kernel.primary_offset = offset
        scene.refused(
            MPSArgumentError,
            "primary_offset",
            lambda: scene.run(destination=destination),
            "must lie within the gradient",
        )


@of_every_gradient
def test_gradient_channels_that_do_not_match(backward: Backward) -> None:
    """By hand, without a state: as many channels of gradient as of image, or those of the weights."""
    scene = backward
    if "own channels" in scene.sample.traits:
        pytest.skip("the result may have other channels than the source")
    kernel = scene.backward.make(CPU)
    kernel.label = "here"
    scene.kernel = kernel
    shape = scene.forward.result.shape
    flow = scene.bench.batch(np.zeros((shape[0], shape[1] + 1, *shape[2:])))
    states = scene.states if scene.backward.needs_state else None
    destination = scene.bench.batch(scene.forward.gradients[0])
    if hasattr(kernel, "source_gradient_feature_channels"):
        fewer = scene.bench.batch(np.zeros((shape[0], 1, *shape[2:]))) if shape[1] > 1 else None
        if fewer is not None:
            scene.refused(
                MPSArgumentError,
                "source_gradient",
                lambda: scene.run(flow=fewer, states=states, destination=destination),
                f"must have at least {shape[1]} feature channel(s)",
            )
        return
    scene.refused(
        MPSArgumentError,
        "source_gradient",
        lambda: scene.run(flow=flow, states=states, destination=destination),
        "must have as many feature channels read as source_image",
    )


def test_states_of_encodes_with_other_parameters() -> None:
    """Each image is differentiated with the numbers that its own forward encode had."""
    bench = Bench(CPU)
    kernel, gradient = MPSCNNSpatialNormalization(CPU, 3, 3), MPSCNNSpatialNormalizationGradient(CPU, 3, 3)
    image, command_buffer = bench.empty((1, 2, 4, 4)), bench.command_buffer()
    states = []
    for alpha in (1.0, 2.0):
        kernel.alpha = alpha
        states.append(kernel.encode(command_buffer, image, destination_state_is_temporary=False)[1])
    flows = [bench.empty((1, 2, 4, 4)) for _ in range(2)]
    with pytest.raises(MPSArgumentError, match="gradient_states must come from forward encodes with the same prop"):
        gradient.encode_batch(command_buffer, flows, [image, image], states)
    gradient.encode_batch(command_buffer, flows, [image, image], [states[1], states[1]])


@pytest.mark.parametrize("name", ["kernel_offset_x", "kernel_offset_y"])
@pytest.mark.parametrize("value", [0.5, None, True])
def test_kernel_offsets_are_integers(name: str, value: Any) -> None:
    with pytest.raises(MPSTypeError, match=f"^MPSCNNPoolingMaxGradient: {name} must be an integer"):
        setattr(MPSCNNPoolingMaxGradient(CPU, 2, 2), name, value)


def test_states_of_differently_placed_encodes() -> None:
    """A gradient encode has one placement: the states of its batch must agree."""
    bench = Bench(CPU)
    kernel, gradient = MPSCNNPoolingMax(CPU, 2, 2), MPSCNNPoolingMaxGradient(CPU, 2, 2)
    gradient.label = "g"
    image, result = bench.empty((1, 1, 4, 4)), bench.empty((1, 1, 4, 4))
    command_buffer = bench.command_buffer()
    states = []
    for offset in (0, 1):
        kernel.offset = MPSOffset(offset, 0, 0)
        states.append(kernel.result_state(image, destination_image=result))
        kernel.encode(command_buffer, image, bench.empty((1, 1, 4, 4)), states[-1])
    with pytest.raises(
        MPSArgumentError, match="^MPSCNNPoolingMaxGradient 'g': gradient_states must come from forward e"
    ):
        gradient.encode_batch(command_buffer, [result, bench.empty((1, 1, 4, 4))], [image, image], states)


@of_every_gradient
def test_gradient_strides(backward: Backward) -> None:
    """Those that the forward kernel may have: 1 without a window, 0 or 1 for arithmetic."""
    scene = backward
    scene.run()
    destination = scene.bench.batch(scene.forward.gradients[0])
    windowed = "pooling" in scene.sample.name or "convolution" in scene.sample.name or "connected" in scene.sample.name
    wrong = 0 if windowed else 2
    for name in ("secondary_stride_in_pixels_x", "secondary_stride_in_pixels_y"):
        before = getattr(scene.kernel, name)
        setattr(scene.kernel, name, wrong)
        scene.refused(MPSArgumentError, name, lambda: scene.run(destination=destination), "must be ")
        setattr(scene.kernel, name, before)
        scene.refused(MPSArgumentError, name, lambda name=name: setattr(scene.kernel, name, -1), "must be an integer")
