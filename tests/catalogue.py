"""Every kernel class, with sample configurations, images that suit them, their gradient kernels and their oracles.

A property that all kernels share is tested once, over these samples (tests/sweeps). A kernel class that is missing here
fails tests/kernels/test_catalogue.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openmps.core.kernel.base import MPSKernel
from openmps.kernels import arithmetic as arithmetic_kernels
from openmps.kernels import augmentation as augmentation_kernels
from openmps.kernels import batch_normalization as batch_normalization_kernels
from openmps.kernels import convolution as convolution_kernels
from openmps.kernels import dropout as dropout_kernels
from openmps.kernels import gram_matrix as gram_matrix_kernels
from openmps.kernels import grid_sample as grid_sample_kernels
from openmps.kernels import group_normalization as group_normalization_kernels
from openmps.kernels import image_copy as image_copy_kernels
from openmps.kernels import image_scale as image_scale_kernels
from openmps.kernels import loss as loss_kernels
from openmps.kernels import matrix as matrix_kernels
from openmps.kernels import neuron as neuron_kernels
from openmps.kernels import normalization as normalization_kernels
from openmps.kernels import optimizers as optimizer_kernels
from openmps.kernels import pad as pad_kernels
from openmps.kernels import pooling as pooling_kernels
from openmps.kernels import random as random_kernels
from openmps.kernels import reduce as reduce_kernels
from openmps.kernels import reshape as reshape_kernels
from openmps.kernels import resize as resize_kernels
from openmps.kernels import selection as selection_kernels
from openmps.kernels import slice as slice_kernels
from openmps.kernels import softmax as softmax_kernels
from openmps.kernels import upsampling as upsampling_kernels
from openmps.kernels.convolution import binary as binary_kernels
from openmps.kernels.image_filters import arithmetic as image_arithmetic
from openmps.kernels.image_filters import pyramid as image_pyramid
from openmps.kernels.image_filters import reduction as image_reduction
from openmps.kernels.recurrent.image_inference import MPSRNNImageInferenceLayer
from openmps.kernels.recurrent.matrix_inference import MPSRNNMatrixInferenceLayer
from openmps.kernels.recurrent.matrix_training import MPSRNNMatrixTrainingLayer
from openmps.metal.device import MTLDevice
from recurrent_layers import inferring, inferring_images, training
from samples.arithmetic import ADDITIONS, COMPARISONS, DIVISIONS, MULTIPLICATIONS, SUBTRACTIONS
from samples.augmentation import AUGMENTATIONS, MIX_UPS
from samples.batch_normalization import BATCH_NORMALIZATIONS
from samples.binary_convolution import BINARY_CONVOLUTIONS, BINARY_FULLY_CONNECTED
from samples.convolution import CONVOLUTIONS, FULLY_CONNECTED, TRANSPOSES
from samples.dropout import DROPOUTS
from samples.gram_matrix import GRAM_MATRICES
from samples.grid_sample import GRIDS
from samples.group_normalization import GROUP_NORMALIZATIONS, INSTANCE_NORMALIZATIONS
from samples.image_filters import FILTERS, GUIDED, HISTOGRAMS, PYRAMIDS
from samples.loss import DETECTORS, FORWARD_LOSSES, INITIAL_GRADIENTS, LOSS_GRADIENTS, LOSSES
from samples.matrix import FIRST_OF_KIND, summing
from samples.neuron import NEURON_CLASSES, NEURONS
from samples.normalization import CONTRAST_NORMALIZATIONS, CROSS_CHANNEL_NORMALIZATIONS, SPATIAL_NORMALIZATIONS
from samples.pad import PADS
from samples.pooling import AVERAGE_POOLINGS, DILATED_MAX_POOLINGS, L2_NORM_POOLINGS, MAX_POOLINGS
from samples.reduce import CORRELATIONS, UNARY, WEIGHTED_MEANS, WEIGHTED_SUMS
from samples.reshape import RESHAPES
from samples.resize import CROPS, RESIZES
from samples.sample import TRAITS, GradientSample, Sample
from samples.slice import SLICES
from samples.softmax import LOG_SOFTMAXES, SOFTMAXES
from samples.upsampling import BILINEAR, NEAREST

SAMPLES: dict[type[MPSKernel], list[Sample]] = {
    convolution_kernels.MPSCNNConvolution: CONVOLUTIONS,
    convolution_kernels.MPSCNNFullyConnected: FULLY_CONNECTED,
    convolution_kernels.MPSCNNConvolutionTranspose: TRANSPOSES,
    binary_kernels.MPSCNNBinaryConvolution: BINARY_CONVOLUTIONS,
    binary_kernels.MPSCNNBinaryFullyConnected: BINARY_FULLY_CONNECTED,
    pooling_kernels.MPSCNNPoolingMax: MAX_POOLINGS,
    pooling_kernels.MPSCNNPoolingAverage: AVERAGE_POOLINGS,
    pooling_kernels.MPSCNNPoolingL2Norm: L2_NORM_POOLINGS,
    pooling_kernels.MPSCNNDilatedPoolingMax: DILATED_MAX_POOLINGS,
    normalization_kernels.MPSCNNSpatialNormalization: SPATIAL_NORMALIZATIONS,
    normalization_kernels.MPSCNNLocalContrastNormalization: CONTRAST_NORMALIZATIONS,
    normalization_kernels.MPSCNNCrossChannelNormalization: CROSS_CHANNEL_NORMALIZATIONS,
    neuron_kernels.MPSCNNNeuron: NEURONS,
    **{
        getattr(neuron_kernels, sample.name.split()[-1]): [sample]
        for sample in NEURON_CLASSES
    },
    softmax_kernels.MPSCNNSoftMax: SOFTMAXES,
    softmax_kernels.MPSCNNLogSoftMax: LOG_SOFTMAXES,
    dropout_kernels.MPSCNNDropout: DROPOUTS,
    batch_normalization_kernels.MPSCNNBatchNormalization: BATCH_NORMALIZATIONS,
    group_normalization_kernels.MPSCNNInstanceNormalization: INSTANCE_NORMALIZATIONS,
    group_normalization_kernels.MPSCNNGroupNormalization: GROUP_NORMALIZATIONS,
    gram_matrix_kernels.MPSNNGramMatrixCalculation: GRAM_MATRICES,
    arithmetic_kernels.MPSCNNAdd: ADDITIONS,
    arithmetic_kernels.MPSCNNSubtract: SUBTRACTIONS,
    arithmetic_kernels.MPSCNNMultiply: MULTIPLICATIONS,
    arithmetic_kernels.MPSCNNDivide: DIVISIONS,
    arithmetic_kernels.MPSNNCompare: COMPARISONS,
    loss_kernels.MPSCNNLoss: LOSSES,
    loss_kernels.MPSCNNYOLOLoss: DETECTORS,
    loss_kernels.MPSNNForwardLoss: FORWARD_LOSSES,
    loss_kernels.MPSNNLossGradient: LOSS_GRADIENTS,
    loss_kernels.MPSNNInitialGradient: INITIAL_GRADIENTS,
    **UNARY,
    reduce_kernels.MPSNNReduceFeatureChannelsAndWeightsMean: WEIGHTED_MEANS,
    reduce_kernels.MPSNNReduceFeatureChannelsAndWeightsSum: WEIGHTED_SUMS,
    reduce_kernels.MPSNNLocalCorrelation: CORRELATIONS,
    reshape_kernels.MPSNNReshape: RESHAPES,
    pad_kernels.MPSNNPad: PADS,
    slice_kernels.MPSNNSlice: SLICES,
    upsampling_kernels.MPSCNNUpsamplingNearest: NEAREST,
    upsampling_kernels.MPSCNNUpsamplingBilinear: BILINEAR,
    resize_kernels.MPSNNResizeBilinear: RESIZES,
    resize_kernels.MPSNNCropAndResizeBilinear: CROPS,
    grid_sample_kernels.MPSNNGridSample: GRIDS,
}  # fmt: skip
"""Every kernel that makes images from images, forward."""

OURS: dict[type[MPSKernel], list[Sample]] = {
    augmentation_kernels.ImageAugmentation: AUGMENTATIONS,
    augmentation_kernels.MixUp: MIX_UPS,
}
"""Likewise every one that the framework does not have, which no Mac can be asked about."""

GRADIENTS: dict[type[MPSKernel], type[MPSKernel]] = {
    convolution_kernels.MPSCNNConvolutionGradient: convolution_kernels.MPSCNNConvolution,
    convolution_kernels.MPSCNNFullyConnectedGradient: convolution_kernels.MPSCNNFullyConnected,
    convolution_kernels.MPSCNNConvolutionTransposeGradient: convolution_kernels.MPSCNNConvolutionTranspose,
    pooling_kernels.MPSCNNPoolingMaxGradient: pooling_kernels.MPSCNNPoolingMax,
    pooling_kernels.MPSCNNPoolingAverageGradient: pooling_kernels.MPSCNNPoolingAverage,
    pooling_kernels.MPSCNNPoolingL2NormGradient: pooling_kernels.MPSCNNPoolingL2Norm,
    pooling_kernels.MPSCNNDilatedPoolingMaxGradient: pooling_kernels.MPSCNNDilatedPoolingMax,
    normalization_kernels.MPSCNNSpatialNormalizationGradient: normalization_kernels.MPSCNNSpatialNormalization,
    normalization_kernels.MPSCNNLocalContrastNormalizationGradient: (
        normalization_kernels.MPSCNNLocalContrastNormalization
    ),
    normalization_kernels.MPSCNNCrossChannelNormalizationGradient: (
        normalization_kernels.MPSCNNCrossChannelNormalization
    ),
    neuron_kernels.MPSCNNNeuronGradient: neuron_kernels.MPSCNNNeuron,
    softmax_kernels.MPSCNNSoftMaxGradient: softmax_kernels.MPSCNNSoftMax,
    softmax_kernels.MPSCNNLogSoftMaxGradient: softmax_kernels.MPSCNNLogSoftMax,
    dropout_kernels.MPSCNNDropoutGradient: dropout_kernels.MPSCNNDropout,
    group_normalization_kernels.MPSCNNInstanceNormalizationGradient: (
        group_normalization_kernels.MPSCNNInstanceNormalization
    ),
    group_normalization_kernels.MPSCNNGroupNormalizationGradient: group_normalization_kernels.MPSCNNGroupNormalization,
    gram_matrix_kernels.MPSNNGramMatrixCalculationGradient: gram_matrix_kernels.MPSNNGramMatrixCalculation,
    arithmetic_kernels.MPSCNNAddGradient: arithmetic_kernels.MPSCNNAdd,
    arithmetic_kernels.MPSCNNSubtractGradient: arithmetic_kernels.MPSCNNSubtract,
    arithmetic_kernels.MPSCNNMultiplyGradient: arithmetic_kernels.MPSCNNMultiply,
    reshape_kernels.MPSNNReshapeGradient: reshape_kernels.MPSNNReshape,
    pad_kernels.MPSNNPadGradient: pad_kernels.MPSNNPad,
    upsampling_kernels.MPSCNNUpsamplingNearestGradient: upsampling_kernels.MPSCNNUpsamplingNearest,
    upsampling_kernels.MPSCNNUpsamplingBilinearGradient: upsampling_kernels.MPSCNNUpsamplingBilinear,
}
"""Every gradient kernel, and the forward kernel in whose samples it stands."""

SWEPT_CLASSES = {**SAMPLES, **OURS}
"""The kernels with samples."""


def _check_rows() -> None:
    """Say which row is wrong, where all tests would only fail to be collected."""
    for kernel, samples in SWEPT_CLASSES.items():
        row = f"the row {kernel.__name__}"
        assert samples and all(isinstance(each, Sample) for each in samples), f"{row} must be a list of Samples"
        for sample in samples:
            unknown = sorted(sample.traits - TRAITS.keys())
            assert not unknown, f"{row}: the sample {sample.name!r} has unknown traits {unknown}; see TRAITS"
            wrong = [type(each).__name__ for each in sample.gradients if not isinstance(each, GradientSample)]
            assert not wrong, f"{row}: the gradients of {sample.name!r} must be GradientSamples, got {wrong}"
    for gradient, forward in GRADIENTS.items():
        assert forward in SAMPLES, f"the row {gradient.__name__} of GRADIENTS names {forward.__name__}, not in SAMPLES"


_check_rows()

OPTIMIZERS: dict[type[MPSKernel], Callable[[MTLDevice], MPSKernel]] = {
    optimizer_kernels.MPSNNOptimizerStochasticGradientDescent: lambda device: (
        optimizer_kernels.MPSNNOptimizerStochasticGradientDescent(device, 0.1, momentum_scale=0.9)
    ),
    optimizer_kernels.MPSNNOptimizerRMSProp: lambda device: optimizer_kernels.MPSNNOptimizerRMSProp(device, 0.1),
    optimizer_kernels.MPSNNOptimizerAdam: lambda device: optimizer_kernels.MPSNNOptimizerAdam(device, 0.1),
}
"""Every kernel that updates parameters; tests/kernels/test_optimizers.py holds their numbers."""

STAGES: dict[type[MPSKernel], Callable[[MTLDevice], MPSKernel]] = {
    kind: kind
    for kind in (
        batch_normalization_kernels.MPSCNNBatchNormalizationStatistics,
        batch_normalization_kernels.MPSCNNBatchNormalizationStatisticsGradient,
        batch_normalization_kernels.MPSCNNBatchNormalizationGradient,
    )
}
"""The other stages of batch normalization; tests/kernels/test_batch_normalization.py holds their numbers."""

IMAGE_FILTERS: dict[type[MPSKernel], Callable[[MTLDevice], MPSKernel]] = {
    **{kind: kind for kind in (image_scale_kernels.MPSImageBilinearScale, image_scale_kernels.MPSImageLanczosScale)},
    **{kind: samples[0].make for kind, samples in FILTERS.items()},
    **HISTOGRAMS,
    **GUIDED,
    **PYRAMIDS,
}
"""Every filter of pictures, whose destination is always given.

