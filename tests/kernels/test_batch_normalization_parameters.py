"""Batch normalization's data source, its reloads, and what all stages refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, keep_results, numbers
from helpers import array, assert_close
from in_one_test import in_one_test
from openmps.core.image.batch import MPSImageBatch
from openmps.core.state.rows import (
    MPSCNNNormalizationGammaAndBetaState,
    MPSCNNNormalizationMeanAndVarianceState,
)
from openmps.core.state.state import MPSState
from openmps.errors import (
    MPSArgumentError,
    MPSDeviceError,
    MPSLifetimeError,
    MPSTypeError,
    MTLCommandBufferError,
)
from openmps.kernels.batch_normalization import (
    MPSCNNBatchNormalization,
    MPSCNNBatchNormalizationDataSource,
    MPSCNNBatchNormalizationGradient,
    MPSCNNBatchNormalizationState,
    MPSCNNBatchNormalizationStatistics,
    MPSCNNBatchNormalizationStatisticsGradient,
)
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import mtl_device
from oracles import batch_normalization as oracle
from samples.batch_normalization import ChannelSource, rows
from samples.sample import exact

CPU = mtl_device("cpu")
FLT_MIN = 1.17549435e-38
Array = np.ndarray


def _images(rng: np.random.Generator, channels: int = 3) -> Array:
    return exact(rng.normal(size=(2, channels, 3, 2)))


def _run(bench: Bench, kernel: Any, x: Array) -> Array:
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    result = kernel.encode_batch(command_buffer, bench.batch(x))
    finish(command_buffer)
    return numbers(result)


def _expected(x: Array, p: dict[str, Array], epsilon: float = FLT_MIN) -> Array:
    return oracle.forward(x, p["mean"], p["variance"], p["gamma"], p["beta"], epsilon)


def _row(buffer: Any) -> Array:
    return array(buffer.tensor(torch.float32))


# --- the data source -------------------------------------------------------------------------------------------------


def test_the_data_source_is_read_once() -> None:
    source = ChannelSource(3, **rows(3))
    kernel = MPSCNNBatchNormalization(CPU, source)
    assert (source.loads, source.purges) == (1, 1)
    assert isinstance(source, MPSCNNBatchNormalizationDataSource)
    assert kernel.data_source is source
    assert kernel.label == "normalization"
    assert kernel.number_of_feature_channels == 3
    assert kernel.epsilon == pytest.approx(FLT_MIN, rel=1e-7)
    assert MPSCNNBatchNormalization(CPU, ChannelSource(3, 0.25)).epsilon == 0.25


@pytest.mark.parametrize("missing", ["gamma", "beta", "mean", "variance"])
def test_missing_rows(missing: str, device: torch.device, rng: np.random.Generator) -> None:
    """gamma 1, beta 0, mean 0, variance 1."""
    bench, x = Bench.on(device), _images(rng)
    p = rows(3)
    p[missing] = np.full(3, {"gamma": 1.0, "variance": 1.0}.get(missing, 0.0))
    kernel = MPSCNNBatchNormalization(bench.device, ChannelSource(3, **(p | {missing: None})))
    assert_close(_run(bench, kernel, x), _expected(x, p), 1e-5)


def test_without_beta_there_is_a_gradient_for_it(device: torch.device, rng: np.random.Generator) -> None:
    bench, x = Bench.on(device), _images(rng)
    kernel = MPSCNNBatchNormalization(bench.device, ChannelSource(3))
    state: Any = kernel.result_state(bench.image(x))
    sums = MPSCNNBatchNormalizationStatisticsGradient(bench.device)
    command_buffer = bench.command_buffer()
    sums.encode_batch(command_buffer, bench.batch(np.ones(x.shape)), bench.batch(x), state)
    finish(command_buffer)
    assert_close(_row(state.gradient_for_beta()), [12.0] * 3, 0.0)


@pytest.mark.parametrize(
    "form",
    [
        lambda row: row.astype(np.float64),
        lambda row: row.tolist(),
        lambda row: row.astype(np.float32).tobytes(),
        lambda row: memoryview(row.astype(np.float32).tobytes()),
        lambda row: torch.tensor(row),
        lambda row: CPU.new_buffer(data=row.astype(np.float32)),
        lambda row: row.reshape(1, -1, 1),
    ],
)
def test_forms_of_rows(form: Any, rng: np.random.Generator) -> None:
    bench, x, p = Bench(CPU), _images(rng), rows(3)
    kernel = MPSCNNBatchNormalization(CPU, ChannelSource(3, **{name: form(row) for name, row in p.items()}))
    assert_close(_run(bench, kernel, x), _expected(x, p), 1e-5)


def test_the_kernel_keeps_its_own_numbers(rng: np.random.Generator) -> None:
    bench, x, p = Bench(CPU), _images(rng), rows(3)
    given = {name: row.astype(np.float32) for name, row in p.items()}
    kernel = MPSCNNBatchNormalization(CPU, ChannelSource(3, **given))
    for row in given.values():
        row[:] = np.nan
    assert_close(_run(bench, kernel, x), _expected(x, p), 1e-5)


def test_no_label() -> None:
    source = ChannelSource(1)
    source.name = None
    assert MPSCNNBatchNormalization(CPU, source).label is None


class _Refusing(ChannelSource):
    def load(self) -> bool:
        super().load()
        return False


class _Bare:
    def gamma(self) -> None: ...


@in_one_test
@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (None, MPSTypeError, "data_source must be a data source with the methods number_of_feature_channels, gamma"),
        (_Bare(), MPSTypeError, "data_source must be .*, got _Bare without number_of_feature_channels, beta, mean"),
        (_Refusing(3), MPSArgumentError, r"data source load\(\) must return True, got False"),
        (ChannelSource(0), MPSArgumentError, r"data source number_of_feature_channels\(\) must return a positive int"),
        (ChannelSource(True), MPSArgumentError, r"data source number_of_feature_channels\(\) must return a positive"),
        (
            ChannelSource(3, gamma=[1.0, 2.0]),
            MPSArgumentError,
            r"data source gamma\(\) must return one number a feature channel, 3, got 2 number",
        ),
        (ChannelSource(2, mean="fast"), MPSTypeError, r"data source mean\(\) must be numbers that fit float32"),
        (ChannelSource(2, beta=[1j, 2j]), MPSTypeError, r"data source beta\(\) must be numbers that fit float32"),
        (ChannelSource(2, variance=b"123"), MPSArgumentError, r"data source variance\(\) must be whole float32 numb"),
        (
            ChannelSource(2, variance=[1.0, -0.5]),
            MPSArgumentError,
            r"data source variance\(\) must be variances, .* -0.5 for",
        ),
        (ChannelSource(2, -1.0), MPSArgumentError, r"data source epsilon\(\) must be a finite number of at least 0"),
        (ChannelSource(2, "x"), MPSTypeError, r"data source epsilon\(\) must be a number, got 'x'"),
    ],
)
def test_bad_data_sources(source: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^MPSCNNBatchNormalization: {message}"):
        MPSCNNBatchNormalization(CPU, source)
    if isinstance(source, ChannelSource) and not isinstance(source, _Refusing):
        assert source.loads == source.purges == 1


def test_epsilon_may_be_changed(device: torch.device, rng: np.random.Generator) -> None:
    """Encodes keep the value of their time."""
    bench, x, p = Bench.on(device), _images(rng), rows(3)
    kernel = MPSCNNBatchNormalization(bench.device, ChannelSource(3, 1e-3, **p))
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    results = []
    for epsilon in (0.5, 2, np.float32(0.125)):
        kernel.epsilon = epsilon
        results.append((kernel.encode_batch(command_buffer, bench.batch(x)), float(epsilon)))
    for wrong, error in ((-1.0, MPSArgumentError), (float("nan"), MPSArgumentError), (None, MPSTypeError)):
        with pytest.raises(error, match=r"^MPSCNNBatchNormalization 'normalization': epsilon must be a "):
            kernel.epsilon = wrong  # type: ignore[assignment]
    assert kernel.epsilon == 0.125
    finish(command_buffer)
    for result, epsilon in results:
        assert_close(numbers(result), _expected(x, p, epsilon), 1e-5)


# --- reloads ---------------------------------------------------------------------------------------------------------


def test_reloads_from_the_data_source(device: torch.device, rng: np.random.Generator) -> None:
    """Each reads its own rows, for encodes to come; what was recorded keeps what it had."""
    bench, x = Bench.on(device), _images(rng)
    before, after = rows(3), {name: exact(row + 0.5) for name, row in rows(3).items()}
    source = ChannelSource(3, **before)
    kernel = MPSCNNBatchNormalization(bench.device, source)
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    results = [kernel.encode_batch(command_buffer, bench.batch(x))]
    source.rows = after
    kernel.reload_gamma_and_beta_from_data_source()
    results.append(kernel.encode_batch(command_buffer, bench.batch(x)))
    source.rows = {}
    kernel.reload_mean_and_variance_from_data_source()
    results.append(kernel.encode_batch(command_buffer, bench.batch(x)))
    finish(command_buffer)
    mixed = before | {name: after[name] for name in ("gamma", "beta")}
    last = mixed | {"mean": np.zeros(3), "variance": np.ones(3)}
    for result, p in zip(results, (before, mixed, last), strict=True):
        assert_close(numbers(result), _expected(x, p), 1e-5)
    assert source.loads == source.purges == 3


def test_reload_of_another_data_source(rng: np.random.Generator) -> None:
    """All four rows; neither the data source nor epsilon change."""
    bench, x = Bench(CPU), _images(rng)
    source, p = ChannelSource(3, 0.25, **rows(3)), {name: exact(row + 0.5) for name, row in rows(3).items()}
    kernel = MPSCNNBatchNormalization(CPU, source)
    kernel.reload_data_source(ChannelSource(3, 7.0, **p))
    assert kernel.data_source is source
    assert kernel.epsilon == 0.25
    assert_close(_run(bench, kernel, x), _expected(x, p, 0.25), 1e-5)
    with pytest.raises(
        MPSArgumentError, match=r"^MPSCNNBatchNormalization 'normalization': data source must keep the kernel's 3 feat"
    ):
        kernel.reload_data_source(ChannelSource(4))
    with pytest.raises(MPSTypeError, match=r"^MPSCNNBatchNormalization 'normalization': data_source must be a data"):
        kernel.reload_data_source(None)  # type: ignore[arg-type]
    assert_close(_run(bench, kernel, x), _expected(x, p, 0.25), 1e-5)


PAIRS = {
    "gamma and beta": (MPSCNNNormalizationGammaAndBetaState, "reload_gamma_and_beta", ("gamma", "beta")),
    "mean and variance": (MPSCNNNormalizationMeanAndVarianceState, "reload_mean_and_variance", ("mean", "variance")),
}


def _pair(device: MTLDevice, kind: Any, values: list[Array]) -> Any:
    return kind(*(device.new_buffer(data=value.astype(np.float32)) for value in values))


@pytest.mark.parametrize("what", PAIRS)
def test_reloads_from_a_state(what: str, device: torch.device, rng: np.random.Generator) -> None:
    """In queue order, also while earlier command buffers run; buffers may be longer than needed."""
    bench, x = Bench.on(device), _images(rng)
    kind, method, names = PAIRS[what]
    before = rows(3)
    after = before | {name: exact(before[name] + 0.5) for name in names}
    kernel = MPSCNNBatchNormalization(bench.device, ChannelSource(3, **before))
    keep_results(kernel)
    first, second = bench.command_buffer(), bench.command_buffer()
    old = kernel.encode_batch(first, bench.batch(x))
    state = _pair(bench.device, kind, [np.append(after[name], np.nan) for name in names])
    getattr(kernel, method)(first, state)
    new = kernel.encode_batch(second, bench.batch(x))
    first.commit()
    finish(second)
    assert_close(numbers(old), _expected(x, before), 1e-5)
    assert_close(numbers(new), _expected(x, after), 1e-5)


@pytest.mark.parametrize("what", PAIRS)
def test_a_reload_reads_a_temporary_state_once(what: str, device: torch.device, rng: np.random.Generator) -> None:
    bench, x = Bench.on(device), _images(rng)
    kind, method, names = PAIRS[what]
    kernel = MPSCNNBatchNormalization(bench.device, ChannelSource(3, 1.0, **rows(3)))
    keep_results(kernel)
    command_buffer = bench.command_buffer()
    state = kind.temporary_state(command_buffer, number_of_feature_channels=4)
    getattr(kernel, method)(command_buffer, state)
    assert state.read_count == 0
    with pytest.raises(MPSLifetimeError, match=r"^MPSCNNBatchNormalization 'normalization': .*_state must have reads"):
        getattr(kernel, method)(command_buffer, state)
    result = kernel.encode_batch(command_buffer, bench.batch(x))
    finish(command_buffer)
    zeros = rows(3) | {name: np.zeros(3) for name in names}
    assert_close(numbers(result), _expected(x, zeros, 1.0), 1e-5)


@pytest.mark.parametrize("what", PAIRS)
def test_wrong_reloads(what: str) -> None:
    kind, method, names = PAIRS[what]
    (other,) = (value[0] for key, value in PAIRS.items() if key != what)
    kernel = MPSCNNBatchNormalization(CPU, ChannelSource(3))
    reload = getattr(kernel, method)
    bench = Bench(CPU)
    good = _pair(CPU, kind, [np.ones(3), np.ones(3)])
    who = rf"^MPSCNNBatchNormalization 'normalization': {method.removeprefix('reload_')}_state"
    for wrong in (None, _pair(CPU, other, [np.ones(3), np.ones(3)]), MPSState(CPU, buffer_size=12)):
        with pytest.raises(MPSTypeError, match=f"{who} must be an {kind.__name__}, got {type(wrong).__name__}"):
            reload(bench.command_buffer(), wrong)
    short = _pair(CPU, kind, [np.ones(3), np.ones(2)])
    with pytest.raises(MPSArgumentError, match=rf"{who}\.{names[1]} must hold 12 bytes, .*, got 8 bytes"):
        reload(bench.command_buffer(), short)
    done = bench.command_buffer()
    finish(done)
    with pytest.raises(MTLCommandBufferError, match="command_buffer must not be committed yet"):
        reload(done, good)
    with pytest.raises(MPSTypeError, match="command_buffer must be a command buffer"):
        reload(None, good)


class _Copying(ChannelSource):
    def copy(self, device: Any = None) -> _Copying:
        twin = _Copying(self.channels, **self.rows)
        twin.name = f"copy for {device.name}"
        return twin


def test_copies_have_their_own_numbers(device: torch.device, rng: np.random.Generator) -> None:
    bench, x, p = Bench.on(device), _images(rng), rows(3)
    source = _Copying(3, **p)
    kernel = MPSCNNBatchNormalization(bench.device, source)
    twin = kernel.copy()
    assert twin.data_source is not source
    assert twin.data_source.label() == f"copy for {bench.device.name}"
    command_buffer = bench.command_buffer()
    kernel.reload_gamma_and_beta(
        command_buffer, _pair(bench.device, MPSCNNNormalizationGammaAndBetaState, [np.zeros(3), np.zeros(3)])
    )
    finish(command_buffer)
    assert_close(_run(bench, twin, x), _expected(x, p), 1e-5)
    assert not _run(bench, kernel, x).any()


# --- what is refused -------------------------------------------------------------------------------------------------


def _stages() -> tuple[Any, Any, Any, Any]:
    return (
        MPSCNNBatchNormalizationStatistics(CPU),
        MPSCNNBatchNormalization(CPU, ChannelSource(3)),
        MPSCNNBatchNormalizationStatisticsGradient(CPU, None),
        MPSCNNBatchNormalizationGradient(CPU, None),
    )


BENCH = Bench(CPU)
IMAGES = BENCH.batch(np.ones((2, 3, 2, 2)))
USE = {
    "statistics": r"Use encode_batch\(command_buffer, source_images, batch_normalization_state\)$",
    "sums": r"Use encode_batch\(command_buffer, source_gradients, source_images, batch_normalization_state\)$",
    "backward": r"Use encode\(command_buffer, source_gradient, source_image, batch_normalization_state\)$",
    "forward": "Make a state with result_state and pass it as batch_normalization_state$",
}


@in_one_test
@pytest.mark.parametrize(
    ("stage", "encode"),
    [
        ("statistics", lambda k, cb, s: k.encode(cb, IMAGES[0])),
        ("statistics", lambda k, cb, s: k.encode(cb, source_image=IMAGES[0], destination_image=IMAGES[1])),
        ("statistics", lambda k, cb, s: k.encode_batch(cb, IMAGES)),
        ("statistics", lambda k, cb, s: k.encode_batch(cb, IMAGES, IMAGES)),
        ("statistics", lambda k, cb, s: k.encode_batch(cb, IMAGES, list(IMAGES))),
        ("statistics", lambda k, cb, s: k.encode_batch(cb, IMAGES, destination_images=IMAGES)),
        ("forward", lambda k, cb, s: k.encode(cb, IMAGES[0], destination_state=s, destination_image=IMAGES[1])),
        ("forward", lambda k, cb, s: k.encode(cb, IMAGES[0], destination_state_is_temporary=True)),
        ("forward", lambda k, cb, s: k.encode_batch(cb, IMAGES, destination_states=[s, s], destination_images=IMAGES)),
        ("forward", lambda k, cb, s: k.encode_batch(cb, IMAGES, destination_state_is_temporary=False)),
        ("sums", lambda k, cb, s: k.encode(cb, IMAGES[0], IMAGES[1], gradient_state=s)),
        ("sums", lambda k, cb, s: k.encode(cb, IMAGES[0], IMAGES[1], s, IMAGES[0])),
        ("sums", lambda k, cb, s: k.encode_batch(cb, IMAGES, IMAGES, gradient_states=[s, s])),
        ("sums", lambda k, cb, s: k.encode_batch(cb, IMAGES, IMAGES, s, destination_gradients=IMAGES)),
        ("backward", lambda k, cb, s: k.encode(cb, IMAGES[0], IMAGES[1], s, primary_image=IMAGES[0])),
        ("backward", lambda k, cb, s: k.encode_batch(cb, IMAGES, IMAGES, s, destination_images=IMAGES)),
    ],
)
def test_unavailable_forms(stage: str, encode: Any) -> None:
    """The forms that the header marks unavailable say which one to use."""
    names = ("statistics", "forward", "sums", "backward")
    kernel = dict(zip(names, _stages(), strict=True))[stage]
    kernel.label = "layer"
    state = MPSCNNBatchNormalization(CPU, ChannelSource(3)).result_state(IMAGES[0])
    with pytest.raises(
        MPSTypeError, match=rf"^{type(kernel).__name__} 'layer': .* (must not be given|is not available).*{USE[stage]}"
    ):
        encode(kernel, BENCH.command_buffer(), state)


@in_one_test
@pytest.mark.parametrize("wrong", ["nothing", "state", "image", "text", "states"])
@pytest.mark.parametrize("stage", ["statistics", "forward", "sums", "backward"])
def test_the_state_is_needed(stage: str, wrong: str) -> None:
    statistics, forward, sums, backward = _stages()
    kernel: Any = {"statistics": statistics, "forward": forward, "sums": sums, "backward": backward}[stage]
    others = [_stages()[1].result_state(IMAGES[0]) for _ in range(2)]
    given = {
        "nothing": None,
        "state": MPSState(CPU, buffer_size=12),
        "image": IMAGES[0],
        "text": "state",
        "states": others,
    }[wrong]
    if (stage, wrong) in (
        ("forward", "nothing"),
        ("forward", "image"),
        ("statistics", "nothing"),
        ("statistics", "image"),
    ):
        pytest.skip("another form of encode")
    sources = [IMAGES] if stage in ("statistics", "forward") else [IMAGES, IMAGES]
    got = "" if given is None else f", got {type(given).__name__}"
    with pytest.raises(
        MPSTypeError,
        match=rf"^{type(kernel).__name__}.*: batch_normalization_state must be the one MPSCNNBatchNormalizationState "
        rf"of the batch{got}. Make it with result_state",
    ):
        kernel.encode_batch(BENCH.command_buffer(), *sources, given)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_of_other_channels(stage: int) -> None:
    """A state of four channels with kernels or images of three."""
    kernel = _stages()[stage]
    four = MPSCNNBatchNormalization(CPU, ChannelSource(4))
    four.label = "four"
    state = four.result_state(BENCH.empty((1, 4, 2, 2)))
    sources = [IMAGES] if stage < 2 else [IMAGES, IMAGES]
    rule = (
        r"source_images must have the state's 4 feature channel\(s\) from channel 0 on, got 3 to be read"
        if stage == 0
        else r"batch_normalization_state must be of a batch normalization of 3 feature channel\(s\), .*, got one of 4, "
        "made by MPSCNNBatchNormalization 'four'"
    )
    with pytest.raises(MPSArgumentError, match=rf"^{type(kernel).__name__}.*: {rule}"):
        kernel.encode_batch(BENCH.command_buffer(), *sources, state)


def test_images_with_too_few_channels() -> None:
    kernel = _stages()[1]
    with pytest.raises(MPSArgumentError, match="source_images? must have at least 3 feature channel"):
        kernel.encode_batch(BENCH.command_buffer(), BENCH.batch(np.ones((2, 2, 2, 2))))


@pytest.mark.parametrize("seen", [0, 1])
def test_the_gradient_comes_last(seen: int) -> None:
    """Before the gradient statistics of the whole batch there is no gradient."""
    statistics, forward, sums, backward = _stages()
    backward.label = "layer"
    state, command_buffer = forward.result_state(IMAGES[0]), BENCH.command_buffer()
    statistics.encode_batch(command_buffer, IMAGES, state)
    if seen:
        sums.encode_batch(command_buffer, IMAGES[:1], IMAGES[:1], state)
    message = (
        r"^MPSCNNBatchNormalizationGradient 'layer': batch_normalization_state must have seen the gradients of all 2 "
        rf"image\(s\) of its statistics, got those of {seen}. Encode MPSCNNBatchNormalizationStatisticsGradient"
    )
    with pytest.raises(MPSArgumentError, match=message):
        backward.encode_batch(command_buffer, IMAGES, IMAGES, state)
    sums.encode_batch(command_buffer, IMAGES[seen:], IMAGES[seen:], state)
    backward.encode_batch(command_buffer, IMAGES, IMAGES, state)
    statistics.encode_batch(command_buffer, IMAGES, state)
    with pytest.raises(MPSArgumentError, match=message.replace(f"those of {seen}", "those of 0")):
        backward.encode_batch(command_buffer, IMAGES, IMAGES, state)


def test_a_refused_encode_changes_no_sum(rng: np.random.Generator) -> None:
    """What was decided before an error stays decided: a failed encode is no use of the state."""
    x = _images(rng)
    statistics, forward, sums, _ = _stages()
    state: Any = forward.result_state(IMAGES[0])
    command_buffer = BENCH.command_buffer()
    statistics.encode_batch(command_buffer, BENCH.batch(x[:1]), state)
    with pytest.raises(MPSArgumentError):
        forward.encode_batch(command_buffer, BENCH.batch(x), state, BENCH.batch(np.ones((2, 2, 3, 2))))
    with pytest.raises(MPSArgumentError):
        sums.encode_batch(command_buffer, BENCH.batch(np.ones((2, 2, 3, 2))), BENCH.batch(x), state)
    with pytest.raises(MPSArgumentError):
        statistics.encode_batch(command_buffer, BENCH.batch(np.ones((2, 2, 3, 2))), state)
    statistics.encode_batch(command_buffer, BENCH.batch(x[1:]), state)
    finish(command_buffer)
    assert_close(_row(state.mean()), x.mean(axis=(0, 2, 3)), 1e-6)
    assert state.gradient_for_gamma() is None


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_empty_batches(stage: int) -> None:
    kernel = _stages()[stage]
    state = _stages()[1].result_state(IMAGES[0])
    empty = MPSImageBatch([])
    sources = [empty] if stage < 2 else [empty, empty]
    with pytest.raises(MPSArgumentError, match=rf"^{type(kernel).__name__}.*: source_.*must "):
        kernel.encode_batch(BENCH.command_buffer(), *sources, state)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_command_buffers(stage: int) -> None:
    kernel = _stages()[stage]
    state = _stages()[1].result_state(IMAGES[0])
    done = BENCH.command_buffer()
    finish(done)
    sources = [IMAGES] if stage < 2 else [IMAGES, IMAGES]
    with pytest.raises(
        MTLCommandBufferError, match=rf"^{type(kernel).__name__}.*: command_buffer must not be committed"
    ):
        kernel.encode_batch(done, *sources, state)
    with pytest.raises(MPSTypeError, match=rf"^{type(kernel).__name__}.*: command_buffer must be a command buffer"):
        kernel.encode_batch(None, *sources, state)
    temporary = _stages()[1].temporary_result_state(BENCH.command_buffer(), IMAGES[0])
    with pytest.raises(MPSLifetimeError, match=rf"^{type(kernel).__name__}.*: batch_normalization_state is temporary"):
        kernel.encode_batch(BENCH.command_buffer(), *sources, temporary)


def test_gradients_of_another_shape() -> None:
    statistics, forward, sums, backward = _stages()
    state, command_buffer = forward.result_state(IMAGES[0]), BENCH.command_buffer()
    statistics.encode_batch(command_buffer, IMAGES, state)
    forward.encode_batch(command_buffer, IMAGES, state)
    small = BENCH.batch(np.ones((2, 3, 1, 2)))
    for kernel in (sums, backward):
        with pytest.raises(MPSArgumentError, match=rf"^{type(kernel).__name__}: source_gradient must be 2x2x3"):
            kernel.encode_batch(command_buffer, small, IMAGES, state)
        with pytest.raises(MPSArgumentError, match=rf"^{type(kernel).__name__}: source_images must be 1 image"):
            kernel.encode_batch(command_buffer, IMAGES[:1], IMAGES, state)


@pytest.mark.parametrize("kind", ["forward", "sums", "backward"])
def test_wrong_neurons(kind: str) -> None:
    make: Any = {
        "forward": lambda: MPSCNNBatchNormalization(CPU, ChannelSource(1), "relu"),  # type: ignore[arg-type]
        "sums": lambda: MPSCNNBatchNormalizationStatisticsGradient(CPU, "relu"),  # type: ignore[arg-type]
        "backward": lambda: MPSCNNBatchNormalizationGradient(CPU, "relu"),  # type: ignore[arg-type]
    }[kind]
    with pytest.raises(MPSTypeError, match="fused_neuron_descriptor must be an MPSNNNeuronDescriptor or None, got str"):
        make()


def test_wrong_devices() -> None:
    with pytest.raises(MPSTypeError, match="device must be an MTLDevice"):
        MPSCNNBatchNormalization(None, ChannelSource(1))  # type: ignore[arg-type]


def test_the_state_is_made_by_the_kernel() -> None:
    with pytest.raises(MPSTypeError, match="temporary_state is not offered by this class. Use temporary_result_state"):
        MPSCNNBatchNormalizationState.temporary_state(BENCH.command_buffer(), buffer_size=4)


def test_a_foreign_device(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("needs two devices")
    kernel = _stages()[1]
    state = MPSCNNBatchNormalization(mtl_device(device), ChannelSource(3)).result_state(
        Bench.on(device).empty((1, 3, 2, 2))
    )
    with pytest.raises(MPSDeviceError, match="batch_normalization_state must belong to the device"):
        kernel.encode_batch(BENCH.command_buffer(), IMAGES, state)
