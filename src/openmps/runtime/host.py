"""Elements of images that are on the host, as tensors and as the arrays that they came as."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TENSOR_TYPES = {np.dtype(each): getattr(torch, each) for each in ("uint8", "uint16", "float16", "float32", "float64")}
"""Of arrays whose numbers an image may be made of: what tensors call their elements."""


class Layout(NamedTuple):
    """How elements lie in memory."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


Host = Tensor | NDArray[Any]
"""Elements that are not on the device: a tensor ``[N, C, H, W]``, or an array ``[N, H, W, C]`` without gaps."""


def as_elements(host: Host) -> Tensor:
    """Elements ``[N, C, H, W]``, channels-last, in the same memory."""
    if isinstance(host, Tensor):
        return host
    # Made in inference mode, the memory could not be written outside it.
    with torch.inference_mode(False):
        return torch.from_numpy(host).permute(0, 3, 1, 2)


def layout_of(tensor: Tensor) -> Layout:
    """How a tensor lies in memory."""
    return Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def layout_of_array(shape: tuple[int, int, int, int], dtype: torch.dtype) -> Layout:
    """How elements of this shape, ``[N, C, H, W]``, lie that come as an array."""
    _, channels, height, width = shape
    return Layout(shape, (channels * height * width, 1, width * channels, channels), dtype)
