"""Every operand of every form of an optimizer's encode given something else: an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench
from openmps.errors import MPSError

CPU = mps.mtl_device("cpu")
ACCUMULATORS: dict[Any, tuple[str, ...]] = {
    mps.MPSNNOptimizerStochasticGradientDescent: ("input_momentum",),
    mps.MPSNNOptimizerRMSProp: ("input_sum_of_squares",),
    mps.MPSNNOptimizerAdam: ("input_momentum", "input_velocity", "maximum_velocity"),
}
OPTIONAL: dict[Any, tuple[str, ...]] = {
    mps.MPSNNOptimizerStochasticGradientDescent: ("input_momentum",),
    mps.MPSNNOptimizerRMSProp: (),
    mps.MPSNNOptimizerAdam: ("maximum_velocity",),
}
"""Accumulators that may be left out."""


def _vector(length: int) -> mps.MPSVector:
    return mps.MPSVector(CPU, mps.MPSVectorDescriptor(length))


def _matrix() -> mps.MPSMatrix:
    return mps.MPSMatrix(CPU, mps.MPSMatrixDescriptor(2, 3))


def _operands(accumulators: tuple[str, ...], suffix: str, make: Callable[[], Any]) -> dict[str, Any]:
    names = ("input_gradient", "input_values", *accumulators, "result_values")
    return {f"{name}_{suffix}": make() for name in names}


def _convolution(accumulators: tuple[str, ...]) -> dict[str, Any]:
    source = mps.ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(2, 1, 3, 2), np.zeros(12), np.zeros(2))
    image = mps.MPSImage.from_numpy(CPU, np.zeros((1, 2, 3), np.float32))
    state: Any = mps.MPSCNNConvolution(CPU, source).result_state(image)
    weights = mps.MPSCNNConvolutionWeightsAndBiasesState(CPU.new_buffer(length=48), CPU.new_buffer(length=8))
    vectors = {f"{name}_vectors": [_vector(12), _vector(2)] for name in accumulators}
    return {
        "convolution_gradient_state": state, "convolution_source_state": weights, **vectors, "result_state": weights
    }  # fmt: skip


def _batch_normalization(accumulators: tuple[str, ...], *names: str) -> dict[str, Any]:
    bench = Bench(CPU)
    kernel = mps.MPSCNNBatchNormalization(CPU, mps.ArrayBatchNormalizationDataSource(5))
    images = bench.batch(np.zeros((2, 5, 1, 1)))
    command_buffer, state = bench.command_buffer(), kernel.result_state(images[0])
    mps.MPSCNNBatchNormalizationStatistics(CPU).encode_batch(command_buffer, images, state)
    kernel.encode_batch(command_buffer, images, state)
    mps.MPSCNNBatchNormalizationStatisticsGradient(CPU).encode_batch(command_buffer, images, images, state)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    result = mps.MPSCNNNormalizationGammaAndBetaState(CPU.new_buffer(length=20), CPU.new_buffer(length=20))
    vectors = {f"{name}_vectors": [_vector(5), _vector(5)] for name in accumulators}
    return {**dict.fromkeys(names, state), **vectors, "result_state": result}


FORMS: dict[str, Callable[[tuple[str, ...]], dict[str, Any]]] = {
    "vectors": lambda names: _operands(names, "vector", lambda: _vector(6)),
    "matrices": lambda names: _operands(names, "matrix", _matrix),
    "convolution": _convolution,
    "batch normalization": lambda names: _batch_normalization(names, "batch_normalization_state"),
    "batch normalization, two states": lambda names: _batch_normalization(
        names, "batch_normalization_gradient_state", "batch_normalization_source_state"
    ),
}
"""Right arguments of an encode, in the selector's order, of the names of an optimizer's accumulators."""
_IMAGE = mps.MPSImage.from_numpy(CPU, np.zeros((1, 1, 1), np.float32))
WRONG: dict[str, Any] = {
    "none": None, "array": np.zeros(6, np.float32), "array of one": np.zeros(1), "tensor": torch.zeros(6),
    "numbers": [1.0], "text": "x", "number": 3, "object": object(), "mapping": {}, "set": {1}, "nothing": [],
    "arrays": [np.zeros(12), np.zeros(2)], "lists": [[_vector(12)]], "three": (_vector(12),) * 3,
    "buffer": CPU.new_buffer(length=24), "shorter vector": _vector(4), "matrix of another shape":
    mps.MPSMatrix(CPU, mps.MPSMatrixDescriptor(1, 2)), "image": _IMAGE, "images": mps.MPSImageBatch([_IMAGE]),
    "half": mps.MPSVector(CPU, mps.MPSVectorDescriptor(6, mps.MPSDataType.FLOAT16)), "class": mps.MPSVector,
    "descriptor": mps.MPSVectorDescriptor(6), "device": CPU, "state": mps.MPSState(CPU, buffer_size=4),
    "another device's": mps.MPSVector(mps.MTLDevice(torch.device("cpu")), mps.MPSVectorDescriptor(6)),
    "labels": mps.MPSCNNLossLabels.batch(CPU, np.eye(2, dtype=np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ACCUMULATORS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("way", ["by name", "by place", "after a right encode"])
def test_wrong_operands_are_named(kind: Any, form: str, way: str) -> None:
    right = FORMS[form](ACCUMULATORS[kind])
    optimizer = kind(CPU)
    optimizer.label = "opt"
    found: list[str] = []
    for name, wrong in ((name, wrong) for name in right for wrong in WRONG):
        command_buffer = CPU.new_command_queue().command_buffer()
        if way == "after a right encode":
            optimizer.encode(command_buffer, **right)
            command_buffer.commit()
            command_buffer = CPU.new_command_queue().command_buffer()
        given = {**right, name: WRONG[wrong]}
        is_left_out = WRONG[wrong] is None and name.startswith(OPTIONAL[kind])
        try:
            if way == "by place":
                optimizer.encode(command_buffer, *given.values())
            else:
                optimizer.encode(command_buffer, **given)
        except MPSError as error:
            who = error.who == f"{kind.__name__} 'opt'"
            # By place the first operand says which form is meant; None of it leaves none.
            is_named = way == "by place" or name in str(error) or "arguments must be states" in error.rule
            is_named |= "gradient" in name and "the gradient" in error.rule
            if not (who and (is_named or error.argument == "arguments")) or is_left_out:
                found.append(f"{name}={wrong}: {error}")
        except Exception as error:
            found.append(f"{name}={wrong}: {type(error).__name__}: {error}")
        else:
            if not is_left_out:
                found.append(f"{name}={wrong} is taken")
    assert not found


def test_a_matrix_is_no_vector() -> None:
    with pytest.raises(mps.MPSTypeError, match="input_gradient_vector must be an MPSVector, got MPSMatrix"):
        mps.MPSNNOptimizerAdam(CPU).encode(
            CPU.new_command_queue().command_buffer(),
            **{**FORMS["vectors"](ACCUMULATORS[mps.MPSNNOptimizerAdam]), "input_gradient_vector": _matrix()},
        )
