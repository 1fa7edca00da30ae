"""Since which release there is each node class: the first macOS that has it, and the iOS that goes with each macOS.

(The availability that MPSNNGraphNodes.h gives, iOS 16.5.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FIRST = "10.13"
"""The macOS that brought MPSNNGraph."""

IOS: Mapping[str, str] = {
    "10.13": "11.0",
    "10.13.4": "11.3",
    "10.14": "12.0",
    "10.14.1": "12.1",
    "10.15": "13.0",
    "11.0": "14.0",
    "12.0": "15.0",
    "13.0": "16.0",
}
"""The iOS, and tvOS, of each macOS."""

_SINCE: Mapping[str, str] = {
    "10.13": (
        "Concatenation Addition Subtraction Multiplication Division BilinearScale LanczosScale "
        "CNN:Convolution CNN:FullyConnected CNN:ConvolutionTranspose CNN:BinaryConvolution CNN:BinaryFullyConnected "
        "CNN:PoolingMax CNN:PoolingAverage CNN:PoolingL2Norm CNN:DilatedPoolingMax CNN:SoftMax CNN:LogSoftMax "
        "CNN:SpatialNormalization CNN:LocalContrastNormalization CNN:CrossChannelNormalization "
        "CNN:UpsamplingNearest CNN:UpsamplingBilinear CNN:Neuron CNN:NeuronAbsolute CNN:NeuronELU CNN:NeuronReLUN "
        "CNN:NeuronLinear CNN:NeuronReLU CNN:NeuronSigmoid CNN:NeuronHardSigmoid CNN:NeuronSoftPlus "
        "CNN:NeuronSoftSign CNN:NeuronTanH CNN:NeuronPReLU"
    ),
    "10.13.4": (
        "AdditionGradient SubtractionGradient MultiplicationGradient ConcatenationGradient "
        "CNN:ConvolutionGradient CNN:NeuronGradient CNN:NeuronPower CNN:NeuronExponential CNN:NeuronLogarithm "
        "CNN:PoolingMaxGradient CNN:PoolingAverageGradient CNN:PoolingL2NormGradient CNN:DilatedPoolingMaxGradient "
        "CNN:SpatialNormalizationGradient CNN:LocalContrastNormalizationGradient "
        "CNN:CrossChannelNormalizationGradient CNN:InstanceNormalization CNN:InstanceNormalizationGradient "
        "CNN:BatchNormalization CNN:BatchNormalizationGradient CNN:Dropout CNN:DropoutGradient CNN:Loss CNN:YOLOLoss "
        "CNN:SoftMaxGradient CNN:LogSoftMaxGradient CNN:UpsamplingNearestGradient CNN:UpsamplingBilinearGradient"
    ),
    "10.14.1": (
        "Comparison Reshape ReshapeGradient Pad PadGradient ReductionRowMin ReductionRowMax ReductionRowMean "
        "ReductionRowSum ReductionColumnMin ReductionColumnMax ReductionColumnMean ReductionColumnSum "
        "ReductionFeatureChannelsMin ReductionFeatureChannelsMax ReductionFeatureChannelsMean "
        "ReductionFeatureChannelsSum ReductionFeatureChannelsArgumentMin ReductionFeatureChannelsArgumentMax "
        "ReductionSpatialMean ReductionSpatialMeanGradient"
    ),
    "10.15": (
        "ForwardLoss LossGradient InitialGradient GramMatrixCalculation GramMatrixCalculationGradient "
        "CNN:FullyConnectedGradient CNN:ConvolutionTransposeGradient CNN:GroupNormalization "
        "CNN:GroupNormalizationGradient CNN:NeuronGeLU"
    ),
}


def _class_name(word: str) -> str:
    return f"MPS{word.replace(':', '')}Node" if word.startswith("CNN:") else f"MPSNN{word}Node"


SINCE: Mapping[str, str] = {_class_name(word): macos for macos, words in _SINCE.items() for word in words.split()}
"""The first macOS of each node class."""


def order_of(macos: str) -> tuple[int, ...]:
    """``10.14.1`` as numbers, which compare as releases follow one another."""
    return tuple(int(part) for part in macos.split("."))


def newest(releases: Iterable[str]) -> str:
    """The latest of some releases of macOS, the first one if there are none."""
    return max([FIRST, *releases], key=order_of)
