"""Weights are taken in the layer's own shape, or flat, by everything that takes them; another order is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import openmps as mps
from in_one_test import in_one_test
from samples.convolution import ArraySource

CPU = mps.mtl_device("cpu")
SHAPE = (4, 2, 3, 6)
"""OHWI: no two axes are equal, so that each order of them has a shape of its own."""
REFUSED = r"weights.* must hold \d+ .*, OHWI .* \(4, 2, 3, \d\), or flat in that order, got .* shape \({}\)"
Take = Callable[[Any], Any]


def _descriptor(kind: Any = mps.MPSCNNConvolutionDescriptor, inputs: int = 6) -> Any:
    return kind(3, 2, inputs, 4)


def _source(
    weights: Any, data_type: mps.MPSDataType = mps.MPSDataType.FLOAT32, biases: Any = None, **of: Any
) -> ArraySource:
    return ArraySource(_descriptor(**of), weights, biases, data_type)


def _bytes(weights: Any) -> Any:
    source = _source(np.asarray(weights, np.uint8), mps.MPSDataType.UINT8)
    source.lookup_table_for_uint8_kernel = lambda: np.zeros(256, np.float32)  # type: ignore[attr-defined]
    return source


def _binary(kind: Any) -> Take:
    """Words of 32 channels: as many channels as make SHAPE that of the words."""

    def take(weights: Any) -> Any:
        words = _source(np.asarray(weights, np.uint32), mps.MPSDataType.UINT32, inputs=6 * 32)
        return kind(CPU, words, type=mps.MPSCNNBinaryConvolutionType.XNOR)

    return take


def _reloaded(weights: Any) -> None:
    source = _source(np.zeros(SHAPE, np.float32))
    kernel = mps.MPSCNNConvolution(CPU, weights=source)
    source._weights = weights
    kernel.reload_weights_and_biases_from_data_source()


def _in_a_graph(weights: Any) -> None:
    node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), _source(weights))
    mps.MPSNNGraph(CPU, node.result_image)


TAKERS: dict[str, Take] = {
    "data source": lambda weights: mps.MPSCNNConvolution(CPU, weights=_source(weights)),
    "float16": lambda weights: mps.MPSCNNConvolution(
        CPU, weights=_source(weights.astype(np.float16), mps.MPSDataType.FLOAT16)
    ),
    "bytes": lambda weights: mps.MPSCNNConvolution(CPU, weights=_bytes(weights)),
    "older constructor": lambda weights: mps.MPSCNNConvolution(CPU, _descriptor(), weights),
    "fully connected": lambda weights: mps.MPSCNNFullyConnected(CPU, weights=_source(weights)),
    "transposed": lambda weights: mps.MPSCNNConvolutionTranspose(CPU, weights=_source(weights)),
    "gradient": lambda weights: mps.MPSCNNConvolutionGradient(CPU, weights=_source(weights)).parameters,
    "gradient of a transposed": lambda weights: (
        mps.MPSCNNConvolutionTransposeGradient(CPU, weights=_source(weights)).parameters
    ),
    "binary": _binary(mps.MPSCNNBinaryConvolution),
    "binary, fully connected": _binary(mps.MPSCNNBinaryFullyConnected),
    "reload": _reloaded,
    "graph": _in_a_graph,
    "array source": lambda weights: mps.ArrayConvolutionDataSource(_descriptor(), weights),
    "trainable source": lambda weights: mps.TrainableConvolutionDataSource(
        _descriptor(), weights, optimizer=lambda device: mps.MPSNNOptimizerAdam(device, 1e-3)
    ),
}
ORDERS = {
    "OIHW": ((0, 3, 1, 2), r"Pass numpy\.transpose\(w, \(0, 2, 3, 1\)\) if it is OIHW$"),
    "HWIO": ((1, 2, 3, 0), r"Pass numpy\.transpose\(w, \(3, 0, 1, 2\)\) if it is HWIO$"),
    "IOHW": ((3, 0, 1, 2), r"Pass numpy\.transpose\(w\[:, :, ::-1, ::-1\], \(1, 2, 3, 0\)\) if it is IOHW, of another"),
    "OWHI": ((0, 2, 1, 3), r"These fit: numpy\.transpose\(w, \(0, 2, 1, 3\)\)$"),
}


@in_one_test
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("taker", TAKERS)
def test_another_order_of_the_axes(taker: str, order: str) -> None:
    axes, advice = ORDERS[order]
    weights = np.zeros(SHAPE, np.float32).transpose(axes)
    got = ", ".join(map(str, weights.shape))
    with pytest.raises(mps.MPSArgumentError, match=f"{REFUSED.format(got)}\\. {advice}"):
        TAKERS[taker](weights)


@in_one_test
@pytest.mark.parametrize("taker", TAKERS)
def test_the_shape_itself_and_flat(taker: str) -> None:
    weights = np.zeros(SHAPE, np.float32)
    TAKERS[taker](weights)
    TAKERS[taker](weights.ravel())


@pytest.mark.parametrize("shape", [(4, 6, 6), (8, 18), (4, 36), (1, 4, 2, 3, 6), (4, 2, 3, 5), (143,)])
def test_what_is_neither(shape: tuple[int, ...]) -> None:
    with pytest.raises(mps.MPSArgumentError, match=r"must hold 144 numbers, OHWI .*, got .* shape"):
        mps.ArrayConvolutionDataSource(_descriptor(), np.zeros(shape))


def test_several_orders_that_fit_are_all_named() -> None:
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, 5, 3)
    with pytest.raises(mps.MPSArgumentError) as caught:
        mps.ArrayConvolutionDataSource(descriptor, np.zeros((3, 5, 3, 3)))
    assert str(caught.value).endswith("Pass numpy.transpose(w, (0, 2, 3, 1)) if it is OIHW")
    with pytest.raises(mps.MPSArgumentError) as caught:
        mps.ArrayConvolutionDataSource(descriptor, np.zeros((3, 3, 5, 3)))
    assert str(caught.value).endswith("Pass numpy.transpose(w, (3, 0, 1, 2)) if it is HWIO")
    twice = mps.MPSCNNConvolutionDescriptor(3, 3, 1, 1)
    with pytest.raises(
        mps.MPSArgumentError, match=r"\(0, 2, 3, 1\)\) if it is OIHW, or numpy.transpose\(w\[:, :, ::-1"
    ):
        mps.ArrayConvolutionDataSource(twice, np.zeros((1, 1, 3, 3)))


def test_depthwise_weights_may_leave_the_last_axis_out(rng: np.random.Generator) -> None:
    kind = mps.MPSCNNDepthWiseConvolutionDescriptor
    weights = rng.normal(size=(4, 2, 3)).astype(np.float32)
    for given in (weights, weights[..., None], weights.ravel()):
        kernel = mps.MPSCNNConvolution(CPU, weights=_source(given, kind=kind, inputs=2))
        np.testing.assert_array_equal(kernel.parameters.weights.numpy()[..., 0], weights)
    for wrong, advice in (
        (weights[:, None], r"\(0, 2, 3, 1\)\) if it is OIHW"),
        (weights.transpose(1, 2, 0)[..., None], r"These fit: numpy.transpose\(w, \(2, 0, 1, 3\)\)"),
        (weights.transpose(1, 2, 0), "Bring the axes into the order"),
    ):
        with pytest.raises(mps.MPSArgumentError, match=advice):
            mps.MPSCNNConvolution(CPU, weights=_source(wrong, kind=kind, inputs=2))


# --- rows -------------------------------------------------------------------------------------------------------------

OPTIMIZER = {"optimizer": lambda device: mps.MPSNNOptimizerAdam(device, 1e-3)}


def _folded(**rows: Any) -> None:
    given = {"mean": None, "variance": None} | rows
    _descriptor().set_batch_normalization_parameters_for_inference(**given)


ROWS: dict[str, Take] = {
    "biases": lambda row: mps.MPSCNNConvolution(CPU, weights=_source(np.zeros(SHAPE), biases=row)),
    "biases, older constructor": lambda row: mps.MPSCNNConvolution(CPU, _descriptor(), np.zeros(SHAPE), row),
    "biases of arrays": lambda row: mps.ArrayConvolutionDataSource(_descriptor(), np.zeros(SHAPE), row),
    "folded mean": lambda row: _folded(mean=row),
    "folded variance": lambda row: _folded(variance=row),
    "folded gamma": lambda row: _folded(gamma=row),
    "folded beta": lambda row: _folded(beta=row),
    "gamma": lambda row: mps.ArrayBatchNormalizationDataSource(4, gamma=row),
    "beta": lambda row: mps.TrainableBatchNormalizationDataSource(4, beta=row, **OPTIMIZER),
    "mean": lambda row: mps.ArrayBatchNormalizationDataSource(4, mean=row),
    "variance": lambda row: mps.ArrayBatchNormalizationDataSource(4, variance=row),
    "binary terms": lambda row: mps.MPSCNNBinaryConvolution(
        CPU,
        _source(np.zeros((4, 2, 3, 1), np.uint32), mps.MPSDataType.UINT32),
        row,
        type=mps.MPSCNNBinaryConvolutionType.AND,
    ),
    "slopes": lambda row: mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.PRELU, data=row),
}


@in_one_test
@pytest.mark.parametrize("taker", ROWS)
def test_a_row_is_no_rectangle(taker: str) -> None:
    for row in (np.ones(4), np.ones((1, 4)), np.ones((4, 1, 1)), [1, 1, 1, 1]):
        ROWS[taker](row)
    with pytest.raises(mps.MPSArgumentError, match=r"got shape \(2, 2\)$"):
        ROWS[taker](np.ones((2, 2)))
