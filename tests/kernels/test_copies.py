"""Copies of kernels that hold more than properties: weights of data sources, and what changes between encodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from encoding import Bench, run
from exercises import drawn, updated
from openmps.kernels.batch_normalization import MPSCNNBatchNormalization
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient,
    MPSCNNConvolutionTranspose,
    MPSCNNConvolutionTransposeGradient,
    MPSCNNFullyConnected,
    MPSCNNFullyConnectedGradient,
)
from openmps.kernels.dropout import MPSCNNDropout
from openmps.kernels.group_normalization import MPSCNNGroupNormalization, MPSCNNInstanceNormalization
from openmps.kernels.optimizers import MPSNNOptimizerAdam
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import mtl_device
from samples.batch_normalization import ChannelSource
from samples.convolution import ArraySource
from samples.group_normalization import GammaAndBetaSource

HOME = mtl_device("cpu")


@pytest.fixture
def elsewhere(device: torch.device) -> Bench:
    """A device that is not `HOME`: a GPU, or a second object for the CPU."""
    return Bench(mtl_device(device) if device.type == "cuda" else MTLDevice(device))


class Family(NamedTuple):
    """Kernels with one number of a data source."""

    kinds: tuple[Any, ...]
    keyword: str
    source: Callable[[], Any]
    change: Callable[[Any, float], None]
    read: Callable[[Any], torch.Tensor]
    reload: str


def _gamma_and_beta(source: GammaAndBetaSource, value: float) -> None:
    source.scales = np.full(1, value, np.float32)


FAMILIES = {
    "convolution": Family(
        (
            MPSCNNConvolution,
            MPSCNNFullyConnected,
            MPSCNNConvolutionTranspose,
            MPSCNNConvolutionGradient,
            MPSCNNFullyConnectedGradient,
            MPSCNNConvolutionTransposeGradient,
        ),
        "weights",
        lambda: ArraySource(MPSCNNConvolutionDescriptor(1, 1, 1, 1), np.ones(1, np.float32)),
        lambda source, value: setattr(source, "_weights", np.full(1, value, np.float32)),
        lambda kernel: kernel.parameters.weights,
        "reload_weights_and_biases_from_data_source",
    ),
    "batch normalization": Family(
        (MPSCNNBatchNormalization,),
        "data_source",
        lambda: ChannelSource(1, gamma=np.ones(1, np.float32)),
        lambda source, value: source.rows.update(gamma=np.full(1, value, np.float32)),
        lambda kernel: kernel.gamma_and_beta.first.tensor(torch.float32),
        "reload_gamma_and_beta_from_data_source",
    ),
    "normalization of images": Family(
        (MPSCNNInstanceNormalization, MPSCNNGroupNormalization),
        "data_source",
        lambda: GammaAndBetaSource(1, 1, np.ones(1, np.float32)),
        _gamma_and_beta,
        lambda kernel: kernel.numbers.gamma.value(),
        "reload_gamma_and_beta_from_data_source",
    ),
}
EACH = pytest.mark.parametrize(
    ("family", "kind"),
    [(family, kind) for family in FAMILIES.values() for kind in family.kinds],
    ids=[kind.__name__ for family in FAMILIES.values() for kind in family.kinds],
)


def _made(family: Family, kind: Any, source: Any) -> Any:
    kernel = kind(HOME, **{family.keyword: source})
    family.read(kernel)  # a gradient kernel reads its weights when they are first needed
    return kernel


def _copying(family: Family, how: str, asked: list[Any]) -> Any:
    """A data source that can be copied in one way, and notes when it is."""
    source = family.source()
    ways: dict[str, Any] = {
        "copy(device)": lambda device: (asked.append(device), family.source())[1],
        "copy()": lambda: (asked.append(how), family.source())[1],
        "shared": None,
    }
    source.copy = ways[how]
    return source


@EACH
@pytest.mark.parametrize("how", ["copy(device)", "copy()", "shared"])
def test_the_data_source_is_copied_once(family: Family, kind: Any, how: str, elsewhere: Bench) -> None:
    """By the first way that it offers; neither it nor its copy is read: the copy takes the kernel's own numbers."""
    asked: list[Any] = []
    source = _copying(family, how, asked)
    kernel = _made(family, kind, source)
    before = source.loads, source.purges
    family.change(source, 5.0)
    twin = kernel.copy(elsewhere.device)
    assert asked == {"copy(device)": [elsewhere.device], "copy()": ["copy()"], "shared": []}[how]
    assert (twin.data_source is source) == (how == "shared")
    assert kernel.data_source is source
    assert family.read(twin).item() == family.read(kernel).item() == 1.0
    assert (source.loads, source.purges) == before
    assert how == "shared" or twin.data_source.loads == 0


