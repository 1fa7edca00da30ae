"""A model in ONNX's terms that is being put together of Core ML's operations or layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from openmps.errors import MPSError
from openmps.formats.onnx.model import Array, Attribute, Model, Node, Tensor
from openmps.formats.onnx.problems import NodeError

OPSET = 21
"""The version of ONNX's operators that the drafts are written in."""
FLOAT, HALF, INTEGER, BYTE = 1, 10, 6, 2
"""ONNX's types of numbers."""
CUT = "End the model before it, with outputs=[…] or --result, or export it without"


class Draft:
    """Operators and constants, and what the operation is called that they are written for."""

    def __init__(self) -> None:
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []
        self.aliases: dict[str, str] = {}
        """What is read in the place of some values."""
        self.title = self.kind = ""

    def add(self, operator: str, inputs: Sequence[Any], output: str, **attributes: Attribute) -> str:
        """An operator; its inputs are names, numbers, arrays, or None where one is left out."""
        names = tuple(map(self._name, inputs))
        self.nodes.append(Node(self.title, operator, "", names, (output,), attributes, original=self.kind))
        return output

    def several(self, operator: str, inputs: Sequence[Any], outputs: Sequence[str], **attributes: Attribute) -> None:
        """An operator with several outputs."""
        names = tuple(map(self._name, inputs))
        self.nodes.append(Node(self.title, operator, "", names, tuple(outputs), attributes, original=self.kind))

    def step(self, operator: str, inputs: Sequence[Any], **attributes: Attribute) -> str:
        """An operator whose output is another operator's input; its name."""
        return self.add(operator, inputs, f"step:{len(self.nodes)}", **attributes)

    def refuse(self, problem: NodeError, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Say why nothing does what the operation does."""
        self.nodes.append(
            Node(
                self.title, "", "", tuple(map(self._name, inputs)), tuple(outputs), {}, original=self.kind,
                refusal=problem,
            )
        )  # fmt: skip

    def tried(self, write: Callable[[], None], inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Write operators, or say why there are none."""
        count = len(self.nodes)
        try:
            with np.errstate(all="ignore"):  # numbers of a damaged model may be any
                write()
        except MPSError:
            raise
        except (
            NodeError,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:  # of damaged ones
            del self.nodes[count:]
            known = isinstance(error, NodeError)
            why = f"its arguments are not as expected ({type(error).__name__}: {str(error)[:120]})"
            self.refuse(error if known else NodeError(why, CUT), inputs, outputs)

    def constant(self, value: Array) -> str:
        """A new constant, by its name."""
        name = f"constant:{len(self.constants)}"
        self.constants[name] = value
        return name

    def _name(self, value: Any) -> str:
        if value is None or isinstance(value, str):
            return self.aliases.get(value, value) if value else ""
        return self.constant(np.asarray(value, np.float32) if isinstance(value, float) else np.asarray(value))

    def model(self, inputs: Sequence[Tensor], outputs: Sequence[str], size: int) -> Model:
        """The whole model, made of so many bytes."""
        ports = tuple(Tensor(name, FLOAT, None) for name in outputs)
        return Model(tuple(inputs), ports, self.constants, tuple(self.nodes), OPSET, size)


def normalized(
    draft: Draft, name: str, axes: Sequence[int], rank: int, rows: Mapping[str, Array], epsilon: float
) -> tuple[str, list[Any]]:
    """``gamma (x - m) / √(v + ε) + beta``, m and v the mean and variance over some axes: the last operator of it."""
    step = draft.step
    mean = step("ReduceMean", [name], axes=[*axes], keepdims=1)
    centred = step("Sub", [name, mean])
    variance = step("ReduceMean", [step("Mul", [centred, centred])], axes=[*axes], keepdims=1)
    found: list[Any] = [centred, step("Sqrt", [step("Add", [variance, epsilon])])]
    operator = "Div"
    for key, then in (("gamma", "Mul"), ("beta", "Add")):
        if key in rows:
            lengths = iter(rows[key].shape)
            row = rows[key].reshape([next(lengths) if axis in axes else 1 for axis in range(rank)])
            found, operator = [step(operator, found), row], then
    return operator, found


def unknown(kind: str) -> NodeError:
    """That there is nothing for an operation or a layer."""
    why = "no node of the framework computes it"
    return NodeError(f"{why}: recurrent layers are no part of a graph" if is_recurrent(kind) else why, CUT)


def is_recurrent(kind: str) -> bool:
    """Whether an operation or a layer is called as recurrent ones are."""
    return any(word in kind.lower() for word in ("lstm", "gru", "rnn", "recurrent"))
