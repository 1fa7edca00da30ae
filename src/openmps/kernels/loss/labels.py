"""Labels, weights and losses of images (MPSCNNLoss.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from types import NoneType
from typing import Any, NamedTuple, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.checks import Shown, of_kind, store
from openmps.core.arrays import numbers
from openmps.core.image.batch import BatchTemplate, MPSImageBatch, keeping
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Block, Extent, Storage
from openmps.core.image.views import merge
from openmps.core.lifetime import check_device, check_is_device
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.state import BatchableState, MPSState, Saved
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.loss.data_descriptor import MPSCNNLossDataDescriptor, checked_size
from openmps.metal.device import MTLDevice
from openmps.metal.pending import Region
from openmps.ops.elements import gather
from openmps.runtime.binding import Binding, MemoryBinding
from openmps.selectors import takes
from openmps.types import MPSImageFeatureChannelFormat, MTLSize

_ONE = MTLSize(1, 1, 1)
ONE_HOT = (
    "Labels are one-hot, a channel a class: class numbers become such by numpy.eye(classes, dtype='float32')[numbers]"
)


class MPSCNNLossLabels(MPSState):
    """Labels, optional weights and the loss of one image (MPSCNNLoss.h, macOS 10.13.4).

    ``MPSCNNLossLabels(device, labels_descriptor)`` has a loss image of 1x1x1; ``loss_image_size`` may also be the
    size of the predictions, for losses that are not reduced. The numbers are copied. ``labels_image`` and
    ``weights_image`` take images instead (macOS 10.15), which are kept, not copied. Labels of classes are one-hot: 1 in
    the channel of the class, 0 elsewhere. They may have more channels than the predictions, all of zeros: a label there
    fails the command buffer or, in a capture of a GPU, makes the loss NaN. `batch` makes those of a batch at once.

    Raises:
        MPSArgumentError: Weights of another size than the labels, or images that are not single ones.
        MPSTypeError: No labels, or two kinds of them.

    >>> import numpy as np, openmps as mps
    >>> labels = mps.MPSCNNLossLabels.batch(mps.mtl_device("cpu"), np.eye(3, dtype="float32"))
    >>> len(labels), labels[0].labels_image().numpy().ravel()
    (3, array([1., 0., 0.], dtype=float32))
    """

    @overload
    def __init__(
        self,
        device: MTLDevice,
        loss_image_size: MTLSize,
        labels: MPSCNNLossDataDescriptor | MPSImage,
        weights: MPSCNNLossDataDescriptor | MPSImage | None,
        /,
    ) -> None: ...
    @overload
    def __init__(
        self,
        device: MTLDevice,
        labels_descriptor: MPSCNNLossDataDescriptor | None = None,
        *,
        loss_image_size: MTLSize | None = None,
        weights_descriptor: MPSCNNLossDataDescriptor | None = None,
        labels_image: MPSImage | None = None,
        weights_image: MPSImage | None = None,
    ) -> None: ...
    @takes(
        {
            "device": object,
            "loss_image_size": MTLSize,
            "labels_descriptor": MPSCNNLossDataDescriptor,
            "weights_descriptor": (MPSCNNLossDataDescriptor, NoneType),
        },
        {
            "device": object,
            "loss_image_size": MTLSize,
            "labels_image": MPSImage,
            "weights_image": (MPSImage, NoneType),
        },
    )
    def __init__(  # pyright: ignore[reportInconsistentOverload]
        self,
        device: MTLDevice,
        labels_descriptor: MPSCNNLossDataDescriptor | None = None,
        *,
        loss_image_size: MTLSize | None = None,
        weights_descriptor: MPSCNNLossDataDescriptor | None = None,
        labels_image: MPSImage | None = None,
        weights_image: MPSImage | None = None,
    ) -> None:
        super().__init__(check_is_device(type(self).__name__, "device", device))
        labels = self._given(device, "labels", labels_descriptor, labels_image)
        if labels is None:
            raise MPSTypeError(self.name, "labels", "must be a labels_descriptor or a labels_image", None)
        self._labels = labels
        self._weights = self._given(device, "weights", weights_descriptor, weights_image)
        if self._weights is not None and _shape(self._weights) != _shape(labels):
            raise MPSArgumentError(self.name, "weights", f"must have the labels' size, {labels!r}", repr(self._weights))
        self._loss = MPSImage(device, _loss_descriptor(self.name, loss_image_size))

    @classmethod
    def batch(
        cls,
        device: MTLDevice,
        labels: NDArray[Any] | Tensor,
        *,
        weights: NDArray[Any] | Tensor | None = None,
        loss_image_size: MTLSize | None = None,
    ) -> MPSStateBatch[Self]:
        """Labels of a whole batch from one array or tensor, ``[N, C]`` or ``[N, H, W, C]``; ``weights`` likewise.

        Class numbers ``[N]`` or ``[N, H, W]`` become labels by ``numpy.eye(classes, dtype="float32")[numbers]``, those
        in a tensor by ``torch.nn.functional.one_hot(numbers, classes)``. The numbers are copied.

        The objects share three blocks of memory, for labels, weights and losses, and are made when they are asked for:
        the fast way. Those of a subclass are made at once, by its constructor.
        """
        if not isinstance(device, MTLDevice):
            check_is_device(cls.__name__, "device", device)
        # A training step makes labels: what says all of a plain array is looked up at once.
        if cls is MPSCNNLossLabels and weights is loss_image_size is None and type(labels) is np.ndarray:
            template = _plain_labels(device, labels.shape, labels.dtype)
            if template is not None:
                made_at_once: Any = template.holding(labels)
                return made_at_once
        images = _blocks(device, "labels", labels)
        factors = None if weights is None else _blocks(device, "weights", weights)
        count = len(images)
        if loss_image_size is not None:
            checked_size(cls.__name__, "loss_image_size", loss_image_size)
        if factors is not None and len(factors) != count:
            raise MPSArgumentError(cls.__name__, "weights", f"must be of {count} images", len(factors))
        losses = _losses(cls.__name__, device, loss_image_size, count).batch()
        if factors is not None and factors.stack().extent != images.stack().extent:
            rule = f"must have the labels' size, {images[0]!r}"
            raise MPSArgumentError(cls.__name__, "weights", rule, repr(factors[0]))
        if cls is MPSCNNLossLabels:
            blocks = LabelBlocks(device, images, factors, losses, cls._member)
            own: Any = LabelsBatch.of_images(blocks, count)
            return own
        made: list[Self] = []
        for index, image in enumerate(images):
            weight = None if factors is None else factors[index]
            each = cls(device, labels_image=image, weights_image=weight, loss_image_size=loss_image_size)
            each._loss = losses[index]
            made.append(each)
        return MPSStateBatch(made)

    @staticmethod
    def _member(labels: MPSImage, weights: MPSImage | None, loss: MPSImage) -> MPSCNNLossLabels:
        """The object of one image of a batch; what it holds was checked for all of them."""
        state = MPSCNNLossLabels.__new__(MPSCNNLossLabels)
        MPSState.__init__(state, labels.device)
        state._labels, state._weights, state._loss = labels, weights, loss
        return state

    def _given(
        self, device: MTLDevice, what: str, descriptor: MPSCNNLossDataDescriptor | None, image: MPSImage | None
    ) -> MPSImage | None:
        """The image of labels or weights, made of numbers or given."""
        if descriptor is not None and image is not None:
            raise MPSTypeError(self.name, what, f"must be a {what}_descriptor or a {what}_image", "both")
        if descriptor is not None:
            return _image(device, descriptor)
        if image is None:
            return None
        argument = f"{what}_image"
        of_kind(self.name, argument, image, MPSImage)
        check_device(self.name, argument, image.device, device)
        if image.number_of_images != 1:
            raise MPSArgumentError(self.name, argument, "must hold exactly one image", image.number_of_images)
        return image

    def labels_image(self) -> MPSImage:
        """The labels, float32 unless an image was given."""
        return self._labels

    def weights_image(self) -> MPSImage | None:
        """The weights of the labels, or None."""
        return self._weights

    def loss_image(self) -> MPSImage:
        """The loss, float32; there once the command buffer of the loss has completed. Always the same object."""
        return self._loss

    def resource_size(self) -> int:
        """Bytes of the images."""
        images = (self._labels, self._weights, self._loss)
        return sum(image.resource_size() for image in images if image is not None)


def _image(device: MTLDevice, descriptor: MPSCNNLossDataDescriptor) -> MPSImage:
    of_kind("MPSCNNLossLabels", "descriptor", descriptor, MPSCNNLossDataDescriptor)
    values = torch.from_numpy(descriptor.values()).contiguous()
    return MPSImage.from_tensor(device, values, MPSImageFeatureChannelFormat.FLOAT32, copy=True)


@lru_cache(maxsize=256)
def _losses(who: str, device: MTLDevice, size: MTLSize | None, count: int) -> BatchTemplate:
    """What makes the loss images of a batch."""
    return BatchTemplate(device, _loss_descriptor(who, size), count)


def _loss_descriptor(who: str, size: MTLSize | None) -> MPSImageDescriptor:
    chosen = _ONE if size is None else checked_size(who, "loss_image_size", size)
    return MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT32, chosen.width, chosen.height, chosen.depth)


def _blocks(device: MTLDevice, name: str, values: NDArray[Any] | Tensor) -> MPSImageBatch:
    """An array ``[N, C]`` or ``[N, H, W, C]`` as a batch of float32 images."""
    # A training step makes labels: plain arrays are not looked through.
    given: Any = values
    is_plain = type(values) is np.ndarray and values.dtype == np.float32
    array: NDArray[Any] = given if is_plain else numbers("MPSCNNLossLabels", name, given)
    if array.ndim not in (2, 4):
        rule, remedy = "must be shaped [N, C] or [N, H, W, C]", ONE_HOT if name == "labels" else ""
        raise MPSArgumentError("MPSCNNLossLabels", name, rule, array.shape, remedy)
    pixels = array.reshape(array.shape[0], 1, 1, array.shape[1]) if array.ndim == 2 else array
    return MPSImageBatch.from_numpy(device, pixels, MPSImageFeatureChannelFormat.FLOAT32)


def _shape(image: MPSImage) -> tuple[int, int, int]:
    return image.width, image.height, image.feature_channels


_new_tuple, _new_object = tuple.__new__, object.__new__


class LabelBlocks(BatchableState):
    """The labels, weights and losses of a whole batch, a block each; its `MPSCNNLossLabels` are views of them."""

    labels: MPSImageBatch
    weights: MPSImageBatch | None
    losses: MPSImageBatch
    _make_member: Callable[[MPSImage, MPSImage | None, MPSImage], MPSCNNLossLabels]
    _made: dict[int, MPSCNNLossLabels]
    _given: GivenLabels | None = None

    def __init__(
        self,
        device: MTLDevice,
        labels: MPSImageBatch,
        weights: MPSImageBatch | None,
        losses: MPSImageBatch,
        make_member: Callable[[MPSImage, MPSImage | None, MPSImage], MPSCNNLossLabels],
    ) -> None:
        super().__init__(device)
        # Written at once: every training step makes one.
        vars(self).update(labels=labels, weights=weights, losses=losses, _make_member=make_member, _made={})

    @property
    def name(self) -> str:
        """That of the first member, which is what a user knows."""
        return self.member(0).name

    def member(self, index: int) -> MPSCNNLossLabels:
        """The labels object of image ``index``, always the same."""
        member = self._made.get(index)
        if member is not None:
            return member
        weight = None if self.weights is None else self.weights[index]
        member = self._make_member(self.labels[index], weight, self.losses[index])
        # Two threads that ask at once, as completion handlers may, get the same object.
        return self._made.setdefault(index, member)

    @property
    def given(self) -> GivenLabels:
        """What a plan depends on of them, found once for all encodes."""
        given = self._given
        if given is None:
            extents = self.labels.whole().shape.extent, self.losses.whole().shape.extent
            given = _given(*extents, has_weights=self.weights is not None)
            store(self, "_given", given)
        return given

    known = Shown["GivenLabels | None"]("_given", "The same, if it was found yet.")
    members = Shown[dict[int, MPSCNNLossLabels]]("_made", "Those that somebody has asked for.")

    def temporary_members(self) -> list[MPSState]:
        """The members that were tied to a command buffer, each with a read count of its own."""
        return [member for member in self._made.values() if member.lives_on is not None]

    def resource_size(self) -> int:
        """Bytes of the three blocks."""
        return sum(block.resource_size() for block in (self.labels, self.weights, self.losses) if block is not None)


class _LabelTemplate:
    """Makes labels without weights, with one loss an image, of float32 arrays of one shape, which was checked once."""

    __slots__ = ("_common", "_images", "_losses", "_sizes", "_states")

    def __init__(self, device: MTLDevice, images: BatchTemplate, losses: BatchTemplate) -> None:
        self._images, self._losses = images, losses
        extent = images.shape.extent
        self._sizes = extent.images, extent.height, extent.width, extent.channels
        specimen = LabelBlocks(device, images.batch(), None, losses.batch(), MPSCNNLossLabels._member)  # pyright: ignore[reportPrivateUsage]
        given = _given(extent, losses.shape.extent, has_weights=False)
        self._common = {**vars(specimen), "_given": given}
        self._states = vars(LabelsBatch.of_images(specimen, extent.images))

    def holding(self, labels: NDArray[Any]) -> LabelsBatch:
        """New labels with a copy of the numbers: what their constructors write is written at once."""
        images, losses = self._images.holding(labels.reshape(self._sizes).copy()), self._losses.batch()
        blocks, batch = _new_object(LabelBlocks), _new_object(LabelsBatch)
        vars(blocks).update(self._common, saved=Saved(), _slots=[], labels=images, losses=losses, _made={})
        vars(batch).update(self._states, _states=self._states["_states"].copy(), shared=blocks)
        return batch


@lru_cache(maxsize=256)
def _plain_labels(device: MTLDevice, sizes: tuple[int, ...], dtype: np.dtype[Any]) -> _LabelTemplate | None:
    """What makes labels of arrays like this; None where they are not float32, or wrong."""
    if dtype != np.float32 or len(sizes) not in (2, 4):
        return None
    pixels = (sizes[0], 1, 1, sizes[1]) if len(sizes) == 2 else sizes
    images = keeping(device, pixels, dtype, MPSImageFeatureChannelFormat.FLOAT32)
    return (
        None if images is None else _LabelTemplate(device, images, _losses("MPSCNNLossLabels", device, None, sizes[0]))
    )


class LabelsBatch(MPSStateBatch):
    """The labels objects of a batch in blocks: an encode reads and writes the blocks, and makes no objects."""

    def counted(self) -> list[MPSState]:
        """The states whose read counts the batch goes by."""
        blocks = self.shared
        if type(blocks) is not LabelBlocks:
            return super().counted()
        return [blocks, *blocks.temporary_members()] if blocks.members else [blocks]


def blocks_of(states: MPSStateBatch) -> LabelBlocks | None:
    """The blocks of a batch that `MPSCNNLossLabels.batch` made; None for one that was put together by hand."""
    # Told without asking an abstract class, which is slow.
    shared = states.shared if type(states) is LabelsBatch or isinstance(states, LabelsBatch) else None
    return shared if isinstance(shared, LabelBlocks) else None


class LabelShape(NamedTuple):
    """What a plan depends on of one labels object."""

    labels: Extent
    losses: Extent
    has_weights: bool


class GivenLabels(NamedTuple):
    """What the plan of a loss depends on of its labels."""

    objects: int
    """Labels objects."""
    weighted: int
    """Those that have weights."""
    shapes: tuple[tuple[int, LabelShape], ...]
    """The different shapes, each with the index of the first object that has it."""


@lru_cache(maxsize=256)
def _given(labels: Extent, losses: Extent, *, has_weights: bool) -> GivenLabels:
    """What a plan depends on of labels in blocks: the same object for all of a shape."""
    count = labels.images
    return GivenLabels(count, count if has_weights else 0, ((0, LabelShape(labels, losses, has_weights)),))


def too_few_channels(labels: Extent, channels: int) -> str:
    """What to do about labels that do not fit predictions of so many channels, where they may be class numbers."""
    return ONE_HOT if labels.channels == 1 < channels else ""


def given_labels(states: MPSStateBatch) -> GivenLabels:
    """What a plan depends on of these labels."""
    blocks = states.shared
    if type(blocks) is LabelBlocks:  # as `blocks_of` tells; the others below likewise, which each step asks
        given = blocks.known
        return blocks.given if given is None else given
    first: dict[LabelShape, int] = {}
    weighted = 0
    for index, state in enumerate(states):
        if isinstance(state, MPSCNNLossLabels):
            has_weights = state.weights_image() is not None
            labels, losses = state.labels_image().storage.extent, state.loss_image().storage.extent
            first.setdefault(LabelShape(labels, losses, has_weights), index)
            weighted += has_weights
    return GivenLabels(len(states), weighted, tuple((index, shape) for shape, index in first.items()))


def labels_reader(who: str, states: MPSStateBatch | None, name: str) -> Binding:
    """Where the ``labels`` or the ``weights`` of a batch are, ``[N, C, H, W]``."""
    are_labels, blocks = name == "labels", None if states is None else states.shared
    if type(blocks) is LabelBlocks:
        images = blocks.labels if are_labels else blocks.weights
        return _Numbers([]) if images is None else images.whole()
    if states is None or not len(states):
        raise MPSArgumentError(who, "labels", "are needed", None, "Pass one MPSCNNLossLabels an image")
    listed = [state for state in states if isinstance(state, MPSCNNLossLabels)]
    found = [each.labels_image() if are_labels else each.weights_image() for each in listed]
    return _Numbers(merge([image.storage for image in found if image is not None]))


class _ImagesFields(NamedTuple):
    parts: Sequence[Storage]


class _Images(_ImagesFields, MemoryBinding):
    """Single images, neighbours as one."""

    __slots__ = ()

    def memories(self) -> tuple[Block, ...]:
        """The memory of all of them."""
        parts = self.parts
        return (parts[0].block,) if len(parts) == 1 else tuple([part.block for part in parts])

    def seen(self) -> tuple[tuple[Block, ...], Hashable]:
        """See `Binding`."""
        if len(self.parts) != 1:
            return self.memories(), self.view_key()
        part = self.parts[0]
        return (part.block,), ((part.first, part.count, part.channel, part.channels),)

    def view_key(self) -> Hashable:
        """Which parts of it they are."""
        return tuple([(part.first, part.count, part.channel, part.channels) for part in self.parts])

    def rebind(self, memories: Sequence[Block]) -> Self:
        """The same of other memory."""
        return type(self)([part.of_other(block) for part, block in zip(self.parts, memories, strict=True)])

    def regions(self) -> list[Region]:
        """The images."""
        return [part.region() for part in self.parts]


class _Numbers(_Images):
    """The numbers of labels or weights."""

    __slots__ = ()

    def value(self) -> Tensor:
        """All of them, ``[N, C, H, W]``."""
        parts = self.parts
        return parts[0].values() if len(parts) == 1 else gather([part.values() for part in parts])


def loss_writer(states: MPSStateBatch | None) -> Binding:
    """Where the losses of a batch go: the labels' loss images."""
    blocks = None if states is None else states.shared
    if type(blocks) is LabelBlocks:
        return _new_tuple(_LossImages, (blocks.losses.whole().parts,))
    return _LossImages(
        merge([state.loss_image().storage for state in states or () if isinstance(state, MPSCNNLossLabels)])
    )


class _LossImages(_Images):
    """Where losses go."""

    __slots__ = ()

    @property
    def may_defer(self) -> bool:
        """Whether the losses become the memory of a block that has none."""
        return len(self.parts) == 1 and self.parts[0].is_whole

    def take(self, value: Tensor, *, is_shared: bool) -> None:
        """Write the losses; they become the memory of images that have none yet."""
        first = 0
        for storage in self.parts:
            losses = value if len(self.parts) == 1 else value[first : first + storage.count]
            first += storage.count
            if storage.is_whole and not storage.block.is_allocated:
                storage.block.adopt(losses.clone() if is_shared else losses)
            else:
                storage.tensor().copy_(losses)
