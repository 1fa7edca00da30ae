"""Pictures brought to a size by the framework's own filters, so that an app that uses them has the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.errors import MPSArgumentError, MPSFileError, shown
from openmps.kernels.image_scale import MPSImageBilinearScale, MPSImageLanczosScale, MPSImageScale
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageFeatureChannelFormat

ScalingName: TypeAlias = Literal["bilinear", "lanczos"]
"""``MPSImageBilinearScale`` or ``MPSImageLanczosScale``."""

FILTERS: Mapping[str, type[MPSImageScale]] = {"bilinear": MPSImageBilinearScale, "lanczos": MPSImageLanczosScale}
_KEY = "scaling"


class Scaler:
    """Scales pictures of 8 bits on the CPU, one after the other.

    Raises:
        MPSArgumentError: There is no filter of the name.
    """

    def __init__(self, who: str, scaling: ScalingName) -> None:
        if not isinstance(scaling, str) or scaling not in FILTERS:
            raise MPSArgumentError(who, _KEY, f"must be {' or '.join(FILTERS)}, or None for Pillow's", shown(scaling))
        self._device = mtl_device("cpu")
        self._queue = self._device.new_command_queue()
        self._kernel = FILTERS[scaling](self._device)

    def __call__(self, pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
        """Pixels ``[H, W, C]`` in (height, width): from and to images of UNORM8."""
        height, width = size
        if pixels.shape[:2] == size:
            return pixels
        descriptor = MPSImageDescriptor(MPSImageFeatureChannelFormat.UNORM8, width, height, pixels.shape[2])
        result, command_buffer = MPSImage(self._device, descriptor), self._queue.command_buffer()
        self._kernel.encode(command_buffer, MPSImage.from_numpy(self._device, pixels), result)
        command_buffer.commit()
        return result.read_bytes()


def described_scaling(config: Mapping[str, object], file: str) -> ScalingName | None:
    """How the description of a run says that its pictures were scaled; None where it says nothing: by Pillow.

    Raises ``MPSFileError`` where it names no filter.
    """
    data = config.get("data")
    name = cast("Mapping[str, object]", data).get(_KEY) if isinstance(data, Mapping) else None
    if name is not None and (not isinstance(name, str) or name not in FILTERS):
        rule = f"must name a scaling, {' or '.join(FILTERS)}, in its data"
        raise MPSFileError("described_scaling", file, rule, shown(name))
    return cast("ScalingName | None", name)
