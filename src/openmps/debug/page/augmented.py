"""Training images as steps of a training show them to its network, beside those that the data has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.debug.page.figures import picture_sheet

_SIDE = 64
_WHITE = 255.0


@dataclass(frozen=True)
class AugmentedImages:
    """Training images as they are, uint8 [N, H, W, C], and as some steps augment them, 0 to 1 [steps, N, H, W, C].

    ``text`` says how. Our addition.
    """

    text: str
    images: NDArray[np.uint8]
    augmented: NDArray[np.float32]

    def data(self) -> dict[str, Any]:
        """What the page shows: a row for each image, as it is first."""
        shown = self.augmented.clip(0, 1) * np.float32(_WHITE)
        rows = [[image, *steps] for image, steps in zip(self.images, shown.swapaxes(0, 1), strict=True)]
        return {"text": self.text, "rows": [[picture_sheet(each, _SIDE) for each in row] for row in rows]}
