"""The losses, scales and anchor boxes of an object detector (MPSCNNLoss.h, macOS 10.14)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from openmps.checks import NamedAttributes, of_kind
from openmps.core.arrays import numbers
from openmps.core.numbers import integer
from openmps.errors import MPSArgumentError
from openmps.kernels.loss.descriptor import MPSCNNLossDescriptor
from openmps.ops.loss.yolo_loss import YOLOLossParameters
from openmps.selectors import Factory, name_arguments
from openmps.types import MPSCNNLossType, MPSCNNReductionType

_SCALES = ("scale_xy", "scale_wh", "scale_no_object", "scale_object", "scale_class")
_LIMITS = ("min_iou_for_object_presence", "max_iou_for_object_absence")


@name_arguments
class MPSCNNYOLOLossDescriptor(NamedAttributes):
    """The losses, scales and anchor boxes of an object detector (MPSCNNLoss.h, macOS 10.14).

    Each of A anchor boxes owns 5 + K feature channels of a cell, in the order X Y W H C and one for each of K classes.
    Position, size, confidence and classes have a loss each, made here of its type, which all share one reduction; their
    parameters can be set. ``anchor_boxes`` are A pairs of width and height, in the units of the labels' W and H: an
    array, nested sequences, or the bytes of float32 numbers.

    Raises:
        MPSArgumentError: No framework values, or no pairs of positive numbers.
        MPSTypeError: The anchor boxes are no numbers.
    """

    reduction_type: MPSCNNReductionType
    """How the losses of an image become its loss; shared by the four losses."""
    reduce_across_batch: bool = False
    """Whether the first loss image takes the total of the batch (macOS 11). Default False."""
    rescore: bool = True
    """Whether the label of an object's confidence is the predicted box's overlap with the true one. Default True."""
    scale_xy: float = 10.0
    """Factor of the loss of positions, 10."""
    scale_wh: float = 10.0
    """Factor of the loss of sizes, 10."""
    scale_no_object: float = 5.0
    """Factor of the loss of confidence where there is no object, 5."""
    scale_object: float = 100.0
    """Factor of the loss of confidence where there is an object, 100."""
    scale_class: float = 2.0
    """Factor of the loss of classes, 2."""
    min_iou_for_object_presence: float = 0.7
    """An anchor box that fits an object better than this is responsible for it, 0.7."""
    max_iou_for_object_absence: float = 0.3
    """An anchor box that fits no object better than this should see none, 0.3."""
    labels_hold_raw_sizes: bool = False
    """Whether the labels' W and H are ln(size / anchor) already; an addition to the framework. Default False: sizes."""

    cnn_loss_descriptor = Factory(
        "cnnLossDescriptorWithXYLossType:WHLossType:confidenceLossType:classesLossType:reductionType:anchorBoxes:"
        "numberOfAnchorBoxes:"
    )

    def __init__(
        self,
        xy_loss_type: MPSCNNLossType,
        wh_loss_type: MPSCNNLossType,
        confidence_loss_type: MPSCNNLossType,
        classes_loss_type: MPSCNNLossType,
        reduction_type: MPSCNNReductionType,
        anchor_boxes: ArrayLike | bytes,
        number_of_anchor_boxes: int | None = None,
    ) -> None:
        types = (xy_loss_type, wh_loss_type, confidence_loss_type, classes_loss_type)
        self._losses = [MPSCNNLossDescriptor(each, reduction_type) for each in types]
        self.reduction_type = self._losses[0].reduction_type
        self.anchor_boxes = anchor_boxes
        if number_of_anchor_boxes is not None:
            self.number_of_anchor_boxes = number_of_anchor_boxes

    @property
    def xy_loss_descriptor(self) -> MPSCNNLossDescriptor:
        """The loss of positions in the cell, after a sigmoid; typically mean squared error."""
        return self._losses[0]

    @xy_loss_descriptor.setter
    def xy_loss_descriptor(self, value: MPSCNNLossDescriptor) -> None:
        self._losses[0] = of_kind(_WHO, "xy_loss_descriptor", value, MPSCNNLossDescriptor)

    @property
    def wh_loss_descriptor(self) -> MPSCNNLossDescriptor:
        """The loss of raw sizes; typically Huber."""
        return self._losses[1]

    @wh_loss_descriptor.setter
    def wh_loss_descriptor(self, value: MPSCNNLossDescriptor) -> None:
        self._losses[1] = of_kind(_WHO, "wh_loss_descriptor", value, MPSCNNLossDescriptor)

    @property
    def confidence_loss_descriptor(self) -> MPSCNNLossDescriptor:
        """The loss of the confidence that there is an object; typically sigmoid cross-entropy."""
        return self._losses[2]

    @confidence_loss_descriptor.setter
    def confidence_loss_descriptor(self, value: MPSCNNLossDescriptor) -> None:
        self._losses[2] = of_kind(_WHO, "confidence_loss_descriptor", value, MPSCNNLossDescriptor)

    @property
    def classes_loss_descriptor(self) -> MPSCNNLossDescriptor:
        """The loss of the object's class; typically softmax cross-entropy."""
        return self._losses[3]

    @classes_loss_descriptor.setter
    def classes_loss_descriptor(self, value: MPSCNNLossDescriptor) -> None:
        self._losses[3] = of_kind(_WHO, "classes_loss_descriptor", value, MPSCNNLossDescriptor)

    @property
    def anchor_boxes(self) -> NDArray[np.float32]:
        """The anchor boxes, ``[boxes, 2]``: width and height. Setting them sets their number too."""
        return self._anchors[: self._count].copy()

    @anchor_boxes.setter
    def anchor_boxes(self, value: ArrayLike | bytes) -> None:
        self._anchors = _pairs(value)
        self._count = len(self._anchors)

    @property
    def number_of_anchor_boxes(self) -> int:
        """How many of the anchor boxes are used, from the first one on. Default: all."""
        return self._count

    @number_of_anchor_boxes.setter
    def number_of_anchor_boxes(self, value: int) -> None:
        rule = f"must be an integer of 1 to {len(self._anchors)}, as there are anchor boxes"
        self._count = integer(_WHO, "number_of_anchor_boxes", value, 1, len(self._anchors), rule=rule)

    def copy(self) -> MPSCNNYOLOLossDescriptor:
        """A descriptor of its own with the same values."""
        twin = MPSCNNYOLOLossDescriptor.__new__(MPSCNNYOLOLossDescriptor)
        twin.__dict__.update(self.__dict__)
        twin._losses = [each.copy() for each in self._losses]
        return twin

    __copy__ = copy

    def shared_losses(self) -> list[MPSCNNLossDescriptor]:
        """Copies of the four losses, position, size, confidence and classes, with the shared reduction."""
        losses = [each.copy() for each in self._losses]
        for each in losses:
            each.reduction_type, each.reduce_across_batch = self.reduction_type, self.reduce_across_batch
        return losses

    def parameters(self) -> YOLOLossParameters:
        """The same, checked, as the mathematics takes it."""
        center, size, confidence, classes = (each.parameters() for each in self.shared_losses())
        values: dict[str, Any] = {name: getattr(self, name) for name in (*_SCALES, *_LIMITS)}
        return YOLOLossParameters(
            center,
            size,
            confidence,
            classes,
            center.reduction,
            reduce_across_batch=self.reduce_across_batch,
            rescore=self.rescore,
            labels_hold_raw_sizes=self.labels_hold_raw_sizes,
            **values,
        )

    def __repr__(self) -> str:
        kinds = ", ".join(each.loss_type.name for each in self._losses)
        return f"MPSCNNYOLOLossDescriptor({kinds}, {self.reduction_type.name}, {self._count} anchor box(es))"


_WHO = MPSCNNYOLOLossDescriptor.__name__


def _pairs(value: ArrayLike | bytes) -> NDArray[np.float32]:
    """Pairs of positive numbers, a copy."""
    pairs = numbers(_WHO, "anchor_boxes", value)
    if pairs.ndim not in (1, 2) or not pairs.size or pairs.size % 2 or (pairs.ndim == 2 and pairs.shape[1] != 2):
        rule = "must be pairs of width and height"
        raise MPSArgumentError(_WHO, "anchor_boxes", rule, f"numbers shaped {pairs.shape}")
    if not (np.isfinite(pairs).all() and (pairs > 0).all()):
        raise MPSArgumentError(_WHO, "anchor_boxes", "must be positive numbers", pairs.tolist())
    return pairs.reshape(-1, 2).copy()
