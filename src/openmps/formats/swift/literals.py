"""Values as Swift writes them: names, text, numbers, enumerations, structs.

Enumerations have the names by which Swift imports them: the header's, without the prefix that all share, the first
letter small, but for words in capitals and for those that the header names apart (MPS_SWIFT_NAME).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np

from openmps.checks import FLT_MAX
from openmps.types import (
    MPSCNNBatchNormalizationFlags,
    MPSCNNBinaryConvolutionType,
    MPSCNNNeuronType,
    MPSDataType,
    MPSImageCoordinate,
    MPSNNConvolutionAccumulatorPrecisionOption,
    MPSNNPaddingMethod,
    MPSNNRegularizationType,
    MPSNNTrainingStyle,
    MTLOrigin,
    MTLRegion,
    MTLSize,
)

KEYWORDS = frozenset(
    "Any Self as associatedtype await break capturing case catch class continue default defer deinit device do else "
    "enum extension fallthrough false fileprivate folder for func graph guard if import in indirect init inout "
    "internal is let needed nil open operator private protocol public repeat rethrows return self set source static "
    "struct "
    "subscript super switch throw throws true try typealias var where while".split()
)
"""Words of Swift, and those that every written source uses for something."""

_OWN: Mapping[tuple[type[IntEnum], int], str] = {
    (type(value), int(value)): name
    for value, name in (
        (MPSDataType.UINT32, "uInt32"),
        (MPSCNNNeuronType.RELU, "reLU"),
        (MPSCNNNeuronType.TANH, "tanH"),
        (MPSCNNNeuronType.ELU, "ELU"),
        (MPSCNNNeuronType.PRELU, "pReLU"),
        (MPSCNNNeuronType.RELU_N, "reLUN"),
        (MPSCNNNeuronType.GELU, "geLU"),
        (MPSCNNBinaryConvolutionType.XNOR, "XNOR"),
        (MPSCNNBinaryConvolutionType.AND, "AND"),
        (MPSNNRegularizationType.NONE, "None"),
        (MPSNNRegularizationType.L1, "L1"),
        (MPSNNRegularizationType.L2, "L2"),
    )
}
"""Values whose names in Swift do not follow from ours, by class and number."""
_OPTIONS: Mapping[type, Mapping[int, str]] = {
    MPSNNPaddingMethod: {
        1: "alignTopLeft",
        2: "alignBottomRight",
        4: "addRemainderToTopRight",
        8: "addRemainderToBottomLeft",
        12: "addRemainderToBottomRight",
        16: "sizeSame",
        32: "sizeFull",
        1 << 14: "custom",
        1 << 15: "excludeEdges",
    },
    MPSNNTrainingStyle: {1: "updateDeviceCPU", 2: "updateDeviceGPU"},
    MPSNNConvolutionAccumulatorPrecisionOption: {1: "float"},
    MPSCNNBatchNormalizationFlags: {1: "calculateStatisticsAlways", 2: "calculateStatisticsNever"},
}
"""What Swift sees as sets of options, whose members of value 0 it does not have: there ``[]`` stands."""


def camel(name: str) -> str:
    """``kernel_width`` → ``kernelWidth``."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def string(text: str) -> str:
    """A string literal."""
    return '"' + "".join(_character(each) for each in text) + '"'


def _character(each: str) -> str:
    if each in '"\\':
        return f"\\{each}"
    return each if each.isprintable() else f"\\u{{{ord(each):x}}}"


def comment(text: str) -> str:
    """Text that a comment may hold: of one line."""
    return "".join(each if each.isprintable() else " " for each in text)


def float32(value: float) -> str:
    """A number of float32: the shortest that is read back as the same bits."""
    special = _special(value, "Float")
    if special is not None:
        return special
    if abs(value) == FLT_MAX:
        return f"{'-' * (value < 0)}Float.greatestFiniteMagnitude"
    return _decimal(np.format_float_scientific(np.float32(value), unique=True), float(np.float32(value)))


def float64(value: float) -> str:
    """A number of float64: the shortest that is read back as the same bits."""
    return _special(value, "Double") or _decimal(repr(float(value)), float(value))


def _special(value: float, kind: str) -> str | None:
    if math.isnan(value):
        return f"{kind}.nan"
    return f"{'-' * (value < 0)}{kind}.infinity" if math.isinf(value) else None


