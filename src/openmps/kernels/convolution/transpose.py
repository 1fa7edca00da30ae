"""MPSCNNConvolutionTranspose (MPSCNNConvolution.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast, overload

from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.arguments import are_images, pixel_distance, states_of
from openmps.core.kernel.checks import Images, check_states
from openmps.core.kernel.configuration import KernelProperty
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.plan import Plan
from openmps.core.padding.geometry import mirror_kernel_offset
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import ForwardRecord, SourceRecord, unrecorded
from openmps.core.state.state import MPSState
from openmps.errors import MPSTypeError
from openmps.kernels.convolution.base import ConvolutionKernel
from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor, refuse_sub_pixels
from openmps.kernels.convolution.forward import MPSCNNConvolution, MPSCNNConvolutionGradientState
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.convolution.convolution_half import ConvolutionTransposeHalf
from openmps.ops.convolution.convolution_transpose import ConvolutionTranspose
from openmps.ops.geometry import Axis, Window
from openmps.ops.op import Value
from openmps.types import MPSDataType, MPSOffset


class TransposePlacement(NamedTuple):
    """Where the windows of one encode lay: what the gradient kernel takes over."""

    offset: MPSOffset
    kernel_offset_x: int
    kernel_offset_y: int
    weights_fp16: bool | None


class MPSCNNConvolutionTransposeGradientState(MPSCNNConvolutionGradientState):
    """The parameter gradients of one batch through a transposed convolution (MPSCNNConvolution.h, macOS 10.15).

    As `MPSCNNConvolutionGradientState`. Where the transposed convolution undoes a convolution, it also refers to that
    one's state.

    >>> command_buffer = device.new_command_queue().command_buffer()
    >>> transposed = mps.MPSCNNConvolutionTranspose(device, weights=source)
    >>> y, state = transposed.encode(command_buffer, x, destination_state_is_temporary=False)
    >>> state.gradient_for_weights.length, state.gradient_for_biases.length
    (4, 4)
    """

    convolution_gradient_state: MPSCNNConvolutionGradientState | None
    """The state of the convolution that is undone, or None."""

    def __init__(
        self,
        device: MTLDevice,
        convolution_transpose: MPSCNNConvolutionTranspose,
        convolution_gradient_state: MPSCNNConvolutionGradientState | None = None,
    ) -> None:
        super().__init__(device, convolution_transpose)
        self.convolution_gradient_state = convolution_gradient_state

    @property
    def convolution(self) -> MPSCNNConvolution | None:
        """The convolution that is undone; None if the transposed convolution has no counterpart."""
        paired = self.convolution_gradient_state
        return None if paired is None else paired.convolution

    @property
    def convolution_transpose(self) -> MPSCNNConvolutionTranspose:
        """The transposed convolution that made the state."""
        return cast("MPSCNNConvolutionTranspose", self.kernel)


class MPSCNNConvolutionTranspose(
    ConvolutionKernel[MPSCNNConvolutionTransposeGradientState], leaves=MPSCNNConvolutionTransposeGradientState
):
    """Transposed convolution (MPSCNNConvolution.h, macOS 10.13).

    The strides s enlarge: with Z the source with s - 1 zeros between its pixels, ``(width - 1) s + 1`` wide, 0 outside,
    and ``T = offset s + kernel_offset``::

        Y[q, y, x] = neuron(b[q] + sum_{j,i,c} W[q][j][i][c] Z[c, y + T.y - ky/2 + dy j, x + T.x - kx/2 + dx i])

    with halves of the dilated kernel size. The weights, OHWI with O the channels made here, are not turned round:
    PyTorch's ``V[I][O][ky][kx]`` with padding P is ``W[o][j][i][c] = V[c][o][ky-1-j][kx-1-i]``, offset 0 and
    ``kernel_offset = P - (k - 1) + k / 2``. The data source must give FLOAT32 weights. `edge_mode` is not looked at.

    Results that the kernel sizes have ``(width - 1) s + 1`` columns under a policy of the same size, ``k - 1`` fewer or
    more under valid only or full. With the gradient state of a convolution they are as large as that one's source, and
    the offsets are set so that the windows are those of its adjoint.
    """

    _weight_types = (MPSDataType.FLOAT32,)

    kernel_offset_x = KernelProperty(
        0, pixel_distance, "Columns of the zero-filled source that windows are moved by, besides ``offset.x * stride``."
    )
    kernel_offset_y = KernelProperty(
        0, pixel_distance, "Rows of the zero-filled source that windows are moved by, besides ``offset.y * stride``."
    )

    def __init__(self, device: MTLDevice, weights: MPSCNNConvolutionDataSource) -> None:
        super().__init__(device, weights, None)

    def _read_descriptor(self, descriptor: MPSCNNConvolutionDescriptor) -> None:
        refuse_sub_pixels(self.name, descriptor)
        super()._read_descriptor(descriptor)

    # --- properties -------------------------------------------------------------------------------------------------

    @property
    def data_source(self) -> MPSCNNConvolutionDataSource:
        """The data source that the kernel was made with (macOS 10.15)."""
        return self._source_of_weights()

    @property
    def is_backwards(self) -> bool:
        """True: strides enlarge the result."""
        return True

    # --- planning -----------------------------------------------------------------------------------------------------

    def _place(self, offset_x: int, offset_y: int, kernel_offset_x: int, kernel_offset_y: int) -> None:
        super()._place(offset_x, offset_y, kernel_offset_x, kernel_offset_y)
        self.kernel_offset_x, self.kernel_offset_y = kernel_offset_x, kernel_offset_y

    def _adjusted(self, extent: Extent, shapes: tuple[Shape, ...], given: ForwardRecord | str | None) -> Extent:
        """Undo the convolution whose state is given: its source's size, and the windows of its adjoint."""
        if given is None:
            return extent
        if isinstance(given, str):
            raise unrecorded(given)
        forward, target = given.sources[0], given.target
        self._change_source(0, offset=MPSOffset(target.x, target.y, self.offset.z))
        window = self._sources[0].window(forward.extent, 1, 1)
        self.kernel_offset_x = mirror_kernel_offset(forward.window.x.offset, window.x.extent)
        self.kernel_offset_y = mirror_kernel_offset(forward.window.y.offset, window.y.extent)
        return extent._replace(width=forward.extent.width, height=forward.extent.height)

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        record = super()._source_record(index, extent, width, height)
        return replace(record, window=stuffed_window(record.window, self.kernel_offset_x, self.kernel_offset_y))

    def _parameters(self) -> TransposePlacement:
        return TransposePlacement(self.offset, self.kernel_offset_x, self.kernel_offset_y, self.weights_fp16)

    def _contract(self, at: LoweringContext, image: Value, weights: Value, biases: Value | None) -> Value:
        if self._sums_in_half():
            return ConvolutionTransposeHalf(at.window, self._shape.groups)(image, weights, biases)
        return ConvolutionTranspose(at.window, self._shape.groups, self._allows_tf32())(image, weights, biases)

    # --- states -------------------------------------------------------------------------------------------------------

    def make_state(self) -> MPSCNNConvolutionTransposeGradientState:
        """A new state for the gradients of one batch."""
        return MPSCNNConvolutionTransposeGradientState(self._device, self)

    def _given(self, states: MPSStateBatch) -> ForwardRecord | str | None:
        """The record of the convolution that is undone, or the name of a state that has none."""
        state = self._paired(states.counted())
        return None if state is None else state.record or state.name

    def _paired(self, source_states: Sequence[Any] | None) -> MPSCNNConvolutionGradientState | None:
        """The state of the convolution that is undone, from states or batches of states; None if there are none."""
        flat: list[Any] = []
        for each in source_states or ():
            flat.extend(each if isinstance(each, Sequence) else [each])
        for state in flat:
            if not isinstance(state, MPSCNNConvolutionGradientState) or not isinstance(state.kernel, MPSCNNConvolution):
                rule = "must be an MPSCNNConvolutionGradientState of an MPSCNNConvolution"
                remedy = "Pass the state that the convolution's encode left"
                raise MPSTypeError(self.name, "convolution_gradient_state", rule, repr(state), remedy)
        return flat[0] if flat else None

    def _pair(self, made: MPSStateBatch | None, source_states: Sequence[Any] | None) -> None:
        """Have new states refer to the state of the convolution that is undone."""
        paired = self._paired(source_states)
        for state in made.unique() if made is not None and paired is not None else ():
            if isinstance(state, MPSCNNConvolutionTransposeGradientState):
                state.convolution_gradient_state = paired

    def _result_states(
        self,
        command_buffer: CommandBuffer | None,
        sources: tuple[Images, ...],
        source_states: MPSStateBatch | None,
        destination: Images | None,
    ) -> MPSStateBatch | None:
        made = super()._result_states(command_buffer, sources, source_states, destination)
        self._pair(made, source_states)
        return made

    def _begin(self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None) -> None:
        if source_states is not None:
            self._pair(destination_states, source_states)
        super()._begin(plan, source_states, destination_states)

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        self._paired(states.counted())
        argument = "convolution_gradient_state" if isinstance(images, MPSImage) else "convolution_gradient_states"
        check_states(self.name, argument, states, images, command_buffer)

    def result_state_batch(
        self,
        source_image: Sequence[MPSImage],
        source_states: Sequence[Sequence[MPSState]] | Sequence[MPSState] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch | None:
        """The one state for an encode of a batch, once an image; ``source_states`` as in `result_state`."""
        made = super().result_state_batch(source_image, source_states, destination_image)
        self._pair(made, source_states)
        return made

    def temporary_result_state_batch(
        self,
        command_buffer: CommandBuffer,
        source_image: Sequence[MPSImage],
        source_states: Sequence[Sequence[MPSState]] | Sequence[MPSState] | None = None,
        destination_image: Sequence[MPSImage] | None = None,
    ) -> MPSStateBatch | None:
        """As `result_state_batch`, living on ``command_buffer``."""
        made = super().temporary_result_state_batch(command_buffer, source_image, source_states, destination_image)
        self._pair(made, source_states)
        return made

    # --- encode -----------------------------------------------------------------------------------------------------

    @overload
    def encode(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, command_buffer: CommandBuffer, source_image: MPSImage,
        convolution_gradient_state: MPSState | MPSImage | None = None, destination_image: MPSImage | None = None,
        destination_state: MPSState | None = None, destination_state_is_temporary: None = None,
    ) -> MPSImage: ...  # fmt: skip
    @overload
    def encode(
        self, command_buffer: CommandBuffer, source_image: MPSImage,
        convolution_gradient_state: MPSState | None = None, destination_image: None = None,
        destination_state: None = None, *, destination_state_is_temporary: bool,
    ) -> tuple[MPSImage, MPSState | None]: ...  # fmt: skip
    def encode(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_image: MPSImage,
        convolution_gradient_state: MPSState | MPSImage | None = None,
        destination_image: MPSImage | None = None,
        destination_state: MPSState | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImage | tuple[MPSImage, MPSState | None]:
        """Record the kernel for one image object; see `MPSCNNKernel.encode`.

        ``convolution_gradient_state`` is what the convolution that is undone left: without ``destination_image`` it
        sizes the result and sets the offsets, with it the properties hold as they stand; a temporary one is read once.
        A ``destination_state`` made with such a state in its ``source_states`` brings it along. An image in the third
        place is the destination, as for every kernel with one source.
        """
        if are_images(convolution_gradient_state):
            destination_image = self._third(convolution_gradient_state, destination_image)
            convolution_gradient_state = None
        return self._single(
            command_buffer,
            (source_image,),
            destination_image,
            destination_state,
            destination_state_is_temporary,
            self._undone(
                "convolution_gradient_state", convolution_gradient_state, "destination_state", destination_state
            ),
        )

    @overload
    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage],
        convolution_gradient_states: Sequence[MPSState] | Sequence[MPSImage] | None = None,
        destination_images: Sequence[MPSImage] | None = None, destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: None = None,
    ) -> MPSImageBatch: ...  # fmt: skip
    @overload
    def encode_batch(
        self, command_buffer: CommandBuffer, source_images: Sequence[MPSImage],
        convolution_gradient_states: Sequence[MPSState] | None = None, destination_images: None = None,
        destination_states: None = None, *, destination_state_is_temporary: bool,
    ) -> tuple[MPSImageBatch, MPSStateBatch | None]: ...  # fmt: skip
    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        convolution_gradient_states: Sequence[MPSState] | Sequence[MPSImage] | None = None,
        destination_images: Sequence[MPSImage] | None = None,
        destination_states: Sequence[MPSState] | None = None,
        destination_state_is_temporary: bool | None = None,
    ) -> MPSImageBatch | tuple[MPSImageBatch, MPSStateBatch | None]:
        """Record the kernel for a batch of images, as one operation; otherwise as `encode`."""
        if are_images(convolution_gradient_states):
            destination_images = self._third(convolution_gradient_states, destination_images)
            convolution_gradient_states = None
        given = "convolution_gradient_states", convolution_gradient_states
        return self._batched(
            command_buffer,
            (source_images,),
            destination_images,
            destination_states,
            destination_state_is_temporary,
            self._undone(*given, "destination_states", destination_states),
        )

    def _third(self, third: Any, destination: Any) -> Any:
        """The destination, where it came in the place of a state."""
        if destination is not None:
            raise MPSTypeError(self.name, "convolution_gradient_state", "must be a state, not an image", repr(third))
        return third

    def _undone(self, argument: str, given: object, left: str, results: object) -> MPSStateBatch | None:
        """The states of the convolution that is undone: those given, or those that the result states were made with."""
        if given is not None:
            return states_of(self.name, argument, given)
        made = states_of(self.name, left, results)
        state = made[0] if made is not None and len(made) else None
        if isinstance(state, MPSCNNConvolutionTransposeGradientState) and state.convolution_gradient_state:
            return MPSStateBatch([state.convolution_gradient_state] * len(made or ()))
        return None


def stuffed_window(window: Window, kernel_offset_x: int, kernel_offset_y: int) -> Window:
    """The windows of a transposed convolution over the zero-filled source: ``T = offset * stride + kernel_offset``."""
    return Window(x=_stuffed(window.x, kernel_offset_x), y=_stuffed(window.y, kernel_offset_y))


def _stuffed(axis: Axis, kernel_offset: int) -> Axis:
    return replace(axis, offset=axis.offset * axis.stride + kernel_offset)
