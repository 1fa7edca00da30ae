"""What every kernel with the weights of a convolution shares: where they come from, how they follow their source."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

from openmps.checks import Shown, of_kind, optional_flag
from openmps.core.data_source import copy_of
from openmps.core.kernel.base import KernelProperties
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.kernel.configuration import KernelProperty, Setting
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.neuron import NeuronParameters
from openmps.core.state.batch import MPSStateBatch
from openmps.core.weight_versions import Held, HoldsWeights
from openmps.errors import MPSArgumentError, MPSTrainingWarning, warn_user
from openmps.kernels.convolution.data_source import WEIGHT_TYPES, MPSCNNConvolutionDataSource, load_weights
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor, sub_pixel_factor
from openmps.kernels.convolution.state import MPSCNNConvolutionWeightsAndBiasesState
from openmps.kernels.convolution.weights import ConvolutionWeights, weights_name
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.op import Value
from openmps.runtime.binding import Binding
from openmps.runtime.derived import Dependents
from openmps.types import MPSDataType
from openmps.types import MPSImageFeatureChannelFormat as Format


class ConvolutionShape(NamedTuple):
    """What plans depend on of a convolution's descriptor, besides its windows."""

    inputs: int
    outputs: int
    groups: int
    """As the engine counts them: a depthwise convolution has one an input channel."""
    sub_pixels: int
    neuron: NeuronParameters | None
    weights: tuple[int, int, int, int]
    """The shape of the weights, OHWI."""

    @classmethod
    def of(cls, descriptor: MPSCNNConvolutionDescriptor) -> ConvolutionShape:
        """That of a valid descriptor."""
        fused, inputs = descriptor.fused_neuron_descriptor, int(descriptor.input_feature_channels)
        rows, columns = int(descriptor.kernel_height), int(descriptor.kernel_width)
        outputs, _, _, each = descriptor.weight_shape()
        return cls(
            inputs,
            int(outputs),
            inputs if descriptor.channel_multiplier else int(descriptor.groups),
            int(sub_pixel_factor(descriptor)),
            None if fused is None else fused.parameters(),
            (int(outputs), rows, columns, int(each)),
        )


