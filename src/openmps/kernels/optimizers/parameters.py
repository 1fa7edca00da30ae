"""The parameters of a layer, as its states hold them: weights and biases, or gamma and beta.

Kernels do not import one another: states are told by what their classes offer. The buffers are looked up when an encode
is recorded, so later encodes that give a state other buffers change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from openmps.core.elements import Elements
from openmps.core.kernel.operands import Argument
from openmps.core.state.rows import MPSCNNNormalizationGammaAndBetaState
from openmps.core.state.state import MPSState
from openmps.core.vector import MPSVector, numbers_of
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer, MTLBuffer
from openmps.runtime.binding import Binding, CountedBinding, HeldTensor, Numbers
from openmps.types import MPSDataType


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


class Layer(NamedTuple):
    """Both parameters of a layer; the second one's values and result are None where a state has none."""

    names: tuple[str, str]
    lengths: tuple[int, int]
    gradients: tuple[Binding, Binding]
    values: tuple[Numbers, Numbers | None]
    results: tuple[Numbers, Numbers | None]
    read: tuple[MPSState, ...]
    """The states that an encode reads."""
    rounded: Binding = HeldTensor(None)
    """What takes the first result, rounded to float16."""


def _check_state(
    who: str, argument: str, state: object, offers: tuple[str, ...], command_buffer: CommandBuffer
) -> None:
    """Raise unless it is a state that can be used and has the members ``offers``."""
    is_state = isinstance(state, MPSState)
    if is_state:
        # First: what a temporary state offers cannot be looked at when it is used up.
        state.check_usable(who, argument, command_buffer)
    if not is_state or not (_offered(type(state), offers) or all(name in vars(state) for name in offers)):
        remedy = "Pass the states that the update of the data source was given"
        raise MPSTypeError(who, argument, f"must be a state with {' and '.join(offers)}", type(state).__name__, remedy)


@lru_cache(maxsize=256)
def _offered(kind: type, offers: tuple[str, ...]) -> bool:
    """Whether a class has the members, told without making the buffers that they give."""
    return all(hasattr(kind, name) for name in offers)


# --- convolution -----------------------------------------------------------------------------------------------------

_WEIGHTS, _WEIGHT_GRADIENTS = ("weights", "biases"), ("gradient_for_weights", "gradient_for_biases")


@lru_cache(maxsize=256)
def _offers_sums(kind: type) -> bool:
    """Whether a class of states has sums that are the gradients that it shows: no subclass shows others."""
    if not issubclass(kind, MPSState):
        return False
    names = ("gradient_sums", *_WEIGHT_GRADIENTS)
    owners = {next((each for each in kind.__mro__ if name in vars(each)), None) for name in names}
    return len(owners) == 1 and None not in owners


