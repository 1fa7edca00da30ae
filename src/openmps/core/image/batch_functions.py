"""Functions of batches of images (MPSImage.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from openmps.core.image.batch import as_batch
from openmps.core.image.image import MPSImage
from openmps.errors import MPSTypeError
from openmps.metal.device import CommandBuffer
from openmps.selectors import accepts

_NO_STOP = -(2**63)


def MPSImageBatchIncrementReadCount(batch: Sequence[MPSImage], amount: int) -> int:
    """Add ``amount``, which may be negative, to each different image's read count (MPSImage.h, macOS 10.13.4).

    Ordinary images and images whose count is 0 already are left alone. Returns the number of different images.
    """
    who = "MPSImageBatchIncrementReadCount"
    whole = as_batch(who, "batch", batch)
    if isinstance(amount, bool) or not isinstance(amount, int):
        raise MPSTypeError(who, "amount", "must be an integer", repr(amount))
    whole.add_reads(amount)
    return whole.count_unique()


def MPSImageBatchSynchronize(batch: Sequence[MPSImage], command_buffer: CommandBuffer) -> None:
    """Synchronize each different image once (MPSImage.h, macOS 10.13.4); see `MPSImage.synchronize`."""
    as_batch("MPSImageBatchSynchronize", "batch", batch).synchronize(command_buffer)


def MPSImageBatchResourceSize(batch: Sequence[MPSImage]) -> int:
    """Bytes of memory behind the different images (MPSImage.h, macOS 10.13.4)."""
    return as_batch("MPSImageBatchResourceSize", "batch", batch).resource_size()


def MPSImageBatchIterate(batch: Sequence[MPSImage], block: Callable[[MPSImage, int], int | None]) -> int:
    """Call ``block(image, first_index)`` once for each different image (MPSImage.h, macOS 10.14).

    A result of the block greater than the smallest 64-bit integer stops; None goes on. Returns the last result.
    """
    if not callable(block):
        rule = "must be a function of an image and its index"
        raise MPSTypeError("MPSImageBatchIterate", "block", rule, type(block).__name__)
    accepts("MPSImageBatchIterate", "block", block, "image index")
    result = _NO_STOP
    seen: set[int] = set()
    for index, image in enumerate(as_batch("MPSImageBatchIterate", "batch", batch)):
        if id(image) in seen:
            continue
        seen.add(id(image))
        answer = block(image, index)
        if answer is not None and not isinstance(answer, int):
            rule = "must return an integer or None"
            raise MPSTypeError("MPSImageBatchIterate", "block", rule, type(answer).__name__)
        result = _NO_STOP if answer is None else answer
        if result > _NO_STOP:
            break
    return result
