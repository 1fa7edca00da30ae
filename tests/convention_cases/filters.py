"""Conventions of image filters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import openmps as mps
from convention_cases.case import Absent, Case, Subject, graph_of, network, no_node, pixels, row_image
from mac_facts.fact import DEVICE, image
from oracles import conventions as oracle


def filtered(kernel: Any, source: mps.MPSImage, width: int, height: int = 1) -> Subject:
    """A filter over an image, into one of this size."""

    def encode(command_buffer: Any, made: Any) -> Sequence[Any]:
        destination = image(np.zeros((height, width, 1)))
        made.encode(command_buffer, source, destination)
        return [destination]

    return Subject(lambda: [kernel()], encode)


# --- windows, sums, statistics ----------------------------------------------------------------------------------------

_ROW = [1.0, 2.0, 3.0]
_WEIGHTS = [0, 0, 0, 0, 1, 2, 0, 0, 0]
_NUMBERS = [0.0, 1.0, 5.0, 2.0]
_FIELD = np.arange(1.0, 7.0).reshape(2, 3)
_IMPULSE = [0.0, 8.0, 0.0, 0.0]


def _shrunk(source: Any) -> Any:
    return mps.MPSNNLanczosScaleNode(source, mps.MTLSize(2, 1, 1))


# --- pyramids ---------------------------------------------------------------------------------------------------------


def _texture(levels: Sequence[float]) -> mps.MTLTexture:
    """Constant levels, the first of 4 x 4 pixels."""
    descriptor = mps.MTLTextureDescriptor.texture_2d_descriptor(mps.MTLPixelFormat.R32_FLOAT, 4, 4, True)
    texture = DEVICE.new_texture(descriptor)
    for level, value in enumerate(levels):
        side = 4 >> level
        texture.replace_region(None, level, np.full((side, side, 1), value, np.float32))
    return texture


def _pyramid() -> Subject:
    """The differences of a picture from the next smaller one, and the way back."""

    def make() -> Sequence[Any]:
        return [mps.MPSImageLaplacianPyramidSubtract(DEVICE), mps.MPSImageLaplacianPyramidAdd(DEVICE)]

    def encode(command_buffer: Any, *made: Any) -> Sequence[Any]:
        found = [_texture([0.0, 0.0, 0.0]) for _ in made]
        for each, destination in zip(made, found, strict=True):
            each.encode(command_buffer, _texture([1.0, 1.0, 1.0]), destination)
        return [mps.MPSImage(texture=each) for each in found]

    return Subject(make, encode)


def _pyramids(reading: str) -> list[list[float]]:
    expanded = oracle.expanded([[1.0, 1.0], [1.0, 1.0]], 4, reading)
    smaller = 1.0 + oracle.expanded([[1.0]], 2, reading)
    return [list((1.0 - expanded).ravel()), list((1.0 + oracle.expanded(smaller, 4, reading)).ravel())]


# --- the guided filter ------------------------------------------------------------------------------------------------

_SOURCE, _GUIDANCE = [0.0, 0.0, 1.0, 1.0, 0.0], [0.0, 0.5, 1.0, 1.0, 0.25]


def _guided() -> Subject:
    def make() -> Sequence[Any]:
        made = mps.MPSImageGuidedFilter(DEVICE, 3)
        made.epsilon = 0.25
        return [made]

    def encode(command_buffer: Any, made: Any) -> Sequence[Any]:
        results = [row_image([0.0] * len(_SOURCE)) for _ in range(2)]
        made.encode_regression(
            command_buffer,
            row_image(_SOURCE),
            row_image(_GUIDANCE),
            destination_coefficients_texture_a=results[0],
            destination_coefficients_texture_b=results[1],
        )
        return results

    return Subject(make, encode)


# --- edges, thresholds, colours ---------------------------------------------------------------------------------------

_INK = pixels([[[0.5, 0.25, 0.0, 0.5]]])
_GRAY_WEIGHTS = np.array([0.299, 0.587, 0.114])


def _set(kernel: Any, **properties: Any) -> Any:
    for name, value in properties.items():
        setattr(kernel, name, value)
    return kernel


def _alone(
    answers: Mapping[str, Any],
    kernel: Callable[[], Any],
    *sources: mps.MPSImage,
    to: tuple[int, ...] = (),
    besides: Iterable[str] = (),
) -> Case:
    """A filter that no node makes, into an image like its first source unless said: columns, rows, channels."""
    first = sources[0]
    width, height, channels = to or (first.width, first.height, first.feature_channels)

    def encode(command_buffer: Any, made: Any) -> Sequence[Any]:
        destination = image(np.zeros((height, width, channels)))
        made.encode(command_buffer, *sources, destination)
        return [destination]

    subject = Subject(lambda: [kernel()], encode)
    return Case(answers, subject, no_node(type(kernel()).__name__), besides=frozenset(besides))


def _corner(steps: float) -> np.ndarray:
    """Sobel's lengths of a picture whose lower right pixel alone is a number, zeros around."""
    return steps * np.array([[math.hypot(1, 1), 2], [2, 0]])


