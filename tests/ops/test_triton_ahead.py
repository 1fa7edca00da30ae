"""What launches kernels: what was compiled for equal arguments is launched, and nothing else is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from openmps.ops import triton as forms
from openmps.ops.image.one_pass import OnePass
from openmps.ops.image.site import Site, Stored
from openmps.ops.op import Function, Input, Role
from openmps.ops.triton import ahead, blocks
from openmps.ops.triton.ahead import Compiling, Launch, Launched, Launches
from openmps.types import MPSImageFeatureChannelFormat

OWN_HOOKS = ahead._hooks
FLAT = torch.zeros(64)
BYTES = torch.zeros(64, dtype=torch.uint8)


@dataclass
class Described:
    """Stands for a descriptor of Triton's."""

    base: torch.Tensor
    block_shape: list[int]


LAUNCHES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    # What launches come one after another, and which of them are compiled for others.
    ("anew", (FLAT, 5, 0.5, (FLAT, 2)), {}),
    ("kept", (torch.ones(64), 5, 0.5, (torch.ones(64), 2)), {}),
    ("anew", (FLAT[1:], 5, 0.5, (FLAT, 2)), {}),
    ("anew", (FLAT, 5, 0.5, (FLAT[1:], 2)), {}),
    ("anew", (BYTES, 5, 0.5, (FLAT, 2)), {}),
    ("anew", (FLAT, 6, 0.5, (FLAT, 2)), {}),
    ("anew", (FLAT, 5.0, 0.5, (FLAT, 2)), {}),
    ("anew", (FLAT, True, 0.5, (FLAT, 2)), {}),
    ("anew", (FLAT, 1, 0.5, (FLAT, 2)), {}),
    ("anew", (FLAT, 5, 0.0, (FLAT, 2)), {}),
    ("anew", (FLAT, 5, -0.0, (FLAT, 2)), {}),
    ("anew", (FLAT, 5, 0.5, (FLAT, 2)), {"num_warps": 8}),
    ("kept", (FLAT, 5, 0.5, (FLAT, 2)), {"num_warps": 8}),
    ("kept", (FLAT, 5, 0.5, (FLAT, 2)), {}),
    ("anew", (Described(FLAT, [4, 8]),), {}),
    ("kept", (Described(torch.ones(64), [4, 8]),), {}),
    ("anew", (Described(FLAT, [8, 8]),), {}),
    ("anew", (Described(BYTES, [4, 8]),), {}),
]


class Kernel:
    """Stands for a kernel of Triton: a launch gives what it was compiled to, a launch of that says so."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, **_: (self.launched.append(("anew", grid, arguments)), Compiled(self))[1]


class Compiled:
    function, packed_metadata = 17, (2, 1, 0)

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *arguments, stream: self.kernel.launched.append((f"described, {stream}", grid, arguments))

    def run(self, x: int, y: int, z: int, stream: str, *arguments: Any) -> None:
        """As Triton has it, behind the stream: what is launched, and what describes the launch to two hooks."""
        assert arguments[:5] == (self.function, self.packed_metadata, None, None, None)
        self.kernel.launched.append((f"kept, {stream}", (x, y, z), arguments[5:]))


class Chain:
    """Stands for Triton's chains of hooks."""

    def __init__(self) -> None:
        self.calls: list[object] = []


@pytest.fixture(autouse=True)
def chains(monkeypatch: pytest.MonkeyPatch) -> tuple[Chain, Chain]:
    """Those of Triton, which need not be there."""
    made = Chain(), Chain()
    hooks = SimpleNamespace(launch_enter_hook=made[0], launch_exit_hook=made[1])
    monkeypatch.setattr(ahead, "_hooks", lambda: hooks)
    return made


def test_launches_of_equal_arguments_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_stream_of", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    kernel = Kernel()
    launched = Launched(kernel)
    for _, arguments, options in LAUNCHES:
        launched[4, 2](*arguments, **options)
    launched[4, 3](*LAUNCHES[0][1])  # another grid
    wanted = {"anew": ("anew", (4, 2)), "kept": ("kept, stream of 3", (4, 2, 1))}
    assert [(how, grid) for how, grid, _ in kernel.launched[:-1]] == [wanted[how] for how, _, _ in LAUNCHES]
    assert kernel.launched[-1][:2] == ("anew", (4, 3))
    for (_, _, found), (_, arguments, _) in zip(kernel.launched, LAUNCHES, strict=False):
        assert all(mine is its for mine, its in zip(found, arguments, strict=True))


