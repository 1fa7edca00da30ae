"""Objects of openmps as cases describe them: class, arguments and properties, by the framework's names."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np

import openmps as mps
from openmps.conformance.arrays import written_number
from openmps.formats.archive import forms
from openmps.formats.archive.sources import ArchivedConvolutionWeights, ArchivedNormalizationParameters, StandIns
from openmps.spellings import camel_case

DEVICE = mps.mtl_device("cpu")
_LEFT_OUT = {"label", "destination_image_allocator", "options", "stochastic_rounding", "weights_fp16"}
"""Properties that say nothing of numbers, or are openmps' own."""
_SPELT = {
    "scale_xy": "scaleXY", "scale_wh": "scaleWH", "xy_loss_type": "XYLossType", "wh_loss_type": "WHLossType",
    "min_iou_for_object_presence": "minIOUForObjectPresence", "max_iou_for_object_absence": "maxIOUForObjectAbsence",
}  # fmt: skip
"""Names with more capitals than the rule gives them."""
DOMAINS = {"normal": (-506, 256), "positive": (94, 512), "unit": (5, 1024), "wide": (-506, 64)}
"""``first`` and ``over`` of drawn numbers, by the domain of samples."""


def seed_of(text: str) -> int:
    """A seed that follows from a name."""
    return zlib.crc32(text.encode()) % 1013


def spelt(name: str) -> str:
    """The framework's name of an attribute."""
    return _SPELT.get(name) or camel_case(name)


def drawn(shape: Sequence[int], what: str, domain: str = "normal") -> dict[str, Any]:
    """Numbers that the list draws."""
    first, over = DOMAINS[domain]
    return {"shape": [*shape], "seed": seed_of(what), "first": first, "over": over}


def listed(array: Any) -> dict[str, Any]:
    """Numbers that stand in the list, each with the fewest digits that give float32's."""
    rows = np.asarray(array, np.float32)
    return {"shape": [*rows.shape], "numbers": [_shortest(each) for each in rows.reshape(-1)]}


def _shortest(value: np.float32) -> float | int | str:
    number = written_number(float(str(value)))
    return int(number) if isinstance(number, float) and number == int(number) else number


def described(thing: Any, what: str = "") -> dict[str, Any]:
    """An object by what makes it, and by the properties that differ from those of a fresh one.

    Weights are drawn anew, by ``what``: the list says how many there are, and needs no room for each.
    """
    return described_as(thing, _arguments(thing), what)


def described_as(thing: Any, arguments: Mapping[str, Any], what: str = "") -> dict[str, Any]:
    """The same of arguments that are known; images of graphs among them stand as the list has them."""
    kind = type(thing)
    given = {name: each for name, each in arguments.items() if each is not None}
    device = (DEVICE,) if forms.takes_device(kind) else ()
    fresh = kind(*device, **{name: _made(each) for name, each in given.items()})
    names = sorted(forms.properties(kind) - _LEFT_OUT - given.keys())
    differing = [name for name in names if _differs(getattr(thing, name), getattr(fresh, name))]
    entry: dict[str, Any] = {
        "class": kind.__name__, "arguments": {spelt(name): value(each, what) for name, each in given.items()}
    }  # fmt: skip
    properties = {spelt(name): value(getattr(thing, name), what) for name in differing}
    properties |= _inner(thing, fresh)
    return {**entry, "properties": properties} if properties else entry


def _made(given: Any) -> Any:
    """An argument, or an image node in the place of one that a case describes."""
    if isinstance(given, list) and given and isinstance(given[0], Mapping):
        return [mps.MPSNNImageNode() for _ in given]
    return mps.MPSNNImageNode() if isinstance(given, Mapping) else given


def _arguments(thing: Any) -> dict[str, Any]:
    """What makes it; classes of one neuron take its parameters, and not its descriptor."""
    found, taken = forms.arguments(thing, StandIns()), forms.signature(type(thing)).parameters
    if found.keys() <= taken.keys():
        return found
    if thing.data is not None:
        return {"a": thing.data, "count": thing.data.size}
    return {name: getattr(thing, name) for name in taken if name != "device"}


