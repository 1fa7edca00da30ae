"""Pictures scaled by the framework's filters, in training and where a run predicts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from openmps.cli import main
from openmps.errors import MPSArgumentError, MPSFileError
from openmps.training.data import load_dataset
from openmps.training.image_folder import load_image, load_image_folder
from openmps.training.run_folder import RunFolder


def put(path: Path, pixels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    path.write_bytes(file.getvalue())
    return path


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Dark and bright pictures of two sizes."""
    for index in range(30):
        bright, size = index % 2, (11, 9) if index % 3 else (14, 10)
        pixels = rng.integers(150 * bright, 100 + 150 * bright, size).astype(np.uint8)
        put(tmp_path / "pictures" / f"kind {bright}" / f"{index:02}.png", pixels)
    return tmp_path / "pictures"


def pillow_lanczos(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Of a picture that goes on with its border, as the framework's reads it."""
    margin, (height, width) = 30, pixels.shape
    continued = np.pad(pixels.astype(np.float32), margin, mode="edge")
    box = (margin, margin, margin + width, margin + height)
    return np.asarray(Image.fromarray(continued).resize(size[::-1], Image.Resampling.LANCZOS, box=box))


def torch_bilinear(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    values = torch.from_numpy(pixels.astype(np.float64))[None, None]
    return functional.interpolate(values, size=size, mode="bilinear", align_corners=False)[0, 0].numpy()


@pytest.mark.parametrize(("scaling", "oracle"), [("lanczos", pillow_lanczos), ("bilinear", torch_bilinear)])
@pytest.mark.parametrize("size", [(5, 7), (30, 20)])
def test_numbers(scaling: Any, oracle: Any, size: tuple[int, int], tmp_path: Path, rng: np.random.Generator) -> None:
    """Rounded once to 8 bits; a number between two is either of them."""
    pixels = rng.integers(0, 256, (12, 9)).astype(np.uint8)
    found = load_image(put(tmp_path / "x.png", pixels), size=size, scaling=scaling)
    assert (found.shape, found.dtype) == ((*size, 1), np.uint8)
    assert np.abs(found[..., 0] - np.clip(oracle(pixels, size), 0, 255)).max() <= 0.5 + 1e-3
    assert (found != load_image(tmp_path / "x.png", size=size)).any()


def test_folders(folder: Path) -> None:
    dataset = load_image_folder(folder, size=(8, 8), scaling="lanczos")
    first = load_image(folder / "kind 0" / "00.png", size=(8, 8), scaling="lanczos")
    np.testing.assert_array_equal(dataset.images[0], first)


def test_a_run_keeps_its_scaling(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is trained, resumed, evaluated and asked with one filter; another one contradicts."""
    run, picture = str(tmp_path / "run"), str(folder / "kind 0" / "00.png")
    train = [
        "train",
        "--data",
        str(folder),
        "--run",
        run,
        "--epochs",
        "1",
        "--batch-size",
        "8",
        "--device",
        "cpu",
        "-q",
    ]
    assert main([*train, "--image-size", "8x8", "--scaling", "lanczos"]) == 0
    assert RunFolder.open(run).config["data"] == {"path": str(folder), "skip_broken": False, "scaling": "lanczos"}
    accuracy = capsys.readouterr().out
    assert main(["evaluate", run, "-q"]) == 0
    assert capsys.readouterr().out == accuracy
    assert main(["predict", run, picture]) == 0
    assert "converted to the network's 8x8x1 by lanczos" in capsys.readouterr().err
    assert main(["predict", run, picture, "--scaling", "bilinear"]) == 0
    assert "converted to the network's 8x8x1 by bilinear" in capsys.readouterr().err
    assert main(["train", "--resume", run, "--scaling", "bilinear"]) == 2
    assert "--scaling must be lanczos, as the run was started with, got bilinear" in capsys.readouterr().err
    assert main(["train", "--resume", run, "--scaling", "lanczos", "--epochs", "2", "-q"]) == 0
    described = Path(run, "run.json")
    described.write_text(described.read_text().replace('"lanczos"', '"cubic"'))
    assert main(["predict", run, picture]) == 2
    assert "must name a scaling, bilinear or lanczos, in its data, got 'cubic'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda path: load_image(path, scaling="lanczos"), "scaling must be given with a size to scale to"),
        (lambda path: load_image(path, size=(2, 2), scaling="cubic"), "scaling must be bilinear or lanczos, or None"),
        (lambda path: load_dataset(scaling="lanczos"), "scaling must be None where no image is scaled"),
    ],
)
def test_what_is_refused(call: Any, said: str, folder: Path) -> None:
    with pytest.raises((MPSArgumentError, MPSFileError), match=said):
        call(folder / "kind 0" / "00.png")
