"""The short programs of the examples do what they say, on the CPU, with fewer steps than they have for a user."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import activity_classifier
import autoencoder
import batch_normalization
import camera_frames
import causal_padding
import character_model
import digits_by_graph
import digits_by_kernels
import find_nan
import fine_tuning
import float16_training
import least_squares
import openmps as mps
import own_adam
import segmentation
import swift_export
import torch_data_loader
from openmps.training.image_folder import load_image

CPU = ["--device", "cpu"]


def test_digits_by_kernels() -> None:
    assert digits_by_kernels.main([*CPU, "--steps", "60"]) > 0.8


def test_digits_by_graph(capsys: pytest.CaptureFixture[str]) -> None:
    accuracies = digits_by_graph.main([*CPU, "--steps", "60"])
    assert accuracies[0] < 0.3
    assert accuracies[-1] > 0.7
    assert "after 20 more batches" in capsys.readouterr().out


def test_own_adam_is_that_of_the_framework() -> None:
    losses, difference = own_adam.main([*CPU, "--steps", "30"])
    assert losses[-1] < 0.5 * losses[0]
    # A few roundings of float32 a step, of weights up to 2.
    assert difference < 30 * 2**-22


def test_edges_are_those_of_the_filter() -> None:
    step = np.zeros((1, 4, 6, 1), np.float32)
    step[:, :, 3:] = 1.0
    np.testing.assert_array_equal(own_adam.edges(step)[0, 1, :, 0], [0, 0, -4, -4, 0, 4])


def test_a_graph_learns_from_a_loader_of_torch() -> None:
    before, after = torch_data_loader.main([*CPU, "--epochs", "2"])
    assert before < 0.3 and after > 0.7


def test_autoencoder() -> None:
    before, after = autoencoder.main([*CPU, "--steps", "60"])
    assert after < 0.4 * before


def test_segmentation() -> None:
    found = segmentation.main([*CPU, "--steps", "40"])
    assert min(found) > 0.5


def test_causal_padding_sees_the_past_only(capsys: pytest.CaptureFixture[str]) -> None:
    error, guess = causal_padding.main([*CPU, "--steps", "60"])
    assert error < 0.6 * guess
    assert "the first 24 results are the same" in capsys.readouterr().out


def test_batch_normalization_by_hand() -> None:
    error, difference = batch_normalization.main([*CPU, "--steps", "80"])
    assert error < 0.1
    # Numbers up to 30, rounded a few times on either way.
    assert difference < 30 * 2**-21


def test_camera_frames(tmp_path: Path) -> None:
    """The ball is found; Pillow's filter gives the same numbers but for rounding; the ball keeps its red alone."""
    overlap, difference = camera_frames.main([*CPU, "--steps", "40", "--frames", "6", "--out", str(tmp_path)])
    assert overlap > 0.8
    assert difference < 2**-20
    balls = camera_frames.take(tmp_path, 6)
    for index in range(3, 6):
        frame = load_image(tmp_path / f"frame{index:02}.jpg").astype(float)
        drawn = load_image(tmp_path / "drawn" / f"frame{index:02}.png").astype(float)
        np.testing.assert_array_equal(drawn[..., 0], frame[..., 0])
        inside, outside = (drawn[where, 1:].sum() / frame[where, 1:].sum() for where in (balls[index], ~balls[index]))
        assert inside < 0.7 and outside > 0.85


@pytest.mark.filterwarnings("ignore::openmps.MPSTrainingWarning")
def test_float16_needs_a_scale() -> None:
    found = float16_training.main([*CPU, "--steps", "30"])
    assert found["float16 scaled"] == pytest.approx(found["float32"], rel=0.1)
    assert found["float16"] > 5 * found["float32"]


def test_the_nan_is_found() -> None:
    message, found, mended = find_nan.main(CPU)
    assert "MPSCNNNeuron 'logarithm': result must be finite, got -inf in image 1" in message
    assert (found, mended) == ("logarithm", None)


def test_fine_tuning() -> None:
    pytest.importorskip("onnx")
    first, before, after = fine_tuning.main([*CPU, "--steps", "60"])
    assert first > 0.8
    assert after > before + 0.2


def test_least_squares() -> None:
    difference, error = least_squares.main(CPU)
    assert difference < 1e-5
    assert error < 0.03  # of points with noise of 0.1


def test_activities_are_told_apart() -> None:
    before, after = activity_classifier.main([*CPU, "--steps", "40"])
    assert before < 0.6 and after > 0.8


def test_a_model_learns_what_letter_comes_next() -> None:
    """Better than by how often each letter comes, 2.7 nats; what it writes has words of about the right length."""
    loss, written = character_model.main([*CPU, "--steps", "60", "--letters", "80"])
    assert loss < 0.6
    assert len(written) == 80 and set(written) <= set(character_model.LETTERS)
    assert 3 < len(written) / len(written.split()) < 9


def test_swift_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert swift_export.main([*CPU, "--steps", "20", "--out", str(tmp_path / "Own")]) == [
        "Sharpen-features.dat",
        "Sharpen-picture.dat",
        "Sharpen.swift",
    ]
    source = (tmp_path / "Own" / "Sharpen.swift").read_text()
    assert "MPSNNGraph(" in source
    assert "the archive gives the same results: True" in capsys.readouterr().out


def test_the_decoder_alone_is_the_half_of_the_whole() -> None:
    network = autoencoder.Autoencoder(mps.mtl_device("cpu"))
    pictures = autoencoder.draw(np.random.default_rng(0), 2)
    codes = autoencoder.run(network.encoder, pictures)
    assert codes.shape == (2, 4, 4, 4)
    np.testing.assert_array_equal(autoencoder.run(network.decoder, codes), autoencoder.run(network.inference, pictures))
