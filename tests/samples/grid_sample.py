"""Sampling at the places in a grid."""

from __future__ import annotations

from typing import Any

from openmps.kernels import grid_sample as kernels
from oracles import grid_sample
from samples.sample import CLAMP, Array, Reading, Sample, Shape, configured


def _grid(name: str, shape: Shape, grid: tuple[int, int], absolute: bool = True, **properties: Any) -> Sample:
    def forward(sources: list[Array], how: list[Reading]) -> Array:
        image, places = how
        origin = None if absolute else (image.rows.offset, image.columns.offset)
        return grid_sample.grid_sample(sources[0], places.region(sources[1]), image.edge, origin)

    return Sample(
        f"grid sample {name}",
        lambda device: configured(
            kernels.MPSNNGridSample(device), {"use_grid_value_as_input_coordinate": absolute, **properties}
        ),
        (shape, (2, *grid)),
        forward,
    )


GRIDS = [
    _grid("positions", (4, 5, 6), (3, 4)),
    _grid("positions, clamp", (3, 4, 3), (5, 2), primary_edge_mode=CLAMP),
    _grid("distances", (5, 4, 5), (4, 5), absolute=False),
    _grid("distances, clamp", (1, 3, 3), (2, 4), absolute=False, primary_edge_mode=CLAMP),
    _grid("one pixel", (4, 1, 1), (2, 2), primary_edge_mode=CLAMP),
]
