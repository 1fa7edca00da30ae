"""Every public name of the package, a block a file; no logic.

Each stands here once, as a re-export that type checkers and editors follow.
"""

import openmps.debug as debug  # noqa: F401  # pyright: ignore[reportUnusedImport]  as other names, without an import
import openmps.formats as formats  # noqa: F401  # pyright: ignore[reportUnusedImport]
import openmps.training as training  # noqa: F401  # pyright: ignore[reportUnusedImport]
from openmps.convention import conventions as conventions
from openmps.core.ndarray import (
    MPSNDArray as MPSNDArray,
    MPSNDArrayAllocator as MPSNDArrayAllocator,
    MPSTemporaryNDArray as MPSTemporaryNDArray,
)
from openmps.core.ndarray_descriptor import MPSNDArrayDescriptor as MPSNDArrayDescriptor
from openmps.core.image.batch import MPSImageBatch as MPSImageBatch
from openmps.core.image.batch_functions import (
    MPSImageBatchIncrementReadCount as MPSImageBatchIncrementReadCount,
    MPSImageBatchIterate as MPSImageBatchIterate,
    MPSImageBatchResourceSize as MPSImageBatchResourceSize,
    MPSImageBatchSynchronize as MPSImageBatchSynchronize,
)
from openmps.core.image.descriptor import MPSImageDescriptor as MPSImageDescriptor
from openmps.core.image.image import MPSImage as MPSImage, MPSImageAllocator as MPSImageAllocator
from openmps.core.image.temporary import MPSTemporaryImage as MPSTemporaryImage
from openmps.core.kernel.base import MPSKernel as MPSKernel
from openmps.core.kernel.binary import MPSCNNBinaryKernel as MPSCNNBinaryKernel
from openmps.core.kernel.gradient import MPSCNNGradientKernel as MPSCNNGradientKernel
from openmps.core.kernel.image_filter import (
    MPSBinaryImageKernel as MPSBinaryImageKernel,
    MPSUnaryImageKernel as MPSUnaryImageKernel,
)
from openmps.core.kernel.matrices import (
    MPSMatrixBinaryKernel as MPSMatrixBinaryKernel,
    MPSMatrixUnaryKernel as MPSMatrixUnaryKernel,
)
from openmps.core.kernel.multiary import MPSCNNMultiaryKernel as MPSCNNMultiaryKernel
from openmps.core.kernel.unary import MPSCNNKernel as MPSCNNKernel
from openmps.core.neuron import MPSNNNeuronDescriptor as MPSNNNeuronDescriptor
from openmps.core.padding.explicit import ExplicitPadding as ExplicitPadding
from openmps.core.padding.names import MPSGetPaddingPolicy as MPSGetPaddingPolicy
from openmps.core.padding.policy import MPSNNDefaultPadding as MPSNNDefaultPadding, MPSNNPadding as MPSNNPadding
from openmps.core.padding.report import PaddingExplanation as PaddingExplanation, explain_padding as explain_padding
from openmps.core.state.batch import (
    MPSStateBatch as MPSStateBatch,
    MPSStateBatchIncrementReadCount as MPSStateBatchIncrementReadCount,
    MPSStateBatchResourceSize as MPSStateBatchResourceSize,
    MPSStateBatchSynchronize as MPSStateBatchSynchronize,
)
from openmps.core.state.gradient import (
    MPSImageSizeEncodingState as MPSImageSizeEncodingState,
    MPSNNBinaryGradientState as MPSNNBinaryGradientState,
    MPSNNGradientState as MPSNNGradientState,
    MPSNNMultiaryGradientState as MPSNNMultiaryGradientState,
)
from openmps.core.state.resources import MPSStateResourceList as MPSStateResourceList
from openmps.core.state.rows import (
    MPSCNNNormalizationGammaAndBetaState as MPSCNNNormalizationGammaAndBetaState,
    MPSCNNNormalizationMeanAndVarianceState as MPSCNNNormalizationMeanAndVarianceState,
)
from openmps.core.state.state import MPSState as MPSState
from openmps.core.vector import (
    MatrixSequence as MatrixSequence,
    MPSMatrix as MPSMatrix,
    MPSTemporaryMatrix as MPSTemporaryMatrix,
    MPSTemporaryVector as MPSTemporaryVector,
    MPSVector as MPSVector,
)
from openmps.core.vector_descriptor import (
    MPSMatrixDescriptor as MPSMatrixDescriptor,
    MPSVectorDescriptor as MPSVectorDescriptor,
)
from openmps.errors import (
    MPSArgumentError as MPSArgumentError,
    MPSAttributeError as MPSAttributeError,
    MPSBufferError as MPSBufferError,
    MPSDeviceError as MPSDeviceError,
    MPSError as MPSError,
    MPSExportError as MPSExportError,
    MPSFileError as MPSFileError,
    MPSProcessError as MPSProcessError,
    MPSLifetimeError as MPSLifetimeError,
    MPSMemoryError as MPSMemoryError,
    MPSNonFiniteError as MPSNonFiniteError,
    MPSOperatorError as MPSOperatorError,
    MPSTrainingWarning as MPSTrainingWarning,
    MPSTypeError as MPSTypeError,
    MPSWeightsError as MPSWeightsError,
    MTLCommandBufferError as MTLCommandBufferError,
    MTLExecutionError as MTLExecutionError,
)
from openmps.formats.archive import MPSKeyedArchiver as MPSKeyedArchiver, MPSKeyedUnarchiver as MPSKeyedUnarchiver
from openmps.formats.textures import (
    load_texture as load_texture,
    load_textures as load_textures,
    save_texture as save_texture,
)
from openmps.graph.nodes.arithmetic import (
    MPSNNAdditionGradientNode as MPSNNAdditionGradientNode,
    MPSNNAdditionNode as MPSNNAdditionNode,
    MPSNNArithmeticGradientNode as MPSNNArithmeticGradientNode,
    MPSNNBinaryArithmeticNode as MPSNNBinaryArithmeticNode,
    MPSNNComparisonNode as MPSNNComparisonNode,
    MPSNNDivisionNode as MPSNNDivisionNode,
    MPSNNMultiplicationGradientNode as MPSNNMultiplicationGradientNode,
    MPSNNMultiplicationNode as MPSNNMultiplicationNode,
    MPSNNSubtractionGradientNode as MPSNNSubtractionGradientNode,
    MPSNNSubtractionNode as MPSNNSubtractionNode,
)
from openmps.graph.nodes.callbacks import (
    MPSImageTransformProvider as MPSImageTransformProvider,
    MPSNNGramMatrixCallback as MPSNNGramMatrixCallback,
    MPSNNLossCallback as MPSNNLossCallback,
)
from openmps.graph.nodes.concatenation import (
    MPSNNConcatenationGradientNode as MPSNNConcatenationGradientNode,
    MPSNNConcatenationNode as MPSNNConcatenationNode,
)
from openmps.graph.nodes.convolution import (
    MPSCNNBinaryConvolutionNode as MPSCNNBinaryConvolutionNode,
    MPSCNNBinaryFullyConnectedNode as MPSCNNBinaryFullyConnectedNode,
    MPSCNNConvolutionGradientNode as MPSCNNConvolutionGradientNode,
    MPSCNNConvolutionNode as MPSCNNConvolutionNode,
    MPSCNNConvolutionTransposeGradientNode as MPSCNNConvolutionTransposeGradientNode,
    MPSCNNConvolutionTransposeNode as MPSCNNConvolutionTransposeNode,
    MPSCNNFullyConnectedGradientNode as MPSCNNFullyConnectedGradientNode,
    MPSCNNFullyConnectedNode as MPSCNNFullyConnectedNode,
)
from openmps.graph.nodes.dropout import (
    MPSCNNDropoutGradientNode as MPSCNNDropoutGradientNode,
    MPSCNNDropoutNode as MPSCNNDropoutNode,
)
from openmps.graph.nodes.gram_matrix import (
    MPSNNGramMatrixCalculationGradientNode as MPSNNGramMatrixCalculationGradientNode,
    MPSNNGramMatrixCalculationNode as MPSNNGramMatrixCalculationNode,
)
from openmps.graph.graph import MPSNNGraph as MPSNNGraph
from openmps.graph.lint import Finding as Finding, LintReport as LintReport, Severity as Severity, lint as lint
from openmps.graph.nodes.local_normalization import (
    MPSCNNCrossChannelNormalizationGradientNode as MPSCNNCrossChannelNormalizationGradientNode,
    MPSCNNCrossChannelNormalizationNode as MPSCNNCrossChannelNormalizationNode,
    MPSCNNLocalContrastNormalizationGradientNode as MPSCNNLocalContrastNormalizationGradientNode,
    MPSCNNLocalContrastNormalizationNode as MPSCNNLocalContrastNormalizationNode,
    MPSCNNNormalizationNode as MPSCNNNormalizationNode,
    MPSCNNSpatialNormalizationGradientNode as MPSCNNSpatialNormalizationGradientNode,
    MPSCNNSpatialNormalizationNode as MPSCNNSpatialNormalizationNode,
)
from openmps.graph.nodes.loss import (
    MPSCNNLossNode as MPSCNNLossNode,
    MPSCNNYOLOLossNode as MPSCNNYOLOLossNode,
    MPSNNForwardLossNode as MPSNNForwardLossNode,
    MPSNNInitialGradientNode as MPSNNInitialGradientNode,
    MPSNNLossGradientNode as MPSNNLossGradientNode,
)
from openmps.graph.nodes.neuron import (
    MPSCNNNeuronAbsoluteNode as MPSCNNNeuronAbsoluteNode,
    MPSCNNNeuronELUNode as MPSCNNNeuronELUNode,
    MPSCNNNeuronExponentialNode as MPSCNNNeuronExponentialNode,
    MPSCNNNeuronGeLUNode as MPSCNNNeuronGeLUNode,
    MPSCNNNeuronGradientNode as MPSCNNNeuronGradientNode,
    MPSCNNNeuronHardSigmoidNode as MPSCNNNeuronHardSigmoidNode,
    MPSCNNNeuronLinearNode as MPSCNNNeuronLinearNode,
    MPSCNNNeuronLogarithmNode as MPSCNNNeuronLogarithmNode,
    MPSCNNNeuronNode as MPSCNNNeuronNode,
    MPSCNNNeuronPReLUNode as MPSCNNNeuronPReLUNode,
    MPSCNNNeuronPowerNode as MPSCNNNeuronPowerNode,
    MPSCNNNeuronReLUNNode as MPSCNNNeuronReLUNNode,
    MPSCNNNeuronReLUNode as MPSCNNNeuronReLUNode,
    MPSCNNNeuronSigmoidNode as MPSCNNNeuronSigmoidNode,
    MPSCNNNeuronSoftPlusNode as MPSCNNNeuronSoftPlusNode,
    MPSCNNNeuronSoftSignNode as MPSCNNNeuronSoftSignNode,
    MPSCNNNeuronTanHNode as MPSCNNNeuronTanHNode,
)
from openmps.graph.nodes.node import (
    Handle as Handle,
    MPSCNNConvolutionGradientStateNode as MPSCNNConvolutionGradientStateNode,
    MPSCNNConvolutionTransposeGradientStateNode as MPSCNNConvolutionTransposeGradientStateNode,
    MPSHandle as MPSHandle,
    MPSNNArithmeticGradientStateNode as MPSNNArithmeticGradientStateNode,
    MPSNNBinaryGradientStateNode as MPSNNBinaryGradientStateNode,
    MPSNNFilterNode as MPSNNFilterNode,
    MPSNNGradientFilterNode as MPSNNGradientFilterNode,
    MPSNNGradientStateNode as MPSNNGradientStateNode,
    MPSNNImageNode as MPSNNImageNode,
    MPSNNLabelsNode as MPSNNLabelsNode,
    MPSNNMultiaryGradientStateNode as MPSNNMultiaryGradientStateNode,
    MPSNNStateNode as MPSNNStateNode,
)
from openmps.graph.nodes.normalization import (
    MPSCNNBatchNormalizationGradientNode as MPSCNNBatchNormalizationGradientNode,
    MPSCNNBatchNormalizationNode as MPSCNNBatchNormalizationNode,
    MPSCNNGroupNormalizationGradientNode as MPSCNNGroupNormalizationGradientNode,
    MPSCNNGroupNormalizationNode as MPSCNNGroupNormalizationNode,
    MPSCNNInstanceNormalizationGradientNode as MPSCNNInstanceNormalizationGradientNode,
    MPSCNNInstanceNormalizationNode as MPSCNNInstanceNormalizationNode,
)
from openmps.graph.nodes.pooling import (
    MPSCNNDilatedPoolingMaxGradientNode as MPSCNNDilatedPoolingMaxGradientNode,
    MPSCNNDilatedPoolingMaxNode as MPSCNNDilatedPoolingMaxNode,
    MPSCNNPoolingAverageGradientNode as MPSCNNPoolingAverageGradientNode,
    MPSCNNPoolingAverageNode as MPSCNNPoolingAverageNode,
    MPSCNNPoolingGradientNode as MPSCNNPoolingGradientNode,
    MPSCNNPoolingL2NormGradientNode as MPSCNNPoolingL2NormGradientNode,
    MPSCNNPoolingL2NormNode as MPSCNNPoolingL2NormNode,
    MPSCNNPoolingMaxGradientNode as MPSCNNPoolingMaxGradientNode,
    MPSCNNPoolingMaxNode as MPSCNNPoolingMaxNode,
    MPSCNNPoolingNode as MPSCNNPoolingNode,
)
from openmps.graph.nodes.reduction import (
    MPSNNReductionColumnMaxNode as MPSNNReductionColumnMaxNode,
    MPSNNReductionColumnMeanNode as MPSNNReductionColumnMeanNode,
    MPSNNReductionColumnMinNode as MPSNNReductionColumnMinNode,
    MPSNNReductionColumnSumNode as MPSNNReductionColumnSumNode,
    MPSNNReductionFeatureChannelsArgumentMaxNode as MPSNNReductionFeatureChannelsArgumentMaxNode,
    MPSNNReductionFeatureChannelsArgumentMinNode as MPSNNReductionFeatureChannelsArgumentMinNode,
    MPSNNReductionFeatureChannelsMaxNode as MPSNNReductionFeatureChannelsMaxNode,
    MPSNNReductionFeatureChannelsMeanNode as MPSNNReductionFeatureChannelsMeanNode,
    MPSNNReductionFeatureChannelsMinNode as MPSNNReductionFeatureChannelsMinNode,
    MPSNNReductionFeatureChannelsSumNode as MPSNNReductionFeatureChannelsSumNode,
    MPSNNReductionRowMaxNode as MPSNNReductionRowMaxNode,
    MPSNNReductionRowMeanNode as MPSNNReductionRowMeanNode,
    MPSNNReductionRowMinNode as MPSNNReductionRowMinNode,
    MPSNNReductionRowSumNode as MPSNNReductionRowSumNode,
    MPSNNReductionSpatialMeanGradientNode as MPSNNReductionSpatialMeanGradientNode,
    MPSNNReductionSpatialMeanNode as MPSNNReductionSpatialMeanNode,
    MPSNNUnaryReductionNode as MPSNNUnaryReductionNode,
)
from openmps.graph.nodes.shape import (
    MPSCNNUpsamplingBilinearGradientNode as MPSCNNUpsamplingBilinearGradientNode,
    MPSCNNUpsamplingBilinearNode as MPSCNNUpsamplingBilinearNode,
    MPSCNNUpsamplingNearestGradientNode as MPSCNNUpsamplingNearestGradientNode,
    MPSCNNUpsamplingNearestNode as MPSCNNUpsamplingNearestNode,
    MPSNNBilinearScaleNode as MPSNNBilinearScaleNode,
    MPSNNLanczosScaleNode as MPSNNLanczosScaleNode,
    MPSNNPadGradientNode as MPSNNPadGradientNode,
    MPSNNPadNode as MPSNNPadNode,
    MPSNNReshapeGradientNode as MPSNNReshapeGradientNode,
    MPSNNReshapeNode as MPSNNReshapeNode,
    MPSNNScaleNode as MPSNNScaleNode,
)
from openmps.graph.nodes.softmax import (
    MPSCNNLogSoftMaxGradientNode as MPSCNNLogSoftMaxGradientNode,
    MPSCNNLogSoftMaxNode as MPSCNNLogSoftMaxNode,
    MPSCNNSoftMaxGradientNode as MPSCNNSoftMaxGradientNode,
    MPSCNNSoftMaxNode as MPSCNNSoftMaxNode,
)
from openmps.graph.summary import GraphSummary as GraphSummary, graph_summary as graph_summary
from openmps.graph.run.trace import Trace as Trace, TracedKind as TracedKind, TracedValue as TracedValue
from openmps.graph.nodes.trainable import MPSNNTrainableNode as MPSNNTrainableNode
from openmps.kernels.arithmetic import (
    MPSCNNAdd as MPSCNNAdd,
    MPSCNNAddGradient as MPSCNNAddGradient,
    MPSCNNArithmetic as MPSCNNArithmetic,
    MPSCNNArithmeticGradient as MPSCNNArithmeticGradient,
    MPSCNNArithmeticGradientState as MPSCNNArithmeticGradientState,
    MPSCNNDivide as MPSCNNDivide,
    MPSCNNMultiply as MPSCNNMultiply,
    MPSCNNMultiplyGradient as MPSCNNMultiplyGradient,
    MPSCNNSubtract as MPSCNNSubtract,
    MPSCNNSubtractGradient as MPSCNNSubtractGradient,
    MPSNNCompare as MPSNNCompare,
)
from openmps.kernels.batch_normalization import (
    MPSCNNBatchNormalization as MPSCNNBatchNormalization,
    MPSCNNBatchNormalizationDataSource as MPSCNNBatchNormalizationDataSource,
    MPSCNNBatchNormalizationGradient as MPSCNNBatchNormalizationGradient,
    MPSCNNBatchNormalizationState as MPSCNNBatchNormalizationState,
    MPSCNNBatchNormalizationStatistics as MPSCNNBatchNormalizationStatistics,
    MPSCNNBatchNormalizationStatisticsGradient as MPSCNNBatchNormalizationStatisticsGradient,
)
from openmps.kernels.convolution import (
    MPSCNNBinaryConvolution as MPSCNNBinaryConvolution,
    MPSCNNBinaryFullyConnected as MPSCNNBinaryFullyConnected,
    MPSCNNConvolution as MPSCNNConvolution,
    MPSCNNConvolutionDataSource as MPSCNNConvolutionDataSource,
    MPSCNNConvolutionDescriptor as MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient as MPSCNNConvolutionGradient,
    MPSCNNConvolutionGradientState as MPSCNNConvolutionGradientState,
    MPSCNNConvolutionTranspose as MPSCNNConvolutionTranspose,
    MPSCNNConvolutionTransposeGradient as MPSCNNConvolutionTransposeGradient,
    MPSCNNConvolutionTransposeGradientState as MPSCNNConvolutionTransposeGradientState,
    MPSCNNConvolutionWeightsAndBiasesState as MPSCNNConvolutionWeightsAndBiasesState,
    MPSCNNDepthWiseConvolutionDescriptor as MPSCNNDepthWiseConvolutionDescriptor,
    MPSCNNFullyConnected as MPSCNNFullyConnected,
    MPSCNNFullyConnectedGradient as MPSCNNFullyConnectedGradient,
    MPSCNNSubPixelConvolutionDescriptor as MPSCNNSubPixelConvolutionDescriptor,
)
from openmps.kernels.dropout import (
    MPSCNNDropout as MPSCNNDropout,
    MPSCNNDropoutGradient as MPSCNNDropoutGradient,
    MPSCNNDropoutGradientState as MPSCNNDropoutGradientState,
)
from openmps.kernels.gram_matrix import (
    MPSNNGramMatrixCalculation as MPSNNGramMatrixCalculation,
    MPSNNGramMatrixCalculationGradient as MPSNNGramMatrixCalculationGradient,
)
from openmps.kernels.grid_sample import MPSNNGridSample as MPSNNGridSample
from openmps.kernels.group_normalization import (
    MPSCNNGroupNormalization as MPSCNNGroupNormalization,
    MPSCNNGroupNormalizationDataSource as MPSCNNGroupNormalizationDataSource,
    MPSCNNGroupNormalizationGradient as MPSCNNGroupNormalizationGradient,
    MPSCNNGroupNormalizationGradientState as MPSCNNGroupNormalizationGradientState,
    MPSCNNInstanceNormalization as MPSCNNInstanceNormalization,
    MPSCNNInstanceNormalizationDataSource as MPSCNNInstanceNormalizationDataSource,
    MPSCNNInstanceNormalizationGradient as MPSCNNInstanceNormalizationGradient,
    MPSCNNInstanceNormalizationGradientState as MPSCNNInstanceNormalizationGradientState,
)
from openmps.kernels.image_copy import (
    MPSImageCopyToMatrix as MPSImageCopyToMatrix,
    MPSMatrixCopyToImage as MPSMatrixCopyToImage,
)
from openmps.kernels.image_filters import (
    MPSImageAdd as MPSImageAdd,
    MPSImageAreaMax as MPSImageAreaMax,
    MPSImageAreaMin as MPSImageAreaMin,
    MPSImageArithmetic as MPSImageArithmetic,
    MPSImageBox as MPSImageBox,
    MPSImageCanny as MPSImageCanny,
    MPSImageConversion as MPSImageConversion,
    MPSImageConvolution as MPSImageConvolution,
    MPSImageDilate as MPSImageDilate,
    MPSImageDivide as MPSImageDivide,
    MPSImageErode as MPSImageErode,
    MPSImageEuclideanDistanceTransform as MPSImageEuclideanDistanceTransform,
    MPSImageGaussianBlur as MPSImageGaussianBlur,
    MPSImageGaussianPyramid as MPSImageGaussianPyramid,
    MPSImageGuidedFilter as MPSImageGuidedFilter,
    MPSImageHistogram as MPSImageHistogram,
    MPSImageHistogramEqualization as MPSImageHistogramEqualization,
    MPSImageHistogramSpecification as MPSImageHistogramSpecification,
    MPSImageIntegral as MPSImageIntegral,
    MPSImageIntegralOfSquares as MPSImageIntegralOfSquares,
    MPSImageLaplacian as MPSImageLaplacian,
    MPSImageLaplacianPyramid as MPSImageLaplacianPyramid,
    MPSImageLaplacianPyramidAdd as MPSImageLaplacianPyramidAdd,
    MPSImageLaplacianPyramidSubtract as MPSImageLaplacianPyramidSubtract,
    MPSImageMedian as MPSImageMedian,
    MPSImageMultiply as MPSImageMultiply,
    MPSImageNormalizedHistogram as MPSImageNormalizedHistogram,
    MPSImagePyramid as MPSImagePyramid,
    MPSImageReduceColumnMax as MPSImageReduceColumnMax,
    MPSImageReduceColumnMean as MPSImageReduceColumnMean,
    MPSImageReduceColumnMin as MPSImageReduceColumnMin,
    MPSImageReduceColumnSum as MPSImageReduceColumnSum,
    MPSImageReduceRowMax as MPSImageReduceRowMax,
    MPSImageReduceRowMean as MPSImageReduceRowMean,
    MPSImageReduceRowMin as MPSImageReduceRowMin,
    MPSImageReduceRowSum as MPSImageReduceRowSum,
    MPSImageReduceUnary as MPSImageReduceUnary,
    MPSImageSobel as MPSImageSobel,
    MPSImageStatisticsMean as MPSImageStatisticsMean,
    MPSImageStatisticsMeanAndVariance as MPSImageStatisticsMeanAndVariance,
    MPSImageStatisticsMinAndMax as MPSImageStatisticsMinAndMax,
    MPSImageSubtract as MPSImageSubtract,
    MPSImageTent as MPSImageTent,
    MPSImageThresholdBinary as MPSImageThresholdBinary,
    MPSImageThresholdBinaryInverse as MPSImageThresholdBinaryInverse,
    MPSImageThresholdToZero as MPSImageThresholdToZero,
    MPSImageThresholdToZeroInverse as MPSImageThresholdToZeroInverse,
    MPSImageThresholdTruncate as MPSImageThresholdTruncate,
    MPSImageTranspose as MPSImageTranspose,
)
from openmps.kernels.image_scale import (
    MPSImageBilinearScale as MPSImageBilinearScale,
    MPSImageLanczosScale as MPSImageLanczosScale,
    MPSImageScale as MPSImageScale,
)
from openmps.kernels.loss import (
    MPSCNNLoss as MPSCNNLoss,
    MPSCNNLossDataDescriptor as MPSCNNLossDataDescriptor,
    MPSCNNLossDescriptor as MPSCNNLossDescriptor,
    MPSCNNLossLabels as MPSCNNLossLabels,
    MPSCNNYOLOLoss as MPSCNNYOLOLoss,
    MPSCNNYOLOLossDescriptor as MPSCNNYOLOLossDescriptor,
    MPSNNForwardLoss as MPSNNForwardLoss,
    MPSNNInitialGradient as MPSNNInitialGradient,
    MPSNNLossGradient as MPSNNLossGradient,
)
from openmps.kernels.matrix import (
    MPSMatrixBatchNormalization as MPSMatrixBatchNormalization,
    MPSMatrixBatchNormalizationGradient as MPSMatrixBatchNormalizationGradient,
    MPSMatrixCopy as MPSMatrixCopy,
    MPSMatrixCopyDescriptor as MPSMatrixCopyDescriptor,
    MPSMatrixDecompositionCholesky as MPSMatrixDecompositionCholesky,
    MPSMatrixDecompositionLU as MPSMatrixDecompositionLU,
    MPSMatrixFindTopK as MPSMatrixFindTopK,
    MPSMatrixFullyConnected as MPSMatrixFullyConnected,
    MPSMatrixFullyConnectedGradient as MPSMatrixFullyConnectedGradient,
    MPSMatrixLogSoftMax as MPSMatrixLogSoftMax,
    MPSMatrixLogSoftMaxGradient as MPSMatrixLogSoftMaxGradient,
    MPSMatrixMultiplication as MPSMatrixMultiplication,
    MPSMatrixNeuron as MPSMatrixNeuron,
    MPSMatrixNeuronGradient as MPSMatrixNeuronGradient,
    MPSMatrixSoftMax as MPSMatrixSoftMax,
    MPSMatrixSoftMaxGradient as MPSMatrixSoftMaxGradient,
    MPSMatrixSolveCholesky as MPSMatrixSolveCholesky,
    MPSMatrixSolveLU as MPSMatrixSolveLU,
    MPSMatrixSolveTriangular as MPSMatrixSolveTriangular,
    MPSMatrixSum as MPSMatrixSum,
    MPSMatrixVectorMultiplication as MPSMatrixVectorMultiplication,
)
from openmps.kernels.neuron import (
    MPSCNNNeuron as MPSCNNNeuron,
    MPSCNNNeuronAbsolute as MPSCNNNeuronAbsolute,
    MPSCNNNeuronELU as MPSCNNNeuronELU,
    MPSCNNNeuronExponential as MPSCNNNeuronExponential,
    MPSCNNNeuronGradient as MPSCNNNeuronGradient,
    MPSCNNNeuronHardSigmoid as MPSCNNNeuronHardSigmoid,
    MPSCNNNeuronLinear as MPSCNNNeuronLinear,
    MPSCNNNeuronLogarithm as MPSCNNNeuronLogarithm,
    MPSCNNNeuronPower as MPSCNNNeuronPower,
    MPSCNNNeuronPReLU as MPSCNNNeuronPReLU,
    MPSCNNNeuronReLU as MPSCNNNeuronReLU,
    MPSCNNNeuronReLUN as MPSCNNNeuronReLUN,
    MPSCNNNeuronSigmoid as MPSCNNNeuronSigmoid,
    MPSCNNNeuronSoftPlus as MPSCNNNeuronSoftPlus,
    MPSCNNNeuronSoftSign as MPSCNNNeuronSoftSign,
    MPSCNNNeuronTanH as MPSCNNNeuronTanH,
)
from openmps.kernels.normalization import (
    MPSCNNCrossChannelNormalization as MPSCNNCrossChannelNormalization,
    MPSCNNCrossChannelNormalizationGradient as MPSCNNCrossChannelNormalizationGradient,
    MPSCNNLocalContrastNormalization as MPSCNNLocalContrastNormalization,
    MPSCNNLocalContrastNormalizationGradient as MPSCNNLocalContrastNormalizationGradient,
    MPSCNNSpatialNormalization as MPSCNNSpatialNormalization,
    MPSCNNSpatialNormalizationGradient as MPSCNNSpatialNormalizationGradient,
)
from openmps.kernels.optimizers import (
    MPSNNOptimizer as MPSNNOptimizer,
    MPSNNOptimizerAdam as MPSNNOptimizerAdam,
    MPSNNOptimizerDescriptor as MPSNNOptimizerDescriptor,
    MPSNNOptimizerRMSProp as MPSNNOptimizerRMSProp,
    MPSNNOptimizerStochasticGradientDescent as MPSNNOptimizerStochasticGradientDescent,
)
from openmps.kernels.pad import MPSNNPad as MPSNNPad, MPSNNPadGradient as MPSNNPadGradient
from openmps.kernels.pooling import (
    MPSCNNDilatedPoolingMax as MPSCNNDilatedPoolingMax,
    MPSCNNDilatedPoolingMaxGradient as MPSCNNDilatedPoolingMaxGradient,
    MPSCNNPooling as MPSCNNPooling,
    MPSCNNPoolingAverage as MPSCNNPoolingAverage,
    MPSCNNPoolingAverageGradient as MPSCNNPoolingAverageGradient,
    MPSCNNPoolingGradient as MPSCNNPoolingGradient,
    MPSCNNPoolingL2Norm as MPSCNNPoolingL2Norm,
    MPSCNNPoolingL2NormGradient as MPSCNNPoolingL2NormGradient,
    MPSCNNPoolingMax as MPSCNNPoolingMax,
    MPSCNNPoolingMaxGradient as MPSCNNPoolingMaxGradient,
)
from openmps.kernels.random import (
    MPSMatrixRandom as MPSMatrixRandom,
    MPSMatrixRandomDistributionDescriptor as MPSMatrixRandomDistributionDescriptor,
    MPSMatrixRandomMTGP32 as MPSMatrixRandomMTGP32,
    MPSMatrixRandomPhilox as MPSMatrixRandomPhilox,
)
from openmps.kernels.recurrent.descriptors import (
    MPSGRUDescriptor as MPSGRUDescriptor,
    MPSLSTMDescriptor as MPSLSTMDescriptor,
    MPSRNNDescriptor as MPSRNNDescriptor,
    MPSRNNSingleGateDescriptor as MPSRNNSingleGateDescriptor,
)
from openmps.kernels.recurrent.image_inference import MPSRNNImageInferenceLayer as MPSRNNImageInferenceLayer
from openmps.kernels.recurrent.matrix_inference import MPSRNNMatrixInferenceLayer as MPSRNNMatrixInferenceLayer
from openmps.kernels.recurrent.matrix_training import MPSRNNMatrixTrainingLayer as MPSRNNMatrixTrainingLayer
from openmps.kernels.recurrent.states import (
    MatrixTrainingStates as MatrixTrainingStates,
    MPSRNNMatrixTrainingState as MPSRNNMatrixTrainingState,
    MPSRNNRecurrentImageState as MPSRNNRecurrentImageState,
    MPSRNNRecurrentMatrixState as MPSRNNRecurrentMatrixState,
)
from openmps.kernels.reduce import (
    MPSNNLocalCorrelation as MPSNNLocalCorrelation,
    MPSNNReduceBinary as MPSNNReduceBinary,
    MPSNNReduceColumnMax as MPSNNReduceColumnMax,
    MPSNNReduceColumnMean as MPSNNReduceColumnMean,
    MPSNNReduceColumnMin as MPSNNReduceColumnMin,
    MPSNNReduceColumnSum as MPSNNReduceColumnSum,
    MPSNNReduceFeatureChannelsAndWeightsMean as MPSNNReduceFeatureChannelsAndWeightsMean,
    MPSNNReduceFeatureChannelsAndWeightsSum as MPSNNReduceFeatureChannelsAndWeightsSum,
    MPSNNReduceFeatureChannelsArgumentMax as MPSNNReduceFeatureChannelsArgumentMax,
    MPSNNReduceFeatureChannelsArgumentMin as MPSNNReduceFeatureChannelsArgumentMin,
    MPSNNReduceFeatureChannelsMax as MPSNNReduceFeatureChannelsMax,
    MPSNNReduceFeatureChannelsMean as MPSNNReduceFeatureChannelsMean,
    MPSNNReduceFeatureChannelsMin as MPSNNReduceFeatureChannelsMin,
    MPSNNReduceFeatureChannelsSum as MPSNNReduceFeatureChannelsSum,
    MPSNNReduceRowMax as MPSNNReduceRowMax,
    MPSNNReduceRowMean as MPSNNReduceRowMean,
    MPSNNReduceRowMin as MPSNNReduceRowMin,
    MPSNNReduceRowSum as MPSNNReduceRowSum,
    MPSNNReduceUnary as MPSNNReduceUnary,
)
from openmps.kernels.reshape import MPSNNReshape as MPSNNReshape, MPSNNReshapeGradient as MPSNNReshapeGradient
from openmps.kernels.resize import (
    MPSNNCropAndResizeBilinear as MPSNNCropAndResizeBilinear,
    MPSNNResizeBilinear as MPSNNResizeBilinear,
)
from openmps.kernels.slice import MPSNNSlice as MPSNNSlice
from openmps.kernels.softmax import (
    MPSCNNLogSoftMax as MPSCNNLogSoftMax,
    MPSCNNLogSoftMaxGradient as MPSCNNLogSoftMaxGradient,
    MPSCNNSoftMax as MPSCNNSoftMax,
    MPSCNNSoftMaxGradient as MPSCNNSoftMaxGradient,
)
from openmps.kernels.upsampling import (
    MPSCNNUpsampling as MPSCNNUpsampling,
    MPSCNNUpsamplingBilinear as MPSCNNUpsamplingBilinear,
    MPSCNNUpsamplingBilinearGradient as MPSCNNUpsamplingBilinearGradient,
    MPSCNNUpsamplingGradient as MPSCNNUpsamplingGradient,
    MPSCNNUpsamplingNearest as MPSCNNUpsamplingNearest,
    MPSCNNUpsamplingNearestGradient as MPSCNNUpsamplingNearestGradient,
)
from openmps.metal.device import (
    MTLBlitCommandEncoder as MTLBlitCommandEncoder,
    MTLBuffer as MTLBuffer,
    MTLCommandBuffer as MTLCommandBuffer,
    MTLCommandQueue as MTLCommandQueue,
    MTLDevice as MTLDevice,
    MTLHeap as MTLHeap,
    MTLResource as MTLResource,
    MTLTexture as MTLTexture,
)
from openmps.metal.heap import MTLHeapDescriptor as MTLHeapDescriptor
from openmps.metal.explanation import (
    CommandBufferExplanation as CommandBufferExplanation,
    ExplainedWork as ExplainedWork,
    WorkOutcome as WorkOutcome,
)
from openmps.metal.mps_command_buffer import (
    MPSCommandBuffer as MPSCommandBuffer,
    MPSHeapProvider as MPSHeapProvider,
    MPSPredicate as MPSPredicate,
)
from openmps.metal.reusable_commands import ReusableCommands as ReusableCommands
from openmps.metal.texture_descriptor import MTLTextureDescriptor as MTLTextureDescriptor
from openmps.runtime.devices import (
    MPSSupportsMTLDevice as MPSSupportsMTLDevice,
    MTLCopyAllDevices as MTLCopyAllDevices,
    MTLCreateSystemDefaultDevice as MTLCreateSystemDefaultDevice,
    mtl_device as mtl_device,
)
from openmps.training.data_sources import (
    ArrayConvolutionDataSource as ArrayConvolutionDataSource,
    TrainableConvolutionDataSource as TrainableConvolutionDataSource,
)
from openmps.training.image_normalization_sources import (
    TrainableGroupNormalizationDataSource as TrainableGroupNormalizationDataSource,
    TrainableInstanceNormalizationDataSource as TrainableInstanceNormalizationDataSource,
)
from openmps.training.normalization_sources import (
    ArrayBatchNormalizationDataSource as ArrayBatchNormalizationDataSource,
    TrainableBatchNormalizationDataSource as TrainableBatchNormalizationDataSource,
)
from openmps.training.source_makers import TrainableDataSources as TrainableDataSources
from openmps.types import (
    CGColorConversionInfo as CGColorConversionInfo,
    CGColorSpace as CGColorSpace,
    MPSAlphaType as MPSAlphaType,
    MPSAliasingStrategy as MPSAliasingStrategy,
    MPSCNNBatchNormalizationFlags as MPSCNNBatchNormalizationFlags,
    MPSCNNBinaryConvolutionFlags as MPSCNNBinaryConvolutionFlags,
    MPSCNNBinaryConvolutionType as MPSCNNBinaryConvolutionType,
    MPSCNNConvolutionFlags as MPSCNNConvolutionFlags,
    MPSCNNConvolutionGradientOption as MPSCNNConvolutionGradientOption,
    MPSCNNConvolutionWeightsLayout as MPSCNNConvolutionWeightsLayout,
    MPSCNNLossType as MPSCNNLossType,
    MPSCNNNeuronType as MPSCNNNeuronType,
    MPSCNNReductionType as MPSCNNReductionType,
    MPSCNNWeightsQuantizationType as MPSCNNWeightsQuantizationType,
    MPSCustomKernelIndex as MPSCustomKernelIndex,
    MPSDataLayout as MPSDataLayout,
    MPSDataType as MPSDataType,
    MPSDeviceCapsValues as MPSDeviceCapsValues,
    MPSDimensionSlice as MPSDimensionSlice,
    MPSImageCoordinate as MPSImageCoordinate,
    MPSImageEdgeMode as MPSImageEdgeMode,
    MPSImageFeatureChannelFormat as MPSImageFeatureChannelFormat,
    MPSImageReadWriteParams as MPSImageReadWriteParams,
    MPSImageHistogramInfo as MPSImageHistogramInfo,
    MPSImageRegion as MPSImageRegion,
    MPSImageType as MPSImageType,
    MPSKernelOptions as MPSKernelOptions,
    MPSMatrixCopyOffsets as MPSMatrixCopyOffsets,
    MPSMatrixDecompositionStatus as MPSMatrixDecompositionStatus,
    MPSMatrixOffset as MPSMatrixOffset,
    MPSMatrixRandomDistribution as MPSMatrixRandomDistribution,
    MPSNNComparisonType as MPSNNComparisonType,
    MPSNNConvolutionAccumulatorPrecisionOption as MPSNNConvolutionAccumulatorPrecisionOption,
    MPSNNPaddingMethod as MPSNNPaddingMethod,
    MPSNNRegularizationType as MPSNNRegularizationType,
    MPSNNTrainingStyle as MPSNNTrainingStyle,
    MPSOffset as MPSOffset,
    MPSOrigin as MPSOrigin,
    MPSPurgeableState as MPSPurgeableState,
    MPSRectNoClip as MPSRectNoClip,
    MPSRegion as MPSRegion,
    MPSRNNBidirectionalCombineMode as MPSRNNBidirectionalCombineMode,
    MPSRNNMatrixId as MPSRNNMatrixId,
    MPSRNNSequenceDirection as MPSRNNSequenceDirection,
    MPSScaleTransform as MPSScaleTransform,
    MPSSize as MPSSize,
    MPSSizeofMPSDataType as MPSSizeofMPSDataType,
    MPSStateResourceType as MPSStateResourceType,
    MPSStateTextureInfo as MPSStateTextureInfo,
    MTLCommandBufferErrorCode as MTLCommandBufferErrorCode,
    MTLCommandBufferStatus as MTLCommandBufferStatus,
    MTLCPUCacheMode as MTLCPUCacheMode,
    MTLOrigin as MTLOrigin,
    MTLPixelFormat as MTLPixelFormat,
    MTLRegion as MTLRegion,
    MTLResourceOptions as MTLResourceOptions,
    MTLSize as MTLSize,
    MTLStorageMode as MTLStorageMode,
    MTLTextureType as MTLTextureType,
    MTLTextureUsage as MTLTextureUsage,
    NSRange as NSRange,
)
