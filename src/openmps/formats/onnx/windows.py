"""Windows of convolutions and poolings: size, stride, dilation and padding, of one spatial axis or two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openmps.core.padding.explicit import ExplicitPadding
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSArgumentError
from openmps.formats.onnx.layout import Layout, atoms, planar, size_of
from openmps.formats.onnx.model import Node
from openmps.formats.onnx.problems import NodeError
from openmps.types import MPSNNPaddingMethod as Method

_SAME_LOWER = Method.SIZE_SAME | Method.ALIGN_CENTERED | Method.ADD_REMAINDER_TO_TOP_LEFT
_GIVE = "Give the size of the input, as shapes={name: shape} or --shape NAME=1,3,224,224"
_FAR = 1 << 24

Two = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """Rows and columns of a window, and how it moves over ``source``, whose size may not be known."""

    size: Two
    stride: Two
    dilation: Two
    before: Two
    behind: Two
    automatic: str
    is_ceiling: bool
    source: tuple[int | None, int | None]

    @property
    def extent(self) -> Two:
        """Rows and columns with the dilation."""
        rows, columns = ((k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True))
        return rows, columns

    @property
    def is_padded(self) -> bool:
        """Whether pads were given, or asked for."""
        return any(self.before + self.behind) or self.automatic != "NOTSET"

    def pads(self) -> tuple[Two, Two] | None:
        """Pads before and behind; None where they depend on a size that is not known."""
        if self.automatic == "NOTSET":
            return self.before, self.behind
        if self.automatic == "VALID":
            return (0, 0), (0, 0)
        sides: list[Two] = []
        for n, k, s in zip(self.source, self.extent, self.stride, strict=True):
            if n is None:
                return None
            total = max((-(-n // s) - 1) * s + k - n, 0)
            less, more = total // 2, total - total // 2
            sides.append((less, more) if self.automatic == "SAME_UPPER" else (more, less))
        (top, bottom), (left, right) = sides
        return (top, left), (bottom, right)

    def policy(self, **options: Any) -> ExplicitPadding | MPSNNDefaultPadding:
        """The padding policy of a node."""
        pads = self.pads()
        if pads is not None:
            (top, left), (bottom, right) = pads
            is_ceiling = self.is_ceiling and self.automatic in ("NOTSET", "VALID")
            return ExplicitPadding(left, top, right, bottom, ceil_mode=is_ceiling, **options)
        if any(s >= k + 2 for s, k in zip(self.stride, self.extent, strict=True)) or options:
            raise NodeError("its padding depends on a size that is not known", _GIVE)
        return (
            MPSNNDefaultPadding.tensorflow_same()
            if self.automatic == "SAME_UPPER"
            else MPSNNDefaultPadding(_SAME_LOWER)
        )

    def result(self, layout: Layout, channels: int) -> Layout:
        """The layout of a result."""
        return planar(layout.batch, atoms(channels), *map(atoms, self.lengths()), rank=layout.rank)

    def lengths(self) -> tuple[int | None, int | None]:
        """Rows and columns of a result."""
        policy = self.policy()
        return self._length(policy, 0), self._length(policy, 1)

    def _length(self, policy: ExplicitPadding | MPSNNDefaultPadding, axis: int) -> int | None:
        source = self.source[axis]
        if source is None:
            return None
        if not isinstance(policy, ExplicitPadding):
            return -(-source // self.stride[axis])
        letter = "y" if axis == 0 else "x"
        return placed(policy, source, self.size[axis], self.stride[axis], self.dilation[axis], axis=letter)


def placed(policy: ExplicitPadding, *sizes: int, **options: Any) -> int:
    """The length of a result."""
    try:
        return policy.placement(*sizes, **options).result
    except MPSArgumentError as error:
        raise NodeError(f"its window of {sizes[1]} does not fit {sizes[0]} pixels and their padding") from error


def window_of(node: Node, kernel: tuple[int, ...], layout: Layout) -> Window:
    """The window that an operator's attributes describe, over an image of some layout."""
    rank = layout.rank - 2
    if len(kernel) != rank:
        raise NodeError(f"its window has {len(kernel)} axes, its input {rank} spatial ones")
    pads = node.integers("pads", [0] * (2 * rank))
    automatic = node.text("auto_pad", "NOTSET") or "NOTSET"
    if automatic not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise NodeError(f"its auto_pad is {automatic[:40]!r}")
    if len(pads) != 2 * rank or any(abs(pad) > _FAR for pad in pads):
        raise NodeError("its pads are not two for each spatial axis")
    size = _two(list(kernel), 1, "kernel_shape")
    stride, dilation = (_two(node.integers(name, [1] * rank), 1, name) for name in ("strides", "dilations"))
    source = size_of(layout.rows), size_of(layout.columns)
    before, behind = _two(pads[:rank], 0, ""), _two(pads[rank:], 0, "")
    return Window(size, stride, dilation, before, behind, automatic, bool(node.integer("ceil_mode", 0)), source)


def _two(values: list[int], one: int, name: str) -> Two:
    if len(values) > 2:
        raise NodeError("it has three spatial axes: images have two")
    rows, columns = [one] * (2 - len(values)) + values
    if name and not (1 <= rows <= _FAR and 1 <= columns <= _FAR):
        raise NodeError(f"its {name} must be at least 1, and none is {values[:4]}")
    return rows, columns
