"""Metal Performance Shaders' convolutional networks off the Mac: the same classes, numbers and weight files."""

from openmps.core.allocator import (
    MPSImageAllocator,
)
from openmps.core.base_kernel import (
    MPSKernel,
)
from openmps.core.binary_kernel import (
    MPSCNNBinaryKernel,
)
from openmps.core.gradient_kernel import (
    MPSCNNGradientKernel,
)
from openmps.core.gradient_state import (
    MPSNNBinaryGradientState,
    MPSNNGradientState,
)
from openmps.core.image import (
    MPSImage,
)
from openmps.core.image_batch import (
    MPSImageBatch,
    MPSImageBatchIncrementReadCount,
    MPSImageBatchIterate,
    MPSImageBatchResourceSize,
    MPSImageBatchSynchronize,
)
from openmps.core.image_descriptor import (
    MPSImageDescriptor,
)
from openmps.core.neuron_descriptor import (
    MPSNNNeuronDescriptor,
)
from openmps.core.padding import (
    MPSNNDefaultPadding,
    MPSNNPadding,
)
from openmps.core.padding_explicit import (
    ExplicitPadding,
)
from openmps.core.padding_names import (
    MPSGetPaddingPolicy,
)
from openmps.core.padding_report import (
    PaddingExplanation,
    explain_padding,
)
from openmps.core.state import (
    MPSState,
    MPSStateBatch,
    MPSStateBatchIncrementReadCount,
    MPSStateBatchResourceSize,
    MPSStateBatchSynchronize,
)
from openmps.core.state_resources import (
    MPSStateResourceList,
)
from openmps.core.temporary_image import (
    MPSTemporaryImage,
)
from openmps.core.unary_kernel import (
    MPSCNNKernel,
)
from openmps.core.vector import (
    MPSMatrix,
    MPSTemporaryMatrix,
    MPSTemporaryVector,
    MPSVector,
)
from openmps.core.vector_descriptor import (
    MPSMatrixDescriptor,
    MPSVectorDescriptor,
)
from openmps.errors import (
    MPSArgumentError,
    MPSDeviceError,
    MPSError,
    MPSFileError,
    MPSLifetimeError,
    MPSMemoryError,
    MPSNonFiniteError,
    MPSTrainingWarning,
    MPSTypeError,
    MTLCommandBufferError,
    MTLExecutionError,
)
from openmps.graph.arithmetic_nodes import (
    MPSNNAdditionGradientNode,
    MPSNNAdditionNode,
    MPSNNArithmeticGradientNode,
    MPSNNBinaryArithmeticNode,
)
from openmps.graph.concatenation_nodes import (
    MPSNNConcatenationGradientNode,
    MPSNNConcatenationNode,
)
from openmps.graph.convolution_nodes import (
    MPSCNNConvolutionGradientNode,
    MPSCNNConvolutionNode,
    MPSCNNFullyConnectedGradientNode,
    MPSCNNFullyConnectedNode,
)
from openmps.graph.dropout_nodes import (
    MPSCNNDropoutGradientNode,
    MPSCNNDropoutNode,
)
from openmps.graph.graph import (
    MPSNNGraph,
)
from openmps.graph.loss_nodes import (
    MPSCNNLossNode,
)
from openmps.graph.neuron_nodes import (
    MPSCNNNeuronAbsoluteNode,
    MPSCNNNeuronELUNode,
    MPSCNNNeuronExponentialNode,
    MPSCNNNeuronGeLUNode,
    MPSCNNNeuronGradientNode,
    MPSCNNNeuronHardSigmoidNode,
    MPSCNNNeuronLinearNode,
    MPSCNNNeuronLogarithmNode,
    MPSCNNNeuronNode,
    MPSCNNNeuronPowerNode,
    MPSCNNNeuronPReLUNode,
    MPSCNNNeuronReLUNNode,
    MPSCNNNeuronReLUNode,
    MPSCNNNeuronSigmoidNode,
    MPSCNNNeuronSoftPlusNode,
    MPSCNNNeuronSoftSignNode,
    MPSCNNNeuronTanHNode,
)
from openmps.graph.nodes import (
    Handle,
    MPSCNNConvolutionGradientStateNode,
    MPSHandle,
    MPSNNArithmeticGradientStateNode,
    MPSNNBinaryGradientStateNode,
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNGradientStateNode,
    MPSNNImageNode,
    MPSNNLabelsNode,
    MPSNNMultiaryGradientStateNode,
    MPSNNStateNode,
)
from openmps.graph.pooling_nodes import (
    MPSCNNPoolingAverageGradientNode,
    MPSCNNPoolingAverageNode,
    MPSCNNPoolingGradientNode,
    MPSCNNPoolingMaxGradientNode,
    MPSCNNPoolingMaxNode,
    MPSCNNPoolingNode,
)
from openmps.graph.softmax_nodes import (
    MPSCNNLogSoftMaxGradientNode,
    MPSCNNLogSoftMaxNode,
    MPSCNNSoftMaxGradientNode,
    MPSCNNSoftMaxNode,
)
from openmps.graph.summary import (
    GraphSummary,
    graph_summary,
)
from openmps.kernels.arithmetic import (
    MPSCNNAdd,
    MPSCNNAddGradient,
    MPSCNNArithmetic,
    MPSCNNArithmeticGradient,
    MPSCNNArithmeticGradientState,
)
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionDataSource,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient,
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionWeightsAndBiasesState,
    MPSCNNDepthWiseConvolutionDescriptor,
    MPSCNNFullyConnected,
    MPSCNNFullyConnectedGradient,
)
from openmps.kernels.dropout import (
    MPSCNNDropout,
    MPSCNNDropoutGradient,
    MPSCNNDropoutGradientState,
)
from openmps.kernels.loss.descriptor import (
    MPSCNNLossDescriptor,
)
from openmps.kernels.loss.kernel import (
    MPSCNNLoss,
)
from openmps.kernels.loss.labels import (
    MPSCNNLossDataDescriptor,
    MPSCNNLossLabels,
)
from openmps.kernels.neuron import (
    MPSCNNNeuron,
    MPSCNNNeuronAbsolute,
    MPSCNNNeuronELU,
    MPSCNNNeuronExponential,
    MPSCNNNeuronGradient,
    MPSCNNNeuronHardSigmoid,
    MPSCNNNeuronLinear,
    MPSCNNNeuronLogarithm,
    MPSCNNNeuronPower,
    MPSCNNNeuronPReLU,
    MPSCNNNeuronReLU,
    MPSCNNNeuronReLUN,
    MPSCNNNeuronSigmoid,
    MPSCNNNeuronSoftPlus,
    MPSCNNNeuronSoftSign,
    MPSCNNNeuronTanH,
)
from openmps.kernels.optimizers.adam import (
    MPSNNOptimizerAdam,
)
from openmps.kernels.optimizers.descriptor import (
    MPSNNOptimizerDescriptor,
)
from openmps.kernels.optimizers.optimizer import (
    MPSNNOptimizer,
)
from openmps.kernels.optimizers.rmsprop import (
    MPSNNOptimizerRMSProp,
)
from openmps.kernels.optimizers.stochastic_gradient_descent import (
    MPSNNOptimizerStochasticGradientDescent,
)
from openmps.kernels.pooling import (
    MPSCNNPooling,
    MPSCNNPoolingAverage,
    MPSCNNPoolingAverageGradient,
    MPSCNNPoolingGradient,
    MPSCNNPoolingMax,
    MPSCNNPoolingMaxGradient,
)
from openmps.kernels.softmax import (
    MPSCNNLogSoftMax,
    MPSCNNLogSoftMaxGradient,
    MPSCNNSoftMax,
    MPSCNNSoftMaxGradient,
)
from openmps.metal.blit import (
    MTLBlitCommandEncoder,
)
from openmps.metal.command import (
    MTLCommandBuffer,
)
from openmps.metal.device import (
    MPSSupportsMTLDevice,
    MTLCopyAllDevices,
    MTLCreateSystemDefaultDevice,
    MTLDevice,
    mtl_device,
)
from openmps.metal.heap import (
    MTLHeap,
    MTLHeapDescriptor,
)
from openmps.metal.memory import (
    MTLBuffer,
    MTLResource,
)
from openmps.metal.mps_command_buffer import (
    MPSCommandBuffer,
    MPSHeapProvider,
    MPSPredicate,
)
from openmps.metal.queue import (
    MTLCommandQueue,
)
from openmps.training.data_sources import (
    ArrayConvolutionDataSource,
    TrainableConvolutionDataSource,
)
from openmps.types import (
    MPSAliasingStrategy,
    MPSCNNBatchNormalizationFlags,
    MPSCNNBinaryConvolutionFlags,
    MPSCNNBinaryConvolutionType,
    MPSCNNConvolutionFlags,
    MPSCNNConvolutionGradientOption,
    MPSCNNConvolutionWeightsLayout,
    MPSCNNLossType,
    MPSCNNNeuronType,
    MPSCNNReductionType,
    MPSCNNWeightsQuantizationType,
    MPSCustomKernelIndex,
    MPSDataLayout,
    MPSDataType,
    MPSDeviceCapsValues,
    MPSDimensionSlice,
    MPSImageCoordinate,
    MPSImageEdgeMode,
    MPSImageFeatureChannelFormat,
    MPSImageReadWriteParams,
    MPSImageRegion,
    MPSImageType,
    MPSKernelOptions,
    MPSNNComparisonType,
    MPSNNConvolutionAccumulatorPrecisionOption,
    MPSNNPaddingMethod,
    MPSNNRegularizationType,
    MPSNNTrainingStyle,
    MPSOffset,
    MPSOrigin,
    MPSPurgeableState,
    MPSRectNoClip,
    MPSRegion,
    MPSRNNBidirectionalCombineMode,
    MPSRNNMatrixId,
    MPSRNNSequenceDirection,
    MPSScaleTransform,
    MPSSize,
    MPSSizeofMPSDataType,
    MPSStateResourceType,
    MPSStateTextureInfo,
    MTLCommandBufferErrorCode,
    MTLCommandBufferStatus,
    MTLCPUCacheMode,
    MTLOrigin,
    MTLPixelFormat,
    MTLRegion,
    MTLResourceOptions,
    MTLSize,
    MTLStorageMode,
    MTLTextureType,
    MTLTextureUsage,
    NSRange,
)

