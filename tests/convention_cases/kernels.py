"""Conventions of kernels on channels and places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

import openmps as mps
from convention_cases.case import (
    SOURCES,
    STEPS,
    Absent,
    Case,
    Subject,
    graph_of,
    kernel,
    kernels,
    network,
    no_node,
    pixels,
    row_image,
    trained,
)
from encoding import Bench
from mac_facts.fact import DEVICE, image
from matrices import matrix, vector
from oracles import conventions as oracle
from oracles import dropout as dropout_oracle

_PIXELS = pixels([[[1, 2], [3, 4], [5, 6]]])
_FLOW = pixels([[[7, 1, 5], [2, 6, 3]]])
_TIED = pixels([[[3, 7, 7, 3], [1, 1, 1, 1], [2, 9, 1, 9]]])
_ROW = [10.0, 20.0, 60.0, 30.0]
_UNFUSED = "no rule of convolutions runs in training"
_ENDS = ("first", "last")


# --- reshape ----------------------------------------------------------------------------------------------------------


def _reshaped() -> Subject:
    def make() -> Any:
        return mps.MPSNNReshape(DEVICE), mps.MPSNNReshapeGradient(DEVICE)

    def encode(command_buffer: Any, forward: Any, gradient: Any) -> Sequence[Any]:
        source, size = image(_PIXELS), dict(zip(_SIZES, (2, 1, 3), strict=True))
        made, state = forward.encode(command_buffer, source, destination_state_is_temporary=False, **size)
        return [gradient.encode(command_buffer, image(_FLOW), source, state), made]

    return kernels(make, encode)


_SIZES = ("reshaped_width", "reshaped_height", "reshaped_feature_channels")


def _reshape_nodes(source: Any, flow: Any) -> Any:
    return trained(mps.MPSNNReshapeNode(source, 2, 1, 3), flow)


# --- dropout ----------------------------------------------------------------------------------------------------------

_ONES = np.ones((4, 4, 2))


def _dropped(step: int) -> np.ndarray:
    kept = dropout_oracle.mask((1, 2, 4, 4), 0.5, 1, step)
    return (kept[0] / 0.5).transpose(1, 2, 0)


def _dropout() -> Any:
    return mps.MPSCNNDropout(DEVICE, keep_probability=0.5, seed=1)


def _dropout_node(source: Any) -> Any:
    return mps.MPSCNNDropoutNode(source, 0.5, 1)


# --- reductions -------------------------------------------------------------------------------------------------------


def _arguments() -> Subject:
    def make() -> Any:
        return (
            mps.MPSNNReduceFeatureChannelsArgumentMin(DEVICE),
            mps.MPSNNReduceFeatureChannelsArgumentMax(DEVICE),
        )

    def encode(command_buffer: Any, *made: Any) -> Sequence[Any]:
        return [each.encode(command_buffer, image(_TIED)) for each in made]

    return kernels(make, encode)


def _argument_nodes(source: Any) -> Any:
    kinds = mps.MPSNNReductionFeatureChannelsArgumentMinNode, mps.MPSNNReductionFeatureChannelsArgumentMaxNode
    return [kind(source).result_image for kind in kinds]


_WEIGHTS = pixels([[[1, 0], [0.5, 2], [1, 3]]])


_BATCHES = [0.0, 0.0], [2.0, 4.0]


def _normalization() -> Any:
    return mps.TrainableBatchNormalizationDataSource(1, optimizer=lambda device: mps.MPSNNOptimizerAdam(device, 0.1))


def _statistics() -> Subject:
    """Of two batches by one state, with a normalization of the first between."""

    def make() -> Any:
        source = _normalization()
        return mps.MPSCNNBatchNormalizationStatistics(DEVICE), mps.MPSCNNBatchNormalization(DEVICE, source)

    def encode(command_buffer: Any, statistics: Any, normalization: Any) -> Sequence[Any]:
        batches = [mps.MPSImageBatch([row_image(each)]) for each in _BATCHES]
        state = normalization.result_state(batches[0][0])
        statistics.encode_batch(command_buffer, batches[0], state)
        normalization.encode_batch(command_buffer, batches[0], state)
        statistics.encode_batch(command_buffer, batches[1], state)
        return [state.mean(), state.variance()]

    return kernels(make, encode)


def _asks_no_restart() -> bool:
    graph = graph_of(mps.MPSCNNBatchNormalizationNode(mps.MPSNNImageNode(), _normalization()))
    return "statistics_restart" not in graph.conventions_asked([row_image(_BATCHES[1]).descriptor()])


def _moments(*batches: list[float]) -> list[float]:
    numbers = np.concatenate(batches)
    return [float(numbers.mean()), float(((numbers - numbers.mean()) ** 2).mean())]


# --- samples ----------------------------------------------------------------------------------------------------------


def _region() -> Any:
    """Of the whole height of one row: positions down it are 0 wherever they count from."""
    region = mps.MPSRegion(mps.MPSOrigin(0.0, 0.0, 0.0), mps.MPSSize(0.5, 0.0, 1.0))
    return mps.MPSNNCropAndResizeBilinear(DEVICE, 3, 1, 1, [region])


_PLACES = [-1.0, 0.0, 1.0]
_GRID = image([[[place, 0.0] for place in _PLACES]])


_FOUR, _EIGHT = [10.0, 20.0, 60.0, 30.0], [1.0, 5.0, 2.0, 4.0, 3.0, 8.0, 7.0, 6.0]


_CLIP = mps.MTLRegion(mps.MTLOrigin(2, 0, 0), mps.MTLSize(2, 1, 1))


def _clipped_upsampling() -> Subject:
    """By 2, into columns 2 and 3 of six."""

    def make() -> Any:
        found = mps.MPSCNNUpsamplingNearest(DEVICE, 2, 1), mps.MPSCNNUpsamplingBilinear(DEVICE, 2, 1)
        for each in found:
            each.clip_rect = _CLIP
        return found

    def encode(command_buffer: Any, *made: Any) -> Sequence[Any]:
        found = [row_image([-1] * 6) for _ in made]
        for each, destination in zip(made, found, strict=True):
            each.encode(command_buffer, row_image([0, 10, 20]), destination_image=destination)
        return found

    return kernels(make, encode)


def _asks_no_origin() -> bool:
    graph = graph_of(mps.MPSCNNUpsamplingNearestNode(mps.MPSNNImageNode(), 2, 1))
    return "upsampling_origin" not in graph.conventions_asked([row_image([0, 10, 20]).descriptor()])


def _enlarged() -> Subject:
    def make() -> Any:
        return mps.MPSCNNUpsamplingBilinear(DEVICE, 2, 1), mps.MPSCNNUpsamplingBilinearGradient(DEVICE, 2, 1)

    def encode(command_buffer: Any, forward: Any, gradient: Any) -> Sequence[Any]:
        source = row_image(_FOUR)
        made, state = forward.encode(command_buffer, source, destination_state_is_temporary=False)
        return [gradient.encode(command_buffer, row_image(_EIGHT), source, state), made]

    return kernels(make, encode)


def _enlarged_nodes(source: Any, factors: Any) -> Any:
    return trained(mps.MPSCNNUpsamplingBilinearNode(source, 2, 1), factors)


# --- arithmetic -------------------------------------------------------------------------------------------------------

_FIRST, _SECOND = [1.0, 4.0, 3.0], [2.0, 3.0, 1.0]


def _clamped() -> Subject:
    def make() -> Any:
        forward = mps.MPSCNNAdd(DEVICE)
        forward.maximum_value = 5.0
        return forward, mps.MPSCNNAddGradient(DEVICE)

    def encode(command_buffer: Any, forward: Any, gradient: Any) -> Sequence[Any]:
        first, second = row_image(_FIRST), row_image(_SECOND)
        made, state = forward.encode(command_buffer, first, second, destination_state_is_temporary=False)
        return [gradient.encode(command_buffer, row_image([1, 1, 1]), first, state), made]

    return kernels(make, encode)


def _clamped_nodes(first: Any, second: Any) -> Any:
    node = mps.MPSNNAdditionNode(first, second)
    node.maximum_value = 5.0
    gradients = mps.MPSNNInitialGradientNode(node.result_image).training_graph(None)
    assert gradients
    of_first = next(each for each in gradients if not each.is_secondary_source_filter)
    return [of_first.result_image, node.result_image]


_SMALL, _LARGE = row_image([2.0]), row_image([1.0, 5.0, 3.0])


def _broadcast_sum() -> Any:
    made = mps.MPSCNNAdd(DEVICE)
    made.primary_stride_in_pixels_x = made.primary_stride_in_pixels_y = 0
    return made


def _broadcast_node(primary: Any, secondary: Any) -> Any:
    node = mps.MPSNNAdditionNode(primary, secondary)
    node.primary_stride_in_pixels_x = node.primary_stride_in_pixels_y = 0
    return node


# --- the format of results --------------------------------------------------------------------------------------------

_BYTES = np.array([[[0], [100], [255]]], np.uint8)


def _whole_numbers() -> mps.MPSImage:
    """Three pixels of Unorm8."""
    source = mps.MPSImage(DEVICE, mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.UNORM8, 3, 1, 1))
    source.write_bytes(_BYTES[None])
    return source


def _third(reading: str) -> list[float]:
    """Numbers times 1/3, as they are stored."""
    shares = _BYTES.reshape(-1) / 255 / 3
    stored = np.round(shares * 255) / 255 if reading == "source" else shares.astype(np.float16)
    return [float(each) for each in stored]


def _asks_no_format() -> bool:
    """A graph says itself how its images are stored."""
    graph = graph_of(mps.MPSCNNNeuronLinearNode(mps.MPSNNImageNode(), 1 / 3))
    return "result_format" not in graph.conventions_asked([_whole_numbers().descriptor()])


# --- sums of matrices -------------------------------------------------------------------------------------------------


_SUMMANDS = [[[1.0, 2, 3], [4, 5, 6]], [[10.0, 20, 30], [40, 50, 60]]]
_BIAS = [1.0, 10.0, 100.0]


_MATRICES = [matrix(Bench(DEVICE), each) for each in (*_SUMMANDS, np.zeros((3, 2)))]
_BIAS_VECTOR = vector(Bench(DEVICE), _BIAS)


def _sum_of_matrices(command_buffer: Any, kernel: Any) -> Sequence[Any]:
    """Of matrices that stay, for a replay is that of their memory."""
    *sources, result = _MATRICES
    kernel.encode(command_buffer, sources, result, None, None, _BIAS_VECTOR, 0)
    return [result]


def _over(result: mps.MPSMatrix, encode: Callable[[], None]) -> list[Any]:
    """What an encode writes over -1, which is nothing where it is refused."""
    result.whole().value().fill_(-1.0)
    with suppress(mps.MPSArgumentError):
        encode()
    return [result]


def _few_scales(command_buffer: Any, kernel: Any) -> list[Any]:
    """A scale for the first of two matrices."""
    *sources, _ = _MATRICES
    return _over(_WHOLE, lambda: kernel.encode(command_buffer, sources, _WHOLE, _SCALE))


def _small_result(command_buffer: Any, kernel: Any) -> list[Any]:
    *sources, _ = _MATRICES
    return _over(_SMALLER, lambda: kernel.encode(command_buffer, sources, _SMALLER))


_WHOLE, _SMALLER = (matrix(Bench(DEVICE), np.zeros(size)) for size in ((2, 3), (1, 2)))
_SCALE = vector(Bench(DEVICE), [2.0])


# --- normalized matrices, and several matrices ------------------------------------------------------------------------


_SLOPES = [matrix(Bench(DEVICE), [[each] for each in column]) for column in ([3.0, 4.0], [1.0, 2.0], [0.0, 0.0])]
_MOMENTS = [vector(Bench(DEVICE), [each]) for each in (0.0, 0.75)]
_SUMS = [vector(Bench(DEVICE), [-1.0]) for _ in range(2)]


def _normalization_gradient() -> Any:
    """Where variance + epsilon is 1."""
    made = mps.MPSMatrixBatchNormalizationGradient(DEVICE)
    made.epsilon = 0.25
    return [made]


def _normalization_sums(command_buffer: Any, kernel: Any) -> Sequence[Any]:
    gradient, source, result = _SLOPES
    kernel.encode(command_buffer, gradient, source, *_MOMENTS, None, None, result, *_SUMS)
    return _SUMS


_PAIRS = [matrix(Bench(DEVICE), [[[first]], [[second]]]) for first, second in ((2.0, 3.0), (5.0, 7.0), (0.0, 0.0))]


def _second_product() -> Any:
    made = mps.MPSMatrixMultiplication(DEVICE, 1, 1, 1)
    made.batch_start = 1
    return [made]


def _products(command_buffer: Any, kernel: Any) -> list[Any]:
    return _over(_PAIRS[2], lambda: kernel.encode(command_buffer, *_PAIRS))


CASES: Mapping[str, Case] = {
    "reshape_order": Case(
        {
            each: [oracle.reshaped(_FLOW, (1, 3, 2), each), oracle.reshaped(_PIXELS, (1, 2, 3), each)]
            for each in ("pixels", "planes")
        },
        _reshaped(),
        network(_reshape_nodes, image(_PIXELS), image(_FLOW), behind=False),
        unfused=_UNFUSED,
    ),
    "dropout_encodes": Case(
        {
            "differ": [_dropped(step) for step in range(STEPS)],
            "equal": [_dropped(0) for _ in range(STEPS)],
        },
        kernel(_dropout, image(_ONES)),
        network(_dropout_node, image(_ONES)),
        counts=True,
    ),
    "argument_ties": Case(
        {each: [oracle.argument(_TIED, each, largest=largest) for largest in (False, True)] for each in _ENDS},
        _arguments(),
        network(_argument_nodes, image(_TIED)),
    ),
    "weighted_mean": Case(
        {each: [oracle.weighted_mean(_PIXELS, _WEIGHTS, each)] for each in ("channels", "weights")},
        kernel(lambda: mps.MPSNNReduceFeatureChannelsAndWeightsMean(DEVICE), image(_PIXELS), image(_WEIGHTS)),
        no_node("MPSNNReduceFeatureChannelsAndWeightsMean", "MPSNNReductionFeatureChannelsAndWeightsMean"),
    ),
    "statistics_restart": Case(
        {"phase": _moments(_BATCHES[1]), "reset": _moments(*_BATCHES)},
        _statistics(),
        Absent("each encode of a graph has a state of its own", _asks_no_restart),
        besides=SOURCES | {"variance"},
    ),
    "region_corners": Case(
        {each: [oracle.region(_ROW, 0.0, 0.5, 3, each)] for each in ("corners", "edges", "steps")},
        kernel(_region, row_image(_ROW)),
        no_node("MPSNNCropAndResizeBilinear"),
    ),
    "grid_corners": Case(
        {each: [oracle.grid(_ROW, _PLACES, each)] for each in ("corners", "edges", "pixels")},
        kernel(lambda: mps.MPSNNGridSample(DEVICE), row_image(_ROW), _GRID),
        no_node("MPSNNGridSample"),
    ),
    "bilinear_centres": Case(
        {
            each: [oracle.enlarged_gradient(_EIGHT, 4, 2, each), oracle.enlarged(_FOUR, 2, each)]
            for each in ("asymmetric", "half_pixel")
        },
        _enlarged(),
        network(_enlarged_nodes, row_image(_FOUR), row_image(_EIGHT), behind=False),
        unfused=_UNFUSED,
    ),
    "upsampling_origin": Case(
        {
            "clip": [[-1, -1, 0, 0, -1, -1], [-1, -1, 0, 5, -1, -1]],
            "image": [[-1, -1, 10, 10, -1, -1], [-1, -1, 10, 15, -1, -1]],
        },
        _clipped_upsampling(),
        Absent("a graph fills its images", _asks_no_origin),
        besides=frozenset({"bilinear_centres"}),
    ),
    "clamp_mask": Case(
        {"applied": [[1, 0, 1], [3, 5, 4]], "ignored": [[1, 1, 1], [3, 5, 4]]},
        _clamped(),
        network(_clamped_nodes, row_image(_FIRST), row_image(_SECOND), behind=False),
        unfused=_UNFUSED,
    ),
    "broadcast_size": Case(
        {"larger": [[3.0, 7.0, 5.0]], "primary": [[3.0]]},
        kernel(_broadcast_sum, _SMALL, _LARGE),
        network(_broadcast_node, _SMALL, _LARGE),
    ),
    "result_format": Case(
        {each: [_third(each)] for each in ("source", "float16")},
        kernel(lambda: mps.MPSCNNNeuronLinear(DEVICE, 1 / 3, 0.0), _whole_numbers()),
        Absent("a graph says itself how its images are stored", _asks_no_format),
    ),
    "matrix_sum_bias": Case(
        {each: [oracle.transposed_sum(_SUMMANDS, _BIAS, each)] for each in ("transposed", "stored")},
        Subject(lambda: [mps.MPSMatrixSum(DEVICE, 2, 2, 3, True)], _sum_of_matrices),
        no_node("MPSMatrixSum"),
    ),
    "matrix_sum_scales": Case(
        {"refused": [[-1] * 6], "nothing": [2 * np.array(_SUMMANDS[0])]},
        Subject(lambda: [mps.MPSMatrixSum(DEVICE, 2, 2, 3, False)], _few_scales),
        no_node("MPSMatrixSum"),
    ),
    "matrix_sum_result": Case(
        {"refused": [[-1, -1]], "cut": [[11, 22]]},
        Subject(lambda: [mps.MPSMatrixSum(DEVICE, 2, 2, 3, False)], _small_result),
        no_node("MPSMatrixSum"),
    ),
    "matrix_normalization_sums": Case(
        {"computed": [3 * 1 + 4 * 2, 3 + 4], "zeros": [0, 0]},
        Subject(_normalization_gradient, _normalization_sums),
        no_node("MPSMatrixBatchNormalizationGradient"),
    ),
    "matrix_product_batches": Case(
        {"range": [[-1, 21]], "first": [[10, 21]]},
        Subject(_second_product, _products),
        no_node("MPSMatrixMultiplication"),
    ),
}
