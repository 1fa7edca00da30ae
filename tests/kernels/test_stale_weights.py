"""Kernels that hold old weights: found by their numbers when asked, by their versions at the gradient's encode."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish
from openmps.core import weight_versions
from openmps.errors import MPSTrainingWarning
from openmps.kernels.convolution import (
    MPSCNNConvolution,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient,
    MPSCNNConvolutionTranspose,
    MPSCNNConvolutionTransposeGradient,
    MPSCNNConvolutionWeightsAndBiasesState,
    MPSCNNFullyConnected,
    MPSCNNFullyConnectedGradient,
)
from openmps.types import MPSDataType
from samples.convolution import ArraySource, Layer

PAIRS = [
    (MPSCNNConvolution, MPSCNNConvolutionGradient),
    (MPSCNNFullyConnected, MPSCNNFullyConnectedGradient),
    (MPSCNNConvolutionTranspose, MPSCNNConvolutionTransposeGradient),
]
every_pair = pytest.mark.parametrize("kinds", PAIRS, ids=lambda kinds: kinds[0].__name__)


class Pair:
    """A forward kernel and its gradient kernel over one data source, 2x2 pixels, 1 channel."""

    def __init__(self, device: torch.device, kinds: Any = PAIRS[0], source: Any = None) -> None:
        self.bench = Bench.on(device)
        self.source = Layer(1, 1, 2, 2).source() if source is None else source
        self.forward, self.gradient = (kind(self.bench.device, weights=self.source) for kind in kinds)

    def encode(self) -> list[str]:
        """Forward and gradient; the warnings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            command_buffer = self.bench.command_buffer()
            image = self.bench.empty((1, 1, 2, 2))
            result, state = self.forward.encode(command_buffer, image, destination_state_is_temporary=False)
            self.gradient.encode(command_buffer, result, image, state)
            finish(command_buffer)
        assert all(each.category is MPSTrainingWarning for each in caught)
        return [str(each.message) for each in caught]

    def change(self, weight: float = 5.0) -> None:
        """New numbers in the data source."""
        self.source._weights = np.full_like(self.source._weights, weight)

    def filled(self, weight: float) -> Any:
        """A state with weights."""
        state = MPSCNNConvolutionWeightsAndBiasesState(self.bench.device, self.forward.convolution_descriptor)
        state.weights.tensor(torch.float32).fill_(weight)
        return state

    def reload(self, *kernels: Any, state: Any = None) -> None:
        if state is None:
            for kernel in kernels:
                kernel.reload_weights_and_biases_from_data_source()
            return
        command_buffer = self.bench.command_buffer()
        for kernel in kernels:
            kernel.reload_weights_and_biases(command_buffer, state)
        finish(command_buffer)

    @property
    def versions(self) -> tuple[int, int]:
        return self.forward.weights_version, self.gradient.weights_version

    @property
    def stale(self) -> tuple[bool, bool]:
        return self.forward.holds_stale_weights(), self.gradient.holds_stale_weights()


# --- by the numbers ---------------------------------------------------------------------------------------------------


@every_pair
def test_numbers_that_differ_are_found(kinds: Any, device: torch.device) -> None:
    pair = Pair(device, kinds)
    assert (pair.stale, pair.versions) == ((False, False), (1, 0)), "the gradient kernel has read nothing yet"
    assert pair.encode() == []
    assert (pair.stale, pair.versions) == ((False, False), (1, 1))
    pair.change()
    assert pair.stale == (True, True)
    pair.reload(pair.forward)
    assert pair.stale == (False, True)
    pair.reload(pair.gradient)
    assert pair.stale == (False, False)
    assert pair.source.loads == pair.source.purges
    assert pair.encode() == []


def test_one_weight_or_one_bias_is_enough(device: torch.device) -> None:
    pair = Pair(device)
    pair.source._biases = pair.source._biases + np.float32(1e-3)
    assert pair.forward.holds_stale_weights()
    pair.reload(pair.forward)
    pair.source._weights = pair.source._weights.copy()
    pair.source._weights[0, 1, 1, 0] = np.nextafter(pair.source._weights[0, 1, 1, 0], np.float32(9))
    assert pair.forward.holds_stale_weights()
    before = pair.forward.weights_version
    pair.reload(pair.forward)
    assert pair.forward.weights_version == before + 1


