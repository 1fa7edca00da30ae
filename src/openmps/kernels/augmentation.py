"""Random changes of training images; no kernel of the framework's does this."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from openmps.checks import finite, flag
from openmps.core.kernel.configuration import Fixed, KernelProperty, at_least
from openmps.core.kernel.counted import SEED, STEP, CountedKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.numbers import not_negative
from openmps.core.state.state import MPSState
from openmps.enumerated import member
from openmps.errors import MPSArgumentError, MPSTypeError, shown
from openmps.metal.device import MTLDevice
from openmps.ops.image.augmentation import TURNS, CutOut, ImageWords, Mixed, Placed, Recoloured, Word
from openmps.ops.op import Value
from openmps.types import MPSImageEdgeMode

_MOST_PIXELS = 1 << 16
"""That an image is moved by, or a side of what is cut out of it: beyond every image."""
_EDGES = (MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP, MPSImageEdgeMode.MIRROR)
_LEAST_DIVISOR = float(np.finfo(np.float32).tiny)
"""Devices may take what is smaller for 0."""
_pixels = at_least(0, _MOST_PIXELS)


def _edge_mode(who: str, argument: str, value: object) -> MPSImageEdgeMode:
    rule = "must be an MPSImageEdgeMode of ZERO, CLAMP or MIRROR"
    found = member(who, argument, MPSImageEdgeMode, value, rule)
    if found not in _EDGES:
        raise MPSArgumentError(who, argument, rule, found.name)
    return found


def _up_to(most: float, rule: str) -> Callable[[str, str, float], float]:
    """The check of a number from 0 to ``most``."""

    def checked(who: str, argument: str, value: float) -> float:
        found = not_negative(who, argument, value)
        if found > most:
            raise MPSArgumentError(who, argument, rule, shown(value))
        return found

    return checked


def _positive(who: str, argument: str, value: object) -> float:
    found = finite(who, argument, value)
    if found < _LEAST_DIVISOR:
        raise MPSArgumentError(who, argument, f"must be at least {_LEAST_DIVISOR:.2g}", shown(value))
    return found


def _per_channel(
    check: Callable[[str, str, object], float],
) -> Callable[[str, str, Sequence[float]], tuple[float, ...]]:
    """The check of a number for each channel."""

    def checked(who: str, argument: str, value: Sequence[float]) -> tuple[float, ...]:
        if not isinstance(value, list | tuple):
            rule = "must be a list or a tuple of numbers, one for each channel"
            raise MPSTypeError(who, argument, rule, type(value).__name__)
        return tuple(check(who, argument, each) for each in value)

    return checked


class ImageAugmentation(CountedKernel[MPSState]):
    """Each image of a batch changed at random, for training: recoloured, then moved and turned, then cut out. Ours.

    What is not asked for is left out; as it comes the kernel copies images. Of an image with pixels X from 0 to 1::

        recoloured     ((X - 1/2) c + 1/2 + b - mean) / standard_deviation     c about 1, b about 0, one for an image
        moved          mirrored left to right or not, cropped, slid between pixels, turned about its centre: all of it
                       one bilinear sample a pixel, a copy where only whole pixels are asked for
        cut out        zeros in a square

    Cropping is that of an image with `crop` pixels around it, back to its own size. What lies outside is what
    `padding_mode` says, behind the recolouring: ZERO is the mean's colour.

    The random numbers are a pure function of ``seed``, of `step`, the number of the encode, and of the image's place
    in the whole batch (`batch_share`): the same on every device and in every split of a batch over processes. A copy
    goes on with the numbers that the original would draw next. It leaves no state and has no gradient: images of a
    data set need none.

    >>> augmentation = mps.training.ImageAugmentation(device, seed=1)
    >>> augmentation.flips, augmentation.crop = True, 4
    >>> images = augmentation.encode_batch(command_buffer, batch)
    """

    seed = Fixed[int]("The key of the random numbers.")
    flips = KernelProperty[bool](False, flag, "Whether half of the images are mirrored left to right. Default False.")
    crop = KernelProperty[int](0, _pixels, "Whole pixels that images are moved by at most, each way. Default 0.")
    translation = KernelProperty[int](
        0, _pixels, "Pixels that images are slid by at most, each way, by multiples of a 64th of a pixel. Default 0."
    )
    rotation = KernelProperty[float](
        0.0,
        _up_to(180, "must be at most 180 degrees"),
        "Degrees that images are turned by at most, each way: one of 1,025 angles. At most 180. Default 0.",
    )
    padding_mode = KernelProperty[MPSImageEdgeMode](
        MPSImageEdgeMode.ZERO,
        _edge_mode,
        "What lies outside of an image that is moved: ZERO (default), CLAMP, or MIRROR, about the edge pixel's centre.",
    )
    cut_out = KernelProperty[int](
        0,
        _pixels,
        "Rows and columns of the square of zeros; its middle is a pixel of the image, so that a part of it may lie "
        "outside. Default 0: none.",
    )
    brightness = KernelProperty[float](
        0.0, not_negative, "The most that is added to all pixels of an image, or taken away. Default 0."
    )
    contrast = KernelProperty[float](
        0.0,
        _up_to(1, "must be a number from 0 to 1"),
        "The most that the factor of an image's distances from 1/2 departs from 1; 0 to 1. Default 0.",
    )
    mean = KernelProperty[tuple[float, ...]](
        (), _per_channel(finite), "What is subtracted from each channel, a number for each. Default: none, which is 0."
    )
    standard_deviation = KernelProperty[tuple[float, ...]](
        (),
        _per_channel(_positive),
        "What each channel is divided by, a number for each, at least 1.2e-38. Default: none, which is 1.",
    )

    def __init__(self, device: MTLDevice, seed: int = 0) -> None:
        super().__init__(device)
        self._change(seed=SEED(self.name, "seed", seed))

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        image = at.read(images[0])
        channels = at.sources[0].channels
        words = ImageWords(self.seed, self.batch_share, Word.FLIP, Word.SLIDE_DOWN + 1)(image, at.number(STEP))
        if self._recolours():
            rows = (self._row("mean", channels, 0.0), self._row("standard_deviation", channels, 1.0))
            image = Recoloured(self.brightness, self.contrast)(image, words, at.constant(np.array(rows)))
        if self._moves():
            turns = at.constant(_turns(self.rotation)) if self.rotation else None
            place = Placed(self.flips, self.crop, self.translation, self.padding_mode)
            image = place(image, words, turns)
        return CutOut(self.cut_out)(image, words) if self.cut_out else image

    def changes_images(self) -> bool:
        """Whether any of its properties asks for something."""
        return self._recolours() or self._moves() or bool(self.cut_out)

    def _recolours(self) -> bool:
        return bool(self.brightness or self.contrast or self.mean or self.standard_deviation)

    def _moves(self) -> bool:
        return bool(self.flips or self.crop or self.translation or self.rotation)

    def _row(self, name: str, channels: int, otherwise: float) -> tuple[float, ...]:
        """The numbers of a property, one for each channel that is read."""
        found: tuple[float, ...] = getattr(self, name)
        if found and len(found) != channels:
            rule = f"must have a number for each of the {channels} channels"
            raise MPSArgumentError(self.name, name, rule, len(found))
        return found or (otherwise,) * channels


def _turns(degrees: float) -> NDArray[np.float64]:
    """Cosine and sine of each angle that an image may be turned by."""
    half = TURNS // 2
    angles = [math.radians(degrees * (turn - half) / half) for turn in range(TURNS)]
    return np.array([(math.cos(angle), math.sin(angle)) for angle in angles])


class MixUp(CountedKernel[MPSState]):
    """Y[n] = s X[n] + (1 - s) X[n ^ 1]: each image of a batch mixed with its neighbour, for training. Ours.

    ``s`` is drawn for each image from the beta distribution whose parameters both are `alpha`, and rounded to a
    multiple of 2**-16. Images 0 and 1 are mixed, 2 and 3, and so on; the last of an odd number stays as it is. In a
    batch that was shuffled a neighbour is any other image, and the one that stands in the same process's share of the
    batch. Labels are images, too: another kernel of the same seed and step mixes them alike (Zhang and others, "mixup:
    beyond empirical risk minimization", 2018).

    The random numbers are a pure function of ``seed``, of `step` and of the image's place in the whole batch, as those
    of `ImageAugmentation`, and others than its for one seed. It leaves no state and has no gradient.
    """

    seed = Fixed[int]("The key of the random numbers.")
    alpha = Fixed[float]("Both parameters of the beta distribution of the shares.")

    def __init__(self, device: MTLDevice, alpha: float = 1.0, seed: int = 0) -> None:
        super().__init__(device)
        who = self.name
        self._change(alpha=_positive(who, "alpha", alpha), seed=SEED(who, "seed", seed))

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        image = at.read(images[0])
        words = ImageWords(self.seed, self.batch_share, _MIXTURE, Word.SIDE + 1 - _MIXTURE)
        return Mixed(self.alpha)(image, words(image, at.number(STEP)))


_MIXTURE = Word.RADIUS
"""The first word of a mixture."""
