"""Names for padding policies, each in the words of the framework it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openmps.core.padding.explicit import ExplicitPadding
from openmps.core.padding.policy import MPSNNDefaultPadding, MPSNNPadding
from openmps.errors import MPSArgumentError
from openmps.types import MPSNNPaddingMethod as Method

_DEFAULT_NAMES = {
    "same": MPSNNDefaultPadding(Method.SIZE_SAME),
    "valid": MPSNNDefaultPadding(Method.SIZE_VALID_ONLY),
    "full": MPSNNDefaultPadding(Method.SIZE_FULL),
    "same-top-left": MPSNNDefaultPadding(Method.SIZE_SAME),
    "same-bottom-right": MPSNNDefaultPadding.tensorflow_same(),
    "tensorflow-same": MPSNNDefaultPadding.tensorflow_same(),
    "tensorflow-valid": MPSNNDefaultPadding.tensorflow_valid(),
    "onnx-same-upper": MPSNNDefaultPadding.tensorflow_same(),
    "onnx-same-lower": MPSNNDefaultPadding(Method.SIZE_SAME),
}
_PRESETS: dict[str, Callable[[], MPSNNPadding]] = {
    "tensorflow-average-pooling": MPSNNDefaultPadding.padding_for_tensorflow_average_pooling,
    "tensorflow-average-pooling-valid": MPSNNDefaultPadding.padding_for_tensorflow_average_pooling_valid_only,
}
"""By the conventions of the block in which they are asked for."""
# Each takes the pixels after the colon.
_EXPLICIT_NAMES: dict[str, Callable[[Sequence[int]], MPSNNPadding]] = {
    "pytorch": ExplicitPadding.pytorch,
    "pytorch-ceil": lambda pads: ExplicitPadding.pytorch(pads, ceil_mode=True),
    "caffe": ExplicitPadding.caffe_pooling,
    "onnx": ExplicitPadding.onnx,
}


def MPSGetPaddingPolicy(policy: str | int | MPSNNPadding) -> MPSNNPadding:
    """The policy object for a method, a name, or a policy (which comes back as it is).

    MPSNeuralNetworkTypes.h (macOS 10.13) mentions this function as a shorthand and declares it nowhere; the meaning is
    ours. Names: ``same``, ``valid``, ``full`` (the framework's, remainder to the top left), ``same-top-left``,
    ``same-bottom-right``, ``tensorflow-same``, ``tensorflow-valid``, ``tensorflow-average-pooling``,
    ``tensorflow-average-pooling-valid``, ``onnx-same-upper``, ``onnx-same-lower``; a method in digits (``28`` or
    ``0x1c``); and with pixels after a colon, in the order of the framework named: ``pytorch:P`` or
    ``pytorch:HEIGHT,WIDTH``, ``pytorch-ceil:…``, ``caffe:…`` (pooling), ``onnx:TOP,LEFT,BOTTOM,RIGHT``.
    Raises `MPSArgumentError` for other names.
    """
    if isinstance(policy, str):
        return _named_policy(policy.strip().lower())
    if isinstance(policy, MPSNNPadding):
        return policy
    return MPSNNDefaultPadding(policy)


def _named_policy(name: str) -> MPSNNPadding:
    if name in _DEFAULT_NAMES:
        return _DEFAULT_NAMES[name]
    if name in _PRESETS:
        return _PRESETS[name]()
    if name[:1].isdigit():
        return MPSNNDefaultPadding(_number(name, name))
    head, _, tail = name.partition(":")
    make = _EXPLICIT_NAMES.get(head)
    if make is None:
        known = ", ".join([*_DEFAULT_NAMES, *_PRESETS, *(f"{prefix}:PIXELS" for prefix in _EXPLICIT_NAMES)])
        raise MPSArgumentError("MPSGetPaddingPolicy", "policy", "must be a known name", repr(name), f"Known: {known}")
    return make([_number(part, name) for part in tail.split(",")])


def _number(text: str, name: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        rule, remedy = "needs whole numbers of pixels after its colon", "For example pytorch:1 or pytorch:2,1"
        raise MPSArgumentError("MPSGetPaddingPolicy", "policy", rule, repr(name), remedy) from None
