"""Augmentation of a training's batches on the device: kernels before the graph, in the command buffer of the step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from openmps.checks import of_kind, whole
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.kernel.counted import SEED
from openmps.core.vector import MPSVector, MPSVectorDescriptor
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.augmentation import ImageAugmentation, MixUp
from openmps.kernels.selection import AlternatingFlip
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.training.augmentation import PADDING_MODES, Augmentation
from openmps.types import MPSDataType, MPSImageFeatureChannelFormat

_FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32
_STREAM = 3
"""Of a run's seed: the hold-out, the order of the images and the weights draw from streams 0 to 2."""


class AugmentedBatches:
    """Augments the batches of one process, which has the ``share``-th of equal shares of each; see `Augmentation`.

    Random numbers follow from ``seed``, the number of the step and the place in the whole batch. Images that are made
    are temporary, unless ``keeps_images``.
    """

    def __init__(
        self,
        how: Augmentation,
        device: MTLDevice,
        channel_format: MPSImageFeatureChannelFormat,
        *,
        channels: int,
        seed: int,
        share: int = 0,
        keeps_images: bool = False,
    ) -> None:
        self._device, self._format, self._keeps = device, channel_format, keeps_images
        drawn = np.random.SeedSequence(seed, spawn_key=(_STREAM,)).generate_state(3, np.uint64)
        own, mixing, flipping = (int(each) for each in drawn)
        self._flip = AlternatingFlip(device, flipping) if how.flip == "alternate" else None
        self._order: MPSVector | None = None
        """The images' numbers in the order of the epoch: one vector, so that steps are replayed over its memory."""
        self._changes = _changes(how, device, own, channels)
        self._mixes = [MixUp(device, how.mix_up, mixing) for _ in ("images", "labels")] if how.mix_up else []
        for kernel in self.parts().values():
            kernel.batch_share = share

    def parts(self) -> Mapping[str, ImageAugmentation | MixUp]:
        """The kernels that count their encodes, by the names that they have in checkpoints."""
        changes = {} if self._changes is None else {"augmentation": self._changes}
        return {**changes, **dict(zip(("mix-up of images", "mix-up of labels"), self._mixes, strict=False))}

    def begin_epoch(self, number: int, order: NDArray[np.int64]) -> None:
        """Take the numbers of the images in the order in which the epoch visits them; no step is under way."""
        if self._flip is None:
            return
        self._flip.epoch = number
        if self._order is None:
            self._order = MPSVector(device=self._device, descriptor=MPSVectorDescriptor(len(order), MPSDataType.UINT32))
        self._order.data.contents().view(np.uint32)[: len(order)] = order

    def unmixed(self, one_hot: NDArray[np.float32]) -> MPSImageBatch | None:
        """Labels on the device, where those of the step are mixed of them."""
        return MPSImageBatch.from_numpy(self._device, one_hot[:, None, None, :]) if self._mixes else None

    def encode(self, command_buffer: CommandBuffer, images: MPSImageBatch, place: int) -> MPSImageBatch:
        """Record what is done to the images of a batch, the first of which stands at a place in the epoch's order.

        Returns the images that come of it.
        """
        if self._flip is not None:
            if self._order is None:
                rule = "is needed: images are mirrored by their numbers"
                raise MPSTypeError(type(self).__name__, "order", rule, None, "Call begin_epoch(number, order)")
            self._flip.first = place
            mirrored = self._new_images(command_buffer, images, images[0].feature_channel_format)
            self._flip.encode_batch(command_buffer, images, self._order, mirrored)
            images = mirrored
        for kernel in (self._changes, *self._mixes[:1]):
            if kernel is not None:
                changed = self._new_images(command_buffer, images, self._format)
                kernel.encode_batch(command_buffer, images, changed)
                images = changed
        return images

    def encode_labels(
        self, command_buffer: CommandBuffer, unmixed: MPSImageBatch | None, labels: MPSImageBatch
    ) -> None:
        """Record that ``labels`` are mixed as the images are, if any are."""
        if unmixed is not None:
            self._mixes[1].encode_batch(command_buffer, unmixed, labels)

    def _new_images(
        self, command_buffer: CommandBuffer, like: MPSImageBatch, channel_format: MPSImageFeatureChannelFormat
    ) -> MPSImageBatch:
        first = like[0]
        descriptor = MPSImageDescriptor(channel_format, first.width, first.height, first.feature_channels)
        if self._keeps:
            return MPSImageBatch.allocate(self._device, descriptor, len(like))
        return MPSImageBatch.allocate_temporary(command_buffer, descriptor, len(like))


def _changes(how: Augmentation, device: MTLDevice, seed: int, channels: int) -> ImageAugmentation | None:
    """The kernel of everything that is done to images one by one; None where nothing is."""
    kernel = ImageAugmentation(device, seed)
    kernel.flips = how.flip == "random"
    kernel.crop, kernel.translation, kernel.rotation = how.crop, how.translation, how.rotation
    kernel.padding_mode = PADDING_MODES[how.padding]
    kernel.cut_out, kernel.brightness, kernel.contrast = how.cut_out, how.brightness, how.contrast
    if how.normalization is not None:
        mean, deviation = how.normalization
        kernel.mean, kernel.standard_deviation = (mean,) * channels, (deviation,) * channels
    return kernel if kernel.changes_images() else None


def augmented_images(
    augmentation: Augmentation | str,
    images: NDArray[np.uint8],
    *,
    steps: int = 1,
    seed: int = 0,
    device: MTLDevice | None = None,
) -> NDArray[np.float32]:
    """What the first steps of a training would make of one batch, one epoch a step: float32 ``[steps, N, H, W, C]``.

    For those who want to see it. ``images`` are uint8 ``[N, H, W, C]``, 0 to 255; pixels of the result are from 0 to 1,
    or normalized. ``device`` is the CPU unless given.

    Raises:
        MPSArgumentError: The augmentation's text says nothing, or there are no images of that shape.
        MPSTypeError: It is neither an `Augmentation` nor a text, or images are not uint8.
    """
    who = "augmented_images"
    how = Augmentation.parse(augmentation) if isinstance(augmentation, str) else augmentation
    of_kind(who, "augmentation", how, Augmentation, "Give one, or its text, as flip,crop:4")
    pixels = np.asarray(images)
    if pixels.dtype != np.uint8:
        raise MPSTypeError(who, "images", "must be uint8, 0 to 255", pixels.dtype)
    if pixels.ndim != 4 or not pixels.size:
        rule = "must be [images, height, width, channels], with at least one pixel"
        raise MPSArgumentError(who, "images", rule, f"shape {pixels.shape}")
    whole(who, "steps", steps)
    SEED(who, "seed", seed)
    place = mtl_device("cpu") if device is None else device
    count, _, _, channels = pixels.shape
    made = AugmentedBatches(how, place, _FLOAT32, channels=channels, seed=seed, keeps_images=True)
    source, queue = MPSImageBatch.from_numpy(place, pixels), place.new_command_queue()
    found: list[NDArray[np.float32]] = []
    for step in range(steps):
        made.begin_epoch(step + 1, np.arange(count))
        command_buffer = queue.command_buffer()
        changed = made.encode(command_buffer, source, 0)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        found.append(changed.numpy().astype(np.float32))
    return np.stack(found)