def _decimal(scientific: str, value: float) -> str:
    """``1.e-03`` as ``0.001`` where it is short, else as Swift takes it, ``1.5e-20``."""
    mantissa, _, exponent = scientific.partition("e")
    plain = np.format_float_positional(np.float64(scientific), unique=True, trim="0")
    if value == 0 or 1e-5 <= abs(value) < 1e9:
        return plain
    digits = mantissa + "0" if mantissa.endswith(".") else mantissa
    return f"{digits}e{int(exponent or 0)}"


def case(value: IntEnum) -> str:
    """A value of an enumeration, ``.float16``."""
    own = _OWN.get((type(value), int(value)))
    return f".{own}" if own is not None else f".{camel(value.name.lower())}"


def options(value: IntEnum | IntFlag) -> str:
    """A set of options, ``[.addRemainderToBottomRight, .sizeSame]``: the longest names first, in the order of bits."""
    names = _OPTIONS[type(value)]
    rest, found = int(value), list[int]()
    for bits in sorted(names, key=lambda each: (-each.bit_count(), each)):
        if rest & bits == bits:
            rest &= ~bits
            found.append(bits)
    listed = [f".{names[bits]}" for bits in sorted(found)]
    listed += [f"{type(value).__name__}(rawValue: {rest:#x})"] * bool(rest)
    return f"[{', '.join(listed)}]"


def whole(value: int) -> str:
    """An integer of 64 bits without a sign, which Swift takes as an Int: the largest ones by their bits."""
    digits = f"{int(value):_}" if abs(value) >= 10**6 else str(int(value))
    return digits if value < 2**63 else f"Int(bitPattern: {digits})"


def _size(value: MTLSize) -> str:
    return f"MTLSize(width: {whole(value.width)}, height: {whole(value.height)}, depth: {whole(value.depth)})"


def _origin(value: MTLOrigin) -> str:
    return f"MTLOrigin(x: {whole(value.x)}, y: {whole(value.y)}, z: {whole(value.z)})"


def _region(value: MTLRegion) -> str:
    return f"MTLRegion(origin: {_origin(value.origin)}, size: {_size(value.size)})"


def _coordinate(value: MPSImageCoordinate) -> str:
    return f"MPSImageCoordinate(x: {value.x}, y: {value.y}, channel: {value.channel})"


_LITERALS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (bool, lambda value: "true" if value else "false"),
    *((kind, options) for kind in _OPTIONS),
    (IntEnum, case),
    (int, whole),
    (np.integer, whole),
    (float, float32),
    (np.floating, float32),
    (MTLSize, _size),
    (MTLRegion, _region),
    (MPSImageCoordinate, _coordinate),
)


def literal(value: Any) -> str:
    """A plain value; numbers with a point are those of float32."""
    return next(write(value) for kind, write in _LITERALS if isinstance(value, kind))


class Names:
    """Names of one source, each given once."""

    def __init__(self) -> None:
        self._taken = {word.lower() for word in KEYWORDS}

    def take(self, wanted: str) -> str:
        """``wanted`` as an identifier that is not taken: with 2, 3, … behind it where it is."""
        words = re.findall(r"[A-Za-z0-9]+", wanted) or ["layer"]
        stem = words[0][:1].lower() + words[0][1:] + "".join(word[:1].upper() + word[1:] for word in words[1:])
        stem = f"layer{stem}" if stem[0].isdigit() else stem
        name, count = stem, 1
        while name.lower() in self._taken:
            count += 1
            name = f"{stem}{'No' * stem[-1].isdigit()}{count}"
        self._taken.add(name.lower())
        return name


def class_name(text: str) -> str:
    """A name for a class, ``tiny yolo`` → ``TinyYolo``; ``Model`` if that is none."""
    words = re.findall(r"[A-Za-z0-9]+", text)
    name = "".join(word[:1].upper() + word[1:] for word in words)
    return name if is_class_name(name) else "Model"


TAKEN = frozenset(
    "Any Bool Bundle CustomStringConvertible Data Double Error Float Foundation Int Metal NSObject NSString NSZone "
    "ObjCBool Self String Type UInt UInt8 UInt32 URL UnsafeMutableBufferPointer UnsafeMutablePointer "
    "UnsafeMutableRawPointer UnsafePointer".split()
)
"""Names of classes that a source uses itself."""


def is_class_name(text: str) -> bool:
    """Whether a model may be called so: a capital, letters and digits, and no class of Swift or the framework."""
    is_plain = text.isascii() and text.isalnum() and text[:1].isupper()
    return is_plain and text not in TAKEN and not text.startswith(("MPS", "MTL"))
