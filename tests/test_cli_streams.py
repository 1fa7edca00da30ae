"""Escape sequences in names of strangers: no command writes one to the terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import forked
import numpy as np
import pytest
from PIL import Image

import openmps as mps
import planted_networks as planted
from fake_device import dump
from onnx_models import model, node
from openmps.cli import main
from openmps.training import RunFolder
from openmps.training.inference import describe_network

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn", "in_an_empty_folder", "on_a_known_machine")

EVIL = "\x1b]0;title\x07\x1b[31m\x9b2J\r\u202e"
MOVING = {*map(chr, range(32)), *map(chr, range(0x7F, 0xA0)), "\u202e"} - {"\n"}


def _files() -> None:
    """An archive, a model and a run whose names are all of that kind."""
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 3, 2)
    source = mps.ArrayConvolutionDataSource(descriptor, [1.0, 2, 3, 4, 5, np.inf], [1.0, 2], f"conv{EVIL}")
    image = mps.MPSNNImageNode(mps.Handle(f"image{EVIL}"))
    layer = mps.MPSCNNConvolutionNode(image, source)
    layer.label = f"conv{EVIL}"
    graph = mps.MPSNNGraph(planted.CPU, layer.result_image)
    graph.label = EVIL
    mps.MPSKeyedArchiver.archive(graph, "net.mps")
    mps.MPSKeyedArchiver.archive([EVIL, graph, graph], "none.mps")
    np.savez("x.npz", **{f"image{EVIL}": np.full((1, 4, 4, 3), np.nan, np.float32)})
    shapes = {"image": (1, 4, 4, 3), "conv": (1, 4, 4, 2), "other": (1, 4, 4, 2)}
    images = {f"{name}{EVIL}": np.ones(shape, np.float32) for name, shape in shapes.items()}
    dump(Path("capture"), images, about=EVIL)
    np.save("x.npy", np.full((1, 4, 4, 3), np.nan, np.float32))
    made = model([node("Relu", f"x{EVIL}", f"y{EVIL}")], {f"x{EVIL}": ["n", 3, 4, 4]}, (f"y{EVIL}",))
    Path("model.onnx").write_bytes(made.SerializeToString())
    bad = model([node("Blurb", f"x{EVIL}", f"y{EVIL}")], {f"x{EVIL}": ["n", 3, 4, 4]}, (f"y{EVIL}",))
    Path("bad.onnx").write_bytes(bad.SerializeToString())
    run = RunFolder.create("runs", describe_network(planted.SHAPE, [f"{name}{EVIL}" for name in "abcd"]), name="run")
    run.save_weights(planted.arrays())
    for name in ("a", "b"):
        Path("pictures", f"{name}{EVIL}").mkdir(parents=True)
        for number in range(4):
            pixels = np.full((8, 8, 3), number, np.uint8)
            Image.fromarray(pixels).save(Path("pictures", f"{name}{EVIL}", f"{number}{EVIL}.png"))
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(f"cat{EVIL}.png")


COMMANDS = (
    "summary net.mps", "summary net.mps --image 4x4x3", "summary model.onnx", "summary run", "summary bad.onnx",
    "convert model.onnx out.mps", "convert bad.onnx out.mps", "convert model.onnx out.mps --result q{}",
    "lint net.mps", "lint net.mps --samples x.npz", "lint net.mps --samples x.npy", "trace net.mps --samples x.npz",
    "trace net.mps --samples x.npy --out t", "trace model.onnx --samples x.npy", "trace run cat{}.png",
    "trace none.mps --samples x.npz", "compare net.mps --samples x.npz --format float32,float16",
    "compare net.mps model.onnx --samples x.npy", "compare capture net.mps", "golden check capture net.mps",
    "golden make net.mps --samples x.npz --out kept{}", "golden check kept{} net.mps", "golden check kept{} capture",
    "view net.mps --image 4x4x3", "profile net.mps --repeats 1",
    "profile net.mps --image 4x4x3 --repeats 1", "run net.mps --input x=x.npy", "run net.mps --input image{}=x.npy",
    "run net.mps", "predict run cat{}.png", "predict run no{}.png", "evaluate run --data pictures", "evaluate no{}",
    "export --swift net.mps A", "export --onnx net.mps a.onnx --image 4x4x3", "weights show net.mps",
    "weights convert net.mps w.npz", "weights convert net.mps w.npz --to keras", "weights convert net.mps raw",
    "weights convert w{}.npz o.npz", "train --data pictures --run r{} --epochs 1 --batch-size 2 --network tiny",
    "explain-padding 8 q{}", "nothing{}", "lint --{} net.mps", "selftest --goldens q{}", "selftest --goldens x.npy",
)  # fmt: skip


@pytest.mark.parametrize("terminal", [False, True])
def test_no_command_writes_escape_sequences(
    terminal: bool, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _files()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    for command in COMMANDS:
        capfd.readouterr()
        main([part.format(EVIL) for part in command.split()])
        said = capfd.readouterr()
        assert said.out + said.err, command
        assert not MOVING & {*said.out, *said.err}, (command, said)


@pytest.mark.parametrize("errors", ["/dev/full", "a pipe that nobody reads"])
def test_results_are_given_where_nobody_reads_errors(errors: str) -> None:
    _files()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save("cat.png")
    if errors == "/dev/full":
        stream = os.open(errors, os.O_WRONLY)
    else:
        end, stream = os.pipe()
        os.close(end)
    command = ["-m", "openmps", "predict", "run", "cat.png", "none.png", "cat.png", "--device", "cpu"]
    done = forked.run(*command, stderr=stream, has_openmps=True)
    os.close(stream)
    assert (done.returncode, done.stdout.count("cat.png: ")) == (2, 2)
