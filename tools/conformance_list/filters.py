"""Cases that settle open questions on image filters, at a few pixels each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import openmps as mps
from conformance_list.describe import DEVICE, described, listed

Entry = dict[str, Any]
Asked = tuple[str, str, Entry]
BYTES = int(mps.MPSImageFeatureChannelFormat.UNORM8)
APART = {
    "filters_in_place": "the header forbids programs to rely on it", "in_place_reads": "counts of temporary images",
    "source_region_clip": "a question to a filter, without an encode", "arithmetic_depth": "it cannot be seen",
    "median_diameters": "numbers of a class, not of an object", "pyramid_gain": "textures with levels",
    "pyramid_border": "textures with levels", "conversion_colours": "colour spaces of Core Graphics",
    "guided_upsampling": "the list has fits of guided filters, no reconstructions",
}  # fmt: skip
"""Questions that the list does not ask, by the names of conventions: what that would take."""


def _picture(*rows: Any) -> Entry:
    """Rows of numbers, or of lists of one for each channel."""
    array = np.asarray(rows, np.float32)
    return listed(array if array.ndim == 3 else array[..., None])


def _filter(kernel: Any, *sources: Entry, to: tuple[int, ...] = (), **more: Any) -> Entry:
    """Into an image like the first source unless said: columns, rows, channels."""
    height, width, channels = sources[0]["shape"]
    return {
        "kind": "filter", "classes": [type(kernel).__name__], "kernel": described(kernel), "sources": [*sources],
        "destination": [*(to or (width, height, channels))], "read": ["result"], **more,
    }  # fmt: skip


def _set(kernel: Any, **properties: Any) -> Any:
    for name, value in properties.items():
        setattr(kernel, name, value)
    return kernel


def _object(kind: str, shows: list[str], **arguments: Any) -> Entry:
    return {"kind": "object", "classes": [kind], "object": {"class": kind, "arguments": arguments}, "shows": shows}


def _clip(x: int, y: int, width: int, height: int, depth: int = 1) -> mps.MTLRegion:
    return mps.MTLRegion(mps.MTLOrigin(x, y, 0), mps.MTLSize(width, height, depth))


def _box(width: int, height: int, **properties: Any) -> Any:
    return _set(mps.MPSImageBox(DEVICE, width, height), **properties)


_ONES = _picture(*[[1, 1, 1]] * 3)
_ZEROS = _picture(*[[0, 0, 0]] * 3)
_STEP = _picture(*[[0, 0, 0, 0, 1, 1, 1, 1]] * 5)


def _rules() -> Iterator[Asked]:
    """What holds for all filters."""
    yield (
        "clip_beside",
        "a clip rectangle behind the last column",
        _filter(_box(3, 3, clip_rect=_clip(3, 0, 1, 1)), _ONES),
    )
    yield "even_windows", "a box of 2 x 2", _object("MPSImageBox", ["edgeMode"], kernelWidth=2, kernelHeight=2)
    yield "filter_depth", "a clip rectangle of depth 0", _filter(_box(3, 3, clip_rect=_clip(0, 0, 3, 3, 0)), _ONES)
    mirror = _filter(_box(3, 1), _picture([1, 2, 3]))
    mirror["kernel"]["properties"] = {"edgeMode": 2}
    yield "filter_edge_modes", "Mirror", mirror
    yield "filter_channels", "one channel into four", _filter(_box(1, 1), _picture([0.5]), to=(1, 1, 4))
    yield "many_channels", "a box over eight channels", _filter(_box(3, 1), _picture([[*range(8)], [*range(8)]]))


def _windows() -> Iterator[Asked]:
    weights = [0, 0, 0, 0, 1, 2, 0, 0, 0]
    yield (
        "convolution_flip",
        "weights 1 2",
        _filter(mps.MPSImageConvolution(DEVICE, 3, 3, weights), _picture([1, 2, 3])),
    )
    yield "box_border", "a box over ones", _filter(_box(3, 3), _ONES)
    yield "tent_width", "a tent over an impulse", _filter(mps.MPSImageTent(DEVICE, 3, 1), _picture([0, 0, 1, 0, 0]))
    impulse = _picture([*[0] * 9, 1, *[0] * 9])
    for sigma in (1.0, 2.0):
        blur = mps.MPSImageGaussianBlur(DEVICE, sigma)
        yield "gaussian_reach", f"an impulse, sigma {sigma}", _filter(blur, impulse)
    yield "gaussian_sigma", "sigma 0", _object("MPSImageGaussianBlur", ["edgeMode"], sigma=0)
    yield "sobel_scale", "a step", _filter(mps.MPSImageSobel(DEVICE), _STEP)
    opaque = _picture(*[[[0.25, 0.5, 0.75, 1]] * 3] * 3)
    yield "sobel_alpha", "an opaque picture", _filter(mps.MPSImageSobel(DEVICE), opaque)
    yield "structure_centre", "values of 0.5", _filter(mps.MPSImageDilate(DEVICE, 3, 3, [0.5] * 9), _ZEROS)
    yield "morphology_start", "values of 2", _filter(mps.MPSImageDilate(DEVICE, 3, 3, [2.0] * 9), _ZEROS)


def _edges() -> Iterator[Asked]:
    yield "canny_values", "a step", _filter(mps.MPSImageCanny(DEVICE), _STEP)
    for part in (1, 2, 8):
        faint = _picture(*[[0, 0, 0, 0, *[part / 8] * 4]] * 5)
        yield "canny_scale", f"a step of {part} / 8", _filter(mps.MPSImageCanny(DEVICE), faint)
    yield "canny_thinning", "a step in a row", _filter(mps.MPSImageCanny(DEVICE), _picture([0, 0, 0, 0, *[0.5] * 4]))
    weak = [[0] * 5 + [0.15] * 5 if y else [0] * 5 + [1] * 5 for y in range(32)]
    fast = _set(mps.MPSImageCanny(DEVICE), use_fast_mode=True)
    yield "canny_fast_mode", "a weak edge with a strong pixel", _filter(fast, _picture(*weak))
    yield "canny_edge", "a fresh filter", _object("MPSImageCanny", ["edgeMode"])
    yield "median_edge", "a fresh filter", _object("MPSImageMedian", ["edgeMode"], kernelDiameter=3)
    yield "median_formats", "Float32", _filter(mps.MPSImageMedian(DEVICE, 3), _picture([1, 5, 2], [4, 3, 9], [6, 8, 7]))


def _measures() -> Iterator[Asked]:
    half = _set(mps.MPSImageBilinearScale(DEVICE), clip_rect=_clip(0, 0, 4, 1))
    yield "scale_base", "half of the destination", _filter(half, _picture([*range(8)]))
    yield (
        "lanczos_window",
        "four pixels to two",
        _filter(mps.MPSImageLanczosScale(DEVICE), _picture([0, 8, 0, 0]), to=(2, 1, 1)),
    )
    measure = mps.MPSImageStatisticsMeanAndVariance(DEVICE)
    yield "image_variance", "0 and 1", _filter(measure, _picture([0, 1]), to=(2, 1, 1))
    yield "small_destination", "one pixel for two measures", _filter(measure, _picture([0, 1]), to=(1, 1, 1))
    rows = _set(mps.MPSImageReduceRowSum(DEVICE), clip_rect_source=_clip(0, 2, 2, 2))
    yield "row_results", "from row 2", _filter(rows, _picture([1, 1], [2, 2], [3, 3], [4, 4]), to=(1, 4, 1))
    yield "arithmetic_infinity", "1 / 0", _filter(mps.MPSImageDivide(DEVICE), _picture([1, -1, 6]), _picture([0, 0, 2]))
    yield "integral_pixel", "four pixels", _filter(mps.MPSImageIntegral(DEVICE), _picture([1, 2], [3, 4]))
    distance = mps.MPSImageEuclideanDistanceTransform
    yield "distance_of_nothing", "a black picture", _filter(distance(DEVICE), _picture([0, 0, 0]))
    yield "distance_seeds", "-1", _filter(distance(DEVICE), _picture([-1, 0, 0]))
    yield "distance_seeds", "1e-30", _filter(distance(DEVICE), _picture([1e-30, 0, 0]))
    clipped = _set(distance(DEVICE), clip_rect=_clip(0, 0, 2, 1))
    yield "distance_clip", "a pixel beside the clip rectangle", _filter(clipped, _picture([0, 0, 0, 1]))
    turned = _set(mps.MPSImageTranspose(DEVICE), offset=mps.MPSOffset(1, 0, 0))
    yield "transpose_offset", "two rows of three", _filter(turned, _picture([1, 2, 3], [4, 5, 6]), to=(2, 3, 1))


def _colours() -> Iterator[Asked]:
    for least in (0.88, 0.89):
        gray = mps.MPSImageThresholdBinary(DEVICE, least, 1.0)
        yield "threshold_two_channels", f"two ones, {least}", _filter(gray, _picture([[1, 1]]))
    red = _picture([[1, 0, 0, 0.5]])
    yield "threshold_destination", "a red pixel", _filter(mps.MPSImageThresholdBinary(DEVICE, 0.25, 1.0), red)
    yield "threshold_colours", "a red pixel", _filter(mps.MPSImageThresholdToZero(DEVICE, 0.25), red)
    kinds = mps.MPSAlphaType
    plain = mps.MPSImageConversion(DEVICE, kinds.PREMULTIPLIED, kinds.NON_PREMULTIPLIED, None, None)
    yield "unpremultiplied_zero", "an empty pixel", _filter(plain, _picture([[0, 0, 0, 0]]))
    yield "missing_alpha", "one channel as premultiplied", _filter(plain, _picture([0.5]), to=(1, 1, 4))


def _histograms() -> Iterator[Asked]:
    info = mps.MPSImageHistogramInfo(4, False, (0.0,) * 4, (1.0,) * 4)
    some = {**_picture([each / 255 for each in (0, 43, 128, 212, 255)]), "format": BYTES}
    counted = {"counts": [1, 4], "read": ["counts"]}
    yield "histogram_bins", "five bytes", _filter(mps.MPSImageHistogram(DEVICE, info), some, **counted)
    same = {"histogram": [4, False, [0.5] * 4, [0.5] * 4]}
    yield "histogram_bounds", "equal bounds", _object("MPSImageHistogram", ["zeroHistogram"], histogramInfo=same)
    low = mps.MPSImageHistogramInfo(4, False, (0.0,) * 4, (0.25,) * 4)
    above = _set(mps.MPSImageHistogram(DEVICE, low), min_pixel_threshold_value=(0.5,) * 4)
    yield "histogram_threshold", "a threshold above the bounds", _filter(above, _picture([0, 1, 1]), **counted)
    levels = _picture([0.125, 0.375, 0.625, 0.875])
    equal = mps.MPSImageHistogramEqualization(DEVICE, info)
    yield "equalization_table", "four levels", _filter(equal, levels, histograms=[listed([1, 1, 1, 1])])
    like = mps.MPSImageHistogramSpecification(DEVICE, info)
    counts = [listed([3, 2, 0, 3]), listed([2, 2, 2, 2])]
    yield "specification_table", "three levels as four", _filter(like, levels, histograms=counts)


def _guided() -> Iterator[Asked]:
    numbers = [0, 0.5, 1, 1, 0.25]
    source, guidance = _picture([0, 0, 1, 1, 0]), _picture([[each, each * each, 0.5, 1] for each in numbers])
    fit = _set(mps.MPSImageGuidedFilter(DEVICE, 3), epsilon=0.25)
    yield "guided_average", "five pixels", _filter(fit, source, guidance, to=(5, 1, 4))
    yield "guided_border", "five pixels", _filter(fit, source, guidance, to=(5, 1, 4))
    yield "guided_epsilon", "a fresh filter", _object("MPSImageGuidedFilter", ["epsilon"], kernelDiameter=3)
    other = _picture([[each, each * each, 0.5, 1] for each in numbers[:3]])
    yield "guided_sizes", "a smaller guidance", _filter(fit, source, other, to=(5, 1, 4))
    weights = _picture([0, 0, 0, 0, 0])
    yield "guided_weights", "weights of 0", _filter(fit, source, guidance, weights, to=(5, 1, 4))


def filter_questions() -> Iterator[Asked]:
    """The convention, what is asked, and the entry."""
    for part in (_rules, _windows, _edges, _measures, _colours, _histograms, _guided):
        yield from part()
