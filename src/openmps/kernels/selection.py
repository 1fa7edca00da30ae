"""Batches of a data set that lies on the device: images by their numbers; no kernel of the framework's does this."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from openmps.checks import Checked
from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Shape
from openmps.core.kernel.arguments import single
from openmps.core.kernel.configuration import Fixed
from openmps.core.kernel.counted import SEED
from openmps.core.kernel.operands import Argument, OperandContext, OperandKernel, OperandPlan
from openmps.core.numbers import integer
from openmps.core.vector import MPSVector
from openmps.errors import MPSArgumentError
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.image.selection import AlternatelyMirrored, Selected
from openmps.types import MPSDataType

_NUMBERS = Argument("numbers", MPSVector, (MPSDataType.UINT32,))
_DESTINATIONS = Argument("destination_images", MPSImageBatch, is_result=True, may_overlap=False)


class _ByNumber(OperandKernel):
    """What both share: a number for each image that is made, and images as they are stored."""

    first = Checked[int](
        0,
        partial(integer, most=2**31 - 1, rule="must be an integer of 0 to 2**31 - 1"),
        "Where in the vector the number of the first image stands, for the next encodes. Default 0.",
    )

    def _check(self, at: OperandContext, source: str) -> None:
        given: Shape = at.shape(source)
        made: Shape = at.shape("destination_images")
        vectors, length = at.sizes("numbers")
        if vectors != 1:
            raise MPSArgumentError(self.name, "numbers", "must be one vector", vectors)
        at.note = made.extent.images, length
        wanted = given.extent._replace(images=made.extent.images)
        if made.extent != wanted or made.channel_format is not given.channel_format:
            rule = f"must be {wanted} of {given.channel_format.name}, as {source} is stored"
            got = f"{made.extent} of {made.channel_format.name}"
            raise MPSArgumentError(self.name, "destination_images", rule, got)

    def _number(self, name: str, given: OperandPlan) -> int:
        images, length = given.note
        if self.first + images > length:
            rule = f"must have a number for each of {images} images from {self.first} on"
            raise MPSArgumentError(self.name, "numbers", rule, f"{length} numbers")
        return self.first


class ImageSelection(_ByNumber):
    """Y[k] = X[numbers[first + k]]: a batch of the images of one object, by their numbers. Ours.

    ``X`` is an image object of many images, a data set on the device; the batch may be of any size, and a number may
    come again. Numbers are UINT32, the order of an epoch, of which each batch takes some from `first` on; they are read
    when the work runs. One that no image has fails the command buffer on the CPU, and makes an image of zeros on a GPU.
    Labels are images, too: one channel a class. Replays read ``X`` in place, so that it has to be the same object at
    each step.

    Raises:
        MPSArgumentError: In an encode, there is not a number for each image of the destination, or its images have
            another size or format than those of the source.

    >>> selection = mps.training.ImageSelection(device)
    >>> numbers = mps.MPSVector.from_numpy(device, np.array([4, 0, 2], np.uint32))
    >>> selection.encode_batch(command_buffer, data, numbers, batch)
    """

    _arguments = (Argument("source_image", MPSImage, stays=True), _NUMBERS, _DESTINATIONS)

    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_image: MPSImage,
        numbers: MPSVector,
        destination_images: Sequence[MPSImage],
    ) -> None:
        """Record that the images of a batch are filled, as one operation."""
        source = single(self.name, "source_image", source_image)
        destinations = as_batch(self.name, "destination_images", destination_images)
        self._encode(command_buffer, source, numbers, destinations)

    def _lower(self, at: OperandContext) -> None:
        self._check(at, "source_image")
        images, numbers = at.elements("source_image"), at.elements("numbers", 0)
        count = at.shape("destination_images").extent.images
        at.store_elements("destination_images", Selected(count)(images, numbers, at.number("first")))


class AlternatingFlip(_ByNumber):
    """Images mirrored left to right in every second epoch: over two epochs each is seen both ways. Ours.

    Image k has the number ``i = numbers[first + k]`` in the data set, UINT32. It is mirrored in the epochs of one
    parity, which a bit that is drawn of ``seed`` and i decides (Keller Jordan, "94 % on CIFAR-10 in 3.29 seconds on a
    single GPU", 2024): the same on every device and in every split of a batch.

    Raises:
        MPSArgumentError: In an encode, there is not a number for each image, or the destination's images have another
            size or format than those of the source.
    """

    seed = Fixed[int]("The key of the random bits.")
    epoch = Checked[int](
        0,
        partial(integer, most=2**31 - 1, rule="must be an integer of 0 to 2**31 - 1"),
        "The number of the epoch that the next encodes belong to. Default 0.",
    )
    _arguments = (Argument("source_images", MPSImageBatch), _NUMBERS, _DESTINATIONS)

    def __init__(self, device: MTLDevice, seed: int = 0) -> None:
        super().__init__(device)
        self._change(seed=SEED(self.name, "seed", seed))

    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        numbers: MPSVector,
        destination_images: Sequence[MPSImage],
    ) -> None:
        """Record that the images of one batch become those of another, as one operation."""
        sources = as_batch(self.name, "source_images", source_images)
        destinations = as_batch(self.name, "destination_images", destination_images)
        self._encode(command_buffer, sources, numbers, destinations)

    def _lower(self, at: OperandContext) -> None:
        self._check(at, "source_images")
        mirrored = AlternatelyMirrored(self.seed)
        images, numbers = at.elements("source_images"), at.elements("numbers", 0)
        place, epoch = at.number("first"), at.number("epoch")
        at.store_elements("destination_images", mirrored(images, numbers, place, epoch))

    def _number(self, name: str, given: OperandPlan) -> int:
        return self.epoch if name == "epoch" else super()._number(name, given)
