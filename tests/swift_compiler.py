"""A compiler of Swift for exported sources: off the Mac they are compiled, and run, over stubs of Apple's frameworks.

The stubs in `swift_stubs` hold what exported sources use; nodes come from the table of initializers, enumerations from
the reader's. So a call that the headers do not have does not compile, whatever the exporter knows.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from graph.node_initializers import INITIALIZERS
from swift_reader import CASES, DATA_TYPES, OPTIONS

STUBS = Path(__file__).parent / "swift_stubs"
MODULES = {
    "Metal": ("Metal.swift",),
    "MetalPerformanceShaders": ("MetalPerformanceShaders.swift", "Report.swift"),
    "XCTest": ("XCTest.swift",),
}


def _tool(variable: str, name: str) -> str | None:
    """A program that a variable of the environment names, or that PATH has."""
    return os.environ.get(variable) or shutil.which(name)


COMPILER = _tool("OPENMPS_SWIFTC", "swiftc")
FORMATTER = _tool("OPENMPS_SWIFT_FORMAT", "swift-format")


def require_compiler() -> None:
    if platform.system() == "Darwin":
        pytest.skip("the stubs are for machines without Apple's frameworks")
    if COMPILER is None:
        pytest.skip("no compiler of Swift: neither OPENMPS_SWIFTC nor PATH has swiftc")


def lint(folder: Path, exports: Mapping[str, Mapping[str, bytes]]) -> str:
    """What Apple's formatter says of exports, in its own style."""
    if FORMATTER is None:
        pytest.skip("no formatter of Swift: neither OPENMPS_SWIFT_FORMAT nor PATH has swift-format")
    names = write(folder, exports)
    done = subprocess.run([FORMATTER, "lint", *names], cwd=folder, capture_output=True, text=True, check=False)
    return done.stderr


# --- what the stubs are generated of ----------------------------------------------------------------------------------

_TYPES: Mapping[str, str] = {
    **dict.fromkeys("source source_gradient source_image left_source right_source labels".split(), "MPSNNImageNode"),
    **dict.fromkeys(("sources", "gradient_images"), "[MPSNNImageNode]"),
    **dict.fromkeys(("a", "b", "c", "alpha", "keep_probability", "scale_value"), "Float"),
    **dict.fromkeys(("scale_factor_x", "scale_factor_y"), "Double"),
    **dict.fromkeys(("align_corners", "is_labels_gradient_filter", "is_secondary_source_filter"), "Bool"),
    **dict.fromkeys(("output_size", "mask_stride_in_pixels"), "MTLSize"),
    **dict.fromkeys(("padding_size_before", "padding_size_after"), "MPSImageCoordinate"),
    **dict.fromkeys(
        ("input_bias_terms", "input_scale_terms", "output_bias_terms", "output_scale_terms"), "UnsafePointer<Float>?"
    ),
    "weights": "MPSCNNConvolutionDataSource",
    "gradient_state": "MPSNNGradientStateNode",
    "convolution_gradient_state": "MPSCNNConvolutionGradientStateNode",
    "convolution_transpose_gradient_state": "MPSCNNConvolutionTransposeGradientStateNode",
    "descriptor": "MPSNNNeuronDescriptor",
    "a_data": "Data",
    "loss_descriptor": "MPSCNNLossDescriptor",
    "type": "MPSCNNBinaryConvolutionType",
    "flags": "MPSCNNBinaryConvolutionFlags",
    "edge_mode": "MPSImageEdgeMode",
    "padding_policy": "MPSNNPadding?",
    "forward_filter": "MPSNNFilterNode",
}
"""Of what type an argument is; the others are integers."""
_OWN_TYPES: Mapping[tuple[str, str], str] = {
    ("MPSCNNConvolutionTransposeNode", "convolution_gradient_state"): "MPSCNNConvolutionGradientStateNode?",
    ("MPSNNForwardLossNode", "weights"): "MPSNNImageNode",
    ("MPSNNLossGradientNode", "weights"): "MPSNNImageNode",
    ("MPSCNNYOLOLossNode", "loss_descriptor"): "MPSCNNYOLOLossDescriptor",
    **{(f"MPSCNN{kind}NormalizationNode", "data_source"): f"MPSCNN{kind}NormalizationDataSource"
       for kind in ("Batch", "Instance", "Group")},
    **{(f"MPSNN{kind}GradientNode", "gradient_state"): "MPSNNBinaryGradientStateNode"
       for kind in ("Addition", "Subtraction", "Multiplication")},
}  # fmt: skip
_STATES: Mapping[str, str] = {
    r"MPSCNN(Binary)?(Convolution|FullyConnected)Node": "MPSCNNConvolutionGradientStateNode",
    r"MPSCNNConvolutionTransposeNode": "MPSCNNConvolutionTransposeGradientStateNode",
    r"MPSNN(Addition|Subtraction|Multiplication|Division|Comparison)Node": "MPSNNBinaryGradientStateNode",
}
"""Of what class a node's state is, where it is none of the plain ones."""
_STRIDES = [f"{which}StrideIn{what}: Int = 1" for which in ("primary", "secondary")
            for what in ("PixelsX", "PixelsY", "FeatureChannels")]  # fmt: skip
