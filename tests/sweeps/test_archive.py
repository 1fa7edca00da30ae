"""A kernel that goes through an archive gives the same numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from catalogue import OTHERS, SOME_OF_CLASS, SWEPT, class_of
from encoding import Bench, train, trained
from in_one_test import in_one_test, in_one_test_of_each
from openmps.core.kernel.base import MPSKernel
from openmps.formats.archive import MPSKeyedArchiver, MPSKeyedUnarchiver
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import mtl_device
from samples.neuron import NEURON_CLASSES
from samples.reshape import Shaped
from samples.sample import Sample

REGISTRY = {"Shaped": lambda values: Shaped(tuple(values["shape"]))}
"""The classes of the samples that are not openmps'."""


def _through_an_archive(make):
    def made(device: MTLDevice):
        kernel = make(device)
        data = MPSKeyedArchiver.archived_data(kernel)
        return MPSKeyedUnarchiver.unarchived_object_of_class(type(kernel), data, device, registry=REGISTRY)

    return made


def _archived(sample: Sample) -> Sample:
    gradients = tuple(dataclasses.replace(each, make=_through_an_archive(each.make)) for each in sample.gradients)
    return dataclasses.replace(sample, make=_through_an_archive(sample.make), gradients=gradients)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", dict.fromkeys((*SWEPT, *NEURON_CLASSES)), ids=str)
def test_archive(sample: Sample, device: torch.device) -> None:
    bench = Bench.on(device)
    sources = sample.sources()
    expected = trained(sample, bench.device)
    found = train(bench, _archived(sample), sources, bench.batch)
    assert np.array_equal(found.result, expected.result, equal_nan=True)
    for actual, wanted in zip(found.gradients, expected.gradients, strict=True):
        assert np.array_equal(actual, wanted, equal_nan=True)


@in_one_test_of_each(class_of)
@pytest.mark.parametrize("sample", SOME_OF_CLASS, ids=str)
def test_archives_of_equal_kernels_are_equal(sample: Sample) -> None:
    bench = Bench.on(torch.device("cpu"))
    once = MPSKeyedArchiver.archived_data(sample.make(bench.device))
    again = MPSKeyedArchiver.archived_data(_through_an_archive(sample.make)(bench.device))
    twice = MPSKeyedArchiver.archived_data(_through_an_archive(_through_an_archive(sample.make))(bench.device))
    assert again == twice
    assert len(once) > 0


@in_one_test
@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_the_kernels_without_samples_keep_their_properties(kind: type[MPSKernel]) -> None:
    kernel = OTHERS[kind](mtl_device("cpu"))
    kernel.label = "kept"
    found = _through_an_archive(lambda device: kernel)(kernel.device)
    names = [name for name in dir(kernel) if not name.startswith("_") and not callable(getattr(kernel, name))]
    assert {name: repr(getattr(found, name)) for name in names} == {name: repr(getattr(kernel, name)) for name in names}
    assert MPSKeyedArchiver.archived_data(found) == MPSKeyedArchiver.archived_data(kernel)
