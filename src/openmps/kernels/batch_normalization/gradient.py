"""The gradients of batch normalization, in two steps (MPSCNNBatchNormalization.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.kernel.arguments import single
from openmps.core.kernel.checks import Images
from openmps.core.kernel.encode import Plan
from openmps.core.kernel.gradient import GradientGeometry, GradientOperation, MPSCNNGradientKernel
from openmps.core.state.gradient import ForwardRecord, SourceRecord
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.kernels.batch_normalization.arguments import (
    check_channels,
    check_state,
    check_usable,
    refuse,
    refuse_arguments,
)
from openmps.kernels.batch_normalization.forward import MPSCNNBatchNormalization
from openmps.kernels.batch_normalization.fused_neuron import FusedNeuron, NeuronProperty, check_neuron
from openmps.kernels.batch_normalization.state import MPSCNNBatchNormalizationState
from openmps.ops.batch_normalization import ParameterGradients, data_gradient, normalize, parameter_gradients
from openmps.ops.geometry import read, read_adjoint
from openmps.types import MPSOffset, MPSRectNoClip, MTLRegion

if TYPE_CHECKING:
    from openmps.core.neuron import MPSNNNeuronDescriptor
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

_USE_OF_SUMS = "Use encode_batch(command_buffer, source_gradients, source_images, batch_normalization_state)"
_USE_OF_GRADIENT = "Use encode(command_buffer, source_gradient, source_image, batch_normalization_state)"


class _NormalizationGradient(NeuronProperty, MPSCNNGradientKernel):
    """What both gradient kernels share: the fused neuron, and one state for all pieces of a batch."""

    _forward_kernels = (MPSCNNBatchNormalization,)

    def __init__(self, device: MTLDevice, fused_neuron_descriptor: MPSNNNeuronDescriptor | None = None) -> None:
        super().__init__(device)
        self._neuron = check_neuron(self.name, fused_neuron_descriptor)

    def _fused(self, channels: int) -> FusedNeuron:
        return FusedNeuron.of(self.name, self._neuron, channels, self.device)

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        check_usable(self.name, states, command_buffer)

    def _adjust_descriptor(
        self, descriptor: MPSImageDescriptor, source_images: Sequence[MPSImage], source_states: Sequence[MPSState]
    ) -> None:
        record = next((each.record for each in source_states if isinstance(each, MPSCNNBatchNormalizationState)), None)
        if record is None:
            return
        super()._adjust_descriptor(descriptor, source_images, source_states)
        descriptor.number_of_images = source_images[1].number_of_images
        self._take_all_of_another_piece(record, source_images)

    def _take_all_of_another_piece(self, record: ForwardRecord, source_images: Sequence[MPSImage]) -> None:
        """The record is of the piece that was normalized last; others may have other numbers of images."""
        found = tuple(image.number_of_images for image in source_images)
        if record.is_batch or found != tuple(extent.images for extent in self._forward_extents(record)):
            for source in self._sources:
                source.offset = MPSOffset(source.offset.x, source.offset.y, 0)
            self._clip_rect = MTLRegion(MPSRectNoClip.origin, MPSRectNoClip.size)


class MPSCNNBatchNormalizationStatisticsGradient(_NormalizationGradient):
    """The parameter gradients of a batch normalization, into its state (MPSCNNBatchNormalization.h, macOS 10.13.4).

    With ``xhat = (X - mean) / sqrt(variance + epsilon)``, ``z = gamma xhat + beta`` and ``g = G neuron'(z)``::

        gradient_for_gamma = sum g xhat        gradient_for_beta = sum g

    over all pixels of the batch, never means. A batch may come in pieces: encode each before the first
    `MPSCNNBatchNormalizationGradient`. ``fused_neuron_descriptor`` is the forward kernel's (macOS 10.14). Offsets and
    channels are those of the last normalization with the state, else those of the properties.
    """

    @property
    def is_state_modified(self) -> bool:
        """True: parameter gradients are added to the state."""
        return True

    def append_batch_barrier(self) -> bool:
        """True: the sums are complete when the whole batch went through."""
        return True

    def encode(self, *arguments: Any, **options: Any) -> NoReturn:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Raise: the sums are those of a batch."""
        refuse(self.name, "encode", _USE_OF_SUMS)

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
        state = check_state(self.name, batch_normalization_state)
        states = MPSStateBatch([state] * len(sources[0]))
        self._check_operands(command_buffer, sources, None, states, None)
        specimens = [images.representative() for images in sources]
        self._adjust_descriptor(specimens[1].descriptor(), specimens, [state])
        stacks = [images.stack() for images in sources]
        plan = self.plan((stacks[0].extent, stacks[1].extent), stacks[1].extent, states, is_batch=True)
        keep = state.add_gradients(len(sources[0]))

        def work() -> None:
            values = (
                stack.values(each.channel, each.channels) for stack, each in zip(stacks, plan.sources, strict=True)
            )
            keep(plan.operation(tuple(values), None)[1])

        command_buffer.record(self.name, work)
        for images in sources:
            images.count_read()
        state.count_read()

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        state = check_state(self.name, states)
        check_channels(self.name, state, sources[1].channels)
        captured, fused = state.captured(), self._fused(sources[1].channels)

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[None, ParameterGradients]:
            how = captured.numbers()
            region = read(source, geometry.source, geometry.edge_mode)
            if not fused.is_identity:
                gradient = fused.gradient(gradient, normalize(region, how))
            return None, parameter_gradients(gradient, region, how)

        return differentiate


