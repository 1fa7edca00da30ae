"""What an encode computes is data: planned once from configuration and shapes, compared by value, bound late."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from catalogue import SOME_OF_CLASS, SWEPT, class_of, having
from encoding import Bench, encode, finish, keep_results, train
from in_one_test import in_one_test, in_one_test_of_each
from openmps.core.image.batch import MPSImageBatch
from openmps.kernels.pooling import MPSCNNPoolingMax
from openmps.ops.op import Op
from openmps.runtime.devices import mtl_device
from openmps.runtime.dispatch import Dispatch
from samples.sample import Sample, configured


def _encodings(bench: Bench, sample: Sample, kernel: Any) -> list[Dispatch]:
    """What an encode of the sample's sources by a kernel records."""
    command_buffer = bench.command_buffer()
    keep_results(kernel)
    images = [bench.batch(values) for values in sample.sources()]
    encode(kernel, command_buffer, images, *sample.more(bench, 2))
    recorded = [work for _, work in command_buffer.encodings if isinstance(work, Dispatch)]
    finish(command_buffer)
    return recorded


def _operations(encodings: list[Dispatch]) -> list[Op]:
    return [step.op for encoding in encodings for step in encoding.function.equations]


@in_one_test
@pytest.mark.parametrize("sample", SOME_OF_CLASS, ids=str)
def test_encodes_of_equal_kernels_share_one_body(sample: Sample) -> None:
    bench = Bench.on(torch.device("cpu"))
    first, second = sample.make(bench.device), sample.make(bench.device)
    functions = [[each.function for each in _encodings(bench, sample, kernel)] for kernel in (first, second, first)]
    assert functions[0]
    for others in functions[1:]:
        assert all(mine is theirs for mine, theirs in zip(functions[0], others, strict=True))


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", SWEPT, ids=str)
def test_operations_are_values_without_memory(sample: Sample) -> None:
    bench = Bench.on(torch.device("cpu"))
    for op in _operations(_encodings(bench, sample, sample.make(bench.device))):
        assert isinstance(hash(op), int)
        assert op == type(op)(*(getattr(op, each.name) for each in fields(op)))
        for each in fields(op):
            assert not isinstance(getattr(op, each.name), torch.Tensor | np.ndarray | list | dict), op


@in_one_test
@pytest.mark.parametrize("sample", having(gradients=True, of=SOME_OF_CLASS), ids=str)
def test_gradients_are_planned_once(sample: Sample) -> None:
    bench = Bench.on(torch.device("cpu"))
    outcomes = [train(bench, sample, sample.sources(), bench.batch) for _ in range(2)]
    for mine, theirs in zip(outcomes[0].gradient_kernels, outcomes[1].gradient_kernels, strict=True):
        assert mine._configuration is theirs._configuration


@in_one_test
@pytest.mark.parametrize("sample", SOME_OF_CLASS, ids=str)
def test_planning_touches_no_kernel(sample: Sample) -> None:
    """Encodes into a destination leave every property of the kernel as it was."""
    bench = Bench.on(torch.device("cpu"))
    expected = train(bench, sample, sample.sources(), bench.batch)
    kernel = expected.kernel
    before = dict(vars(kernel)), kernel._configuration.values, kernel._configuration.sources
    images = [bench.batch(values) for values in sample.sources()]
    command_buffer = bench.command_buffer()
    encode(kernel, command_buffer, images, *sample.more(bench, 2), bench.batch(np.zeros(expected.result.shape)))
    finish(command_buffer)
    counted = {"_step"}
    after = dict(vars(kernel)), kernel._configuration.values, kernel._configuration.sources
    assert {key: value for key, value in before[0].items() if key not in counted} == {
        key: value for key, value in after[0].items() if key not in counted
    }
    assert before[1:] == after[1:]


def test_a_property_set_to_and_fro_finds_its_plans() -> None:
    from openmps.types import MPSOffset

    bench = Bench(mtl_device("cpu"))
    kernel, image = MPSCNNPoolingMax(bench.device, 2, 2), bench.batch(np.ones((1, 4, 4, 4)))
    destination = bench.batch(np.ones((1, 4, 4, 4)))
    seen: list[Any] = []
    for x in (0, 1, 0, 1):
        kernel.offset = MPSOffset(x, 0, 0)
        command_buffer = bench.command_buffer()
        kernel.encode_batch(command_buffer, image, destination)
        seen.append(command_buffer.encodings[0][1].function)  # pyright: ignore[reportAttributeAccessIssue]
        finish(command_buffer)
    assert seen[0] is seen[2] is not seen[1]
    assert seen[1] is seen[3]


def test_zero_and_minus_zero_are_different_properties() -> None:
    from openmps.kernels.arithmetic import MPSCNNAdd

    device = mtl_device("cpu")
    kernels = [configured(MPSCNNAdd(device), {"bias": bias}) for bias in (0.0, -0.0)]
    interned = [kernel._configuration.interned() for kernel in kernels]
    assert interned[0] is not interned[1]


def test_batches_of_other_sizes_have_other_plans() -> None:
    from openmps.kernels.softmax import MPSCNNSoftMax

    bench = Bench(mtl_device("cpu"))
    kernel = MPSCNNSoftMax(bench.device)
    keep_results(kernel)
    for images in (1, 3, 2):
        command_buffer = bench.command_buffer()
        result = kernel.encode_batch(command_buffer, bench.batch(np.zeros((images, 4, 1, 1))))
        finish(command_buffer)
        assert isinstance(result, MPSImageBatch)
        assert np.allclose(result.numpy(), 0.25)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda kernel: pickle.loads(pickle.dumps(kernel))])
def test_plans_stay_behind(duplicate: Callable[[Any], Any]) -> None:
    """A duplicate has the properties; the plans of its original would make it large, and old one day."""
    bench = Bench(mtl_device("cpu"))
    kernel, image = MPSCNNPoolingMax(bench.device, 2, 2), bench.batch(np.ones((1, 4, 4, 4)))
    kernel.label, size = "here", len(pickle.dumps(kernel))
    kernel.encode_batch(bench.command_buffer(), image)
    twin = duplicate(kernel)
    assert len(pickle.dumps(twin)) < size + 100
    assert twin._configuration.sources == kernel._configuration.sources
    assert twin._configuration.interned() is kernel._configuration
