"""Filters by OpenCV, where it is installed: the numbers of our own forms, which the oracles judge where it is not."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
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

from encoding import FLOAT32, UNORM8, finish
from filter_twins import BENCH, CPU, EDGES, compare, compare_sample, encoded
from in_one_test import in_one_test
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.cpu.parts import run_parts
from openmps.kernels.image_filters.blur import MPSImageGaussianBlur
from openmps.kernels.image_filters.convolution import MPSImageConvolution
from openmps.kernels.image_filters.statistics import MPSImageStatisticsMean
from openmps.kernels.neuron import MPSCNNNeuronReLU
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.ops import numba, opencv
from openmps.ops.image import library_form as form
from openmps.ops.image.library_form import ByLibrary
from openmps.ops.opencv import edges, measures, pixels, table, windows
from openmps.types import MPSImageEdgeMode, MPSOffset, MPSScaleTransform, MTLOrigin, MTLRegion, MTLSize
from openmps.types import MPSImageFeatureChannelFormat as Format
from samples.image_filters import ALL_FILTERS, FilterSample

if find_spec("cv2") is None:
    pytest.skip("OpenCV, of the extra 'filters', is not installed", allow_module_level=True)


@pytest.fixture(autouse=True)
def no_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled loops come before the library's functions."""
    monkeypatch.setattr(numba, "library", lambda: None)


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[type, ...]]:
    """The rows of the table that have run, in narrow bands."""
    monkeypatch.setattr(form, "_BAND", 1000)
    found: list[tuple[type, ...]] = []
    run = ByLibrary.run

    def noted(self: Any, *arguments: Any) -> Any:
        found.append(tuple(map(type, self._site.ops)))
        return run(self, *arguments)

    monkeypatch.setattr(ByLibrary, "run", noted)
    return found


@in_one_test
@pytest.mark.parametrize("stored_as", [UNORM8, FLOAT32], ids=lambda each: each.name)
@pytest.mark.parametrize("sample", ALL_FILTERS, ids=str)
def test_numbers_are_those_of_our_own_forms(sample: FilterSample, stored_as: Format) -> None:
    compare_sample(sample, stored_as)


WHOLE = {
    "MPSImageGaussianBlur 10",
    "MPSImageStatisticsMinAndMax",
    "MPSImageReduceRowMean, float32",
    "MPSImageReduceColumnMax",
    # The library itself has several threads for these.
    "MPSImageThresholdBinary",
    "MPSImageConversion to float32",
    "MPSImageConversion to premultiplied",
    "MPSImageBilinearScale to 3/4",
}
"""Cases of which no form makes parts."""


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many threads each computation has been given; few numbers are worth one."""
    for key, row in table.FORMS.items():
        monkeypatch.setitem(table.FORMS, key, row._replace(least=None if row.least is None else 500))
    for module, name in ((pixels, "_TURNED"), (measures, "_SUMMED"), (measures, "_ROUNDED"), (opencv, "_COUNTED")):
        monkeypatch.setattr(module, name, 500)
    found: list[int] = []

    def noted(do: Callable[[Any], object], parts: Any, threads: int) -> None:
        found.append(min(threads, len(parts)))
        run_parts(do, parts, threads)

    for module in (edges, form, measures, opencv, windows):
        monkeypatch.setattr(module, "run_parts", noted)
    before = torch.get_num_threads()
    yield found
    torch.set_num_threads(before)


def test_bits_are_the_same_for_any_number_of_threads(shares: list[int]) -> None:
    """In parts of few numbers, some of which windows leave.

    But of distances: there the library itself has another function for one thread, which rounds otherwise.
    """
    whole: set[str] = set()
    for case in CASES:
        if case.name == "MPSImageEuclideanDistanceTransform":
            continue
        made: list[np.ndarray] = []
        for threads in (1, 2, 3):
            shares.clear()
            torch.set_num_threads(threads)
            pair = Pair(case, CPU, None, 617, 467)
            pair.ours()
            made.append(pair._result.read_bytes())
            if threads == 3 and max(shares, default=1) < 3:
                whole.add(case.name)
        for each in made[1:]:
            np.testing.assert_array_equal(each, made[0], case.name)
    assert whole == WHOLE


def test_floats_of_large_windows_of_bytes_are_the_same_for_any_number_of_threads(shares: list[int]) -> None:
    """The library has Fourier transforms for them."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (700, 701, 4), dtype=np.uint8)
    for side in (7, 9):
        weights = rng.standard_normal((side, side)).astype(np.float32)
        made: list[np.ndarray] = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            source = MPSImage.from_numpy(CPU, x, channel_format=UNORM8)
            kernel, buffer = MPSImageConvolution(CPU, side, side, weights), CPU.new_command_queue().command_buffer()
            result = MPSImage(CPU, MPSImageDescriptor(FLOAT32, 701, 700, 4))
            kernel.encode(buffer, source, result)
            buffer.commit()
            buffer.wait_until_completed()
            made.append(result.numpy())
        for each in made[1:]:
            np.testing.assert_array_equal(each, made[0])


