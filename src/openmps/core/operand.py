"""Operands: what an encode reads and writes, whatever it is: an image, a batch of images, a vector, a matrix.

An encode asks an operand three things (`Operand`): may it be used here; where are its elements; one read less, please.
Where the elements are is a `View`, a binding with a shape, which is all that a plan knows of an operand. Another kind
of operand, n-dimensional arrays say, is a class that answers the three, with `Elements` or a view of its own, and
nothing else: kernels over it are `openmps.core.kernel.operands.OperandKernel` with arguments of that class.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from openmps.metal.device import CommandBuffer
from openmps.runtime.binding import MemoryBinding
from openmps.types import MPSDataType, MPSImageFeatureChannelFormat


class OperandShape(Hashable, Protocol):
    """What plans are made for: lengths, and how elements are stored."""

    @property
    def stored_as(self) -> MPSDataType | MPSImageFeatureChannelFormat:
        """The type of an element."""
        ...

    @property
    def number_format(self) -> MPSImageFeatureChannelFormat | None:
        """How numbers are told from elements and rounded to them; None where elements are what kernels work on."""
        ...


ShapeT = TypeVar("ShapeT", bound=OperandShape)


class View(MemoryBinding, Generic[ShapeT]):
    """Elements of an operand, all of them or a part: a function reads them (`value`) or stores results (`take`)."""

    __slots__ = ()

    shape: ShapeT
    """Lengths, and how the elements are stored."""

    def overlaps(self, other: View[Any]) -> bool:
        """Whether both see at least one byte of the same memory, gaps between elements included."""
        return any(mine.meets(theirs) for mine in self.regions() for theirs in other.regions())


class Operand:
    """An object that encodes read and write; see the module. Not an abstract class: encodes ask for classes often."""

    __slots__ = ()

    is_batch: ClassVar[bool] = False
    """Whether it is a batch of images, which is an abstract class."""

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """Raise unless an encode on ``command_buffer`` may use it: its device, its life, its read count."""
        raise NotImplementedError

    def whole(self) -> View[Any]:
        """All its elements, as an encode sees them."""
        raise NotImplementedError

    def count_read(self, amount: int = 1) -> None:
        """Take reads from the read count; permanent objects have none."""
        raise NotImplementedError


class OperandList(Operand):
    """Several objects that an encode reads or writes as one operand."""

    __slots__ = ()

    def members(self, argument: str) -> Iterable[tuple[str, Operand]]:
        """The objects, each with how errors name it where the operand is that argument."""
        raise NotImplementedError


def members(argument: str, operand: Operand) -> Iterable[tuple[str, Operand]]:
    """The objects whose reads an encode takes, with how errors name them."""
    return operand.members(argument) if isinstance(operand, OperandList) else ((argument, operand),)
