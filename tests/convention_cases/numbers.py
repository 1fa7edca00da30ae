"""Conventions of variances, of slopes, and of NaN and infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import openmps as mps
from convention_cases.case import (
    SOURCES,
    Absent,
    Case,
    Subject,
    graph_of,
    kernels,
    network,
    pixels,
    row_image,
    trained,
)
from mac_facts.fact import DEVICE, image
from oracles import conventions as oracle
from samples.batch_normalization import ChannelSource
from samples.group_normalization import GammaAndBetaSource

_UNFUSED = "no rule of convolutions runs in training"
_X, _FLOW = [2.0, 4.0, 9.0, 1.0], [1.0, -0.5, 0.25, 2.0]
_READINGS = ("population", "sample")


# --- variances --------------------------------------------------------------------------------------------------------


def _batch_source() -> ChannelSource:
    return ChannelSource(1, 0.25, gamma=np.ones(1), beta=np.zeros(1), mean=np.zeros(1), variance=np.ones(1))


def _instances() -> GammaAndBetaSource:
    source = GammaAndBetaSource(1)
    source.epsilon = lambda: 0.25
    return source


def _images(values: Sequence[float]) -> mps.MPSImageBatch:
    """Of one pixel each."""
    return mps.MPSImageBatch([row_image([value]) for value in values])


def _normalizations() -> Subject:
    """A batch in two pieces of an image and of three, by all four kernels; and an image by itself."""

    def make() -> Any:
        source = _batch_source()
        return (
            mps.MPSCNNBatchNormalizationStatistics(DEVICE),
            mps.MPSCNNBatchNormalization(DEVICE, source),
            mps.MPSCNNBatchNormalizationStatisticsGradient(DEVICE),
            mps.MPSCNNBatchNormalizationGradient(DEVICE),
            mps.MPSCNNInstanceNormalization(DEVICE, _instances()),
            mps.MPSCNNInstanceNormalizationGradient(DEVICE),
        )

    def encode(command_buffer: Any, *made: Any) -> Sequence[Any]:
        statistics, forward, sums, back, instance, instance_back = made
        pieces, flows = ([_images(each[:1]), _images(each[1:])] for each in (_X, _FLOW))
        state = forward.result_state(pieces[0][0])
        for piece in pieces:
            statistics.encode_batch(command_buffer, piece, state)
        results = [forward.encode_batch(command_buffer, piece, state) for piece in pieces]
        for flow, piece in zip(flows, pieces, strict=True):
            sums.encode_batch(command_buffer, flow, piece, state)
        slopes = [back.encode_batch(command_buffer, *each, state) for each in zip(flows, pieces, strict=True)]
        whole, flow = row_image(_X), row_image(_FLOW)
        alone, own = instance.encode(command_buffer, whole, destination_state_is_temporary=False)
        found = [*slopes[0], *slopes[1], *results[0], *results[1]]
        return [*found, instance_back.encode(command_buffer, flow, whole, own), alone]

    return kernels(make, encode)


def _normalization_nodes(source: Any, factors: Any) -> Any:
    """Of the same image, by the whole batch and by itself."""
    batch = mps.MPSCNNBatchNormalizationNode(source, _batch_source())
    return [*trained(batch, factors), *trained(mps.MPSCNNInstanceNormalizationNode(source, _instances()), factors)]


def _normalized(reading: str) -> list[list[float]]:
    return [oracle.normalized_gradient(_X, _FLOW, 0.25, reading), oracle.normalized(_X, 0.25, reading)] * 2


# --- slopes -----------------------------------------------------------------------------------------------------------

_CHANNELS, _CHANNEL_FLOW = np.array([0.5, 1.0, 2.0]), np.array([1.0, 0.5, -1.0])
_NEAR = [0.5, 1.0, -0.75, 0.25]


def _pair(forward: Any, gradient: Any) -> Subject:
    """The gradients of kernels, and their results."""

    def make() -> Any:
        return (*forward(), *gradient())

    def encode(command_buffer: Any, *made: Any) -> Sequence[Any]:
        half, found = len(made) // 2, list[Any]()
        for place, (kernel, back) in enumerate(zip(made[:half], made[half:], strict=True)):
            source, flow = _SLOPED[place]
            _, state = kernel.encode(command_buffer, source, destination_state_is_temporary=False)
            found.append(back.encode(command_buffer, flow, source, state))
        return found

    return kernels(make, encode)


_SLOPED = [
    (image(pixels([[_CHANNELS]])), image(pixels([[_CHANNEL_FLOW]]))),
    (row_image(_NEAR), row_image(_FLOW)),
    (row_image(_NEAR), row_image(_FLOW)),
]


def _local() -> Any:
    contrast = mps.MPSCNNLocalContrastNormalization(DEVICE, 3, 3)
    contrast.alpha = 1.0
    return mps.MPSCNNCrossChannelNormalization(DEVICE, 3), mps.MPSCNNSpatialNormalization(DEVICE, 3, 3), contrast


def _local_gradients() -> Any:
    return (
        mps.MPSCNNCrossChannelNormalizationGradient(DEVICE, 3),
        mps.MPSCNNSpatialNormalizationGradient(DEVICE, 3, 3),
        mps.MPSCNNLocalContrastNormalizationGradient(DEVICE, 3, 3),
    )


def _local_nodes(channels: Any, channel_flow: Any, near: Any, flow: Any) -> Any:
    sloped = (
        (mps.MPSCNNCrossChannelNormalizationNode(channels, 3), channel_flow),
        (mps.MPSCNNSpatialNormalizationNode(near, 3), flow),
        (mps.MPSCNNLocalContrastNormalizationNode(near, 3), flow),
    )
    return [trained(node, factors)[0] for node, factors in sloped]


def _local_slopes(reading: str) -> list[Any]:
    return [
        oracle.slopes_of_channels(_CHANNELS, _CHANNEL_FLOW, 3, reading),
        oracle.slopes_of_windows(_NEAR, _FLOW, 1.0, reading, "squares"),
        oracle.slopes_of_windows(_NEAR, _FLOW, 1.0, reading, "contrast"),
    ]


_GELU = mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.GELU)
_BENT = [-1.5, -0.25, 0.5, 2.0]


def _bent() -> Subject:
    def make() -> Any:
        return mps.MPSCNNNeuron(DEVICE, _GELU), mps.MPSCNNNeuronGradient(DEVICE, _GELU)

    def encode(command_buffer: Any, forward: Any, back: Any) -> Sequence[Any]:
        source = row_image(_BENT)
        _, state = forward.encode(command_buffer, source, destination_state_is_temporary=False)
        return [back.encode(command_buffer, row_image([1.0] * 4), source, state)]

    return kernels(make, encode)


def _bent_nodes(source: Any) -> Any:
    return trained(mps.MPSCNNNeuronGeLUNode(source))[:1]


# --- NaN and infinity -------------------------------------------------------------------------------------------------

_NAN, _LARGEST = math.nan, float(np.finfo(np.float32).max)
_HOLED = [_NAN, 1.0, -2.0, -3.0]


def _maxima() -> Subject:
    def make() -> Any:
        largest = mps.MPSCNNPoolingMax(DEVICE, 2, 1, 2, 1)
        largest.padding = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_VALID_ONLY)
        return largest, mps.MPSCNNNeuronReLU(DEVICE, 0.0)

    return kernels(
        make, lambda command_buffer, *made: [each.encode(command_buffer, row_image(_HOLED)) for each in made]
    )


def _maximum_nodes(source: Any) -> Any:
    largest = mps.MPSCNNPoolingMaxNode(
        source, kernel_width=2, kernel_height=1, stride_in_pixels_x=2, stride_in_pixels_y=1
    )
    largest.padding_policy = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_VALID_ONLY)
    return [largest.result_image, mps.MPSCNNNeuronReLUNode(source, 0.0).result_image]


_PARTS, _BY = [1.0, -1.0, 6.0], [0.0, 0.0, 2.0]


def _quotient() -> Subject:
    def encode(command_buffer: Any, made: Any) -> Sequence[Any]:
        return [made.encode(command_buffer, row_image(_PARTS), row_image(_BY))]

    return kernels(lambda: mps.MPSCNNDivide(DEVICE), encode)


# --- channels behind a result -----------------------------------------------------------------------------------------


def _texel() -> Subject:
    """Two of eight channels, from the fifth on."""

    def make() -> Any:
        made = mps.MPSCNNNeuronLinear(DEVICE, 1.0, 0.0)
        made.destination_feature_channel_offset = 4
        return made

    def encode(command_buffer: Any, made: Any) -> Sequence[Any]:
        destination = image(pixels([[[7] * 8]]))
        made.encode(command_buffer, image(pixels([[[1, 2]]])), destination_image=destination)
        return [destination]

    return kernels(make, encode)


def _asks_no_texel() -> bool:
    graph = graph_of(mps.MPSCNNNeuronLinearNode(mps.MPSNNImageNode(), 1.0))
    return "last_texel" not in graph.conventions_asked([row_image([1.0]).descriptor()])


CASES: Mapping[str, Case] = {
    "variance": Case(
        {each: _normalized(each) for each in _READINGS},
        _normalizations(),
        network(_normalization_nodes, row_image(_X), row_image(_FLOW), behind=False),
        unfused=_UNFUSED,
        besides=SOURCES | {"statistics_restart"},
    ),
    "normalization_slopes": Case(
        {each: _local_slopes(each) for each in ("derivative", "printed")},
        _pair(_local, _local_gradients),
        network(_local_nodes, *_SLOPED[0], *_SLOPED[1], behind=False),
        unfused=_UNFUSED,
    ),
    "gelu_slope": Case(
        {each: [oracle.gelu_slopes(_BENT, each)] for each in ("derivative", "printed")},
        _bent(),
        network(_bent_nodes, row_image(_BENT), behind=False),
        unfused=_UNFUSED,
    ),
    "maxima_of_nan": Case(
        {"kept": [[_NAN, -2], [_NAN, 1, 0, 0]], "lost": [[1, -2], [0, 1, 0, 0]]},
        _maxima(),
        network(_maximum_nodes, row_image(_HOLED)),
        unlinted="finite numbers do not depend on it",
    ),
    "infinite_quotients": Case(
        {"pass": [[math.inf, -math.inf, 3]], "cut": [[_LARGEST, -_LARGEST, 3]]},
        _quotient(),
        network(mps.MPSNNDivisionNode, row_image(_PARTS), row_image(_BY)),
        unlinted="finite numbers do not depend on it",
    ),
    "last_texel": Case(
        {"untouched": [[7, 7, 7, 7, 1, 2, 7, 7]], "zeros": [[7, 7, 7, 7, 1, 2, 0, 0]]},
        _texel(),
        Absent("a graph fills its images", _asks_no_texel),
    ),
}
