"""What the encodes of batch normalization are given: one state for the batch, and forms that do not exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.state.state import MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.batch_normalization.state import MPSCNNBatchNormalizationState

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer


def check_state(who: str, value: object) -> MPSCNNBatchNormalizationState:
    """The one state of a batch, given as itself or once for each image."""
    found = value
    if isinstance(value, MPSStateBatch):
        found = value.shared
    elif isinstance(value, Sequence) and not isinstance(value, str) and len({id(each) for each in value}) == 1:
        found = value[0]
    if not isinstance(found, MPSCNNBatchNormalizationState):
        raise MPSTypeError(
            who,
            "batch_normalization_state",
            "must be the one MPSCNNBatchNormalizationState of the batch",
            None if value is None else type(value).__name__,
            "Make it with result_state of the MPSCNNBatchNormalization",
        )
    return found


def check_channels(who: str, state: MPSCNNBatchNormalizationState, channels: int) -> None:
    """Raise unless the state has numbers for exactly as many channels."""
    if state.number_of_feature_channels != channels:
        raise MPSArgumentError(
            who,
            "batch_normalization_state",
            f"must be of a batch normalization of {channels} feature channel(s), as many as are read",
            f"one of {state.number_of_feature_channels}, made by {state.batch_normalization.name}",
        )


def refuse_arguments(who: str, unavailable: Mapping[str, object], remedy: str) -> None:
    """Raise if arguments are given that belong to forms of encode that the framework marks unavailable."""
    given = [name for name, value in unavailable.items() if value is not None]
    if given:
        raise MPSTypeError(who, " and ".join(given), "must not be given: this class has no such encode", None, remedy)


def refuse(who: str, what: str, remedy: str) -> NoReturn:
    """Raise for a form of encode that the framework marks unavailable."""
    raise MPSTypeError(who, what, "is not available for this class", None, remedy)


def check_usable(who: str, states: MPSStateBatch, command_buffer: CommandBuffer) -> None:
    """Raise unless an encode on ``command_buffer`` may use the state."""
    for state in states.counted():
        state.check_usable(who, "batch_normalization_state", command_buffer)


def are_images(value: object) -> bool:
    """Whether a destination was passed in the place of the state."""
    if isinstance(value, MPSImage | MPSImageBatch):
        return True
    return isinstance(value, Sequence) and len(value) > 0 and isinstance(value[0], MPSImage)
