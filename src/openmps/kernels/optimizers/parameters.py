"""The parameters of a layer, as its states hold them: weights and biases, or gamma and beta.

Kernels do not import one another: states are told by what they offer. The buffers are looked up when an encode is
recorded, so later encodes that give a state other buffers change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from openmps.core.state.rows import MPSCNNNormalizationGammaAndBetaState
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.memory import MTLBuffer


class _ConvolutionGradients(Protocol):
    """A state that holds the gradients of weights and biases."""

    @property
    def gradient_for_weights(self) -> MTLBuffer: ...
    @property
    def gradient_for_biases(self) -> MTLBuffer: ...


class _ConvolutionParameters(Protocol):
    """A state that holds weights and biases."""

    @property
    def weights(self) -> MTLBuffer: ...
    @property
    def biases(self) -> MTLBuffer | None: ...
    @property
    def weights_offset(self) -> int: ...
    @property
    def biases_offset(self) -> int: ...


class _BatchNormalization(Protocol):
    """A state that holds gamma, beta and their gradients."""

    def gamma(self) -> MTLBuffer: ...
    def beta(self) -> MTLBuffer: ...
    def gradient_for_gamma(self) -> MTLBuffer | None: ...
    def gradient_for_beta(self) -> MTLBuffer | None: ...


@dataclass(frozen=True, slots=True)
class Numbers:
    """``count`` float32 numbers in a buffer, from a byte on."""

    buffer: MTLBuffer
    offset: int
    count: int

    def tensor(self) -> Tensor:
        """The numbers, sharing the buffer's memory."""
        return self.buffer.tensor(torch.float32, self.offset, self.count)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a layer; values and result are None where a state has none."""

    name: str
    gradient: Numbers
    values: Numbers | None
    result: Numbers | None


class Layer(NamedTuple):
    """Both parameters of a layer, and the states that an encode reads."""

    first: Parameter
    second: Parameter
    read: tuple[MPSState, ...]


def _state(
    who: str, arguments: Mapping[str, Any], argument: str, offers: tuple[str, ...], command_buffer: CommandBuffer
) -> Any:
    """The state passed as ``argument``, if it is one that can be used and has the members ``offers``."""
    state = arguments[argument]
    is_state = isinstance(state, MPSState)
    if is_state:
        # First: what a temporary state offers cannot be looked at when it is used up.
        state.check_usable(who, argument, command_buffer)
    if not is_state or not all(hasattr(state, member) for member in offers):
        remedy = "Pass the states that the update of the data source was given"
        raise MPSTypeError(who, argument, f"must be a state with {' and '.join(offers)}", type(state).__name__, remedy)
    return state


# --- convolution -----------------------------------------------------------------------------------------------------

_WEIGHTS, _WEIGHT_GRADIENTS = ("weights", "biases"), ("gradient_for_weights", "gradient_for_biases")


def convolution_layer(who: str, arguments: Mapping[str, Any], command_buffer: CommandBuffer) -> Layer:
    """Weights and biases, if the three states belong together."""

    def state(argument: str, offers: tuple[str, ...]) -> Any:
        return _state(who, arguments, argument, offers, command_buffer)

    gradients: _ConvolutionGradients = state("convolution_gradient_state", _WEIGHT_GRADIENTS)
    source: _ConvolutionParameters = state("convolution_source_state", _WEIGHTS)
    result: _ConvolutionParameters = state("result_state", _WEIGHTS)

    def parameter(name: str) -> Parameter:
        slope = _all_of(getattr(gradients, f"gradient_for_{name}"))
        values = _part(who, "convolution_source_state", name, source, slope.count)
        return Parameter(name, slope, values, _part(who, "result_state", name, result, slope.count))

    read = arguments["convolution_gradient_state"], arguments["convolution_source_state"]
    return Layer(parameter("weights"), parameter("biases"), read)


def _all_of(buffer: MTLBuffer) -> Numbers:
    return Numbers(buffer, 0, buffer.length // 4)


def _part(who: str, argument: str, name: str, state: _ConvolutionParameters, count: int) -> Numbers | None:
    buffer: MTLBuffer | None = getattr(state, name)
    offset: int = getattr(state, f"{name}_offset")
    if buffer is None:
        return None
    if (buffer.length - offset) // 4 < count:
        raise MPSArgumentError(who, argument, f"must hold {count} {name}", (buffer.length - offset) // 4)
    return Numbers(buffer, offset, count)


# --- batch normalization ---------------------------------------------------------------------------------------------

_GAMMA, _GAMMA_GRADIENTS = ("gamma", "beta"), ("gradient_for_gamma", "gradient_for_beta")


def batch_normalization_layer(who: str, arguments: Mapping[str, Any], command_buffer: CommandBuffer) -> Layer:
    """Gamma and beta, with gradients and values in one state, or in two."""
    one = "batch_normalization_state"
    if arguments[one] is not None:
        _refuse_both(who, arguments)
        names = (one, one)
    else:
        names = ("batch_normalization_gradient_state", "batch_normalization_source_state")
    gradients: _BatchNormalization = _state(who, arguments, names[0], _GAMMA_GRADIENTS, command_buffer)
    source: _BatchNormalization = _state(who, arguments, names[1], _GAMMA, command_buffer)
    result = arguments["result_state"]
    if not isinstance(result, MPSCNNNormalizationGammaAndBetaState):
        rule = "must be an MPSCNNNormalizationGammaAndBetaState"
        raise MPSTypeError(who, "result_state", rule, type(result).__name__)
    result.check_usable(who, "result_state", command_buffer)
    slopes = gradients.gradient_for_gamma(), gradients.gradient_for_beta()
    if slopes[0] is None or slopes[1] is None:
        remedy = "Encode MPSCNNBatchNormalizationStatisticsGradient with it first"
        raise MPSArgumentError(who, names[0], "must hold the gradients of gamma and beta", "none", remedy)
    count = slopes[0].length // 4
    values = source.gamma(), source.beta()
    if values[0].length // 4 != count:
        rule = f"must be of {count} feature channel(s), as the gradients"
        raise MPSArgumentError(who, names[1], rule, values[0].length // 4)
    result.check_holds(who, "result_state", count)
    gamma = Parameter("gamma", _all_of(slopes[0]), _all_of(values[0]), Numbers(result.gamma, 0, count))
    beta = Parameter("beta", _all_of(slopes[1]), _all_of(values[1]), Numbers(result.beta, 0, count))
    read = {id(arguments[name]): arguments[name] for name in names}
    return Layer(gamma, beta, tuple(read.values()))


def _refuse_both(who: str, arguments: Mapping[str, Any]) -> None:
    for other in ("batch_normalization_gradient_state", "batch_normalization_source_state"):
        if arguments[other] is not None:
            rule = "must not be given beside batch_normalization_state, which holds gradients and values"
            raise MPSTypeError(who, other, rule, type(arguments[other]).__name__)
