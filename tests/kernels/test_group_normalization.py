"""Instance and group normalization: parameters and their reloads, statistics, gradients of each image, states."""

from __future__ import annotations

import copy
import gc
import re
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from encoding import FLOAT16, FLOAT32, Bench, encode, finish, keep_results, numbers, run
from helpers import assert_close, assert_digits
from in_one_test import in_one_test
from openmps.core.kernel.plan import Plan
from openmps.core.state.batch import MPSStateBatchResourceSize
from openmps.core.state.rows import MPSCNNNormalizationGammaAndBetaState
from openmps.core.vector import MPSVector
from openmps.core.vector_descriptor import MPSVectorDescriptor
from openmps.errors import (
    MPSArgumentError,
    MPSDeviceError,
    MPSError,
    MPSLifetimeError,
    MPSTrainingWarning,
    MPSTypeError,
    MTLCommandBufferError,
)
from openmps.kernels.group_normalization import (
    MPSCNNGroupNormalization,
    MPSCNNGroupNormalizationDataSource,
    MPSCNNGroupNormalizationGradient,
    MPSCNNGroupNormalizationGradientState,
    MPSCNNInstanceNormalization,
    MPSCNNInstanceNormalizationDataSource,
    MPSCNNInstanceNormalizationGradient,
    MPSCNNInstanceNormalizationGradientState,
)
from openmps.kernels.optimizers import MPSNNOptimizerStochasticGradientDescent
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import MPSImageEdgeMode, MPSOffset, MPSStateResourceType, MTLOrigin, MTLRegion, MTLSize
from oracles import group_normalization as oracle
from oracles.geometry import Axis
from samples.group_normalization import GammaAndBetaSource, scales_and_shifts

CPU = mtl_device("cpu")
FLT_MIN = float(np.finfo(np.float32).tiny)
GROUPS = {MPSCNNInstanceNormalization: 4, MPSCNNGroupNormalization: 2}
GRADIENTS = {
    MPSCNNInstanceNormalization: MPSCNNInstanceNormalizationGradient,
    MPSCNNGroupNormalization: MPSCNNGroupNormalizationGradient,
}
GAMMA, BETA = scales_and_shifts(4)


