"""Applies the table of fusions to a function. ``MPSNNGraph.allow_fusion`` turns that off."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.ops.op import Function
from openmps.ops.rewrite.data_flow import verify
from openmps.ops.rewrite.recipe import FusedFunction
from openmps.ops.rewrite.rule import Rule, Situation
from openmps.ops.rewrite.table import RULES


def fuse(function: Function, situation: Situation, rules: Sequence[Rule] = RULES) -> FusedFunction:
    """The function after every rule that may run there, one after the other."""
    fused = FusedFunction(function, {}, {})
    for rule in rules:
        if rule.may_run(fused.function, situation):
            fused = rule.apply(fused, situation)
    verify(fused.function)
    return fused
