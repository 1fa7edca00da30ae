"""Filters of pictures: thresholds, arithmetic, windows, measures, histograms, transforms (MPSImage)."""

from openmps.kernels.image_filters.arithmetic import MPSImageAdd as MPSImageAdd
from openmps.kernels.image_filters.arithmetic import MPSImageArithmetic as MPSImageArithmetic
from openmps.kernels.image_filters.arithmetic import MPSImageDivide as MPSImageDivide
from openmps.kernels.image_filters.arithmetic import MPSImageMultiply as MPSImageMultiply
from openmps.kernels.image_filters.arithmetic import MPSImageSubtract as MPSImageSubtract
from openmps.kernels.image_filters.conversion import MPSImageConversion as MPSImageConversion
from openmps.kernels.image_filters.threshold import MPSImageThresholdBinary as MPSImageThresholdBinary
from openmps.kernels.image_filters.threshold import MPSImageThresholdBinaryInverse as MPSImageThresholdBinaryInverse
from openmps.kernels.image_filters.threshold import MPSImageThresholdToZero as MPSImageThresholdToZero
from openmps.kernels.image_filters.threshold import MPSImageThresholdToZeroInverse as MPSImageThresholdToZeroInverse
from openmps.kernels.image_filters.threshold import MPSImageThresholdTruncate as MPSImageThresholdTruncate
from openmps.kernels.image_filters.transpose import MPSImageTranspose as MPSImageTranspose