@EACH
@pytest.mark.parametrize("how", ["copy(device)", "shared"])
def test_weights_are_reloaded_apart(family: Family, kind: Any, how: str, elsewhere: Bench) -> None:
    source = _copying(family, how, [])
    kernel = _made(family, kind, source)
    twin = kernel.copy(elsewhere.device)
    family.change(twin.data_source, 2.0)
    getattr(twin, family.reload)()
    assert (family.read(kernel).item(), family.read(twin).item()) == (1.0, 2.0)
    getattr(kernel, family.reload)()
    assert family.read(kernel).item() == (2.0 if how == "shared" else 1.0)
    family.change(source, 3.0)
    getattr(kernel, family.reload)()
    assert (family.read(kernel).item(), family.read(twin).item()) == (3.0, 2.0)


# --- what changes from encode to encode ------------------------------------------------------------------------------


def test_a_copy_of_a_dropout_draws_the_masks_to_come(elsewhere: Bench) -> None:
    """Those that the original draws next, on every device; then each counts its own encodes."""
    home, ones = Bench(HOME), np.ones((1, 3, 8, 8))
    kernel = MPSCNNDropout(HOME, 0.5, seed=3)
    first = run(home, kernel, [home.image(ones)])
    twin = kernel.copy(elsewhere.device)
    here = [run(home, kernel, [home.image(ones)]) for _ in range(2)]
    there = [run(elsewhere, twin, [elsewhere.image(ones)]) for _ in range(2)]
    np.testing.assert_array_equal(there, here)
    assert not np.array_equal(here[0], first)
    assert not np.array_equal(here[0], here[1])


def test_a_copy_of_an_optimizer_counts_on(elsewhere: Bench) -> None:
    """Momenta and velocities are the caller's; the time step is the kernel's, and goes along."""
    kernel = MPSNNOptimizerAdam(HOME, 0.1)
    updated(Bench(HOME), kernel)
    assert kernel.time_step == 2
    twin = kernel.copy(elsewhere.device)
    fresh = MPSNNOptimizerAdam(elsewhere.device, 0.1, time_step=2)
    for found, wanted in zip(updated(elsewhere, twin), updated(elsewhere, fresh), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert (kernel.time_step, twin.time_step) == (2, 4)


def test_a_copy_of_a_batch_normalization_has_its_statistics(elsewhere: Bench) -> None:
    """Also those that were loaded after the kernel was made; what reaches one of the two later does not reach both."""
    home, x = Bench(HOME), drawn("images", (2, 1, 4, 4))
    kernel = MPSCNNBatchNormalization(HOME, ChannelSource(1, 1e-3))
    source: Any = kernel.data_source
    source.rows |= {"mean": np.full(1, 2.0, np.float32), "variance": np.full(1, 9.0, np.float32)}
    kernel.reload_mean_and_variance_from_data_source()
    kernel.epsilon = 0.5
    twin = kernel.copy(elsewhere.device)
    expected = run(home, kernel, [home.batch(x)])
    source.rows["mean"] = np.zeros(1, np.float32)
    kernel.reload_mean_and_variance_from_data_source()
    kernel.epsilon = 0.25
    np.testing.assert_allclose(run(elsewhere, twin, [elsewhere.batch(x)]), expected, rtol=0, atol=2e-6)
    assert np.abs(run(home, kernel, [home.batch(x)]) - expected).min() > 0.1
    assert twin.epsilon == 0.5
