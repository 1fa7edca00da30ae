"""What convolution and transposed convolution share: channels, the fused neuron, precision, the state they leave."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from openmps.checks import Shown, flag, store
from openmps.core.kernel.activation import activated
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.kernel.configuration import KernelProperty, Setting
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.kernel.plan import Plan
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.lifetime import check_is_device
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.core.state.batch import MPSStateBatch, StateT
from openmps.core.state.gradient import ForwardRecord, MPSNNGradientState
from openmps.core.state.resources import Resource
from openmps.core.state.resources import Slot as Place
from openmps.core.state.state import Saved
from openmps.enumerated import member
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError
from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource, check_data_source
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.kernels.convolution.state import MPSCNNConvolutionWeightsAndBiasesState, buffer_of
from openmps.kernels.convolution.weighted import WeightedKernel
from openmps.kernels.convolution.weights import ConvolutionWeights
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.metal.memory import Memory
from openmps.metal.pending import Region, rename_unwritten
from openmps.ops.op import Value
from openmps.runtime.binding import CountedBinding, RowPart
from openmps.types import (
    MPSCNNConvolutionWeightsLayout,
    MPSDataType,
    MPSNNConvolutionAccumulatorPrecisionOption,
    MTLResourceOptions,
)

_HALF = MPSNNConvolutionAccumulatorPrecisionOption.HALF
_FLOAT = MPSNNConvolutionAccumulatorPrecisionOption.FLOAT
_FLOAT32 = MPSDataType.FLOAT32
_PRIVATE = MTLResourceOptions.STORAGE_MODE_PRIVATE
_SHARED = MTLResourceOptions.STORAGE_MODE_SHARED


def _accumulator(
    who: str, argument: str, value: MPSNNConvolutionAccumulatorPrecisionOption
) -> MPSNNConvolutionAccumulatorPrecisionOption:
    return member(who, argument, MPSNNConvolutionAccumulatorPrecisionOption, value, "must be HALF or FLOAT")


class ForwardChoice(NamedTuple):
    """What a gradient kernel takes over from the forward kernel, besides its windows."""

    weights_fp16: bool | None


class ConvolutionKernel(WeightedKernel, MPSCNNKernel[StateT]):
    """A kernel with one source image and the weights of a data source."""

    accumulator_precision_option = KernelProperty[MPSNNConvolutionAccumulatorPrecisionOption](
        _FLOAT,
        _accumulator,
        """Precision of sums (macOS 10.13.4). Default FLOAT.

        Sums are single precision at least either way; HALF lets a GPU round float32 factors to 10 bits (TF32), which is
        several times as fast. With `weights_fp16` set to True HALF gives a float16 accumulator's numbers instead:
        sums are rounded to float16 after each product, slowly.
        """,
    )
    _has_biases = Setting[bool]()

    _takes_all_channels = True
    _shown = ("input_feature_channels", "output_feature_channels")
    input_feature_channels = Shown[int]("_shape.inputs", "Channels read.")
    groups = Shown[int]("convolution_descriptor.groups", "Groups that input and output channels are divided into.")
    fused_neuron_descriptor = Shown[MPSNNNeuronDescriptor | None](
        "convolution_descriptor.fused_neuron_descriptor", "The neuron applied to the result, or None."
    )

    def __init__(
        self, device: MTLDevice, source: MPSCNNConvolutionDataSource | None, parameters: ConvolutionWeights | None
    ) -> None:
        super().__init__(device)
        self._take(source, parameters)
        if parameters is None:
            check_data_source(self.name, source)
            assert source is not None
            self.label = source.label()
        self._has_biases = self.parameters.has_biases
        self._read_descriptor(self.convolution_descriptor)

    # --- properties -------------------------------------------------------------------------------------------------

    output_feature_channels = Shown[int](
        "_shape.outputs",
        "Output channels of the weights; those of the result image, unless sub-pixels are made of them.",
    )

    @property
    def convolution_descriptor(self) -> MPSCNNConvolutionDescriptor:
        """A copy of the descriptor that the kernel was made with."""
        return self.parameters.descriptor.copy()

    def is_result_state_reused_across_batch(self) -> bool:
        """True: the parameter gradients are sums over the batch."""
        return True

    def export_weights_and_biases(
        self, command_buffer: CommandBuffer, result_state_can_be_temporary: bool = False
    ) -> MPSCNNConvolutionWeightsAndBiasesState:
        """A copy of the weights as they are when ``command_buffer`` runs: float32, OHWI, before folding and rounding.

        ``biases`` of the state is None if the convolution has none.
        """
        check_command_buffer(self.name, command_buffer, self.device)
        is_temporary = flag(self.name, "result_state_can_be_temporary", result_state_can_be_temporary)
        state = self.parameters.empty_state(command_buffer if is_temporary else None)
        self.parameters.export_to(self.name, command_buffer, state)
        return state

    # --- planning -----------------------------------------------------------------------------------------------------

    def _contract(self, at: LoweringContext, image: Value, weights: Value, biases: Value | None) -> Value:
        """The sums of one encode, with its biases."""
        raise NotImplementedError

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        weights = self._weights_in(at, 0, self.weights_fp16, *images)
        result = self._contract(at, images[0], weights, at.buffer("biases") if self._has_biases else None)
        return activated(at, self, result, self._shape.neuron, self._shape.outputs)

    def _parameters(self) -> Any:
        """What the gradient kernel takes over; its `weights_fp16` at least."""
        return ForwardChoice(self.weights_fp16)

    def _needed_channels(self, index: int, available: int) -> int:
        return self._shape.inputs

    def _result_channels(self, channels: tuple[int, ...]) -> int:
        return self._shape.outputs // self._shape.sub_pixels**2

    def _sums_in_half(self) -> bool:
        """Whether an encode gives the numbers of a float16 accumulator."""
        return self.weights_fp16 is True and self.accumulator_precision_option is _HALF

    def _allows_tf32(self) -> bool:
        return self.accumulator_precision_option is _HALF

    # --- encoding -----------------------------------------------------------------------------------------------------

    def _begin(self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None) -> None:
        """Check the precision, look after the weights' version, and tell it the state."""
        weights = self._weights or self.parameters
        if weights.precision is _FLOAT32 and self.accumulator_precision_option is _HALF:
            rule = "must be FLOAT where the data source's kernel_weights_data_type() is FLOAT32"
            remedy = "Set it to FLOAT, or return FLOAT16"
            raise MPSArgumentError(self.name, "accumulator_precision_option", rule, _HALF.name, remedy)
        held = weights.held
        if held.version < held.lineage.latest or held.has_warned:
            held.warn(self.name)
        state = None if destination_states is None else destination_states.shared
        if isinstance(state, ConvolutionGradientState):
            state.begin(self.name, plan.record, held.version)


