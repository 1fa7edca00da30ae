"""Padding policies: the objects that size a kernel's result and place its window.

A policy answers ``padding_method()``, the bits of `MPSNNPaddingMethod`; the integers that follow from them are in
`openmps.core.padding.geometry`. Where the custom bit is set, the policy's ``destination_image_descriptor`` then adjusts
the suggested descriptor and the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, ClassVar, Protocol, Self, cast, runtime_checkable

from openmps.checks import KnownAttributes
from openmps.convention import DOCUMENTED, Conventions, current
from openmps.core.padding.geometry import checked_method
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.selectors import Factory, name_arguments
from openmps.types import MPSImageEdgeMode, MPSNNPaddingMethod

_Method = MPSNNPaddingMethod
_CUSTOM = int(_Method.CUSTOM)
_TENSORFLOW_SAME = _Method.SIZE_SAME | _Method.ALIGN_CENTERED | _Method.ADD_REMAINDER_TO_BOTTOM_RIGHT
_TENSORFLOW_VALID = _Method.SIZE_VALID_ONLY | _Method.ALIGN_BOTTOM_RIGHT
# The header's prose and its sample code disagree on the remainder; the prose is what TensorFlow does.
_AVERAGE_POOLING = _Method.CUSTOM | _TENSORFLOW_SAME
_AVERAGE_POOLING_VALID = _Method.CUSTOM | _TENSORFLOW_VALID | _Method.ADD_REMAINDER_TO_BOTTOM_RIGHT

_AVERAGE_POOLINGS = {"prose": _AVERAGE_POOLING, "code": _Method.CUSTOM | _Method.SIZE_SAME}
_AVERAGE_POOLINGS_VALID = {
    "bottom_right": _AVERAGE_POOLING_VALID,
    "plain": _Method.CUSTOM,
    "remainder": _Method.CUSTOM | _Method.ADD_REMAINDER_TO_BOTTOM_RIGHT,
}
PRESETS = {"average_preset": _AVERAGE_POOLINGS, "average_valid_preset": _AVERAGE_POOLINGS_VALID}
"""The methods of the presets by conventions."""
_NICKNAMES = {
    **{int(method): "TensorFlow average pooling" for method in _AVERAGE_POOLINGS.values()},
    **{int(method): "TensorFlow average pooling, valid only" for method in _AVERAGE_POOLINGS_VALID.values()},
}
_SIZE_WORDS = {
    int(_Method.SIZE_VALID_ONLY): "valid only",
    int(_Method.SIZE_SAME): "same",
    int(_Method.SIZE_FULL): "full",
}
_ALIGN_WORDS = {
    int(_Method.ALIGN_TOP_LEFT): "padding top left",
    int(_Method.ALIGN_BOTTOM_RIGHT): "padding bottom right",
}
_REMAINDER_WORDS = {
    int(_Method.ADD_REMAINDER_TO_TOP_LEFT): "top left",
    int(_Method.ADD_REMAINDER_TO_TOP_RIGHT): "top right",
    int(_Method.ADD_REMAINDER_TO_BOTTOM_LEFT): "bottom left",
    int(_Method.ADD_REMAINDER_TO_BOTTOM_RIGHT): "bottom right",
}
_EXTRA_WORDS = {
    int(_Method.CUSTOM_ALLOW_FOR_NODE_FUSION): "fusion allowed",
    int(_Method.CUSTOM): "custom",
    int(_Method.EXCLUDE_EDGES): "edges excluded",
}


def _presets() -> set[int]:
    """The methods with the custom bit that are presets of average pooling: the default's, and those of the block."""
    now = current()
    return {int(methods[each[name]]) for name, methods in PRESETS.items() for each in (DOCUMENTED, now)}


@runtime_checkable
class MPSNNPadding(Protocol):
    """What a padding policy must offer (MPSNeuralNetworkTypes.h, macOS 10.13). Checked structurally: no base class.

    Optional methods, used where they exist:

    - ``label() -> str``: a name for people.
    - ``inverse()``: the policy of the gradient pass, or None (macOS 10.13.4).
    - ``destination_image_descriptor(source_images, source_states, for_kernel, suggested_descriptor)``: required where
      ``padding_method()`` has the custom bit. It runs after the method's own sizing, may change the suggested
      descriptor and any property of the kernel, must leave the kernel's offset right, and returns the descriptor to
      allocate. What it changes on the kernel stays changed; only offsets are computed anew by each encode.
    """

    def padding_method(self) -> MPSNNPaddingMethod:
        """The bits that size the result and place the window."""
        ...


