"""Kernels run on arrays: images in, one encode, numbers out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.kernel.encode import ImageKernel
from openmps.core.kernel.multiary import MPSCNNMultiaryKernel
from openmps.core.state.batch import MPSStateBatch
from openmps.metal.device import MTLCommandBuffer, MTLCommandQueue, MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import NUMPY_DTYPES, MPSCNNConvolutionGradientOption, MPSImageFeatureChannelFormat

Format = MPSImageFeatureChannelFormat
FLOAT32, FLOAT16, UNORM8 = Format.FLOAT32, Format.FLOAT16, Format.UNORM8
Images = MPSImage | MPSImageBatch


@dataclass
class Bench:
    """One device with a queue, and images made of arrays ``[N, C, H, W]``."""

    device: MTLDevice
    queue: MTLCommandQueue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = self.device.new_command_queue()

    @classmethod
    def on(cls, torch_device: torch.device) -> Bench:
        return cls(mtl_device(torch_device))

    def command_buffer(self) -> MTLCommandBuffer:
        return self.queue.command_buffer()

    def empty(self, shape: Sequence[int], channel_format: Format = FLOAT32) -> MPSImage:
        """An image object of ``[N, C, H, W]``."""
        images, channels, height, width = shape
        return MPSImage(self.device, MPSImageDescriptor(channel_format, width, height, channels, images))

    def image(self, values: np.ndarray, channel_format: Format = FLOAT32) -> MPSImage:
        """One image object that holds all images of an array."""
        image = self.empty(values.shape, channel_format)
        for index, pixels in enumerate(stored(values, channel_format)):
            image.write_bytes(pixels, image_index=index)
        return image

    def images(self, values: np.ndarray, channel_format: Format = FLOAT32) -> list[MPSImage]:
        """One image object for each image of an array: unrelated memory."""
        return [self.image(values[index : index + 1], channel_format) for index in range(len(values))]

    def batch(self, values: np.ndarray, channel_format: Format = FLOAT32) -> MPSImageBatch:
        """The images of an array as a batch in one block."""
        images, channels, height, width = values.shape
        descriptor = MPSImageDescriptor(channel_format, width, height, channels)
        batch = MPSImageBatch.allocate(self.device, descriptor, images)
        for image, pixels in zip(batch, stored(values, channel_format), strict=True):
            image.write_bytes(pixels)
        return batch

    def filled(self, shape: Sequence[int], value: float, channel_format: Format = FLOAT32) -> MPSImage:
        return self.image(np.full(shape, value), channel_format)


def stored(values: np.ndarray, channel_format: Format) -> np.ndarray:
    """The elements, ``[N, H, W, C]``, that an image of this format stores for some numbers."""
    pixels = np.ascontiguousarray(np.asarray(values).transpose(0, 2, 3, 1))
    if channel_format is UNORM8:
        pixels = np.round(np.clip(pixels, 0.0, 1.0) * 255.0)
    return pixels.astype(NUMPY_DTYPES[channel_format])


def numbers(images: Images | Sequence[MPSImage]) -> np.ndarray:
    """The contents of an image object or of a batch, ``[N, C, H, W]``."""
    if isinstance(images, MPSImage):
        pixels = images.numpy()
        pixels = pixels[None] if images.number_of_images == 1 else pixels
    else:
        pixels = np.stack([image.numpy() for image in images])
    return pixels.transpose(0, 3, 1, 2)


def finish(command_buffer: MTLCommandBuffer) -> None:
    command_buffer.commit()
    command_buffer.wait_until_completed()


def keep_results(kernel: ImageKernel) -> None:
    """Have encodes return ordinary images, which can be read."""
    kernel.destination_image_allocator = MPSImage.default_allocator()


def data_alone(gradient: Any) -> None:
    """Have a gradient kernel compute no gradients of weights, for which a state is good once."""
    if hasattr(gradient, "gradient_option"):
        gradient.gradient_option = MPSCNNConvolutionGradientOption.GRADIENT_WITH_DATA


def is_batch(images: Any) -> bool:
    return not isinstance(images, MPSImage)


def encode(kernel: Any, command_buffer: MTLCommandBuffer, sources: Sequence[Any], *more: Any, **options: Any) -> Any:
    """``encode`` or ``encode_batch``, whichever suits the sources; ``more`` follows them in the signature."""
    call = kernel.encode_batch if is_batch(sources[0]) else kernel.encode
    given = [list(sources)] if isinstance(kernel, MPSCNNMultiaryKernel) else sources
    return call(command_buffer, *given, *more, **options)


def run(bench: Bench, kernel: Any, sources: Sequence[Any], *more: Any) -> np.ndarray:
    """Encode alone, wait, and read the result."""
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result = encode(kernel, command_buffer, sources, *more)
    finish(command_buffer)
    return numbers(result)


def temporary_copy(command_buffer: MTLCommandBuffer, values: Images) -> Images:
    """Temporary images with the contents of ordinary ones."""
    from openmps.kernels.neuron import MPSCNNNeuron, MPSNNNeuronDescriptor

    copy = MPSCNNNeuron(command_buffer.device, MPSNNNeuronDescriptor())
    result = encode(copy, command_buffer, [values])
    first = result if isinstance(result, MPSImage) else result[0]
    assert isinstance(first, MPSTemporaryImage)
    return result


@dataclass
class Outcome:
    """What one pass through a kernel and its gradient kernels gave."""

    kernel: Any
    result: np.ndarray
    states: Any = None
    gradients: list[np.ndarray] = field(default_factory=list)
    gradient_kernels: list[Any] = field(default_factory=list)
    weights: np.ndarray | None = None
    """Gradient of the weights, flat."""
    biases: np.ndarray | None = None
    losses: np.ndarray | None = None


Arrange = Callable[[np.ndarray], Any]


def train(
    bench: Bench,
    sample: Any,
    sources: Sequence[np.ndarray],
    arrange: Arrange,
    *,
    first: int = 0,
    labelled: int | None = None,
    prepare: Callable[[Any], None] = lambda kernel: None,
    destination: Callable[[], Any] | None = None,
    incoming: np.ndarray | None = None,
    temporary: bool = False,
) -> Outcome:
    """One forward encode of a sample and one of each of its gradient kernels, by the path that sizes results itself.

    ``arrange`` makes images of an array; the images have ``labelled`` of the sample's labels, from ``first`` on;
    ``prepare`` sets properties of the forward kernel; ``destination`` makes its destination, if it is to have one.
    """
    kernel = sample.make(bench.device)
    keep_results(kernel)
    prepare(kernel)
    command_buffer = bench.command_buffer()
    images = [arrange(values) for values in sources]
    single = not is_batch(images[0])
    more = sample.more(bench, len(sources[0]) if labelled is None else labelled, first, single)
    if destination is not None:
        given = destination()
        states = _states_for(kernel, images, given) if sample.gradients else None
        name = "destination_states" if is_batch(given) else "destination_state"
        options = {} if states is None else {name: states}
        result = encode(kernel, command_buffer, images, *more, given, **options)
    elif sample.gradients:
        result, states = encode(kernel, command_buffer, images, *more, destination_state_is_temporary=temporary)
    else:
        result, states = encode(kernel, command_buffer, images, *more), None
    if temporary and states is not None:
        for state in [states] if single else states.counted():
            state.read_count = len(sample.gradients)
    parameters = parameter_gradients(states)
    shape = shape_of(result)
    flow = sample.incoming(shape) if incoming is None else incoming
    kernels, flows = [], []
    for backward in sample.gradients:
        gradient = backward.make(bench.device)
        keep_results(gradient)
        secondary = result if backward.reads_result else images[backward.secondary]
        kernels.append(gradient)
        flows.append(encode(gradient, command_buffer, [arrange(flow), secondary], states))
    finish(command_buffer)
    outcome = Outcome(kernel, numbers(result), states, [numbers(found) for found in flows], kernels)
    outcome.weights, outcome.biases = parameters()
    if more and sample.labels is not None:
        labels = [more[0]] if single and not isinstance(more[0], list) else more[0]
        outcome.losses = np.concatenate([numbers(label.loss_image()) for label in labels])
    return outcome


@cache
def trained(sample: Any, device: MTLDevice, images: int = 2) -> Outcome:
    """What `train` makes of a batch of a sample's own images: computed once, for the tests that compare with it.

    They may read its kernel's properties, and must not set any.
    """
    bench = Bench(device)
    outcome = train(bench, sample, sample.sources(images), bench.batch)
    outcome.states, outcome.gradient_kernels = None, []
    for part in (outcome.result, *outcome.gradients, outcome.weights, outcome.biases, outcome.losses):
        if part is not None:
            part.setflags(write=False)
    return outcome


_PARAMETERS = ("gradient_for_weights", "gradient_for_biases"), ("gradient_for_gamma", "gradient_for_beta")
"""What states call the gradients of parameters: those of weights or scales, and of biases or shifts."""


def parameter_gradients(states: Any) -> Callable[[], tuple[np.ndarray, np.ndarray] | tuple[None, None]]:
    """A function that reads the gradients of parameters when the work is done: flat, summed over the states.

    Called while the states can be read: the buffers of temporary ones are taken now, those of others afterwards.
    """
    listed = [] if states is None else list(states.unique()) if isinstance(states, MPSStateBatch) else [states]
    names = [pair for pair in _PARAMETERS if listed and hasattr(type(listed[0]), pair[0])]
    if not names:
        return lambda: (None, None)

    def buffers() -> list[list[Any]]:
        return [[getattr(state, name) for state in listed] for name in names[0]]

    taken = buffers() if listed[0].lives_on is not None else None

    def read() -> tuple[np.ndarray, np.ndarray]:
        weights, biases = (
            np.sum([buffer.tensor(torch.float32).cpu().double().numpy() for buffer in each], axis=0)
            for each in (taken or buffers())
        )
        return weights, biases

    return read


def _states_for(kernel: Any, images: list[Any], destination: Any) -> Any:
    if is_batch(images[0]):
        return kernel.result_state_batch(*images, destination_image=destination)
    return kernel.result_state(*images, destination_image=destination)


def shape_of(images: Any) -> tuple[int, int, int, int]:
    """``(images, channels, height, width)`` of an image object or a batch."""
    first, count = (images[0], len(images)) if is_batch(images) else (images, images.number_of_images)
    return count, first.feature_channels, first.height, first.width