class MPSCNNBatchNormalizationGradient(_NormalizationGradient):
    """The gradient of a batch normalization's source (MPSCNNBatchNormalization.h, macOS 10.13.4).

    With ``xhat = (X - mean) / sqrt(variance + epsilon)``, ``z = gamma xhat + beta``, ``g = G neuron'(z)`` and M, the
    pixels that the statistics were made of::

        dX = gamma / sqrt(variance + epsilon) (g - gradient_for_beta / M - xhat gradient_for_gamma / M)

    The state must have gone through `MPSCNNBatchNormalizationStatisticsGradient` for all images of the batch. Where it
    holds no statistics of a batch, mean and variance are constants: ``dX = gamma / sqrt(variance + epsilon) g``.
    ``fused_neuron_descriptor`` is the forward kernel's (macOS 10.14).
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
        if destination_gradient is not None:
            single(self.name, "destination_gradient", destination_gradient)
        sources = (
            single(self.name, "source_gradient", source_gradient),
            single(self.name, "source_image", source_image),
        )
        destination, _ = self._run(command_buffer, sources, destination_gradient, source_states=MPSStateBatch([state]))
        assert isinstance(destination, MPSImage)
        return destination

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
        given = None
        if destination_gradients is not None:
            given = as_batch(self.name, "destination_gradients", destination_gradients)
        sources = (
            as_batch(self.name, "source_gradients", source_gradients),
            as_batch(self.name, "source_images", source_images),
        )
        states = MPSStateBatch([state] * len(sources[0]))
        destination, _ = self._run(command_buffer, sources, given, source_states=states)
        assert isinstance(destination, MPSImageBatch)
        return destination

    def _state(self, given: object, inherited: object, unavailable: dict[str, object]) -> MPSCNNBatchNormalizationState:
        refuse_arguments(self.name, unavailable, _USE_OF_GRADIENT)
        return check_state(self.name, inherited if given is None else given)

    def _gradient(
        self, geometry: GradientGeometry, sources: tuple[SourceRecord, ...], states: MPSStateBatch | None
    ) -> GradientOperation:
        state = check_state(self.name, states)
        check_channels(self.name, state, sources[1].channels)
        captured, fused = state.captured(), self._fused(sources[1].channels)
        complete = state.gradients(self.name)

        def differentiate(gradient: Tensor, source: Tensor, saved: Any) -> tuple[Tensor, None]:
            how = captured.numbers()
            if not fused.is_identity:
                region = read(source, geometry.source, geometry.edge_mode)
                gradient = fused.gradient(gradient, normalize(region, how))
            spread = read_adjoint(gradient, geometry.data, geometry.edge_mode)
            if complete is None:
                return data_gradient(spread, source, how, None, 0), None
            (gamma, beta), pixels = complete
            sums = ParameterGradients(gamma.tensor(torch.float32), beta.tensor(torch.float32))
            return data_gradient(spread, source, how, sums, pixels), None

        return differentiate

    def _keeper(
        self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None
    ) -> Callable[[Any], None] | None:
        check_state(self.name, source_states).use_for_gradient()
        return None
