"""What a graph asks at each encode: who scales, and by how much (MPSNNGraphNodes.h, macOS 10.13 and 10.15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

from openmps.core.image.image import MPSImage
from openmps.errors import MPSTypeError, warn_user
from openmps.types import MPSScaleTransform


@runtime_checkable
class MPSImageTransformProvider(Protocol):
    """Says which part of a picture a scale node shows (MPSNNGraphNodes.h, macOS 10.13)."""

    def transform(self, source_image: MPSImage, handle: Any) -> MPSScaleTransform:
        """The transform for an image of this shape, which has no contents yet; ``handle`` is its node's, or None."""
        ...


@runtime_checkable
class MPSNNGramMatrixCallback(Protocol):
    """Says by how much a Gram matrix is multiplied (MPSNNGraphNodes.h, macOS 10.15)."""

    def alpha(self, source_image: MPSImage, destination_image: MPSImage) -> float:
        """The factor for images of these shapes, which have no contents yet."""
        ...


@runtime_checkable
class MPSNNLossCallback(Protocol):
    """Says by how much a loss is multiplied (MPSNNGraphNodes.h, macOS 10.15)."""

    def scalar_weight(self, source_image: MPSImage, destination_image: MPSImage) -> float:
        """The weight for images of these shapes, which have no contents yet."""
        ...


class Question(NamedTuple):
    """What a callback is asked: the method of one of the protocols."""

    method: str
    arguments: str
    former: str
    """The name that the method has in programs for version 0.1; it is kept for one release."""

    def check(self, who: str, argument: str, value: Any) -> Any:
        """``value`` if it is None or has the method; warns of one under its former name."""
        if value is None:
            return None
        if self._method_of(value) is None:
            rule = f"must have a method {self.method}({self.arguments}), or be None"
            raise MPSTypeError(who, argument, rule, type(value).__name__)
        if not callable(getattr(value, self.method, None)):
            message = f"{who}: {argument} has a method {self.former}: call it {self.method}({self.arguments})"
            warn_user(message, DeprecationWarning)
        return value

    def ask(self, callback: Any, *arguments: Any) -> Any:
        """The answer of a callback that was checked."""
        method = self._method_of(callback)
        if method is None:
            rule = f"must have the method {self.method}({self.arguments}) that it had when it was set"
            raise MPSTypeError(type(callback).__name__, self.method, rule)
        return method(*arguments)

    def _method_of(self, callback: Any) -> Callable[..., Any] | None:
        found = (getattr(callback, name, None) for name in (self.method, self.former))
        return next(filter(callable, found), None)


_IMAGES = "source_image, destination_image"
TRANSFORM = Question("transform", "source_image, handle", "transform_for_source_image")
ALPHA = Question("alpha", _IMAGES, "alpha_for_source_image")
SCALAR_WEIGHT = Question("scalar_weight", _IMAGES, "scalar_weight_for_source_image")
