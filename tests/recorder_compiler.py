"""recorder/record.swift over stubs of Apple's frameworks, which ask openmps what a Mac would compute."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openmps as mps
from openmps.conformance.answers import answer_of
from openmps.conformance.cases import Case
from swift_compiler import COMPILER

ROOT = Path(__file__).resolve().parents[1]
RECORDER = ROOT / "recorder" / "record.swift"
STUBS = Path(__file__).parent / "recorder_stubs"
_WINDOW = "kernelWidth:Int kernelHeight:Int"
_STRIDE = "strideInPixelsX:Int strideInPixelsY:Int"
_DILATION = "dilationRateX:Int dilationRateY:Int"
_FACTORS = "integerScaleFactorX:Int integerScaleFactorY:Int"
_DROPOUT = "keepProbability:Float seed:Int maskStrideInPixels:MTLSize"
_BINARY_FORM = (
    "{0}:Weights outputBiasTerms:Outputs outputScaleTerms:Outputs inputBiasTerms:Inputs inputScaleTerms:Inputs "
    "type:Type flags:Flags"
)
_UNARY, _BINARY, _GRADIENT = "MPSCNNKernel", "MPSCNNBinaryKernel", "MPSCNNGradientKernel"
_FILTER = "MPSUnaryImageKernel"
_REDUCTIONS = [
    *(
        f"MPSNNReduce{axis}{name}"
        for axis in ("Row", "Column", "FeatureChannels")
        for name in "Min Max Mean Sum".split()
    ),
    *(f"MPSNNReduceFeatureChannelsArgument{name}" for name in ("Min", "Max")),
]
KERNELS: tuple[tuple[str, str, str], ...] = (
    ("MPSCNNSoftMax MPSCNNLogSoftMax MPSNNReshape MPSNNSlice MPSNNInitialGradient", _UNARY, ""),
    ("MPSCNNAdd MPSCNNSubtract MPSCNNMultiply MPSCNNDivide MPSNNCompare MPSNNGridSample", _BINARY, ""),
    (" ".join(_REDUCTIONS), "MPSNNReduceUnary", ""),
    ("MPSNNReduceFeatureChannelsAndWeightsMean", "MPSNNReduceBinary", ""),
    ("MPSNNReduceFeatureChannelsAndWeightsSum", "MPSNNReduceBinary", "doWeightedSumByNonZeroWeights:Bool"),
    ("MPSCNNSoftMaxGradient MPSCNNLogSoftMaxGradient MPSNNReshapeGradient MPSNNPadGradient", _GRADIENT, ""),
    ("MPSCNNInstanceNormalizationGradient MPSCNNGroupNormalizationGradient", _GRADIENT, ""),
    ("MPSCNNPoolingMax MPSCNNPoolingAverage MPSCNNPoolingL2Norm", _UNARY, f"{_WINDOW} {_STRIDE}"),
    ("MPSCNNPoolingMaxGradient MPSCNNPoolingAverageGradient MPSCNNPoolingL2NormGradient", _GRADIENT,
     f"{_WINDOW} {_STRIDE}"),
    ("MPSCNNDilatedPoolingMax", _UNARY, f"{_WINDOW} {_DILATION} {_STRIDE}"),
    ("MPSCNNDilatedPoolingMaxGradient", _GRADIENT, f"{_WINDOW} {_DILATION} {_STRIDE}"),
    ("MPSCNNSpatialNormalization MPSCNNLocalContrastNormalization", _UNARY, _WINDOW),
    ("MPSCNNSpatialNormalizationGradient MPSCNNLocalContrastNormalizationGradient", _GRADIENT, _WINDOW),
    ("MPSCNNCrossChannelNormalization", _UNARY, "kernelSize:Int"),
    ("MPSCNNCrossChannelNormalizationGradient", _GRADIENT, "kernelSize:Int"),
    ("MPSCNNConvolution MPSCNNFullyConnected MPSCNNConvolutionTranspose", _UNARY, "weights:Weights"),
    ("MPSCNNConvolutionGradient MPSCNNFullyConnectedGradient MPSCNNConvolutionTransposeGradient", _GRADIENT,
     "weights:Weights"),
    ("MPSCNNBatchNormalization", _UNARY, "dataSource:Batch fusedNeuronDescriptor:Neuron?"),
    ("MPSCNNInstanceNormalization", _UNARY, "dataSource:Instance"),
    ("MPSCNNGroupNormalization", _UNARY, "dataSource:Group"),
    ("MPSCNNDropout", _UNARY, _DROPOUT),
    ("MPSCNNDropoutGradient", _GRADIENT, _DROPOUT),
    ("MPSCNNAddGradient MPSCNNSubtractGradient MPSCNNMultiplyGradient", _GRADIENT, "isSecondarySourceFilter:Bool"),
    ("MPSNNPad", _UNARY,
     "paddingSizeBefore:MPSImageCoordinate paddingSizeAfter:MPSImageCoordinate fillValueArray:Data?"),
    ("MPSNNGramMatrixCalculation", _UNARY, "alpha:Float"),
    ("MPSNNGramMatrixCalculationGradient", _GRADIENT, "alpha:Float"),
    ("MPSCNNNeuron", _UNARY, "neuronDescriptor:Neuron"),
    ("MPSCNNNeuronGradient", _GRADIENT, "neuronDescriptor:Neuron"),
    ("MPSCNNNeuronAbsolute MPSCNNNeuronSigmoid MPSCNNNeuronSoftSign", _UNARY, ""),
    ("MPSCNNNeuronReLU MPSCNNNeuronELU", _UNARY, "a:Float"),
    ("MPSCNNNeuronLinear MPSCNNNeuronHardSigmoid MPSCNNNeuronTanH MPSCNNNeuronSoftPlus MPSCNNNeuronReLUN", _UNARY,
     "a:Float b:Float"),
    ("MPSCNNNeuronPower MPSCNNNeuronExponential MPSCNNNeuronLogarithm", _UNARY, "a:Float b:Float c:Float"),
    ("MPSCNNNeuronPReLU", _UNARY, "a:Floats count:Int"),
    ("MPSCNNUpsamplingNearest", _UNARY, _FACTORS),
    ("MPSCNNUpsamplingBilinear", _UNARY, f"{_FACTORS} alignCorners:Bool"),
    ("MPSCNNUpsamplingNearestGradient MPSCNNUpsamplingBilinearGradient", _GRADIENT, _FACTORS),
    ("MPSNNResizeBilinear", _UNARY, "resizeWidth:Int resizeHeight:Int alignCorners:Bool"),
    ("MPSNNCropAndResizeBilinear", _UNARY, "resizeWidth:Int resizeHeight:Int numberOfRegions:Int regions:Parts"),
    ("MPSNNLocalCorrelation", "MPSNNReduceBinary", "windowInX:Int windowInY:Int strideInX:Int strideInY:Int"),
    ("MPSCNNBinaryConvolution MPSCNNBinaryFullyConnected", _UNARY, _BINARY_FORM.format("convolutionData")),
    ("MPSNNForwardLoss", "ForwardLoss", "lossDescriptor:Loss"),
    ("MPSNNLossGradient", "LossGradient", "lossDescriptor:Loss"),
    ("MPSCNNLoss", "LabelledLoss", "lossDescriptor:Loss"),
    ("MPSCNNYOLOLoss", "LabelledLoss", "lossDescriptor:Boxes"),
    ("MPSImageBox MPSImageTent", _FILTER, _WINDOW),
    ("MPSImageConvolution", _FILTER, f"{_WINDOW} weights:Window"),
    ("MPSImageDilate", _FILTER, f"{_WINDOW} values:Window"),
    ("MPSImageGaussianBlur", _FILTER, "sigma:Float"),
    ("MPSImageSobel", _FILTER, "linearGrayColorTransform:Colours"),
    ("MPSImageCanny", _FILTER, "|linearToGrayScaleTransform:Colours sigma:Float"),
    ("MPSImageMedian", _FILTER, "kernelDiameter:Int"),
    ("MPSImageGuidedFilter", "GuidedFilter", "kernelDiameter:Int"),
    ("MPSImageBilinearScale MPSImageLanczosScale MPSImageIntegral MPSImageEuclideanDistanceTransform "
     "MPSImageTranspose MPSImageStatisticsMeanAndVariance", _FILTER, ""),
    ("MPSImageDivide", "MPSBinaryImageKernel", ""),
    ("MPSImageReduceRowSum", "MPSImageReduceUnary", ""),
    ("MPSImageThresholdBinary", _FILTER,
     "thresholdValue:Float maximumValue:Float linearGrayColorTransform:Colours"),
    ("MPSImageThresholdToZero", _FILTER, "thresholdValue:Float linearGrayColorTransform:Colours"),
    ("MPSImageConversion", _FILTER, "srcAlpha:Alpha destAlpha:Alpha backgroundColor:None conversionInfo:None"),
    ("MPSImageHistogram", "CountingFilter", "histogramInfo:Bins"),
    ("MPSImageHistogramEqualization", "EqualizingFilter", "histogramInfo:Bins"),
    ("MPSImageHistogramSpecification", "SpecifyingFilter", "histogramInfo:Bins"),
    ("MPSMatrixMultiplication", "MatrixProduct",
     "transposeLeft:Bool transposeRight:Bool resultRows:Int resultColumns:Int interiorColumns:Int alpha:Double "
     "beta:Double"),
    ("MPSMatrixSolveTriangular", "MatrixSolution",
     "right:Bool upper:Bool transpose:Bool unit:Bool order:Int numberOfRightHandSides:Int alpha:Double"),
    ("MPSMatrixSolveCholesky", "MatrixSolution", "upper:Bool order:Int numberOfRightHandSides:Int"),
)  # fmt: skip
"""Classes, their base, and the initializer behind the device."""
_SIZED = "source kernelWidth:Int kernelHeight:Int strideInPixelsX:Int strideInPixelsY:Int"
_NODES: tuple[tuple[str, str], ...] = (
    (" ".join(f"MPSNN{name}Node" for name in "Addition Subtraction Multiplication Division Comparison".split()),
     "leftSource rightSource"),
    ("MPSCNNSoftMaxNode MPSCNNLogSoftMaxNode MPSNNInitialGradientNode MPSNNReductionSpatialMeanNode", "source"),
    (" ".join(f"{name.replace('MPSNNReduce', 'MPSNNReduction')}Node" for name in _REDUCTIONS), "source"),
    ("MPSCNNPoolingAverageNode MPSCNNPoolingMaxNode", f"source filterSize:Int stride:Int|{_SIZED}"),
    ("MPSCNNPoolingL2NormNode", _SIZED),
    ("MPSCNNDilatedPoolingMaxNode", f"{_SIZED} {_DILATION}"),
    ("MPSCNNSpatialNormalizationNode MPSCNNLocalContrastNormalizationNode MPSCNNCrossChannelNormalizationNode",
     "source kernelSize:Int"),
    ("MPSCNNConvolutionNode MPSCNNFullyConnectedNode", "source weights:Weights"),
    ("MPSCNNConvolutionTransposeNode", "source convolutionGradientState:State weights:Weights"),
    ("MPSCNNBatchNormalizationNode", "source dataSource:Batch"),
    ("MPSCNNInstanceNormalizationNode", "source dataSource:Instance"),
    ("MPSCNNGroupNormalizationNode", "source dataSource:Group"),
    ("MPSCNNNeuronNode", "source descriptor:Neuron"),
    ("MPSCNNDropoutNode", f"source {_DROPOUT}"),
    ("MPSNNPadNode", "source paddingSizeBefore:MPSImageCoordinate paddingSizeAfter:MPSImageCoordinate edgeMode:Edge"),
    ("MPSCNNUpsamplingNearestNode", f"source {_FACTORS}"),
    ("MPSCNNUpsamplingBilinearNode", f"source {_FACTORS} alignCorners:Bool"),
    ("MPSNNGramMatrixCalculationNode", "source alpha:Float"),
    ("MPSCNNLossNode", "source lossDescriptor:Loss"),
    ("MPSCNNYOLOLossNode", "source lossDescriptor:Boxes"),
    ("MPSCNNBinaryConvolutionNode MPSCNNBinaryFullyConnectedNode", f"source {_BINARY_FORM.format('weights')}"),
    (" ".join(f"MPSCNNNeuron{name}Node" for name in (
        "ReLU ReLUN ELU HardSigmoid SoftPlus TanH Power Exponential Logarithm Linear".split())), "source"),
)  # fmt: skip
"""Classes, and their initializers: images, and behind them other arguments."""
_TYPES: Mapping[str, tuple[str, str]] = {
    "Int": ("Int", "{0}"),
    "Bool": ("Bool", "{0}"),
    "Float": ("Float", "Double({0})"),
    "Double": ("Double", "{0}"),
    "MTLSize": ("MTLSize", '["size": [{0}.width, {0}.height, {0}.depth]] as Entry'),
    "MPSImageCoordinate": ("MPSImageCoordinate", '["coordinate": [{0}.x, {0}.y, {0}.channel]] as Entry'),
    "Data?": ("Data?", "{0}.map(floats)"),
    "Neuron": ("MPSNNNeuronDescriptor", "{0}.entry"),
    "Neuron?": ("MPSNNNeuronDescriptor?", "{0}?.entry"),
    "Weights": ("MPSCNNConvolutionDataSource", "MetalPerformanceShaders.entry({0})"),
    "Batch": ("MPSCNNBatchNormalizationDataSource", "rows({0}, {0}.numberOfFeatureChannels())"),
    "Instance": ("MPSCNNInstanceNormalizationDataSource", "rows({0}, {0}.numberOfFeatureChannels)"),
    "Group": ("MPSCNNGroupNormalizationDataSource", "rows({0}, {0}.numberOfFeatureChannels, {0}.numberOfGroups)"),
    "Parts": ("UnsafePointer<MPSRegion>", "parts({0}, numberOfRegions)"),
    "Outputs": ("UnsafePointer<Float>?", 'row({0}, {1}, "outputFeatureChannels")'),
    "Inputs": ("UnsafePointer<Float>?", 'row({0}, {1}, "inputFeatureChannels")'),
    "Type": ("MPSCNNBinaryConvolutionType", "Int({0}.rawValue)"),
    "Flags": ("MPSCNNBinaryConvolutionFlags", "Int({0}.rawValue)"),
    "Edge": ("MPSImageEdgeMode", "Int({0}.rawValue)"),
    "Loss": ("MPSCNNLossDescriptor", "{0}.entry"),
    "Boxes": ("MPSCNNYOLOLossDescriptor", "{0}.entry"),
    "State": ("MPSCNNConvolutionGradientStateNode?", "Entry?.none"),
    "Window": ("UnsafePointer<Float>", "listed({0}, kernelWidth * kernelHeight)"),
    "Colours": ("UnsafePointer<Float>", "listed({0}, 3)"),
    "Alpha": ("MPSAlphaType", "Int({0}.rawValue)"),
    "Bins": ("UnsafePointer<MPSImageHistogramInfo>", "{0}.pointee.entry"),
    "None": ("UnsafePointer<Float>?", "Entry?.none"),
    "Floats": ("UnsafePointer<Float>",
               "array([count], Array(UnsafeBufferPointer(start: {0}, count: count)))"),
}  # fmt: skip
"""Swift's type of an argument, and how a case has it; ``{1}`` is the data source of a convolution's terms."""


def _classes() -> Iterator[str]:
    yield "import Foundation\nimport Metal\n"
    for names, base, form in KERNELS:
        for name in names.split():
            forms = [_initializer("device: MTLDevice", each, "") for each in form.split("|")]
            yield _class(name, base, "".join(forms))
    for names, forms in _NODES:
        made = "".join(map(_of_images, forms.split("|")))
        for name in names.split():
            yield _class(name, "MPSNNFilterNode", made)


def _class(name: str, base: str, initializers: str) -> str:
    return f"public final class {name}: {base} {{\n{initializers}}}\n"


def _of_images(form: str) -> str:
    """The initializer of a node."""
    images = [each for each in form.split() if ":" not in each]
    listed = ", ".join(f'"{each}": [{each}]' for each in images)
    taken = ", ".join(f"{each}: MPSNNImageNode" for each in images)
    return _initializer(taken, " ".join(each for each in form.split() if ":" in each), f", images: [{listed}]")


def _initializer(first: str, form: str, behind: str) -> str:
    pairs = [each.split(":") for each in form.split()]
    taken = "".join(f", {label}: {_TYPES[kind][0]}" for label, kind in pairs)
    data = next((label for label, kind in pairs if kind == "Weights"), "")
    noted = "".join(f'    given["{label}"] = {_TYPES[kind][1].format(label, data)}\n' for label, kind in pairs)
    keyword = "var" if pairs else "let"
    kept = f"    dataSource = {data}\n" if data and behind else ""
    return (
        f"  public init({first}{taken}) {{\n    {keyword} given: Entry = [:]\n{noted}"
        f"    super.init(given{behind})\n{kept}  }}\n"
    )


def built(folder: Path) -> Path:
    """The recorder compiled over the stubs."""
    (folder / "Classes.swift").write_text("".join(_classes()))
    for stub in STUBS.glob("*.swift"):
        shutil.copy(stub, folder)
    for module, more in (("Metal", ()), ("MetalPerformanceShaders", ("ImageFilters.swift", "Classes.swift"))):
        _compile(folder, "-emit-module", "-emit-library", "-static", "-module-name", module, "-parse-as-library",
                 "-wmo", "-suppress-warnings", "-swift-version", "5", "-I", ".", f"{module}.swift", *more,
                 "-o", f"lib{module}.a")  # fmt: skip
    text = re.sub(r"@objc\([^)]*\) ", "", RECORDER.read_text())  # names for Objective-C
    (folder / "main.swift").write_text(text)
    _compile(folder, "-suppress-warnings", "-swift-version", "6", "-I", ".", "-L", ".", "-lMetalPerformanceShaders",
             "-lMetal", "main.swift", "-o", "recorder")  # fmt: skip
    return folder / "recorder"


def _compile(folder: Path, *arguments: str) -> None:
    done = subprocess.run([COMPILER or "swiftc", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "\n".join(re.findall(r"^.*error: .*$", done.stderr, re.M)[:20]) or done.stderr[-3000:]


class Answering(threading.Thread):
    """Answers the requests in a folder by openmps."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.ends = folder, False
        self.asked = 0

    def run(self) -> None:
        device = mps.mtl_device("cpu")
        while not self.ends:
            for path in self.folder.glob("*.request"):
                entry: dict[str, Any] = {"read": (), **json.loads(path.read_text())}
                path.unlink()
                answer = answer_of(Case("stub", "", entry["kind"], entry), device)
                temporary = path.with_suffix(".part")
                temporary.write_text(json.dumps(answer.get("values", answer)))
                temporary.rename(path.with_suffix(".response"))
                self.asked += 1
            time.sleep(0.001)


def recorded(program: Path, cases: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the recorder over a list."""
    watched = folder / "requests"
    watched.mkdir()
    answering = Answering(watched)
    answering.start()
    try:
        return subprocess.run(
            [program, "--list", cases, "--out", folder / "goldens"],
            cwd=folder,
            env={**os.environ, "OPENMPS_STUB": str(watched), "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
    finally:
        answering.ends = True
        answering.join()


def plain(given: Any) -> Any:
    """Numbers as float64: one recorder writes 1, another 1.0."""
    if isinstance(given, dict):
        return {name: plain(each) for name, each in given.items()}
    if isinstance(given, list):
        return [plain(each) for each in given]
    return float(given) if isinstance(given, int | float) else given