@in_one_test
@pytest.mark.parametrize("case", [case for case in CASES if case.apart < math.inf], ids=lambda case: case.name)
def test_larger_pictures(case: Case) -> None:
    def make(stored_as: Format) -> np.ndarray:
        pair = Pair(case._replace(result=case.result._replace(format=stored_as)), CPU, None, 203, 331)
        pair.ours()
        return pair._result.read_bytes()

    compare(make, case.result.format)


def test_every_row_of_the_table_runs(runs: list[tuple[type, ...]]) -> None:
    for case in CASES:
        Pair(case, CPU, None, 33, 31).ours()
    for sample in ALL_FILTERS:
        images = [BENCH.image(each, UNORM8) for each in sample.sources()]
        encoded(sample.make(CPU), images, BENCH.empty((1, *sample.destination), UNORM8))
    encoded(MPSImageStatisticsMean(CPU), [BENCH.filled((1, 3, 5, 4), 0.5)], BENCH.empty((1, 3, 1, 1), FLOAT32))
    assert set(table.FORMS) == set(runs)


@pytest.mark.parametrize("stored_as", [UNORM8, FLOAT32], ids=lambda each: each.name)
@pytest.mark.parametrize("channels", [1, 3, 4], ids=lambda each: f"{each} channels")
def test_means_of_large_pictures(channels: int, stored_as: Any, runs: list[tuple[type, ...]], monkeypatch: Any) -> None:
    """Their parts count by their rows."""
    monkeypatch.setattr(measures, "_SUMMED", 500)
    values = np.random.default_rng(0).random((1, channels, 61, 33))
    source = BENCH.image(values, stored_as)
    found = encoded(MPSImageStatisticsMean(CPU), [source], BENCH.empty((1, channels, 1, 1), FLOAT32)).ravel()
    np.testing.assert_allclose(found, source.numpy().astype(np.float64).mean((0, 1)), rtol=1e-6)
    assert len(runs) == 1


@pytest.mark.parametrize("scale", [(0.4, 2.5), (-1.25, -0.5), (30.0, 1.0)], ids=str)
def test_scales_by_tiles(scale: tuple[float, float], runs: list[tuple[type, ...]]) -> None:
    from openmps.kernels.image_scale import MPSImageBilinearScale

    kernel = MPSImageBilinearScale(CPU)
    kernel.scale_transform = MPSScaleTransform(*scale, 7.3, 11.1)
    kernel.offset = MPSOffset(20, -3, 0)
    x = np.random.default_rng(0).integers(0, 256, (1, 4, 210, 190)) / 255.0
    compare(lambda result: encoded(kernel, [BENCH.image(x, UNORM8)], BENCH.empty((1, 4, 530, 270), result)), UNORM8)
    assert runs


