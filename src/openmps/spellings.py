"""Names of the framework as they are written elsewhere: in Swift, in Objective-C, by other libraries of Apple's."""

from __future__ import annotations

import re
from collections.abc import Iterator

_STEM = re.compile(r"(.+?)(?:(?:With|To|For|From|On)(?=[A-Z])|_(?:with|to|for|from|on)_)")

INSTEAD = {
    "MTKTextureLoader": "Read the picture with Pillow or another library, and make an image of the array with "
    "MPSImage.from_numpy(device, array)",
    "MTLTexture": "An MPSImage has no texture: read and write it by numpy(), read_bytes and write_bytes",
}
"""What to use in the place of names that openmps will not have."""


def spellings(name: str) -> Iterator[str]:
    """What ``name`` may be called here: as it is, without Swift's ``make``, without what follows With, To or On."""
    yield name
    if name.startswith("make"):
        rest = name.removeprefix("make").strip("_")
        yield from (f"new{rest}", rest)
    stem = _STEM.match(name)
    if stem is not None:
        yield from spellings(stem[1])
