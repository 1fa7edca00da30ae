"""The layers of a graph, each as work of its own, so that it can be run from images that a device has made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from openmps.checks import of_kind
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.kinds import listed
from openmps.errors import MPSArgumentError
from openmps.graph.compile.program import Program
from openmps.graph.graph import MPSNNGraph
from openmps.graph.run.trace import filter_names, source_names
from openmps.ops.op import Action, Op, Role
from openmps.types import MPSImageFeatureChannelFormat

WEIGHTS = ("weights", "rounded weights", "weights for float16")
"""What functions call the weights of convolutions."""
_FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32


def check_infers(who: str, graph: MPSNNGraph) -> None:
    """Raise unless it is a graph, and one that takes no labels."""
    of_kind(who, "graph", graph, MPSNNGraph)
    if graph.source_state_handles:
        raise MPSArgumentError(who, "graph", "must be one that infers", "a graph that takes labels")


def arrays_for(who: str, graph: MPSNNGraph, source_images: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """What a graph is given, an array for each of its sources."""
    arrays = listed(who, "source_images", source_images, np.ndarray, "arrays, [images, height, width, channels]")
    inputs = graph.interface.inputs
    if len(arrays) != len(inputs):
        raise MPSArgumentError(who, "source_images", graph.interface.count_rule(inputs), len(arrays))
    return arrays


@dataclass(frozen=True, eq=False)
class Change:
    """What a layer does otherwise: operations, their operands and numbers that they are given, by place and value."""

    ops: Mapping[int, Op] = field(default_factory=dict[int, Op])
    """By the place of the action."""
    left_out: frozenset[int] = frozenset()
    """Actions that hand on their first operand."""
    reads: Mapping[int, tuple[int, ...]] = field(default_factory=dict[int, "tuple[int, ...]"])
    given: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    behind: Op | None = None
    """An operation on the result."""


NOTHING = Change()
Observer = Callable[[int, Tensor], Tensor]
"""Gets each image that a layer makes on the way, by its value, and gives what is to stand in its place."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The work between images that a device has shown and the next one that it has.

    ``given`` are images ``[N, C, H, W]`` and parameters by value, ``parameters`` the names of the latter.
    """

    label: str
    within: tuple[str, ...]
    """The filters that run, in order: those that the device does not show, and the last."""
    actions: Sequence[Action]
    result: int
    images: Mapping[int, str]
    """What it reads of the device: labels by value."""
    inner: frozenset[int]
    """Values that are images which the device does not show."""
    parameters: Mapping[int, str]
    given: Mapping[int, Tensor]

    def run(
        self, change: Change = NOTHING, given: Mapping[int, Tensor] | None = None, see: Observer | None = None
    ) -> Tensor:
        """The result ``[N, C, H, W]``."""
        values: dict[int, Any] = {**(self.given if given is None else given), **change.given}
        for place, action in enumerate(self.actions):
            operands = [None if each < 0 else values[each] for each in change.reads.get(place, action.reads)]
            op = change.ops.get(place, action.op)
            made: Any = (operands[0],) if place in change.left_out else op.run(action.wanted, *operands)
            for value, each in zip(action.writes, made if isinstance(made, tuple) else (made,), strict=False):
                values[value] = see(value, each) if see is not None and value in self.inner else each
        found: Any = values[self.result]
        return found if change.behind is None else change.behind.run((True,), found)  # pyright: ignore[reportReturnType]


class Layers:
    """The layers of an inference graph over images of some sizes, in float32.

    ``conventions`` are those that the kernels follow instead of the graph's.
    """

    def __init__(
        self, graph: MPSNNGraph, images: Sequence[MPSImageDescriptor], count: int, conventions: Any = None
    ) -> None:
        self.program: Program = graph.program_in(_FLOAT32, images, count, conventions)
        self._function, makers = self.program.assemble()
        sources = source_names(self.program.inputs)
        self.labels = filter_names([stage.node for stage in self.program.stages], sources)
        """What the results of the filters are called."""
        self._images = {value: self.labels[place] for value, place in makers.items()}
        """The labels of results by value; those of sources, too."""
        self._memory: dict[int, tuple[str, Tensor]] = {}
        for each, value in zip(self._function.inputs, self._function.input_values, strict=True):
            if each.role is Role.SOURCE:
                self._images[value] = sources[int(each.name)]
            else:
                self._memory[value] = each.name.partition(":")[2], self.program.memory(each)
        self._values = {label: value for value, label in self._images.items()}
        self._makers = {value: action for action in self._function.actions for value in action.writes}

    def layer(self, label: str, shown: Mapping[str, Tensor]) -> Layer:
        """The work that makes an image of those that are shown, by label; every source must be among them."""
        result = self._values[label]
        used, ahead, borders, memory = set[int](), [result], set[int](), set[int]()
        inner = set[int]()
        while ahead:
            value = ahead.pop()
            if value != result and self._images.get(value) in shown:
                borders.add(value)
            elif value in self._memory:
                memory.add(value)
            elif value not in used and value >= 0:
                used.update(self._makers[value].writes)
                ahead += self._makers[value].reads
                inner.update({value} & set(self._images) - {result})
        actions = [each for each in self._function.actions if used.intersection(each.writes)]
        images = {value: self._images[value] for value in sorted(borders)}
        names = [self._images[value] for each in actions for value in each.writes if value in self._images]
        given = {value: shown[name] for value, name in images.items()}
        return Layer(
            label,
            tuple(names),
            actions,
            result,
            images,
            frozenset(inner),
            {value: self._memory[value][0] for value in sorted(memory)},
            {**given, **{value: self._memory[value][1] for value in memory}},
        )