@name_arguments
class MPSNNDefaultPadding(KnownAttributes):
    """A padding policy that is its method and nothing more (MPSNeuralNetworkTypes.h, macOS 10.13).

    Equal methods give the same object: ``MPSNNDefaultPadding(16) is MPSNNDefaultPadding(16)``. Policies compare and
    hash by method. A method with the custom bit needs an object with a step of its own and raises `MPSArgumentError`,
    except for the two average-pooling presets (0x401C and 0x400E, or those of other conventions in their block), which
    set the kernel's edge mode to clamp.
    """

    __slots__ = ("_method",)
    _shared: ClassVar[dict[int, MPSNNDefaultPadding]] = {}
    _method: MPSNNPaddingMethod

    def __new__(cls, method: MPSNNPaddingMethod | int) -> Self:
        """The one policy of ``method``; subclasses get an object each time."""
        value = checked_method(checked_integer(cls.__name__, "method", method))
        if value & _CUSTOM and value not in _presets() and not cls._has_own_step():
            raise MPSArgumentError(
                cls.__name__,
                "method",
                "must not have the custom bit",
                f"{value:#x}",
                "Write a class with padding_method() and destination_image_descriptor(), or use ExplicitPadding",
            )
        if cls is MPSNNDefaultPadding and value in cls._shared:
            return cast("Self", cls._shared[value])
        policy = super().__new__(cls)
        policy._method = MPSNNPaddingMethod(value)
        # setdefault: two threads that ask at once get one object.
        return cast("Self", cls._shared.setdefault(value, policy)) if cls is MPSNNDefaultPadding else policy

    @classmethod
    def _has_own_step(cls) -> bool:
        return cls.destination_image_descriptor is not MPSNNDefaultPadding.destination_image_descriptor

    @classmethod
    def tensorflow_same(cls) -> Self:
        """TensorFlow's SAME: result ``ceil(L / s)``, the odd pixel to the bottom right (method 28).

        Equal to TensorFlow wherever pixels are missing; where the stride leaves two or more to spare (only possible for
        ``s >= ke + 2``) the window is centred while TensorFlow starts at pixel 0.
        """
        return cls(_TENSORFLOW_SAME)

    @classmethod
    def tensorflow_valid(cls) -> Self:
        """TensorFlow's and PyTorch's VALID: every tap inside, the first window at pixel 0 (method 2)."""
        return cls(_TENSORFLOW_VALID)

    @classmethod
    def padding_for_tensorflow_average_pooling(cls) -> Self:
        """TensorFlow's SAME average pooling: `tensorflow_same` with edge mode clamp set on the kernel (method 0x401C).

        Clamp makes average pooling divide by the pixels inside the image. The edge mode stays on the kernel.
        macOS 10.13.4.
        """
        return cls(_AVERAGE_POOLINGS[current()["average_preset"]])

    @classmethod
    def padding_for_tensorflow_average_pooling_valid_only(cls) -> Self:
        """TensorFlow's VALID pooling: as `tensorflow_valid`, with edge mode clamp set on the kernel (method 0x400E).

        macOS 10.13.4; the header does not print the method.
        """
        return cls(_AVERAGE_POOLINGS_VALID[current()["average_valid_preset"]])

    padding = Factory("paddingWithMethod:")

    @property
    def conventions(self) -> Conventions:
        """The conventions by which its method is that of a preset; see `conventions`. Our addition."""
        chosen = preset_choice(self)
        return Conventions({} if chosen is None else dict([chosen]))

    def padding_method(self) -> MPSNNPaddingMethod:
        """The bits that size the result and place the window."""
        return self._method

    def label(self) -> str:
        """The policy in words."""
        return _NICKNAMES.get(int(self._method)) or method_label(self._method)

    def inverse(self) -> Self:
        """The policy that undoes this one: valid only and full change places; custom ones return themselves."""
        if self._method & (_Method.CUSTOM | _Method.SIZE_SAME):
            return self
        return type(self)(self._method ^ _Method.SIZE_FULL)

    def destination_image_descriptor(
        self,
        source_images: Sequence[Any],
        source_states: Sequence[Any] | None,
        for_kernel: Any,
        suggested_descriptor: Any,
    ) -> Any:
        """Returns the suggestion; the average-pooling presets set the kernel's (primary) edge mode to clamp first."""
        if int(self._method) in _NICKNAMES:
            set_edge_mode(self, for_kernel, MPSImageEdgeMode.CLAMP)
        return suggested_descriptor

    def __eq__(self, other: object) -> bool:
        return self._method == other._method if isinstance(other, MPSNNDefaultPadding) else NotImplemented

    def __hash__(self) -> int:
        return hash(("MPSNNDefaultPadding", int(self._method)))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        chosen = preset_choice(self)
        return (type(self), (int(self._method),)) if chosen is None else (_preset, (type(self), *chosen))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self._method):#x}: {self.label()})"


