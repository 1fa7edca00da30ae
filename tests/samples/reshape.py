"""Reshaping."""

from __future__ import annotations

from typing import Any

from openmps.kernels import reshape as kernels
from openmps.types import MPSNNPaddingMethod
from oracles import reshape
from samples.sample import GradientSample, Sample, Shape, configured


class Shaped:
    """A padding policy that gives results one shape: how reshapes were sized before macOS 11."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def archived(self) -> dict[str, Any]:
        return {"shape": self.shape}

    def padding_method(self) -> MPSNNPaddingMethod:
        return MPSNNPaddingMethod.CUSTOM

    def destination_image_descriptor(self, images: Any, states: Any, kernel: Any, suggested: Any) -> Any:
        suggested.feature_channels, suggested.height, suggested.width = self.shape
        return suggested


def _reshape(source: Shape, result: Shape) -> Sample:
    return Sample(
        f"reshape {source} to {result}",
        lambda device: configured(kernels.MPSNNReshape(device), {"padding": Shaped(result)}),
        (source,),
        lambda sources, how: reshape.reshape(sources[0], result),
        (
            GradientSample(
                kernels.MPSNNReshapeGradient, lambda g, sources, how: reshape.reshape(g, sources[0].shape[1:])
            ),
        ),
        traits=frozenset({"affine", "ignores offset", "own channels"}),
    )


RESHAPES = [
    _reshape((6, 3, 4), (4, 2, 9)),
    _reshape((4, 2, 3), (24, 1, 1)),
    _reshape((5, 1, 1), (1, 1, 5)),
    _reshape((3, 4, 2), (3, 4, 2)),
    _reshape((1, 1, 1), (1, 1, 1)),
]
