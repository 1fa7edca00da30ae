"""Filters of pictures: thresholds, arithmetic, windows, measures, histograms, transforms (MPSImage)."""

from openmps.kernels.image_filters.arithmetic import MPSImageAdd as MPSImageAdd
from openmps.kernels.image_filters.arithmetic import MPSImageArithmetic as MPSImageArithmetic
from openmps.kernels.image_filters.arithmetic import MPSImageDivide as MPSImageDivide
from openmps.kernels.image_filters.arithmetic import MPSImageMultiply as MPSImageMultiply
from openmps.kernels.image_filters.arithmetic import MPSImageSubtract as MPSImageSubtract
from openmps.kernels.image_filters.blur import MPSImageBox as MPSImageBox
from openmps.kernels.image_filters.blur import MPSImageGaussianBlur as MPSImageGaussianBlur
from openmps.kernels.image_filters.blur import MPSImageTent as MPSImageTent
from openmps.kernels.image_filters.conversion import MPSImageConversion as MPSImageConversion
from openmps.kernels.image_filters.convolution import MPSImageConvolution as MPSImageConvolution
from openmps.kernels.image_filters.convolution import MPSImageLaplacian as MPSImageLaplacian
from openmps.kernels.image_filters.convolution import MPSImageSobel as MPSImageSobel
from openmps.kernels.image_filters.median import MPSImageMedian as MPSImageMedian
from openmps.kernels.image_filters.morphology import MPSImageAreaMax as MPSImageAreaMax
from openmps.kernels.image_filters.morphology import MPSImageAreaMin as MPSImageAreaMin
from openmps.kernels.image_filters.morphology import MPSImageDilate as MPSImageDilate
from openmps.kernels.image_filters.morphology import MPSImageErode as MPSImageErode
from openmps.kernels.image_filters.threshold import MPSImageThresholdBinary as MPSImageThresholdBinary
from openmps.kernels.image_filters.threshold import MPSImageThresholdBinaryInverse as MPSImageThresholdBinaryInverse
from openmps.kernels.image_filters.threshold import MPSImageThresholdToZero as MPSImageThresholdToZero
from openmps.kernels.image_filters.threshold import MPSImageThresholdToZeroInverse as MPSImageThresholdToZeroInverse
from openmps.kernels.image_filters.threshold import MPSImageThresholdTruncate as MPSImageThresholdTruncate
from openmps.kernels.image_filters.transpose import MPSImageTranspose as MPSImageTranspose
