"""The gradients of batch normalization, in two steps (MPSCNNBatchNormalization.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.activation import activation_gradient
from openmps.core.kernel.checks import Images
from openmps.core.kernel.gradient import Given, MPSCNNGradientKernel
from openmps.core.kernel.lowering_context import GradientLoweringContext
from openmps.core.kernel.plan import Plan
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.state import MPSState
from openmps.kernels.batch_normalization.forward import (
    MPSCNNBatchNormalization,
    MPSCNNBatchNormalizationState,
    check_state,
)
from openmps.kernels.batch_normalization.stages import (
    FusedNeuron,
    OfBatches,
    check_usable,
    normalized,
    refuse_arguments,
    statistics,
)
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.normalization.batch_normalization import DataGradient, ParameterSums
from openmps.ops.normalization.sample_variance import ScaledRow, sample_factor
from openmps.ops.op import Value
from openmps.runtime.binding import Numbers
from openmps.selectors import takes
from openmps.types import MPSOffset, MPSRectNoClip

_USE_OF_SUMS = "Use encode_batch(command_buffer, source_gradients, source_images, batch_normalization_state)"
_USE_OF_GRADIENT = "Use encode(command_buffer, source_gradient, source_image, batch_normalization_state)"
_SUMS = ("gradient_for_gamma", "gradient_for_beta")


class _Use(NamedTuple):
    """What a plan depends on of the state."""

    epsilon: float
    has_statistics: bool
    joins: bool = False
    """Whether the sums join those before."""


class _NormalizationGradient(FusedNeuron, MPSCNNGradientKernel, of=MPSCNNBatchNormalization):
    """What both gradient kernels share: the fused neuron, and one state for all pieces of a batch."""

    @takes()
    def __init__(self, device: MTLDevice, fused_neuron_descriptor: MPSNNNeuronDescriptor | None = None) -> None:
        super().__init__(device)
        self._fuse(fused_neuron_descriptor)

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        check_usable(self.name, states, command_buffer)

    def _given(self, states: MPSStateBatch) -> Given:
        state = check_state(self.name, states)
        records = () if state.record is None else (state.record,)
        return Given(records, len(states), more=_Use(state.epsilon, state.has_statistics))

    def _adjusted(self, extent: Extent, shapes: tuple[Shape, ...], given: Given | None) -> Extent:
        adjusted = super()._adjusted(extent, shapes, given)
        if given is None or not given.records:
            return adjusted
        # The record is of the piece that was normalized last; others may have other numbers of images.
        found = tuple(shape.extent.images for shape in shapes)
        expected = tuple(each.images for each in self._forward_extents(given.record))
        if given.record.is_batch or found != expected:
            for index, source in enumerate(self._sources):
                self._change_source(index, offset=MPSOffset(source.offset.x, source.offset.y, 0))
            self.clip_rect = MPSRectNoClip
        return adjusted._replace(images=shapes[1].extent.images)

    def _before_neuron(self, at: GradientLoweringContext, gradient: Value, source: Value, use: _Use) -> Value:
        """The gradient of what the neuron was given."""
        if self._neuron is None or self._neuron.is_identity:
            return gradient
        z = normalized(at, at.read(source), use.epsilon, has_statistics=use.has_statistics)
        return activation_gradient(at, self, gradient, z, self._neuron, at.sources[1].channels)

    def _memory(self, name: str, states: MPSStateBatch | None) -> Numbers:
        return check_state(self.name, states).used(name)


class MPSCNNBatchNormalizationStatisticsGradient(OfBatches, _NormalizationGradient):
    """The parameter gradients of a batch normalization, into its state (MPSCNNBatchNormalization.h, macOS 10.13.4).

    With ``xhat = (X - mean) / sqrt(variance + epsilon)``, ``z = gamma xhat + beta`` and ``g = G neuron'(z)``::

        gradient_for_gamma = sum g xhat        gradient_for_beta = sum g

    over all pixels of the batch, never means. A batch may come in pieces: encode each before the first
    `MPSCNNBatchNormalizationGradient`. ``fused_neuron_descriptor`` is the forward kernel's (macOS 10.14). Offsets and
    channels are those of the last normalization with the state, else those of the properties.

    After the example of `MPSCNNBatchNormalization`:

    >>> from openmps import MPSCNNBatchNormalizationStatisticsGradient
    >>> flow = MPSImageBatch.from_numpy(device, np.float32([1, 0]).reshape(2, 1, 1, 1))
    >>> command_buffer = device.new_command_queue().command_buffer()
    >>> sums = MPSCNNBatchNormalizationStatisticsGradient(device)
    >>> sums.encode_batch(command_buffer, flow, images, state)
    >>> command_buffer.commit()
    >>> command_buffer.wait_until_completed()
    >>> state.gradient_for_gamma().contents().view(np.float32), state.gradient_for_beta().contents().view(np.float32)
    (array([-1.], dtype=float32), array([1.], dtype=float32))
    """

    _use = _USE_OF_SUMS

    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[MPSImage],
        source_images: Sequence[MPSImage],
        batch_normalization_state: MPSCNNBatchNormalizationState | Sequence[MPSState] | None = None,
        **unavailable: object,
    ) -> None:
        """Record that the parameter gradients of a batch, or of a piece of one, go into a state.

        ``source_gradients`` are those of the normalization's results, ``source_images`` its sources. Takes one read of
        a temporary state.
        """
        refuse_arguments(self.name, unavailable, _USE_OF_SUMS)
        sources = (
            as_batch(self.name, "source_gradients", source_gradients),
            as_batch(self.name, "source_images", source_images),
        )
        states = MPSStateBatch([check_state(self.name, batch_normalization_state)] * len(sources[0]))
        self._check_operands(command_buffer, sources, None, states, None)
        given, stacks = self._given(states), tuple(images.whole() for images in sources)
        shapes = tuple(stack.shape for stack in stacks)
        self._sized_for(shapes, given, is_batch=True)
        plan = self.plan(shapes, shapes[1], given, is_batch=True)
        self._record(command_buffer, plan, stacks, None, states, None)
        for each in (*sources, *states.counted()):
            each.count_read()

    def _given(self, states: MPSStateBatch) -> Given:
        given, state = super()._given(states), check_state(self.name, states)
        return given._replace(more=_Use(state.epsilon, state.has_statistics, state.joins[1]))

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> None:
        use: _Use = at.given.more
        flow = self._before_neuron(at, gradient, source, use)
        before = [at.buffer(name) for name in _SUMS] if use.joins else []
        rows = statistics(at, use.has_statistics)
        for name, found in zip(_SUMS, ParameterSums(use.epsilon)(flow, at.read(source), *rows, *before), strict=True):
            at.gives(name, found)

    def _begin(self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None) -> None:
        state = check_state(self.name, source_states)
        state.check_channels(self.name, plan.sources[1].channels)
        state.add_gradients(plan.images)

    def _output_binding(self, name: str, states: MPSStateBatch | None) -> Numbers:
        return check_state(self.name, states).own(name)


class MPSCNNBatchNormalizationGradient(_NormalizationGradient):
    """The gradient of a batch normalization's source (MPSCNNBatchNormalization.h, macOS 10.13.4).

    With ``xhat = (X - mean) / sqrt(variance + epsilon)``, ``z = gamma xhat + beta``, ``g = G neuron'(z)`` and M, the
    pixels that the statistics were made of::

        dX = gamma / sqrt(variance + epsilon) (g - gradient_for_beta / M - xhat gradient_for_gamma / M)

    The state must have gone through `MPSCNNBatchNormalizationStatisticsGradient` for all images of the batch. Where it
    holds no statistics of a batch, mean and variance are constants: ``dX = gamma / sqrt(variance + epsilon) g``.
    ``fused_neuron_descriptor`` is the forward kernel's (macOS 10.14).

    After the example of `MPSCNNBatchNormalizationStatisticsGradient`; two numbers are normalized to -1 and 1 whatever
    they are:

    >>> from openmps import MPSCNNBatchNormalizationGradient
    >>> gradient = MPSCNNBatchNormalizationGradient(device)
    >>> gradient.destination_image_allocator = MPSImage.default_allocator()
    >>> command_buffer = device.new_command_queue().command_buffer()
    >>> found = gradient.encode_batch(command_buffer, flow, images, state)
    >>> command_buffer.commit()
    >>> command_buffer.wait_until_completed()
    >>> found.numpy().ravel()
    array([0., 0.], dtype=float32)
    """

    def encode(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_gradient: MPSImage,
        source_image: MPSImage,
        batch_normalization_state: MPSCNNBatchNormalizationState | None = None,
        destination_gradient: MPSImage | None = None,
        *,
        gradient_state: MPSState | None = None,
        **unavailable: object,
    ) -> MPSImage:
        """Record the derivative for one image object.

        Without ``destination_gradient`` the properties are taken from the last normalization with the state, and the
        result is sized, made and returned; with it they hold as they stand. ``gradient_state`` is another name of the
        state, from the inherited form. Takes one read of a temporary state.
        """
        state = self._state(batch_normalization_state, gradient_state, unavailable)
        sources = (source_gradient, source_image)
        return self._single(command_buffer, sources, destination_gradient, source_states=MPSStateBatch([state]))

    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_gradients: Sequence[MPSImage],
        source_images: Sequence[MPSImage],
        batch_normalization_state: MPSCNNBatchNormalizationState | Sequence[MPSState] | None = None,
        destination_gradients: Sequence[MPSImage] | None = None,
        *,
        gradient_states: Sequence[MPSState] | None = None,
        **unavailable: object,
    ) -> MPSImageBatch:
        """Record the derivative for a batch of images, or a piece of one, as one operation; otherwise as `encode`."""
        state = self._state(batch_normalization_state, gradient_states, unavailable)
        sources = (self._as_batch("source_gradient", source_gradients), self._as_batch("source_image", source_images))
        states = MPSStateBatch([state] * len(sources[0]))
        return self._batched(command_buffer, sources, destination_gradients, source_states=states)

    def _state(self, given: object, inherited: object, unavailable: dict[str, object]) -> MPSCNNBatchNormalizationState:
        refuse_arguments(self.name, unavailable, _USE_OF_GRADIENT)
        return check_state(self.name, inherited if given is None else given)

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        use: _Use = at.given.more
        flow = at.back(self._before_neuron(at, gradient, source, use))
        batch = self._of_batch(at, *(at.buffer(name) for name in _SUMS)) if use.has_statistics else []
        rows = statistics(at, use.has_statistics)
        return DataGradient(use.epsilon)(flow, source, *rows, at.buffer("gamma"), *batch)

    def _begin(self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None) -> None:
        state = check_state(self.name, source_states)
        state.check_channels(self.name, plan.sources[1].channels)
        state.use_for_gradient(self.name)

    def _of_batch(self, at: GradientLoweringContext, gamma: Value, beta: Value) -> list[Value]:
        """What a data gradient takes of a batch: its sums and M; the slope of a sample's variance has M - 1."""
        is_sample = self.conventions["variance"] == "sample"
        return [ScaledRow()(gamma, at.number("sample")) if is_sample else gamma, beta, at.number("pixels")]

    def _number(self, name: str, states: MPSStateBatch | None) -> float:
        """M, the pixels of the batch, or the factor of a sample's variance."""
        pixels = check_state(self.name, states).pixels
        return pixels if name == "pixels" else sample_factor(pixels)
