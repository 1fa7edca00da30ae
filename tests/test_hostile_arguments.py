"""Arguments and files of the command line that nobody means: a sentence and status 2, never a traceback."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

import openmps as mps
from openmps.cli import main
from openmps.errors import MPSFileError
from openmps.formats.archive.container import seal

pytestmark = pytest.mark.usefixtures("unflushed", "in_an_empty_folder", "on_a_known_machine")

CPU = mps.mtl_device("cpu")
LONG, DIGITS = "n" * 300, "9" * 5000


def _archive(label: str = "image") -> None:
    line = mps.MPSCNNNeuronLinearNode(mps.MPSNNImageNode(mps.Handle(label)), a=2.0, b=0.0)
    mps.MPSKeyedArchiver.archive(mps.MPSNNGraph(CPU, line.result_image), "net.mps")


def _refused(capsys: pytest.CaptureFixture[str], command: str) -> str:
    _archive()
    np.save("x.npy", np.zeros((1, 4, 4, 1), np.float32))
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "error: " in said.err.lower() and "could not be written: File" not in said.err
    return " ".join(said.err.split())


SAMPLED = ("lint net.mps --samples {}", "trace net.mps --samples {}", "view net.mps --samples {}",
           "compare net.mps --samples {}", "run net.mps --input image={}")  # fmt: skip


@pytest.mark.parametrize("command", SAMPLED)
@pytest.mark.parametrize("member", ["a.txt", "a.npy", "image.npy"])
def test_archives_of_something_else_are_no_samples(
    command: str, member: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in (("other.zip", b"PK\3\4 cut off"), ("other.npz", None), ("other.npy", b"\x93NUMPY cut off")):
        if data is not None:
            Path(name).write_bytes(data)
        else:
            with zipfile.ZipFile(name, "w") as file:
                file.writestr(member, "something else")
        assert f"{name} " in _refused(capsys, command.format(name))


@pytest.mark.parametrize(
    "command",
    [
        "profile net.mps --image 100000x100000x1", "profile tiny --image 8x8x1 --batch 1000000000",
        "profile tiny --image 8x8x1 --classes 2000000000", "profile tiny --image 8x8x1 --repeats 1000000000",
        f"profile net.mps --image {DIGITS}x1x1", f"summary net.mps --image {DIGITS}x1x1", f"explain-padding {DIGITS}",
        f"lint net.mps --image {DIGITS}x1x1", f"train --image-size {DIGITS}", f"explain-padding 8 --kernel {DIGITS}",
        f"predict run x.png --top {DIGITS}", f"train --epochs {DIGITS}", f"trace run --count {DIGITS}",
    ],
)  # fmt: skip
def test_numbers_have_bounds(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(_refused(capsys, command)) < 500


@pytest.mark.parametrize(
    "command",
    [
        "lint {}", "summary {}", "trace {}", "compare {}", "view {}", "profile {}", "predict {} x", "evaluate {}",
        "train --resume {}", "train --epochs 1 --run {}", "train --data {}", "convert {}.onnx o", "run {}",
        "run net.mps --input image={}", "run net.mps --input image=x.npy --output {}", "export --swift {} o",
        "export --swift net.mps {}", "export --onnx net.mps {}.onnx --image 8x8x1", "weights show {}",
        "weights convert {} o.npz", "weights convert net.mps {}.npz", "weights convert net.mps {}",
        "weights convert x.npz o.npz --network {}", "lint net.mps --samples {}", "trace net.mps --samples {}",
        "trace net.mps {}.png", "view net.mps --out {} --image 8x8x1",
    ],
)  # fmt: skip
def test_names_that_no_system_has(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _refused(capsys, command.format(LONG))


def test_names_of_inputs_may_hold_equals_signs(capsys: pytest.CaptureFixture[str]) -> None:
    _archive("a=b")
    np.save("x=1.npy", np.ones((1, 2, 2, 1), np.float32))
    assert main(["run", "net.mps", "--input", "a=b=x=1.npy", "--device", "cpu"]) == 0
    assert np.load("result.npy").max() == 2
    assert main(["run", "net.mps", "--input", "a=x=1.npy", "--force"]) == 2


@pytest.mark.parametrize("value", ["[],", "{},", "[[]],", '{"":[]},', "1.5,"])
def test_a_document_takes_a_bounded_amount_of_memory(value: str) -> None:
    text = f"[{value * (6_000_000 // len(value))}0]"
    data = seal(json.dumps({"version": 1, "objects": [], "root": 0})[:-1] + f', "x": {text}' + "}", {})
    tracemalloc.start()
    with pytest.raises(MPSFileError, match="damaged or none of openmps"):
        mps.MPSKeyedUnarchiver.unarchived_object_of_class(mps.MPSNNGraph, data, CPU)
    assert tracemalloc.get_traced_memory()[1] < 8 * len(data)
    tracemalloc.stop()