def convolution_gradients(who: str, state: Any, command_buffer: CommandBuffer) -> tuple[CountedBinding, CountedBinding]:
    """Where the gradients of weights and biases are, which need not be there before the work runs."""
    if _offers_sums(type(state)):
        state.check_usable(who, "convolution_gradient_state", command_buffer)
        return state.gradient_sums()
    _check_state(who, "convolution_gradient_state", state, _WEIGHT_GRADIENTS, command_buffer)
    found: _ConvolutionGradients = state
    slopes = found.gradient_for_weights, found.gradient_for_biases
    return Numbers(slopes[0], 0, slopes[0].length // 4), Numbers(slopes[1], 0, slopes[1].length // 4)


def convolution_layer(who: str, arguments: Mapping[str, Any], command_buffer: CommandBuffer) -> Layer:
    """Weights and biases, if the three states belong together."""
    read: Any = arguments["convolution_gradient_state"], arguments["convolution_source_state"]
    source: _ConvolutionParameters = read[1]
    result: _ConvolutionParameters = arguments["result_state"]
    gradients = convolution_gradients(who, read[0], command_buffer)
    _check_state(who, "convolution_source_state", source, _WEIGHTS, command_buffer)
    lengths = gradients[0].count or 0, gradients[1].count or 0
    if result is not source:
        _check_state(who, "result_state", result, _WEIGHTS, command_buffer)
    values = results = _parts(who, "convolution_source_state", source, *lengths)
    if result is not source:
        results = _parts(who, "result_state", result, *lengths)
    # Weights that the gradients are too few for are updated in part, and rounded by the kernel's reload.
    is_whole = results[0].buffer.length == 4 * lengths[0]
    rounded = getattr(result, "rounded_weights", None) if is_whole else None
    return Layer(_WEIGHTS, lengths, gradients, values, results, read, rounded or HeldTensor(None))


def _parts(
    who: str, argument: str, state: _ConvolutionParameters, weights: int, biases: int
) -> tuple[Numbers, Numbers | None]:
    held = state.biases
    first = _part(who, argument, "weights", state.weights, state.weights_offset, weights)
    return first, None if held is None else _part(who, argument, "biases", held, state.biases_offset, biases)


def _part(who: str, argument: str, name: str, buffer: MTLBuffer, offset: int, count: int) -> Numbers:
    if (buffer.length - offset) // 4 < count:
        raise MPSArgumentError(who, argument, f"must hold {count} {name}", (buffer.length - offset) // 4)
    return Numbers(buffer, offset, count)


# --- batch normalization ---------------------------------------------------------------------------------------------

_GAMMA, _GAMMA_GRADIENTS = ("gamma", "beta"), ("gradient_for_gamma", "gradient_for_beta")


def batch_normalization_layer(who: str, arguments: Mapping[str, Any], command_buffer: CommandBuffer) -> Layer:
    """Gamma and beta, with gradients and values in one state, or in two."""
    one = "batch_normalization_state"
    names = ("batch_normalization_gradient_state", "batch_normalization_source_state")
    if arguments[one] is not None:
        for other in names:
            if arguments[other] is not None:
                rule = f"must not be given beside {one}, which holds gradients and values"
                raise MPSTypeError(who, other, rule, type(arguments[other]).__name__)
        names = (one, one)
    gradients: _BatchNormalization = arguments[names[0]]
    source: _BatchNormalization = arguments[names[1]]
    _check_state(who, names[0], gradients, _GAMMA_GRADIENTS, command_buffer)
    _check_state(who, names[1], source, _GAMMA, command_buffer)
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
    read = {id(arguments[name]): arguments[name] for name in names}
    bound = [Numbers(buffer) for buffer in (slopes[0], slopes[1], *values)]
    return Layer(
        _GAMMA,
        (count, count),
        (bound[0], bound[1]),
        (bound[2], bound[3]),
        (Numbers(result.gamma, 0, count), Numbers(result.beta, 0, count)),
        tuple(read.values()),
    )


# --- the vectors that an optimizer keeps for them ---------------------------------------------------------------------


def accumulators(
    who: str, argument: str, vectors: Any, names: Sequence[str], lengths: Sequence[int], command_buffer: CommandBuffer
) -> list[Binding]:
    """Where the numbers of a vector for the first parameter, or of one for each, are; ``names`` are the parameters'.

    Raises unless they can be used.
    """
    if not isinstance(vectors, (list, tuple)) and (isinstance(vectors, str) or not isinstance(vectors, Sequence)):
        raise MPSArgumentError(who, argument, _number_rule(names), vectors)
    if len(vectors) not in (1, 2):
        raise MPSArgumentError(who, argument, _number_rule(names), f"{len(vectors)}")
    device = command_buffer.device
    found: list[Binding] = []
    for index, vector in enumerate(vectors):
        numbers = numbers_of(vector) if type(vector) is MPSVector else None
        if numbers is None or numbers.count != lengths[index] or numbers.buffer.device is not device:
            place = f"{argument}[{index}]"
            numbers = _accumulator(who, place, vector, names[index], lengths[index], command_buffer)
        found.append(numbers)
    return found


def _number_rule(names: Sequence[str]) -> str:
    return f"must be one vector for the {names[0]}, or two for {names[0]} and {names[1]}"


def _accumulator(
    who: str, place: str, vector: object, name: str, length: int, command_buffer: CommandBuffer
) -> Numbers:
    held = Argument(place, MPSVector, (MPSDataType.FLOAT32,)).view_of(who, vector, command_buffer)
    assert isinstance(held, Elements)
    if held.shape.sizes != (1, length):
        rule = f"must be one vector of {length} numbers, one for each number of {name}"
        raise MPSArgumentError(who, place, rule, "{} of {}".format(*held.shape.sizes))
    return Numbers(held.buffer, held.offset, length)
