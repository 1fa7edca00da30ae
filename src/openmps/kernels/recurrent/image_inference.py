"""Recurrent layers over sequences of images (MPSRNNLayer.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from openmps.checks import listed
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape, Stack
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.kernel.arguments import single
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.kernel.configuration import SourceProperties
from openmps.core.kernel.operands import Argument, OperandContext
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.operand import Operand
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.recurrent.sequences import check_count
from openmps.kernels.recurrent.stack import SEQUENCE, RecurrentStack
from openmps.kernels.recurrent.states import MPSRNNRecurrentImageState, recurrent_state, state_of
from openmps.metal.device import CommandBuffer
from openmps.ops.matrix.recurrent import FirstColumns, JoinRows, RowRange
from openmps.ops.matrix.recurrent_cells import starts
from openmps.ops.op import Value
from openmps.types import MPSImageFeatureChannelFormat, MPSRectNoClip

_FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32
_STATE = "recurrent_input_state"


class _FirstChannels(Operand):
    """The first channels of an image."""

    __slots__ = ("_channels", "_image")

    def __init__(self, image: MPSImage, channels: int) -> None:
        self._image, self._channels = image, channels

    def check_usable(self, who: str, argument: str, command_buffer: CommandBuffer) -> None:
        """That of the image."""
        self._image.check_usable(who, argument, command_buffer)

    def whole(self) -> Stack:
        """The channels."""
        view = self._image.whole()
        parts = tuple([each.with_channels(0, self._channels) for each in view.parts])
        return Stack(parts, Shape(view.extent._replace(channels=self._channels), view.channel_format))

    def count_read(self, amount: int = 1) -> None:
        """A read of the image."""
        self._image.count_read(amount)


class MPSRNNImageInferenceLayer(  # pyright: ignore[reportIncompatibleMethodOverride]
    RecurrentStack[MPSImage], MPSCNNKernel[MPSState]
):
    """A stack of recurrent layers over sequences of images (MPSRNNLayer.h, macOS 10.13).

    ``MPSRNNImageInferenceLayer(device, rnn_descriptor)``, or ``(device, rnn_descriptors=[…])`` for a stack, of which
    each layer reads what the one before gives. In the formulas of the descriptors x, h and c are images, and products
    with weights are convolutions, of kernels of any size: their middle is the pixel that the result is for, and pixels
    outside of an image are 0. A bias, and a diagonal memory weight, is a number a channel. All images of a run are of
    one size. Weights are rounded to float16, whatever `MPSRNNDescriptor.use_float32_weights` says; sums, states and
    biases are float32. Sources of weights are read when the layer is made.

    A layer runs over sequences: the encodes of single images are not offered, and `offset`, `clip_rect`, `edge_mode`
    and the offsets of feature channels must stay as they are.

    Raises:
        MPSArgumentError: Layers do not fit one another, or weights do not fit the channels.
        MPSTypeError: There is no descriptor, or a source is none of weights.
    """

    _of_images = True
    _source_list, _result_list = "source_images", "destination_images"

    def encode_sequence(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        destination_images: Sequence[MPSImage],
        recurrent_input_state: MPSRNNRecurrentImageState | None = None,
        recurrent_output_states: list[MPSRNNRecurrentImageState] | None = None,
    ) -> None:
        """Record a run over a sequence, index 0 first, whatever direction the layers have.

        An image object a step, each with as many images, which are a batch; their first `input_feature_channels`
        channels are read, and the first `output_feature_channels` of the destinations written. It begins with
        ``recurrent_input_state``, zeros without one; the state behind the last step, or of each step with
        `store_all_intermediate_states`, is appended to ``recurrent_output_states``.

        Raises:
            MPSArgumentError: Lists have other lengths, images are of other sizes or have too few channels, a
                destination is read or written by another step, or a property of single images is not as it comes.
            MPSTypeError: The state is of other layers.
        """
        who = self.name
        check_command_buffer(who, command_buffer, self._device)
        self._check_properties()
        self._check_stack(range(self.number_of_layers))
        sources = self._images(self._source_list, source_images, self.input_feature_channels)
        extent = sources[0].whole().extent
        taken = {*map(id, sources)}
        results = self._into(self._result_list, destination_images, self.output_feature_channels, extent, taken)
        check_count(who, self._result_list, results, len(sources), self._source_list)
        kind = MPSRNNRecurrentImageState
        state = state_of(who, _STATE, recurrent_input_state, self._forms, kind)
        if state is not None:
            _check_size(who, _STATE, state.layers[0].hidden, extent)
        made = [
            self._new_state(command_buffer, extent)
            for _ in range(self._count_of_states(recurrent_output_states, len(sources)))
        ]
        self._encode_run(command_buffer, sources, results, (extent.images,) * len(sources), state, made)
        if recurrent_output_states is not None:
            recurrent_output_states.extend(made)

    def encode_bidirectional_sequence(
        self,
        command_buffer: CommandBuffer,
        source_sequence: Sequence[MPSImage],
        destination_forward_images: Sequence[MPSImage],
        destination_backward_images: Sequence[MPSImage] | None = None,
    ) -> None:
        """Record a run of the FORWARD layers over a sequence, and one of the BACKWARD layers from its end.

        Both stacks read the sources and begin with zeros. With the combine mode NONE each has its own destinations; ADD
        adds their results, and CONCATENATE puts those of the backward layers behind the others' channels, in
        ``destination_forward_images`` both.

        Raises:
            MPSArgumentError: There are no layers of one direction, or as `encode_sequence`.
        """
        self._check_properties()
        lists = self._lists_of_both(
            ("destination_forward_images", destination_forward_images),
            ("destination_backward_images", destination_backward_images),
        )
        sources = self._images(SEQUENCE, source_sequence, self._inputs_of_both())
        extent = sources[0].whole().extent
        taken = {*map(id, sources)}
        results = {name: self._into(name, given, width, extent, taken) for name, (given, width) in lists.items()}
        for name, each in results.items():
            check_count(self.name, name, each, len(sources), SEQUENCE)
        self._encode_both(command_buffer, sources, results, (extent.images,) * len(sources))

    def _new_state(self, command_buffer: CommandBuffer, extent: Extent) -> MPSRNNRecurrentImageState:
        temporary = self.recurrent_output_is_temporary

        def new(channels: int) -> MPSImage:
            descriptor = MPSImageDescriptor(_FLOAT32, extent.width, extent.height, channels, extent.images)
            if temporary:
                return MPSTemporaryImage(command_buffer, descriptor)
            return MPSImage(command_buffer.device, descriptor)

        return recurrent_state(MPSRNNRecurrentImageState, command_buffer, self._forms, new, temporary)

    # --- images -------------------------------------------------------------------------------------------------------

    def _images(self, argument: str, images: Any, channels: int, size: Extent | None = None) -> list[MPSImage]:
        """A list of images that have so many channels, all of one size: that of the first one unless said."""
        given = [
            single(self.name, f"{argument}[{index}]", each)
            for index, each in enumerate(listed(self.name, argument, images, "MPSImage"))
        ]
        if not given:
            raise MPSArgumentError(self.name, argument, "must hold at least one image", "none")
        for index, each in enumerate(given):
            name = f"{argument}[{index}]"
            _check_size(self.name, name, each, given[0].whole().extent if size is None else size)
            if each.feature_channels < channels:
                rule = f"must have at least {channels} feature channels"
                raise MPSArgumentError(self.name, name, rule, each.feature_channels)
        return given

    def _into(self, argument: str, images: Any, channels: int, size: Extent, taken: set[int]) -> list[Operand]:
        """The first channels of images that are written; an image whose identity is ``taken`` has another use."""
        given = self._images(argument, images, channels, size)
        for index, each in enumerate(given):
            if id(each) in taken:
                rule = "must be read or written nowhere else in the sequence"
                raise MPSArgumentError(self.name, f"{argument}[{index}]", rule, each.name, "Encode into another image")
            taken.add(id(each))
        return [_FirstChannels(each, channels) for each in given]

    def _check_properties(self) -> None:
        """Raise unless the properties that every kernel over images has are as they come."""
        own, plain = self._sources[0], SourceProperties()
        for name in ("offset", "edge_mode", "channel_offset", "channel_max_count"):
            if getattr(own, name) != getattr(plain, name):
                whole = f"source_feature_{name}" if name.startswith("channel") else name
                raise MPSArgumentError(self.name, whole, "must be as it comes for a sequence", getattr(own, name))
        for name, usual in (("clip_rect", MPSRectNoClip), ("destination_feature_channel_offset", 0)):
            if getattr(self, name) != usual:
                raise MPSArgumentError(self.name, name, "must be as it comes for a sequence", getattr(self, name))

    def _argument(self, name: str, *, is_result: bool = False) -> Argument:
        return Argument(name, (MPSImage, _FirstChannels), is_result=is_result)

    def _operands(self, argument: str, steps: Sequence[Operand]) -> list[tuple[str, Operand]]:
        return [(f"{argument}[{step}]", each) for step, each in enumerate(steps)]

    def _read_steps(self, at: OperandContext, argument: str, rows: Sequence[int], channels: int) -> Value:
        values = [at.numbers(f"{argument}[{step}]") for step in range(len(rows))]
        there = [at.shape(f"{argument}[{step}]").extent.channels for step in range(len(rows))]
        first = [x if most == channels else FirstColumns(channels)(x) for x, most in zip(values, there, strict=True)]
        return JoinRows()(*first)

    def _store_steps(self, at: OperandContext, argument: str, rows: Sequence[int], value: Value) -> None:
        for step, (first, count) in enumerate(zip(starts(rows), rows, strict=True)):
            at.store(f"{argument}[{step}]", RowRange(first, first + count)(value))

    # --- what every kernel over images has ----------------------------------------------------------------------------

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return self.output_feature_channels

    def _needed_channels(self, index: int, available: int) -> int:
        return self.input_feature_channels

    def _run(self, *_: object, **__: object) -> NoReturn:
        rule = "is not offered by recurrent layers"
        raise MPSTypeError(self.name, "encode", rule, None, "Use encode_sequence, of one image too")


def _check_size(who: str, argument: str, image: MPSImage, size: Extent) -> None:
    found = image.whole().extent
    if found._replace(channels=size.channels) != size:
        rule = f"must have {size.width}x{size.height} pixels and {size.images} image(s), as the first source has"
        raise MPSArgumentError(who, argument, rule, f"{found.width}x{found.height} and {found.images}")
