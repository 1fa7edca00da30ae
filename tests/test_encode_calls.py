"""What an encode costs in Python: its calls of functions of the package are within a budget that only falls.

A time depends on the machine; this number does not, and says the same. Not counted are comprehensions, generator
expressions and the taking of locks, which are functions of Python in some of its versions only, what other packages do,
and comparisons, of which a cache makes more where others have left equal keys in it.

After a change that makes encodes cheaper, ``pytest tests/test_encode_calls.py --lower-budgets`` writes the new numbers.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import openmps as mps
from openmps.locks import InterruptSafeLock
from openmps.metal.pending import unwritten
from openmps.runtime.replay.recorder import Run
from openmps.runtime.replay.replayer import Replayer
from replay_twin import TwinRecorder, outcomes
from typical_encodes import ENCODES, Encode

pytestmark = pytest.mark.usefixtures("only_new_garbage")

BUDGETS = Path(__file__).with_name("encode_calls.json")
SLACK = 0.1
"""A count that is further below its budget, as a share of it, has to become the budget."""
WARM_UP = 3
_TAKES_A_LOCK = InterruptSafeLock.__enter__.__code__
_TRAINING = "training graph of the sample network with updates"
_COUNTED = 3
"""Encodes, of which the cheapest counts: what another test left to be finalized adds to one of them."""
REPLAYED = "replayed step of the sample network, with its commit"
"""What a training loop costs the host where command buffers are replayed: the encode, and what replays it."""
_REPLAYED_WARM_UP = 6
WHOLE = "whole step of the sample network: images and labels made, encoded, committed, run"
WHOLE_REPLAYED = "whole step of the sample network, replayed"


def calls(encode: Encode) -> Counter[str]:
    """How often an encode calls each function of the package."""
    counts: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        module, function = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
        name = frame.f_code.co_name
        is_left_out = name == "__eq__" or frame.f_code is _TAKES_A_LOCK or (name[0] == "<" and name != "<lambda>")
        if event == "call" and module.partition(".")[0] == "openmps" and not is_left_out:
            counts[f"{module}.{function}"] += 1

    # What is collected at some moment would be finalized at that moment; and what another test has left unwritten, and
    # still holds, would be looked for by each encode.
    gc.collect()
    unwritten.clear()
    gc.disable()
    sys.setprofile(note)
    try:
        encode()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counts


def counted(name: str) -> Counter[str]:
    """The calls of an encode, after some that have planned and compiled what later ones find."""
    device = mps.mtl_device("cpu")
    queue, prepare = device.new_command_queue(), ENCODES[name](device)
    for _ in range(WARM_UP):
        command_buffer = mps.MPSCommandBuffer(queue)
        prepare(command_buffer)()
        command_buffer.commit()
        command_buffer.wait_until_completed()
    found: list[Counter[str]] = []
    for _ in range(_COUNTED):
        command_buffer = mps.MPSCommandBuffer(queue)
        found.append(calls(prepare(command_buffer)))
        command_buffer.commit()
        command_buffer.wait_until_completed()
    return min(found, key=Counter[str].total)


class _Still:
    """A capture that is run once: what a CUDA graph does costs the host a launch."""

    def __init__(self, run: Run) -> None:
        self.values = [None if value is None else value.clone() for value in run()]

    def replay(self) -> None:
        """Leave what came out as it is."""


class _StillRecorder(TwinRecorder):
    def record(self, run: Run) -> Any:
        return _Still(run)


def _queue_that_runs_here(device: mps.MTLDevice, *, replays: bool) -> mps.MTLCommandQueue:
    """A queue whose commits run in the thread that makes them, as launches of CUDA do, so that all calls are seen."""
    queue = device.new_command_queue()
    executor: Any = queue._executor
    if replays:
        executor.player = Replayer(device.torch_device, _StillRecorder(), 0)
    executor._launches_at_commit, executor._launch_here = True, lambda execution: execution.launch()
    return queue


def counted_whole(*, replays: bool) -> Counter[str]:
    """The calls of a steady step of README's network, from arrays to new weights."""
    device = mps.mtl_device("cpu")
    queue, make = _queue_that_runs_here(device, replays=replays), ENCODES[_TRAINING](device)

    def step() -> None:
        command_buffer = mps.MPSCommandBuffer(queue)
        make(command_buffer)()
        command_buffer.commit()
        command_buffer.wait_until_completed()

    for _ in range(_REPLAYED_WARM_UP):
        step()
    return min((calls(step) for _ in range(_COUNTED)), key=Counter[str].total)


def counted_replayed() -> Counter[str]:
    """The calls of an encode, and of its commit that is replayed."""
    device = mps.mtl_device("cpu")
    queue, prepare = _queue_that_runs_here(device, replays=True), ENCODES[_TRAINING](device)
    counts: Counter[str] = Counter()
    for _ in range(_REPLAYED_WARM_UP):
        command_buffer = mps.MPSCommandBuffer(queue)
        encode = prepare(command_buffer)

        def step(command_buffer: mps.MPSCommandBuffer = command_buffer, encode: Encode = encode) -> None:
            encode()
            command_buffer.commit()

        counts = calls(step)
        command_buffer.wait_until_completed()
        has_replayed = set(outcomes(command_buffer)) == {"replayed"}
    assert has_replayed
    return counts


STEPS: dict[str, Callable[[], Counter[str]]] = {
    REPLAYED: counted_replayed,
    WHOLE: lambda: counted_whole(replays=False),
    WHOLE_REPLAYED: lambda: counted_whole(replays=True),
}
ALL = [*ENCODES, *STEPS]


@pytest.mark.parametrize("name", ALL)
def test_an_encode_is_within_its_budget(name: str, request: pytest.FixtureRequest) -> None:
    counts = STEPS[name]() if name in STEPS else counted(name)
    found, budgets = counts.total(), json.loads(BUDGETS.read_text())
    if request.config.getoption("--lower-budgets"):
        budgets[name] = min(found, budgets.get(name, found))
        kept = {each: budgets[each] for each in ALL if each in budgets}
        BUDGETS.write_text(json.dumps(kept, indent=2) + "\n")
    most = "\n".join(f"{count:6} {function}" for function, count in counts.most_common(12))
    assert found <= budgets[name], f"{found} calls, {budgets[name]} are allowed; the most frequent:\n{most}"
    assert found >= budgets[name] * (1 - SLACK), (
        f"{found} calls of {budgets[name]}: keep the gain with pytest tests/{Path(__file__).name} --lower-budgets"
    )


def test_every_budget_is_that_of_an_encode() -> None:
    assert list(json.loads(BUDGETS.read_text())) == ALL
