"""Players of captures: a device is given what makes them, and each of its queues has one."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from openmps.errors import MPSTypeError
from openmps.metal.device import MTLCommandQueue, MTLDevice
from openmps.metal.execution import Work
from openmps.metal.explanation import Passage, WorkOutcome
from openmps.runtime.devices import mtl_device, player_of
from openmps.runtime.replay.replayer import Replayer

CPU = torch.device("cpu")


class _Player:
    """Runs all works of a record and keeps their labels."""

    def __init__(self) -> None:
        self.max_capture_count = 16
        self.allow_fusion = True
        self.played: list[str] = []

    def play(self, works: deque[tuple[str, Work]], passages: list[Passage]) -> int:
        passages.append(Passage(len(works), WorkOutcome.REPLAYED, ""))
        while works:
            label, work = works[0]
            self.played.append(label)
            work()
            works.popleft()
        return 0

    def forget(self) -> None:
        self.played.clear()


class _Factory:
    """Makes players, and keeps them and what they were made for."""

    def __init__(self) -> None:
        self.asked: list[torch.device] = []
        self.made: list[_Player] = []

    def __call__(self, torch_device: torch.device) -> _Player:
        self.asked.append(torch_device)
        self.made.append(_Player())
        return self.made[-1]


def _run(queue: MTLCommandQueue) -> tuple[list[str], list[tuple[WorkOutcome, str]]]:
    """What works ran, in order, and what became of them."""
    command_buffer, ran = queue.command_buffer(), list[str]()
    for label in ("first", "second", "third"):
        command_buffer.record(label, lambda label=label: ran.append(label))
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return ran, [(work.outcome, work.reason) for work in command_buffer.explain().works]


@pytest.mark.parametrize("kind", ["cpu", "meta"])
@pytest.mark.parametrize("made", [lambda kind: MTLDevice(kind), lambda kind: MTLDevice(kind, lambda _: None)])
def test_without_a_player_each_work_runs_by_itself(made: Callable[[torch.device], MTLDevice], kind: str) -> None:
    queue = made(torch.device(kind)).new_command_queue()
    why = "the device is a CPU" if kind == "cpu" else "the device makes no player for its queues"
    assert _run(queue) == (["first", "second", "third"], [(WorkOutcome.RUN, f"not replayed: {why}")] * 3)


def test_each_queue_has_a_player_of_its_device() -> None:
    factory = _Factory()
    device = MTLDevice(CPU, factory)
    assert factory.asked == []
    first, second = device.new_command_queue(), MTLCommandQueue(device)
    assert factory.asked == [CPU, CPU]
    for queue in (first, second, first):
        assert _run(queue) == (["first", "second", "third"], [(WorkOutcome.REPLAYED, "")] * 3)
    assert [len(player.played) for player in factory.made] == [6, 3]
    second.max_capture_count = 3
    assert [player.max_capture_count for player in factory.made] == [16, 3]
    assert first.allow_fusion and second.allow_fusion
    second.allow_fusion = False
    assert (
        [player.allow_fusion for player in factory.made] == [True, False] == [first.allow_fusion, second.allow_fusion]
    )
    with pytest.raises(MPSTypeError, match="MTLCommandQueue: allow_fusion must be"):
        second.allow_fusion = "no"  # pyright: ignore[reportAttributeAccessIssue]


def test_devices_do_not_share_what_makes_players() -> None:
    factory = _Factory()
    assert MTLDevice(CPU, factory).make_player is factory
    assert MTLDevice(CPU).make_player is None
    _run(MTLDevice(CPU).new_command_queue())
    _run(mtl_device("cpu").new_command_queue())
    assert factory.asked == []


def test_the_devices_of_users_replay_on_cuda(mtl: MTLDevice) -> None:
    assert mtl.make_player is player_of
    assert mtl_device("cpu").make_player is player_of
    assert player_of(CPU) is None
    assert isinstance(player_of(torch.device("cuda", 0)), Replayer)
    assert isinstance(mtl.new_command_queue()._executor.player, Replayer) == mtl.is_cuda


def _no_player(_: torch.device) -> None:
    """Says that each work is to run by itself."""


def test_a_device_that_was_pickled_has_what_makes_its_players() -> None:
    again = pickle.loads(pickle.dumps(MTLDevice(CPU, _no_player)))
    assert again.make_player is _no_player
    assert again is pickle.loads(pickle.dumps(again))
    assert again is not mtl_device("cpu")


@pytest.mark.parametrize("wrong", ["replayer", 1, _Player()])
def test_what_makes_players_is_a_function(wrong: Any) -> None:
    with pytest.raises(MPSTypeError, match="MTLDevice: make_player must be a function of a torch.device, got"):
        MTLDevice(CPU, wrong)


_IMPORTS = """
import importlib, pkgutil
from collections.abc import Iterable, Mapping
import openmps.metal

def imported(package):
    found = [each.name for each in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    return [importlib.import_module(name) for name in found if not name.endswith("__main__")]

def state(module):
    kept = {(module.__name__, name): value for name, value in vars(module).items() if not name.startswith("__")}
    for kind in [value for value in kept.values() if isinstance(value, type) and value.__module__ == module.__name__]:
        kept |= {(module.__name__, kind.__name__, name): value for name, value in vars(kind).items()}
    return {place: (value, contents(value)) for place, value in kept.items()}

def contents(value):
    if isinstance(value, Mapping):
        return list(value.items())
    return list(value) if isinstance(value, Iterable) and hasattr(value, "__len__") else None

floor = imported(openmps.metal)
before = [state(module) for module in floor]
import openmps
everything = imported(openmps)
assert openmps.mtl_device and len(everything) > len(floor) > 10
after = [state(module) for module in floor]
for old, new in zip(before, after, strict=True):
    print(*[place for place in old | new if old.get(place) != new.get(place)], sep="", end="")
"""


def test_imports_change_nothing_in_the_floor_of_devices(run_script: Callable[..., str]) -> None:
    assert run_script(_IMPORTS, has_openmps=False) == ""