def test_changes_in_place_are_found_too() -> None:
    pair = Pair(torch.device("cpu"))
    pair.source._weights *= 2
    assert pair.forward.holds_stale_weights()


@pytest.mark.parametrize("kind", [MPSDataType.FLOAT16, MPSDataType.UINT8])
def test_what_rounding_and_tables_change_is_not_stale(kind: MPSDataType) -> None:
    source: Any = ArraySource(MPSCNNConvolutionDescriptor(2, 2, 1, 1), np.arange(4, dtype=np.uint8), None, kind)
    if kind is MPSDataType.UINT8:
        source.lookup_table_for_uint8_kernel = lambda: np.linspace(-1, 1, 256, dtype=np.float32)
    else:
        source._weights = np.full(4, 0.1, np.float16)
    pair = Pair(torch.device("cpu"), source=source)
    pair.forward.weights_fp16 = True
    assert not pair.forward.holds_stale_weights()
    source._weights = source._weights + source._weights.dtype.type(1)
    assert pair.forward.holds_stale_weights()


def test_batch_normalization_that_is_folded_in_is_not_compared() -> None:
    descriptor = MPSCNNConvolutionDescriptor(2, 2, 1, 1)
    descriptor.set_batch_normalization_parameters_for_inference([1.0], [4.0], [2.0], [0.5], 0.0)
    pair = Pair(torch.device("cpu"), source=ArraySource(descriptor, np.ones(4, np.float32)))
    assert not pair.forward.holds_stale_weights()


def test_weights_of_the_device_differ_from_a_source_that_does_not_bring_them_back(device: torch.device) -> None:
    pair = Pair(device)
    pair.reload(pair.forward, pair.gradient, state=pair.filled(7))
    assert pair.stale == (True, True)
    pair.change(7)
    pair.source._biases = np.zeros(1, np.float32)
    assert pair.stale == (False, False)