def _inner(thing: Any, fresh: Any) -> dict[str, Any]:
    """Properties of the four losses that a YOLO loss holds."""
    if not isinstance(thing, mps.MPSCNNYOLOLossDescriptor):
        return {}
    found: dict[str, Any] = {}
    for part in ("xy", "wh", "confidence", "classes"):
        inner, plain = (getattr(each, f"{part}_loss_descriptor") for each in (thing, fresh))
        for name in sorted(forms.properties(type(inner))):
            if _differs(getattr(inner, name), getattr(plain, name)):
                found[f"{_PARTS[part]}.{spelt(name)}"] = value(getattr(inner, name))
    return found


_PARTS = {
    "xy": "XYLossDescriptor", "wh": "WHLossDescriptor", "confidence": "confidenceLossDescriptor",
    "classes": "classesLossDescriptor",
}  # fmt: skip


def _differs(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return not np.array_equal(one, other)
    return repr(one) != repr(other)


def value(given: Any, what: str = "") -> Any:
    """An argument or a property as JSON."""
    if isinstance(given, bool | str | Mapping) or given is None:
        return given
    if isinstance(given, IntEnum | IntFlag):
        return int(given)
    if isinstance(given, int | float | np.floating | np.integer):
        return _number(given)
    if isinstance(given, np.ndarray):
        return listed(given)
    if isinstance(given, Sequence):
        return [value(each, what) for each in given]
    return _STRUCTS[type(given)](given, what)


def _number(given: Any) -> int | float | str:
    number = written_number(float(given))
    return int(number) if isinstance(number, float) and number == int(number) and abs(number) < 2**53 else number


def _weights(given: ArchivedConvolutionWeights, what: str) -> dict[str, Any]:
    array, biases = given.weight_array, given.bias_array
    entry: dict[str, Any] = {"descriptor": described(given.convolution_descriptor)}
    if array.dtype == np.uint32:
        return {**entry, "words": array.tolist()}
    entry["weights"] = drawn(array.shape, f"{what} weights")
    return entry if biases is None else {**entry, "biases": drawn(biases.shape, f"{what} biases")}


def _normalization(given: ArchivedNormalizationParameters, what: str) -> dict[str, Any]:
    shape = given.gamma_array.shape
    entry: dict[str, Any] = {"gamma": drawn(shape, f"{what} gamma"), "beta": drawn(shape, f"{what} beta")}
    if given.mean_array is not None:
        entry["mean"] = drawn(shape, f"{what} mean")
    if given.variance_array is not None:
        entry["variance"] = drawn(shape, f"{what} variance", "positive")
    return {**entry, "epsilon": given.epsilon_value, "groups": given.groups}


def _signed(count: int) -> int:
    """All bits as -1, which a signed word holds."""
    return count - 2**64 if count >= 2**63 else count


def _region(given: Any, _: str) -> dict[str, Any]:
    corner, size = given.origin, given.size
    numbers = (corner.x, corner.y, corner.z, size.width, size.height, size.depth)
    return {"region": [_signed(each) for each in numbers]}


_STRUCTS: Mapping[type, Any] = {
    ArchivedConvolutionWeights: _weights,
    ArchivedNormalizationParameters: _normalization,
    mps.MPSNNDefaultPadding: lambda given, _: {"padding": int(given.padding_method())},
    mps.MPSImageCoordinate: lambda given, _: {"coordinate": [given.x, given.y, given.channel]},
    mps.MTLRegion: _region,
    mps.MTLSize: lambda given, _: {"size": [given.width, given.height, given.depth]},
    mps.MPSOffset: lambda given, _: {"offset": [given.x, given.y, given.z]},
    mps.MPSImageHistogramInfo: lambda given, _: {
        "histogram": [given.number_of_histogram_entries, given.histogram_for_alpha,
                      [*given.min_pixel_value], [*given.max_pixel_value]]
    },
    mps.MPSRegion: lambda given, _: {
        "part": [given.origin.x, given.origin.y, given.size.width, given.size.height]
    },
    **{
        kind: lambda given, what: described(given, what)
        for kind in (
            mps.MPSNNNeuronDescriptor, mps.MPSCNNLossDescriptor, mps.MPSCNNYOLOLossDescriptor,
            mps.MPSCNNConvolutionDescriptor, mps.MPSCNNDepthWiseConvolutionDescriptor,
            mps.MPSCNNSubPixelConvolutionDescriptor, mps.MPSMatrixRandomDistributionDescriptor,
        )
    },
}  # fmt: skip
"""Objects and structs, by class."""
