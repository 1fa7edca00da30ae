"""Dropout of modules that are trained: nodes in the network that trains, none in the one that infers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from openmps.formats.onnx.model import Attribute, Model
from openmps.formats.onnx.sources import DataSources, ImageNormalizationSources, MomentumSources

OPERATOR = "Dropout"
KEPT, SEED, OF_CHANNELS = "keep_probability", "dropout_seed", "of_channels"
"""What an operator says that drops out in training; ONNX has no such attributes."""
Give = Callable[[str, tuple[Any, ...], float | None], Any]


def attributes(probability: float, seed: int, *, of_channels: bool) -> dict[str, Attribute]:
    """Those of an operator that drops numbers out with a probability, whole channels of images with ``of_channels``."""
    return {KEPT: 1.0 - probability, SEED: seed, OF_CHANNELS: int(of_channels)}


def drops_out(model: Model) -> bool:
    """Whether a model drops out."""
    return any(node.operator == OPERATOR and node.given(KEPT) for node in model.nodes)


def without_dropout(model: Model) -> Model:
    """The model with operators that pass on what they are given in the place of those that drop out."""
    plain = (replace(node, attributes={}) if node.operator == OPERATOR else node for node in model.nodes)
    return replace(model, nodes=tuple(plain))


class _Handing:
    """Data sources by a function of the method that was asked, its arguments and the momentum that was said."""

    def __init__(self, give: Give, momentum: float | None = None) -> None:
        self._give, self._momentum = give, momentum

    def with_momentum(self, momentum: float) -> Any:
        """Of layers with this momentum."""
        return type(self)(self._give, momentum)

    def convolution(self, *numbers: Any) -> Any:
        """Of a convolution."""
        return self._give("convolution", numbers, self._momentum)

    def batch_normalization(self, *numbers: Any) -> Any:
        """Of a batch normalization."""
        return self._give("batch_normalization", numbers, self._momentum)


class _HandingAll(_Handing):
    """The same where instance and group normalizations are trained, too."""

    def instance_normalization(self, *numbers: Any) -> Any:
        """Of an instance normalization."""
        return self._give("instance_normalization", numbers, self._momentum)

    def group_normalization(self, *numbers: Any) -> Any:
        """Of a group normalization."""
        return self._give("group_normalization", numbers, self._momentum)


def kept_in(made: list[Any], sources: DataSources) -> Any:
    """``sources``, which add what they make to a list."""

    def give(method: str, given: tuple[Any, ...], momentum: float | None) -> Any:
        maker: Any = sources
        if momentum is not None and isinstance(sources, MomentumSources):
            maker = sources.with_momentum(momentum)
        made.append(getattr(maker, method)(*given))
        return made[-1]

    return _handing(sources, give)


def again(made: Sequence[Any], sources: DataSources) -> Any:
    """Those that give in the same order what ``sources`` have made."""
    left = iter(made)
    return _handing(sources, lambda method, given, momentum: next(left))


def _handing(sources: DataSources, give: Give) -> Any:
    return (_HandingAll if isinstance(sources, ImageNormalizationSources) else _Handing)(give)