class Unreferable:
    """A data source that takes no weak references, and no hash."""

    __slots__ = ("_inner",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __eq__(self, other: object) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@every_pair
@pytest.mark.parametrize("kind", [lambda source: source, Unreferable])
def test_kernels_made_after_training_read_the_first_numbers(kinds: Any, kind: Any, device: torch.device) -> None:
    """They are as old as kernels that were made before, and say so; new numbers of the data source are new."""
    source = kind(Layer(1, 1, 2, 2).source())
    pair = Pair(device, kinds, source)
    early = kinds[0](pair.bench.device, weights=source)
    for weight in (2.0, 3.0):
        pair.reload(pair.forward, pair.gradient, state=pair.filled(weight))
    late = Pair(device, kinds, source)
    assert (early.weights_version, late.forward.weights_version, pair.versions) == (1, 1, (3, 3))
    (message,) = late.encode()
    assert "holds version 1 of the weights" in message and "given version 3" in message
    late.reload(late.forward, late.gradient)
    assert late.versions == (1, 1), "the data source still gives the first numbers"
    (pair.source._inner if kind is Unreferable else pair.source)._weights = np.full_like(source._weights, 3.0)
    assert kinds[0](pair.bench.device, weights=source).weights_version == 3, "it brings back what training came to"


def test_versions_outlive_the_kernels(device: torch.device) -> None:
    """As long as the data source lives; another one in its place in memory begins anew."""
    source = Layer(1, 1, 2, 2).source()
    pair = Pair(device, source=source)
    pair.reload(pair.forward, state=pair.filled(2.0))
    del pair
    gc.collect()
    assert Pair(device, source=source).forward.weights_version == 1
    assert len(Pair(device, source=source).encode()) == 1
    before = len(weight_versions._lineages)
    del source
    gc.collect()
    assert len(weight_versions._lineages) == before - 1


def test_kernels_without_a_data_source() -> None:
    kernel = MPSCNNConvolution(Bench.on(torch.device("cpu")).device, MPSCNNConvolutionDescriptor(1, 1, 1, 1), [1.0])
    assert (kernel.holds_stale_weights(), kernel.weights_version) == (False, 1)


# --- by versions ------------------------------------------------------------------------------------------------------


@every_pair
def test_a_gradient_kernel_that_was_forgotten(kinds: Any, device: torch.device) -> None:
    pair = Pair(device, kinds)
    pair.encode()
    pair.change()
    pair.reload(pair.forward)
    assert pair.versions == (2, 1)
    (message,) = pair.encode()
    assert message.startswith(
        f"{kinds[1].__name__} 'source': holds version 1 of the weights, older than version 2 that "
        f"{kinds[0].__name__} 'source' had in the forward encode: after each update reload both kernels"
    )
    pair.reload(pair.gradient)
    assert (pair.versions, pair.encode()) == ((2, 2), [])


def test_a_forward_kernel_that_was_forgotten(device: torch.device) -> None:
    pair = Pair(device)
    pair.encode()
    pair.change()
    pair.reload(pair.gradient)
    first, second = pair.encode()
    assert first.startswith(
        "MPSCNNConvolution 'source': holds version 1 of the weights, and another kernel of the same data source was "
        "given version 2: after each update reload every kernel"
    )
    assert "holds version 2 of the weights, newer than version 1 that MPSCNNConvolution 'source' had" in second
    assert pair.encode() == [], "said once"
    pair.reload(pair.forward)
    assert (pair.versions, pair.encode()) == ((2, 2), [])
    pair.change(6)
    pair.reload(pair.gradient)
    assert len(pair.encode()) == 2, "and again when it happens again"


def test_a_source_that_changed_before_the_gradient_kernel_read_it(device: torch.device) -> None:
    pair = Pair(device)
    pair.change()
    first, second = pair.encode(), pair.encode()
    assert len(first) == 1 and "newer than version 1 that MPSCNNConvolution 'source' had in the forward" in first[0]
    assert len(second) == 1 and second[0].startswith("MPSCNNConvolution 'source': holds version 1"), "now it is known"


@pytest.mark.parametrize("temporary", [True, False])
def test_updates_on_the_device(temporary: bool, device: torch.device) -> None:
    """Both kernels reload from one state, step after step: in place in a permanent one, or a new temporary one."""
    pair = Pair(device)
    pair.encode()
    kept = pair.filled(2)
    for step in range(3):
        command_buffer = pair.bench.command_buffer()
        state = pair.forward.export_weights_and_biases(command_buffer, temporary) if temporary else kept
        if temporary:
            state.read_count = 2
        for kernel in (pair.forward, pair.gradient):
            kernel.reload_weights_and_biases(command_buffer, state)
        finish(command_buffer)
        assert pair.versions == (step + 2, step + 2)
        assert pair.encode() == []
    other = pair.filled(3)
    pair.reload(pair.forward, state=other)
    (message,) = pair.encode()
    assert "holds version 4 of the weights, older than version 5" in message
    pair.reload(pair.gradient, state=other)
    assert pair.encode() == []


def test_a_state_with_the_same_numbers_is_no_change(device: torch.device) -> None:
    """Also of a folded batch normalization's, which no state has."""
    descriptor = MPSCNNConvolutionDescriptor(2, 2, 1, 1)
    descriptor.set_batch_normalization_parameters_for_inference([1.0], [4.0], [2.0], [0.5], 0.0)
    folded = ArraySource(descriptor, np.full(4, 7.0, np.float32), np.zeros(1, np.float32))
    plain = ArraySource(MPSCNNConvolutionDescriptor(2, 2, 1, 1), np.full(4, 7.0, np.float32), np.zeros(1, np.float32))
    for source in (plain, folded):
        pair = Pair(device, source=source)
        pair.encode()
        pair.reload(pair.forward, state=pair.filled(7))
        assert (pair.encode(), pair.versions) == ([], (2, 2))
        pair.reload(pair.forward, state=pair.filled(8))
        assert len(pair.encode()) == 1


def test_the_gradient_of_an_earlier_forward_encode(device: torch.device) -> None:
    """What counts is what the forward kernel held then: updates layer by layer behind the gradients say nothing."""
    pair = Pair(device)
    pair.encode()
    command_buffer = pair.bench.command_buffer()
    image = pair.bench.empty((1, 1, 2, 2))
    result, state = pair.forward.encode(command_buffer, image, destination_state_is_temporary=False)
    pair.forward.reload_weights_and_biases(command_buffer, new := pair.filled(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair.gradient.encode(command_buffer, result, image, state)
        pair.gradient.reload_weights_and_biases(command_buffer, new)
    finish(command_buffer)
    assert pair.encode() == []


def test_a_first_reload_before_the_first_gradient(device: torch.device) -> None:
    """The gradient kernel reads its weights only to have them replaced by those that the forward kernel has."""
    pair = Pair(device)
    state = pair.filled(2)
    pair.reload(pair.forward, pair.gradient, state=state)
    assert (pair.versions, pair.encode()) == ((2, 2), [])
    other = Pair(device)
    other.reload(other.gradient, other.forward, state=state)
    assert (other.versions, other.encode()) == ((2, 2), [])


def test_reading_the_same_numbers_again_is_no_change(device: torch.device) -> None:
    pair = Pair(device)
    pair.encode()
    pair.reload(pair.forward, pair.forward)
    assert (pair.versions, pair.encode()) == ((1, 1), [])


def test_a_source_that_brings_trained_weights_back_is_no_change(device: torch.device) -> None:
    pair = Pair(device)
    pair.encode()
    pair.reload(pair.forward, pair.gradient, state=pair.filled(7))
    pair.change(7)
    pair.source._biases = np.zeros(1, np.float32)
    pair.reload(pair.forward)
    assert (pair.versions, pair.encode()) == ((2, 2), [])
    pair.reload(pair.forward, pair.gradient, state=pair.filled(8))
    pair.reload(pair.forward)
    assert pair.versions == (4, 3), "back to older numbers: a change that the gradient kernel has not seen"


def test_a_third_kernel_reads_what_training_brought_back(device: torch.device) -> None:
    pair = Pair(device)
    other = MPSCNNConvolution(pair.bench.device, weights=pair.source)
    pair.encode()
    pair.reload(pair.forward, pair.gradient, state=pair.filled(7))
    assert other.weights_version == 1
    pair.reload(other)
    assert other.weights_version == 1, "the data source still gives the old numbers"
    pair.change(7)
    pair.reload(other)
    assert other.weights_version == 2
    assert pair.encode() == []


def test_a_kernel_for_inference_alone(device: torch.device) -> None:
    pair = Pair(device)
    other = MPSCNNConvolution(pair.bench.device, weights=pair.source)
    pair.encode()
    pair.reload(pair.forward, pair.gradient, state=pair.filled(7))
    with pytest.warns(MPSTrainingWarning, match="holds version 1 of the weights, and another kernel"):
        other.encode(pair.bench.command_buffer(), pair.bench.empty((1, 1, 2, 2)))
    pair.change(7)
    pair.reload(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other.encode(pair.bench.command_buffer(), pair.bench.empty((1, 1, 2, 2)))


def test_equal_data_sources_are_not_one(device: torch.device) -> None:
    """Versions are those of one object: kernels of two are never compared."""
    pair = Pair(device)
    pair.gradient = MPSCNNConvolutionGradient(pair.bench.device, weights=Layer(1, 1, 2, 2).source())
    pair.encode()
    pair.change()
    pair.reload(pair.forward)
    assert (pair.versions, pair.encode()) == ((2, 1), [])


def test_copies_hold_the_same_version() -> None:
    pair = Pair(torch.device("cpu"))
    pair.encode()
    pair.change()
    pair.reload(pair.forward, pair.gradient)
    twin = pair.forward.copy()
    assert (twin.weights_version, twin.holds_stale_weights()) == (2, False)
    pair.change(9)
    pair.reload(pair.forward)
    assert (twin.weights_version, pair.forward.weights_version) == (2, 3)

    class Copying(ArraySource):
        def copy(self, device: Any = None) -> Any:
            return ArraySource(self._descriptor, self._weights.copy(), self._biases)

    drawn = Layer(1, 1, 2, 2).source()
    own = Pair(torch.device("cpu"), source=Copying(drawn._descriptor, drawn._weights, drawn._biases))
    own.change()
    own.reload(own.forward)
    assert own.forward.copy().weights_version == 1, "of a data source of its own"


def test_data_sources_are_let_go() -> None:
    """Whatever kernels know of each other ends with them; the source need not be hashable."""

    class Odd(ArraySource):
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("compared")

    layer = Layer(1, 1, 2, 2).source()
    source = Odd(layer._descriptor, layer._weights, layer._biases)
    alive = weakref.ref(source)
    pair: Any = Pair(torch.device("cpu"), source=source)
    assert pair.encode() == []
    del pair, source
    gc.collect()
    assert alive() is None