_ARITHMETIC = [f"{each}: Float = 0" for each in "primaryScale secondaryScale bias minimumValue maximumValue".split()]
_ENERGY = [f"{each}: Float = 0" for each in ("alpha", "beta", "delta")]
_CONTRAST = [f"{each}: Float = 0" for each in ("pm", "ps", "p0")]
_STYLE = "trainingStyle: MPSNNTrainingStyle = .updateDeviceGPU"
_REGION = (
    "clipRectSource = MTLRegion(origin: MTLOrigin(x: 0, y: 0, z: 0), size: MTLSize(width: 0, height: 0, depth: 0))"
)
_PROPERTIES: tuple[tuple[str, Sequence[str]], ...] = (
    (r"MPSCNN(Binary)?(Convolution|FullyConnected)(Transpose)?Node",
     [_STYLE, "accumulatorPrecision: MPSNNConvolutionAccumulatorPrecisionOption = .float"]),
    (r"MPSCNN(Binary)?(Convolution|FullyConnected)(Transpose)?GradientNode", [_STYLE]),
    (r"MPSCNN(Batch|Instance|Group)Normalization(Gradient)?Node", [_STYLE]),
    (r"MPSCNNBatchNormalizationNode", ["flags: MPSCNNBatchNormalizationFlags = []"]),
    (r"MPSNNReduction(?!SpatialMeanGradient).*Node", [_REGION]),
    (r"MPSNNReductionFeatureChannelsSumNode", ["weight: Float = 1"]),
    (r"MPSCNN(Spatial|LocalContrast|CrossChannel)NormalizationNode", _ENERGY),
    (r"MPSCNN(Spatial|LocalContrast)NormalizationGradientNode", _ENERGY),
    (r"MPSCNNLocalContrastNormalization(Gradient)?Node", _CONTRAST),
    (r"MPSNN(Addition|Subtraction|Multiplication|Division|Comparison)(Gradient)?Node", [*_ARITHMETIC, *_STRIDES]),
    (r"MPSNNComparisonNode", ["comparisonType = MPSNNComparisonType.equal"]),
    (r"MPSCNN(YOLO)?LossNode", ["inputLabels = MPSNNLabelsNode()"]),
    (r"MPSNNPadNode", ["fillValue: Float = 0"]),
)  # fmt: skip
"""What can be set on nodes whose class is called so."""
_SPECIAL: Mapping[str, str] = {
    r"MPSCNN(Convolution|FullyConnected)Node": (
        "  public var convolutionGradientState: MPSCNNConvolutionGradientStateNode? {\n"
        "    resultState as? MPSCNNConvolutionGradientStateNode\n  }\n"
    ),
    r"MPSNNConcatenationNode": (
        "  public func gradientFilters(withSource gradient: MPSNNImageNode) -> [MPSNNGradientFilterNode] {\n"
        "    (0..<given.count(of: \"sources\")).map { _ in\n      MPSNNConcatenationGradientNode(\n"
        "        sourceGradient: gradient, sourceImage: gradient, gradientState: MPSNNGradientStateNode())\n    }\n"
        "  }\n"
    ),
}  # fmt: skip


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def _nodes() -> Iterator[str]:
    yield "import Foundation\nimport Metal\n\nextension [(String, Any)] {\n  func count(of label: String) -> Int {\n"
    yield "    first { $0.0 == label }.map { ($0.1 as? [MPSNNImageNode] ?? []).count } ?? 0\n  }\n}\n"
    for forms, names in INITIALIZERS:
        for name in names:
            base = "MPSNNGradientFilterNode" if name.endswith("GradientNode") else "MPSNNFilterNode"
            yield f"\npublic final class {name}: {base} {{\n"
            for pattern, lines in _PROPERTIES:
                if re.fullmatch(pattern, name):
                    yield "".join(f"  public var {line}\n" for line in lines)
            yield "".join(text for pattern, text in _SPECIAL.items() if re.fullmatch(pattern, name))
            for pattern, state in _STATES.items():
                if re.fullmatch(pattern, name):
                    yield f"  override class var stateClass: MPSNNStateNode.Type {{ {state}.self }}\n"
            for form in forms:
                if "transform_provider" not in form:
                    yield _initializer(name, form.split())
            yield "}\n"


