"""Operations, equations, functions: what is run, what is left out, what may share memory, what splicing gives."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from openmps.ops.elements import Load, Store
from openmps.ops.image.threshold import Limited
from openmps.ops.op import Builder, Function, Kind, Op, Role
from openmps.types import MPSImageFeatureChannelFormat as Format


@dataclass(frozen=True, slots=True)
class Scale(Op):
    factor: float

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        return operands[0] * self.factor


@dataclass(frozen=True, slots=True)
class Both(Op):
    """Twice and thrice the operand; notes what was wanted."""

    results: ClassVar[int] = 2
    calls: ClassVar[list[tuple[bool, ...]]] = []

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> tuple[Tensor | None, ...]:
        self.calls.append(wanted)
        return tuple(operands[0] * factor if want else None for factor, want in zip((2, 3), wanted, strict=True))


@dataclass(frozen=True, slots=True)
class Plus(Op):
    """The sum of the operands that are there."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor | None) -> Tensor:
        return torch.stack([operand for operand in operands if operand is not None]).sum(0)


@dataclass(frozen=True, slots=True)
class View(Op):
    gives_view: ClassVar[bool] = True

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        return operands[0][:]


@dataclass(frozen=True, slots=True)
class Bump(Op):
    """Adds a number to memory."""

    kind: ClassVar[Kind] = Kind.UPDATE
    results: ClassVar[int] = 0
    has_effect: ClassVar[bool] = True

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> None:
        memory, number = operands
        memory.add_(number)


@dataclass(frozen=True, slots=True)
class Widen(Op):
    gives_view: ClassVar[bool] = True

    @property
    def takes_half(self) -> bool:
        return True

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        return operands[0].float()


@dataclass(frozen=True, slots=True)
class Double(Op):
    """Takes float16 as it is."""

    @property
    def takes_half(self) -> bool:
        return True

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        return operands[0] + operands[0]


ONE = torch.ones(2)


def run(function: Function, *values: Any) -> list[Any]:
    return function.run(list(values))


def test_operations_are_values() -> None:
    assert Scale(2.0) == Scale(2.0) != Scale(3.0)
    assert len({Scale(2.0), Scale(2.0), Scale(3.0)}) == 2
    with pytest.raises(AttributeError):
        Scale(2.0).factor = 3.0  # pyright: ignore[reportAttributeAccessIssue]


def _power(x: Tensor, exponent: float, *, scale: float) -> Tensor:
    return x**exponent * scale


class Power(Op, of=_power, kind=Kind.REDUCTION, half=True):
    """`_power`."""

    exponent: float
    scale: float = 1.0


class Root(Power, half=False):
    """Inherits all but what is said."""


def test_an_operation_of_a_function_gives_it_the_fields() -> None:
    assert torch.equal(torch.as_tensor(Power(3.0, scale=2.0).run((True,), 2 * ONE)), 16 * ONE)
    assert (Power(2.0).takes_half, Power(2.0).gives_half, Power.kind, Op.kind) == (
        True, True, Kind.REDUCTION, Kind.POINTWISE,
    )  # fmt: skip
    assert (Root(0.5).takes_half, Root.kind) == (False, Kind.REDUCTION)
    assert repr(Power(2.0)) == "Power(exponent=2.0, scale=1.0)"
    assert Power(2.0) == Power(2.0, 1.0) != Root(2.0)
    assert len({Power(2.0), Power(2.0), Power(3.0)}) == 2
    assert copy.deepcopy(Power(2.0)) == Power(2.0)
    with pytest.raises(AttributeError):
        Power(2.0).scale = 3.0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError):
        del Power(2.0).scale  # pyright: ignore[reportAttributeAccessIssue]


def test_steps_run_in_order() -> None:
    builder = Builder()
    x = builder.input(Role.SOURCE, "0")
    builder.output("y", Scale(3.0)(Scale(2.0)(x)))
    assert run(builder.finish(), ONE)[0].tolist() == [6.0, 6.0]


def test_a_finished_builder_is_no_cycle() -> None:
    """What a plan was built with goes when the last value does, without the garbage collector."""
    builder = Builder(widen=Scale(1.0))
    x = builder.input(Role.SOURCE, "0", is_half=True)
    builder.output("y", Scale(3.0)(x))
    builder.finish()
    gone = weakref.ref(builder)
    gc.disable()
    try:
        del builder, x
        assert gone() is None
    finally:
        gc.enable()


def test_an_input_of_one_name_is_one_slot() -> None:
    builder = Builder()
    assert builder.input(Role.BUFFER, "weights") is builder.input(Role.BUFFER, "weights")
    assert builder.input(Role.BUFFER, "weights") is not builder.input(Role.NUMBER, "weights")