_DOT = image(pixels([[[0], [0]], [[0], [0.25]]]))


def _ridge(reading: str) -> np.ndarray:
    """Of two columns of one length beside each other, in the middle of three rows."""
    kept = {"earlier": (1, 0), "later": (0, 1), "both": (1, 1), "none": (0, 0)}[reading]
    return np.array(kept, np.float64)


def _canny() -> Any:
    return _set(mps.MPSImageCanny(DEVICE), low_threshold=0.0625, high_threshold=0.125)


def _histograms() -> Subject:
    """Counts, by a table what becomes of pixels, and what becomes of those of bytes."""

    def make() -> Sequence[Any]:
        return [
            mps.MPSImageHistogram(DEVICE, _BINS),
            mps.MPSImageHistogramEqualization(DEVICE, _BINS),
            mps.MPSImageNormalizedHistogram(DEVICE, _BINS),
        ]

    given = DEVICE.new_buffer(data=np.arange(1, 5, dtype=np.uint32))

    def encode(command_buffer: Any, count: Any, equal: Any, spanned: Any) -> Sequence[Any]:
        source, counts, more = row_image(_TONES), DEVICE.new_buffer(16), DEVICE.new_buffer(16)
        count.encode(command_buffer, source, counts, 0)
        equal.encode_transform(command_buffer, source, given, 0)
        found = row_image([0.0] * len(_TONES))
        equal.encode(command_buffer, source, found)
        spanned.encode(command_buffer, source, row_image([0.0, 0.0]), more, 0)
        return [_Counts(counts), found, _Counts(more)]

    return Subject(make, encode)


class _Counts:
    """Whole numbers of a buffer, read when the work is done."""

    def __init__(self, buffer: mps.MTLBuffer) -> None:
        self.buffer = buffer

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.frombuffer(self.buffer.contents(), np.uint32).astype(dtype or np.float64)


_BINS = mps.MPSImageHistogramInfo(4, False, (0.0,) * 4, (1.0,) * 4)
_TONES = [each / 255 for each in (0, 43, 128, 212, 255)]


def _counted(reading: str) -> list[Any]:
    counts = oracle.binned(_TONES, 4, reading)
    places = [oracle.binned([each], 4, reading).index(1) for each in _TONES]
    table = oracle.equalized([1, 2, 3, 4], "inclusive")
    return [counts, [table[each] for each in places], counts]


def _tabled(kernel: Callable[[], Any], *histograms: Sequence[int]) -> Subject:
    """A picture of the middles of four bins by a table of histograms."""

    buffers = [DEVICE.new_buffer(data=np.array(each, np.uint32)) for each in histograms]

    def encode(command_buffer: Any, made: Any) -> Sequence[Any]:
        source, found = row_image([0.125, 0.375, 0.625, 0.875]), row_image([0.0] * 4)
        made.encode_transform(command_buffer, source, *(part for each in buffers for part in (each, 0)))
        made.encode(command_buffer, source, found)
        return [found]

    return Subject(lambda: [kernel()], encode)


def _above() -> Subject:
    def make() -> Sequence[Any]:
        low = mps.MPSImageHistogramInfo(4, False, (0.0,) * 4, (0.25,) * 4)
        return [_set(mps.MPSImageHistogram(DEVICE, low), min_pixel_threshold_value=(0.5,) * 4)]

    def encode(command_buffer: Any, made: Any) -> Sequence[Any]:
        counts = DEVICE.new_buffer(16)
        made.encode(command_buffer, row_image([0.0, 1.0, 1.0]), counts, 0)
        return [_Counts(counts)]

    return Subject(make, encode)


def _fresh_median() -> Subject:
    """Of a corner of bytes of 1 in the nine around it."""

    def encode(command_buffer: Any, made: Any) -> Sequence[Any]:
        form = mps.MPSImageFeatureChannelFormat.UNORM8
        source, found = (mps.MPSImage(DEVICE, mps.MPSImageDescriptor(form, 2, 2, 1)) for _ in range(2))
        source.write_bytes(np.full((1, 2, 2, 1), 255, np.uint8))
        made.encode(command_buffer, source, found)
        return [found]

    return Subject(lambda: [mps.MPSImageMedian(DEVICE, 3)], encode)


