"""Operators that exporters write in the place of one that the framework has: GeLU by the error function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from openmps.formats.onnx.model import Model, Node
from openmps.formats.onnx.uses import Uses, other

_NEAR = 1e-6
_ROOT = math.sqrt(2.0)


def joined(model: Model, wanted: Sequence[str]) -> Model:
    """The model with each ``x (1 + erf(x / √2)) / 2``, in any order of its products, as one Gelu.

    Not where a value between is read elsewhere, or is one of those ``wanted`` of the model.
    """
    if not any(node.operator == "Erf" for node in model.nodes):
        return model
    return replace(model, nodes=_Nodes(model, wanted).joined())


class _Found(NamedTuple):
    source: str
    last: Node
    gone: tuple[Node, ...]


class _Nodes(Uses):
    """The operators of a model, among which GeLUs are looked for."""

    def joined(self) -> tuple[Node, ...]:
        found = [each for node in self.nodes if node.operator == "Erf" and (each := self._gelu(node)) is not None]
        gone = {id(node) for each in found for node in each.gone}
        last = {id(each.last): each for each in found if id(each.last) not in gone}
        made: list[Node] = []
        for node in self.nodes:
            if id(node) in last:
                name = node.name or node.outputs[0]
                made.append(Node(name, "Gelu", "", (last[id(node)].source,), node.outputs, {}))
            elif id(node) not in gone:
                made.append(node)
        return tuple(made)

    def _gelu(self, erf: Node) -> _Found | None:
        """The whole around one error function; None where it is something else."""
        scaling = self.makers.get(erf.inputs[0]) if erf.inputs else None
        source = None if scaling is None else self._scaled(scaling)
        one = self.reader(erf)
        if scaling is None or source is None or one is None or self._with(one, "Add", 1.0) is None:
            return None
        # Behind it come products with the source and a half, in one order or the other, or with half of the source.
        steps, factors, last = [erf, one], {"source": 1, "half": 1}, one
        while any(factors.values()):
            following = self.reader(last)
            what = None if following is None else self._factor(following, last.outputs[0], source)
            if following is None or what is None or not factors[what]:
                return None
            factors[what] = 0
            if following.inputs.count(source) == 0 and what == "source":
                steps.append(self.makers[other(following, last.outputs[0])])
                factors["half"] = 0
            steps.append(following)
            last = following
        is_read_here = self.count[scaling.outputs[0]] == 1 and scaling.outputs[0] not in self.outputs
        more = (scaling,) if is_read_here else ()
        return _Found(source, last, (*more, *steps[:-1]))

    def _factor(self, node: Node, name: str, source: str) -> str | None:
        """What a product multiplies a value with: the source, or half of it, or a half."""
        if self._with(node, "Mul", 0.5) is not None or self._with(node, "Div", 2.0) is not None:
            return "half"
        if node.operator != "Mul" or len(node.inputs) != 2:
            return None
        factor = other(node, name)
        if factor == source:
            return "source"
        maker = self.makers.get(factor)
        if maker is None or self.count[factor] != 1 or factor in self.outputs:
            return None
        is_half = source in (self._with(maker, "Mul", 0.5), self._with(maker, "Div", 2.0))
        return "source" if is_half else None

    def _scaled(self, node: Node) -> str | None:
        """What is divided by √2."""
        return self._with(node, "Div", _ROOT) or self._with(node, "Mul", 1 / _ROOT)

    def _with(self, node: Node, operator: str, number: float) -> str | None:
        """The other operand of an operator with a number."""
        if node.operator != operator or len(node.inputs) != 2:
            return None
        sides = ((1, 0),) if operator == "Div" else ((1, 0), (0, 1))
        for constant, place in sides:
            value = self._number(node.inputs[constant])
            if value is not None and abs(value - number) <= _NEAR * number:
                return node.inputs[place]
        return None

    def _number(self, name: str) -> float | None:
        """One constant number; None for anything else."""
        array = self.constant(name)
        return (
            float(array.reshape(())[()]) if array is not None and array.size == 1 and array.dtype.kind == "f" else None
        )
