"""Images that a classifier takes for another class, with the probabilities of the likeliest classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.debug.page.figures import picture_sheet, plain

_LIKELIEST = 3
_SIDE = 56


@dataclass(frozen=True)
class Mistakes:
    """The misclassified images of a test: ``images`` uint8 [N, H, W, C], ``probabilities`` [N, classes]. Our addition.

    ``labels`` are their classes, ``tested`` is how many images the test had, ``wrong`` how many of them were wrong:
    more than there are images here, perhaps.
    """

    images: NDArray[np.uint8]
    labels: Sequence[int]
    probabilities: NDArray[np.float32]
    classes: Sequence[str]
    tested: int
    wrong: int

    def data(self) -> dict[str, Any]:
        """What the page shows, the most confident first."""
        sure = np.argsort(-self.probabilities.max(axis=1), kind="stable") if len(self.images) else []
        return {"tested": self.tested, "wrong": self.wrong, "images": [self._one(int(place)) for place in sure]}

    def _one(self, place: int) -> dict[str, Any]:
        row, label = self.probabilities[place], int(self.labels[place])
        best = np.argsort(-row, kind="stable")[:_LIKELIEST].tolist()
        shown = best if label in best else [*best, label]
        return {
            "number": place,
            "true": self.classes[label],
            "taken": self.classes[best[0]],
            "likeliest": [[self.classes[each], plain(float(row[each]))] for each in shown],
            "picture": picture_sheet(self.images[place], _SIDE),
        }
