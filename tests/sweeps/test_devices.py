"""Every kernel goes through an archive, a copy and a second device, and still gives the same numbers.

A second object for the CPU is another device: devices are told apart by identity. Between the CPU and itself nothing
may change; a GPU sums in another order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from catalogue import FIRST_OF_CLASS, OTHERS, SOME_OF_CLASS, SWEPT, class_of, having
from encoding import Bench, Outcome, encode, keep_results, train, trained
from exercises import EXERCISES
from helpers import assert_close
from in_one_test import in_one_test, in_one_test_of_each
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.core.kernel.base import MPSKernel
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.state import MPSState
from openmps.errors import MPSDeviceError
from openmps.formats.archive import MPSKeyedArchiver, MPSKeyedUnarchiver
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import mtl_device
from samples.reshape import Shaped
from samples.sample import Sample

HOME = mtl_device("cpu")
REGISTRY = {"Shaped": lambda values: Shaped(tuple(values["shape"]))}
"""The classes of the samples that are not openmps'."""
TOLERANCE = {"cpu": 0.0, "cuda": 2e-5}
"""Largest difference from the CPU's numbers, as a share of the largest."""
Make = Callable[[MTLDevice], Any]


@pytest.fixture
def elsewhere(device: torch.device) -> Bench:
    """A device that is not `HOME`."""
    return Bench(mtl_device(device) if device.type == "cuda" else MTLDevice(device))


def _archived(kernel: MPSKernel, device: MTLDevice) -> Any:
    """A kernel that went through an archive, on ``device``."""
    data = MPSKeyedArchiver.archived_data(kernel)
    return MPSKeyedUnarchiver.unarchived_object_of_class(type(kernel), data, device, registry=REGISTRY)


def _there(kernel: MPSKernel, device: MTLDevice) -> Any:
    """By every way there is: an archive, a copy to the device, an archive of what is there."""
    return _archived(_archived(kernel, kernel.device).copy(device), device)


def _and_back(kernel: MPSKernel, device: MTLDevice) -> Any:
    """To another device and back again, by a copy and by an archive each."""
    return _archived(_archived(kernel.copy(device), kernel.device).copy(device), device).copy(kernel.device)


def _remade(sample: Sample, change: Callable[[Make], Make]) -> Sample:
    gradients = tuple(dataclasses.replace(each, make=change(each.make)) for each in sample.gradients)
    return dataclasses.replace(sample, make=change(sample.make), gradients=gradients)


def _assert_same(found: Outcome, expected: Outcome, tolerance: float) -> None:
    parts = ["result", "weights", "biases", "losses"]
    pairs = {part: (getattr(found, part), getattr(expected, part)) for part in parts}
    pairs |= {f"gradient {n}": pair for n, pair in enumerate(zip(found.gradients, expected.gradients, strict=True))}
    for part, (actual, wanted) in pairs.items():
        assert (actual is None) == (wanted is None), part
        if wanted is not None:
            assert_close(actual, wanted, tolerance, part)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", SOME_OF_CLASS, ids=str)
def test_there(sample: Sample, elsewhere: Bench, device: torch.device) -> None:
    values, expected = sample.sources(), trained(sample, HOME)
    moved = _remade(sample, lambda make: lambda device: _there(make(HOME), device))
    assert moved.make(elsewhere.device).device is elsewhere.device
    found = train(elsewhere, moved, values, elsewhere.batch)
    _assert_same(found, expected, TOLERANCE[device.type])


@in_one_test
@pytest.mark.parametrize("sample", FIRST_OF_CLASS, ids=str)
def test_there_and_back(sample: Sample, elsewhere: Bench) -> None:
    """Back on the CPU not a bit has changed, wherever the kernel was."""
    home, values = Bench(HOME), sample.sources()
    expected = trained(sample, HOME)
    moved = _remade(sample, lambda make: lambda device: _and_back(make(device), elsewhere.device))
    assert moved.make(HOME).device is HOME
    _assert_same(train(home, moved, values, home.batch), expected, 0.0)


@in_one_test
@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_the_kernels_without_samples(kind: type[MPSKernel], elsewhere: Bench, device: torch.device) -> None:
    home, use = Bench(HOME), EXERCISES[kind]
    expected = use(home, OTHERS[kind](HOME))
    there = use(elsewhere, _there(OTHERS[kind](HOME), elsewhere.device))
    back = use(home, _and_back(OTHERS[kind](HOME), elsewhere.device))
    for actual, returned, wanted in zip(there, back, expected, strict=True):
        assert_close(actual, wanted, TOLERANCE[device.type])
        np.testing.assert_array_equal(returned, wanted)


# --- what a copy holds -----------------------------------------------------------------------------------------------


