"""Python of a network for MLX as it grows: names, parts with parameters, statements, what stands beside the class."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.formats.onnx.problems import NodeError
from openmps.formats.swift.text import laid_out
from openmps.graph.compile.program import Program
from openmps.graph.nodes.node import MPSNNImageNode

Shape = tuple[int, int, int]
"""Rows, columns and channels."""
Layer = Callable[["Text", Any, Any], str]
"""Gives the expression of a node's result, of which the kernel knows what was planned."""
_TAKEN = frozenset[str](
    "mx nn optim self cls layers labels y t Path load loss optimizer windows padded edged max_pool average_pool "
    "norm_pool cross_channel_normalization resized parameters update apply train eval freeze unfreeze save_weights "
    "load_weights children modules state training items keys values get pop copy clear sum zip tuple range max".split()
)
"""Names that every written module, or MLX's own class of modules, uses for something."""
_TEMPLATES = files("openmps.formats.mlx") / "templates"
_NEEDS = {"max_pool": ("windows",), "average_pool": ("windows", "padded"), "norm_pool": ("windows",)}
"""What a part of the templates calls."""


@cache
def template(name: str) -> str:
    """The Python of one file."""
    return (_TEMPLATES / f"{name}.txt").read_text("utf-8")


def number(value: float) -> str:
    """A number of float32, the shortest that is read back as the same."""
    if not np.isfinite(value):
        raise NodeError(f"its number {value} has no literal in Python")
    return str(np.float32(value)).removesuffix(".0")


class Text:
    """What writers of one network share."""

    def __init__(self, program: Program, *, trains: bool) -> None:
        self._program, self.trains = program, trains
        self._names = set[str](_TAKEN)
        self._variables: dict[MPSNNImageNode, str] = {}
        self._members: set[str] = set()
        self.members: list[str] = []
        self.statements: list[str] = []
        self.weights: dict[str, NDArray[np.float32]] = {}
        self._beside: list[str] = []

    # --- names --------------------------------------------------------------------------------------------------------

    def _fresh(self, wanted: str, taken: set[str]) -> str:
        # To MLX an attribute that begins with an underscore is no parameter.
        name = re.sub(r"\W", "_", wanted, flags=re.ASCII).lstrip("_")
        name = f"layer_{name}" if not name or name[0].isdigit() or keyword.iskeyword(name) else name
        found, count = name, 2
        while found in taken or found in _TAKEN:
            found, count = f"{name}_{count}", count + 1
        taken.add(found)
        return found

    def variable(self, image: MPSNNImageNode) -> str:
        """What an image is called, which has been made."""
        return self._variables[image]

    def name(self, image: MPSNNImageNode, label: str) -> str:
        """A new name for an image."""
        self._variables[image] = self._fresh(label, self._names)
        return self._variables[image]

    def shape(self, image: MPSNNImageNode) -> Shape:
        """Rows, columns and channels of an image."""
        found = self._program.descriptors[image]
        return found.height, found.width, found.feature_channels

    # --- parts --------------------------------------------------------------------------------------------------------

    def let(self, wanted: str, expression: str) -> str:
        """A variable with the value of an expression."""
        name = self._fresh(wanted, self._names)
        self.assign(name, expression)
        return name

    def assign(self, name: str, expression: str) -> None:
        """A statement."""
        if name != expression:
            self.statements += laid_out(f"        {name} = {expression}")

    def member(self, wanted: str, expression: str, arrays: Mapping[str, NDArray[Any]], *, frozen: bool = False) -> str:
        """A part of the network with parameters; MLX trains them unless they are frozen."""
        name = self._fresh(wanted, self._members)
        self.members += laid_out(f"        self.{name} = {expression}")
        self.weights |= {f"{name}.{key}": np.ascontiguousarray(each, np.float32) for key, each in arrays.items()}
        if frozen:
            self.members.append(f"        self.{name}.freeze()")
        return f"self.{name}"

    def use(self, name: str) -> None:
        """Something of the templates that stands beside the class, with what it calls."""
        for other in _NEEDS.get(name, ()):
            self.use(other)
        if name not in self._beside:
            self._beside.append(name)

    @property
    def beside(self) -> str:
        """What stands beside the class, in the order of its first use."""
        return "".join(f"{template(name)}\n\n" for name in self._beside)