def test_results_are_written_where_they_are_to_be(runs: list[tuple[type, ...]]) -> None:
    """Into memory that is there, unless the source lies there, or some of its channels are somebody else's."""
    from openmps.kernels.image_filters.blur import MPSImageBox

    x = np.random.default_rng(0).integers(0, 256, (1, 4, 9, 8)) / 255.0
    kernel = MPSImageBox(CPU, 3, 3)
    source, room = BENCH.image(x, UNORM8), BENCH.filled((1, 4, 9, 8), 0.0, UNORM8)
    memory = room.stack(0, 1).stored()
    expected = encoded(kernel, [source], room)
    np.testing.assert_array_equal(memory.permute(0, 2, 3, 1)[0].numpy(), expected)
    command_buffer = BENCH.command_buffer()
    kernel.encode(command_buffer, in_place_texture=source)
    finish(command_buffer)
    np.testing.assert_array_equal(source.read_bytes(), expected)
    wide, kernel.destination_feature_channel_offset = BENCH.filled((1, 8, 9, 8), 1.0, UNORM8), 4
    encoded(kernel, [BENCH.image(x, UNORM8)], wide)
    np.testing.assert_array_equal(wide.read_bytes()[..., 4:], expected)
    assert wide.read_bytes()[..., :4].min() == 255
    batch = MPSImageBatch([BENCH.filled((1, 4, 9, 8), 0.0, UNORM8) for _ in range(2)])
    kernel.destination_feature_channel_offset, command_buffer = 0, BENCH.command_buffer()
    kernel.encode_batch(command_buffer, [BENCH.image(x, UNORM8) for _ in range(2)], batch)
    finish(command_buffer)
    np.testing.assert_array_equal([each.read_bytes() for each in batch], [expected] * 2)
    assert len(runs) == 4


def test_a_part_moves_within_its_image(runs: list[tuple[type, ...]]) -> None:
    """All is read before anything is stored."""
    from openmps.kernels.image_filters.threshold import MPSImageThresholdToZero

    x = np.random.default_rng(0).integers(1, 256, (1, 1, 40, 9)) / 255.0
    kernel, image, command_buffer = MPSImageThresholdToZero(CPU, 0.0), BENCH.image(x, UNORM8), BENCH.command_buffer()
    kernel.clip_rect = MTLRegion(MTLOrigin(0, 1, 0), MTLSize(9, 39, 1))
    before = image.read_bytes().copy()
    kernel.encode(command_buffer, in_place_texture=image)
    finish(command_buffer)
    np.testing.assert_array_equal(image.read_bytes(), np.concatenate([before[:1], before[:-1]]))
    assert runs


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.name)
def test_edges_of_several_bands(edge: MPSImageEdgeMode) -> None:
    from openmps.kernels.image_filters.canny import MPSImageCanny

    kernel = MPSImageCanny(CPU, sigma=0.9)
    kernel.edge_mode = edge
    x = np.random.default_rng(0).integers(0, 256, (1, 1, 230, 40)) / 255.0
    compare(lambda result: encoded(kernel, [BENCH.image(x, UNORM8)], BENCH.empty((1, 1, 230, 40), result)), FLOAT32)


