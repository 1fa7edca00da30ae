"""Each rule of the table of fusions, on every pair of operations that its patterns take, against the unfused run.

The nodes of the catalogue follow one another in twos, in every configuration that their samples have, and in threes
and fours where a rule works on what other rules make. What a rule claims by its pattern and never changes is told.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import openmps as mps
from encoding import FLOAT16, FLOAT32, Bench, finish, numbers
from node_catalogue import NODE_SAMPLES
from openmps.errors import MPSError
from openmps.graph.compile import compiler
from openmps.ops.op import Equation, Function
from openmps.ops.rewrite.recipe import FusedFunction
from openmps.ops.rewrite.rule import Place, Rule, Situation
from openmps.ops.rewrite.table import RULES
from samples.sample import Sample

pytestmark = pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning", "ignore:.*channels a group")
IMAGES = 2
ROUNDING = {FLOAT32: 2.0**-17, FLOAT16: 2.0**-8}
"""Of the largest number of a result: some roundings of the sums before it, and of what stands between."""


class Link(NamedTuple):
    """A node of a chain, by the sample of its kernel."""

    kind: type[mps.MPSNNFilterNode]
    sample: Sample


LINKS = [Link(kind, sample) for kind, entry in NODE_SAMPLES.items() for sample in entry.samples]


class Chain:
    """Nodes one behind the other; each reads the one before, and images of the same size besides."""

    def __init__(self, bench: Bench, links: Sequence[Link]) -> None:
        self.bench = bench
        first = mps.MPSNNImageNode()
        self.shapes = {first: links[0].sample.shapes[0]}
        self.result = first
        for link in links:
            others = [mps.MPSNNImageNode() for _ in link.sample.shapes[1:]]
            self.shapes |= dict.fromkeys(others, self.size())
            kernel = link.sample.make(bench.device)
            node = NODE_SAMPLES[link.kind].make(kernel, [self.result, *others])
            self.result = node.result_image

    def size(self) -> tuple[int, int, int]:
        """Of the result so far."""
        if self.result in self.shapes:
            return self.shapes[self.result]
        graph = mps.MPSNNGraph(self.bench.device, self.result)
        extent = graph.program_for(self.descriptors(graph, FLOAT32)).stages[-1].shape.extent
        return extent.channels, extent.height, extent.width

    def descriptors(self, graph: mps.MPSNNGraph, channel_format: Any) -> list[mps.MPSImageDescriptor]:
        sizes = [self.shapes[node] for node in graph.interface.inputs]
        return [mps.MPSImageDescriptor(channel_format, width, height, channels) for channels, height, width in sizes]

    def graph(self, channel_format: Any, *, trains: bool) -> mps.MPSNNGraph:
        result = self.result
        if trains:
            made = mps.MPSNNInitialGradientNode(result).training_graph(None)
            assert made
            result = made[0].result_image
        graph = mps.MPSNNGraph(self.bench.device, result)
        graph.format = channel_format
        return graph


class Claim(NamedTuple):
    """A match of a rule's pattern, and whether the rule has changed it."""

    rule: str
    operations: tuple[str, ...]
    fired: bool


def claims(function: Function, situation: Situation) -> Iterator[Claim]:
    """All matches while the table is applied."""
    fused = FusedFunction(function, {}, {})
    for rule in RULES:
        if not rule.may_run(fused.function, situation):
            continue
        after = rule.apply(fused, situation)
        left = set(after.function.equations) if after.recipes == fused.recipes else set[Equation]()
        for match in _matches(rule, fused.function):
            yield Claim(rule.name, tuple(map(_name, match)), after is not fused and not left.issuperset(match))
        fused = after


def _matches(rule: Rule, function: Function) -> list[tuple[Equation, ...]]:
    from openmps.ops.rewrite.data_flow import DataFlow

    flow = DataFlow(function)
    return [match for equation in function.equations for match in rule.matches(flow, equation)]


def _name(equation: Equation) -> str:
    """An operation, and which neuron or arithmetic it is."""
    op: Any = equation.op
    which = getattr(op, "function", None) or getattr(op, "operation", None)
    return type(op).__name__ + (f" {which.name}" if which is not None else "")
