"""One channel of a picture of many, as compiled loops see it: strides that reach beyond it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import openmps as mps
from encoding import finish
from filter_twins import BENCH, CPU, encoded
from openmps.types import MPSImageFeatureChannelFormat as Format
from samples.group_normalization import GammaAndBetaSource

if find_spec("numba") is None:
    pytest.skip("Numba, of the extra 'filters', is not installed", allow_module_level=True)

FLOAT32 = Format.FLOAT32


def _empty(width: int, height: int) -> Any:
    return mps.MPSImage(CPU, mps.MPSImageDescriptor(FLOAT32, width, height, 1))


@pytest.mark.parametrize("channels", [2, 3, 4])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32], ids=lambda each: each.__name__)
def test_extremes_of_the_first_channel(dtype: Any, channels: int) -> None:
    x = np.random.default_rng(0).integers(0, 256, (300, 301, channels))
    x[..., 0] = x[..., 0] // 4 + 60
    pixels = x.astype(np.uint8) if dtype is np.uint8 else (x / 255.0).astype(dtype)
    found = encoded(mps.MPSImageStatisticsMinAndMax(CPU), [mps.MPSImage.from_numpy(CPU, pixels)], _empty(2, 1))
    first = x[..., 0] / 255.0
    np.testing.assert_allclose(found.ravel(), [first.min(), first.max()], atol=1e-3)


FILTERS = {
    "Gaussian": lambda: mps.MPSImageGaussianBlur(CPU, 1.5),
    "Laplacian": lambda: mps.MPSImageLaplacian(CPU),
    "tent": lambda: mps.MPSImageTent(CPU, 5, 5),
    "convolution": lambda: mps.MPSImageConvolution(CPU, 3, 3, np.ones((3, 3), np.float32) / 9),
    "Lanczos": lambda: mps.MPSImageLanczosScale(CPU),
    "bilinear": lambda: mps.MPSImageBilinearScale(CPU),
    "add": lambda: mps.MPSImageAdd(CPU),
    "extremes": lambda: mps.MPSImageStatisticsMinAndMax(CPU),
}


@pytest.mark.parametrize("dtype", [np.uint8, np.float32], ids=lambda each: each.__name__)
@pytest.mark.parametrize("name", FILTERS)
def test_filters_of_the_fifth_channel(name: str, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 256, (300, 301, 5))
    x[..., 4] = x[..., 4] // 4 + 60
    pixels = x.astype(np.uint8) if dtype is np.uint8 else (x / 255.0).astype(dtype)
    view = mps.MPSImage.from_numpy(CPU, pixels).sub_image(range(4, 8))
    alone = mps.MPSImage.from_numpy(CPU, np.ascontiguousarray(pixels[..., 4:]))
    size = (2, 1) if name == "extremes" else (301, 300)
    found, expected = (
        encoded(FILTERS[name](), [image] * (2 if name == "add" else 1), _empty(*size)) for image in (view, alone)
    )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", ["MPSImageHistogram", "MPSImageNormalizedHistogram"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32], ids=lambda each: each.__name__)
def test_histograms_of_the_fifth_channel(kind: str, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 100, (300, 301, 5))
    x[..., 4] += 100
    pixels = x.astype(np.uint8) if dtype is np.uint8 else (x / 255.0).astype(dtype)
    found: list[np.ndarray] = []
    for image in (
        mps.MPSImage.from_numpy(CPU, pixels).sub_image(range(4, 8)),
        mps.MPSImage.from_numpy(CPU, np.ascontiguousarray(pixels[..., 4:])),
    ):
        kernel = getattr(mps, kind)(CPU, mps.MPSImageHistogramInfo(256))
        counts = CPU.new_buffer(length=kernel.histogram_size(image.pixel_format))
        ends = [] if kind == "MPSImageHistogram" else [BENCH.image(np.array([[[[0.0, 1.0]]]]))]
        command_buffer = BENCH.command_buffer()
        kernel.encode(command_buffer, image, *ends, counts, 0)
        finish(command_buffer)
        found.append(counts.contents().view(np.uint32)[:256].copy())
    np.testing.assert_array_equal(*found)


def test_group_normalization_of_the_fifth_channel() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 16, 16))
    results: list[np.ndarray] = []
    for image in (BENCH.image(x).sub_image(range(4, 8)), BENCH.image(x[:, 4:])):
        kernel, result = mps.MPSCNNGroupNormalization(CPU, GammaAndBetaSource(1, 1)), BENCH.empty((2, 1, 16, 16))
        results.append(encoded(kernel, [image], result))
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)