class WeightedKernel(KernelProperties, HoldsWeights):
    """A kernel with the weights of a data source, or of another kernel over the same one."""

    weights_fp16 = KernelProperty[bool | None](
        None,
        optional_flag,
        """Whether the weights are rounded to float16, once, after folding. None, the default: where the source image of
        the forward kernel is FLOAT16, unless the data source's `kernel_weights_data_type` says FLOAT32; a gradient
        kernel with None does as the forward kernel whose state it takes. True: always. False: only where the data
        source calls for FLOAT16. Our addition.""",
    )

    _bound_to = Shown[ConvolutionWeights | None]("_weights", "What its functions are bound to.")
    _weight_types: tuple[MPSDataType, ...] = WEIGHT_TYPES
    _shape = Setting[ConvolutionShape]()

    _data_source: MPSCNNConvolutionDataSource | None
    _weights: ConvolutionWeights | None
    _has_warned: bool

    def _take(self, source: MPSCNNConvolutionDataSource | None, weights: ConvolutionWeights | None) -> None:
        """Begin with a data source and with weights, one of which may be missing."""
        self._data_source, self._has_warned = source, False
        self._hold(weights)

    def _hold(self, weights: ConvolutionWeights | None) -> None:
        self._weights = weights
        self._bound: dict[str, Binding] = {}
        self._property_version.advance()

    def _read_descriptor(self, descriptor: MPSCNNConvolutionDescriptor) -> None:
        """Take windows and channels from a valid descriptor."""
        self._change_sources(
            kernel_width=int(descriptor.kernel_width),
            kernel_height=int(descriptor.kernel_height),
            stride_x=int(descriptor.stride_in_pixels_x),
            stride_y=int(descriptor.stride_in_pixels_y),
            dilation_x=int(descriptor.dilation_rate_x),
            dilation_y=int(descriptor.dilation_rate_y),
        )
        self._shape = ConvolutionShape.of(descriptor)

    # --- weights ------------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> ConvolutionWeights:
        """The weights on the device, read when they are first asked for; for those who extend the framework."""
        weights = self._weights
        if weights is None:
            weights = ConvolutionWeights.load(self.name, self._device, self._source_of_weights(), self._weight_types)
            self._weights = weights
            self._property_version.advance()
        return weights

    def _source_of_weights(self) -> MPSCNNConvolutionDataSource:
        if self._data_source is None:
            rule = "is needed to reload"
            raise MPSArgumentError(self.name, "data_source", rule, None, "Make the kernel with weights=<data source>")
        return self._data_source

    def share_parameters(self, weights: ConvolutionWeights) -> None:
        """Use another kernel's weights, so that one reload serves both; for those who schedule kernels."""
        self._hold(weights)

    def reload_weights_and_biases_from_data_source(self) -> None:
        """Read the data source again, at once; queued work is not waited for (macOS 10.14; transposed 10.15)."""
        self.parameters.reload(self.name, self._source_of_weights(), self._weight_types)

    def reload_weights_and_biases(
        self,
        command_buffer: CommandBuffer | None = None,
        state: MPSCNNConvolutionWeightsAndBiasesState | None = None,
        *,
        data_source: MPSCNNConvolutionDataSource | None = None,
    ) -> None:
        """Take the weights of ``state`` when ``command_buffer`` runs; takes one read of a temporary state.

        Called with ``data_source`` (deprecated, the argument is not looked at) or with nothing, reads the kernel's own
        data source at once.
        """
        if command_buffer is None and state is None:
            self.reload_weights_and_biases_from_data_source()
            return
        remedy = "Pass the state of the new weights, or call reload_weights_and_biases_from_data_source()"
        state = of_kind(self.name, "state", state, MPSCNNConvolutionWeightsAndBiasesState, remedy)
        given = check_command_buffer(self.name, command_buffer, self.device)
        state.check_usable(self.name, "state", given)
        self.parameters.reload_from(self.name, given, state)
        state.count_read()

    @property
    def weights_version(self) -> int:
        """Number of the weights that the kernel holds, counted over the life of its data source. Our addition.

        1 for the first that were read, 0 while a gradient kernel has not read them; each change that a kernel of the
        data source is given begins a new version, and kernels that are given the same one agree. Follows encodes and
        reloads as the program makes them, not as they run.
        """
        return 0 if self._weights is None else self._weights.held.version

    @property
    def held_weights(self) -> tuple[Held]:
        """The version that encodes use, shared with the kernels of the same graph; for those who schedule kernels."""
        return (self.parameters.held,)

    def holds_stale_weights(self) -> bool:
        """Whether the weights or biases held are other numbers than the data source gives now. Our addition.

        Reads the data source, and the weights as they are in memory: call it when the command buffers are done. True
        also where the kernel was trained on the device and its data source does not bring the weights back. Always
        False without a data source, and until a gradient kernel's weights are read, at its first encode.
        """
        held, source = self._weights, self._data_source
        if held is None or source is None:
            return False
        return not held.equal(load_weights(self.name, source, self._weight_types))

    def _warn(self, is_wrong: bool, message: Callable[[], str]) -> None:
        """Warn of weights that are not those expected, at the first encode that uses them."""
        if is_wrong and not self._has_warned:
            warn_user(message(), MPSTrainingWarning)
        self._has_warned = is_wrong

    def dependents(self, name: str) -> Dependents:
        """What follows from the memory that an input of its functions is bound to; for those who schedule kernels."""
        return self.parameters.dependents

    # --- copies -------------------------------------------------------------------------------------------------------

    def copy_over(
        self, device: MTLDevice, data_source: MPSCNNConvolutionDataSource, weights: ConvolutionWeights
    ) -> Self:
        """A copy whose data source and weights are there already; for those who schedule kernels."""
        twin = self._duplicate(device)
        super(WeightedKernel, twin)._unshare()
        twin._data_source = data_source
        twin._hold(weights)
        return twin

    def _unshare(self) -> None:
        super()._unshare()
        if self._data_source is not None:
            self._data_source = copy_of(self._data_source, self.device)
        self._hold(None if self._weights is None else self._weights.copy(self.device, self._data_source))

    # --- planning and encoding ----------------------------------------------------------------------------------------

    def _weights_in(self, at: LoweringContext, source: int, choice: bool | None, *operands: Value) -> Value:
        """The weights that these slots are multiplied with; ``source`` is the place of the forward source."""
        return at.buffer(
            weights_name(
                choice,
                of_float16_image=at.shapes[source].channel_format is Format.FLOAT16,
                as_float16=self._configuration.device_type == "cuda" and all(each.is_half for each in operands),
            )
        )

    def _memory(self, name: str, states: MPSStateBatch | None) -> Binding:
        bound = self._bound.get(name)
        if bound is None:
            bound = self._bound[name] = self.parameters.bound(name)
        return bound