def test_what_nobody_reads_is_left_out() -> None:
    builder = Builder()
    x = builder.input(Role.SOURCE, "0")
    twice, thrice = Both()(x)
    Scale(5.0)(thrice)
    builder.output("y", twice)
    function = builder.finish()
    assert [type(equation.op) for equation in function.equations] == [Both]
    Both.calls.clear()
    assert run(function, ONE)[0].tolist() == [2.0, 2.0]
    assert Both.calls == [(True, False)]


def test_outputs_can_be_given_up() -> None:
    builder = Builder()
    twice, thrice = Both()(builder.input(Role.SOURCE, "0"))
    builder.output("result", twice)
    builder.output("saved", thrice)
    function = builder.finish()
    bare = function.only(["result"])
    assert (function.outputs, bare.outputs) == (("result", "saved"), ("result",))
    assert function.only(function.outputs) is function
    Both.calls.clear()
    run(function, ONE)
    run(bare, ONE)
    assert Both.calls == [(True, True), (True, False)]


def test_an_effect_needs_no_reader() -> None:
    builder = Builder()
    Bump()(builder.input(Role.BUFFER, "memory"), builder.input(Role.NUMBER, "amount"))
    function, memory = builder.finish(), torch.zeros(2)
    for amount in (1.0, 2.0):
        assert run(function, memory, amount) == []
    assert memory.tolist() == [3.0, 3.0]


def test_an_operand_may_be_left_out() -> None:
    builder = Builder()
    x = builder.input(Role.SOURCE, "0")
    builder.output("y", Plus()(x, None, x))
    assert run(builder.finish(), ONE)[0].tolist() == [2.0, 2.0]


def test_slots_are_emptied_behind_their_last_reader() -> None:
    builder = Builder()
    x = builder.input(Role.SOURCE, "0")
    y = Scale(2.0)(x)
    z = Plus()(x, y)
    builder.output("z", z)
    frees = [action.frees for action in builder.finish().actions]
    assert [set(each) for each in frees] == [set(), {x.index, y.index}]


def test_memory_is_traced_through_views() -> None:
    builder = Builder()
    x = builder.input(Role.SOURCE, "0")
    fresh = Scale(2.0)(x)
    for name, value in {"view": View()(x), "own": Scale(3.0)(x), "fresh": fresh, "again": View()(fresh)}.items():
        builder.output(name, value)
    function = builder.finish()
    assert dict(zip(function.outputs, function.may_share, strict=True)) == {
        "view": True, "own": False, "fresh": True, "again": True,
    }  # fmt: skip


def test_an_input_may_come_out() -> None:
    builder = Builder()
    builder.output("y", builder.input(Role.SOURCE, "0"))
    function = builder.finish()
    assert function.may_share == (True,)
    assert run(function, ONE)[0] is ONE


@pytest.mark.parametrize(("op", "equations"), [(Double(), [Double]), (Scale(2.0), [Widen, Scale])])
def test_float16_is_widened_for_those_who_do_not_take_it(op: Op, equations: list[type[Op]]) -> None:
    builder = Builder(widen=Widen())
    builder.output("y", op(builder.input(Role.SOURCE, "0", is_half=True)))
    function = builder.finish()
    assert [type(equation.op) for equation in function.equations] == equations
    assert run(function, ONE.half())[0].tolist() == [2.0, 2.0]


def test_float16_is_widened_once() -> None:
    builder = Builder(widen=Widen())
    x = builder.input(Role.SOURCE, "0", is_half=True)
    builder.output("y", Plus()(Scale(2.0)(x), Scale(3.0)(x)))
    assert sum(isinstance(equation.op, Widen) for equation in builder.finish().equations) == 1


def test_results_of_float16_operands_may_be_float16() -> None:
    builder = Builder(widen=Widen())
    x = builder.input(Role.SOURCE, "0", is_half=True)
    builder.output("y", Scale(2.0)(Double()(x)))
    assert [type(equation.op) for equation in builder.finish().equations] == [Double, Widen, Scale]


def test_bodies_are_put_end_to_end() -> None:
    def function(factor: float) -> Function:
        builder = Builder()
        x, bias = builder.input(Role.SOURCE, "0"), builder.input(Role.BUFFER, "bias")
        builder.output("result", Plus()(Scale(factor)(x), bias))
        return builder.finish()

    builder = Builder()
    x, bias = builder.input(Role.SOURCE, "0"), builder.input(Role.BUFFER, "1:bias")
    first = builder.splice(function(2.0), [x, None])["result"]
    second = builder.splice(function(3.0), [first, bias])["result"]
    builder.output("first", first)
    builder.output("second", second)
    whole = builder.finish()
    assert [each.tolist() for each in run(whole, ONE, 10 * ONE)] == [[2.0, 2.0], [16.0, 16.0]]
    assert whole.may_share == (False, False)


