"""Conventions of windows: edges, padding policies, presets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import openmps as mps
from convention_cases.case import Absent, Case, Subject, graph_of, kernel, kernels, network, row_image, trained
from mac_facts.fact import DEVICE, image
from networks import Weights
from oracles import conventions as oracle
from samples.convolution import ArraySource

Method = mps.MPSNNPaddingMethod
CLAMP = mps.MPSImageEdgeMode.CLAMP
_UNFUSED = "no rule of convolutions runs in training"
_TAPS = [1.0, 10.0, 100.0]


def _row(count: int) -> list[float]:
    return [float(each) for each in range(1, count + 1)]


def _weights() -> Weights:
    return Weights(np.array(_TAPS, np.float32).reshape(1, 1, 3, 1))


# --- edges ------------------------------------------------------------------------------------------------------------

_NORMED = [3.0, 4.0, 12.0]


def _norms() -> Subject:
    def make() -> Any:
        made = mps.MPSCNNPoolingL2Norm(DEVICE, 3, 1), mps.MPSCNNPoolingL2NormGradient(DEVICE, 3, 1)
        made[0].edge_mode = CLAMP
        return made

    def encode(command_buffer: Any, forward: Any, gradient: Any) -> Sequence[Any]:
        source = row_image(_NORMED)
        made, state = forward.encode(command_buffer, source, destination_state_is_temporary=False)
        return [gradient.encode(command_buffer, row_image([1, 1, 1]), source, state), made]

    return kernels(make, encode)


def _pooled(kind: Any, size: int, stride: int, policy: Callable[[], Any]) -> Callable[..., Any]:
    """A node of windows in a row."""

    def make(source: Any) -> Any:
        node = kind(source, kernel_width=size, kernel_height=1, stride_in_pixels_x=stride, stride_in_pixels_y=1)
        node.padding_policy = policy()
        return mps.MPSCNNNeuronLinearNode(node.result_image, 1.0)

    return make


def _pooling(kind: Any, size: int, stride: int, policy: Callable[[], Any]) -> Callable[[], Any]:
    """The kernel."""

    def make() -> Any:
        made = kind(DEVICE, size, 1, stride, 1)
        made.padding = policy()
        return made

    return make


def _norm_nodes(source: Any) -> Any:
    return trained(
        mps.MPSCNNPoolingL2NormNode(source, kernel_width=3, kernel_height=1, stride_in_pixels_x=1, stride_in_pixels_y=1)
    )


_CLAMPED, _FLOW = [1.0, 2.0], [1.0, 1.0]


def _clamped() -> Subject:
    def make() -> Any:
        weights = _weights()
        made = mps.MPSCNNConvolution(DEVICE, weights=weights), mps.MPSCNNConvolutionGradient(DEVICE, weights)
        made[0].edge_mode = CLAMP
        return made

    def encode(command_buffer: Any, forward: Any, gradient: Any) -> Sequence[Any]:
        source = row_image(_CLAMPED)
        _, state = forward.encode(command_buffer, source, destination_state_is_temporary=False)
        return [gradient.encode(command_buffer, row_image(_FLOW), source, state), state.gradient_for_weights]

    return kernels(make, encode)


def _clamped_nodes() -> Subject:
    def make(source: Any) -> Any:
        node = mps.MPSCNNConvolutionNode(source, _weights())
        made = mps.MPSNNInitialGradientNode(node.result_image).training_graph(None)
        assert made
        node.result_state.export_from_graph = True
        return [made[0].result_image]

    subject = network(make, row_image(_CLAMPED), behind=False)

    def made() -> Sequence[Any]:
        [graph] = subject.make()
        for each in graph.kernels.values():
            if isinstance(each, mps.MPSCNNConvolution):
                each.edge_mode = CLAMP
        return [graph]

    return subject._replace(make=made)


def _placed_gradient() -> Subject:
    """Three gradient pixels of a convolution that begins one pixel later, with a destination given and without."""

    def make() -> Any:
        weights = _weights()
        made = mps.MPSCNNConvolution(DEVICE, weights=weights), mps.MPSCNNConvolutionGradient(DEVICE, weights)
        made[0].padding = mps.MPSNNDefaultPadding(Method.SIZE_VALID_ONLY)
        return made

    def encode(command_buffer: Any, forward: Any, gradient: Any) -> Sequence[Any]:
        source, flow = row_image(_row(5)), row_image(_row(3))
        states = [forward.encode(command_buffer, source, destination_state_is_temporary=False)[1] for _ in range(2)]
        gradient.encode(command_buffer, flow, source, states[0])
        automatic = gradient.secondary_offset.x
        gradient.secondary_offset = mps.MPSOffset(1, 0, 0)
        gradient.encode(command_buffer, flow, source, states[1], destination_gradient=row_image([0] * 5))
        return [automatic, *(state.gradient_for_weights for state in states)]

    return kernels(make, encode)


def _asks_no_offset() -> bool:
    node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), _weights())
    made = mps.MPSNNInitialGradientNode(node.result_image).training_graph(None)
    assert made
    graph = graph_of(made[0])
    return "secondary_offset" not in graph.conventions_asked([row_image(_row(5)).descriptor()])


def _sums_from(first: int) -> list[float]:
    """Of the weights, whose first tap reads a pixel first."""
    return [sum(g * oracle.tap(_row(5), first + i + p, "zero") for i, g in enumerate(_row(3))) for p in range(3)]


_BINARY = mps.MPSCNNBinaryConvolutionType


def _bits() -> ArraySource:
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, 1, 1)
    return ArraySource(descriptor, np.full(9, 1, np.uint32), None, mps.MPSDataType.UINT32)


def _binary() -> Subject:
    def make() -> Any:
        return tuple(mps.MPSCNNBinaryConvolution(DEVICE, _bits(), type=kind) for kind in (_BINARY.XNOR, _BINARY.AND))

    def encode(command_buffer: Any, *made: Any) -> Sequence[Any]:
        return [each.encode(command_buffer, row_image([1])) for each in made]

    return kernels(make, encode)


def _binary_nodes(source: Any) -> Any:
    return [
        mps.MPSCNNBinaryConvolutionNode(source, _bits(), type=kind, scale_value=1.0).result_image
        for kind in (_BINARY.XNOR, _BINARY.AND)
    ]


_TIED, _SHARES = [1.0, 1.0, 1.0, 0.0], [3.0, 5.0]


def _ties() -> Subject:
    """Windows of 3 at distances of 1, of which the first holds three maxima, and the second two."""

    def make() -> Any:
        made = mps.MPSCNNPoolingMax(DEVICE, 3, 1, 1, 1), mps.MPSCNNPoolingMaxGradient(DEVICE, 3, 1)
        made[0].padding = mps.MPSNNDefaultPadding(Method.SIZE_VALID_ONLY)
        return made

    def encode(command_buffer: Any, forward: Any, gradient: Any) -> Sequence[Any]:
        source = row_image(_TIED)
        made, state = forward.encode(command_buffer, source, destination_state_is_temporary=False)
        return [gradient.encode(command_buffer, row_image(_SHARES), source, state), made]

    return kernels(make, encode)


def _tied_nodes(source: Any, factors: Any) -> Any:
    node = mps.MPSCNNPoolingMaxNode(source, kernel_width=3, kernel_height=1, stride_in_pixels_x=1, stride_in_pixels_y=1)
    node.padding_policy = mps.MPSNNDefaultPadding(Method.SIZE_VALID_ONLY)
    return trained(node, factors)


# --- padding policies -------------------------------------------------------------------------------------------------

_ALIGNED = mps.MPSNNDefaultPadding(Method.SIZE_SAME | Method.ALIGN_TOP_LEFT)
_VALID = mps.MPSNNDefaultPadding(Method.SIZE_VALID_ONLY | Method.ADD_REMAINDER_TO_BOTTOM_RIGHT)
_EDGES = mps.MPSNNDefaultPadding(Method.SIZE_SAME | Method.EXCLUDE_EDGES)
_SAME_PRESET = mps.MPSNNDefaultPadding.padding_for_tensorflow_average_pooling
_VALID_PRESET = mps.MPSNNDefaultPadding.padding_for_tensorflow_average_pooling_valid_only


def _aligned() -> Any:
    made = mps.MPSCNNConvolution(DEVICE, weights=_weights())
    made.padding = _ALIGNED
    return made


def _aligned_node(source: Any) -> Any:
    node = mps.MPSCNNConvolutionNode(source, _weights())
    node.padding_policy = _ALIGNED
    return mps.MPSCNNNeuronReLUNode(node.result_image, 0.0)  # which is fused


def _edge_kernels() -> Subject:
    def make() -> Any:
        forward = _pooling(mps.MPSCNNPoolingAverage, 3, 1, lambda: _EDGES)()
        return forward, mps.MPSCNNPoolingAverageGradient(DEVICE, 3, 1)

    def encode(command_buffer: Any, forward: Any, gradient: Any) -> Sequence[Any]:
        source = row_image(_row(4))
        made, state = forward.encode(command_buffer, source, destination_state_is_temporary=False)
        return [gradient.encode(command_buffer, row_image([6] * 4), source, state), made]

    return kernels(make, encode)


def _edge_node(source: Any, factors: Any) -> Any:
    node = mps.MPSCNNPoolingAverageNode(
        source, kernel_width=3, kernel_height=1, stride_in_pixels_x=1, stride_in_pixels_y=1
    )
    node.padding_policy = _EDGES
    return trained(node, factors)


_FIELD = image([[[x + 100 * y] for x in range(13)] for y in range(14)])
_FIRSTS = {"bottom_right": (0, 0), "plain": (0, 1), "remainder": (1, 1)}
"""Where the windows of 3 at distances of 4 begin: two columns and three rows are left over."""


def _of_field(column: int, row: int) -> list[float]:
    """Averages of the field, which is linear: those of its columns and 100 times those of its rows."""
    across, down = (oracle.averages_inside([float(each) for each in range(14)], 3, 4, at, 3) for at in (column, row))
    return [x + 100 * y for y in down for x in across]


def _field_pooling() -> Any:
    made = mps.MPSCNNPoolingAverage(DEVICE, 3, 3, 4, 4)
    made.padding = _VALID_PRESET()
    return made


def _field_node(source: Any) -> Any:
    node = mps.MPSCNNPoolingAverageNode(source, 3, 4)
    node.padding_policy = _VALID_PRESET()
    return node


# --- neurons ----------------------------------------------------------------------------------------------------------


def _missing() -> Subject:
    def make() -> Any:
        return mps.MPSCNNConvolution(DEVICE, weights=_weights())

    return kernels(make, lambda command_buffer, made: [_parameters(made), made.encode(command_buffer, row_image([1]))])


def _parameters(made: Any) -> list[float]:
    return [made.neuron_parameter_a, made.neuron_parameter_b, made.neuron_parameter_c]


def _asks_no_parameters() -> bool:
    graph = graph_of(mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), _weights()))
    return "missing_neuron" not in graph.conventions_asked([row_image([1]).descriptor()])


def _gradient_of_averages(reading: str) -> list[float]:
    """Of the sum of 6 times `averages`, which are linear: column by column."""
    columns = [oracle.averages([float(i == j) for j in range(4)], 3, reading) for i in range(4)]
    return [6 * sum(each) for each in columns]


CASES: Mapping[str, Case] = {
    "l2_clamp": Case(
        {
            each: [oracle.norms_gradient(_NORMED, 3, each), oracle.norms(_NORMED, 3, each)]
            for each in ("repeated", "left_out")
        },
        _norms(),
        network(_norm_nodes, row_image(_NORMED), behind=False),
        unfused=_UNFUSED,
    ),
    "pooling_ties": Case(
        {"first": [[3, 5, 0, 0], [1, 1]], "last": [[0, 0, 8, 0], [1, 1]]},
        _ties(),
        network(_tied_nodes, row_image(_TIED), row_image(_SHARES), behind=False),
        unfused=_UNFUSED,
    ),
    "clamp_gradient": Case(
        {each: [*oracle.clamped_gradients(_CLAMPED, _TAPS, _FLOW, each)] for each in ("adjoint", "zeros", "mixed")},
        _clamped(),
        _clamped_nodes(),
        unfused=_UNFUSED,
        unreplayed="the buffer of a ParameterSum, which is new each time",
    ),
    "binary_border": Case(
        {
            each: [oracle.binary_pixel(kind, 3, each) for kind in ("xnor", "and")]
            for each in ("zeros", "zero_bits", "nothing")
        },
        _binary(),
        network(_binary_nodes, row_image([1])),
    ),
    "alignment": Case(
        {
            "padding": [oracle.correlated(_row(5), _TAPS, -2, 1, 5)],
            "reading": [oracle.correlated(_row(5), _TAPS, 0, 1, 5)],
        },
        kernel(_aligned, row_image(_row(5))),
        network(_aligned_node, row_image(_row(5))),
    ),
    "negative_remainder": Case(
        {
            "truncated": [oracle.maxima(_row(8), 3, 2, 0, 3)],
            "floor": [oracle.maxima(_row(8), 3, 2, 1, 3)],
        },
        kernel(_pooling(mps.MPSCNNPoolingMax, 3, 2, lambda: _VALID), row_image(_row(8))),
        network(_pooled(mps.MPSCNNPoolingMaxNode, 3, 2, lambda: _VALID), row_image(_row(8))),
    ),
    "average_preset": Case(
        {
            "prose": [oracle.averages_inside(_row(10), 3, 2, 0, 5)],
            "code": [oracle.averages_inside(_row(10), 3, 2, -1, 5)],
        },
        kernel(_pooling(mps.MPSCNNPoolingAverage, 3, 2, _SAME_PRESET), row_image(_row(10))),
        network(_pooled(mps.MPSCNNPoolingAverageNode, 3, 2, _SAME_PRESET), row_image(_row(10))),
    ),
    "average_valid_preset": Case(
        {each: [_of_field(*first)] for each, first in _FIRSTS.items()},
        kernel(_field_pooling, _FIELD),
        network(_field_node, _FIELD),
        besides=frozenset({"alignment", "negative_remainder"}),
    ),
    "excluded_edges": Case(
        {each: [_gradient_of_averages(each), oracle.averages(_row(4), 3, each)] for each in ("window", "none")},
        _edge_kernels(),
        network(_edge_node, row_image(_row(4)), row_image([6] * 4), behind=False),
        unfused=_UNFUSED,
    ),
    "secondary_offset": Case(
        {"forward_offset": [1, _sums_from(0), _sums_from(0)], "first_tap": [0, _sums_from(0), _sums_from(1)]},
        _placed_gradient(),
        Absent("a graph places gradients itself", _asks_no_offset),
        unreplayed="the buffer of a ParameterSum, which is new each time",
    ),
    "missing_neuron": Case(
        {"one": [[1, 1, 1], 10], "zero": [[0, 0, 0], 10]},
        _missing(),
        Absent("kernels show it, and no number depends on it", _asks_no_parameters),
    ),
}
