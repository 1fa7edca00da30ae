"""Distance transforms (MPSImageDistanceTransform.h, macOS 10.13.4)."""

from __future__ import annotations

import math

from openmps.checks import FLT_MAX
from openmps.core.kernel.configuration import KernelProperty
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.numbers import not_negative
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import MTLDevice
from openmps.ops.geometry import Axis
from openmps.ops.image.distance import Distances
from openmps.ops.image.readings import Positive, Under
from openmps.ops.op import Value
from openmps.types import MPSRegion, MTLSize


class MPSImageEuclideanDistanceTransform(MPSUnaryImageKernel):
    """The distance to the nearest pixel that is not 0 (MPSImageDistanceTransform.h, macOS 10.13.4).

    In pixels, from centre to centre, channel by channel; 0 on such pixels, infinite where there is none. All of the
    source counts, whatever the clip rectangle is; NaN and negative numbers are not 0. Colours that the source lacks
    are 0 everywhere, so that distances are infinite; alpha that it lacks is 1, at a distance of 0. Store distances as
    floats: unorm formats are cut at 1.

    Raises:
        MPSArgumentError: In an encode, the offset moves the result beside the source.
    """

    search_limit_radius = KernelProperty(
        FLT_MAX,
        not_negative,
        "Beyond this distance a result need only be larger; all are exact here. Default: the largest float32.",
    )

    def __init__(self, device: MTLDevice) -> None:
        super().__init__(device)

    def _source_region(self, index: int, destination_size: MTLSize) -> MPSRegion:
        rule, remedy = "cannot be told: the whole source is read", "Give an encode all of it"
        raise MPSTypeError(self.name, "source_region", rule, None, remedy)

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        for axis in (at.window.x, at.window.y):
            self._check_meets(axis)
        picture = Positive()(images[0]) if self.conventions["distance_seeds"] == "positive" else images[0]
        if at.window.region != at.window.source and self.conventions["distance_clip"] == "clip":
            picture = Under(at.window)(picture)
        made = Distances(at.window, at.edge_mode)(picture)
        return self._components(at, made, at.sources[0].channels, colour=math.inf, alpha=0.0)

    def _check_meets(self, axis: Axis) -> None:
        if not axis.inside:
            rule = f"must leave a pixel of the result on the source, {axis.source} pixels along this axis"
            raise MPSArgumentError(self.name, "offset", rule, axis.first)
