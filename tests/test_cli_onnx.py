"""``openmps convert`` and ``openmps run``."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

from commands import run_command
from onnx_models import model, node, numbers, reference, saved
from openmps.formats import onnx as reader

pytest.importorskip("onnx")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4"),
    pytest.mark.usefixtures("unflushed", "undrawn"),
]


def _model(*more, batch: int | str = "n"):
    nodes = [node("Conv", "in:0 w", "c"), node("Relu", "c", "a/b"), node("Shrink", "c", "odd"), node("Neg", "c", ".n")]
    chosen = [each for each in nodes if each.op_type != "Shrink" or "odd" in more]
    return model(chosen, {"in:0": [batch, 3, "h", 6]}, ("a/b", ".n", *more), w=numbers(4, 3, 3, 3))


@pytest.fixture
def converted(tmp_path: Path, capsys) -> Path:
    assert run_command(capsys, "convert", saved(_model(), tmp_path), tmp_path / "net.mps")[0] == 0
    return tmp_path / "net.mps"


@pytest.mark.parametrize("batch", [1, 3])
def test_results_have_the_names_axes_and_order_of_the_model(
    batch: int, converted: Path, tmp_path: Path, capsys
) -> None:
    feeds = {"in:0": numbers(batch, 3, 7, 6)}
    np.save(tmp_path / "x.npy", feeds["in:0"])
    folder = tmp_path / "out"
    status, out, err = run_command(
        capsys, "run", converted, "--input", f"in:0={tmp_path / 'x.npy'}", "--out", folder, "--device", "cpu"
    )
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"{folder / 'a_b.npy'}: float32 {batch}x4x5x4",
        f"{folder / '_n.npy'}: float32 {batch}x4x5x4",
    ]
    wanted = reference(_model(), feeds)
    for name, file in {"a/b": "a_b.npy", ".n": "_n.npy"}.items():
        np.testing.assert_allclose(np.load(folder / file), wanted[name], rtol=1e-5, atol=1e-5)


def test_what_convert_prints(tmp_path: Path, capsys) -> None:
    status, out, err = run_command(
        capsys, "convert", saved(_model(), tmp_path), tmp_path / "net.mps", "--shape", "in:0=1,3,8,6", "--format",
        "float16", "--result", "c",
    )  # fmt: skip
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith(f"{tmp_path / 'net.mps'}: 1 kernel, float16, ")
    assert lines[1:] == ["input  in:0: float32 n x 3 x 8 x 6", "output c: float32 ?x4x6x4"]


def _refused(capsys, *arguments) -> str:
    status, out, err = run_command(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "Traceback" not in err
    return err


def test_operators_that_cannot_be_expressed(tmp_path: Path, capsys) -> None:
    err = _refused(capsys, "convert", saved(_model("odd"), tmp_path), tmp_path / "net.mps")
    assert "has 1 node that the framework cannot express:\n  Shrink (Shrink_odd): no node" in err
    assert not (tmp_path / "net.mps").exists()


def test_files_that_are_no_models(tmp_path: Path, capsys) -> None:
    (tmp_path / "text.onnx").write_text("a text file")
    assert "text.onnx is no ONNX model" in _refused(capsys, "convert", tmp_path / "text.onnx", tmp_path / "net.mps")
    assert "gone.onnx must be a file" in _refused(capsys, "convert", tmp_path / "gone.onnx", tmp_path / "net.mps")


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_without_permission(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    assert "could not be written" in _refused(capsys, "convert", saved(_model(), tmp_path), folder / "net.mps")


def test_a_folder_that_is_not_there(tmp_path: Path, capsys) -> None:
    err = _refused(capsys, "convert", saved(_model(), tmp_path), tmp_path / "no" / "net.mps")
    assert "must be in a folder that exists" in err


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ("in:0=3x4", "is no shape; write NAME=1,3,224,224"),
        ("y=1,3,8,8", "must be of inputs, 'in:0'"),
        ("in:0=1,4,8,6", "must fit the model's"),
    ],
)
def test_shapes(shape: str, why: str, tmp_path: Path, capsys) -> None:
    assert why in _refused(capsys, "convert", saved(_model(), tmp_path), tmp_path / "net.mps", "--shape", shape)


def test_inputs(converted: Path, tmp_path: Path, capsys) -> None:
    np.save(tmp_path / "small.npy", numbers(1, 3, 7, 5))
    np.save(tmp_path / "text.npy", np.array(["a"]))
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    for given, why in {
        "": "--input in:0 is missing: an array of float32, n x 3 x h x 6",
        f"in:0={tmp_path / 'small.npy'}": "--input in:0 must be of shape n x 3 x h x 6, got 1x3x7x5",
        f"in:0={tmp_path / 'text.npy'}": "--input in:0 must be a NumPy array of real numbers",
        f"in:0={tmp_path / 'objects.npy'}": "objects.npy must be an array in a .npy file",
        f"in:0={converted}": "net.mps must be an array in a .npy file",
        f"in:0={tmp_path / 'gone.npy'}": "gone.npy must be a file",
        f"other={tmp_path / 'small.npy'}": "--input other is none of the inputs: 'in:0'",
        "in:0": "is no input; write NAME=x.npy",
    }.items():
        options = ["--input", given] if given else []
        err = _refused(capsys, "run", converted, *options, "--out", tmp_path / "out")
        assert why in " ".join(err.split())
    assert not (tmp_path / "out").exists()


def test_archives_of_something_else(tmp_path: Path, capsys) -> None:
    import openmps as mps

    mps.MPSKeyedArchiver.archive([1, 2], tmp_path / "other.mps")
    (tmp_path / "text.mps").write_text("a text file")
    err = _refused(capsys, "run", tmp_path / "other.mps")
    assert "must hold one graph, got none" in err
    assert "is damaged or none of openmps" in _refused(capsys, "run", tmp_path / "text.mps")


def test_results_are_written_all_or_none(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "\u6f22" * 200  # 600 bytes, of which a file's name has fewer
    made = model([node("Relu", "x", "y"), node("Neg", "x", long)], {"x": [1, 3]}, ("y", long))
    assert run_command(capsys, "convert", saved(made, tmp_path), tmp_path / "net.mps")[0] == 0
    np.save(tmp_path / "x.npy", numbers(1, 3))
    call = ("run", tmp_path / "net.mps", "--input", f"x={tmp_path / 'x.npy'}", "--out", tmp_path / "out")
    written: list[Path] = []

    def full(path: Path, content: memoryview) -> None:
        written.append(path)
        if len(written) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("openmps.formats.atomic._read_back", full)
    status, _, err = run_command(capsys, *call)
    assert status == 2
    assert "No space left" in err
    assert list((tmp_path / "out").iterdir()) == []
    assert run_command(capsys, *call)[0] == 0
    assert sorted(len(each.name.encode()) for each in (tmp_path / "out").iterdir()) == [5, 202]


def test_an_archive_of_convert_can_be_looked_at_and_exported(converted: Path, tmp_path: Path, capsys) -> None:
    assert run_command(capsys, "lint", converted)[0] == 0
    status, _, err = run_command(capsys, "export", "--swift", converted, tmp_path / "app", "--name", "Net")
    assert (status, err) == (0, "")
    assert "of the model's n x 3 x h x 6." in (tmp_path / "app" / "Net.swift").read_text()


@pytest.mark.parametrize("option", ["--coreml", "--onnx"])
def test_axes_that_an_export_leaves_out_are_named(option: str, tmp_path: Path, capsys) -> None:
    """A graph ends with an image: the Flatten behind it is no node of it."""
    nodes = [node("Relu", "x", "a"), node("Flatten", "a", "flat"), node("Sigmoid", "x", "image")]
    path = saved(model(nodes, {"x": (1, 2, 4, 4)}, ("flat", "image")), tmp_path)
    out = tmp_path / ("net.mlpackage" if option == "--coreml" else "net.onnx")
    assert run_command(capsys, "convert", path, tmp_path / "net.mps")[0] == 0
    status, _, err = run_command(capsys, "export", option, tmp_path / "net.mps", out)
    shape = "the model's 1x32 is left to whoever reads it"
    assert (status, err) == (0, f"note: the output 'flat' is N, C, H, W there, as the graph's image: {shape}\n")


def test_what_is_easily_mistaken(converted: Path, tmp_path: Path, capsys) -> None:
    path = saved(_model(), tmp_path)
    for command in (["run"], ["lint"], ["export", "--swift"]):
        more = [tmp_path / "out"] if command[0] == "export" else []
        status, _, err = run_command(capsys, *command, path, *more)
        assert status == 2
        assert f"Convert it first: openmps convert {path} model.mps" in err
    before = path.read_bytes()
    status, _, err = run_command(capsys, "convert", path, path)
    assert (status, path.read_bytes()) == (2, before)
    assert "must be another file than MODEL" in err
    np.save(tmp_path / "x.npy", numbers(1, 3, 7, 6))
    twice = ("--input", f"in:0={tmp_path / 'x.npy'}") * 2
    status, _, err = run_command(capsys, "run", converted, *twice)
    assert status == 2
    assert "'in:0' is named twice" in err


# --- one kind of archive ----------------------------------------------------------------------------------------------


def test_lint_and_export_take_what_convert_writes(converted: Path, tmp_path: Path, capsys) -> None:
    status, out, err = run_command(capsys, "lint", converted, "--image", "6x7x3")
    assert (status, err) == (0, "") and "0 errors" in out
    status, out, err = run_command(capsys, "export", "--swift", converted, tmp_path / "Net")
    assert (status, err) == (0, "") and (tmp_path / "Net" / "Net.swift").exists()


def _bare(folder: Path, scale: float = 2.0, *labels: str):
    """A graph of MPSKeyedArchiver: the sum of its images, times a number."""
    import openmps as mps

    images = [mps.MPSNNImageNode(mps.Handle(label)) for label in labels] or [mps.MPSNNImageNode()]
    found = images[0] if len(images) == 1 else mps.MPSNNAdditionNode(*images).result_image
    line = mps.MPSCNNNeuronLinearNode(found, a=scale, b=0.0)
    mps.MPSKeyedArchiver.archive(mps.MPSNNGraph(mps.mtl_device("cpu"), line.result_image), folder / "bare.mps")
    return folder / "bare.mps"


def test_run_takes_the_archive_of_a_graph(tmp_path: Path, capsys) -> None:
    x = numbers(2, 3, 4, 5)
    np.save(tmp_path / "x.npy", x)
    options = ("--out", tmp_path, "--device", "cpu")
    status, _, err = run_command(capsys, "run", _bare(tmp_path), "--input", f"image={tmp_path / 'x.npy'}", *options)
    assert (status, err) == (0, "")
    np.testing.assert_allclose(np.load(tmp_path / "result.npy"), 2 * x, rtol=2e-3)
    both = ("--input", f"a={tmp_path / 'x.npy'}", "--input", f"b={tmp_path / 'x.npy'}")
    assert run_command(capsys, "run", _bare(tmp_path, 3.0, "a", "b"), *both, "--out", tmp_path / "new")[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "new" / "result.npy"), 6 * x, rtol=2e-3)
    err = _refused(capsys, "run", tmp_path / "bare.mps", *both[:2], *options)
    assert "--input b is missing: an array of float32, images x height x width x channels" in err


def test_an_onnx_model_in_the_place_of_an_archive(tmp_path: Path, capsys) -> None:
    path = saved(_model(), tmp_path)
    for command in (("run", path), ("lint", path), ("export", "--swift", path, tmp_path / "Net")):
        err = _refused(capsys, *command)
        assert f"must be an archive, got an ONNX model. Convert it first: openmps convert {path} model.mps" in err
    package = tmp_path / "net.mlpackage"
    package.mkdir()
    for command in (("run", package), ("lint", package), ("quantize", package, tmp_path / "small.mps")):
        err = _refused(capsys, *command)
        assert f"must be an archive, got a Core ML model. Convert it first: openmps convert {package} net.mps" in err


# --- files that are there ---------------------------------------------------------------------------------------------


def test_no_file_that_is_read_is_written(tmp_path: Path, capsys) -> None:
    """By another name, too: external data of a model, samples, images, the network itself."""
    onnx.save(_model(), tmp_path / "model.onnx", save_as_external_data=True, location="numbers", size_threshold=0)
    np.savez(tmp_path / "x.npz", x=numbers(1, 7, 6, 3))
    os.link(tmp_path / "numbers", tmp_path / "linked")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    model, samples = tmp_path / "model.onnx", ("--samples", tmp_path / "x.npz")
    for name in ("numbers", "linked"):
        err = _refused(capsys, "convert", model, tmp_path / name, "--force")
        assert f"{name} must be another file than those that are read, got the same one" in err
        assert "another file" in _refused(capsys, "view", model, "--out", tmp_path / name, "--force")
        assert "another file" in _refused(capsys, "profile", model, "--chrome", tmp_path / name)
    for command in (("view", model, "--out"), ("quantize", model)):
        assert "x.npz must be another" in _refused(capsys, *command, tmp_path / "x.npz", *samples, "--force")
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_the_retired_name_of_out(converted: Path, tmp_path: Path, capsys) -> None:
    np.save(tmp_path / "x.npy", numbers(1, 3, 7, 6))
    command = ("run", converted, "--input", f"in:0={tmp_path / 'x.npy'}", "--device", "cpu")
    status, _, err = run_command(capsys, *command, "--output", tmp_path / "old")
    assert (status, err) == (0, "note: --output is called --out, and goes with openmps 0.4\n")
    assert run_command(capsys, *command, "--out", tmp_path / "new")[0] == 0
    assert [file.name for file in (tmp_path / "old").iterdir()] == [file.name for file in (tmp_path / "new").iterdir()]
    assert "--output" not in run_command(capsys, "run", "--help")[1]
    assert "must be left out: --out says the same" in _refused(
        capsys, *command, "--out", tmp_path / "a", "--output", tmp_path
    )


def test_convert_keeps_what_is_there(tmp_path: Path, capsys) -> None:
    path = saved(_model(), tmp_path)
    before = path.read_bytes()
    text = tmp_path / "notes.txt"
    text.write_text("mine")
    for options in ((), ("--force",)):
        err = _refused(capsys, "convert", path, tmp_path / "." / "model.onnx", *options)
        assert "model.onnx must be another file than MODEL, got the same one" in err
        assert "must not end in .onnx" in _refused(capsys, "convert", path, tmp_path / "new.onnx", *options)
    assert "notes.txt must be new, got one that is there. --force replaces it." in _refused(
        capsys, "convert", path, text
    )
    assert (path.read_bytes(), text.read_text()) == (before, "mine")
    assert run_command(capsys, "convert", path, text, "--force")[0] == 0


def test_convert_says_at_once_what_it_cannot_write(tmp_path: Path, capsys) -> None:
    (tmp_path / "text.onnx").write_text("a text file")
    path = tmp_path / "text.onnx"  # which is not looked at
    assert "must be in a folder, got " in _refused(capsys, "convert", path, path / "net.mps")
    assert "must be in a folder that exists" in _refused(capsys, "convert", path, tmp_path / "no" / "net.mps")


def test_run_keeps_what_is_there(tmp_path: Path, capsys) -> None:
    archive = _bare(tmp_path, 2.0, "result")
    np.save(tmp_path / "result.npy", numbers(1, 2, 2, 1))
    given = ("--input", f"result={tmp_path / 'result.npy'}", "--out", tmp_path)
    assert "must be another file than an input" in _refused(capsys, "run", archive, *given, "--force")
    (tmp_path / "result.npy").rename(tmp_path / "x.npy")
    given = ("--input", f"result={tmp_path / 'x.npy'}", "--out", tmp_path)
    assert run_command(capsys, "run", archive, *given)[0] == 0
    assert "result.npy must be new, got one that is there" in _refused(capsys, "run", archive, *given)
    assert run_command(capsys, "run", archive, *given, "--force")[0] == 0
    assert "'result' is named twice" in _refused(capsys, "run", archive, *given, *given[:2])


# --- words of the command line ----------------------------------------------------------------------------------------


def test_errors_name_options_that_there_are(tmp_path: Path, capsys) -> None:
    path = saved(_model("odd"), tmp_path)
    out = tmp_path / "net.mps"
    err = _refused(capsys, "convert", path, out)
    assert "End the model before it, with --result c, or export it without" in " ".join(err.split())
    err = _refused(capsys, "convert", path, out, "--shape", "in:0=1,3,8")
    assert "error: --shape in:0 must have 4 lengths, n x 3 x h x 6, got 1x3x8\n" in err
    err = _refused(capsys, "convert", path, out, "--shape", "in:0=1,4,8,6")
    assert "error: --shape in:0 must fit the model's n x 3 x h x 6, got 1x4x8x6\n" in err
    err = _refused(capsys, "convert", path, out, "--result", "none")
    assert err.startswith("error: --result must be names of values of the model, got 'none'. Its own outputs are a/b")
    err = _refused(capsys, "convert", path, out, "--result", "Conv_d")
    assert err.endswith("Alike are Conv_c\n")
    status, printed, _ = run_command(capsys, "convert", path, out, "--result", "Conv_c")
    assert status == 0 and printed.endswith("output c: float32 ?x4x?x4\n")


def test_the_limit_of_repeated_numbers_is_said_in_full(tmp_path: Path, capsys) -> None:
    fills = [node("ConstantOfShape", f"s{place}", f"w{place}") for place in range(3)]
    convolutions = [
        node("Conv", f"{'x' if not place else f'c{place}'} w{place}", f"c{place + 1}") for place in range(3)
    ]
    shapes = {f"s{place}": np.array([1024, 1024, 1, 3]) for place in range(3)}
    path = saved(model([*fills, *convolutions], {"x": ["n", 1024, 8, 8]}, ("c3",), **shapes), tmp_path)
    err = _refused(capsys, "convert", path, tmp_path / "net.mps")
    assert err.endswith("allow 36 MiB with --fill-limit 36\n")
    assert run_command(capsys, "convert", path, tmp_path / "net.mps", "--fill-limit", 36)[0] == 0


def test_layers_that_only_choose_channels_have_labels_of_their_own(tmp_path: Path, capsys) -> None:
    nodes = [node("Concat", "x x", "y", axis=1), node("Relu", "y", "r"), node("Concat", "r x", "z", axis=1)]
    path = saved(model(nodes, {"x": ["n", 3, 6, 6]}, ("z",)), tmp_path)
    assert run_command(capsys, "convert", path, tmp_path / "net.mps")[0] == 0
    status, out, _ = run_command(capsys, "weights", "show", tmp_path / "net.mps")
    assert status == 0 and "choice of channels.weights" in out and "choice of channels 2.weights" in out


def test_weights_of_layers_with_slashes_become_raw_files(tmp_path: Path, capsys) -> None:
    path = saved(model([node("Conv", "x w", "/c")], {"x": ["n", 3, 6, 6]}, ("/c",), w=numbers(4, 3, 3, 3)), tmp_path)
    archive, folder = tmp_path / "net.mps", tmp_path / "raw"
    assert run_command(capsys, "convert", path, archive)[0] == 0
    status, out, err = run_command(capsys, "weights", "convert", archive, folder)
    assert (status, err) == (0, "")
    assert out.splitlines()[0].startswith("Conv_/c.weights = Conv__c_weights.dat ")
    wanted = numbers(4, 3, 3, 3).transpose(0, 2, 3, 1)
    assert np.array_equal(np.fromfile(folder / "Conv__c_weights.dat", "<f4"), wanted.reshape(-1))
    back = ("--from", "openmps", "--network", archive)
    assert run_command(capsys, "weights", "convert", folder, tmp_path / "back.npz", *back)[0] == 0
    assert np.array_equal(np.load(tmp_path / "back.npz")["Conv_/c.weights"], wanted)


# --- summary, lint and export of archives -----------------------------------------------------------------------------


def test_summaries_of_models_and_archives(converted: Path, tmp_path: Path, capsys) -> None:
    status, out, err = run_command(capsys, "summary", tmp_path / "model.onnx")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == ["input  in:0: n x 3 x h x 6", "output a/b: of any shape"]
    assert "Conv                 c  (Conv_c)" in lines
    (tmp_path / "other").mkdir()
    two = node("Constant", "", "two", value_float=2.0)
    path = saved(model([two, node("Mul", "x two", "y")], {"x": [1, 1, 2, 2]}), tmp_path / "other")
    status, out, err = run_command(capsys, "summary", path)
    assert (status, err) == (0, "note: 1 constant left out\n") and "Constant" not in out and "Mul" in out
    status, out, err = run_command(capsys, "summary", converted)
    assert status == 0 and "Convolution" in out and "--image" in err
    status, out, err = run_command(capsys, "summary", converted, "--image", "6x7x3")
    assert (status, err) == (0, "") and "6x7x3" in out and "4x5x4" in out
    path = saved(_model(batch=1), tmp_path)
    assert run_command(capsys, "convert", path, tmp_path / "one.mps", "--shape", "in:0=1,3,7,6")[0] == 0
    assert "4x5x4" in run_command(capsys, "summary", tmp_path / "one.mps")[1]


@pytest.mark.parametrize("command", ["lint", "summary"])
def test_images_that_are_not_the_network_s(command: str, converted: Path, capsys) -> None:
    assert "'6x7x5' must have 3 channels, as 'in:0' has" in _refused(capsys, command, converted, "--image", "6x7x5")
    assert "must have 6 columns" in _refused(capsys, command, converted, "--image", "7x7x3")
    twice = ("--image", "6x7x3") * 2
    assert "once for each source image: 'in:0'" in _refused(capsys, command, converted, *twice)


def test_the_head_of_a_source_says_what_the_images_are(converted: Path, tmp_path: Path, capsys) -> None:
    assert run_command(capsys, "export", "--swift", converted, tmp_path / "Net")[0] == 0
    head = (tmp_path / "Net" / "Net.swift").read_text()
    assert "//  The image 'in:0' is 6x?x3 (width, height, channels), of the model's n x 3 x h x 6." in head
    assert "//  The result is the output 'a/b', of the model's " in head
    assert "//  Intermediate image 0 is the output '.n', of the model's " in head


# --- notes ------------------------------------------------------------------------------------------------------------


def test_numbers_that_are_not_finite_are_noted(tmp_path: Path, capsys) -> None:
    weights = numbers(4, 3, 3, 3)
    weights[0, 0, 0, :2] = np.nan, np.inf
    path = saved(model([node("Conv", "x w", "y")], {"x": ["n", 3, 6, 6]}, w=weights), tmp_path)
    status, _, err = run_command(capsys, "convert", path, tmp_path / "net.mps")
    assert (status, err) == (0, "note: Conv_y.weights: 2 of 108 numbers are NaN or infinite\n")
    np.save(tmp_path / "x.npy", np.full((1, 3, 6, 6), np.nan, np.float32))
    given = ("--input", f"x={tmp_path / 'x.npy'}", "--out", tmp_path)
    status, _, err = run_command(capsys, "run", tmp_path / "net.mps", *given)
    assert (status, err) == (0, "note: --input x: 108 of 108 numbers are NaN or infinite\n")


def test_warnings_of_layers_are_one_note(tmp_path: Path, capsys) -> None:
    nodes = [node("Conv", f"{'x' if not place else f'c{place}'} w", f"c{place + 1}", group=3) for place in range(3)]
    path = saved(model(nodes, {"x": ["n", 6, 8, 8]}, ("c3",), w=numbers(6, 2, 1, 1)), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        status, _, err = run_command(capsys, "convert", path, tmp_path / "net.mps")
    assert status == 0 and err.startswith("note: ") and err.count("\n") == 1
    assert "2 more layers" in err and "openmps lint" in err
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        err = run_command(capsys, "summary", tmp_path / "net.mps", "--image", "8x8x6")[2]
    assert err.startswith("note: ") and err.count("\n") == 1


def test_products_of_two_inputs_are_not_to_be_made_constant(tmp_path: Path, capsys) -> None:
    nodes = [node("Relu", "x", "r"), node("MatMul", "r x", "y")]
    path = saved(model(nodes, {"x": ["n", 4, 4]}), tmp_path)
    err = " ".join(_refused(capsys, "convert", path, tmp_path / "net.mps").split())
    assert "multiplies two values that depend on the model's inputs" in err
    assert "End the model before it, with --result r, or export it without" in err


def test_samples_of_other_channels(converted: Path, tmp_path: Path, capsys) -> None:
    np.save(tmp_path / "x.npy", numbers(2, 3, 7, 6))
    err = _refused(capsys, "lint", converted, "--samples", tmp_path / "x.npy")
    assert "must be [images, height, width, channels], with 3 channels, got 2x3x7x6" in err


def test_what_is_given_in_the_place_of_something_else(converted: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "model.onnx"
    err = _refused(capsys, "weights", "convert", converted, tmp_path / "w.npz", "--network", path, "--from", "keras")
    assert "--network must be left out" in err
    np.savez(tmp_path / "a.npz", a=np.ones(1))
    options = ("--network", path, "--from", "keras")
    err = _refused(capsys, "weights", "convert", tmp_path / "a.npz", tmp_path / "w.npz", *options)
    assert f"got the ONNX model {path}. Convert it first: openmps convert" in err
    assert "got an ONNX model. Convert it first" in _refused(capsys, "weights", "show", path)
    assert "must be a run folder, got a file" in _refused(capsys, "predict", converted, tmp_path / "x.png")
    assert "must be in a folder" in _refused(capsys, "weights", "convert", converted, tmp_path / "no" / "w.npz")


def test_a_folder_whose_name_is_no_class(converted: Path, tmp_path: Path, capsys) -> None:
    status, _, err = run_command(capsys, "export", "--swift", converted, tmp_path / "2Nets")
    assert status == 0 and "the class is called Model, as '2Nets' is no name for one; --name gives another" in err


def _header(shape: str, more: bytes = b"") -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + more


@pytest.mark.parametrize("content", [
    _header("(-2, 3, 6, 6)", bytes(864)), _header("(2.0, 3)", bytes(24)), _header("(9, 3)", bytes(12)),
    _header("(1 << 70, 3)", bytes(12)), _header("(1099511627776, 1099511627776)"), _header("(1, 3", bytes(12)),
    b"\x93NUMPY\x09\x00", b"\x93NUMPY\x01", b"",
], ids=lambda content: repr(content[50:90]))  # fmt: skip
def test_damaged_arrays(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = _bare(tmp_path)
    (tmp_path / "x.npy").write_bytes(content)
    err = _refused(capsys, "run", archive, "--input", f"image={tmp_path / 'x.npy'}", "--out", tmp_path)
    assert "x.npy must be an array in a .npy file" in err


@pytest.mark.parametrize("change", [lambda path: os.truncate(path, 200), lambda path: np.save(path, np.zeros(3))])
def test_an_input_that_others_change_meanwhile(
    change, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, path = numbers(500, 2, 2, 1), tmp_path / "x.npy"
    np.save(path, x)
    run = reader.OnnxModel.run
    monkeypatch.setattr(reader.OnnxModel, "run", lambda model, arrays: (change(path), run(model, arrays))[1])
    status, _, _ = run_command(capsys, "run", _bare(tmp_path), "--input", f"image={path}", "--out", tmp_path)
    assert status == 0
    np.testing.assert_allclose(np.load(tmp_path / "result.npy"), 2 * x, rtol=2e-3)
