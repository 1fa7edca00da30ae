"""MPSCNNLoss: loss and first gradient in one encode (MPSCNNLoss.h, macOS 10.13.4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.gradient_state import SourceRecord
from openmps.core.image import MPSImage
from openmps.core.image_batch import MPSImageBatch, as_batch
from openmps.core.kernel import Operation, Plan
from openmps.core.kernel_arguments import single, states_of
from openmps.core.kernel_checks import Images
from openmps.core.state import MPSState, MPSStateBatch
from openmps.core.storage import Extent, Target
from openmps.core.unary_kernel import MPSCNNKernel
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.loss.descriptor import MPSCNNLossDescriptor
from openmps.kernels.loss.labels import MPSCNNLossLabels, labels_reader, loss_writer
from openmps.ops.geometry import read
from openmps.ops.loss import loss
from openmps.types import MPSCNNLossType, MPSCNNReductionType

if TYPE_CHECKING:
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice


class MPSCNNLoss(MPSCNNKernel):
    """Loss and its gradient in one encode (MPSCNNLoss.h, macOS 10.13.4).

    The source image holds the predictions, the labels an `MPSCNNLossLabels` for each image; the RESULT is the gradient
    of the loss with respect to the predictions, the loss itself goes to ``labels.loss_image()``. The gradient carries
    the descriptor's `weight` (or the labels' weights) but no division by a mean: the reduction changes the reported
    value only.
    """

    def __init__(self, device: MTLDevice, loss_descriptor: MPSCNNLossDescriptor) -> None:
        super().__init__(device)
        if not isinstance(loss_descriptor, MPSCNNLossDescriptor):
            raise MPSTypeError(
                self.name, "loss_descriptor", "must be an MPSCNNLossDescriptor", type(loss_descriptor).__name__
            )
        self._descriptor = loss_descriptor.copy()
        self._descriptor.parameters()

    @property
    def loss_type(self) -> MPSCNNLossType:
        """Which loss."""
        return self._descriptor.loss_type

    @property
    def reduction_type(self) -> MPSCNNReductionType:
        """How the losses of an image become its loss."""
        return self._descriptor.reduction_type

    @property
    def weight(self) -> float:
        """Factor of loss and gradient."""
        return self._descriptor.weight

    @property
    def label_smoothing(self) -> float:
        """How far labels are softened."""
        return self._descriptor.label_smoothing

    @property
    def number_of_classes(self) -> int:
        """Classes that softmax cross-entropy's smoothing spreads over."""
        return self._descriptor.number_of_classes

    @property
    def epsilon(self) -> float:
        """Guard of LOG's logarithms."""
        return self._descriptor.epsilon

    @property
    def delta(self) -> float:
        """Where HUBER turns linear."""
        return self._descriptor.delta

    @property
    def reduce_across_batch(self) -> bool:
        """Whether the first loss image takes the total of the batch."""
        return self._descriptor.reduce_across_batch

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
        destination, _ = self._run(
            command_buffer,
            (single(self.name, "source_image", source_image),),
            destination_image,
            source_states=states_of(self.name, "labels", labels),
        )
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
        destination, _ = self._run(
            command_buffer,
            (as_batch(self.name, "source_images", source_images),),
            given,
            source_states=states_of(self.name, "labels", labels),
        )
        assert isinstance(destination, MPSImageBatch)
        return destination

    # --- the encode path's hooks --------------------------------------------------------------------------------------

    def _operation(self, sources: tuple[SourceRecord, ...], target: Target, states: MPSStateBatch | None) -> Operation:
        (source,) = sources
        parameters, channels = self._descriptor.parameters(), source.channels

        def operation(values: tuple[Tensor, ...], labels: Any) -> tuple[Tensor, Tensor]:
            predictions = read(values[0], source.window, source.edge_mode)
            targets, weights = labels
            if weights is not None:
                weights = weights[:, :channels]
            losses, gradient = loss(predictions, targets[:, :channels], weights, parameters)
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
        whole = self.reduction_type == MPSCNNReductionType.NONE
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
        if state.weights_image() is not None and self.loss_type is MPSCNNLossType.COSINE_DISTANCE:
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
                f"must be {loss_shape} (width, height, channels) for the reduction {self.reduction_type.name}",
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