@pytest.mark.parametrize("pixel", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("value", [0, 255])
def test_extremes_lie_in_any_band(value: int, pixel: int) -> None:
    from openmps.kernels.image_filters.statistics import MPSImageStatisticsMinAndMax

    picture = np.random.default_rng(0).integers(20, 200, (60, 50, 1), np.uint8)
    picture[0, 1], picture.reshape(-1)[pixel] = 255 - value, value
    source, result = MPSImage.from_numpy(CPU, picture), BENCH.empty((1, 1, 1, 2), UNORM8)
    np.testing.assert_array_equal(encoded(MPSImageStatisticsMinAndMax(CPU), [source], result).ravel(), [0, 255])


@pytest.mark.parametrize("width", [50, 51])
def test_two_bytes_are_looked_up_at_once(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In rows of an even length."""
    monkeypatch.setattr(pixels, "_PAIRS", 1000)
    case = next(each for each in CASES if each.name == "MPSImageHistogramEqualization")

    def make(stored_as: Format) -> np.ndarray:
        pair = Pair(case._replace(result=case.result._replace(format=stored_as)), CPU, None, 60, width)
        pair.ours()
        return pair._result.read_bytes()

    compare(make, UNORM8)


def test_the_library_has_as_many_threads_as_the_engine() -> None:
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert opencv.library().getNumThreads() == count
    finally:
        torch.set_num_threads(before)


def _libraries(command_buffer: MPSCommandBuffer) -> list[str]:
    return [work.library for work in command_buffer.explain().works]


def test_what_computes_a_filter_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed, in the order in which it is asked; then what it was: compiled loops fail to load here."""
    monkeypatch.setattr(numba, "is_installed", lambda: True)
    sigma = iter((1.25, 1.375))  # of no other test, so that encodes are planned here

    def encoded_filters() -> MPSCommandBuffer:
        command_buffer = BENCH.command_buffer()
        blur = MPSImageGaussianBlur(CPU, next(sigma))
        for side in (300, 8):
            blur.encode(command_buffer, *[BENCH.empty((1, 1, side, side), FLOAT32) for _ in range(2)])
        MPSCNNNeuronReLU(CPU, 0.0).encode(command_buffer, *[BENCH.empty((1, 1, 8, 8), FLOAT32) for _ in range(2)])
        return command_buffer

    command_buffer = encoded_filters()
    assert _libraries(command_buffer) == ["Numba", "OpenCV", ""]
    finish(command_buffer)
    assert _libraries(command_buffer) == ["OpenCV", "OpenCV", ""]
    assert "MPSImageGaussianBlur, by OpenCV; not replayed" in str(command_buffer.explain())
    monkeypatch.setattr(opencv, "library", lambda: None)
    command_buffer = encoded_filters()
    finish(command_buffer)
    assert _libraries(command_buffer) == ["PyTorch", "PyTorch", ""]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The library before the first filter, as it is where nobody chooses; PyTorch's number of threads comes back."""
    cv2, before = opencv.library(), torch.get_num_threads()
    theirs = cv2.getNumThreads()
    cv2.setNumThreads(-1)
    found: list[int] = []
    monkeypatch.setattr(opencv, "_followed", found)
    yield found
    torch.set_num_threads(before)
    cv2.setNumThreads(theirs)


def test_a_number_of_threads_that_a_program_sets_stays(told: list[int]) -> None:
    cv2 = opencv.library()
    assert cv2.getNumThreads() == torch.get_num_threads() == told[0]
    for count in (7, 5):
        cv2.setNumThreads(count)
        assert opencv.library().getNumThreads() == count
    torch.set_num_threads(told[0] + 1)
    assert opencv.library().getNumThreads() == torch.get_num_threads()


def test_a_number_of_threads_that_was_set_before_the_first_filter_stays(told: list[int]) -> None:
    opencv._loaded().setNumThreads(opencv._loaded().getNumberOfCPUs() + 3)
    assert opencv.library().getNumThreads() == opencv._loaded().getNumberOfCPUs() + 3
    torch.set_num_threads(told[0] + 1)
    assert opencv.library().getNumThreads() == torch.get_num_threads()


@pytest.mark.parametrize("version", [None, "4.13.0"])
def test_a_library_that_cannot_be_used_is_named(
    version: str | None, monkeypatch: pytest.MonkeyPatch, logged: Any
) -> None:
    def load(name: str) -> Any:
        if version is None:
            raise ImportError("libGL.so.1: cannot open shared object file")
        return SimpleNamespace(__version__=version)

    monkeypatch.setattr(opencv, "import_module", load)
    opencv._loaded.cache_clear()
    try:
        assert opencv.library() is None
        fault = "version 4.13.0 is older than 5.0" if version else "libGL.so.1: cannot open"
        assert f"OpenCV cannot be used, so filters take PyTorch's forms: {fault}" in logged.text
    finally:
        opencv._loaded.cache_clear()


def test_large_pictures_are_left_to_the_threads_of_the_library(
    shares: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it has several: parts would wait for one another's."""
    monkeypatch.setattr(windows, "_SHARED", 200 * 90)
    torch.set_num_threads(2)
    names = {f"MPSImage{name}" for name in ("GaussianBlur 1", "Tent 9", "AreaMax 3", "Box 5", "Median 5")}
    for height, parted in ((199, names), (200, {"MPSImageBox 5", "MPSImageMedian 5"})):
        found: set[str] = set()
        for case in CASES:
            shares.clear()
            if case.name in names:
                Pair(case, CPU, None, height, 90).ours()
                found |= {case.name} if max(shares, default=1) > 1 else set()
        assert found == parted