@pytest.fixture(params=GROUPS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def _source(kind: Any = MPSCNNGroupNormalization, **changes: Any) -> GammaAndBetaSource:
    source = GammaAndBetaSource(4, GROUPS[kind], GAMMA, BETA)
    for name, value in changes.items():
        setattr(source, name, value)
    return source


def _kernel(kind: Any, device: MTLDevice = CPU, epsilon: float = 1e-3) -> Any:
    kernel = kind(device, _source(kind))
    kernel.epsilon = epsilon
    keep_results(kernel)
    return kernel


def _gradient(kind: Any, device: MTLDevice = CPU) -> Any:
    gradient = GRADIENTS[kind](device)
    keep_results(gradient)
    return gradient


def _floats(buffer: Any) -> np.ndarray:
    return buffer.tensor(torch.float32).cpu().double().numpy()


def _draw(rng: np.random.Generator, images: int = 3, channels: int = 4) -> np.ndarray:
    return rng.normal(0.5, 2.0, size=(images, channels, 3, 5)).astype(np.float32).astype(np.float64)


def _expected(kind: Any, g: np.ndarray, x: np.ndarray, epsilon: float = 1e-3) -> tuple[np.ndarray, ...]:
    return oracle.gradient(g, x, GAMMA, Axis(x.shape[2]), Axis(x.shape[3]), 0, GROUPS[kind], epsilon)


def _forward(kind: Any, x: np.ndarray, gamma: Any = GAMMA, beta: Any = BETA, epsilon: float = 1e-3) -> np.ndarray:
    return oracle.forward(x, gamma, beta, Axis(x.shape[2]), Axis(x.shape[3]), 0, GROUPS[kind], epsilon)


# --- properties and data sources -------------------------------------------------------------------------------------


def test_defaults(kind: Any) -> None:
    source = _source(kind)
    kernel = kind(CPU, source)
    assert kernel.epsilon == FLT_MIN
    assert kernel.data_source is source
    assert kernel.label == "source"
    assert kernel.edge_mode is MPSImageEdgeMode.ZERO
    assert (kernel.kernel_width, kernel.kernel_height) == (1, 1)
    assert not kernel.is_result_state_reused_across_batch()
    assert not kernel.is_state_modified
    assert not kernel.append_batch_barrier()
    assert (source.loads, source.purges) == (1, 1)
    gradient = GRADIENTS[kind](CPU)
    assert gradient.is_state_modified
    assert gradient.label is None


def test_data_sources_are_told_by_their_methods() -> None:
    assert isinstance(_source(), MPSCNNInstanceNormalizationDataSource)
    assert isinstance(_source(), MPSCNNGroupNormalizationDataSource)
    assert not isinstance(_Plain(), MPSCNNGroupNormalizationDataSource)
    assert isinstance(_Plain(), MPSCNNInstanceNormalizationDataSource)


class _Plain:
    """The least that an instance normalization asks for."""

    def gamma(self) -> Any:
        return None

    def beta(self) -> Any:
        return [1, 2]

    def number_of_feature_channels(self) -> int:
        return 2

    def label(self) -> None:
        return None


def test_the_least_of_a_data_source(device: torch.device) -> None:
    """No gamma is 1, no beta 0; nothing optional is asked for."""
    bench = Bench.on(device)
    kernel = MPSCNNInstanceNormalization(bench.device, _Plain())
    assert kernel.label is None
    x = np.array([1.0, 3.0, -2.0, -2.0]).reshape(1, 2, 1, 2)
    np.testing.assert_array_equal(run(bench, kernel, [bench.image(x)]).ravel(), [0, 2, 2, 2])


def test_epsilon(kind: Any, device: torch.device) -> None:
    """The data source's, and then the kernel's own, which a reload leaves alone."""
    bench = Bench.on(device)
    source = _source(kind)
    source.epsilon = lambda: np.float32(0.5)  # type: ignore[attr-defined]
    kernel = kind(bench.device, source)
    x = np.arange(24.0).reshape(1, 4, 2, 3)
    assert kernel.epsilon == 0.5
    assert_close(run(bench, kernel, [bench.image(x)]), _forward(kind, x, epsilon=0.5), 1e-5)
    kernel.epsilon = 8
    kernel.reload_gamma_and_beta_from_data_source()
    assert kernel.epsilon == 8.0
    assert_close(run(bench, kernel, [bench.image(x)]), _forward(kind, x, epsilon=8.0), 1e-5)


@in_one_test
@pytest.mark.parametrize("value", ["1", None, True, [1.0]])
def test_epsilon_is_a_number(kind: Any, value: Any) -> None:
    kernel = kind(CPU, _source(kind))
    with pytest.raises(MPSTypeError, match=f"^{kind.__name__} 'source': epsilon must be a number"):
        kernel.epsilon = value
    with pytest.raises(MPSTypeError, match=re.escape(f"{kind.__name__}: data source epsilon() must be a number")):
        kind(CPU, _source(kind, epsilon=lambda: "x"))


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_epsilon_is_not_negative(kind: Any, value: float) -> None:
    kernel = kind(CPU, _source(kind))
    with pytest.raises(MPSArgumentError, match=f"^{kind.__name__} 'source': epsilon must be a finite number of at l"):
        kernel.epsilon = value


@in_one_test
@pytest.mark.parametrize("method", ["gamma", "beta", "number_of_feature_channels", "label"])
def test_missing_methods(kind: Any, method: str) -> None:
    rule = f"^{kind.__name__}: data_source must be a data source with the methods .*GammaAndBetaSource without {method}"
    with pytest.raises(MPSTypeError, match=rule):
        kind(CPU, _source(kind, **{method: None}))


def test_group_sources_have_groups() -> None:
    with pytest.raises(MPSTypeError, match="^MPSCNNGroupNormalization: data_source must.* without number_of_groups"):
        MPSCNNGroupNormalization(CPU, _source(number_of_groups=None))
    for groups in (0, -1, 1.5, True, None):
        rule = r"^MPSCNNGroupNormalization: data source number_of_groups\(\) must return a positive integer"
        with pytest.raises(MPSArgumentError, match=rule):
            MPSCNNGroupNormalization(CPU, _source(groups=groups))
    for groups in (3, 8):
        rule = r"^MPSCNNGroupNormalization: data source number_of_groups\(\) must divide number_of_feature_channels"
        with pytest.raises(MPSArgumentError, match=rule):
            MPSCNNGroupNormalization(CPU, _source(groups=groups))


def test_data_sources_that_fail(kind: Any) -> None:
    cases: list[tuple[dict[str, Any], type[MPSError], str]] = [
        ({"load": lambda: False}, MPSArgumentError, "load() must return True"),
        ({"channels": 0}, MPSArgumentError, "number_of_feature_channels() must return a positive integer"),
        ({"scales": [1.0] * 3}, MPSArgumentError, "gamma() must return one number a feature channel, 4"),
        ({"shifts": [1.0] * 5}, MPSArgumentError, "beta() must return one number a feature channel, 4"),
        ({"scales": ["a"] * 4}, MPSTypeError, "gamma() must be numbers that fit float32"),
        ({"shifts": object()}, MPSTypeError, "beta() must be numbers that fit float32"),
    ]
    for changes, error, rule in cases:
        source = _source(kind, **changes)
        with pytest.raises(error, match="^" + re.escape(f"{kind.__name__}: data source {rule}")):
            kind(CPU, source)
        assert source.loads == source.purges, "purged whatever happens"
    with pytest.raises(MPSTypeError, match=f"^{kind.__name__}: device must be an MTLDevice"):
        kind("cpu", _source(kind))


def test_numbers_of_any_kind(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x = _draw(rng)
    expected = run(bench, _kernel(kind, bench.device, FLT_MIN), [bench.batch(x)])
    wide, plain = GAMMA.astype(np.float32), BETA.astype(np.float32)
    buffer = bench.device.new_buffer(data=wide)
    for gamma, beta in ((wide.tolist(), torch.from_numpy(plain)), (wide.tobytes(), plain), (buffer, memoryview(plain))):
        kernel = kind(bench.device, _source(kind, scales=gamma, shifts=beta))
        np.testing.assert_array_equal(run(bench, kernel, [bench.batch(x)]), expected)


# --- the numbers -----------------------------------------------------------------------------------------------------


def test_golden(device: torch.device) -> None:
    """One channel, X = 1..4, epsilon 1e-5: the printed numbers, forward and back."""
    bench = Bench.on(device)
    kernel = MPSCNNInstanceNormalization(bench.device, GammaAndBetaSource(1))
    kernel.epsilon = 1e-5
    keep_results(kernel)
    image, flow = bench.image(np.arange(1.0, 5.0).reshape(1, 1, 2, 2)), bench.image(np.eye(4)[0].reshape(1, 1, 2, 2))
    command_buffer = bench.command_buffer()
    result, state = kernel.encode(command_buffer, image, destination_state_is_temporary=False)
    back = _gradient(MPSCNNInstanceNormalization, bench.device).encode(command_buffer, flow, image, state)
    finish(command_buffer)
    assert_digits(numbers(result), [-1.34164, -0.44721, 0.44721, 1.34164], 5)
    assert_digits(numbers(back), [0.26833, -0.35777, -0.08944, 0.17888], 5)
    assert_digits(_floats(state.gradient_for_gamma), [-1.34164], 5)
    assert_digits(_floats(state.gradient_for_beta), [1.0], 5)


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_equals_pytorch(groups: int, device: torch.device, rng: np.random.Generator) -> None:
    """`instance_norm` for as many groups as channels, `group_norm` for all; gradients by autograd in float64."""
    bench = Bench.on(device)
    x = rng.normal(size=(3, 8, 4, 5)).astype(np.float32).astype(np.float64)
    flow = rng.normal(size=x.shape).astype(np.float32).astype(np.float64)
    gamma, beta = scales_and_shifts(8)
    leaves = [torch.tensor(each, requires_grad=True) for each in (x, gamma, beta)]
    expected = functional.group_norm(leaves[0], groups, leaves[1], leaves[2], 1e-5)
    kinds = [MPSCNNGroupNormalization]
    if groups == 8:
        kinds.append(MPSCNNInstanceNormalization)
        same = functional.instance_norm(leaves[0], weight=leaves[1], bias=leaves[2], eps=1e-5)
        assert_close(same, expected, 1e-12)
    wanted = [each.numpy() for each in torch.autograd.grad(expected, leaves, torch.from_numpy(flow))]
    for kind in kinds:
        kernel = kind(bench.device, GammaAndBetaSource(8, groups, gamma, beta))
        kernel.epsilon = 1e-5
        keep_results(kernel)
        images, command_buffer = bench.batch(x), bench.command_buffer()
        result, states = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
        back = _gradient(kind, bench.device).encode_batch(command_buffer, bench.batch(flow), images, states)
        finish(command_buffer)
        assert_close(numbers(result), expected, 1e-5, "result")
        assert_close(numbers(back), wanted[0], 1e-5, "gradient")
        assert_close(sum(_floats(state.gradient_for_gamma) for state in states), wanted[1], 1e-5, "gamma")
        assert_close(sum(_floats(state.gradient_for_beta) for state in states), wanted[2], 1e-5, "beta")


def test_constant_images(kind: Any, device: torch.device) -> None:
    """The default epsilon multiplies by 1e19, but there is nothing to multiply; in float16 as well."""
    bench = Bench.on(device)
    kernel = kind(bench.device, _source(kind))
    for channel_format in (FLOAT32, FLOAT16):
        result = run(bench, kernel, [bench.filled((2, 4, 5, 7), 0.1, channel_format)])
        expected = np.broadcast_to(BETA.reshape(1, 4, 1, 1), result.shape)
        assert_close(result, expected, 0.0 if channel_format is FLOAT32 else 2.0**-11)


@pytest.mark.parametrize("channel_format", [FLOAT32, FLOAT16], ids=lambda f: f.name)
def test_one_pixel(channel_format: Any, device: torch.device, rng: np.random.Generator) -> None:
    """One pixel is its own mean: beta comes out and nothing flows back, with a large epsilon and with the smallest."""
    bench = Bench.on(device)
    x, flow = (rng.normal(size=(2, 4, 1, 1)) for _ in range(2))
    for epsilon in (100.0, FLT_MIN):
        kernel = _kernel(MPSCNNInstanceNormalization, bench.device, epsilon)
        images, command_buffer = bench.batch(x, channel_format), bench.command_buffer()
        result, states = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
        flows = bench.batch(flow, channel_format)
        back = _gradient(MPSCNNInstanceNormalization, bench.device).encode_batch(command_buffer, flows, images, states)
        finish(command_buffer)
        assert_close(numbers(result), np.broadcast_to(BETA.reshape(1, 4, 1, 1), x.shape), 2.0**-11)
        np.testing.assert_array_equal(numbers(back), 0.0)
        np.testing.assert_array_equal(_floats(states[1].gradient_for_gamma), 0.0)
        np.testing.assert_array_equal(_floats(states[1].gradient_for_beta), numbers(flows)[1].ravel())


def test_one_pixel_of_a_group(device: torch.device) -> None:
    """The channels of the group are its numbers: 1 and 3 with mean 2, variance 1, and epsilon 3."""
    bench = Bench.on(device)
    kernel = MPSCNNGroupNormalization(bench.device, GammaAndBetaSource(2, 1))
    kernel.epsilon = 3.0
    x = np.array([1.0, 3.0]).reshape(1, 2, 1, 1)
    np.testing.assert_allclose(run(bench, kernel, [bench.image(x)]).ravel(), [-0.5, 0.5], rtol=1e-6)


def test_statistics_of_the_whole_image(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    """Offset and clip rectangle choose results; what is outside the image is normalized but does not count."""
    bench = Bench.on(device)
    x = _draw(rng, images=1)
    kernel = _kernel(kind, bench.device)
    kernel.offset = MPSOffset(3, -1, 0)
    kernel.clip_rect = MTLRegion(MTLOrigin(1, 0, 0), MTLSize(4, 2, 1))
    destination = bench.filled((1, 4, 2, 6), -7.0)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, bench.image(x), destination)
    finish(command_buffer)
    expected = np.full((1, 4, 2, 6), -7.0)
    placed = oracle.forward(x, GAMMA, BETA, Axis(2, offset=-1), Axis(4, offset=3), 0, GROUPS[kind], 1e-3)
    expected[:, :, :, 1:5] = placed
    assert_close(numbers(destination), expected, 1e-5)
    whole = _forward(kind, x)
    assert_close(numbers(destination)[:, :, 1, 1:3], whole[:, :, 0, 3:5], 1e-5)


def test_reads_as_many_channels_as_the_data_source_has(kind: Any, device: torch.device, rng: Any) -> None:
    """Of a larger image those from the channel offset on; the result has as many. Too few are refused."""
    bench = Bench.on(device)
    x = _draw(rng, channels=10)
    kernel = _kernel(kind, bench.device)
    kernel.source_feature_channel_offset = 4
    assert_close(run(bench, kernel, [bench.batch(x)]), _forward(kind, x[:, 4:8]), 1e-5)
    rule = rf"^{kind.__name__} 'source': source_image must have at least 4 feature channel\(s\)"
    with pytest.raises(MPSArgumentError, match=rule):
        kernel.encode(bench.command_buffer(), bench.empty((1, 7, 2, 2)))
    kernel.source_feature_channel_offset = 0
    kernel.source_feature_channel_max_count = 3
    with pytest.raises(MPSArgumentError, match=rule):
        kernel.encode(bench.command_buffer(), bench.empty((1, 4, 2, 2)))


# --- states ----------------------------------------------------------------------------------------------------------


def _train(bench: Bench, kind: Any, x: np.ndarray, g: np.ndarray, kernel: Any = None) -> tuple[Any, Any]:
    kernel = kernel or _kernel(kind, bench.device)
    images, command_buffer = bench.batch(x), bench.command_buffer()
    _, states = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    back = _gradient(kind, bench.device).encode_batch(command_buffer, bench.batch(g), images, states)
    finish(command_buffer)
    return numbers(back), states


def test_gradients_of_each_image(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x, g = _draw(rng), _draw(rng)
    back, states = _train(bench, kind, x, g)
    expected, for_gamma, for_beta = _expected(kind, g, x)
    assert_close(back, expected, 1e-5)
    for index, state in enumerate(states):
        assert_close(_floats(state.gradient_for_gamma), for_gamma[index], 1e-5, f"gamma of image {index}")
        assert_close(_floats(state.gradient_for_beta), for_beta[index], 1e-5, f"beta of image {index}")
        assert state.gradient_for_gamma is state.gradient_for_gamma
        assert state.gradient_for_gamma.contents().view(np.float32).shape == (4,)


def test_what_a_state_has(kind: Any) -> None:
    bench = Bench(CPU)
    kernel = _kernel(kind)
    states = kernel.result_state_batch([bench.empty((1, 4, 2, 2))] * 3)
    kinds = {
        MPSCNNInstanceNormalization: (MPSCNNInstanceNormalizationGradientState, "instance_normalization"),
        MPSCNNGroupNormalization: (MPSCNNGroupNormalizationGradientState, "group_normalization"),
    }
    state_kind, back_pointer = kinds[kind]
    for state in states:
        assert type(state) is state_kind
        assert getattr(state, back_pointer) is kernel
        assert state.gamma is states[0].gamma
        np.testing.assert_array_equal(_floats(state.gamma), GAMMA)
        np.testing.assert_array_equal(_floats(state.beta), BETA)
        assert state.resource_count == 2
        assert [state.buffer_size_at_index(index) for index in range(2)] == [16, 16]
        assert state.resource_type_at_index(0) is MPSStateResourceType.BUFFER
        assert state.resource_at_index(0, allocate_memory=False) is None
        assert state.resource_size() == 32
        np.testing.assert_array_equal(_floats(state.gradient_for_gamma), 0.0)
        assert state.resource_at_index(0) is state.gradient_for_gamma
        assert state.resource_at_index(1) is state.gradient_for_beta
    assert MPSStateBatchResourceSize(states) == 96
    state = kernel.result_state(bench.empty((1, 4, 2, 2)))
    assert state.gradient_for_beta.length == 16
    for name in (back_pointer, "gamma", "beta", "gradient_for_gamma", "gradient_for_beta"):
        with pytest.raises(AttributeError):
            setattr(state, name, None)


def test_gradients_are_there_when_the_work_is_done(kind: Any, device: torch.device, rng: Any) -> None:
    """Encoding computes nothing; buffers that were taken before the commit are filled in."""
    bench = Bench.on(device)
    x, g = _draw(rng), _draw(rng)
    images, command_buffer = bench.batch(x), bench.command_buffer()
    _, states = _kernel(kind, bench.device).encode_batch(command_buffer, images, destination_state_is_temporary=False)
    _gradient(kind, bench.device).encode_batch(command_buffer, bench.batch(g), images, states)
    taken = [(state.gradient_for_gamma, state.gradient_for_beta) for state in states]
    assert all(not buffer.memory(torch.float32).any() for pair in taken for buffer in pair)
    finish(command_buffer)
    _, for_gamma, for_beta = _expected(kind, g, x)
    assert_close(np.stack([_floats(pair[0]) for pair in taken]), for_gamma, 1e-5)
    assert_close(np.stack([_floats(pair[1]) for pair in taken]), for_beta, 1e-5)


def test_gradients_add_up_until_the_next_forward_pass(kind: Any, device: torch.device, rng: Any) -> None:
    """Two gradient encodes of one forward encode add; a forward encode into the states starts again."""
    bench = Bench.on(device)
    x, g = _draw(rng), _draw(rng)
    kernel, gradient = _kernel(kind, bench.device), _gradient(kind, bench.device)
    images, flows = bench.batch(x), bench.batch(g)
    states = kernel.result_state_batch(images)
    _, for_gamma, for_beta = _expected(kind, g, x)
    for times in (2, 1, 3):
        command_buffer = bench.command_buffer()
        kernel.encode_batch(command_buffer, images, destination_states=states)
        for _ in range(times):
            gradient.encode_batch(command_buffer, flows, images, states)
        finish(command_buffer)
        for index, state in enumerate(states):
            assert_close(_floats(state.gradient_for_gamma), times * for_gamma[index], 1e-5)
            assert_close(_floats(state.gradient_for_beta), times * for_beta[index], 1e-5)
    command_buffer = bench.command_buffer()
    kernel.encode_batch(command_buffer, images[1:2], destination_states=[states[1]])
    assert states[1].gradient_for_beta.memory(torch.float32).any(), "nothing happens before the commit"
    finish(command_buffer)
    assert not _floats(states[1].gradient_for_gamma).any()
    assert_close(_floats(states[2].gradient_for_gamma), 3 * for_gamma[2], 1e-5)


def test_slices_and_permutations_reach_their_own_states(kind: Any, device: torch.device, rng: Any) -> None:
    bench = Bench.on(device)
    x, g = _draw(rng, 5), _draw(rng, 5)
    kernel, gradient = _kernel(kind, bench.device), _gradient(kind, bench.device)
    images, flows, command_buffer = bench.batch(x), bench.batch(g), bench.command_buffer()
    _, states = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    found = np.zeros_like(x)
    encoded = []
    for order in ([3, 0], [1], [4, 2]):
        picked = [[batch[index] for index in order] for batch in (flows, images)]
        back = gradient.encode_batch(command_buffer, *picked, [states[index] for index in order])
        encoded.append((order, back))
    finish(command_buffer)
    for order, back in encoded:
        found[order] = numbers(back)
    expected, for_gamma, for_beta = _expected(kind, g, x)
    assert_close(found, expected, 1e-5)
    assert_close(np.stack([_floats(state.gradient_for_gamma) for state in states]), for_gamma, 1e-5)
    assert_close(np.stack([_floats(state.gradient_for_beta) for state in states]), for_beta, 1e-5)


def test_a_state_of_an_object_with_several_images_holds_their_sum(kind: Any, device: torch.device, rng: Any) -> None:
    bench = Bench.on(device)
    x, g = _draw(rng), _draw(rng)
    image, command_buffer = bench.image(x), bench.command_buffer()
    _, state = _kernel(kind, bench.device).encode(command_buffer, image, destination_state_is_temporary=False)
    back = _gradient(kind, bench.device).encode(command_buffer, bench.image(g), image, state)
    finish(command_buffer)
    expected, for_gamma, for_beta = _expected(kind, g, x)
    assert_close(numbers(back), expected, 1e-5)
    assert_close(_floats(state.gradient_for_gamma), for_gamma.sum(0), 1e-5)
    assert_close(_floats(state.gradient_for_beta), for_beta.sum(0), 1e-5)


def test_one_state_for_several_images_holds_their_sum(kind: Any, device: torch.device, rng: Any) -> None:
    """The same state given for each image, one that knows the statistics of only one of them."""
    bench = Bench.on(device)
    x, g = _draw(rng), _draw(rng)
    images, command_buffer = bench.batch(x), bench.command_buffer()
    _, states = _kernel(kind, bench.device).encode_batch(command_buffer, images, destination_state_is_temporary=False)
    turned = [images[2], images[1], images[0]]
    back = _gradient(kind, bench.device).encode_batch(command_buffer, bench.batch(g), turned, [states[1]] * 3)
    finish(command_buffer)
    expected, for_gamma, _ = _expected(kind, g, x[::-1])
    assert_close(numbers(back), expected, 1e-5)
    assert_close(_floats(states[1].gradient_for_gamma), for_gamma.sum(0), 1e-5)
    assert not _floats(states[0].gradient_for_gamma).any()


@pytest.mark.parametrize("first", [0, 1])
def test_statistics_of_other_images_are_not_believed(kind: Any, first: int, device: torch.device, rng: Any) -> None:
    """The gradient by hand of images that the forward encode did not see takes their own statistics."""
    bench = Bench.on(device)
    x, g = _draw(rng), _draw(rng)
    kernel, gradient = _kernel(kind, bench.device), _gradient(kind, bench.device)
    kernel.offset = MPSOffset(0, 0, 1)
    image, flow, destination = bench.image(x), bench.image(g), bench.empty((2, *x.shape[1:]))
    command_buffer = bench.command_buffer()
    state = kernel.result_state(image)
    kernel.encode(command_buffer, image, bench.empty((2, *x.shape[1:])), state)
    gradient.primary_offset = gradient.secondary_offset = MPSOffset(0, 0, first)
    gradient.encode(command_buffer, flow, image, state, destination)
    finish(command_buffer)
    chosen = slice(first, first + 2)
    expected, for_gamma, _ = _expected(kind, g[chosen], x[chosen])
    assert_close(numbers(destination), expected, 1e-5)
    assert_close(_floats(state.gradient_for_gamma), for_gamma.sum(0), 1e-5)


def test_the_gradient_uses_the_epsilon_and_groups_of_the_forward_encode(device: torch.device, rng: Any) -> None:
    bench = Bench.on(device)
    kind = MPSCNNGroupNormalization
    x, g = _draw(rng), _draw(rng)
    source = _source(kind)
    kernel = kind(bench.device, source)
    kernel.epsilon = 0.25
    images, command_buffer = bench.batch(x), bench.command_buffer()
    states = kernel.result_state_batch(images)
    kernel.encode_batch(command_buffer, images, destination_states=states)
    kernel.epsilon, source.groups = 9.0, 1
    kernel.reload_gamma_and_beta_from_data_source()
    back = _gradient(kind, bench.device).encode_batch(command_buffer, bench.batch(g), images, states)
    finish(command_buffer)
    assert_close(numbers(back), _expected(kind, g, x, 0.25)[0], 1e-5)
    keep_results(kernel)
    expected = oracle.forward(x, GAMMA, BETA, Axis(3), Axis(5), 0, 1, 9.0)
    assert_close(run(bench, kernel, [images]), expected, 1e-5)


def test_states_that_were_looked_at_learn_of_the_next_encode(kind: Any, device: torch.device, rng: Any) -> None:
    """Also if another kernel fills them in: its epsilon, its gamma."""
    bench = Bench.on(device)
    x, g = _draw(rng), _draw(rng)
    images, command_buffer = bench.batch(x), bench.command_buffer()
    first, second = _kernel(kind, bench.device), _kernel(kind, bench.device, 0.25)
    states = first.result_state_batch(images)
    first.encode_batch(command_buffer, images, destination_states=states)
    looked_at = list(states)
    second.encode_batch(command_buffer, images, destination_states=states)
    back = _gradient(kind, bench.device).encode_batch(command_buffer, bench.batch(g), images, looked_at)
    finish(command_buffer)
    assert_close(numbers(back), _expected(kind, g, x, 0.25)[0], 1e-5)
    assert looked_at[0].gamma is states[1].gamma
    assert looked_at[0].gamma is second.numbers.gamma.buffer


def test_states_of_kernels_with_the_same_settings(kind: Any, rng: np.random.Generator) -> None:
    """Each kernel has its own gamma: their states cannot be taken together."""
    bench = Bench(CPU)
    image, command_buffer = bench.image(_draw(rng, 1)), bench.command_buffer()
    encodes = [_kernel(kind).encode(command_buffer, image, destination_state_is_temporary=False) for _ in range(2)]
    with pytest.raises(MPSArgumentError, match="gradient_states must come from one kernel with the same epsilon"):
        _gradient(kind).encode_batch(command_buffer, [image, image], [image, image], [state for _, state in encodes])


def test_half_precision_images_are_read_as_they_are_stored(kind: Any, rng: np.random.Generator) -> None:
    bench = Bench(CPU)
    images, command_buffer = bench.batch(_draw(rng), FLOAT16), bench.command_buffer()
    kernel, gradient = _kernel(kind), _gradient(kind)
    _, states = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    gradient.encode_batch(command_buffer, images, images, states)
    for each in (kernel, gradient):
        plans = [
            plan
            for key, plan in each._configuration.plans.items()
            if isinstance(plan, Plan) and key[0][0].channel_format is FLOAT16
        ]
        assert plans
        for plan in plans:
            assert [type(equation.op).__name__ for equation in plan.function.equations] in (
                ["GroupNormalization", "Store"],
                ["GroupNormalizationGradient", "Store"],
            )


def test_temporary_states(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    """Their gradients can be read by encodes while reads are left, on their command buffer; then they are gone."""
    bench = Bench.on(device)
    x, g = _draw(rng), _draw(rng)
    images, command_buffer = bench.batch(x), bench.command_buffer()
    _, states = _kernel(kind, bench.device).encode_batch(command_buffer, images, destination_state_is_temporary=True)
    for state in states:
        state.read_count = 2
    assert all(state.is_temporary for state in states)
    _gradient(kind, bench.device).encode_batch(command_buffer, bench.batch(g), images, states)
    kept = [bench.device.new_buffer(length=16) for _ in states]
    blit = command_buffer.blit_command_encoder()
    for state, buffer in zip(states, kept, strict=True):
        blit.copy_from_buffer(state.gradient_for_gamma, 0, buffer, 0, 16)
        with pytest.raises(MPSArgumentError, match="PRIVATE storage"):
            state.gradient_for_gamma.contents()
    blit.end_encoding()
    for state in states:
        state.count_read()
    with pytest.raises(MPSLifetimeError, match="resource 0 must have reads left"):
        _ = states[0].gradient_for_gamma
    finish(command_buffer)
    with pytest.raises(MPSLifetimeError, match="resource 1 is gone"):
        _ = states[0].gradient_for_beta
    assert_close(np.stack([_floats(buffer) for buffer in kept]), _expected(kind, g, x)[1], 1e-5)


def test_memory_of_temporary_states_goes_back(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    """After the last read, though the states are still held."""
    bench = Bench.on(device)
    images, command_buffer = bench.batch(_draw(rng)), bench.command_buffer()
    _, states = _kernel(kind, bench.device).encode_batch(command_buffer, images, destination_state_is_temporary=True)
    buffers = [weakref.ref(state.gradient_for_gamma) for state in states]
    _gradient(kind, bench.device).encode_batch(command_buffer, bench.batch(_draw(rng)), images, states)
    finish(command_buffer)
    gc.collect()
    assert [buffer() for buffer in buffers] == [None] * 3
    assert {state.read_count for state in states} == {0}


def test_an_update_by_an_optimizer(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    """As a client does: each image's gradients descend in turn, then the kernel reloads; all before the commit."""
    bench = Bench.on(device)
    x, g = _draw(rng), _draw(rng)
    kernel = _kernel(kind, bench.device)
    images, command_buffer = bench.batch(x), bench.command_buffer()
    before, states = kernel.encode_batch(command_buffer, images, destination_state_is_temporary=False)
    _gradient(kind, bench.device).encode_batch(command_buffer, bench.batch(g), images, states)
    descriptor, descent = MPSVectorDescriptor(4), MPSNNOptimizerStochasticGradientDescent(bench.device, 0.125)
    new = [bench.device.new_buffer(data=_floats(each).astype(np.float32)) for each in (states[0].gamma, states[0].beta)]
    for state in states:
        for values, found in zip(new, (state.gradient_for_gamma, state.gradient_for_beta), strict=True):
            vector = MPSVector(values, descriptor)
            descent.encode(
                command_buffer,
                input_gradient_vector=MPSVector(found, descriptor),
                input_values_vector=vector,
                result_values_vector=vector,
            )
    kernel.reload_gamma_and_beta(command_buffer, MPSCNNNormalizationGammaAndBetaState(*new))
    after = kernel.encode_batch(command_buffer, images)
    finish(command_buffer)
    _, for_gamma, for_beta = _expected(kind, g, x)
    gamma, beta = GAMMA - 0.125 * for_gamma.sum(0), BETA - 0.125 * for_beta.sum(0)
    assert_close(numbers(before), _forward(kind, x), 1e-5)
    assert_close(numbers(after), _forward(kind, x, gamma, beta), 1e-5)
    assert_close(_floats(states[0].gamma), gamma, 1e-5, "states tell the kernel's numbers")


# --- reloading -------------------------------------------------------------------------------------------------------


def test_reload_from_the_data_source(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x, source = _draw(rng), _source(kind)
    kernel = kind(bench.device, source)
    kernel.epsilon = 1e-3
    state = kernel.result_state(bench.image(x))
    buffer = state.gamma
    source.scales, source.shifts = BETA, None
    kernel.reload_gamma_and_beta_from_data_source()
    assert (source.loads, source.purges) == (2, 2)
    assert_close(run(bench, kernel, [bench.batch(x)]), _forward(kind, x, BETA, np.zeros(4)), 1e-5)
    assert state.gamma is buffer
    np.testing.assert_array_equal(_floats(buffer), BETA)
    source.channels, source.scales, source.groups = 8, None, 1
    rule = rf"^{kind.__name__} 'source': data source number_of_feature_channels\(\) must return 4, as when"
    with pytest.raises(MPSArgumentError, match=rule):
        kernel.reload_gamma_and_beta_from_data_source()


def test_reload_from_another_data_source(device: torch.device, rng: np.random.Generator) -> None:
    """The deprecated form of instance normalization; group normalization came after it."""
    bench = Bench.on(device)
    kind = MPSCNNInstanceNormalization
    x, kernel = _draw(rng), _kernel(kind, bench.device)
    first = kernel.data_source
    kernel.reload_data_source(_source(kind, scales=BETA, shifts=GAMMA))
    assert_close(run(bench, kernel, [bench.batch(x)]), _forward(kind, x, BETA, GAMMA), 1e-5)
    assert kernel.data_source is first
    with pytest.raises(MPSTypeError, match="^MPSCNNInstanceNormalization 'source': data_source must be a data source"):
        kernel.reload_data_source(None)  # type: ignore[arg-type]
    assert not hasattr(MPSCNNGroupNormalization, "reload_data_source")


def test_reload_from_a_state_takes_its_place_in_the_queue(kind: Any, device: torch.device, rng: Any) -> None:
    """Encodes before it use the old numbers, encodes after it the new ones as they are when it runs."""
    bench = Bench.on(device)
    x, kernel = _draw(rng), _kernel(kind, bench.device)
    state = MPSCNNNormalizationGammaAndBetaState(*(bench.device.new_buffer(length=32) for _ in range(2)))
    images, command_buffer = bench.batch(x), bench.command_buffer()
    before = kernel.encode_batch(command_buffer, images)
    kernel.reload_gamma_and_beta(command_buffer, state)
    after = kernel.encode_batch(command_buffer, images)
    state.gamma.contents().view(np.float32)[:4] = BETA
    state.beta.contents().view(np.float32)[:4] = GAMMA
    finish(command_buffer)
    assert_close(numbers(before), _forward(kind, x), 1e-5)
    assert_close(numbers(after), _forward(kind, x, BETA, GAMMA), 1e-5)


def test_reload_counts_a_read(kind: Any) -> None:
    kernel, bench = _kernel(kind), Bench(CPU)
    command_buffer = bench.command_buffer()
    state = MPSCNNNormalizationGammaAndBetaState.temporary_state(command_buffer, 4)
    kernel.reload_gamma_and_beta(command_buffer, state)
    assert state.read_count == 0
    with pytest.raises(MPSLifetimeError, match=f"^{kind.__name__} 'source': gamma_and_beta_state must have reads left"):
        kernel.reload_gamma_and_beta(command_buffer, state)
    finish(command_buffer)
    np.testing.assert_array_equal(run(bench, kernel, [bench.filled((1, 4, 2, 2), 3.0)]), 0.0)


def test_reloads_that_are_refused(kind: Any) -> None:
    kernel, bench = _kernel(kind), Bench(CPU)
    command_buffer, name = bench.command_buffer(), f"^{kind.__name__} 'source': "
    forward = kernel.result_state(bench.empty((1, 4, 1, 1)))
    for wrong in (forward, None, [GAMMA, BETA]):
        rule = name + "gamma_and_beta_state must be an MPSCNNNormalizationGammaAndBetaState, got"
        with pytest.raises(MPSTypeError, match=rule):
            kernel.reload_gamma_and_beta(command_buffer, wrong)
    small = MPSCNNNormalizationGammaAndBetaState(CPU.new_buffer(length=16), CPU.new_buffer(length=12))
    with pytest.raises(MPSArgumentError, match=name + "gamma_and_beta_state.beta must hold 16 bytes"):
        kernel.reload_gamma_and_beta(command_buffer, small)
    elsewhere = MTLDevice(torch.device("cpu"))
    foreign = MPSCNNNormalizationGammaAndBetaState(*(elsewhere.new_buffer(length=16) for _ in range(2)))
    with pytest.raises(MPSDeviceError, match=name + "gamma_and_beta_state must belong to the device"):
        kernel.reload_gamma_and_beta(command_buffer, foreign)
    fitting = MPSCNNNormalizationGammaAndBetaState(*(CPU.new_buffer(length=16) for _ in range(2)))
    with pytest.raises(MPSTypeError, match=name + "command_buffer must be a command buffer"):
        kernel.reload_gamma_and_beta(None, fitting)
    finish(command_buffer)
    with pytest.raises(MTLCommandBufferError, match=name + "command_buffer must not be committed"):
        kernel.reload_gamma_and_beta(command_buffer, fitting)


# --- copies and misuse -----------------------------------------------------------------------------------------------


def test_copies_have_their_own_numbers(kind: Any, device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    x, kernel = _draw(rng), _kernel(kind, bench.device)
    twin = copy.copy(kernel)
    assert twin.data_source is kernel.data_source, "a source without copy() is shared"
    assert twin.result_state(bench.image(x)).gamma is not kernel.result_state(bench.image(x)).gamma
    kernel.data_source.scales = None
    kernel.reload_gamma_and_beta_from_data_source()
    with pytest.warns(MPSTrainingWarning, match="holds version 1 of gamma and beta"):
        assert_close(run(bench, twin, [bench.batch(x)]), _forward(kind, x), 1e-5)
    assert_close(run(bench, kernel, [bench.batch(x)]), _forward(kind, x, np.ones(4)), 1e-5)
    kernel.data_source.copy = lambda device: _source(kind, name=device.name)
    assert kernel.copy().data_source.label() == bench.device.name


def test_gradients_need_states_of_their_kernel(kind: Any) -> None:
    bench = Bench(CPU)
    gradient = _gradient(kind)
    gradient.label = "g"
    images = [bench.empty((1, 4, 2, 2)) for _ in range(3)]
    other = next(each for each in GROUPS if each is not kind)
    command_buffer, name = bench.command_buffer(), f"^{GRADIENTS[kind].__name__} 'g': "
    wanted = f"gradient_state must be {kind.__name__}GradientState, got "
    with pytest.raises(MPSTypeError, match=name + wanted + "no state. Pass the states"):
        gradient.encode(command_buffer, *images[:2], None, images[2])
    state = _kernel(other).result_state(images[0])
    with pytest.raises(MPSTypeError, match=name + wanted + f"{other.__name__}GradientState"):
        gradient.encode(command_buffer, *images[:2], state, images[2])
    _, state = _kernel(other).encode(command_buffer, images[1], destination_state_is_temporary=False)
    with pytest.raises(MPSArgumentError, match=name + f"gradient_state must come from an encode of {kind.__name__}"):
        gradient.encode(command_buffer, *images[:2], state)


def test_states_of_one_encode_are_of_one_kernel(kind: Any) -> None:
    bench = Bench(CPU)
    gradient = _gradient(kind)
    gradient.label = "g"
    image, command_buffer = bench.empty((1, 4, 2, 2)), bench.command_buffer()
    kernel = _kernel(kind)
    pairs = [(_kernel(kind), _kernel(kind)), (kernel, kernel)]
    for first, second in pairs:
        _, one = first.encode(command_buffer, image, destination_state_is_temporary=False)
        second.epsilon = 7.0
        _, two = second.encode(command_buffer, image, destination_state_is_temporary=False)
        batch = [bench.empty((1, 4, 2, 2)) for _ in range(2)]
        who = f"^{GRADIENTS[kind].__name__} 'g': gradient_states must come from "
        with pytest.raises(MPSArgumentError, match=who + "forward encodes with the same properties, got different par"):
            gradient.encode_batch(command_buffer, batch, [image, image], [one, two])
        results = [bench.empty((1, 4, 2, 2)) for _ in range(2)]
        with pytest.raises(MPSArgumentError, match=who + "one kernel with the same epsilon"):
            gradient.encode_batch(command_buffer, batch, [image, image], [one, two], results)


def test_gradients_of_other_channel_counts(kind: Any) -> None:
    """By hand: the source must have the channels that gamma has numbers for."""
    bench = Bench(CPU)
    gradient = _gradient(kind)
    state = _kernel(kind).result_state(bench.empty((1, 4, 2, 2)))
    images = [bench.empty((1, 5, 2, 2)) for _ in range(3)]
    rule = f"^{GRADIENTS[kind].__name__}: source_image must have 4 feature channels read, as the forward kernel's sou"
    with pytest.raises(MPSArgumentError, match=rule):
        gradient.encode(bench.command_buffer(), *images[:2], state, images[2])
    gradient.primary_source_feature_channel_max_count = gradient.secondary_source_feature_channel_max_count = 4
    gradient.encode(bench.command_buffer(), *images[:2], state, images[2])


def test_gradients_of_half_precision_images_are_float32(kind: Any, device: torch.device, rng: Any) -> None:
    """The images are rounded once; the gradients of gamma and beta are not rounded at all."""
    bench = Bench.on(device)
    x, g = (_draw(rng).astype(np.float16).astype(np.float64) for _ in range(2))
    images, command_buffer = bench.batch(x, FLOAT16), bench.command_buffer()
    result, states = encode(_kernel(kind, bench.device), command_buffer, [images], destination_state_is_temporary=False)
    back = _gradient(kind, bench.device).encode_batch(command_buffer, bench.batch(g, FLOAT16), images, states)
    finish(command_buffer)
    expected, for_gamma, for_beta = _expected(kind, g, x)
    assert_close(numbers(result), _forward(kind, x), 2.0**-11 * 1.01)
    assert_close(numbers(back), expected, 2.0**-11 * 1.01)
    assert_close(np.stack([_floats(state.gradient_for_gamma) for state in states]), for_gamma, 1e-5)
    assert_close(np.stack([_floats(state.gradient_for_beta) for state in states]), for_beta, 1e-5)
