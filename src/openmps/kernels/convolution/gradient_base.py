"""What the gradients of convolution and of transposed convolution share: weights, options, the state's sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NoReturn

from openmps.checks import Shown, store
from openmps.core.kernel.configuration import KernelProperty, Setting
from openmps.core.kernel.gradient import Given, MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext
from openmps.core.kernel.plan import Plan
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import SourceRecord
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.convolution.base import ConvolutionGradientState
from openmps.kernels.convolution.data_source import MPSCNNConvolutionDataSource, describe
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor, refuse_sub_pixels
from openmps.kernels.convolution.forward import MPSCNNConvolutionGradientState
from openmps.kernels.convolution.weighted import WeightedKernel
from openmps.metal.device import MTLDevice
from openmps.ops.op import Value
from openmps.runtime.binding import Binding
from openmps.types import MPSCNNConvolutionGradientOption

_DATA = int(MPSCNNConvolutionGradientOption.GRADIENT_WITH_DATA)
_PARAMETERS = int(MPSCNNConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS)
_SUMS = {"weights_gradient": 0, "biases_gradient": 1}
"""Outputs of the function, and which of the state's sums they are added to."""
_ALL_SUMS = tuple(_SUMS)


def _option(who: str, argument: str, value: MPSCNNConvolutionGradientOption) -> MPSCNNConvolutionGradientOption:
    if isinstance(value, bool) or value not in range(4):
        rule = "must be GRADIENT_WITH_DATA, GRADIENT_WITH_WEIGHTS_AND_BIAS or ALL"
        raise MPSArgumentError(who, argument, rule, repr(value))
    return MPSCNNConvolutionGradientOption(value)


