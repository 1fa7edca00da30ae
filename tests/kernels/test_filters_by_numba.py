"""Filters by compiled loops, where Numba is installed: the numbers of our own forms, which the oracles judge."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.filter_cases import CASES, Case
from bench.image_filters import Pair

import openmps
from encoding import FLOAT32, UNORM8
from filter_twins import BENCH, CPU, EDGES, compare, compare_sample, encoded, loops_of_any_picture, own_forms
from in_one_test import in_one_test
from openmps.core.image.image import MPSImage
from openmps.core.kernel import filter_forms
from openmps.kernels.image_filters import arithmetic, blur, conversion, convolution, statistics, threshold
from openmps.kernels.image_scale import MPSImageBilinearScale
from openmps.ops import numba, opencv
from openmps.ops.numba import measures, table
from openmps.types import MPSAlphaType, MPSImageEdgeMode, MPSOffset, MPSScaleTransform, MTLOrigin, MTLRegion, MTLSize
from openmps.types import MPSImageFeatureChannelFormat as Format
from samples.image_filters import ALL_FILTERS, FilterSample

if find_spec("numba") is None:
    pytest.skip("Numba, of the extra 'filters', is not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[type, ...]]]:
    yield from loops_of_any_picture(monkeypatch)


@in_one_test
@pytest.mark.parametrize("stored_as", [UNORM8, FLOAT32], ids=lambda each: each.name)
@pytest.mark.parametrize("sample", ALL_FILTERS, ids=str)
def test_numbers_are_those_of_our_own_forms(sample: FilterSample, stored_as: Format) -> None:
    compare_sample(sample, stored_as)


@in_one_test
@pytest.mark.parametrize("size", [(1, 1), (1, 300), (301, 1), (2, 3), (33, 65), (203, 331)], ids=str)
@pytest.mark.parametrize("channels", [1, 2, 3, 4], ids=lambda each: f"{each} channels")
@pytest.mark.parametrize("case", [each for each in CASES if each.apart < math.inf], ids=lambda each: each.name)
def test_sizes_and_channels(case: Case, channels: int, size: tuple[int, int]) -> None:
    """Those that a filter takes: a median takes one channel, a scale no picture that would have no pixel left."""
    if min(case.size(*size)) < 1:
        return
    kind = case.source._replace(channels=channels)
    made = case.result if case.result.channels == 1 != case.source.channels else case.result._replace(channels=channels)
    if "Canny" in case.name or "Distance" in case.name or "Median" in case.name:
        kind, made = case.source, case.result
    if "premultiplied" in case.name and channels < 4:
        return

    def make(stored_as: Format) -> np.ndarray:
        pair = Pair(case._replace(source=kind, result=made._replace(format=stored_as)), CPU, None, *size)
        pair.ours()
        return pair._result.read_bytes()

    compare(make, case.result.format)


def test_every_row_of_the_table_runs(runs: list[tuple[type, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencv, "is_installed", lambda: False)  # some rows are for where it is not
    for case in CASES:
        Pair(case, CPU, None, 33, 31).ours()
    for sample in ALL_FILTERS:
        images = [BENCH.image(each, UNORM8) for each in sample.sources()]
        encoded(sample.make(CPU), images, BENCH.empty((1, *sample.destination), UNORM8))
    straight, opaque = MPSAlphaType.NON_PREMULTIPLIED, MPSAlphaType.ALPHA_IS_ONE
    for kernel in (
        MPSImageBilinearScale(CPU),
        conversion.MPSImageConversion(CPU, straight, opaque),
        conversion.MPSImageConversion(CPU, straight, straight),
    ):
        encoded(kernel, [BENCH.filled((1, 4, 9, 8), 0.5)], BENCH.empty((1, 3, 9, 8)))
    assert set(table.FORMS) == set(runs)


def test_bits_are_the_same_for_any_number_of_threads(runs: list[tuple[type, ...]]) -> None:
    for case in CASES:
        made: list[np.ndarray] = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            runs.clear()
            pair = Pair(case, CPU, None, 117, 67)
            pair.ours()
            made.append(pair._result.read_bytes())
        for each in made[1:] if runs else ():
            np.testing.assert_array_equal(each, made[0], case.name)


def test_small_pictures_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    loaded: list[bool] = []
    monkeypatch.setattr(numba, "library", lambda: loaded.append(True))
    case = next(each for each in CASES if each.name == "MPSImageSubtract, float32")
    for height, width in ((255, 256), (256, 256)):
        assert not loaded
        Pair(case, CPU, None, height, width).ours()
    assert loaded


# --- single pixels ----------------------------------------------------------------------------------------------------

NUMBERS = np.float32([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-38, 1e-45, 0.3])


@in_one_test
@pytest.mark.parametrize("limits", [None, (-0.5, 0.75)], ids=str)
@pytest.mark.parametrize("bias", [0.0, 0.25])
@pytest.mark.parametrize("name", ["Add", "Subtract", "Multiply", "Divide"])
def test_arithmetic_of_any_numbers(name: str, bias: float, limits: tuple[float, float] | None) -> None:
    x, y = (each.astype(np.float64)[None, None] for each in np.meshgrid(NUMBERS, NUMBERS))
    kernel = getattr(arithmetic, f"MPSImage{name}")(CPU)
    kernel.primary_scale, kernel.secondary_scale, kernel.bias = 0.5, 2.0, bias
    if limits is not None:
        kernel.minimum_value, kernel.maximum_value = limits
    sources = [BENCH.image(each, FLOAT32) for each in (x, y)]
    compare(lambda _: encoded(kernel, sources, BENCH.empty(x.shape, FLOAT32)), FLOAT32)


@pytest.mark.parametrize("place", ["in_place_primary_texture", "in_place_secondary_texture"])
def test_arithmetic_in_place(place: str, runs: list[tuple[type, ...]]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 1, 3, 40, 50))
    sources = [BENCH.image(each, FLOAT32) for each in (x, y)]
    kernel, result = arithmetic.MPSImageSubtract(CPU), BENCH.empty(x.shape, FLOAT32)
    expected = encoded(kernel, sources, result)
    command_buffer = BENCH.command_buffer()
    primary, secondary = sources
    given = (
        {place: primary, "secondary_texture": secondary}
        if "primary" in place
        else {"primary_texture": primary, place: secondary}
    )
    kernel.encode(command_buffer, **given)
    command_buffer.commit()
    np.testing.assert_array_equal(given[place].read_bytes(), expected)
    assert len(runs) == 2


@in_one_test
@pytest.mark.parametrize("limit", [-0.5, 0.0, 0.4999, 0.5, 1.0, 2.0, math.inf], ids=str)
@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("name", ["Binary", "BinaryInverse", "Truncate", "ToZero", "ToZeroInverse"])
def test_thresholds_of_colours(name: str, channels: int, limit: float) -> None:
    """Of a part of a picture, with an offset that leaves it."""
    if math.isinf(limit):
        limit = 3e38
    largest = (0.7,) if "Binary" in name else ()
    kernel = getattr(threshold, f"MPSImageThreshold{name}")(CPU, limit, *largest)
    kernel.offset = MPSOffset(-3, 5, 0)
    kernel.clip_rect = MTLRegion(MTLOrigin(2, 1, 0), MTLSize(29, 17, 1))
    x = np.random.default_rng(1).integers(0, 256, (2, channels, 21, 33)) / 255.0
    x[..., :4] = x[:, :1, :, :4]  # gray
    for edge in EDGES:
        kernel.edge_mode = edge
        source = BENCH.image(x, UNORM8)
        compare(lambda made, source=source: encoded(kernel, [source], BENCH.filled((2, 1, 21, 33), 0.2, made)), UNORM8)


def test_every_colour_with_every_alpha(runs: list[tuple[type, ...]]) -> None:
    colour, alpha = np.meshgrid(np.arange(256), np.arange(256))
    x = np.stack([colour, 255 - colour, colour[::-1], alpha])[None] / 255.0
    kernel = conversion.MPSImageConversion(CPU, MPSAlphaType.NON_PREMULTIPLIED, MPSAlphaType.PREMULTIPLIED)
    made = encoded(kernel, [BENCH.image(x, UNORM8)], BENCH.empty(x.shape, UNORM8))
    assert runs
    exact = np.round(colour * alpha / 255.0)
    np.testing.assert_array_equal(made[..., 0], exact)
    np.testing.assert_array_equal(made[..., 3], alpha)
    with own_forms():
        np.testing.assert_array_equal(made, encoded(kernel, [BENCH.image(x, UNORM8)], BENCH.empty(x.shape, UNORM8)))


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (3, 8), (40, 41), (64, 64)], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_counts_of_bytes(threads: int, shape: tuple[int, int]) -> None:
    torch.set_num_threads(threads)
    x = np.random.default_rng(0).integers(0, 256, (2, 1, *shape), np.uint8)
    x[0, 0, 0, :] = 255
    (found,) = measures.byte_counts(torch.from_numpy(x))
    np.testing.assert_array_equal(found.numpy(), np.bincount(x.ravel(), minlength=256))


@in_one_test
@pytest.mark.parametrize("stored_as", [UNORM8, FLOAT32], ids=lambda each: each.name)
@pytest.mark.parametrize("channels", [1, 2, 3, 4], ids=lambda each: f"{each} channels")
@pytest.mark.parametrize("pixel", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("value", [0, 255])
def test_extremes_of_a_picture(value: int, pixel: int, channels: int, stored_as: Format) -> None:
    """Wherever they lie, of each channel by itself."""
    picture = np.random.default_rng(0).integers(20, 200, (60, 451, channels), np.uint8)
    result = BENCH.empty((1, channels, 1, 2), stored_as)
    kernel = statistics.MPSImageStatisticsMinAndMax(CPU)
    for _ in range(2):
        found = encoded(kernel, [MPSImage.from_numpy(CPU, picture)], result).reshape(2, channels)
        expected = np.stack([picture.min((0, 1)), picture.max((0, 1))])
        expected = expected if stored_as is UNORM8 else (expected / 255.0).astype(np.float32)
        np.testing.assert_array_equal(found, expected)
        picture[0, 1, 0], picture.reshape(-1)[pixel] = 255 - value, value


def test_extremes_of_one_channel_are_left_to_opencv(runs: list[tuple[type, ...]]) -> None:
    for channels in (1, 3):
        source = MPSImage.from_numpy(CPU, np.full((60, 51, channels), 7, np.uint8))
        encoded(statistics.MPSImageStatisticsMinAndMax(CPU), [source], BENCH.empty((1, channels, 1, 2), UNORM8))
    assert len(runs) == (1 if opencv.is_installed() else 2)


# --- windows and scales -----------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("edge", EDGES, ids=lambda each: each.name)
@pytest.mark.parametrize("kernel", ["3x3", "5x3", "1x5", "Gaussian", "Tent"])
def test_floats_that_are_no_numbers(kernel: str, edge: MPSImageEdgeMode) -> None:
    """They reach as far as windows do, which have no weight that is 0."""
    x = np.random.default_rng(3).standard_normal((1, 2, 40, 43))
    x[0, 0, 3, 5], x[0, 0, 20, 0], x[0, 1, 39, 42], x[0, 1, 10, 20] = math.nan, math.inf, -math.inf, math.inf
    if "x" in kernel:
        width, height = map(int, kernel.split("x"))
        weights = np.random.default_rng(4).uniform(0.1, 1.0, (height, width)).astype(np.float32)
        made: Any = convolution.MPSImageConvolution(CPU, width, height, weights)
    else:
        made = blur.MPSImageGaussianBlur(CPU, 1.7) if kernel == "Gaussian" else blur.MPSImageTent(CPU, 5, 9)
    made.edge_mode = edge
    source = BENCH.image(x, FLOAT32)
    compare(lambda _: encoded(made, [source], BENCH.empty(x.shape, FLOAT32)), FLOAT32)


@pytest.mark.parametrize("scale", [(0.4, 2.5), (-1.25, -0.5), (30.0, 1.0), (0.2, 1.0)], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_scales(channels: int, scale: tuple[float, float], runs: list[tuple[type, ...]]) -> None:
    """Also mirrored ones, and pictures that leave the source; one that reads many columns is left to others."""
    kernel = MPSImageBilinearScale(CPU)
    kernel.scale_transform = MPSScaleTransform(*scale, 7.3, 11.1)
    kernel.offset, kernel.edge_mode = MPSOffset(20, -3, 0), MPSImageEdgeMode.CLAMP
    x = np.random.default_rng(0).integers(0, 256, (1, channels, 210, 190)) / 255.0
    size = (1, channels, 530, 30 if scale[0] == 0.2 else 270)
    compare(lambda made: encoded(kernel, [BENCH.image(x, UNORM8)], BENCH.empty(size, made)), UNORM8)
    assert bool(runs) == (scale[0] != 0.2)


# --- the library ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_disabled", [False, True])
def test_a_library_that_cannot_be_used_is_named(
    is_disabled: bool, monkeypatch: pytest.MonkeyPatch, logged: Any
) -> None:
    def load(name: str) -> Any:
        if is_disabled:
            return SimpleNamespace(config=SimpleNamespace(DISABLE_JIT=1))
        raise ImportError("Numba needs NumPy 2.3 or less")

    monkeypatch.setattr(numba, "import_module", load)
    numba._loaded.cache_clear()
    try:
        assert numba.library() is None
        fault = "NUMBA_DISABLE_JIT is set" if is_disabled else "Numba needs NumPy"
        assert f"Numba cannot be used, so filters and layers take other forms: {fault}" in logged.text
    finally:
        numba._loaded.cache_clear()


def test_other_forms_run_without_it(monkeypatch: pytest.MonkeyPatch, runs: list[tuple[type, ...]]) -> None:
    monkeypatch.setattr(numba, "is_installed", lambda: False)
    packages: list[Any] = []
    forms = filter_forms._forms_by_library
    monkeypatch.setattr(
        filter_forms, "_forms_by_library", lambda *given: packages.append(forms(*given)) or packages[-1]
    )
    case = next(each for each in CASES if each.name == "MPSImageSubtract, float32")

    def make(stored_as: Format) -> np.ndarray:
        pair = Pair(case, CPU, None, 31, 33)
        pair.ours()
        return pair._result.read_bytes()

    compare(make, FLOAT32)
    assert packages
    assert not any(package is numba for found in packages for package, _ in found)
    assert not runs


FORK = """
import os, signal, threading, time
import torch
from openmps.ops.numba import loop
from openmps.ops.numba.pixels import _combine
signal.alarm(50)
begun, make = threading.Event(), loop.Loop._made
def slowly(self):
    begun.set()
    time.sleep(0.5)
    return make(self)
