"""What a kernel's mathematics is told while its function is built: how sources are read, where results land."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from openmps.core.image.storage import Extent, Shape, Target
from openmps.core.state.gradient import SourceRecord
from openmps.ops.elements import Channels, Load, Read, ReadAdjoint, Store
from openmps.ops.geometry import Window
from openmps.ops.op import Builder, Function, Role, Value
from openmps.runtime.binding import Constant
from openmps.types import MPSImageEdgeMode
from openmps.types import MPSImageFeatureChannelFormat as Format

RESULT, SAVED = "result", "saved"
"""Names of what every kernel may give out: the image, and what its state keeps for the gradient."""


class FunctionContext:
    """The function that a kernel fills, whatever its operands are."""

    def __init__(self) -> None:
        self.constants: list[Constant] = []
        self._builder = Builder(widen=Load(Format.FLOAT16))

    def buffer(self, name: str) -> Value:
        """Memory that the kernel binds under this name at each encode."""
        return self._builder.input(Role.BUFFER, name)

    def number(self, name: str) -> Value:
        """A number that the kernel gives under this name at each encode."""
        return self._builder.input(Role.NUMBER, name)

    def constant(self, numbers: NDArray[Any]) -> Value:
        """Numbers of the configuration, as a tensor on the device."""
        self.constants.append(Constant(numbers))
        return self._builder.input(Role.CONSTANT, str(len(self.constants) - 1))

    def finish(self) -> Function:
        """The function; the last call."""
        return self._builder.finish()


class LoweringContext(FunctionContext):
    """The placement of one encode, and the function that its kernel fills."""

    def __init__(
        self,
        sources: tuple[SourceRecord, ...],
        target: Target | None,
        given: Any,
        shapes: Sequence[Shape],
        destination: Shape | None,
        *,
        as_stored: bool = False,
    ) -> None:
        super().__init__()
        self.as_stored = as_stored
        """Whether numbers are the elements of sources as they are stored, and of the result: all of one format."""
        self.sources = sources
        """How each source is read."""
        self.given = given
        """What the plan depends on of the states that the encode is given; None without states."""
        self.shapes = tuple(shapes)
        """The whole sources: their shapes, and how their numbers are stored."""
        self._target = target
        self._destination = destination
        result_format = None if destination is None else destination.channel_format
        formats = {shape.channel_format for shape in shapes}
        is_half = formats == {Format.FLOAT16} and result_format in (None, Format.FLOAT16)
        self._result_format = result_format
        self.images = tuple(self._image(index, is_half=is_half) for index in range(len(self.shapes)))
        """The sources' slots: the channels read of each, numbers as they are stored or float32."""

    def stored(self, index: int) -> Value:
        """The elements of a source as they are stored: the channels read."""
        return self._elements(index, is_half=False)

    def _elements(self, index: int, *, is_half: bool) -> Value:
        shape, source = self.shapes[index], self.sources[index]
        value = self._builder.input(Role.SOURCE, str(index), is_half=is_half)
        return value if source.channels == shape.extent.channels else Channels(source.channel, source.channels)(value)

    def _image(self, index: int, *, is_half: bool) -> Value:
        shape, value = self.shapes[index], self._elements(index, is_half=is_half)
        plain = shape.channel_format is Format.FLOAT32 or is_half or self.as_stored
        return value if plain else Load(shape.channel_format)(value)

    @property
    def target(self) -> Target:
        """Where the result lands."""
        assert self._target is not None
        return self._target

    @property
    def destination(self) -> Extent:
        """All of the destination, of which the target is a part."""
        assert self._destination is not None
        return self._destination.extent

    @property
    def destination_format(self) -> Format:
        """How the destination's numbers are stored."""
        assert self._result_format is not None
        return self._result_format

    @property
    def stores_unorm(self) -> bool:
        """Whether the destination's numbers are cut to 0 … 1."""
        return self._result_format in (Format.UNORM8, Format.UNORM16)

    @property
    def window(self) -> Window:
        """The windows over the first source."""
        return self.sources[0].window

    @property
    def edge_mode(self) -> MPSImageEdgeMode:
        """How the first source goes on beyond its edges."""
        return self.sources[0].edge_mode

    def read(self, image: Value, index: int = 0) -> Value:
        """The region of source ``index`` that its windows read; the image itself where that is all of it."""
        return read(image, self.sources[index].window, self.sources[index].edge_mode)

    @property
    def saved(self) -> Value:
        """What the forward encode left in the state; None when it runs, if nothing was left."""
        return self._builder.input(Role.SAVED, SAVED)

    def saves(self, value: Value) -> None:
        """Leave a tensor in the state for the gradient, if the encode leaves a state."""
        self._builder.output(SAVED, value)

    def gives(self, name: str, value: Value) -> None:
        """Give something out that the kernel binds under this name at each encode."""
        self._builder.output(name, value)

    def finish(self, result: Value | None = None) -> Function:
        """The function, with the result stored in the destination's format."""
        if result is not None:
            stored = None if self.as_stored else self._result_format
            self._builder.output(RESULT, result if stored in (None, Format.FLOAT32) else Store(stored)(result))
        return super().finish()


@dataclass(frozen=True, slots=True)
class GradientGeometry:
    """The two placements of a gradient encode; both are the forward window in the automatic path.

    ``source`` says which pixels of the forward source each gradient pixel's window read, ``data`` where the data
    gradient of each gradient pixel lands.
    """

    source: Window
    data: Window
    edge_mode: MPSImageEdgeMode


class GradientLoweringContext(LoweringContext):
    """The context of a gradient kernel: the first source is the incoming gradient, the second the forward source."""

    geometry: GradientGeometry

    @property
    def window(self) -> Window:
        """Which pixels of the forward source each gradient pixel's window read."""
        return self.geometry.source

    @property
    def edge_mode(self) -> MPSImageEdgeMode:
        """How the forward source goes on beyond its edges."""
        return self.geometry.edge_mode

    def read(self, image: Value, index: int = 1) -> Value:
        """The region of the forward source that its windows read."""
        return read(image, self.geometry.source, self.geometry.edge_mode)

    def back(self, gradient: Value) -> Value:
        """The gradient of the forward source from that of the region read."""
        return back(gradient, self.geometry.data, self.geometry.edge_mode)


def read(image: Value, window: Window, edge_mode: MPSImageEdgeMode) -> Value:
    """The region that windows read; the image itself where that is all of it."""
    op = Read(window, edge_mode)
    return image if op.is_identity else op(image)


def back(gradient: Value, window: Window, edge_mode: MPSImageEdgeMode) -> Value:
    """The gradient of an image from that of the region that windows read."""
    op = ReadAdjoint(window, edge_mode)
    return gradient if op.is_identity else op(gradient)