def _structures() -> Subject:
    def make() -> Sequence[Any]:
        return [mps.MPSImageDilate(DEVICE, 3, 1, [2.0] * 3), mps.MPSImageErode(DEVICE, 3, 1, [2.0] * 3)]

    def encode(command_buffer: Any, *made: Any) -> Sequence[Any]:
        found = [row_image([0.0] * 3) for _ in made]
        for each, destination in zip(made, found, strict=True):
            each.encode(command_buffer, row_image([0.0] * 3), destination)
        return found

    return Subject(make, encode)


def _clip(x: int, width: int) -> mps.MTLRegion:
    return mps.MTLRegion(mps.MTLOrigin(x, 0, 0), mps.MTLSize(width, 1, 1))


def _no_graph(name: str) -> Absent:
    """Of an encode that writes a part of its image only."""

    def claim() -> bool:
        graph = graph_of(mps.MPSNNBilinearScaleNode(mps.MPSNNImageNode(), mps.MTLSize(2, 1, 1)))
        return name not in graph.conventions_asked([row_image(_ROW).descriptor()])

    return Absent("a graph fills its images", claim)


_CANNY = {"canny_scale", "canny_thinning", "canny_edge"}
_STRUCTURES = frozenset({"structure_centre", "morphology_start"})
_TURNED = image(pixels([[[1], [2], [3]], [[4], [5], [6]]]))
_ALPHA = mps.MPSAlphaType
_LARGEST = float(np.finfo(np.float32).max)
_BY_FILTERS: Mapping[str, Case] = {
    "box_border": _alone(
        {each: [oracle.box_means(_ROW, 3, each)] for each in ("counted", "inside")},
        lambda: mps.MPSImageBox(DEVICE, 3, 1),
        row_image(_ROW),
    ),
    "tent_width": _alone(
        {each: [oracle.tent(_IMPULSE, 3, each)] for each in ("whole", "twice")},
        lambda: mps.MPSImageTent(DEVICE, 3, 1),
        row_image(_IMPULSE),
        besides={"box_border"},
    ),
    "sobel_scale": _alone(
        {"unscaled": [_corner(0.25)], "quarter": [_corner(0.0625)]}, lambda: mps.MPSImageSobel(DEVICE), _DOT
    ),
    "sobel_alpha": _alone(
        {"filtered": [[0, 0, 0, 0]], "one": [[0, 0, 0, 1]]}, lambda: mps.MPSImageSobel(DEVICE), image(_INK)
    ),
    "canny_scale": _alone(
        {"unscaled": [[0] * 3 + [1] + [0] * 4], "quarter": [[0] * 8]},
        _canny,
        row_image([0.0] * 4 + [0.125] * 4),
        besides=_CANNY,
    ),
    "canny_thinning": _alone(
        {each: [np.pad(_ridge(each), (3, 3))] for each in ("earlier", "later", "both", "none")},
        _canny,
        row_image([0.0] * 4 + [0.5] * 4),
        besides=_CANNY,
    ),
    "canny_edge": _alone(
        {"clamp": [[0] * 8], "zero": [[1] + [0] * 6 + [1]]},
        lambda: mps.MPSImageCanny(DEVICE),
        row_image([1.0] * 8),
        besides=_CANNY,
    ),
    "median_edge": Case({"zero": [0, 0, 0, 0], "clamp": [1, 1, 1, 1]}, _fresh_median(), no_node("MPSImageMedian")),
    "structure_centre": Case(
        {"given": [[-2] * 3, [2] * 3], "zero": [[0] * 3, [0] * 3]}, _structures(), no_node("MPSImageDilate"),
        besides=_STRUCTURES,
    ),
    "morphology_start": Case(
        {"infinite": [[-2] * 3, [2] * 3], "unit": [[0] * 3, [1] * 3]}, _structures(), no_node("MPSImageDilate"),
        besides=_STRUCTURES,
    ),
    "scale_base": _alone(
        {"destination": [[1, 2, 0, 0]], "clip": [[1.5, 3.5, 0, 0]]},
        lambda: _set(mps.MPSImageBilinearScale(DEVICE), clip_rect=_clip(0, 2)),
        row_image([1.0, 2.0, 3.0, 4.0]),
    )._replace(graph=_no_graph("scale_base")),
    "histogram_bins": Case(
        {each: _counted(each) for each in ("floor", "rounded")}, _histograms(), no_node("MPSImageHistogram"),
        besides=frozenset({"equalization_table", "histogram_threshold"}),
    ),
    "histogram_threshold": Case(
        {"before": [[0, 0, 0, 2]], "after": [[0, 0, 0, 0]]}, _above(), no_node("MPSImageHistogram")
    ),
    "equalization_table": Case(
        {each: [oracle.equalized([1, 2, 3, 2], each)] for each in ("inclusive", "exclusive")},
        _tabled(lambda: mps.MPSImageHistogramEqualization(DEVICE, _BINS), [1, 2, 3, 2]),
        no_node("MPSImageHistogramEqualization"),
    ),
    "specification_table": Case(
        {each: [oracle.specified([3, 2, 0, 3], [2, 2, 2, 2], each)] for each in ("smallest", "nearest")},
        _tabled(lambda: mps.MPSImageHistogramSpecification(DEVICE, _BINS), [3, 2, 0, 3], [2, 2, 2, 2]),
        no_node("MPSImageHistogramSpecification"),
    ),
    "arithmetic_infinity": _alone(
        {"cut": [[_LARGEST, -_LARGEST, 3]], "pass": [[math.inf, -math.inf, 3]]},
        lambda: mps.MPSImageDivide(DEVICE), row_image([1, -1, 6]), row_image([0, 0, 2]),
    ),
    "threshold_destination": _alone(
        {"colours": [[2, 2, 2, 1]], "red": [[2, 0, 0, 1]]},
        lambda: mps.MPSImageThresholdBinary(DEVICE, 0.125, 2.0), image(_INK),
    ),
    "threshold_colours": _alone(
        {"gray": [[*[float(_INK[0, 0, :3] @ _GRAY_WEIGHTS)] * 3, 1]], "channels": [[0.5, 0.25, 0, 1]]},
        lambda: mps.MPSImageThresholdToZero(DEVICE, 0.125), image(_INK), besides={"threshold_destination"},
    ),
    "distance_seeds": _alone(
        {"not_zero": [[0, 1, 1, 0]], "positive": [[3, 2, 1, 0]]},
        lambda: mps.MPSImageEuclideanDistanceTransform(DEVICE), row_image([-1, 0, 0, 1]),
    ),
    "distance_clip": _alone(
        {"whole": [[0, 1, 1, 0]], "clip": [[0, 1, 2, 0]]},
        lambda: _set(mps.MPSImageEuclideanDistanceTransform(DEVICE), clip_rect=_clip(0, 3)), row_image([1, 0, 0, 1]),
    ),
    "transpose_offset": _alone(
        {"source": [[2, 5, 3, 6, 0, 0]], "destination": [[4, 0, 5, 0, 6, 0]]},
        lambda: _set(mps.MPSImageTranspose(DEVICE), offset=mps.MPSOffset(1, 0, 0)), _TURNED, to=(2, 3, 1),
    ),
    "unpremultiplied_zero": _alone(
        {"zero": [[0, 0, 0, 0]], "nan": [[math.nan] * 3 + [0]]},
        lambda: mps.MPSImageConversion(DEVICE, _ALPHA.PREMULTIPLIED, _ALPHA.NON_PREMULTIPLIED, None, None),
        image(pixels([[[0, 0, 0, 0]]])),
    ),
}  # fmt: skip
CASES: Mapping[str, Case] = {
    **_BY_FILTERS,
    "convolution_flip": Case(
        {"as_written": [[5, 8, 3]], "flipped": [[1, 4, 7]]},
        filtered(lambda: mps.MPSImageConvolution(DEVICE, 3, 3, _WEIGHTS), row_image(_ROW), 3),
        no_node("MPSImageConvolution"),
    ),
    "image_variance": Case(
        {
            "population": [[np.mean(_NUMBERS), np.var(_NUMBERS)]],
            "sample": [[np.mean(_NUMBERS), np.var(_NUMBERS, ddof=1)]],
        },
        filtered(lambda: mps.MPSImageStatisticsMeanAndVariance(DEVICE), row_image(_NUMBERS), 2),
        no_node("MPSImageStatisticsMeanAndVariance"),
    ),
    "integral_pixel": Case(
        {"counted": [[1, 3, 6, 5, 12, 21]], "left_out": [[0, 0, 0, 0, 1, 3]]},
        filtered(lambda: mps.MPSImageIntegral(DEVICE), image(_FIELD[..., None]), 3, 2),
        no_node("MPSImageIntegral"),
    ),
    "pyramid_gain": Case(
        {each: _pyramids(each) for each in ("as_given", "fourfold")},
        _pyramid(),
        no_node("MPSImageLaplacianPyramidSubtract"),
    ),
    "guided_average": Case(
        {each: oracle.guided(_SOURCE, _GUIDANCE, 3, 0.25, each) for each in ("averaged", "own")},
        _guided(),
        no_node("MPSImageGuidedFilter"),
    ),
    "lanczos_window": Case(
        {each: [oracle.shrunk(_IMPULSE, 2, each)] for each in ("widened", "narrow")},
        filtered(lambda: mps.MPSImageLanczosScale(DEVICE), row_image(_IMPULSE), 2),
        network(_shrunk, row_image(_IMPULSE)),
    ),
}