loop.Loop._made = slowly
x = torch.ones(8).numpy()
def run():
    made = 0 * x
    numbers = torch.tensor([1.0, 2.0, 0.5, -9.0, 9.0, 1.0]).numpy()
    _combine["float32", "float32"].run(1, 8, x, 8, x, 8, made, 8, 8, 0, numbers)
    return made.tolist()
other = threading.Thread(target=run)
other.start()
begun.wait()
child = os.fork()
os.write(1, f"{run() == [3.5] * 8}\\n".encode())  # at once: both write to one pipe
if child == 0:
    os._exit(0)
other.join()
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_while_another_thread_compiles() -> None:
    """The new process compiles, too: no lock is closed by a thread that it does not have."""
    environment = {**os.environ, "PYTHONPATH": str(Path(openmps.__file__).parents[1])}
    command = [sys.executable, "-c", FORK]
    done = subprocess.run(command, env=environment, timeout=60, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["True", "True"]), done.stderr


END = """
import numpy as np
import openmps as mps
device = mps.mtl_device("cpu")
image = mps.MPSImage.from_numpy(device, np.ones((300, 300, 1), np.float32))
made = mps.MPSImage(device, mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 300, 300, 1))
command_buffer = device.new_command_queue().command_buffer()
mps.MPSImageGaussianBlur(device, 2.0).encode(command_buffer, image, made)
command_buffer.add_completed_handler(lambda buffer: print(buffer.error))
command_buffer.commit()
"""


def test_a_process_may_end_with_a_first_filter_under_way() -> None:
    """Numba is not loaded then: what it makes would end before the objects that hold it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(openmps.__file__).parents[1])}
    command = [sys.executable, "-c", END]
    done = subprocess.run(command, env=environment, timeout=60, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["None"], "")
