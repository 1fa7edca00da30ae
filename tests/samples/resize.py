"""Resizing, of images and of regions."""

from __future__ import annotations

from openmps.kernels import resize as kernels
from openmps.types import MPSOrigin, MPSRegion, MPSSize
from oracles import resample
from samples.sample import Array, Reading, Sample, Shape
from samples.upsampling import resampling


def _resize(name: str, shape: Shape, width: int, height: int, align: bool = False) -> Sample:
    return resampling(
        f"resize {name}",
        shape,
        lambda device: kernels.MPSNNResizeBilinear(device, width, height, align),
        None,
        lambda size, how: resample.linear(size, how.rows, how.columns, (height, width), align, how.edge),
    )


RESIZES = [
    _resize("larger", (4, 3, 5), 8, 7),
    _resize("smaller", (3, 7, 9), 4, 2),
    _resize("larger, corners", (5, 3, 4), 9, 5, align=True),
    _resize("smaller, corners", (1, 8, 6), 3, 5, align=True),
    _resize("to one pixel, corners", (4, 3, 4), 1, 1, align=True),
    _resize("from one pixel", (1, 1, 1), 3, 2),
    _resize("by whole factors", (3, 2, 6), 3, 6),
]


def _crop(name: str, shape: Shape, width: int, height: int, regions: list[tuple[float, ...]]) -> Sample:
    listed = [MPSRegion(MPSOrigin(x, y, 0.0), MPSSize(w, h, 1.0)) for x, y, w, h in regions]

    def forward(sources: list[Array], how: list[Reading]) -> Array:
        return resample.crop_and_resize(sources[0], regions, (height, width), how[0].rows, how[0].columns)

    return Sample(
        f"crop and resize {name}",
        lambda device: kernels.MPSNNCropAndResizeBilinear(device, width, height, len(listed), listed),
        (shape,),
        forward,
        traits=frozenset({"affine", "resampled", "many results"}),
    )


CROPS = [
    _crop("one region", (4, 5, 6), 4, 3, [(0.1, 0.2, 0.7, 0.5)]),
    _crop("turned, outside", (3, 4, 5), 3, 4, [(0.0, 0.0, 1.0, 1.0), (0.9, 0.1, -0.8, 0.6), (-0.3, 0.5, 0.9, 0.8)]),
    _crop("to one pixel", (5, 4, 3), 1, 1, [(0.25, 0.5, 0.5, 0.2), (0.0, 0.0, 0.0, 0.0)]),
    _crop("of one pixel", (1, 1, 1), 2, 2, [(0.0, 0.0, 1.0, 1.0), (0.25, 0.5, 0.5, 0.25)]),
]