class ConvolutionGradientKernel(WeightedKernel, MPSCNNGradientKernel):
    """A gradient kernel with the weights of a data source; parameter gradients are added to the state."""

    _strides = range(1, 2**63)
    _state_class: ClassVar[type[ConvolutionGradientState]] = MPSCNNConvolutionGradientState

    gradient_option = KernelProperty[MPSCNNConvolutionGradientOption](
        MPSCNNConvolutionGradientOption.ALL,
        _option,
        """Which gradients are computed: data, weights and bias, or ALL, the default.

        Parameter gradients alone leave the result image as it is; data gradients alone leave the state as it is.
        """,
    )

    _sums_biases = Setting[bool]()
    """Whether the gradient of the biases is computed, too; a graph asks for none where there are no biases."""

    source_gradient_feature_channels = Shown[int](
        "_shape.outputs", "Channels of the incoming gradient: the forward output channels."
    )
    source_image_feature_channels = Shown[int]("_shape.inputs", "Channels of the forward source.")
    groups = Shown[int]("_descriptor.groups", "Groups of the forward kernel.")

    def __init__(self, device: MTLDevice, weights: MPSCNNConvolutionDataSource) -> None:
        super().__init__(device)
        self._sums_biases = True
        self._take(weights, None)
        self._descriptor = describe(self.name, weights)
        refuse_sub_pixels(self.name, self._descriptor)
        self.label = weights.label()
        self._read_descriptor(self._descriptor)

    @property
    def convolution_descriptor(self) -> MPSCNNConvolutionDescriptor:
        """A copy of the data source's descriptor."""
        return self._descriptor.copy()

    @property
    def data_source(self) -> MPSCNNConvolutionDataSource:
        """The data source of the forward kernel."""
        return self._source_of_weights()

    @property
    def is_state_modified(self) -> bool:
        """True: parameter gradients are added to the state."""
        return True

    # --- planning -----------------------------------------------------------------------------------------------------

    def _needed_channels(self, index: int, available: int) -> int:
        return self._shape.inputs if index else self._shape.outputs

    def _check_channels(self, sources: tuple[SourceRecord, ...]) -> None:
        """The weights say how many channels there must be."""

    def _gradients(
        self, at: GradientLoweringContext, gradient: Value, source: Value, weights: Value
    ) -> tuple[Value, Value, Value]:
        """The gradients of source, weights and biases."""
        raise NotImplementedError

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value | None:
        option = int(self.gradient_option)
        if option & _PARAMETERS and at.given is None:
            self._refuse_state("no state")
        data, *sums = self._gradients(at, gradient, source, self._weights_in(at, 1, self._choice(at), gradient, source))
        if option & _PARAMETERS:
            for name, slot in zip(_ALL_SUMS if self._sums_biases else _ALL_SUMS[:1], sums, strict=False):
                at.gives(name, slot)
        return data if option & _DATA else None

    def _choice(self, at: GradientLoweringContext) -> bool | None:
        """Its own `weights_fp16`, or that of the forward kernel whose state is taken."""
        own, given = self.weights_fp16, at.given
        if own is not None or given is None or not given.records:
            return own
        return getattr(given.record.parameters, "weights_fp16", None)

    # --- encoding -----------------------------------------------------------------------------------------------------

    def _given(self, states: MPSStateBatch) -> Given:
        if int(self.gradient_option) & _PARAMETERS:
            self._state_of(states)
        state = states.shared
        if not isinstance(state, ConvolutionGradientState):
            return super()._given(states)
        record = state.record
        return Given((), 0, empty=repr(state)) if record is None else Given((record,), record.images)

    def _state_of(self, states: MPSStateBatch) -> ConvolutionGradientState:
        """The state that parameter gradients are added to; raises unless it is there and fits."""
        state = states.shared
        if not isinstance(state, ConvolutionGradientState) or not isinstance(state.kernel, self._forward_kernels):
            self._refuse_state(repr(states))
        mine, theirs = self._shape.weights, state.kernel.parameters.shape
        if mine != theirs:
            rule = f"must be of a convolution with weights {mine}"
            remedy = "Pass the state of the forward kernel of the same data source"
            raise MPSArgumentError(self.name, "gradient_state", rule, f"{theirs}, made by {state.kernel.name}", remedy)
        return state

    def _refuse_state(self, got: str) -> NoReturn:
        rule = f"must be the one {self._state_class.__name__} of the batch"
        remedy = "Pass the state that the forward encode made, or set gradient_option to GRADIENT_WITH_DATA"
        raise MPSTypeError(self.name, "gradient_state", rule, got, remedy)

    def _begin(self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None) -> None:
        """Count the state's images, and warn if the weights are not those of the forward encode."""
        state = None if source_states is None else source_states.shared
        if not isinstance(state, ConvolutionGradientState):
            return
        store(state, "pending", state.pending - plan.images)
        held, theirs = (self._weights or self.parameters).held, state.weights_version
        if theirs != held.version or self._has_warned:
            is_newer = theirs is not None and theirs > held.version
            if is_newer and not self._has_warned:
                held.holds_newest()  # Where the numbers are equal, they are of that version from now on.
            is_other = theirs not in (None, held.version)
            is_same_source = held.lineage is state.kernel.parameters.held.lineage
            if not is_other or is_same_source:
                self._warn(is_other, lambda: held.differs_message(self.name, theirs or 0, state.kernel.name))
        if int(self.gradient_option) & _PARAMETERS:
            state.add(self.name, plan.images)

    def _output_binding(self, name: str, states: MPSStateBatch | None) -> Binding:
        return self._sums_of(states)[_SUMS[name]]

    def output_bindings(self, names: Sequence[str], states: MPSStateBatch | None) -> Sequence[Binding]:
        """The sums of the state."""
        sums = self._sums_of(states)
        return sums if tuple(names) == _ALL_SUMS else [sums[_SUMS[name]] for name in names]

    def _sums_of(self, states: MPSStateBatch | None) -> Sequence[Binding]:
        state = None if states is None else states.shared
        if not isinstance(state, ConvolutionGradientState):
            self._refuse_state(repr(states))
        return state.gradient_sums()
