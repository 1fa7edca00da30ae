"""Which filters have a form by OpenCV, by their operations: those besides loads, reads and stores.

A form gives the numbers of the operations, with which tests compare it: the library is used where it computes in
float32 or better, or exactly in whole numbers, and rounds once. Its Gaussians of bytes, its scaling and gray values of
bytes and its Canny are in fixed point, and are not used. Numbers are those of the formula, if not to the last bit: sums
are made in another order. Magnitudes of Sobel's differences overflow from 2^63 on, and infinite numbers make no NaN of
a weight that is 0.
"""

from __future__ import annotations

from openmps.ops.image.canny import Canny
from openmps.ops.image.colour import ConvertAlpha, Gray, Spread
from openmps.ops.image.distance import Distances
from openmps.ops.image.histogram import Lookup
from openmps.ops.image.integral import Integral
from openmps.ops.image.library_form import Form, Reads
from openmps.ops.image.median import Median
from openmps.ops.image.order import Extreme
from openmps.ops.image.separable import MeanBytes, Separable, SeparableBytes
from openmps.ops.image.statistics import MeanAndVariance, MinAndMax
from openmps.ops.image.threshold import Limited, Threshold, ThresholdBytes
from openmps.ops.image.transpose import Transposed
from openmps.ops.image.windows import Correlate, GradientMagnitude
from openmps.ops.op import Op
from openmps.ops.opencv import edges, measures, pixels, scale, windows
from openmps.ops.pointwise.arithmetic import Combination
from openmps.ops.reduce.reduce import Reduce
from openmps.ops.resample.image_scale import ScaleImage
from openmps.types import MPSImageEdgeMode

_CLAMP = MPSImageEdgeMode.CLAMP
_USUAL, _SLOW = 1 << 18, 1 << 15
"""Numbers that are worth a thread, by what a form does with each: to wake one takes 10 to 50 us. Thresholds, tables,
scales and conversions of colours the library itself makes with several threads."""

FORMS: dict[tuple[type[Op], ...], Form] = {
    (Correlate,): Form(Reads.WINDOWS, windows.correlate, least=_USUAL, is_shared=windows.is_shared),
    (GradientMagnitude,): Form(Reads.WINDOWS, windows.sobel),
    (Separable,): Form(Reads.WINDOWS, windows.separable, least=_SLOW, is_shared=windows.is_shared),
    (Separable, Canny): Form(Reads.SOURCES, edges.canny),
    (SeparableBytes,): Form(Reads.WINDOWS, windows.separable_bytes, least=_SLOW, is_shared=windows.is_shared),
    (MeanBytes,): Form(Reads.WINDOWS, windows.mean_bytes, least=_USUAL, is_shared=windows.is_shared),
    (Median,): Form(Reads.CLAMPED_WINDOWS, windows.median, least=_USUAL),
    (Extreme,): Form(Reads.WINDOWS, windows.extreme, _CLAMP, least=_USUAL, is_shared=windows.is_shared),
    (ThresholdBytes,): Form(Reads.REGIONS, pixels.threshold),
    (Gray, Threshold, Spread): Form(Reads.REGIONS, pixels.gray_threshold, least=_USUAL),
    (Combination,): Form(Reads.REGIONS, pixels.combination, least=_USUAL),
    (Combination, Limited): Form(Reads.REGIONS, pixels.combination, least=_USUAL),
    (ConvertAlpha,): Form(Reads.REGIONS, pixels.convert_alpha),
    (): Form(Reads.REGIONS, pixels.decoded),
    (Lookup,): Form(Reads.REGIONS, pixels.looked_up),
    (Transposed,): Form(Reads.REGIONS, pixels.transposed),
    (MeanAndVariance,): Form(Reads.REGIONS, measures.moments),
    (MinAndMax,): Form(Reads.REGIONS, measures.extremes),
    (Reduce,): Form(Reads.REGIONS, measures.mean),
    (Integral,): Form(Reads.REGIONS, measures.integral),
    (Distances,): Form(Reads.SOURCES, measures.distances),
    (ScaleImage,): Form(Reads.SOURCES, scale.scaled),
}
