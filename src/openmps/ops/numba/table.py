"""Which filters have a form by compiled loops, by their operations: those besides loads, reads and stores.

A loop makes in one pass what takes OpenCV's functions several, with the numbers of the operations, in float32 and
rounded once; tests compare them. Small pictures are left to other forms: to load Numba takes longer than they do.
"""

from __future__ import annotations

from openmps.ops.elements import Components
from openmps.ops.image.colour import ConvertAlpha, Gray, Spread
from openmps.ops.image.histogram import Lookup
from openmps.ops.image.library_form import Form, Reads
from openmps.ops.image.order import Extreme
from openmps.ops.image.separable import MeanBytes, Separable, SeparableBytes
from openmps.ops.image.statistics import MinAndMax
from openmps.ops.image.threshold import Limited, Threshold
from openmps.ops.image.windows import Correlate, GradientMagnitude
from openmps.ops.numba import LARGE, colours, measures, order, pixels, scale, windows
from openmps.ops.op import Op
from openmps.ops.pointwise.arithmetic import Combination
from openmps.ops.resample.image_scale import ScaleImage
from openmps.types import MPSImageEdgeMode

FORMS: dict[tuple[type[Op], ...], Form] = {
    (Correlate,): Form(Reads.WINDOWS, windows.correlate, smallest=LARGE),
    (GradientMagnitude,): Form(Reads.WINDOWS, windows.sobel, smallest=LARGE),
    (Gray, GradientMagnitude): Form(Reads.WINDOWS, windows.sobel, smallest=LARGE),
    (Separable,): Form(Reads.WINDOWS, windows.separable, smallest=LARGE),
    (SeparableBytes,): Form(Reads.WINDOWS, windows.separable_bytes, smallest=LARGE),
    (MeanBytes,): Form(Reads.WINDOWS, windows.mean_bytes, smallest=LARGE),
    (Gray, Threshold, Spread): Form(Reads.REGIONS, pixels.gray_threshold, smallest=LARGE),
    (Combination,): Form(Reads.REGIONS, pixels.combination, smallest=LARGE),
    (Combination, Limited): Form(Reads.REGIONS, pixels.combination, smallest=LARGE),
    (ConvertAlpha,): Form(Reads.REGIONS, pixels.convert_alpha, smallest=LARGE),
    (ConvertAlpha, Components): Form(Reads.REGIONS, colours.converted_alpha, smallest=LARGE),
    (): Form(Reads.REGIONS, colours.converted, smallest=LARGE),
    (Components,): Form(Reads.REGIONS, colours.converted, smallest=LARGE),
    (Lookup,): Form(Reads.REGIONS, pixels.looked_up, smallest=LARGE),
    (MinAndMax,): Form(Reads.REGIONS, measures.extremes, smallest=LARGE),
    (Extreme,): Form(Reads.WINDOWS, order.extreme, MPSImageEdgeMode.CLAMP, smallest=LARGE),
    (ScaleImage,): Form(Reads.SOURCES, scale.scaled, smallest=LARGE),
    (ScaleImage, Components): Form(Reads.SOURCES, scale.resampled, smallest=LARGE),
}
