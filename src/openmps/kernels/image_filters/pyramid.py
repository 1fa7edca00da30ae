"""Pyramids of pictures in the mip levels of textures (MPSImageConvolution.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from openmps.checks import finite, store
from openmps.core.image.image import MPSImage
from openmps.core.kernel.configuration import Fixed, KernelProperty, Setting
from openmps.core.kernel.encode import ImageKernel
from openmps.core.kernel.image_filter import FallbackAllocator, MPSBinaryImageKernel, WindowedFilter
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.unary import OneSource
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.image_filters.window_values import as_window, window_values
from openmps.metal.device import CommandBuffer, MTLDevice, MTLTexture
from openmps.ops.image.pyramid import Decimate, Detail, Expand
from openmps.ops.op import Value
from openmps.selectors import takes

_CENTER = 0.375


def _not_zero(who: str, argument: str, value: float) -> float:
    found = finite(who, argument, value)
    if found == 0.0:
        raise MPSArgumentError(who, argument, "must not be 0: the way back divides by it", found)
    return found


class _Weighted(ImageKernel):
    """What a step between two levels has of its pyramid."""

    _weights = Setting[tuple[float, ...]]()
    _extent = Setting[tuple[int, int]]()

    @classmethod
    def of(cls, pyramid: MPSImagePyramid, **values: Any) -> Self:
        """A step that errors call by the name of its pyramid."""
        made: Any = cls(pyramid.device)  # pyright: ignore[reportCallIssue]
        made._weights, made._extent = pyramid.weights, (pyramid.kernel_width, pyramid.kernel_height)
        for name, value in values.items():
            setattr(made, name, value)
        store(made, "_name", pyramid.name)
        return made


class _Decimation(OneSource, _Weighted):
    """The next level of a Gaussian pyramid."""

    def step(self, command_buffer: CommandBuffer, source: MPSImage, result: MPSImage) -> None:
        """Record it."""
        self._set_window(*self._extent, 2, 2)
        self._run(command_buffer, (source,), result)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        return Decimate(at.window, at.edge_mode)(images[0], at.constant(as_window(self._weights, *self._extent)))


class _Difference(MPSBinaryImageKernel, _Weighted):
    """A level of a Laplacian pyramid from one and the next smaller one, or the way back."""

    _bias, _scale, _is_inverse = Setting[float](), Setting[float](), Setting[bool]()

    def step(self, command_buffer: CommandBuffer, level: MPSImage, smaller: MPSImage, result: MPSImage) -> None:
        """Record it."""
        self._run(command_buffer, (level, smaller), result)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        extent = at.sources[0].extent
        weights = at.constant(as_window(self._weights, *self._extent))
        expanded = Expand(extent.height, extent.width, at.sources[1].edge_mode)(images[1], weights)
        return Detail(self._bias, self._scale, self._is_inverse)(images[0], expanded)


def _levels(who: str, argument: str, texture: object) -> list[MPSImage]:
    """An image in the memory of each level of a texture."""
    if isinstance(texture, MPSImage):
        texture = texture.texture
    if not isinstance(texture, MTLTexture):
        raise MPSTypeError(who, argument, "must be an MTLTexture", type(texture).__name__)
    views = (
        texture.new_texture_view(texture.pixel_format, None, range(level, level + 1))
        for level in range(texture.mipmap_level_count)
    )
    return [MPSImage(texture=view) for view in views]


class MPSImagePyramid(WindowedFilter):
    """The base of pyramids, whose levels are those of textures (MPSImageConvolution.h, macOS 10.13).

    Level l + 1 has half of the columns and rows of level l, rounded down. Weights are those of a window; unless given
    they are products of ``w = [1/4 - a/2, 1/4, a, 1/4, 1/4 - a/2]`` down and across, with ``center_weight`` a, 3/8
    unless given. The offset and the clip rectangle are not used.

    Raises:
        MPSArgumentError: A size is even, or there are not as many weights as the window has.
        MPSTypeError: Weights are given without a size, or beside a centre weight.
    """

    weights = Fixed[tuple[float, ...]]("The weights of the window, row by row. Our addition.")
    center_weight = Fixed[None]("None: `weights` has those that a centre weight makes. Our addition.", None)

    @takes({"device": MTLDevice, "kernel_width": int, "kernel_height": int, "weights": object})
    def __init__(
        self,
        device: MTLDevice,
        center_weight: float | None = None,
        kernel_width: int | None = None,
        kernel_height: int | None = None,
        weights: Sequence[float] | NDArray[Any] | None = None,
    ) -> None:
        super().__init__(device)
        if kernel_width is None and kernel_height is None and weights is None:
            a = _CENTER if center_weight is None else finite(self.name, "center_weight", center_weight)
            row = np.array([0.25 - a / 2, 0.25, a, 0.25, 0.25 - a / 2])
            kernel_width = kernel_height = len(row)
            weights = np.outer(row, row)
        elif center_weight is not None or kernel_width is None or kernel_height is None or weights is None:
            rule = "must be given with kernel_width and kernel_height, and without center_weight"
            raise MPSTypeError(self.name, "weights", rule, None)
        self._set_odd_window(kernel_width, kernel_height)
        values = window_values(self.name, "weights", weights, kernel_width, kernel_height)
        self._change(weights=values)


class MPSImageGaussianPyramid(MPSImagePyramid):
    """Smaller and smaller pictures in the levels of one texture (MPSImageConvolution.h, macOS 10.13).

    ``level[l + 1](x, y) = the weighted sum of the window around level[l](2 x, 2 y)``, each from the level before as it
    is stored; level 0 stays. A texture of one level stays as it is.

    Raises:
        MPSTypeError: In an encode, another form than that in place is used, or the texture is none.
    """

    def encode(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_texture: None = None,
        destination_texture: None = None,
        *,
        in_place_texture: MTLTexture | None = None,
        fallback_copy_allocator: FallbackAllocator | None = None,
    ) -> MTLTexture:
        """Record all levels of ``in_place_texture`` but the first, and return it; the allocator is not called."""
        if source_texture is not None or destination_texture is not None:
            rule, remedy = "must be the only texture: a Gaussian pyramid works in place", "Copy level 0 first"
            raise MPSTypeError(self.name, "in_place_texture", rule, None, remedy)
        levels = _levels(self.name, "in_place_texture", in_place_texture)
        assert in_place_texture is not None
        for level, smaller in pairwise(levels):
            _Decimation.of(self, edge_mode=self.edge_mode).step(command_buffer, level, smaller)
        return in_place_texture


class MPSImageLaplacianPyramid(MPSImagePyramid):
    """The base of Laplacian pyramids (MPSImageConvolution.h, macOS 10.14).

    A level is expanded to the size of the one before: its pixels stand at even places among zeros, and the weighted sum
    of the window around each place is taken, as it is: with weights of sum 1 that is a fourth of the brightness. By the
    convention ``pyramid_gain`` it is four times that.
    """

    _is_inverse: ClassVar[bool | None] = None

    laplacian_bias = KernelProperty(0.0, finite, "Added to every difference. Default 0.")
    laplacian_scale = KernelProperty(1.0, _not_zero, "Factor of every difference; not 0. Default 1.")

    def encode(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_texture: MTLTexture | None = None,
        destination_texture: MTLTexture | None = None,
        *,
        in_place_texture: MTLTexture | None = None,
        fallback_copy_allocator: FallbackAllocator | None = None,
    ) -> MTLTexture | None:
        """Record all levels of the destination but the last one of the source.

        In place the allocator is asked for another texture, which is returned; None without one, when nothing is done.
        """
        if self._is_inverse is None:
            raise MPSTypeError(self.name, "encode", "is not offered by this base class", None, "Use a subclass")
        if in_place_texture is not None:
            if fallback_copy_allocator is None:
                return None
            made: Any = fallback_copy_allocator(self, command_buffer, in_place_texture)  # pyright: ignore[reportArgumentType]
            self.encode(command_buffer, in_place_texture, made)
            return made
        levels = _levels(self.name, "source_texture", source_texture)
        results = _levels(self.name, "destination_texture", destination_texture)
        self._check_levels(levels, results)
        step = _Difference.of(
            self,
            secondary_edge_mode=self.edge_mode,
            _bias=self.laplacian_bias,
            _scale=self.laplacian_scale,
            _is_inverse=self._is_inverse,
        )
        if self.conventions["pyramid_gain"] == "fourfold":
            step._weights = tuple(4.0 * each for each in self.weights)  # pyright: ignore[reportPrivateUsage]
        smaller = levels[-1]
        for level in range(len(levels) - 2, -1, -1):
            step.step(command_buffer, levels[level], smaller, results[level])
            smaller = results[level] if self._is_inverse else levels[level]
        return None

    def _check_levels(self, levels: list[MPSImage], results: list[MPSImage]) -> None:
        """Raise unless the destination has room for all levels but the last one."""
        sizes = [[(each.width, each.height, each.feature_channels) for each in images] for images in (levels, results)]
        if sizes[0][:-1] != sizes[1][: len(levels) - 1]:
            rule = f"must have {len(levels) - 1} level(s) at least, of the sizes and channels of the source's"
            raise MPSArgumentError(self.name, "destination_texture", rule, sizes[1])


class MPSImageLaplacianPyramidSubtract(MPSImageLaplacianPyramid):
    """What each level has that the next one has not (MPSImageConvolution.h, macOS 10.14).

    ``Y[l] = laplacian_bias + laplacian_scale (X[l] - expanded X[l + 1])`` for all levels but the last one, which the
    destination keeps.
    """

    _is_inverse = False


class MPSImageLaplacianPyramidAdd(MPSImageLaplacianPyramid):
    """The picture of a Laplacian pyramid (MPSImageConvolution.h, macOS 10.14).

    ``Y[l] = (X[l] - laplacian_bias) / laplacian_scale + expanded Y[l + 1]``, from the last level of the source on, each
    from the level as it is stored.
    """

    _is_inverse = True