The numbers of scales are in tests/kernels/test_image_scale.py, those of histograms in test_image_histogram.py, those of
the guided filter in test_image_transforms.py, those of pyramids in test_image_pyramid.py, those of the others in
test_image_filters.py, which takes the samples of samples/image_filters.py.
"""

MATRIX_KERNELS: dict[type[MPSKernel], Callable[[MTLDevice], MPSKernel]] = {
    **{
        kind: kind
        for kind in (
            image_copy_kernels.MPSImageCopyToMatrix,
            image_copy_kernels.MPSMatrixCopyToImage,
            random_kernels.MPSMatrixRandomMTGP32,
            random_kernels.MPSMatrixRandomPhilox,
        )
    },
    **{kind: sample.kernel for kind, sample in FIRST_OF_KIND.items()},
    matrix_kernels.MPSMatrixCopy: lambda device: matrix_kernels.MPSMatrixCopy(device, 2, 3, False, True),
    matrix_kernels.MPSMatrixSum: summing,
}
"""Every kernel that reads or writes matrices, but for recurrent layers.

The numbers of copies and sums are in test_matrix_copies_and_sums.py, test_image_copy.py and test_random.py, those of
the others in test_matrix_kernels.py, which takes the samples of samples/matrix.py.
"""

RECURRENT: dict[type[MPSKernel], Callable[[MTLDevice], MPSKernel]] = {
    MPSRNNImageInferenceLayer: inferring_images,
    MPSRNNMatrixInferenceLayer: inferring,
    MPSRNNMatrixTrainingLayer: training,
}
"""Layers over sequences; tests/kernels/test_recurrent.py and test_recurrent_images.py hold their numbers."""

SELECTIONS: dict[type[MPSKernel], Callable[[MTLDevice], MPSKernel]] = {
    selection_kernels.ImageSelection: selection_kernels.ImageSelection,
    selection_kernels.AlternatingFlip: lambda device: selection_kernels.AlternatingFlip(device, 5),
}
"""Kernels of ours that choose images by number; tests/kernels/test_selection.py holds their results."""

OTHERS = {**OPTIMIZERS, **STAGES, **IMAGE_FILTERS, **MATRIX_KERNELS, **RECURRENT, **SELECTIONS}
"""The kernels with tests of their own instead of samples."""

ABSTRACT: dict[type[MPSKernel], Callable[[MTLDevice], MPSKernel]] = {
    pooling_kernels.MPSCNNPooling: lambda device: pooling_kernels.MPSCNNPooling(device, 1, 1),
    pooling_kernels.MPSCNNPoolingGradient: lambda device: pooling_kernels.MPSCNNPoolingGradient(device, 1, 1),
    arithmetic_kernels.MPSCNNArithmetic: arithmetic_kernels.MPSCNNArithmetic,
    arithmetic_kernels.MPSCNNArithmeticGradient: arithmetic_kernels.MPSCNNArithmeticGradient,
    reduce_kernels.MPSNNReduceUnary: reduce_kernels.MPSNNReduceUnary,
    reduce_kernels.MPSNNReduceBinary: reduce_kernels.MPSNNReduceBinary,
    upsampling_kernels.MPSCNNUpsampling: lambda device: upsampling_kernels.MPSCNNUpsampling(device, 1, 1),
    upsampling_kernels.MPSCNNUpsamplingGradient: (
        lambda device: upsampling_kernels.MPSCNNUpsamplingGradient(device, 1, 1)
    ),
    image_arithmetic.MPSImageArithmetic: image_arithmetic.MPSImageArithmetic,
    image_reduction.MPSImageReduceUnary: image_reduction.MPSImageReduceUnary,
    image_pyramid.MPSImagePyramid: image_pyramid.MPSImagePyramid,
    image_pyramid.MPSImageLaplacianPyramid: image_pyramid.MPSImageLaplacianPyramid,
    image_scale_kernels.MPSImageScale: image_scale_kernels.MPSImageScale,
    random_kernels.MPSMatrixRandom: random_kernels.MPSMatrixRandom,
    optimizer_kernels.MPSNNOptimizer: lambda device: optimizer_kernels.MPSNNOptimizer(
        device, optimizer_kernels.MPSNNOptimizerDescriptor()
    ),
}
"""Bases that the framework names but that compute nothing themselves."""

WITHOUT_INITIALIZER: frozenset[type[MPSKernel]] = frozenset((
    arithmetic_kernels.MPSCNNArithmetic, arithmetic_kernels.MPSCNNArithmeticGradient, reduce_kernels.MPSNNReduceUnary,
    reduce_kernels.MPSNNReduceBinary, random_kernels.MPSMatrixRandom, image_arithmetic.MPSImageArithmetic,
    image_reduction.MPSImageReduceUnary,
))  # fmt: skip
"""Those whose headers say that they cannot be made."""

ALL = [sample for samples in SWEPT_CLASSES.values() for sample in samples]
"""Every sample."""

SWEPT = [sample for sample in ALL if sample not in NEURON_CLASSES]
"""The samples for properties of all kernels: the neuron classes are one kernel under many names."""

_KINDS = {id(sample): kind.__name__ for kind, samples in SWEPT_CLASSES.items() for sample in samples}


def class_of(sample: Sample) -> str:
    """The name of the kernel class that a sample of the catalogue configures; another sample's own."""
    return _KINDS.get(id(sample), sample.name)


FIRST_OF_CLASS = [samples[0] for samples in SWEPT_CLASSES.values() if samples[0] in SWEPT]
"""One swept sample of each class."""


def _some_of_class(samples: Sequence[Sample]) -> list[Sample]:
    """The first with each set of traits, and the last."""
    first = {sample.traits: sample for sample in reversed(samples)}
    return [sample for sample in samples if sample in (*first.values(), samples[-1]) and sample in SWEPT]


SOME_OF_CLASS = [sample for samples in SWEPT_CLASSES.values() for sample in _some_of_class(samples)]
"""Some swept samples of each class, for what a class does whatever its options and shapes are."""


def having(
    *traits: str, without: Sequence[str] = (), gradients: bool = False, of: Sequence[Sample] = SWEPT
) -> list[Sample]:
    """The swept samples, or those of them, with all of some traits and none of others."""
    return [
        sample
        for sample in of
        if sample.traits.issuperset(traits)
        and not sample.traits.intersection(without)
        and (sample.gradients or not gradients)
    ]
