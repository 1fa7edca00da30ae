"""Batch, instance and group normalization nodes, their gradient nodes (MPSNNGraphNodes.h, macOS 10.13.4 and 10.15)."""

from __future__ import annotations

from typing import Any

from openmps.checks import Checked, Shown
from openmps.core.data_source import check_methods
from openmps.errors import MPSArgumentError
from openmps.graph.nodes.node import MPSNNGradientFilterNode, MPSNNImageNode, MPSNNStateNode
from openmps.graph.nodes.trainable import TrainableNode
from openmps.kernels.batch_normalization import MPSCNNBatchNormalizationDataSource
from openmps.kernels.group_normalization import (
    MPSCNNGroupNormalizationDataSource,
    MPSCNNInstanceNormalizationDataSource,
)
from openmps.selectors import takes
from openmps.types import MPSCNNBatchNormalizationFlags

_FLAGS = (
    MPSCNNBatchNormalizationFlags.DEFAULT,
    MPSCNNBatchNormalizationFlags.CALCULATE_STATISTICS_ALWAYS,
    MPSCNNBatchNormalizationFlags.CALCULATE_STATISTICS_NEVER,
)
_METHODS = ("gamma", "beta", "label")


def _checked_flags(who: str, argument: str, value: object) -> MPSCNNBatchNormalizationFlags:
    if value not in _FLAGS:
        rule = f"must be {', '.join(each.name or '' for each in _FLAGS)}"
        raise MPSArgumentError(who, argument, rule, repr(value))
    return MPSCNNBatchNormalizationFlags(value)  # pyright: ignore[reportArgumentType]


class _Normalization(TrainableNode):
    """A node with a data source of scales and shifts."""

    _data_source: Any

    def _take(self, source: MPSNNImageNode, data_source: Any) -> None:
        super().__init__([source])
        check_methods(type(self).__name__, "data_source", data_source, _METHODS)
        self._data_source = data_source
        self.label = data_source.label()


class MPSCNNBatchNormalizationNode(_Normalization):
    """Batch normalization (MPSNNGraphNodes.h, macOS 10.13.4); see `MPSCNNBatchNormalization`.

    With a gradient node in the graph it normalizes with mean and variance of the batch, else with those of the data
    source; `flags` may say otherwise. The data source is asked for `update_gamma_and_beta`, then for
    `update_mean_and_variance`, once a batch, behind all gradients.
    """

    def __init__(self, source: MPSNNImageNode, data_source: MPSCNNBatchNormalizationDataSource) -> None:
        self._take(source, data_source)

    data_source = Shown[MPSCNNBatchNormalizationDataSource]("_data_source", "The data source. Our addition.")

    flags = Checked[MPSCNNBatchNormalizationFlags](
        MPSCNNBatchNormalizationFlags.DEFAULT,
        _checked_flags,
        "Whose mean and variance: the batch's in training and the data source's else (default), always or never.",
    )


class _NormalizationGradient(MPSNNGradientFilterNode, TrainableNode):
    """A gradient node, called as its forward node's layer."""

    @takes()
    def __init__(
        self, source_gradient: MPSNNImageNode, source_image: MPSNNImageNode, gradient_state: MPSNNStateNode
    ) -> None:
        super().__init__(source_gradient, source_image, gradient_state)
        self.label = self.forward.label


class MPSCNNBatchNormalizationGradientNode(_NormalizationGradient):
    """The gradient of batch normalization, parameters and image (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSCNNInstanceNormalizationNode(_Normalization):
    """Instance normalization (MPSNNGraphNodes.h, macOS 10.13.4); see `MPSCNNInstanceNormalization`.

    The data source is asked for `update_gamma_and_beta` once a batch, with the states of all images.
    """

    def __init__(self, source: MPSNNImageNode, data_source: MPSCNNInstanceNormalizationDataSource) -> None:
        self._take(source, data_source)

    data_source = Shown[MPSCNNInstanceNormalizationDataSource]("_data_source", "The data source. Our addition.")


class MPSCNNInstanceNormalizationGradientNode(_NormalizationGradient):
    """The gradient of instance normalization (MPSNNGraphNodes.h, macOS 10.13.4)."""


class MPSCNNGroupNormalizationNode(_Normalization):
    """Group normalization (MPSNNGraphNodes.h, macOS 10.15); see `MPSCNNGroupNormalization`.

    The data source is asked for `update_gamma_and_beta` once a batch, with the states of all images.
    """

    def __init__(self, source: MPSNNImageNode, data_source: MPSCNNGroupNormalizationDataSource) -> None:
        self._take(source, data_source)

    data_source = Shown[MPSCNNGroupNormalizationDataSource]("_data_source", "The data source. Our addition.")


class MPSCNNGroupNormalizationGradientNode(_NormalizationGradient):
    """The gradient of group normalization (MPSNNGraphNodes.h, macOS 10.15)."""
