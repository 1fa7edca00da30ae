"""What a program has prepared of its kernels' memory: inputs of its function that no kernel binds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

from openmps.metal.version import Version
from openmps.ops.op import Input
from openmps.ops.rewrite.recipe import Recipe
from openmps.runtime.binding import HeldTensor
from openmps.runtime.derived import Dependents, Derived


class DerivedInputs:
    """The prepared inputs of one program, whose ``stages`` are its kernels, planned."""

    def __init__(self, recipes: Mapping[Input, Recipe], stages: Sequence[Any]) -> None:
        self._recipes = recipes
        self._stages = stages
        self._made: dict[Input, tuple[Derived, list[Dependents]]] = {}

    def versions(self) -> list[Version]:
        """Of the memory that they are made of: they are bound to others in other versions."""
        return [version for _, owners in self._made.values() for each in owners for version in each.versions()]

    def bound(self, prepared: Input) -> Derived:
        """What a prepared input is bound to: another one where memory that it is made of was replaced."""
        op, reads = self._recipes[prepared]
        places = [(self._stages[int(each.name.split(":")[0])], each) for each in reads if each is not None]
        owners = [stage.kernel.dependents(_name(each)) for stage, each in places]
        made, before = self._made.get(prepared, (None, []))
        if made is None or not all(map(is_, owners, before)):
            made = Derived(op, [HeldTensor(None) if each is None else self._source(each) for each in reads])
            self._made[prepared] = made, owners
            for each in owners:
                each.add(made)
        return made

    def _source(self, each: Input) -> Any:
        stage = self._stages[int(each.name.split(":")[0])]
        return stage.kernel.bound(each.role, _name(each), stage.plan, None)


def _name(each: Input) -> str:
    """The name of an input in the function of its stage."""
    return each.name.split(":")[1]
