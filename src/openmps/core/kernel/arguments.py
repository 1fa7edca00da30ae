"""Arguments and properties of kernels, checked where they are set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from openmps.checks import as_index, of_kind
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.numbers import integer
from openmps.core.state.batch import MPSStateBatch, as_state_batch
from openmps.core.state.state import MPSState
from openmps.enumerated import member
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import MTLTexture
from openmps.types import MPSImageEdgeMode, MPSOffset, MTLRegion

_FARTHEST = 2**31 - 1
"""How far offsets reach: beyond every image, and near enough for the arithmetic of 64-bit and float64 positions."""


def channel_offset(who: str, argument: str, value: int, step: int = 4) -> int:
    """A channel offset: a multiple of ``step``, not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value % step:
        rule = "must be an integer of at least 0" if step == 1 else f"must be a multiple of {step}, at least 0"
        raise MPSArgumentError(who, argument, rule, repr(value))
    return value


def channel_count(who: str, argument: str, value: int) -> int:
    """A bound on channels read: at least 1."""
    return integer(who, argument, value, 1)


def image_offset(who: str, argument: str, value: MPSOffset) -> MPSOffset:
    """An offset in source pixels."""
    if not isinstance(value, MPSOffset):
        raise MPSTypeError(who, argument, "must be an MPSOffset(x, y, z)", type(value).__name__)
    if max(abs(value.x), abs(value.y)) > _FARTHEST:
        rule = f"must be at most {_FARTHEST} pixels in x and y"
        raise MPSArgumentError(who, argument, rule, f"({value.x}, {value.y})")
    return value


def pixel_distance(who: str, argument: str, value: int) -> int:
    """A distance in pixels along one axis, of either sign."""
    found = as_index(value)
    if found is None:
        raise MPSTypeError(who, argument, "must be an integer", repr(value))
    if abs(found) > _FARTHEST:
        raise MPSArgumentError(who, argument, f"must be at most {_FARTHEST} pixels", found)
    return found


def image_edge_mode(who: str, argument: str, value: MPSImageEdgeMode) -> MPSImageEdgeMode:
    """An edge mode that windowed kernels define: ZERO or CLAMP."""
    rule = "must be ZERO or CLAMP; the other modes belong to MPSNNPad"
    found = member(who, argument, MPSImageEdgeMode, value, rule)
    if found not in (MPSImageEdgeMode.ZERO, MPSImageEdgeMode.CLAMP):
        raise MPSArgumentError(who, argument, rule, found.name)
    return found


def clip_rectangle(who: str, argument: str, value: MTLRegion) -> MTLRegion:
    """A rectangle of a destination, or of a source."""
    return of_kind(who, argument, value, MTLRegion)


def array_remedy(given: object) -> str:
    """What to do with an array in the place of an image; nothing where it is none."""
    return "Make one of it: MPSImage.from_numpy(device, array)" if isinstance(given, np.ndarray | Tensor) else ""


def single(who: str, argument: str, image: object, for_textures: str | None = None) -> MPSImage:
    """One image, not a batch; of an argument that is called a texture an image in the memory of one, too.

    ``for_textures`` is the argument that takes textures in the place of this one.
    """
    if not isinstance(image, MPSImage):
        if isinstance(image, MTLTexture) and argument.endswith("_texture"):
            return MPSImage(texture=image)
        remedy = "Use encode_batch for batches of images" if isinstance(image, Sequence) else array_remedy(image)
        if isinstance(image, MTLTexture):
            remedy = "Make one in its memory: MPSImage(texture=…)"
            remedy = remedy if for_textures is None else f"Pass it as {for_textures}=…"
        raise MPSTypeError(who, argument, "must be an MPSImage", type(image).__name__, remedy)
    return image


def are_images(value: object) -> bool:
    """Whether images were passed, or one: in the place of a state they are destinations."""
    if isinstance(value, MPSImage | MPSImageBatch):
        return True
    return isinstance(value, Sequence) and any(isinstance(each, MPSImage) for each in value)  # pyright: ignore[reportUnknownVariableType]


def states_of(who: str, argument: str, states: object) -> MPSStateBatch | None:
    """One state, a sequence of states, or none."""
    if states is None:
        return None
    if isinstance(states, MPSState):
        return MPSStateBatch([states])
    return as_state_batch(who, argument, states)