unchanging_policies: set[type] = {MPSNNDefaultPadding}
"""Policies whose answer follows from sizes and the kernel's properties alone, so that a graph asks them once. Classes
themselves: a subclass may say something else each time."""


def custom_descriptor(
    policy: MPSNNPadding,
    source_images: Sequence[Any],
    source_states: Sequence[Any] | None,
    for_kernel: Any,
    suggested_descriptor: Any,
) -> Any:
    """Runs the policy's custom step where its method has the custom bit; returns the descriptor to allocate.

    Raises `MPSTypeError` where the step is missing or returns no descriptor, `MPSArgumentError` for a size below 1.
    """
    if not int(policy.padding_method()) & _CUSTOM:
        return suggested_descriptor
    who = f"padding policy {type(policy).__name__} ({padding_label(policy)})"
    if getattr(for_kernel, "name", None) is not None:  # a window that stands for a kernel has none
        who = f"{for_kernel.name}: {who}"
    step = getattr(policy, "destination_image_descriptor", None)
    if step is None:
        rule = "must be there, because padding_method() has the custom bit"
        raise MPSTypeError(who, "destination_image_descriptor", rule, remedy="Add the method, or clear the bit")
    descriptor = step(source_images, source_states, for_kernel, suggested_descriptor)
    if not (hasattr(descriptor, "width") and hasattr(descriptor, "height")):
        rule = "must return an MPSImageDescriptor"
        raise MPSTypeError(who, "destination_image_descriptor", rule, repr(descriptor), "Return suggested_descriptor")
    if descriptor.width < 1 or descriptor.height < 1:
        rule = "must return a width and height of at least 1"
        got = f"{descriptor.width}x{descriptor.height}"
        remedy = "The kernel is larger than the image and its padding"
        raise MPSArgumentError(who, "destination_image_descriptor", rule, got, remedy)
    return descriptor


def padding_label(policy: MPSNNPadding) -> str:
    """The policy's own label, or words for its method where it has none."""
    label: Callable[[], str] | None = getattr(policy, "label", None)
    return method_label(policy.padding_method()) if label is None else label()


def inverse_padding(policy: MPSNNPadding) -> MPSNNPadding | None:
    """The policy for the gradient pass; None where the policy has none."""
    inverse: Callable[[], MPSNNPadding | None] | None = getattr(policy, "inverse", None)
    return None if inverse is None else inverse()


def method_label(method: int) -> str:
    """A padding method in words, such as ``same, centered, remainder bottom right``."""
    value = int(method)
    align = _ALIGN_WORDS.get(value & _Method.ALIGN_MASK)
    remainder = _REMAINDER_WORDS[value & int(_Method.ADD_REMAINDER_TO_MASK)]
    words = [
        _SIZE_WORDS.get(value & int(_Method.SIZE_MASK), "reserved size"),
        align or f"centered, remainder {remainder}",
    ]
    words += [word for bit, word in _EXTRA_WORDS.items() if value & bit]
    return ", ".join(words)


def checked_integer(who: str, argument: str, value: object) -> int:
    """``value`` as an int; raises `MPSTypeError` for what is no whole number."""
    try:
        return index(cast("Any", value))
    except TypeError:
        raise MPSTypeError(who, argument, "must be an integer", repr(value), "Give a whole number") from None


def set_edge_mode(policy: MPSNNPadding, kernel: Any, edge_mode: MPSImageEdgeMode) -> None:
    """Sets the edge mode of a kernel with one source, or that of the primary source of a kernel with two."""
    for name in ("edge_mode", "primary_edge_mode"):
        if hasattr(kernel, name):
            setattr(kernel, name, edge_mode)
            return
    rule = "must have an edge mode"
    got = type(kernel).__name__
    remedy = "Use this policy for kernels with a window, such as pooling"
    raise MPSTypeError(f"{type(policy).__name__} ({padding_label(policy)})", "for_kernel", rule, got, remedy)


def preset_choice(policy: object) -> tuple[str, str] | None:
    """The convention that a preset of average pooling follows, and its choice; None of other policies."""
    if not isinstance(policy, MPSNNDefaultPadding) or type(policy).destination_image_descriptor is not _OWN_STEP:
        return None
    method = policy.padding_method()
    found = ((name, choice) for name, each in PRESETS.items() for choice in each if each[choice] == method)
    return next(found, None)


def _preset(kind: type[MPSNNDefaultPadding], name: str, choice: str) -> MPSNNDefaultPadding:
    """The preset that was copied or pickled, whatever block this is."""
    with Conventions({name: choice}):
        return kind(PRESETS[name][choice])


_OWN_STEP = MPSNNDefaultPadding.destination_image_descriptor
