"""Faster forms of image filters on the CPU, by OpenCV: its Python package is the extra ``filters``.

`library` loads it when a filter first runs. Its pool of threads is as large as PyTorch's, unless a program has chosen
another size.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from openmps.cpu.parts import run_parts
from openmps.types import MPSImageEdgeMode

_LEAST = 5
"""Major version: those before scale bytes by weights of five bits."""
_EXACT = 1 << 23
"""Numbers that are counted together at most: the library gives counts as float32."""
_COUNTED = 1 << 19
"""Numbers of all channels, of which one is counted, that are worth a thread."""


@cache
def is_installed() -> bool:
    """Whether the package is there; nothing is loaded."""
    return find_spec("cv2") is not None


@cache
def _loaded() -> Any:
    fault: object = None
    try:
        found = import_module("cv2")
        if int(found.__version__.partition(".")[0]) >= _LEAST:
            return found
        fault = f"version {found.__version__} is older than {_LEAST}.0"
    except ImportError as error:
        fault = error
    logging.getLogger(__name__).warning("OpenCV cannot be used, so filters take PyTorch's forms: %s", fault)
    return None


_followed: list[int] = []
"""PyTorch's number of threads when the library was told it last."""


def library() -> Any:
    """The module ``cv2``; None where there is none.

    It is told PyTorch's number of threads at first, and whenever that changes. In between, what a program sets stays;
    and what it has set before the first filter, or by the library's own variable in the environment.
    """
    found = _loaded() if is_installed() else None
    if found is not None and _followed != (threads := [torch.get_num_threads()]):
        is_chosen = not _followed and found.getNumThreads() != found.getNumberOfCPUs()
        _followed[:] = threads
        if not is_chosen:
            found.setNumThreads(*threads)
    return found


def border_of(cv2: Any, edge_mode: MPSImageEdgeMode) -> int:
    """The library's kind of border: zeros, or the nearest pixel."""
    return cv2.BORDER_REPLICATE if edge_mode == MPSImageEdgeMode.CLAMP else cv2.BORDER_CONSTANT


def byte_counts(cv2: Any, x: Tensor, count: int) -> Tensor:
    """How often each byte is in each of the first channels of all images ``[N, C, H, W]``, int64 ``[count, 256]``."""
    images = x.permute(0, 2, 3, 1).contiguous().numpy()
    threads = torch.get_num_threads()
    row = max(1, images[0, 0].size)
    rows = max(1, min(_EXACT, max(_COUNTED, images[0].size // threads)) // row)
    parts = [
        (channel, image[first : first + rows])
        for channel in range(count)
        for image in images
        for first in range(0, len(image), rows)
    ]
    found: list[tuple[int, Any]] = []

    def count_bytes(part: tuple[int, Any]) -> None:
        channel, pixels = part
        found.append((channel, cv2.calcHist([pixels], [channel], None, [256], [0, 256])))

    run_parts(count_bytes, parts, threads)
    counts = np.zeros((count, 256), np.int64)
    for channel, counted in found:
        counts[channel] += counted.ravel().astype(np.int64)
    return torch.from_numpy(counts)
