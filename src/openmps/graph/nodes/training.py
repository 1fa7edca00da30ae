"""Who updates the parameters of a layer: the callbacks of each kind of data source, and what follows from them.

(MPSCNNConvolution.h, MPSCNNBatchNormalization.h, MPSCNNInstanceNormalization.h, macOS 10.13.4;
MPSCNNGroupNormalization.h, macOS 10.15.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

from openmps.core.data_source import optional_method
from openmps.core.state.rows import MPSCNNNormalizationGammaAndBetaState, MPSCNNNormalizationMeanAndVarianceState
from openmps.core.state.state import MPSState
from openmps.kernels.convolution import MPSCNNConvolutionWeightsAndBiasesState
from openmps.selectors import accepts


class Callback(NamedTuple):
    """One method of a data source that returns new parameters."""

    method: str
    result: type[MPSState]
    """What it returns on the device, or None."""
    reload: str
    """The kernel's method that takes a state's parameters on a command buffer."""
    reload_from_data_source: str
    """The kernel's method that reads them of the data source."""
    takes_batch: bool = False
    """Whether it gets the states of all images; else the one state of the batch."""
    takes_source: bool = False
    """Whether it also gets the parameters as they are."""


class Training(NamedTuple):
    """How one kind of data source is asked."""

    source: str
    """The node's attribute that is the data source."""
    callbacks: tuple[Callback, ...]
    fills_forward: bool = False
    """Whether the forward kernel too puts something into the states."""

    def offered_by(self, data_source: Any) -> list[Callback]:
        """The callbacks that a data source has; an error where one does not take what it will be given."""
        who, offered = type(data_source).__name__, list[Callback]()
        for each in self.callbacks:
            method = optional_method(who, data_source, each.method)
            if method is not None:
                states = "gradient_state source_state" if each.takes_source else "gradient_state"
                accepts(who, f"{each.method}()", method, f"command_buffer {states}")
                offered.append(each)
        return offered


_GAMMA_AND_BETA = Callback(
    "update_gamma_and_beta",
    MPSCNNNormalizationGammaAndBetaState,
    "reload_gamma_and_beta",
    "reload_gamma_and_beta_from_data_source",
)

WEIGHTS = Training(
    "weights",
    (
        Callback(
            "update",
            MPSCNNConvolutionWeightsAndBiasesState,
            "reload_weights_and_biases",
            "reload_weights_and_biases_from_data_source",
            takes_source=True,
        ),
    ),
)
"""Convolutions of all kinds: one state a batch, and the weights as they are."""

BATCH_STATISTICS = Training(
    "data_source",
    (
        _GAMMA_AND_BETA,
        Callback(
            "update_mean_and_variance",
            MPSCNNNormalizationMeanAndVarianceState,
            "reload_mean_and_variance",
            "reload_mean_and_variance_from_data_source",
        ),
    ),
    fills_forward=True,
)
"""Batch normalization: one state a batch."""

STATES_OF_IMAGES = Training("data_source", (_GAMMA_AND_BETA._replace(takes_batch=True),))
"""Instance and group normalization: the state of each image, whose gradients the data source adds up."""
