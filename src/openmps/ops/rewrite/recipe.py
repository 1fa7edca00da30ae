"""What rules leave to be made besides a function: inputs that are derived from memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from openmps.ops.convolution.fused_convolution import PrepareConvolution
from openmps.ops.convolution.preactivated_convolution import PreparePreactivated
from openmps.ops.normalization.stored_normalization import PrepareNormalization
from openmps.ops.op import Function, Input


class Recipe(NamedTuple):
    """How a prepared input of a function is made: an operation of other inputs; None for those that are left out."""

    op: PrepareConvolution | PrepareNormalization | PreparePreactivated
    reads: tuple[Input | None, ...]


class FusedFunction(NamedTuple):
    """A function after fusions."""

    function: Function
    gone: set[int]
    """The values that are never filled any more."""
    recipes: Mapping[Input, Recipe]
