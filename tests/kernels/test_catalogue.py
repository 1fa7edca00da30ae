"""The catalogue holds every kernel class of openmps.kernels."""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest
import torch

import openmps.kernels
from catalogue import (
    ABSTRACT,
    ALL,
    GRADIENTS,
    IMAGE_FILTERS,
    MATRIX_KERNELS,
    OPTIMIZERS,
    RECURRENT,
    SAMPLES,
    STAGES,
    WITHOUT_INITIALIZER,
)
from encoding import Bench, encode
from in_one_test import in_one_test
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.encode import ImageKernel
from openmps.core.kernel.gradient import MPSCNNGradientKernel
from openmps.core.kernel.image_filter import MPSUnaryImageKernel
from openmps.core.kernel.unary import MPSCNNKernel
from openmps.errors import MPSTypeError
from openmps.kernels.optimizers import MPSNNOptimizer
from openmps.runtime.devices import mtl_device


def _public_kernels() -> set[type[MPSKernel]]:
    for module in pkgutil.walk_packages(openmps.kernels.__path__, "openmps.kernels."):
        importlib.import_module(module.name)
    found: set[type[MPSKernel]] = set()
    ahead = [MPSKernel]
    while ahead:
        for kind in ahead.pop().__subclasses__():
            ahead.append(kind)
            if kind.__module__.startswith("openmps.kernels") and kind.__name__.startswith("MPS"):
                found.add(kind)
    return found


def test_every_kernel_class_is_listed() -> None:
    listed = [*SAMPLES, *GRADIENTS, *STAGES, *OPTIMIZERS, *IMAGE_FILTERS, *MATRIX_KERNELS, *RECURRENT, *ABSTRACT]
    assert len(listed) == len(set(listed)), "a class is listed twice"
    assert {kind.__name__ for kind in _public_kernels()} == {kind.__name__ for kind in listed}


def test_samples_are_of_their_class() -> None:
    device = mtl_device("cpu")
    for kind, samples in SAMPLES.items():
        assert samples, kind.__name__
        assert {type(sample.make(device)) for sample in samples} == {kind}


def test_gradient_classes_stand_in_samples() -> None:
    device = mtl_device("cpu")
    for kind, forward in GRADIENTS.items():
        assert issubclass(kind, MPSCNNGradientKernel)
        made = {type(gradient.make(device)) for sample in SAMPLES[forward] for gradient in sample.gradients}
        assert made == {kind}
    made = {
        type(gradient.make(device))
        for samples in SAMPLES.values()
        for sample in samples
        for gradient in sample.gradients
    }
    assert made == set(GRADIENTS)


def test_names_are_unique() -> None:
    names = [sample.name for sample in ALL]
    assert len(names) == len(set(names))


@in_one_test
@pytest.mark.parametrize("kind", [kind for kind in ABSTRACT if issubclass(kind, ImageKernel)], ids=lambda k: k.__name__)
def test_abstract_kernels_refuse_to_be_made_or_to_encode(kind: type[MPSKernel], device: torch.device) -> None:
    bench = Bench.on(device)
    if kind in WITHOUT_INITIALIZER:
        with pytest.raises(MPSTypeError, match=rf"^{kind.__name__}: device makes no kernel of this base class"):
            ABSTRACT[kind](bench.device)
        return
    kernel = ABSTRACT[kind](bench.device)
    kernel.label = "abstract"
    image = bench.image(np.ones((1, 4, 2, 2)))
    destination = bench.empty((1, 4, 2, 2))
    sources = [image] * (1 if isinstance(kernel, MPSCNNKernel | MPSUnaryImageKernel) else 2)
    more = [None] if isinstance(kernel, MPSCNNGradientKernel) else []
    with pytest.raises(MPSTypeError, match=rf"^{kind.__name__} 'abstract': encode "):
        encode(kernel, bench.command_buffer(), sources, *more, destination)


def test_the_optimizers_base_has_no_encode() -> None:
    optimizer = ABSTRACT[MPSNNOptimizer](mtl_device("cpu"))
    assert not hasattr(optimizer, "encode")