def test_no_slot_no_body() -> None:
    with pytest.raises(TypeError, match="at least one value"):
        Scale(2.0)(None)


def _ends_in(*ops: Op) -> Function:
    builder = Builder()
    value = builder.input(Role.SOURCE, "0")
    for op in ops:
        value = op(value)
    builder.output("result", value)
    return builder.finish()


@pytest.mark.parametrize(
    "last",
    [Limited(0.0, 0.5), Load(Format.FLOAT32), Store(Format.FLOAT32), Store(Format.FLOAT16), Store(Format.UNORM8)],
)
def test_the_last_operation_writes_where_its_result_goes(last: Op, place: torch.device) -> None:
    """Where it can: else, and where its operand lies there, the result is given."""
    x = torch.linspace(-1.0, 2.0, 2 * 4 * 3 * 5, device=place).view(2, 4, 3, 5).to(memory_format=torch.channels_last)
    x[0, 0, 0, :2] = torch.tensor([torch.nan, torch.inf], device=place)
    function, alone = _ends_in(Scale(1.0), last), _ends_in(last)
    (expected,) = function.run([x.clone()])
    room = torch.full_like(expected, 7)
    (found,) = function.run([x.clone()], room)
    is_whole = found is None
    torch.testing.assert_close(room if is_whole else found, expected, rtol=0, atol=0, equal_nan=True)
    assert is_whole is (last != Store(Format.UNORM8) or place.type == "cuda")
    # A part of a larger image, with gaps between its rows.
    larger = torch.full((2, 4, 6, 9), 7, dtype=expected.dtype, device=place).to(memory_format=torch.channels_last)
    (found,) = function.run([x.clone()], larger[:, :, 1:4, 2:7])
    if found is None:
        torch.testing.assert_close(larger[:, :, 1:4, 2:7], expected, rtol=0, atol=0, equal_nan=True)
        larger[:, :, 1:4, 2:7] = 7
    assert bool((larger == 7).all())
    # The operand's own memory, and memory of another shape.
    (found,) = alone.run([x.clone()], torch.full_like(expected, 7)[:1])
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    if last != Store(Format.UNORM8):
        (found,) = alone.run([x], x[:, :, :, :])
        assert found is not None


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x / 2, x - 2


def _halves_into(room: torch.Tensor, x: torch.Tensor) -> Any:
    if room.shape != x.shape:
        return False
    second = x - 2
    torch.div(x, 2, out=room)
    return None, second


class Halves(Op, of=_halves, into=_halves_into, results=2):
    """Two results, of which the first goes where it is wanted."""


class HalvesInPlace(Op, of=_halves, into=_halves_into, results=2):
    """The same, of whatever memory."""

    _reads_first: ClassVar[bool] = True


@pytest.mark.parametrize("op", [Halves(), HalvesInPlace()], ids=repr)
def test_the_first_of_several_results_goes_where_it_is_wanted(op: Op) -> None:
    """If all outputs are results of the last operation, in any order behind the first."""

    def function(*outputs: int) -> Function:
        builder = Builder()
        made = [*op(Scale(1.0)(builder.input(Role.SOURCE, "0")))]
        made.append(Scale(3.0)(made[0]) if 2 in outputs else made[0])
        for place, index in enumerate(outputs):
            builder.output(str(place), made[index])
        return builder.finish()

    x, room = torch.arange(4.0), torch.full((4,), 7.0)
    every = (0,), (0, 1), (1, 0), (1,), (0, 2), (0, 0)
    assert [function(*outputs).fills for outputs in every] == [True, True, False, False, False, False]
    assert [each is None for each in function(0, 0).run([x], room)] == [False, False]
    found = function(0, 1).run([x], room)
    assert found[0] is None and room.tolist() == [0, 0.5, 1, 1.5] and found[1].tolist() == [-2, -1, 0, 1]
    found = function(0, 1).run([x], torch.full((3,), 7.0))
    assert [each.tolist() for each in found] == [[0, 0.5, 1, 1.5], [-2, -1, 0, 1]]
    builder = Builder()
    for name, value in zip("ab", op(builder.input(Role.SOURCE, "0")), strict=True):
        builder.output(name, value)
    first, second = builder.finish().run([x], x)
    assert (first is None) is isinstance(op, HalvesInPlace) and second.tolist() == [-2, -1, 0, 1]
    assert (x if first is None else first).tolist() == [0, 0.5, 1, 1.5]
