"""A configuration of a kernel: how to make it, images that suit it, its gradient kernels, its oracles."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from encoding import Bench
from openmps.core.kernel.encode import ImageKernel
from openmps.core.kernel.gradient import MPSCNNGradientKernel
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.metal.device import MTLDevice
from openmps.types import MPSImageEdgeMode, MPSNNPaddingMethod
from oracles.geometry import Axis, gather, gather_adjoint

Array = np.ndarray
Shape = tuple[int, int, int]
"""Feature channels, height and width of one image."""


class Reading(NamedTuple):
    """How a kernel reads one of its sources."""

    rows: Axis
    columns: Axis
    edge: int

    def region(self, x: Array) -> Array:
        """The pixel under each result pixel, for kernels without a window."""
        return gather(x, self.rows, self.columns, self.edge)[..., 0, 0]

    def back(self, gradient: Array, shape: Sequence[int]) -> Array:
        """The adjoint of `region`."""
        return gather_adjoint(gradient[..., None, None], tuple(shape), self.rows, self.columns, self.edge)


Forward = Callable[[list[Array], list[Reading]], Array]
Gradient = Callable[[Array, list[Array], list[Reading]], Array]
Parameters = Callable[[Array, list[Array], list[Reading]], tuple[Array, Array]]


@dataclass(frozen=True)
class GradientSample:
    """The gradient kernel of one forward source."""

    make: Callable[[MTLDevice], MPSCNNGradientKernel]
    oracle: Gradient
    source: int = 0
    """The forward source that it differentiates."""
    other: int | None = None
    """The forward source that is its secondary image, where that is not the one that it differentiates."""
    reads_result: bool = False
    """Whether its secondary image is the forward result instead of that source."""
    needs_state: bool = False
    parameters: Parameters | None = None
    by_hand: Callable[[Any], dict[str, Any]] = lambda forward: {}
    """The properties of its own that users without a state set from those of the forward kernel."""

    @property
    def secondary(self) -> int:
        """The forward source that is its secondary image, unless that is the forward result."""
        return self.source if self.other is None else self.other


TRAITS = {
    "affine": "The result is affine in each source: the gradient is tested with one difference, exactly.",
    "smooth": "It has a derivative everywhere: the gradient is tested with small differences.",
    "pointwise": "A result number follows from the numbers at its place alone.",
    "across channels": "and, with `pointwise`, from those of the other channels.",
    "in place": "A source may be the destination.",
    "random": "Numbers are drawn: two encodes differ.",
    "one mask": "and one mask serves the batch.",
    "ignores offset": "The whole source is read, whatever the offset and the clip rectangle.",
    "blocks": "Result pixels come in blocks: a clip rectangle cannot begin at any one.",
    "resampled": "Source positions are between pixels.",
    "own channels": "The result may have other channels than the source.",
    "any channel": "Channels may be chosen from any one on, not from a multiple of 4.",
    "all edge modes": "It takes edge modes besides ZERO and CLAMP.",
    "labels": "Encodes take labels.",
    "label images": "and the labels may be images.",
    "many results": "A source image gives several result images.",
    "multiary": "It has any number of sources.",
}
"""What a sample may say of its kernel, and a sweep ask for or leave out (`having` in `tests/catalogue.py`)."""


@dataclass(frozen=True)
class Sample:
    """One configuration of a kernel."""

    name: str
    make: Callable[[MTLDevice], ImageKernel]
    shapes: tuple[Shape, ...]
    forward: Forward
    gradients: tuple[GradientSample, ...] = ()
    domain: str = "normal"
    traits: frozenset[str] = frozenset()
    """Some of `TRAITS`."""
    labels: Callable[[Bench, int, int], list[Any]] | None = field(default=None, repr=False)
    """For losses: the labels of some images, from the first one on."""
    operands: Callable[[Bench, int, int, bool], tuple[Any, ...]] | None = field(default=None, repr=False)
    """What else encodes take before the destination: for some images from the first one on, one object or a batch."""
    half_forward: Forward | None = field(default=None, repr=False)
    """The oracle for float16 images where it is another one: weights are rounded for them."""

    def __post_init__(self) -> None:
        assert self.traits <= {*TRAITS}, f"{self.name}: {self.traits - {*TRAITS}}"

    def rounding(self) -> Sample:
        """The same with the weights that float16 images are multiplied with."""
        gradients = tuple(replace(each, make=_rounding(each.make)) for each in self.gradients)
        return replace(self, make=_rounding(self.make), gradients=gradients)

    def random(self, what: str) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(f"{self.name} {what}".encode()))

    def sources(self, images: int = 2) -> list[Array]:
        """Random images for each source; float64 numbers that float32 holds exactly."""
        random = self.random("sources")
        draw = DOMAINS[self.domain]
        return [exact(draw(random, (images, *shape))) for shape in self.shapes]

    def incoming(self, shape: Sequence[int]) -> Array:
        """A random gradient of the result."""
        return exact(self.random("gradient").normal(size=tuple(shape)))

    def more(self, bench: Bench, count: int, first: int = 0, single: bool = False) -> tuple[Any, ...]:
        """What an encode takes between its sources and its destination."""
        if self.operands is not None:
            return self.operands(bench, first, count, single)
        if self.labels is None:
            return ()
        labels = self.labels(bench, first, count)
        return (labels[0],) if single and count == 1 else (labels,)

    def __str__(self) -> str:
        return self.name


def _rounding(make: Callable[[MTLDevice], Any]) -> Callable[[MTLDevice], Any]:
    def made(device: MTLDevice) -> Any:
        kernel = make(device)
        if hasattr(kernel, "weights_fp16"):
            kernel.weights_fp16 = True
        return kernel

    return made


DOMAINS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    "normal": lambda random, shape: random.normal(size=shape),
    "positive": lambda random, shape: random.uniform(0.5, 2.0, size=shape),
    "unit": lambda random, shape: random.uniform(0.05, 0.95, size=shape),
    "wide": lambda random, shape: random.normal(scale=4.0, size=shape),
}


def exact(values: Array) -> Array:
    """Rounded to float32, as float64."""
    return np.asarray(values, dtype=np.float32).astype(np.float64)


def readings(kernel: Any, width: int, height: int) -> list[Reading]:
    """How a kernel reads its sources with its properties as they stand."""
    prefixes = ("primary_", "secondary_") if hasattr(kernel, "primary_offset") else ("",)
    return [_reading(kernel, prefix, width, height) for prefix in prefixes]


def _reading(kernel: Any, prefix: str, width: int, height: int) -> Reading:
    def get(name: str) -> Any:
        return getattr(kernel, prefix + name)

    x, y = get("offset").x, get("offset").y
    if hasattr(kernel, "kernel_offset_x"):
        # A transposed convolution: the offset into the source taken apart by the stride.
        x = x * kernel.stride_in_pixels_x + kernel.kernel_offset_x
        y = y * kernel.stride_in_pixels_y + kernel.kernel_offset_y
    rows = Axis(height, get("kernel_height"), get("stride_in_pixels_y"), get("dilation_rate_y"), y)
    columns = Axis(width, get("kernel_width"), get("stride_in_pixels_x"), get("dilation_rate_x"), x)
    return Reading(rows, columns, int(get("edge_mode")))


PLACEMENT = ("offset", "primary_offset", "secondary_offset", "kernel_offset_x", "kernel_offset_y")
"""The properties that place a forward kernel's windows; each kernel has some of them."""


def placed_like(kernel: Any, other: Any) -> None:
    """Place a kernel's windows as those of another one of its class are placed."""
    for name in PLACEMENT:
        if hasattr(kernel, name):
            setattr(kernel, name, getattr(other, name))


class CountedSource:
    """A data source that counts its loads, and is read between a load and a purge alone."""

    loads = purges = 0
    name: str | None = "source"

    def check_loaded(self) -> None:
        assert self.loads == self.purges + 1, "read without load, or after purge"

    def load(self) -> bool:
        self.loads += 1
        return True

    def purge(self) -> None:
        self.purges += 1

    def label(self) -> str | None:
        return self.name


def configured(kernel: Any, properties: dict[str, Any]) -> Any:
    for name, value in properties.items():
        setattr(kernel, name, value)
    return kernel


REGIONS = ("clip_rect_source", "primary_source_clip_rect", "secondary_source_clip_rect")
"""The properties that choose what is read of a source in the place of its offset."""


CLAMP = MPSImageEdgeMode.CLAMP
VALID = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)
FULL = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_FULL)
BOTTOM_RIGHT = MPSNNDefaultPadding.tensorflow_same()
