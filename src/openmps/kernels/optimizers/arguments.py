"""What the encodes of optimizers take by name: states, or vectors, or matrices (MPSNNOptimizers.h, macOS 10.14).

The one place that lists it: of an optimizer's operands follow its accumulators, the order of its selectors and the
signature of its encode.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from inspect import Parameter
from typing import Any, TypedDict

from openmps.core.kernel.operands import Argument
from openmps.core.state.state import MPSState
from openmps.core.vector import MPSMatrix, MPSVector
from openmps.types import MPSDataType

KINDS = {"vector": MPSVector, "matrix": MPSMatrix}


class Operands(TypedDict, total=False):
    """Those of every optimizer."""

    convolution_gradient_state: MPSState | None
    convolution_source_state: MPSState | None
    batch_normalization_state: MPSState | None
    batch_normalization_gradient_state: MPSState | None
    batch_normalization_source_state: MPSState | None
    result_state: MPSState | None
    input_gradient_vector: MPSVector | None
    input_values_vector: MPSVector | None
    result_values_vector: MPSVector | None
    input_gradient_matrix: MPSMatrix | None
    input_values_matrix: MPSMatrix | None
    result_values_matrix: MPSMatrix | None


class MomentumOperands(Operands, total=False):
    """Those of gradient descent."""

    input_momentum_vectors: Sequence[MPSVector] | None
    input_momentum_vector: MPSVector | None
    input_momentum_matrix: MPSMatrix | None


class SumOfSquaresOperands(Operands, total=False):
    """Those of RMSProp."""

    input_sum_of_squares_vectors: Sequence[MPSVector] | None
    input_sum_of_squares_vector: MPSVector | None
    input_sum_of_squares_matrix: MPSMatrix | None


class AdamOperands(MomentumOperands, total=False):
    """Those of Adam."""

    input_velocity_vectors: Sequence[MPSVector] | None
    maximum_velocity_vectors: Sequence[MPSVector] | None
    input_velocity_vector: MPSVector | None
    maximum_velocity_vector: MPSVector | None
    input_velocity_matrix: MPSMatrix | None
    maximum_velocity_matrix: MPSMatrix | None


def accumulators_of(operands: type[Operands]) -> tuple[str, ...]:
    """The optimizer's own vectors, without what an argument's name ends with."""
    return tuple(name.removesuffix("_vectors") for name in operands.__annotations__ if name.endswith("_vectors"))


def parts_of(accumulators: Sequence[str]) -> tuple[str, ...]:
    """The operands of the vector and matrix forms, without what an argument's name ends with, in order."""
    return ("input_gradient", "input_values", *accumulators, "result_values")


@lru_cache
def arguments_of(accumulators: tuple[str, ...], optional: frozenset[str], suffix: str) -> tuple[Argument, ...]:
    """The arguments of the vector form, or of the matrix form."""
    return tuple(
        Argument(
            f"{part}_{suffix}",
            KINDS[suffix],
            (MPSDataType.FLOAT32,),
            is_result=part == "result_values",
            is_optional=part in optional,
        )
        for part in parts_of(accumulators)
    )


def names_of(operands: type[Operands]) -> list[str]:
    """All arguments, in the order in which an encode lists them."""
    own = accumulators_of(operands)
    states = [name for name in Operands.__annotations__ if name.startswith(("convolution_", "batch_"))]
    parts = [f"{part}_{suffix}" for suffix in KINDS for part in parts_of(own)]
    return [*states, *(f"{name}_vectors" for name in own), "result_state", *parts]


def signature_of(encode: Callable[..., None], operands: type[Operands]) -> inspect.Signature:
    """The signature of an encode, whose last parameter stands for the operands by name."""
    signature = inspect.signature(encode)
    hints: dict[str, Any] = operands.__annotations__
    named = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hints[name].__forward_arg__)
        for name in names_of(operands)
    ]
    return signature.replace(parameters=[*[*signature.parameters.values()][:-1], *named])
