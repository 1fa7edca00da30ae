"""Where the gradients are that states hold: what `Group.reduce` adds up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.batch_normalization import MPSCNNBatchNormalizationState
from openmps.kernels.convolution.base import ConvolutionGradientState
from openmps.kernels.group_normalization.state import ImageNormalizationState
from openmps.metal.device import CommandBuffer
from openmps.runtime.binding import MemoryBinding, Numbers


class Gradients(NamedTuple):
    """Memory that is added up, and whether the sums are divided by the number of processes."""

    places: list[MemoryBinding]
    are_means: list[bool]

    def add(self, places: Sequence[MemoryBinding], *, are_means: bool = False) -> None:
        """Add up some more."""
        self.places.extend(places)
        self.are_means.extend([are_means] * len(places))


def gradients_of(who: str, command_buffer: CommandBuffer, states: object) -> Gradients:
    """The gradients of parameters that states hold, each state once."""
    found = Gradients([], [])
    for index, state in enumerate(_listed(who, states)):
        argument = f"states[{index}]"
        finder = next((finder for kind, finder in _FINDERS.items() if isinstance(state, kind)), None)
        if finder is None:
            rule = "must hold gradients of parameters: of a convolution, or of a normalization"
            raise MPSTypeError(who, argument, rule, type(state).__name__)
        state.check_usable(who, argument, command_buffer)
        finder(who, argument, state, found)
    return found


def _listed(who: str, states: object) -> list[Any]:
    if isinstance(states, MPSState):
        return [states]
    if isinstance(states, str) or not isinstance(states, Sequence):
        raise MPSTypeError(who, "states", "must be a state, or a sequence of states", type(states).__name__)
    listed = [each for given in states for each in (given.counted() if isinstance(given, MPSStateBatch) else [given])]
    return list({id(each): each for each in listed}.values())


def _of_convolution(who: str, argument: str, state: ConvolutionGradientState, found: Gradients) -> None:
    found.add(state.gradient_sums())


def _of_batch(who: str, argument: str, state: MPSCNNBatchNormalizationState, found: Gradients) -> None:
    if state.gradient_for_gamma() is None:
        remedy = "Encode MPSCNNBatchNormalizationStatisticsGradient with it first"
        raise MPSArgumentError(who, argument, "must hold the gradients of gamma and beta", "none", remedy)
    if state.awaits_gradient and not state.has_shared_statistics:
        rule = "must have its MPSCNNBatchNormalizationGradient encoded first, which takes sums of this process alone"
        remedy = "Encode it first, or share the statistics by reduce_statistics"
        raise MPSArgumentError(who, argument, rule, None, remedy)
    found.add([state.own("gradient_for_gamma"), state.own("gradient_for_beta")])
    if state.has_statistics and not state.has_shared_statistics:
        found.add([state.own("mean"), state.own("variance")], are_means=True)


def _of_images(who: str, argument: str, state: ImageNormalizationState, found: Gradients) -> None:
    found.add([Numbers(state.gradient_for_gamma), Numbers(state.gradient_for_beta)])


_FINDERS: dict[type, Callable[[str, str, Any, Gradients], None]] = {
    ConvolutionGradientState: _of_convolution,
    MPSCNNBatchNormalizationState: _of_batch,
    ImageNormalizationState: _of_images,
}