class ConvolutionGradientState(MPSNNGradientState):
    """The parameter gradients of one batch: sums over its images and all pixels."""

    kernel: ConvolutionKernel
    """The kernel that made the state; for those who extend the framework."""
    _sums: tuple[ParameterSum, ParameterSum]
    weights_version: int | None = None
    """The kernel's `weights_version` at the forward encode; None before it."""
    pending: int = 0
    """Images that forward encodes have left here and no gradient encode has taken yet."""
    _forward_images = _differentiated = 0

    def __init__(self, device: MTLDevice, kernel: ConvolutionKernel) -> None:
        if not isinstance(device, MTLDevice):
            check_is_device(type(self).__name__, "device", device)
        if not isinstance(kernel, ConvolutionKernel):
            rule, remedy = "must be a convolution", "Use its result_state"
            raise MPSTypeError(type(self).__name__, "kernel", rule, type(kernel).__name__, remedy)
        weights, biases = kernel.parameters.counts
        sums = ParameterSum(weights, device), ParameterSum(biases, device)
        # Written at once: a training step makes one a layer.
        vars(self).update(saved=Saved(), _device=device, kernel=kernel, _sums=sums, _slots=[*sums])

    @classmethod
    def temporary_state(cls, *arguments: Any, **options: Any) -> NoReturn:
        """Raise: the state is made by the kernel."""
        remedy = "Use temporary_result_state of the convolution"
        raise MPSTypeError(cls.__name__, "temporary_state", "is not offered by this class", None, remedy)

    @property
    def gradient_for_weights(self) -> MTLBuffer:
        """dL/dW, float32, laid out as the data source's weights: OHWI, depthwise ``[O, rows, columns]``.

        Raises `MPSLifetimeError` if the state is temporary and was read for the last time.
        """
        return buffer_of(self, 0)

    @property
    def gradient_for_biases(self) -> MTLBuffer:
        """dL/db, float32, one number an output channel; there even if the convolution has no biases.

        Where a graph makes the state for an update of a convolution without biases, it is zeros.

        Raises `MPSLifetimeError` if the state is temporary and was read for the last time.
        """
        return buffer_of(self, 1)

    @property
    def gradient_for_weights_layout(self) -> MPSCNNConvolutionWeightsLayout:
        """OHWI, the only layout (macOS 10.15)."""
        return MPSCNNConvolutionWeightsLayout.OHWI

    @property
    def images(self) -> int:
        """Images of the batch that the state was made for; 0 if nobody said."""
        return max(self._forward_images, 0 if self.source_extent is None else self.source_extent.images)

    # --- for the kernels ----------------------------------------------------------------------------------------------

    def begin(self, who: str, record: ForwardRecord, weights_version: int) -> None:
        """A forward encode leaves this state.

        Raises if the state's batch is over, or if it holds a piece of the batch that was read in another way: there is
        one record, so the gradient of that piece would be another one's.
        """
        if self._differentiated and self._differentiated >= self.images:
            self._refuse(who, "destination_state")
        held = self._record
        if self.pending > 0 and held is not None and held is not record and not _alike(held, record):
            rule = "must have the gradient of its last piece encoded before a piece that is read in another way"
            remedy = "Keep offset, edges and clip rectangle for all pieces of a batch, or make a state for each"
            raise MPSArgumentError(who, "destination_state", rule, self.name, remedy)
        store(self, "pending", self.pending + record.images)
        store(self, "_forward_images", max(self._forward_images, record.images))
        store(self, "weights_version", weights_version)

    def add(self, who: str, images: int) -> None:
        """Parameter gradients of ``images`` images are encoded. Raises if the state's batch has not so many left."""
        differentiated = self._differentiated + images
        # Most often a forward encode has counted as many; `images` asks the source's extent, too.
        if differentiated > self._forward_images and differentiated > (self.images or images):
            self._refuse(who, "gradient_state")
        store(self, "_differentiated", differentiated)

    def gradient_sums(self) -> tuple[ParameterSum, ParameterSum]:
        """Where the gradients of weights and of biases are added up; the reads were checked already."""
        if self._counts is not None and not self._sums[0].is_private:
            command_buffer = self._counts.command_buffer
            provides = getattr(command_buffer, "heap_provider", None) is not None
            for sums in self._sums:
                sums.is_private = True
                if provides:
                    sums.get(sums.device, command_buffer)
        return self._sums

    def update_operands(self) -> tuple[ParameterSum, ParameterSum]:
        """See `MPSState`: its sums."""
        return self._sums

    def _refuse(self, who: str, argument: str) -> NoReturn:
        raise MPSLifetimeError(
            who,
            argument,
            f"is good for one batch, and must not see more than the {self.images} image(s) that it was made for",
            f"{self.name} with the gradients of {self._differentiated} already",
            "Make a new state for each batch, with destination_state_is_temporary or result_state_batch; a batch that "
            "comes in pieces takes the state that result_state_batch makes for all of it",
        )


