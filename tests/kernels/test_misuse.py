"""What a user can get wrong at every kernel: refused where it is done, in words that say who, what and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, numbers, run, temporary_copy
from in_one_test import in_one_test
from openmps.core.state.state import MPSState
from openmps.errors import (
    MPSArgumentError,
    MPSDeviceError,
    MPSError,
    MPSLifetimeError,
    MPSTypeError,
    MTLCommandBufferError,
)
from openmps.kernels.neuron import MPSCNNNeuronReLU
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset, MTLOrigin, MTLRegion, MTLSize
from samples.sample import REGIONS
from scenes import CPU, FIRST, Scene


def of_every_kernel(test: Any) -> Any:
    """The test of a scene of each kernel, in one."""
    return in_one_test(scene=Scene)(pytest.mark.parametrize("scene", FIRST)(test))


# --- command buffers -------------------------------------------------------------------------------------------------


@of_every_kernel
def test_no_command_buffer(scene: Scene) -> None:
    for wrong in (scene.bench.queue, "now", 7):
        scene.refused(MPSTypeError, "command_buffer", lambda wrong=wrong: scene.encode(command_buffer=wrong), "must be")


@of_every_kernel
def test_encode_after_commit(scene: Scene) -> None:
    done = scene.bench.command_buffer()
    finish(done)
    scene.refused(MTLCommandBufferError, "command_buffer", lambda: scene.encode(command_buffer=done), "must not be")


@of_every_kernel
def test_encode_beside_an_open_encoder(scene: Scene) -> None:
    command_buffer = scene.bench.command_buffer()
    encoder = command_buffer.blit_command_encoder()
    refused = lambda: scene.encode(command_buffer=command_buffer)  # noqa: E731
    scene.refused(MTLCommandBufferError, "command_buffer", refused, "must have every encoder ended")
    encoder.end_encoding()
    scene.encode(command_buffer=command_buffer)


@of_every_kernel
def test_another_device(scene: Scene) -> None:
    """A second object for the CPU stands for another device: devices are told apart by identity."""
    other = MTLDevice(torch.device("cpu"))
    bench = Bench(other)
    scene.refused(
        MPSDeviceError, "command_buffer", lambda: scene.encode(command_buffer=bench.command_buffer()), "must belong"
    )
    elsewhere = [bench.batch(values) for values in scene.values]
    name = scene.source + "s"
    scene.refused(MPSDeviceError, name, lambda: scene.encode(sources=elsewhere), "must belong to the device")
    destination = bench.batch(scene.result)
    scene.refused(
        MPSDeviceError,
        scene.destination + "s",
        lambda: scene.encode(destination=destination),
        "must belong to the device",
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_cpu_images_for_a_gpu_kernel() -> None:
    gpu = Bench(mtl_device("cuda"))
    kernel = MPSCNNNeuronReLU(gpu.device)
    with pytest.raises(MPSDeviceError, match="^MPSCNNNeuronReLU: source_image must belong to the device"):
        kernel.encode(gpu.command_buffer(), Bench(CPU).empty((1, 1, 1, 1)))


# --- images and batches ----------------------------------------------------------------------------------------------


@of_every_kernel
def test_images_for_batches_and_batches_for_images(scene: Scene) -> None:
    command_buffer, kernel = scene.bench.command_buffer(), scene.kernel
    scene.refused(
        MPSTypeError, scene.source, lambda: kernel.encode(command_buffer, *scene.batch, *scene.more), "must be an MPSI"
    )
    name = scene.source + "s"
    scene.refused(
        MPSTypeError, name, lambda: kernel.encode_batch(command_buffer, *scene.single, *scene.more), "must be a seq"
    )
    wrong = [[1, 2]] * len(scene.batch)
    scene.refused(MPSTypeError, f"{name}[0]", lambda: kernel.encode_batch(command_buffer, *wrong, *scene.more), "must")
    single = scene.bench.image(scene.result[:1])
    scene.refused(MPSTypeError, scene.destination + "s", lambda: scene.encode(destination=single), "must be a sequence")
    batch = scene.bench.batch(scene.result)
    scene.refused(
        MPSTypeError,
        scene.destination,
        lambda: scene.encode(sources=scene.single, destination=batch),
        "must be an MPS",
    )


@of_every_kernel
def test_empty_batches(scene: Scene) -> None:
    empty: list[Any] = [[]] * len(scene.batch)
    command_buffer = scene.bench.command_buffer()
    name = scene.source + "s"
    scene.refused(
        MPSArgumentError,
        name,
        lambda: scene.kernel.encode_batch(command_buffer, *empty, *scene.more),
        "must be 1 image(s)",
    )


@of_every_kernel
def test_batches_of_different_lengths(scene: Scene) -> None:
    if len(scene.batch) == 2:
        shorter = [scene.batch[0], scene.batch[1][:1]]
        scene.refused(
            MPSArgumentError,
            scene.second_source + "s",
            lambda: scene.encode(sources=shorter),
            "must be 2 image(s), as many as",
        )
    for count in (1, 3):
        destination = scene.bench.batch(np.concatenate([scene.result] * 2)[:count])
        scene.refused(
            MPSArgumentError,
            scene.destination + "s",
            lambda destination=destination: scene.encode(destination=destination),
            f"must be 2 image(s), as many as the sources, got {count} image(s)",
        )


@of_every_kernel
def test_batches_of_unlike_images(scene: Scene) -> None:
    shape = scene.values[0].shape
    unlike = scene.bench.empty((1, shape[1] + 4, *shape[2:]))
    mixed = [[scene.single[0], unlike], *scene.batch[1:]]
    name = scene.source + "s"
    scene.refused(MPSArgumentError, f"{name}: image 1", lambda: scene.encode(sources=mixed), "must have the size")
    several = [[scene.single[0], scene.bench.empty((2, *shape[1:]))], *scene.batch[1:]]
    scene.refused(MPSArgumentError, f"{name}: image 1", lambda: scene.encode(sources=several), "must hold exactly one")
    destination = [scene.bench.image(scene.result[:1]), scene.bench.empty((1, *scene.result.shape[1:3], 99))]
    scene.refused(
        MPSArgumentError, f"{scene.destination}s: image 1", lambda: scene.encode(destination=destination), "must have"
    )


@of_every_kernel
def test_destination_is_a_source(scene: Scene) -> None:
    """Not even another image of the batch; neurons alone may work in place."""
    if "in place" in scene.sample.traits:
        pytest.skip("works in place")
    channels = max(values.shape[1] for values in scene.values)
    if scene.result.shape[1] > scene.values[0].shape[1]:
        pytest.skip(f"makes more than {channels} channels")
    scene.refused(
        MPSArgumentError,
        scene.destination,
        lambda: scene.encode(destination=scene.batch[0]),
        "must not share memory with a source",
    )
    swapped = [scene.batch[0][1], scene.batch[0][0]]
    scene.refused(
        MPSArgumentError, scene.destination, lambda: scene.encode(destination=swapped), "must not share memory"
    )


# --- channels, clip rectangle, offsets -------------------------------------------------------------------------------


@of_every_kernel
def test_too_few_destination_channels(scene: Scene) -> None:
    images, channels, height, width = scene.result.shape
    if channels > 1:
        small = scene.bench.batch(np.zeros((images, channels - 1, height, width)))
        scene.refused(
            MPSArgumentError,
            scene.destination,
            lambda: scene.encode(destination=small),
            f"must have at least {channels} feature channels",
        )
    scene.kernel.destination_feature_channel_offset = 4
    same = scene.bench.batch(scene.result)
    scene.refused(
        MPSArgumentError,
        scene.destination,
        lambda: scene.encode(destination=same),
        f"must have at least {channels + 4} feature channels ({channels} written from channel 4 on), got {channels}",
    )


@of_every_kernel
def test_too_few_source_channels(scene: Scene) -> None:
    prefix = "primary_" if len(scene.batch) == 2 else ""
    offset = 4 * (scene.values[0].shape[1] // 4 + 1)
    setattr(scene.kernel, f"{prefix}source_feature_channel_offset", offset)
    scene.refused(MPSArgumentError, scene.source, scene.encode, "must have at least")


@of_every_kernel
@pytest.mark.parametrize("value", [1, 2, -4, 4.0, True, "4"])
def test_channel_offsets_are_multiples_of_four(scene: Scene, value: Any) -> None:
    prefixes = ("primary_", "secondary_") if len(scene.batch) == 2 else ("",)
    names = ["destination_feature_channel_offset", *(f"{prefix}source_feature_channel_offset" for prefix in prefixes)]
    for name in names[:1] if "any channel" in scene.sample.traits else names:
        scene.refused(
            MPSArgumentError,
            name,
            lambda name=name: setattr(scene.kernel, name, value),
            f"must be a multiple of 4, at least 0, got {value!r}",
        )


@of_every_kernel
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_channel_counts(scene: Scene, value: Any) -> None:
    for prefix in ("primary_", "secondary_") if len(scene.batch) == 2 else ("",):
        name = f"{prefix}source_feature_channel_max_count"
        scene.refused(MPSArgumentError, name, lambda name=name: setattr(scene.kernel, name, value), "must be an int")


@of_every_kernel
def test_an_empty_clip_rect(scene: Scene) -> None:
    destination = scene.bench.batch(scene.result)
    height, width = scene.result.shape[2:]
    for origin, size in (
        (MTLOrigin(width, 0, 0), MTLSize(1, 1, 1)),
        (MTLOrigin(0, height, 0), MTLSize(1, 1, 1)),
        (MTLOrigin(0, 0, 0), MTLSize(0, 1, 1)),
        (MTLOrigin(0, 0, 0), MTLSize(1, 0, 1)),
    ):
        scene.kernel.clip_rect = MTLRegion(origin, size)
        scene.refused(
            MPSArgumentError, "clip_rect", lambda: scene.encode(destination=destination), "must overlap the destination"
        )


@of_every_kernel
def test_images_out_of_range(scene: Scene) -> None:
    """z chooses images of one object; a batch leaves nothing to choose."""
    if any(hasattr(scene.kernel, name) for name in REGIONS):
        pytest.skip("regions choose its images: test_reduce.py")
    prefix = "primary_" if len(scene.batch) == 2 else ""
    destination = scene.bench.image(scene.result[:1])
    argument = "offset.z, clip_rect.origin.z and clip_rect.size.depth"
    for z in (1, -1):
        setattr(scene.kernel, f"{prefix}offset", MPSOffset(0, 0, z))
        scene.refused(
            MPSArgumentError,
            argument,
            lambda: scene.encode(sources=scene.single, destination=destination),
            "must select at least one image",
        )
        batch = scene.bench.batch(scene.result)
        scene.refused(
            MPSArgumentError,
            "offset.z and clip_rect.origin.z",
            lambda batch=batch: scene.encode(destination=batch),
            "must be 0 when a batch is encoded",
        )
    setattr(scene.kernel, f"{prefix}offset", MPSOffset(0, 0, 0))
    scene.kernel.clip_rect = MTLRegion(MTLOrigin(0, 0, 1), MTLSize(99, 99, 1))
    refused = lambda: scene.encode(sources=scene.single, destination=destination)  # noqa: E731
    scene.refused(MPSArgumentError, argument, refused, "must select at least one image")
    batch = scene.bench.batch(scene.result)
    again = lambda: scene.encode(destination=batch)  # noqa: E731
    scene.refused(MPSArgumentError, "offset.z and clip_rect.origin.z", again, "must be 0 when a batch is encoded")


@of_every_kernel
def test_properties_have_types(scene: Scene) -> None:
    prefixes = ("primary_", "secondary_") if len(scene.batch) == 2 else ("",)
    cases: list[tuple[type[MPSError], str, Any, str]] = [
        (MPSTypeError, "clip_rect", (0, 0, 1, 1), "must be an MTLRegion"),
        (MPSTypeError, "padding", 16, "must have a padding_method()"),
        (MPSTypeError, "destination_image_allocator", None, "must have a method image("),
    ]
    for prefix in prefixes:
        cases += [
            (MPSTypeError, f"{prefix}offset", (0, 0, 0), "must be an MPSOffset"),
        ]
        if "all edge modes" not in scene.sample.traits:
            cases += [
                (MPSArgumentError, f"{prefix}edge_mode", MPSImageEdgeMode.MIRROR, "must be ZERO or CLAMP"),
                (MPSArgumentError, f"{prefix}edge_mode", "clamp", "must be ZERO or CLAMP"),
            ]
    for error, name, value, rule in cases:
        scene.refused(error, name, lambda name=name, value=value: setattr(scene.kernel, name, value), rule)


@of_every_kernel
def test_read_only_properties(scene: Scene) -> None:
    names = ["kernel_width", "stride_in_pixels_x", "dilation_rate_y"] if len(scene.batch) == 1 else []
    for name in [*names, "device", "is_backwards", "is_state_modified"]:
        with pytest.raises(AttributeError):
            setattr(scene.kernel, name, 1)


# --- lifetimes -------------------------------------------------------------------------------------------------------


@of_every_kernel
def test_temporary_images_of_another_command_buffer(scene: Scene) -> None:
    other = scene.bench.command_buffer()
    sources = [temporary_copy(other, batch) for batch in scene.batch]
    name = scene.source + "s"
    scene.refused(MPSLifetimeError, name, lambda: scene.encode(sources=sources), "is temporary and must be used on the")
    destination = temporary_copy(other, scene.bench.batch(scene.result))
    scene.refused(
        MPSLifetimeError,
        scene.destination + "s",
        lambda: scene.encode(destination=destination),
        "is temporary and must be",
    )


@of_every_kernel
def test_temporary_images_without_reads(scene: Scene) -> None:
    command_buffer = scene.bench.command_buffer()
    sources = [temporary_copy(command_buffer, batch) for batch in scene.batch]
    scene.encode(command_buffer=command_buffer, sources=sources)
    name = scene.source + "s"
    again = lambda: scene.encode(command_buffer=command_buffer, sources=sources)  # noqa: E731
    scene.refused(MPSLifetimeError, name, again, "must have reads left")
    destination = temporary_copy(command_buffer, scene.bench.batch(scene.result))
    for image in destination:
        image.read_count = 0
    refused = lambda: scene.encode(command_buffer=command_buffer, destination=destination)  # noqa: E731
    scene.refused(MPSLifetimeError, scene.destination + "s", refused, "must have reads left")


@of_every_kernel
def test_a_refused_encode_takes_no_read(scene: Scene) -> None:
    command_buffer = scene.bench.command_buffer()
    sources = [temporary_copy(command_buffer, batch) for batch in scene.batch]
    scene.kernel.clip_rect = MTLRegion(MTLOrigin(0, 0, 0), MTLSize(0, 0, 0))
    # Padding sets the clip rectangle of encodes that return their result.
    destination = scene.bench.batch(scene.result) if "all edge modes" in scene.sample.traits else None
    with pytest.raises(MPSArgumentError):
        scene.encode(command_buffer=command_buffer, sources=sources, destination=destination)
    assert {image.read_count for source in sources for image in source} == {1}


# --- allocators ------------------------------------------------------------------------------------------------------


@of_every_kernel
def test_allocators_that_make_something_else(scene: Scene) -> None:
    class Wrong:
        def __init__(self, made: Any) -> None:
            self.made = made

        def image(self, command_buffer: Any, image_descriptor: Any, kernel: Any) -> Any:
            return self.made

    class WrongBatch(Wrong):
        def image_batch(self, command_buffer: Any, image_descriptor: Any, kernel: Any, count: int) -> Any:
            return self.made

    name = "destination_image_allocator"
    scene.kernel.destination_image_allocator = Wrong(7)
    scene.refused(MPSTypeError, name, lambda: scene.encode(sources=scene.single), "must be an MPSImage, got int")
    scene.refused(MPSTypeError, f"{name}[0]", scene.encode, "must be an MPSImage, got int")
    scene.kernel.destination_image_allocator = WrongBatch([scene.bench.image(scene.result[:1])])
    scene.refused(MPSArgumentError, name, scene.encode, "must make 2 image(s), got 1 image(s)")


# --- states of forward kernels ---------------------------------------------------------------------------------------


@of_every_kernel
def test_destination_states(scene: Scene) -> None:
    wrong = MPSState(CPU, buffer_size=4)
    if scene.more:
        return  # losses take labels, and leave no state
    if not scene.sample.gradients:
        scene.refused(
            MPSTypeError,
            "destination_states",
            lambda: scene.encode(destination_states=[wrong] * 2),
            "must not be given",
        )
        return
    states = scene.kernel.result_state_batch(*scene.batch)
    scene.refused(
        MPSTypeError,
        "destination_states",
        lambda: scene.encode(destination_states=[wrong] * 2),
        f"must be {type(states[0]).__name__}, got MPSState",
    )
    if not scene.kernel.is_result_state_reused_across_batch():
        scene.refused(
            MPSArgumentError,
            "destination_states",
            lambda: scene.encode(destination_states=states[:1]),
            "must be one state an image, 2, got 1",
        )
    both = lambda: scene.encode(destination_states=states, destination_state_is_temporary=True)  # noqa: E731
    scene.refused(MPSTypeError, "destination_state_is_temporary", both, "asks for a new state, but destination states")
    other = scene.bench.command_buffer()
    temporary = scene.kernel.temporary_result_state_batch(other, *scene.batch)
    scene.refused(
        MPSLifetimeError, "destination_states", lambda: scene.encode(destination_states=temporary), "is temporary and"
    )


# --- what is left after a mistake ------------------------------------------------------------------------------------


@of_every_kernel
def test_a_refused_encode_leaves_the_command_buffer_usable(scene: Scene) -> None:
    command_buffer = scene.bench.command_buffer()
    destination = scene.bench.batch(np.full(scene.result.shape, -7.0))
    clip = scene.kernel.clip_rect
    scene.kernel.clip_rect = MTLRegion(MTLOrigin(0, 0, 0), MTLSize(0, 0, 0))
    with pytest.raises(MPSArgumentError):
        scene.encode(command_buffer=command_buffer, destination=destination)
    scene.kernel.clip_rect = clip
    finish(command_buffer)
    assert (numbers(destination) == -7).all()
    np.testing.assert_allclose(run(scene.bench, scene.kernel, scene.batch, *scene.more), scene.result, atol=1e-6)


@of_every_kernel
def test_wrong_sources_for_a_descriptor(scene: Scene) -> None:
    kernel = scene.kernel
    count = len(scene.single)
    scene.refused(
        MPSArgumentError,
        "source_images",
        lambda: kernel.destination_image_descriptor([*scene.single, scene.single[0]]),
        f"must be {count} image(s), got {count + 1}",
    )
    scene.refused(
        MPSTypeError,
        "source_images",
        lambda: kernel.destination_image_descriptor([None] * count),
        "must be an MPSImage",
    )