def test_launches_are_described_to_hooks(chains: tuple[Chain, Chain], monkeypatch: pytest.MonkeyPatch) -> None:
    """Which profilers add and take away while kernels are kept. So is a launch whose stream Triton is to find."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    kernel, streams = Kernel(), iter(["one", "two", "three", "four", None])
    monkeypatch.setattr(ahead, "_stream_of", lambda device: next(streams))
    launched = Launched(kernel)
    launched[(1,)](FLAT)
    for chain in chains:
        chain.calls.append(kernel)
        launched[(1,)](FLAT)
        chain.calls.clear()
        launched[(1,)](FLAT)
    launched[(1,)](FLAT)
    found = [how for how, _, _ in kernel.launched[1:]]
    assert found == ["described, one", "kept, two", "described, three", "kept, four", "described, None"]


def test_triton_has_chains_of_hooks_which_are_empty() -> None:
    """Where it has none that are known, launches are made by its own way."""
    pytest.importorskip("triton")
    hooks = OWN_HOOKS()
    assert [each.calls for each in (hooks.launch_enter_hook, hooks.launch_exit_hook)] == [[], []]


def test_few_launches_are_kept_where_numbers_are_others_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    launched = Launched(Kernel())
    for number in range(1000):
        launched[(1,)](FLAT, number)
    assert len(launched._kept) <= 256


def _joined(kernel: Any, given: list[torch.Tensor], made: torch.Tensor) -> Launches:
    """Two launches, of all pictures and of what lies between them."""
    between = torch.zeros(3)
    first = Launch(Launched(kernel), (2,), (*given, 0.5, between))
    return Launches((first, Launch(Launched(kernel), (3, 4), (between, 7, made), {"num_warps": 2})), (between,))


def _form(kernel: Any, sources: str, monkeypatch: pytest.MonkeyPatch) -> OnePass:
    """Of bytes, whose launch takes all pictures."""
    monkeypatch.setattr(ahead, "_stream_of", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(forms, "runs_on", lambda device: True)
    stored, inputs = Stored(MPSImageFeatureChannelFormat.UNORM8, 4), tuple(Input(Role.SOURCE, name) for name in sources)
    site = Site((), (stored,) * len(sources), (), (), stored, (2, 2), 1.0, 1.0)
    return OnePass(
        lambda given, made: Launches.of(Launched(kernel), (2,), (*given, 0.5, made)),
        site,
        Function(inputs, (), ("y",), (0,), len(sources)),
    )


def _picture(first: int = 0) -> torch.Tensor:
    """Four pixels of four bytes, so many bytes behind a multiple of 16."""
    memory = torch.zeros(64, dtype=torch.uint8)
    place = -memory.data_ptr() % 16 + first
    return memory[place : place + 16].view(1, 2, 2, 4).permute(0, 3, 1, 2)


def test_launches_are_made_again_of_the_addresses_of_other_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one picture was both sources at first; anew where addresses have other remainders by 16."""
    monkeypatch.setattr(ahead, "_stream_of", lambda device: f"stream of {device}")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(forms, "runs_on", lambda device: True)
    kernel = Kernel()
    stored, inputs = Stored(MPSImageFeatureChannelFormat.UNORM8, 4), tuple(Input(Role.SOURCE, name) for name in "01")
    site = Site((), (stored, stored), (), (), stored, (2, 2), 1.0, 1.0)
    form = OnePass(lambda given, made: _joined(kernel, given, made), site, Function(inputs, (), ("y",), (0,), 2))
    x, y, made = (_picture() for _ in range(3))

    def launched(*pictures: torch.Tensor, room: torch.Tensor | None = made) -> list[Any]:
        kernel.launched.clear()
        (found,) = form.run([*pictures], room) or [x]
        assert (found is None) == (room is not None)
        return [(how, grid, *arguments) for how, grid, arguments in kernel.launched]

    assert [each[:2] for each in launched(x, x)] == [("anew", (2,)), ("anew", (3, 4))]
    first, second = launched(x, y)
    between = first[-1]
    assert first == ("kept, stream of 3", (2, 1, 1), x.data_ptr(), y.data_ptr(), 0.5, between)
    assert second == ("kept, stream of 3", (3, 4, 1), between, 7, made.data_ptr())
    assert {each[0] for each in launched(x, y, room=None)} == {"kept, stream of 3"}
    assert {each[0] for each in launched(_picture(4), y)} == {"anew"}
    assert {each[0] for each in launched(_picture(4), _picture(20))} == {"anew"}
    assert launched(_picture(4), y)[0][0] == "kept, stream of 3"
    for first in range(16):
        for other in range(16):
            launched(_picture(first), _picture(other))
    assert len(form._kept) <= 64