def _held(root: Any) -> Iterator[tuple[str, Any]]:
    """Every device and tensor that an object of openmps reaches, but for the user's data sources."""
    ahead, seen = [(type(root).__name__, root)], set[int]()
    while ahead:
        path, thing = ahead.pop()
        if id(thing) in seen or path.endswith("._data_source"):
            continue
        seen.add(id(thing))
        if isinstance(thing, MTLDevice | torch.Tensor):
            yield path, thing
        elif isinstance(thing, dict):
            ahead += [(f"{path}[{key!r}]", each) for key, each in thing.items()]
        elif isinstance(thing, list | tuple | set | frozenset):
            ahead += [(f"{path}[{index}]", each) for index, each in enumerate(thing)]
        elif type(thing).__module__.startswith("openmps"):
            slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
            names = [*getattr(thing, "__dict__", ()), *(name for name in slots if hasattr(thing, name))]
            ahead += [(f"{path}.{name}", getattr(thing, name)) for name in names]


def _kernels() -> Iterator[tuple[str, Make]]:
    for sample in SWEPT:
        yield str(sample), sample.make
        for index, backward in enumerate(sample.gradients):
            yield f"{sample} gradient {index}", backward.make
    for kind, make in OTHERS.items():
        yield kind.__name__, make


def test_nothing_of_a_copy_stays_on_the_first_device() -> None:
    """torch's meta device has no memory: what is still on the CPU was left behind."""
    nowhere = MTLDevice(torch.device("meta"))
    left, tensors = list[str](), 0
    for name, make in _kernels():
        held = list(_held(make(HOME).copy(nowhere)))
        assert any(isinstance(thing, MTLDevice) for _, thing in held)
        for path, thing in held:
            is_device = isinstance(thing, MTLDevice)
            tensors += not is_device
            on = thing is nowhere if is_device else thing.device == nowhere.torch_device
            left += [] if on else [f"{name}: {path}"]
    assert left == []
    assert tensors > 100


# --- objects of another device ---------------------------------------------------------------------------------------


def _is_on_a_device(operand: Any) -> bool:
    first = operand[0] if isinstance(operand, list | MPSImageBatch | MPSStateBatch) and len(operand) else operand
    return isinstance(first, MPSImage | MPSState)


def _refuses(kernel: Any, bench: Bench, arguments: list[Any], strangers: list[Any], **options: Any) -> None:
    """Each argument alone is refused where it comes from another device."""
    command_buffer = bench.command_buffer()
    for index, stranger in enumerate(strangers):
        if _is_on_a_device(stranger):
            wrong = [*arguments[:index], stranger, *arguments[index + 1 :]]
            with pytest.raises(MPSDeviceError, match="must belong to the device"):
                encode(kernel, command_buffer, wrong[:1], *wrong[1:], **options)
    assert not command_buffer.recording.execution.works


@in_one_test
@pytest.mark.parametrize("sample", having(without=["multiary"], of=SOME_OF_CLASS), ids=str)
def test_sources_states_and_destinations_of_another_device(sample: Sample, elsewhere: Bench) -> None:
    home, values = Bench(HOME), sample.sources()
    expected = trained(sample, HOME)
    kernel = sample.make(HOME)
    keep_results(kernel)
    ours, theirs = (
        [*map(bench.batch, values), *sample.more(bench, len(values[0])), bench.batch(expected.result)]
        for bench in (home, elsewhere)
    )
    _refuses(kernel, home, ours, theirs)
    moved = kernel.copy(elsewhere.device)
    with pytest.raises(MPSDeviceError, match="command_buffer must belong to the device"):
        encode(moved, home.command_buffer(), ours[:1], *ours[1:])


@in_one_test
@pytest.mark.parametrize("sample", having(gradients=True, of=SOME_OF_CLASS), ids=str)
def test_gradient_states_of_another_device(sample: Sample, elsewhere: Bench) -> None:
    home, values = Bench(HOME), sample.sources()
    ours, theirs = (train(bench, sample, values, bench.batch) for bench in (home, elsewhere))
    for backward, kernel in zip(sample.gradients, ours.gradient_kernels, strict=True):
        images = ours.result if backward.reads_result else values[backward.secondary]
        arguments, strangers = (
            [bench.batch(sample.incoming(ours.result.shape)), bench.batch(images), outcome.states]
            for bench, outcome in ((home, ours), (elsewhere, theirs))
        )
        _refuses(kernel, home, arguments, strangers)


def test_two_devices_of_one_name_are_told_apart_in_errors() -> None:
    kernel = SWEPT[0].make(HOME)
    with pytest.raises(MPSDeviceError, match=r"must belong to the device '.+' \(cpu\), got '.+' \(cpu\)"):
        encode(kernel, Bench(MTLDevice(torch.device("cpu"))).command_buffer(), [Bench(HOME).empty((1, 1, 1, 1))])