__version__ = "0.1.0"

__all__ = [
    "ArrayConvolutionDataSource",
    "ExplicitPadding",
    "GraphSummary",
    "Handle",
    "MPSAliasingStrategy",
    "MPSArgumentError",
    "MPSCNNAdd",
    "MPSCNNAddGradient",
    "MPSCNNArithmetic",
    "MPSCNNArithmeticGradient",
    "MPSCNNArithmeticGradientState",
    "MPSCNNBatchNormalizationFlags",
    "MPSCNNBinaryConvolutionFlags",
    "MPSCNNBinaryConvolutionType",
    "MPSCNNBinaryKernel",
    "MPSCNNConvolution",
    "MPSCNNConvolutionDataSource",
    "MPSCNNConvolutionDescriptor",
    "MPSCNNConvolutionFlags",
    "MPSCNNConvolutionGradient",
    "MPSCNNConvolutionGradientNode",
    "MPSCNNConvolutionGradientOption",
    "MPSCNNConvolutionGradientState",
    "MPSCNNConvolutionGradientStateNode",
    "MPSCNNConvolutionNode",
    "MPSCNNConvolutionWeightsAndBiasesState",
    "MPSCNNConvolutionWeightsLayout",
    "MPSCNNDepthWiseConvolutionDescriptor",
    "MPSCNNDropout",
    "MPSCNNDropoutGradient",
    "MPSCNNDropoutGradientNode",
    "MPSCNNDropoutGradientState",
    "MPSCNNDropoutNode",
    "MPSCNNFullyConnected",
    "MPSCNNFullyConnectedGradient",
    "MPSCNNFullyConnectedGradientNode",
    "MPSCNNFullyConnectedNode",
    "MPSCNNGradientKernel",
    "MPSCNNKernel",
    "MPSCNNLogSoftMax",
    "MPSCNNLogSoftMaxGradient",
    "MPSCNNLogSoftMaxGradientNode",
    "MPSCNNLogSoftMaxNode",
    "MPSCNNLoss",
    "MPSCNNLossDataDescriptor",
    "MPSCNNLossDescriptor",
    "MPSCNNLossLabels",
    "MPSCNNLossNode",
    "MPSCNNLossType",
    "MPSCNNNeuron",
    "MPSCNNNeuronAbsolute",
    "MPSCNNNeuronAbsoluteNode",
    "MPSCNNNeuronELU",
    "MPSCNNNeuronELUNode",
    "MPSCNNNeuronExponential",
    "MPSCNNNeuronExponentialNode",
    "MPSCNNNeuronGeLUNode",
    "MPSCNNNeuronGradient",
    "MPSCNNNeuronGradientNode",
    "MPSCNNNeuronHardSigmoid",
    "MPSCNNNeuronHardSigmoidNode",
    "MPSCNNNeuronLinear",
    "MPSCNNNeuronLinearNode",
    "MPSCNNNeuronLogarithm",
    "MPSCNNNeuronLogarithmNode",
    "MPSCNNNeuronNode",
    "MPSCNNNeuronPReLU",
    "MPSCNNNeuronPReLUNode",
    "MPSCNNNeuronPower",
    "MPSCNNNeuronPowerNode",
    "MPSCNNNeuronReLU",
    "MPSCNNNeuronReLUN",
    "MPSCNNNeuronReLUNNode",
    "MPSCNNNeuronReLUNode",
    "MPSCNNNeuronSigmoid",
    "MPSCNNNeuronSigmoidNode",
    "MPSCNNNeuronSoftPlus",
    "MPSCNNNeuronSoftPlusNode",
    "MPSCNNNeuronSoftSign",
    "MPSCNNNeuronSoftSignNode",
    "MPSCNNNeuronTanH",
    "MPSCNNNeuronTanHNode",
    "MPSCNNNeuronType",
    "MPSCNNPooling",
    "MPSCNNPoolingAverage",
    "MPSCNNPoolingAverageGradient",
    "MPSCNNPoolingAverageGradientNode",
    "MPSCNNPoolingAverageNode",
    "MPSCNNPoolingGradient",
    "MPSCNNPoolingGradientNode",
    "MPSCNNPoolingMax",
    "MPSCNNPoolingMaxGradient",
    "MPSCNNPoolingMaxGradientNode",
    "MPSCNNPoolingMaxNode",
    "MPSCNNPoolingNode",
    "MPSCNNReductionType",
    "MPSCNNSoftMax",
    "MPSCNNSoftMaxGradient",
    "MPSCNNSoftMaxGradientNode",
    "MPSCNNSoftMaxNode",
    "MPSCNNWeightsQuantizationType",
    "MPSCommandBuffer",
    "MPSCustomKernelIndex",
    "MPSDataLayout",
    "MPSDataType",
    "MPSDeviceCapsValues",
    "MPSDeviceError",
    "MPSDimensionSlice",
    "MPSError",
    "MPSFileError",
    "MPSGetPaddingPolicy",
    "MPSHandle",
    "MPSHeapProvider",
    "MPSImage",
    "MPSImageAllocator",
    "MPSImageBatch",
    "MPSImageBatchIncrementReadCount",
    "MPSImageBatchIterate",
    "MPSImageBatchResourceSize",
    "MPSImageBatchSynchronize",
    "MPSImageCoordinate",
    "MPSImageDescriptor",
    "MPSImageEdgeMode",
    "MPSImageFeatureChannelFormat",
    "MPSImageReadWriteParams",
    "MPSImageRegion",
    "MPSImageType",
    "MPSKernel",
    "MPSKernelOptions",
    "MPSLifetimeError",
    "MPSMatrix",
    "MPSMatrixDescriptor",
    "MPSMemoryError",
    "MPSNNAdditionGradientNode",
    "MPSNNAdditionNode",
    "MPSNNArithmeticGradientNode",
    "MPSNNArithmeticGradientStateNode",
    "MPSNNBinaryArithmeticNode",
    "MPSNNBinaryGradientState",
    "MPSNNBinaryGradientStateNode",
    "MPSNNComparisonType",
    "MPSNNConcatenationGradientNode",
    "MPSNNConcatenationNode",
    "MPSNNConvolutionAccumulatorPrecisionOption",
    "MPSNNDefaultPadding",
    "MPSNNFilterNode",
    "MPSNNGradientFilterNode",
    "MPSNNGradientState",
    "MPSNNGradientStateNode",
    "MPSNNGraph",
    "MPSNNImageNode",
    "MPSNNLabelsNode",
    "MPSNNMultiaryGradientStateNode",
    "MPSNNNeuronDescriptor",
    "MPSNNOptimizer",
    "MPSNNOptimizerAdam",
    "MPSNNOptimizerDescriptor",
    "MPSNNOptimizerRMSProp",
    "MPSNNOptimizerStochasticGradientDescent",
    "MPSNNPadding",
    "MPSNNPaddingMethod",
    "MPSNNRegularizationType",
    "MPSNNStateNode",
    "MPSNNTrainingStyle",
    "MPSNonFiniteError",
    "MPSOffset",
    "MPSOrigin",
    "MPSPredicate",
    "MPSPurgeableState",
    "MPSRNNBidirectionalCombineMode",
    "MPSRNNMatrixId",
    "MPSRNNSequenceDirection",
    "MPSRectNoClip",
    "MPSRegion",
    "MPSScaleTransform",
    "MPSSize",
    "MPSSizeofMPSDataType",
    "MPSState",
    "MPSStateBatch",
    "MPSStateBatchIncrementReadCount",
    "MPSStateBatchResourceSize",
    "MPSStateBatchSynchronize",
    "MPSStateResourceList",
    "MPSStateResourceType",
    "MPSStateTextureInfo",
    "MPSSupportsMTLDevice",
    "MPSTemporaryImage",
    "MPSTemporaryMatrix",
    "MPSTemporaryVector",
    "MPSTrainingWarning",
    "MPSTypeError",
    "MPSVector",
    "MPSVectorDescriptor",
    "MTLBlitCommandEncoder",
    "MTLBuffer",
    "MTLCPUCacheMode",
    "MTLCommandBuffer",
    "MTLCommandBufferError",
    "MTLCommandBufferErrorCode",
    "MTLCommandBufferStatus",
    "MTLCommandQueue",
    "MTLCopyAllDevices",
    "MTLCreateSystemDefaultDevice",
    "MTLDevice",
    "MTLExecutionError",
    "MTLHeap",
    "MTLHeapDescriptor",
    "MTLOrigin",
    "MTLPixelFormat",
    "MTLRegion",
    "MTLResource",
    "MTLResourceOptions",
    "MTLSize",
    "MTLStorageMode",
    "MTLTextureType",
    "MTLTextureUsage",
    "NSRange",
    "PaddingExplanation",
    "TrainableConvolutionDataSource",
    "explain_padding",
    "graph_summary",
    "mtl_device",
]
