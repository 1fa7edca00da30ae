"""MPSCNNYOLOLoss: loss and first gradient of an object detector (MPSCNNLoss.h, macOS 10.14)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from openmps.checks import Shown, of_kind
from openmps.core.image.storage import Target
from openmps.core.kernel.configuration import Setting
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.state.gradient import SourceRecord
from openmps.errors import MPSArgumentError
from openmps.kernels.loss.labelled import LabelledLoss, MPSCNNLoss
from openmps.kernels.loss.labels import GivenLabels
from openmps.kernels.loss.yolo_descriptor import MPSCNNYOLOLossDescriptor
from openmps.metal.device import MTLDevice
from openmps.ops.loss.yolo_loss import BOX_CHANNELS, YOLOLoss, YOLOLossParameters
from openmps.ops.op import Value
from openmps.types import MPSCNNReductionType


class _Losses(NamedTuple):
    xy: MPSCNNLoss
    wh: MPSCNNLoss
    confidence: MPSCNNLoss
    classes: MPSCNNLoss


class MPSCNNYOLOLoss(LabelledLoss):
    """Loss and gradient of an object detector in one encode (MPSCNNLoss.h, macOS 10.14).

    The source image holds the predictions of a grid of cells, one pixel a cell and 5 + K feature channels an anchor
    box: X Y W H C and K classes. Labels, weights and the RESULT, the gradient of the loss with respect to the
    predictions, are laid out alike; the loss goes to ``labels.loss_image()``. Position goes through a sigmoid to
    `loss_xy`, raw size, ln(size / anchor), to `loss_wh`, raw confidence to `loss_confidence`, the classes to
    `loss_classes`; only boxes with an object have more than a loss of confidence. In the labels X and Y are the place
    of an object's centre in the cell, 0 to 1, W and H its size in the units of the anchor boxes, cells, C is 1 for an
    object, and the classes are one-hot. The framework does not say how boxes are decoded, matched and masked:
    `openmps.ops.loss.yolo_loss.yolo_loss` has the formulas chosen, the conventions ``yolo_slope``, ``yolo_sizes`` and
    ``yolo_confidence`` others. No reduction divides the gradient.
    """

    _parts = Setting[YOLOLossParameters]()
    _boxes = Setting[tuple[tuple[float, ...], ...]]()
    """Width and height of each anchor box."""

    loss_xy = Shown[MPSCNNLoss]("_losses.xy", "The loss of positions.")
    loss_wh = Shown[MPSCNNLoss]("_losses.wh", "The loss of sizes.")
    loss_confidence = Shown[MPSCNNLoss]("_losses.confidence", "The loss of the confidence that there is an object.")
    loss_classes = Shown[MPSCNNLoss]("_losses.classes", "The loss of the object's class.")
    scale_xy = Shown[float]("_parts.scale_xy", "Factor of the loss of positions.")
    scale_wh = Shown[float]("_parts.scale_wh", "Factor of the loss of sizes.")
    scale_no_object = Shown[float](
        "_parts.scale_no_object", "Factor of the loss of confidence where there is no object."
    )
    scale_object = Shown[float]("_parts.scale_object", "Factor of the loss of confidence where there is an object.")
    scale_class = Shown[float]("_parts.scale_class", "Factor of the loss of classes.")
    min_iou_for_object_presence = Shown[float](
        "_parts.min_iou_for_object_presence",
        "An anchor box that fits an object better than this is responsible for it.",
    )
    max_iou_for_object_absence = Shown[float](
        "_parts.max_iou_for_object_absence", "An anchor box that fits no object better than this should see none."
    )
    reduction_type = Shown[MPSCNNReductionType]("_parts.reduction", "How the losses of an image become its loss.")
    reduce_across_batch = Shown[bool](
        "_parts.reduce_across_batch", "Whether the first loss image takes the total of the batch."
    )

    def __init__(self, device: MTLDevice, loss_descriptor: MPSCNNYOLOLossDescriptor) -> None:
        super().__init__(device)
        of_kind(self.name, "loss_descriptor", loss_descriptor, MPSCNNYOLOLossDescriptor)
        self._descriptor = loss_descriptor.copy()
        self._parts = loss_descriptor.parameters()
        self._losses = _Losses(*(MPSCNNLoss(device, each) for each in loss_descriptor.shared_losses()))
        self._boxes = tuple(tuple(pair) for pair in loss_descriptor.anchor_boxes.tolist())

    def _unshare(self) -> None:
        super()._unshare()
        self._losses = _Losses(*(each.copy(self.device) for each in self._losses))

    @property
    def loss_descriptor(self) -> MPSCNNYOLOLossDescriptor:
        """A copy of the descriptor; the framework tells its values one by one only."""
        return self._descriptor.copy()

    @property
    def number_of_anchor_boxes(self) -> int:
        """Anchor boxes of a cell."""
        return len(self._boxes)

    @property
    def anchor_boxes(self) -> NDArray[np.float32]:
        """The anchor boxes, a copy ``[boxes, 2]``: width and height."""
        return np.array(self._boxes, np.float32)

    # --- what a loss says ---------------------------------------------------------------------------------------------

    def _check_plan(
        self, records: tuple[SourceRecord, ...], target: Target, given: GivenLabels | None, images: int
    ) -> None:
        """As for every loss; there is a multiple of the anchor boxes' number of channels."""
        channels, count = records[0].channels, self.number_of_anchor_boxes
        if channels % count or channels < BOX_CHANNELS * count:
            rule = f"must have (5 + classes) * {count} feature channels for {count} anchor box(es)"
            raise MPSArgumentError(self.name, "source_image", rule, channels)
        super()._check_plan(records, target, given, images)

    def _evaluated(self, at: LoweringContext, *operands: Value | None) -> tuple[Value, Value]:
        return YOLOLoss(self._read_parts())(*operands, at.constant(self.anchor_boxes))

    def _read_parts(self) -> YOLOLossParameters:
        """What the descriptor says, as the conventions read it."""
        chosen, parts = self.conventions, self._parts
        return replace(
            parts,
            passes_sigmoid=chosen["yolo_slope"] == "sigmoid",
            labels_hold_raw_sizes=parts.labels_hold_raw_sizes or chosen["yolo_sizes"] == "as_given",
            rescore=parts.rescore and chosen["yolo_confidence"] == "overlap",
        )

    def _loss_reduction(self) -> MPSCNNReductionType:
        return self.reduction_type