def _initializer(name: str, arguments: Sequence[str]) -> str:
    kinds = {each: _OWN_TYPES.get((name, each)) or _TYPES.get(each, "Int") for each in arguments}
    taken = ", ".join(f"{camel(each)}: {kind}" for each, kind in kinds.items())
    given = ", ".join(f'("{camel(each)}", {camel(each)} as Any)' for each in arguments)
    return f"  public init({taken}) {{ super.init([{given}]) }}\n"


def _enumerations() -> Iterator[str]:
    for kind, cases in CASES.items():
        yield f"public enum {kind.__name__}: UInt, Sendable {{\n  case {', '.join(cases.split())}\n}}\n"
    yield "public enum MPSNNRegularizationType: UInt, Sendable {\n  case None, L1, L2\n}\n"
    named = "".join(f"  case {name} = {value}\n" for name, value in DATA_TYPES.items())
    yield f"public enum MPSDataType: UInt32, Sendable {{\n{named}}}\n"
    for kind, members in OPTIONS.items():
        listed = "".join(
            f"  public static let {name} = {kind.__name__}(rawValue: {value})\n" for name, value in members.items()
        )
        yield (
            f"public struct {kind.__name__}: OptionSet, Sendable {{\n  public let rawValue: UInt\n"
            f"  public init(rawValue: UInt) {{ self.rawValue = rawValue }}\n{listed}}}\n"
        )


# --- the compiler -----------------------------------------------------------------------------------------------------


HEAD = "import Foundation\nimport Metal\nimport MetalPerformanceShaders\n\n"
_STRICT = ("-warnings-as-errors",)


class Failed(AssertionError):
    """What the compiler said."""


def _compile(folder: Path, *arguments: str) -> None:
    done = subprocess.run([COMPILER or "swiftc", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed("\n".join(re.findall(r"^\S*(?:error|warning): .*$|^\S+\.swift:\d+.*$", done.stderr, re.M)[:40])
                     or done.stderr[-3000:])  # fmt: skip


def stubs(folder: Path) -> Path:
    """The stubs as modules in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Enumerations.swift").write_text("\n".join(_enumerations()))
    (folder / "Nodes.swift").write_text("".join(_nodes()))
    for module, files in MODULES.items():
        for file in files:
            shutil.copy(STUBS / file, folder)
        more = ("Enumerations.swift", "Nodes.swift") if module == "MetalPerformanceShaders" else ()
        _compile(
            folder, "-emit-module", "-emit-library", "-static", "-module-name", module, "-parse-as-library",
            "-wmo", "-suppress-warnings", "-swift-version", "5", "-I", ".", *files, *more, "-o", f"lib{module}.a",
        )  # fmt: skip
    return folder


def _portable(folder: Path, sources: Sequence[str]) -> None:
    """Take out of sources what only Apple's compilers have: names for Objective-C."""
    for name in sources:
        text = (folder / name).read_text()
        (folder / name).write_text(re.sub(r"^ *@objc\(.*\)\n", "", text, flags=re.M))


def write(folder: Path, exports: Mapping[str, Mapping[str, bytes]]) -> list[str]:
    """Files of exports, all in one folder, as in an app's bundle; the names of the sources."""
    for files in exports.values():
        for name, content in files.items():
            target = folder / name
            assert not target.exists(), f"{name} is a file of two exports"
            target.write_bytes(content)
    return [name for files in exports.values() for name in files if name.endswith(".swift")]


def check(built: Path, folder: Path, exports: Mapping[str, Mapping[str, bytes]], version: str) -> None:
    """Compile exports as one module without making code; all warnings are errors."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = write(folder, exports)
    _portable(folder, sources)
    _compile(folder, "-typecheck", "-wmo", *_STRICT, "-swift-version", version, "-I", str(built), *sources)


def run(built: Path, folder: Path, exports: Mapping[str, Mapping[str, bytes]], main: str) -> list[Any]:
    """Compile exports with a program, and run it in the folder; the lines of JSON that it prints."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = write(folder, exports)
    _portable(folder, sources)
    (folder / "main.swift").write_text(HEAD + 'let folder = URL(fileURLWithPath: ".")\n' + main)
    _compile(
        folder, "-wmo", "-Onone", *_STRICT, "-swift-version", "6", "-I", str(built), "-L", str(built),
        "-lMetalPerformanceShaders", "-lMetal", "-lXCTest", *sources, "main.swift", "-o", "program",
    )  # fmt: skip
    done = subprocess.run(["./program"], cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]
