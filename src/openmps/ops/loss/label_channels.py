"""Labels with more channels than the predictions that they are for (MPSCNNLoss.h, macOS 10.13.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from openmps.errors import MPSArgumentError
from openmps.ops.op import Kind, Op


class LabelChannels(Op, kind=Kind.STORAGE, half=True, gives_view=True):
    """The first ``count`` channels of labels that have more: the others must label nothing.

    A label beyond them is refused. In a capture of a GPU, which cannot refuse, the labels of its pixel become NaN, and
    so does the loss. A NaN labels nothing: it is padding.
    """

    count: int

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the class."""
        labels = operands[0]
        kept, surplus = labels[:, : self.count], labels[:, self.count :] > 0
        if labels.is_cuda and torch.cuda.is_current_stream_capturing():
            return kept.masked_fill(surplus.any(1, keepdim=True), math.nan)
        if surplus.any():
            image, channel, y, x = surplus.nonzero()[0].tolist()
            rule = f"must label the {self.count} channel(s) of the predictions only, one a class"
            got = f"a label in channel {self.count + channel} of image {image}, pixel ({x}, {y})"
            remedy = "Give the predictions as many feature channels as there are classes"
            raise MPSArgumentError("MPSCNNLossLabels", "labels", rule, got, remedy)
        return kept