def test_launches_at_the_very_addresses_of_one_before_are_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for pictures that lie otherwise there."""
    kernel = Kernel()
    form = _form(kernel, "01", monkeypatch)
    x, y, made = (_picture() for _ in range(3))

    def launched(*pictures: torch.Tensor, room: torch.Tensor = made) -> list[Any]:
        kernel.launched.clear()
        assert form.run([*pictures], room) == [None]
        return [(how, *arguments) for how, _, arguments in kernel.launched]

    once, other = (
        ("kept, stream of 3", *map(torch.Tensor.data_ptr, each), 0.5, made.data_ptr()) for each in ((x, y), (y, x))
    )
    assert launched(x, y)[0][0] == "anew"
    assert [launched(x, y), launched(y, x)] == [[once], [other]]
    with monkeypatch.context() as patch:
        patch.setattr(ahead.Again, "_of", None)  # which puts arguments together
        assert [launched(x, y), launched(y, x), launched(x, y)] == [[once], [other], [once]]
    turned = x.permute(0, 1, 3, 2)
    assert turned.data_ptr() == x.data_ptr()
    assert form.run([turned, y], made) is None
    assert form.run([x, y], made.permute(0, 1, 3, 2)) != [None]
    for first in range(0, 16, 4):
        for second in range(64):
            form.run([_picture(first), _picture(second % 16)], _picture())
    assert len(form._placed) <= 64
    assert form.run([x, y], y) != [None]  # a result that meets a source goes elsewhere


def test_nothing_is_launched_while_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the first time, nor again; and nothing is kept of it."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    kernel, asked = Kernel(), list[Any]()
    monkeypatch.setattr(Compiling, "ask", lambda self, *arguments, **options: asked.append(arguments))
    tensors = [FLAT, BYTES, torch.zeros(2)]
    launches = _joined(kernel, tensors[:2], tensors[2])
    with Compiling(torch.device("cpu")):
        assert launches.first(tensors) is None
    assert (len(asked), kernel.launched) == (2, [])
    again = launches.first(tensors)
    assert again is not None
    kernel.launched.clear()
    with Compiling(torch.device("cpu")):
        again([each.data_ptr() for each in tensors])
    assert again.placed([]) is None  # its memory between is other memory each time
    form = _form(kernel, "0", monkeypatch)
    x, made = _picture(), _picture()
    for _ in range(2):
        form.run([x], made)
    assert len(form._placed) == 1
    kernel.launched.clear()
    with Compiling(torch.device("cpu")):
        form.run([x], made)
    assert kernel.launched == []


def test_numbers_of_blocks_are_those_of_triton() -> None:
    """Whose own functions are asked in no launch: they take as long as a third of it."""
    triton = pytest.importorskip("triton")
    for count in range(1, 300):
        assert blocks.next_power_of_2(count) == triton.next_power_of_2(count)
        for size in (1, 3, 64):
            assert blocks.cdiv(count, size) == triton.cdiv(count, size)
    assert (blocks.cdiv(0, 64), blocks.next_power_of_2(0)) == (0, 1)
    sources = Path(blocks.__file__).parent.rglob("*.py")
    assert [each.name for each in sources if re.search(r"\btriton\.(cdiv|next_power_of_2)\(", each.read_text())] == []
