"""What a graph asks at each encode: who scales, and by how much (MPSNNGraphNodes.h, macOS 10.13 and 10.15)."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from openmps.core.image.image import MPSImage
from openmps.types import MPSScaleTransform


@runtime_checkable
class MPSImageTransformProvider(Protocol):
    """Says which part of a picture a scale node shows (MPSNNGraphNodes.h, macOS 10.13)."""

    def transform_for_source_image(self, image: MPSImage, handle: Any) -> MPSScaleTransform:
        """The transform for an image of this shape, which has no contents yet; ``handle`` is its node's, or None."""
        ...


@runtime_checkable
class MPSNNGramMatrixCallback(Protocol):
    """Says by how much a Gram matrix is multiplied (MPSNNGraphNodes.h, macOS 10.15)."""

    def alpha_for_source_image(self, source_image: MPSImage, destination_image: MPSImage) -> float:
        """The factor for images of these shapes, which have no contents yet."""
        ...


@runtime_checkable
class MPSNNLossCallback(Protocol):
    """Says by how much a loss is multiplied (MPSNNGraphNodes.h, macOS 10.15)."""

    def scalar_weight_for_source_image(self, source_image: MPSImage, destination_image: MPSImage) -> float:
        """The weight for images of these shapes, which have no contents yet."""
        ...