def _alike(first: ForwardRecord, second: ForwardRecord) -> bool:
    """Whether two forward encodes read and wrote their images alike, however many these were."""
    a, b = first.sources[0], second.sources[0]
    return (a.window, a.edge_mode, a.channel, a.extent[:3], first.target, first.parameters) == (
        b.window, b.edge_mode, b.channel, b.extent[:3], second.target, second.parameters
    )  # fmt: skip


class ParameterSum(Place, CountedBinding, Memory):
    """A buffer that gradients are added up in: the first becomes its memory, the others are added to it.

    It is made when the first gradient comes, unless somebody has asked for it by then.
    """

    __slots__ = ("__weakref__", "count", "device", "is_private")

    is_persistent = False
    is_memory = adds = True

    def __init__(self, count: int, device: MTLDevice) -> None:
        self.size, self.descriptor, self.resource = 4 * count, None, None
        self.count, self.device, self.is_private = count, device, False

    @property
    def present(self) -> Resource | None:
        """The buffer, once somebody has asked for it."""
        return self.resource

    def shape_key(self) -> Hashable:
        """How many numbers there are."""
        return self.count

    def empty_like(self) -> ParameterSum:
        """Another sum of this kind, without a buffer."""
        return ParameterSum(self.size // 4, self.device)

    @property
    def is_replaced(self) -> bool:
        """Whether somebody has asked for the buffer."""
        return self.resource is not None

    def memories(self) -> tuple[ParameterSum]:
        """Itself."""
        return (self,)

    def view_key(self) -> Hashable:
        """How many numbers, and whether they are its own."""
        return self.count, self.resource is None

    @property
    def row_part(self) -> RowPart:
        """See `MemoryBinding`: all of it."""
        return RowPart(0, (self.size // 4,), is_whole=True)

    def rebind(self, memories: Sequence[ParameterSum]) -> ParameterSum:
        """The other sum."""
        return memories[0]

    def value(self) -> Tensor:
        """The sums so far, sharing the buffer's memory; zeros if nothing was added."""
        return self._buffer().memory(torch.float32)

    def regions(self) -> tuple[Region]:
        """The buffer, if anybody has asked for it; else a place that nobody can read."""
        found = self.resource
        return (found.region(0, found.length) if isinstance(found, MTLBuffer) else Region(self),)

    def keep(self, fresh: Resource) -> Resource:
        """See `Value`: the buffer takes the place of the sum, with what was recorded and will never be added."""
        found = super().keep(fresh)
        rename_unwritten(self, found)
        return found

    def _buffer(self) -> MTLBuffer:
        found = self.resource
        if found is None:
            found = self.keep(MTLBuffer(self.device, self.size, _PRIVATE if self.is_private else _SHARED))
        assert isinstance(found, MTLBuffer)
        return found

    def take(self, value: Tensor, *, is_shared: bool) -> None:
        """Add the gradients of one encode: a batch may come in pieces."""
        flat, buffer = value.reshape(-1), self._buffer()
        own = flat.clone() if is_shared and not buffer.is_allocated else flat
        if (is_shared and own is flat) or not buffer.bind_unless_allocated(own):
            buffer.memory(torch.float32).add_(flat)
