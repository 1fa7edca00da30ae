"""MPSCNNConvolutionTranspose (MPSCNNConvolution.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from torch import Tensor

from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.arguments import pixel_distance, single, states_of
from openmps.core.kernel.checks import Images, check_states
from openmps.core.kernel.encode import Operation, Plan
from openmps.core.kernel.property import KernelProperty
from openmps.core.padding.policy import mirror_kernel_offset
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSTypeError
from openmps.kernels.convolution.base import ConvolutionKernel, engine_groups
from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor, refuse_sub_pixels
from openmps.kernels.convolution.forward import MPSCNNConvolution
from openmps.kernels.convolution.state import (
    MPSCNNConvolutionGradientState,
    MPSCNNConvolutionTransposeGradientState,
)
from openmps.ops.convolution_half import convolution_transpose_half
from openmps.ops.convolution_transpose import convolution_transpose
from openmps.ops.geometry import Axis, Window
from openmps.types import MPSDataType, MPSOffset

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


class TransposePlacement(NamedTuple):
    """Where the windows of one encode lay: what the gradient kernel takes over."""

    offset: MPSOffset
    kernel_offset_x: int
    kernel_offset_y: int


class MPSCNNConvolutionTranspose(ConvolutionKernel):
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

    _gradient_state_class = MPSCNNConvolutionTransposeGradientState
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
        assert self._data_source is not None
        return self._data_source

    @property
    def is_backwards(self) -> bool:
        """True: strides enlarge the result."""
        return True

    # --- the encode path's hooks ------------------------------------------------------------------------------------

    def _place(self, offset_x: int, offset_y: int, kernel_offset_x: int, kernel_offset_y: int) -> None:
        super()._place(offset_x, offset_y, kernel_offset_x, kernel_offset_y)
        self.kernel_offset_x, self.kernel_offset_y = kernel_offset_x, kernel_offset_y

    def _adjust_descriptor(
        self, descriptor: MPSImageDescriptor, source_images: Sequence[MPSImage], source_states: Sequence[MPSState]
    ) -> None:
        """Undo the convolution whose state is given: its source's size, and the windows of its adjoint."""
        state = self._paired(source_states)
        if state is None:
            return
        record = state.forward()
        forward, target = record.sources[0], record.target
        self._sources[0].offset = MPSOffset(target.x, target.y, self._sources[0].offset.z)
        window = self._sources[0].window(forward.extent, 1, 1)
        self.kernel_offset_x = mirror_kernel_offset(forward.window.x.offset, window.x.extent)
        self.kernel_offset_y = mirror_kernel_offset(forward.window.y.offset, window.y.extent)
        descriptor.width, descriptor.height = forward.extent.width, forward.extent.height

    def _source_record(self, index: int, extent: Extent, width: int, height: int) -> SourceRecord:
        record = super()._source_record(index, extent, width, height)
        return replace(record, window=stuffed_window(record.window, self.kernel_offset_x, self.kernel_offset_y))

    def _parameters(self) -> TransposePlacement:
        return TransposePlacement(self.offset, self.kernel_offset_x, self.kernel_offset_y)

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        window = sources[0].window
        parameters, groups, as_float16 = self._weights, engine_groups(self.convolution_descriptor), self.weights_fp16
        finish, allow_tf32, in_half = self._finish(), self._allows_tf32(), self._sums_in_half()

        def operation(values: tuple[Tensor, ...], saved: Any) -> tuple[Tensor, None]:
            weights, biases = parameters.used(as_float16), parameters.biases
            if in_half:
                return finish(convolution_transpose_half(values[0], weights, biases, window, groups=groups)), None
            return finish(
                convolution_transpose(values[0], weights, biases, window, groups=groups, allow_tf32=allow_tf32)
            ), None

        return operation

    # --- states -----------------------------------------------------------------------------------------------------

    def make_state(self) -> MPSCNNConvolutionTransposeGradientState:
        """A new state for the gradients of one batch."""
        return MPSCNNConvolutionTransposeGradientState(self.device, self)

    def _paired(self, source_states: Sequence[Any] | None) -> MPSCNNConvolutionGradientState | None:
        """The state of the convolution that is undone, from states or batches of states; None if there are none."""
        flat: list[Any] = []
        for each in source_states or ():
            flat.extend(each if isinstance(each, Sequence) else [each])
        for state in flat:
            if not isinstance(state, MPSCNNConvolutionGradientState) or not isinstance(state.kernel, MPSCNNConvolution):
                raise MPSTypeError(
                    self.name,
                    "convolution_gradient_state",
                    "must be an MPSCNNConvolutionGradientState of an MPSCNNConvolution",
                    repr(state),
                    "Pass the state that the convolution's encode left",
                )
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

    def _keeper(
        self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None
    ) -> Callable[[Any], None] | None:
        self._pair(destination_states, source_states)
        return super()._keeper(plan, source_states, destination_states)

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
        if _are_images(convolution_gradient_state):
            destination_image = self._third(convolution_gradient_state, destination_image)
            convolution_gradient_state = None
        if destination_image is not None:
            single(self.name, "destination_image", destination_image)
        destination, states = self._encode(
            command_buffer,
            single(self.name, "source_image", source_image),
            states_of(self.name, "convolution_gradient_state", convolution_gradient_state),
            destination_image,
            states_of(self.name, "destination_state", destination_state),
            destination_state_is_temporary,
        )
        assert isinstance(destination, MPSImage)
        if destination_state_is_temporary is None:
            return destination
        return destination, states[0] if states is not None else None

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
        if _are_images(convolution_gradient_states):
            destination_images = self._third(convolution_gradient_states, destination_images)
            convolution_gradient_states = None
        given = None
        if destination_images is not None:
            given = as_batch(self.name, "destination_images", destination_images)
        destination, states = self._encode(
            command_buffer,
            as_batch(self.name, "source_images", source_images),
            states_of(self.name, "convolution_gradient_states", convolution_gradient_states),
            given,
            states_of(self.name, "destination_states", destination_states),
            destination_state_is_temporary,
        )
        assert isinstance(destination, MPSImageBatch)
        return destination if destination_state_is_temporary is None else (destination, states)

    def _third(self, third: Any, destination: Any) -> Any:
        """The destination, where it came in the place of a state."""
        if destination is not None:
            raise MPSTypeError(self.name, "convolution_gradient_state", "must be a state, not an image", repr(third))
        return third

    def _encode(
        self,
        command_buffer: CommandBuffer,
        source: Images,
        given: MPSStateBatch | None,
        destination: Images | None,
        results: MPSStateBatch | None,
        make_state: bool | None,
    ) -> tuple[Images, MPSStateBatch | None]:
        if given is None and results is not None and len(results):
            state = results[0]
            if isinstance(state, MPSCNNConvolutionTransposeGradientState) and state.convolution_gradient_state:
                given = MPSStateBatch([state.convolution_gradient_state] * len(results))
        return self._run(
            command_buffer,
            (source,),
            destination,
            source_states=given,
            destination_states=results,
            make_state=make_state,
        )


def stuffed_window(window: Window, kernel_offset_x: int, kernel_offset_y: int) -> Window:
    """The windows of a transposed convolution over the zero-filled source: ``T = offset * stride + kernel_offset``."""
    return Window(x=_stuffed(window.x, kernel_offset_x), y=_stuffed(window.y, kernel_offset_y))


def _stuffed(axis: Axis, kernel_offset: int) -> Axis:
    return replace(axis, offset=axis.offset * axis.stride + kernel_offset)


def _are_images(value: object) -> bool:
    if isinstance(value, MPSImage | MPSImageBatch):
        return True
    return isinstance(value, Sequence) and any(isinstance(each, MPSImage) for each in value)  # pyright: ignore[reportUnknownVariableType]
