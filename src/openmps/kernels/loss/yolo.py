"""MPSCNNYOLOLoss: loss and first gradient of an object detector (MPSCNNLoss.h, macOS 10.14)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.loss.kernel import MPSCNNLoss
from openmps.kernels.loss.labelled import Evaluation, LabelledLoss
from openmps.kernels.loss.yolo_descriptor import MPSCNNYOLOLossDescriptor
from openmps.ops.yolo_loss import BOX_CHANNELS, yolo_loss
from openmps.types import MPSCNNReductionType

if TYPE_CHECKING:
    from openmps.metal.device import MTLDevice


class MPSCNNYOLOLoss(LabelledLoss):
    """Loss and gradient of an object detector in one encode (MPSCNNLoss.h, macOS 10.14).

    The source image holds the predictions of a grid of cells, one pixel a cell and 5 + K feature channels an anchor
    box: X Y W H C and K classes. Labels, weights and the RESULT, the gradient of the loss with respect to the
    predictions, are laid out alike; the loss goes to ``labels.loss_image()``. Position goes through a sigmoid to
    `loss_xy`, raw size, ln(size / anchor), to `loss_wh`, raw confidence to `loss_confidence`, the classes to
    `loss_classes`; only boxes with an object have more than a loss of confidence. In the labels X and Y are the place
    of an object's centre in the cell, 0 to 1, W and H its size in the units of the anchor boxes, cells, C is 1 for an
    object, and the classes are one-hot. The framework does not say how boxes are decoded, matched and masked:
    `openmps.ops.yolo_loss.yolo_loss` has the formulas chosen. No reduction divides the gradient.
    """

    def __init__(self, device: MTLDevice, loss_descriptor: MPSCNNYOLOLossDescriptor) -> None:
        super().__init__(device)
        if not isinstance(loss_descriptor, MPSCNNYOLOLossDescriptor):
            raise MPSTypeError(
                self.name, "loss_descriptor", "must be an MPSCNNYOLOLossDescriptor", type(loss_descriptor).__name__
            )
        self._descriptor = loss_descriptor.copy()
        self._parts = loss_descriptor.parameters()
        self._losses = tuple(MPSCNNLoss(device, each) for each in loss_descriptor.shared_losses())
        self._boxes = torch.from_numpy(loss_descriptor.anchor_boxes).to(device.torch_device)

    def _unshare(self) -> None:
        super()._unshare()
        self._losses = tuple(each.copy(self.device) for each in self._losses)
        self._boxes = self._boxes.to(self.device.torch_device)

    @property
    def loss_descriptor(self) -> MPSCNNYOLOLossDescriptor:
        """A copy of the descriptor; the framework tells its values one by one only."""
        return self._descriptor.copy()

    @property
    def loss_xy(self) -> MPSCNNLoss:
        """The loss of positions."""
        return self._losses[0]

    @property
    def loss_wh(self) -> MPSCNNLoss:
        """The loss of sizes."""
        return self._losses[1]

    @property
    def loss_confidence(self) -> MPSCNNLoss:
        """The loss of the confidence that there is an object."""
        return self._losses[2]

    @property
    def loss_classes(self) -> MPSCNNLoss:
        """The loss of the object's class."""
        return self._losses[3]

    @property
    def scale_xy(self) -> float:
        """Factor of the loss of positions."""
        return self._parts.scale_xy

    @property
    def scale_wh(self) -> float:
        """Factor of the loss of sizes."""
        return self._parts.scale_wh

    @property
    def scale_no_object(self) -> float:
        """Factor of the loss of confidence where there is no object."""
        return self._parts.scale_no_object

    @property
    def scale_object(self) -> float:
        """Factor of the loss of confidence where there is an object."""
        return self._parts.scale_object

    @property
    def scale_class(self) -> float:
        """Factor of the loss of classes."""
        return self._parts.scale_class

    @property
    def min_iou_for_object_presence(self) -> float:
        """An anchor box that fits an object better than this is responsible for it."""
        return self._parts.min_iou_for_object_presence

    @property
    def max_iou_for_object_absence(self) -> float:
        """An anchor box that fits no object better than this should see none."""
        return self._parts.max_iou_for_object_absence

    @property
    def reduction_type(self) -> MPSCNNReductionType:
        """How the losses of an image become its loss."""
        return self._parts.reduction

    @property
    def reduce_across_batch(self) -> bool:
        """Whether the first loss image takes the total of the batch."""
        return self._parts.reduce_across_batch

    @property
    def number_of_anchor_boxes(self) -> int:
        """Anchor boxes of a cell."""
        return self._descriptor.number_of_anchor_boxes

    @property
    def anchor_boxes(self) -> NDArray[np.float32]:
        """The anchor boxes, a copy ``[boxes, 2]``: width and height."""
        return self._descriptor.anchor_boxes

    # --- what a loss says ---------------------------------------------------------------------------------------------

    def _evaluation(self, channels: int) -> Evaluation:
        count = self.number_of_anchor_boxes
        if channels % count or channels < BOX_CHANNELS * count:
            raise MPSArgumentError(
                self.name,
                "source_image",
                f"must have (5 + classes) * {count} feature channels for {count} anchor box(es)",
                channels,
            )
        return partial(yolo_loss, anchors=self._boxes, parameters=self._parts)

    def _loss_reduction(self) -> MPSCNNReductionType:
        return self.reduction_type
