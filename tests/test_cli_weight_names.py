"""``--map``, ``--fold`` and ``--input`` with names that hold ``=``: the one reading that is there, or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps as mps
from openmps.cli import main
from openmps.formats import load_tensors, save_tensors

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn", "in_an_empty_folder")
CPU = mps.mtl_device("cpu")
WEIGHTS = np.arange(8, dtype=np.float32).reshape(2, 1, 1, 4)


def planted(*labels: str) -> None:
    """``net.mps``, a graph of convolutions of these labels."""
    image = mps.MPSNNImageNode(mps.Handle("x"))
    nodes = []
    for label in labels:
        descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 4, 2)
        source = mps.ArrayConvolutionDataSource(descriptor, WEIGHTS, np.zeros(2), label)
        nodes.append(mps.MPSCNNConvolutionNode(image, source).result_image)
    graph = mps.MPSNNGraph(CPU, result_images=nodes)
    mps.MPSKeyedArchiver.archive(graph, "net.mps")


def tensors(*names: str, **more: Any) -> None:
    """``model.npz``: weights, each other numbers, and biases under names."""
    found: dict[str, Any] = {}
    for index, name in enumerate(names):
        found[f"{name}.weight"] = WEIGHTS.reshape(2, 4, 1, 1) + index
        found[f"{name}.bias"] = np.full(2, index, np.float32)
    save_tensors("model.npz", {**found, **more})


def converted(*options: str) -> int:
    return main(["weights", "convert", "model.npz", "out.npz", "--from", "pytorch", "--network", "net.mps", *options])


@pytest.mark.parametrize(("label", "name"), [
    ("conv", "a=b"), ("conv=1", "a"), ("conv=1", "a=b"), ("a=b", "a=b"), ("conv", "a=b=c"), ("=", "=="), ("conv=", "a"),
])  # fmt: skip
def test_the_only_reading_is_taken(label: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    planted(label)
    tensors(name)
    status = converted("--map", f"{label}={name}")
    assert status == 0, capsys.readouterr().err
    np.testing.assert_array_equal(load_tensors(Path("out.npz"))[f"{label}.weights"], WEIGHTS)


def test_a_name_behind_a_prefix_and_an_array_s(capsys: pytest.CaptureFixture[str]) -> None:
    planted("conv=1")
    tensors("net.a=b")
    assert converted("--map", "conv=1=a=b", "--prefix", "net.") == 0, capsys.readouterr().err
    assert converted("--map", "conv=1.weights=net.a=b.weight", "--map", "conv=1.biases=net.a=b.bias") == 2
    Path("out.npz").unlink()
    assert converted("--map", "conv=1.weights=net.a=b.weight", "--map", "conv=1.biases=net.a=b.bias") == 0


def test_two_readings_are_both_said(capsys: pytest.CaptureFixture[str]) -> None:
    planted("a", "a=b")
    tensors("b=c", "c")
    assert converted("--map", "a=b=c") == 2
    error = capsys.readouterr().err
    for words in ("can be read in more than one way", "'a' and 'b=c'", "'a=b' and 'c'"):
        assert words in " ".join(error.replace("│", " ").split())


def test_no_reading_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    planted("conv")
    tensors("b")
    assert converted("--map", "a=b=c") == 2
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "names no layer of the network and tensor of SOURCE: 'a' and 'b=c' or 'a=b' and 'c'" in error


def test_folded_normalizations(capsys: pytest.CaptureFixture[str]) -> None:
    planted("conv=1")
    rows = {f"bn=x.{part}": np.ones(2, np.float32) for part in ("weight", "bias", "running_mean", "running_var")}
    tensors("conv=1", **rows)
    assert converted("--fold", "conv=1=bn=x", "--epsilon", "0") == 0, capsys.readouterr().err
    np.testing.assert_allclose(load_tensors(Path("out.npz"))["conv=1.weights"], WEIGHTS)


def test_names_of_the_file_that_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """On the right they are free: a layer on the left decides."""
    planted("conv=1")
    command = ["weights", "convert", "net.mps", "out.npz", "--to", "pytorch", "--map"]
    assert main([*command, "conv=1=a=b"]) == 0, capsys.readouterr().err
    assert set(load_tensors(Path("out.npz"))) == {"a=b.weight", "a=b.bias"}


def test_inputs_of_a_graph(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (mps.MPSNNImageNode(mps.Handle(label)) for label in ("x", "x=y"))
    graph = mps.MPSNNGraph(CPU, mps.MPSNNAdditionNode(first, second).result_image)
    mps.MPSKeyedArchiver.archive(graph, "sum.mps")
    for name, number in (("y=f.npy", 1), ("f.npy", 2), ("g.npy", 3)):
        np.save(name, np.full((1, 1, 1, 4), number, np.float32))
    command = ["run", "sum.mps", "--out", "results", "--force"]
    assert main([*command, "--input", "x=g.npy", "--input", "x=y=g.npy"]) == 0, capsys.readouterr().err
    assert np.load("results/result.npy").max() == 6
    assert main([*command, "--input", "x=g.npy", "--input", "x=y=f.npy"]) == 2
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "can be read in more than one way: 'x' from 'y=f.npy' or 'x=y' from 'f.npy'" in error
    Path("f.npy").unlink()
    assert main([*command, "--input", "x=y=f.npy", "--input", "x=y=g.npy"]) == 0, capsys.readouterr().err
    assert np.load("results/result.npy").max() == 4
