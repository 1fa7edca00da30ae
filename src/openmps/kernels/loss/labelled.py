"""The base of losses that take labels objects and write the first gradient (MPSCNNLoss.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.image.batch import MPSImageBatch, as_batch
from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent, Target
from openmps.core.kernel.arguments import single, states_of
from openmps.core.kernel.checks import Images
from openmps.core.kernel.encode import Operation, Plan
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.core.state.gradient import SourceRecord
from openmps.core.state.state import MPSState, MPSStateBatch
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.loss.labels import MPSCNNLossLabels, labels_reader, loss_writer
from openmps.ops.geometry import read
from openmps.types import MPSCNNReductionType

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer

Evaluation = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Predictions, labels and weights to losses and the gradient of the predictions."""


class LabelledLoss(MPSCNNKernel):
    """A loss and its gradient in one encode: the labels come, and the losses go, in an `MPSCNNLossLabels` an image."""

    # --- what a loss says ---------------------------------------------------------------------------------------------

    def _evaluation(self, channels: int) -> Evaluation:
        """The mathematics, for predictions with so many channels."""
        raise MPSTypeError(self.name, "encode", "is not offered by this base class", None, "Use one of its subclasses")

    def _loss_reduction(self) -> MPSCNNReductionType:
        """How the losses of an image become its loss."""
        return MPSCNNReductionType.NONE

    def _takes_weights(self) -> bool:
        """Whether labels may come with weights."""
        return True

    # --- encode -------------------------------------------------------------------------------------------------------

    def encode(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_image: MPSImage,
        labels: MPSCNNLossLabels | Sequence[MPSCNNLossLabels],
        destination_image: MPSImage | None = None,
    ) -> MPSImage:
        """Record loss and gradient of one image object; the gradient is the result.

        ``labels`` is one object, or a sequence of one for each image if ``source_image`` holds several.
        """
        if destination_image is not None:
            single(self.name, "destination_image", destination_image)
        source = single(self.name, "source_image", source_image)
        destination = self._encoded(command_buffer, source, labels, destination_image)
        assert isinstance(destination, MPSImage)
        return destination

    def encode_batch(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        labels: Sequence[MPSCNNLossLabels],
        destination_images: Sequence[MPSImage] | None = None,
    ) -> MPSImageBatch:
        """Record loss and gradient of a batch, one labels object an image."""
        given = None
        if destination_images is not None:
            given = as_batch(self.name, "destination_images", destination_images)
        sources = as_batch(self.name, "source_images", source_images)
        destination = self._encoded(command_buffer, sources, labels, given)
        assert isinstance(destination, MPSImageBatch)
        return destination

    def _encoded(
        self, command_buffer: CommandBuffer, sources: Images, labels: object, destination: Images | None
    ) -> Images:
        states = states_of(self.name, "labels", labels)
        return self._run(command_buffer, (sources,), destination, source_states=states)[0]

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        channels = source.channels
        evaluate = self._evaluation(channels)

        def operation(values: tuple[Tensor, ...], labels: Any) -> tuple[Tensor, Tensor]:
            predictions = read(values[0], source.window, source.edge_mode)
            targets, weights = labels
            if weights is not None:
                weights = weights[:, :channels]
            losses, gradient = evaluate(predictions, targets[:, :channels], weights)
            return gradient, losses

        return operation

    def plan(
        self,
        sources: tuple[Extent, ...],
        destination: Extent,
        states: MPSStateBatch | None = None,
        *,
        is_batch: bool = False,
    ) -> Plan:
        """As for every kernel; the labels must fit the predictions."""
        plan = super().plan(sources, destination, states, is_batch=is_batch)
        if states is not None:
            self.check_labels(states, plan.sources[0], plan.images)
        return plan

    def check_labels(self, states: MPSStateBatch, source: SourceRecord, images: int | None = None) -> None:
        """Raise unless there is one fitting labels object for each of ``images``, all of the source by default."""
        expected = source.extent.images if images is None else images
        if len(states) != expected:
            raise MPSArgumentError(
                self.name, "labels", f"must be one MPSCNNLossLabels an image, {expected}", f"{len(states)}"
            )
        whole = self._loss_reduction() is MPSCNNReductionType.NONE
        shape = (source.window.x.result, source.window.y.result, source.channels) if whole else (1, 1, 1)
        seen: MPSState | None = None
        for index, state in enumerate(states):
            if state is seen:
                continue
            seen = state
            if not isinstance(state, MPSCNNLossLabels):
                raise MPSTypeError(self.name, f"labels[{index}]", "must be an MPSCNNLossLabels", type(state).__name__)
            self._check_label(index, state, source, shape)

    def _check_label(
        self, index: int, state: MPSCNNLossLabels, source: SourceRecord, loss_shape: tuple[int, int, int]
    ) -> None:
        labels, written = state.labels_image(), state.loss_image()
        size = (source.window.x.result, source.window.y.result)
        if (labels.width, labels.height) != size or labels.feature_channels < source.channels:
            raise MPSArgumentError(
                self.name,
                f"labels[{index}]",
                f"must be {size[0]}x{size[1]} with at least {source.channels} channels, like the predictions",
                f"{labels.width}x{labels.height}x{labels.feature_channels}",
            )
        if state.weights_image() is not None and not self._takes_weights():
            raise MPSArgumentError(
                self.name,
                f"labels[{index}]",
                "must have no weights: the weight of a cosine distance is one number",
                "weights",
                "Set the loss descriptor's weight",
            )
        if (written.width, written.height, written.feature_channels) != loss_shape:
            raise MPSArgumentError(
                self.name,
                f"labels[{index}].loss_image()",
                f"must be {loss_shape} (width, height, channels) for the reduction {self._loss_reduction().name}",
                (written.width, written.height, written.feature_channels),
                "Pass loss_image_size to MPSCNNLossLabels",
            )

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        for state in states.counted():
            state.check_usable(self.name, "labels", command_buffer)

    def _fetcher(self, source_states: MPSStateBatch | None) -> Callable[[], Any]:
        return labels_reader(self.name, source_states)

    def _keeper(
        self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None
    ) -> Callable[[Any], None] | None:
        return loss_writer(source_states)
