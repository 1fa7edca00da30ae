"""The command line: what it prints, what it leaves, how it ends."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path

import forked
import numpy as np
import pytest

import openmps as mps
from commands import run_command
from openmps.cli import main
from openmps.training.run_folder import RunFolder

LAST_LINE = re.compile(r"test accuracy \d{1,3}\.\d %")
PNG = "PIL.Image"


COMMANDS = (
    *("train", "evaluate", "predict", "summary", "convert", "run", "export", "quantize", "lint", "explain-padding"),
    *("trace", "compare", "profile", "selftest", "doctor"),
    *("weights show", "weights convert", "golden make", "golden check"),
)


@pytest.fixture(scope="module")
def idx(tmp_path_factory):
    """Stripes of two directions as MNIST-style files, one of them gzipped."""
    folder = tmp_path_factory.mktemp("idx")
    images, labels = _stripes(40, 4, 6)
    for part, count in (("train", 40), ("t10k", 10)):
        header = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (count, 4, 6))
        content = header + images[:count].tobytes()
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(content))
        header = b"\0\0\x08\x01" + count.to_bytes(4, "big")
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + labels[:count].astype(np.uint8).tobytes())
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """The same as coloured PNG files in class folders."""
    Image = pytest.importorskip(PNG)
    folder = tmp_path_factory.mktemp("pictures")
    images, labels = _stripes(30, 8, 8)
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / f"kind [{label}]").mkdir(exist_ok=True)
        colours = np.repeat(image[..., np.newaxis], 3, axis=2)
        colours[..., 2] = 0
        Image.fromarray(colours).save(folder / f"kind [{label}]" / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory, idx):
    """A run that has learnt the stripes."""
    path = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "--data", str(idx), "--run", str(path), "--epochs", "12", "--batch-size", "8", "-q"]) == 0
    return path


pytestmark = pytest.mark.usefixtures("unflushed", "undrawn")


def _stripes(count, height, width):
    labels = np.arange(count) % 2
    stripes = np.zeros((2, height, width))
    stripes[0, ::2], stripes[1, :, ::2] = 200, 200
    noise = np.random.default_rng(0).integers(0, 55, (count, height, width))
    return (stripes[labels] + noise).astype(np.uint8), labels


# --- train ---------------------------------------------------------------------------------------------------------


def test_training_prints_a_line_an_epoch_and_ends_with_the_accuracy(capsys, tmp_path, idx):
    path = tmp_path / "parent" / "run"
    arguments = ("train", "--data", idx, "--run", path, "--epochs", 3, "--batch-size", 8, "--device", "cpu")
    status, out, err = run_command(capsys, *arguments)
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0] == "40 images to train with, 10 to test with: 6x4x1, 2 classes"
    assert lines[1].endswith(f"into {path}")
    assert [line.split("  ")[0] for line in lines[2:5]] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert len(lines) == 7
    assert LAST_LINE.fullmatch(lines[-1])
    assert "\x1b" not in out
    assert out.endswith(" %\n")
    folder = RunFolder.open(path)
    assert folder.config["data"] == {"path": str(idx), "skip_broken": False}
    assert folder.config["options"]["epochs"] == 3
    assert {"curve.png", "misclassified.png", "metrics.jsonl", "conv1_weights.dat"} < set(os.listdir(path))
    # The data were learnt from, so `evaluate` finds what the training found.
    assert run_command(capsys, "evaluate", path, "-q")[1].splitlines() == lines[-1:]


def test_quiet_training_prints_the_accuracy_only(capsys, tmp_path, idx):
    arguments = ("train", "--data", idx, "--run", tmp_path / "run", "--epochs", 1, "--batch-size", 8, "--quiet")
    status, out, err = run_command(capsys, *arguments)
    assert (status, err) == (0, "")
    assert LAST_LINE.fullmatch(out.rstrip("\n"))


def test_the_bundled_digits_and_a_folder_named_after_the_time(capsys, tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    status, out, _ = run_command(capsys, "train", "--epochs", 2, "--seed", 1)
    assert status == 0
    assert out.splitlines()[0].endswith("8x8x1, 10 classes")
    assert float(out.split()[-2]) > 85
    (path,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", path.name)
    assert RunFolder.open(path).config["data"]["path"] is None
    # The held-out fifth is the same one, because the seed is the run's.
    assert run_command(capsys, "evaluate", path, "-q")[1] == f"{out.splitlines()[-1]}\n"


def test_options_reach_the_training(capsys, tmp_path, idx):
    path = tmp_path / "run"
    status, *_ = run_command(
        capsys, "train", "--data", idx, "--run", path, "--epochs", 1, "--batch-size", 10, "--optimizer", "rmsprop",
        "--learning-rate", 0.002, "--format", "float16", "--decay", 0, "--seed", 7, "--warmup", 2,
        "--patience", 3, "--keep", "best", "--weight-decay", 0.01, "--average", 0.9,
        "--clip-norm", 0.5, "--accumulate", 2,
    )  # fmt: skip
    assert status == 0
    assert RunFolder.open(path).config["options"] == {
        "epochs": 1,
        "batch_size": 10,
        "learning_rate": 0.002,
        "decay": 0.0,
        "warmup": 2,
        "patience": 3,
        "keep": "best",
        "weight_decay": 0.01,
        "average": 0.9,
        "clip_norm": 0.5,
        "accumulate": 2,
        "optimizer": "rmsprop",
        "format": "float16",
        "seed": 7,
        "checkpoint_every": None,
        "checkpoints_kept": 2,
    }


def test_training_ends_where_nothing_gets_better(capsys, tmp_path, idx):
    path = tmp_path / "run"
    status, out, _ = run_command(
        capsys, "train", "--data", idx, "--run", path, "--epochs", 9, "--batch-size", 10, "--network", "lenet",
        "--learning-rate", 1e-30, "--patience", 2,
    )  # fmt: skip
    assert status == 0
    assert "ended after epoch 3: none has tested better than epoch 1" in out
    status, _, err = run_command(capsys, "train", "--resume", path, "--epochs", 12)
    assert (status, f"{path} was finished already\n" in err) == (0, True)
    assert run_command(capsys, "train", "--resume", path, "--patience", 3)[0] == 2


@pytest.mark.parametrize(("images", "epochs"), [(40, 25), (4000, 2)])
def test_epochs_without_the_option(images, epochs):
    from openmps.cli.training import _default_epochs
    from openmps.training.dataset import Dataset, DataSplit

    data = Dataset(np.zeros((images, 4, 4, 1), np.uint8), np.arange(images) % 2, ("a", "b"), "x")
    assert _default_epochs(DataSplit(data, data), 1) == epochs
    assert _default_epochs(DataSplit(data, data), images + 1) == 1000  # refused later, where the batch size is named


def test_class_folders_in_colour(capsys, tmp_path, pictures):
    path = tmp_path / "run"
    status, out, err = run_command(
        capsys, "train", "--data", pictures, "--run", path, "--epochs", 12, "--batch-size", 8,
        "--image-size", "5x6",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "24 images to train with, 6 to test with: 5x6x3, 2 classes"
    files = sorted(pictures.glob("*/*.png"))[:2]
    status, out, err = run_command(capsys, "predict", path, *files)
    assert status == 0
    assert out.splitlines()[0].startswith(f"{files[0]}: kind [0] ")
    assert err.splitlines()[:2] == [
        "note: the network sees RGB, pixels / 255",
        f"note: {files[0]} is 8x8x3, converted to the network's 5x6x3",
    ]
    status, out, _ = run_command(capsys, "evaluate", path)
    assert status == 0
    assert "kind [1]" in out
    assert "6 images, mean loss " in out
    assert "30 images, mean loss " in run_command(capsys, "evaluate", path, "--all")[1]


def test_grey_on_request_and_broken_images_left_out(capsys, tmp_path, pictures):
    import shutil

    folder = tmp_path / "pictures"
    shutil.copytree(pictures, folder)
    (folder / "kind [0]" / "broken.png").write_bytes(b"\x89PNG")
    arguments = ("train", "--data", folder, "--epochs", 1, "--batch-size", 8, "--channels", 1, "-q", "--run")
    status, _, err = run_command(capsys, *arguments, tmp_path / "first")
    assert status == 2
    assert "broken.png must be a whole image" in err
    assert "--skip-broken leaves such files out, skip_broken=True in Python" in err
    status, _, err = run_command(capsys, *arguments, tmp_path / "second", "--skip-broken")
    assert status == 0
    assert err.startswith("note: 1 broken images left out, the first: ")
    status, out, err = run_command(capsys, "evaluate", tmp_path / "second")
    assert (status, err.count("note: 1 broken")) == (0, 1)
    assert "6 images, mean loss" in out


def test_a_loss_that_is_not_finite(capsys, tmp_path, idx):
    path = tmp_path / "run"
    status, out, err = run_command(
        capsys, "train", "--data", idx, "--run", path, "--epochs", 3, "--batch-size", 8, "--learning-rate", 1e30
    )
    assert status == 2
    assert err.startswith("error: ")
    assert "must be finite" in err
    assert len(err.splitlines()) == 1
    assert not LAST_LINE.search(out)
    assert run_command(capsys, "evaluate", path, "-q")[0] == 0


def test_ctrl_c_leaves_a_run_that_can_be_evaluated(capsys, tmp_path, idx):
    path = tmp_path / "run"
    arguments = ["train", "--data", str(idx), "--run", str(path), "--epochs", "100000", "--batch-size", "8"]
    with (tmp_path / "errors").open("w+") as errors:
        child = forked.Process("-m", "openmps", *arguments, stdout=subprocess.PIPE, stderr=errors, has_openmps=True)
        while not child.stdout.readline().startswith("epoch 2/"):
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        with child.stdout:
            out = child.stdout.read()
        assert child.wait() == 130
        errors.seek(0)
        err = errors.read()
    assert "Traceback" not in out + err
    assert re.search(rf"note: interrupted: {path} holds the weights after \d+ iterations", err)
    status, out, _ = run_command(capsys, "evaluate", path)
    assert status == 0
    assert LAST_LINE.fullmatch(out.splitlines()[-1])
    assert RunFolder.open(path).read_metrics()[-1]["event"] == "interrupted"


def test_ctrl_c_while_the_program_starts(tmp_path, idx):
    program = (
        "import signal, sys, threading\n"
        "import openmps.training.data\n"
        "from openmps.cli import main\n"
        "openmps.training.data.load_dataset = lambda *a, **k: signal.raise_signal(signal.SIGINT)\n"
        "sys.exit(main(['train']))\n"
    )
    child = forked.run("-c", program, cwd=tmp_path, has_openmps=True)
    assert (child.returncode, child.stdout, child.stderr.strip()) == (130, "", "")


@pytest.mark.parametrize("module", ["typer", "openmps.cli", "openmps.cli.prediction", "torch", "torch.nn.functional"])
def test_ctrl_c_while_the_program_is_imported(tmp_path, module):
    """Ctrl-C strikes when the command's script imports what it needs, as the entry point of pyproject.toml does it."""
    program = (
        "import signal, sys\n"
        "class Strike:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Strike())\n"
        "sys.argv = ['openmps', 'train', '--data', '.']\n"
        "from openmps.__main__ import run\n"
        "sys.exit(run())\n"
    )
    child = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout, child.stderr.strip()) == (130, "", "")


def test_ctrl_c_where_the_engine_would_abort(tmp_path):
    """Its initialization in C++ aborts the process where an exception comes out of Python."""
    engine = "import os, signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nfinally:\n    os.abort()\n"
    (tmp_path / "torch.py").write_text(engine)
    program = "import sys\nsys.argv[1:] = ['train']\nfrom openmps.__main__ import run\nsys.exit(run())\n"
    child = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout, child.stderr) == (130, "", "")


def test_the_command_is_the_entry_point():
    scripts = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"openmps": "openmps.__main__:run"}


# --- train --resume ------------------------------------------------------------------------------------------------


def _outcome(path):
    """What must be the same, to the byte: weights, and metrics but for what the clock says."""
    folder = RunFolder.open(path)
    lines = [{**line, "seconds": 0, "images_per_second": 0} for line in folder.read_metrics()]
    return folder.weights_path.read_bytes(), lines


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory, idx):
    """A run that Ctrl-C ended after a few of its 20 batches, and what was said."""
    from openmps.training.progress import TrainingProgress

    def update(self, status):
        if status.iteration == 7:
            signal.raise_signal(signal.SIGINT)

    path = tmp_path_factory.mktemp("stopped") / "stopped"
    arguments = (
        "train",
        "--data",
        idx,
        "--run",
        path,
        "--epochs",
        4,
        "--batch-size",
        8,
        "--seed",
        3,
        "--device",
        "cpu",
    )
    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(err):
        patch.setattr(TrainingProgress, "update", update)
        status = main([*map(str, arguments), "--checkpoint-every", "5", "--keep-checkpoints", "3"])
    assert status == 130
    assert f"note: openmps train --resume {path} goes on from there" in err.getvalue()
    return path


@pytest.fixture
def stopped(tmp_path, stopped_once):
    """A copy of that run."""
    return shutil.copytree(stopped_once, tmp_path / "runs" / "stopped")


def test_a_stopped_run_goes_on_to_the_same_bytes(capsys, tmp_path, idx, stopped, monkeypatch):
    whole = tmp_path / "whole"
    arguments = ("train", "--data", idx, "--epochs", 4, "--batch-size", 8, "--seed", 3, "--device", "cpu", "-q")
    arguments += ("--run", whole)
    expected = run_command(capsys, *arguments)[1]
    monkeypatch.chdir(tmp_path)
    done = RunFolder.open(stopped).checkpoints.steps()[-1]
    status, out, err = run_command(capsys, "train", "--resume", "stopped")  # by its name in runs
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0] == "40 images to train with, 10 to test with: 6x4x1, 2 classes"
    assert lines[1].endswith(f"into runs/stopped, from iteration {done} on")
    assert lines[-2].startswith("20 iterations in ")
    assert f"{lines[-1]}\n" == expected
    assert _outcome(stopped) == _outcome(whole)
    assert RunFolder.open(stopped).checkpoints.steps() == [10, 15, 20]


def test_a_finished_run_says_so_and_more_epochs_go_on(capsys, tmp_path, idx):
    run, longer = tmp_path / "run", tmp_path / "longer"
    options = ("--data", idx, "--batch-size", 8, "--decay", 0, "-q")
    accuracy = run_command(capsys, "train", "--run", run, "--epochs", 2, *options)[1]
    before = _outcome(run)
    status, out, err = run_command(capsys, "train", "--resume", run, "-q")
    assert (status, out) == (0, accuracy)
    assert err == f"note: {run} was finished already; --epochs with a higher number goes on with it\n"
    assert _outcome(run) == before
    status, _, err = run_command(capsys, "train", "--resume", run, "--epochs", 1)
    assert status == 2
    assert "epochs must be at least the 2 that the run was started with, got 1" in err
    assert _outcome(run) == before
    status, out, err = run_command(capsys, "train", "--resume", run, "--epochs", 5)
    assert (status, err) == (0, "")
    assert [line.split("  ")[0] for line in out.splitlines()[2:5]] == ["epoch 3/5", "epoch 4/5", "epoch 5/5"]
    run_command(capsys, "train", "--run", longer, "--epochs", 5, *options)
    assert _outcome(run) == _outcome(longer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "9"], "--batch-size must be 8, as the run was started with, got 9. Leave it out"),
        (["--learning-rate", "0.5"], "--learning-rate must be 0.001, as"),
        (["--decay", "0"], "--decay must be 0.3, as"),
        (["--optimizer", "sgd"], "--optimizer must be adam, as the run was started with, got sgd"),
        (["--format", "float16"], "--format must be float32, as"),
        (["--seed", "0"], "--seed must be 3, as"),
        (["--channels", "3"], "--channels must be 1, as"),
        (["--image-size", "4x6"], "--image-size must be 6x4, as the run was started with, got 4x6"),
        (["--skip-broken"], "--skip-broken must be False, as"),
        (["--augment", "crop:1"], "--augment must be left out, as the run was started without it, got crop:1"),
        (["--run", "other"], "--run must be left out: the run goes on in its own folder"),
        (["--epochs", "3"], "epochs must be at least the 4"),
    ],
)
def test_options_that_contradict_the_run(capsys, stopped, arguments, message):
    before = _outcome(stopped)
    status, out, err = run_command(capsys, "train", "--resume", stopped, "-q", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert _outcome(stopped) == before


def test_options_that_say_the_same_are_accepted(capsys, stopped, idx):
    status, _, err = run_command(
        capsys, "train", "--resume", stopped, "--batch-size", 8, "--optimizer", "adam", "--format", "float32",
        "--learning-rate", 0.001, "--image-size", "6x4", "--channels", 1, "--epochs", 4, "--device", "cpu",
        "--data", idx, "--seed", 3, "--checkpoint-every", 3, "-q",
    )  # fmt: skip
    assert (status, err) == (0, "")
    assert RunFolder.open(stopped).checkpoints.steps() == [15, 18, 20]


def test_other_data_and_damaged_checkpoints(capsys, tmp_path, stopped, idx):
    import shutil

    moved = tmp_path / "moved"
    shutil.copytree(idx, moved)
    labels = moved / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\0")
    status, _, err = run_command(capsys, "train", "--resume", stopped, "--data", moved)
    assert status == 2
    assert "must be of this training: its data.training.sha256 is" in err
    folder = RunFolder.open(stopped).checkpoints
    *_, older, newest = folder.steps()
    folder.file(newest).write_bytes(b"half")
    status, _, err = run_command(capsys, "train", "--resume", stopped, "-q")
    assert status == 0
    assert err.startswith(f"warning: Checkpoint: {folder.file(newest)} is damaged")
    assert err.endswith(f"Going back to the checkpoint of step {older}.\n")
    for step in folder.steps():
        folder.file(step).write_bytes(b"half")
    status, _, err = run_command(capsys, "train", "--resume", stopped, "-q")
    assert status == 2
    assert "must hold a whole checkpoint" in err


# --- evaluate, predict, summary ------------------------------------------------------------------------------------


def test_evaluation_counts_every_test_image(capsys, run):
    status, out, err = run_command(capsys, "evaluate", run)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    rows = [line.split() for line in lines[2:4]]
    assert [row[0] for row in rows] == ["0", "1"]
    assert sum(int(cell) for row in rows for cell in row[1:3] if cell != ".") == 10
    assert lines[-1] == "test accuracy 100.0 %"


def test_evaluation_on_other_data(capsys, tmp_path, run, pictures):
    folder = tmp_path / "others"
    folder.mkdir()
    for label in (0, 1):
        (folder / str(label)).symlink_to(pictures / f"kind [{label}]")
    status, out, _ = run_command(capsys, "evaluate", run, "--data", folder, "--all")
    assert status == 0
    assert "30 images, mean loss " in out
    status, _, err = run_command(capsys, "evaluate", run, "--data", pictures)
    assert status == 2
    assert "class_names must be those of the network, 0, 1, got kind [0], kind [1]" in err


def _confusion(capsys, names):
    from openmps.cli.evaluation import _print_confusion
    from openmps.training.metrics import ConfusionCounts

    counts = ConfusionCounts(names)
    counts.update(np.array([1, 1, 2]), np.array([4, 4, 2]))
    _print_confusion(counts)
    return capsys.readouterr().out


def test_many_classes_are_listed_by_their_mistakes(capsys):
    assert _confusion(capsys, [f"[b]{n}" for n in range(30)]) == "[b]1 taken for [b]4: 2\n"


def test_long_names_of_classes_go_by_numbers_in_the_table(capsys):
    lines = _confusion(capsys, [f"a kind of [thing] {n}" for n in range(12)]).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["class", *map(str, range(12)), "right"]
    assert lines[3].split()[:9] == ["a", "kind", "of", "[thing]", "1", "1", ".", ".", "."]


def test_what_every_command_prints_fits_80_columns(capsys, tmp_path, run, idx):
    """To a pipe; the paths and names that a user gives are never cut."""
    pytest.importorskip(PNG).fromarray(np.zeros((4, 6), np.uint8)).save(tmp_path / "a.png")
    training = ("train", "--data", idx, "--run", tmp_path / "r", "--epochs", 1, "--batch-size", 8)
    deep = ("train", "--run", tmp_path / "d", "--network", "inception", "--epochs", 1, "--batch-size", 400)
    commands = [
        training, deep, ("evaluate", tmp_path / "d"), ("summary", tmp_path / "d"), ("evaluate", run), ("summary", run),
        ("predict", run, tmp_path / "a.png"), ("explain-padding", "224x200"), ("explain-padding", 1000, "full"),
        ("explain-padding", "7", "onnx:100,100,100,100", "--kernel", 25, "--dilation", 3), ("--help",),
        ("weights", "convert", tmp_path / "d", tmp_path / "w.npz", "--to", "keras"),
        ("weights", "show", tmp_path / "d"), ("weights", "--help"), *((*name.split(), "--help") for name in COMMANDS),
    ]  # fmt: skip
    for command in commands:
        status, out, _ = run_command(capsys, *command)
        assert status == 0
        lines = [line.replace(str(tmp_path), "").replace(str(run), "") for line in out.splitlines()]
        assert [line for line in lines if len(line) > 80] == [], command


def test_predictions_of_files(capsys, tmp_path, run):
    Image = pytest.importorskip(PNG)
    images, labels = _stripes(2, 4, 6)
    files = [tmp_path / f"{index}.png" for index in range(2)]
    for file, image in zip(files, images, strict=True):
        Image.fromarray(image).save(file)
    large = tmp_path / "large.png"
    Image.fromarray(np.repeat(np.repeat(images[1], 4, axis=0), 4, axis=1)).save(large)
    status, out, err = run_command(capsys, "predict", run, *files, large)
    assert status == 0
    assert err.splitlines() == [
        "note: the network sees grey, pixels / 255",
        f"note: {large} is 24x16x1, converted to the network's 6x4x1",
    ]
    lines = out.splitlines()
    for line, file, label in zip(lines, [*files, large], [*labels, labels[1]], strict=True):
        found = re.fullmatch(rf"{re.escape(str(file))}: {label} (\S+) %, {1 - label} (\S+) %", line)
        assert float(found[1]) > 50
        assert float(found[1]) + float(found[2]) == pytest.approx(100, abs=0.11)
    assert run_command(capsys, "predict", run, files[0], "--top", 1)[1].count("%") == 1


def test_broken_files_are_named_and_the_others_predicted(capsys, tmp_path, run):
    Image = pytest.importorskip(PNG)
    good, broken, missing = (tmp_path / name for name in ("good.png", "broken.png", "missing.png"))
    Image.fromarray(_stripes(1, 4, 6)[0][0]).save(good)
    broken.write_bytes(b"no image")
    status, out, err = run_command(capsys, "predict", run, broken, missing, good)
    assert status == 2
    assert out.startswith(f"{good}: 0 ")
    assert len(err.splitlines()) == 3
    assert f"error: {broken} must be a whole image" in err
    assert f"error: {missing} must be a file, got nothing there" in err


def test_the_summary_has_a_line_a_layer(capsys, run):
    status, out, err = run_command(capsys, "summary", run)
    assert (status, err) == (0, "")
    _, body, total = re.split(r"\n-+\n", out)
    layers = body.splitlines()
    labels = ["conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "fc1", "relu3", "fc2", "softmax"]
    assert [line.split()[0] for line in layers if line[0] != " "] == labels
    assert "6x4x1" in layers[0]
    assert "same, centered, remainder top left" in layers[1]
    arrays = RunFolder.open(run).load_weights()
    assert f"{sum(array.size for array in arrays.values()):,}" in total


def test_the_summary_on_a_terminal(capsys, run, monkeypatch):
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "200")):
        monkeypatch.setenv(name, value)
    out = run_command(capsys, "summary", run)[1]
    assert "MPSCNNFullyConnectedNode" in out
    assert "\x1b[1m" in out


# --- explain-padding -----------------------------------------------------------------------------------------------


def test_padding_is_explained(capsys):
    from openmps.core.padding.report import explain_padding

    status, out, _ = run_command(capsys, "explain-padding", 7, "--kernel", 2, "--stride", 2)
    assert status == 0
    assert out == f"{explain_padding(7, kernel=2, stride=2, policy='same')}\n"
    arguments = ("explain-padding", "28x20", "pytorch:1,2", "--kernel", "5x3", "--stride", 2, "--dilation", "1x2")
    status, out, _ = run_command(capsys, *arguments)
    assert status == 0
    policy = {"kernel": (5, 3), "stride": (2, 2), "dilation": (1, 2), "policy": "pytorch:1,2"}
    assert out == f"{explain_padding((28, 20), **policy)}\n"
    status, out, _ = run_command(capsys, "explain-padding", 4, "full", "--stride", 2, "--backwards")
    assert status == 0
    assert "reverse filter" in out


# --- wrong usage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain-padding", "7", "foo"], "error: MPSGetPaddingPolicy: policy must be a known name, got 'foo'"),
        (["explain-padding", "7q"], "'7q' is no size; write 28x20 or 28"),
        (["explain-padding", "7", "--kernel", "1x2x3"], "'1x2x3' is no size"),
        (["explain-padding", "0"], "error: "),
        (["train", "--data", "/nowhere"], "/nowhere must be a folder, got nothing there"),
        (["train", "--image-size", "big"], "'big' is no size"),
        (["train", "--image-size", "0x5"], "'0x5' must have lengths of 1 to 65535"),
        (["train", "--run", "."], "'.' is no name of a new folder"),
        (["train", "--run", "runs/.."], "'runs/..' is no name of a new folder"),
        (["train", "--channels", "2"], "2 is neither 1 (grey) nor 3 (red green blue)"),
        (["train", "--epochs", "0"], "--epochs"),
        (["train", "--learning-rate", "0"], "error: --learning-rate must be above 0 and finite"),
        (["train", "--image-size", "9x9"], "error: --image-size must be that of the images of digits"),
        (["train", "--image-size", "9"], "8x8, got 9x9. Leave it out: it is for class folders."),
        (["train", "--channels", "3"], "error: --channels must be that of the images of digits"),
        (["train", "--skip-broken"], "error: --skip-broken must be False where no image has a file of its own"),
        (["train", "--decay", "nan"], "decay"),
        (["train", "--optimizer", "lion"], "lion"),
        (["train", "--device", "tpu"], "error: --device"),
        (["train", "--unknown"], "--unknown"),
        (["train", "--resume", "/nowhere"], "error: /nowhere must be a folder, got nothing there"),
        (["train", "--resume", "nowhere"], "error: nowhere must be a folder, got nothing there"),
        (["train", "--checkpoint-every", "0"], "--checkpoint-every"),
        (["train", "--keep-checkpoints", "0"], "--keep-checkpoints"),
        (["evaluate", "/nowhere"], "error: /nowhere must be a folder, got nothing there"),
        (["evaluate", "nowhere"], "nowhere must be a folder, got nothing there. In runs there are none."),
        (["summary", "nowhere"], "nowhere must be a folder, got nothing there. In runs there are none."),
        (["predict", "nowhere", "a.png"], "nowhere must be a folder, got nothing there. In runs there are none."),
        (["predict", "."], "IMAGE"),
        (["summary"], "RUN"),
        (["nothing"], "nothing"),
    ],
)
def test_wrong_usage_is_one_message_and_status_2(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, out, err = run_command(capsys, *arguments)
    assert status == 2
    assert message.lower() in err.lower()
    assert "Traceback" not in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_batch_that_is_larger_than_the_data(capsys, tmp_path, idx):
    status, _, err = run_command(capsys, "train", "--data", idx, "--run", tmp_path / "run", "--batch-size", 41)
    assert status == 2
    assert (
        err
        == "error: --batch-size must be at most the 40 images that there are to train with, got 41. Use 40 or less\n"
    )
    assert not (tmp_path / "run").exists()


def test_a_run_is_never_overwritten(capsys, idx, run):
    before = (run / "weights.safetensors").read_bytes()
    status, _, err = run_command(capsys, "train", "--data", idx, "--run", run, "--batch-size", 8)
    assert status == 2
    assert "must be new: a run is never overwritten" in err
    assert (run / "weights.safetensors").read_bytes() == before


def test_help_and_version(capsys):
    for arguments in ([], ["--help"], ["train", "--help"], ["explain-padding", "-h"]):
        status, out, err = run_command(capsys, *arguments)
        assert status == (0 if arguments else 2)
        assert "Usage: openmps" in out + err
    status, out, _ = run_command(capsys, "--version")
    assert (status, out[:8]) == (0, "openmps ")


def test_help_and_version_do_not_import_the_engine():
    """In one process, which has imported whatever those before have: the first that imports it is told."""
    program = (
        "import sys\n"
        "from openmps.cli import main\n"
        "for arguments in sys.argv[1:]:\n"
        "    print('##', arguments, flush=True)\n"
        "    if main(arguments.split()) or 'torch' in sys.modules:\n"
        "        sys.exit(arguments)\n"
    )
    commands = ["--version", "--help", *(f"{name} --help" for name in COMMANDS)]
    child = subprocess.run([sys.executable, "-c", program, *commands], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    told = dict(part.split("\n", 1) for part in child.stdout.split("## ")[1:])
    assert list(told) == commands
    for arguments, text in told.items():
        assert text.lstrip().startswith("openmps " if arguments == "--version" else "Usage: openmps")


def test_the_networks_that_help_lists_are_those_that_there_are():
    from openmps.cli.training_options import NETWORK_NAMES
    from openmps.training import NETWORKS
    from openmps.training.network import DEFAULT_NETWORK

    assert tuple(NETWORKS) == NETWORK_NAMES
    assert NETWORK_NAMES[0] == DEFAULT_NETWORK


def test_output_that_nobody_reads_any_more(run):
    end, stream = os.pipe()
    os.close(end)
    child = forked.run("-m", "openmps", "summary", run, stdout=stream, has_openmps=True)
    os.close(stream)
    assert (child.returncode, child.stderr) == (1, "")


def test_options_that_mnist_style_files_do_not_take(capsys, tmp_path, idx):
    arguments = ("train", "--data", idx, "--run", tmp_path / "run", "--epochs", 1, "--batch-size", 8, "-q")
    for options, message in (
        (("--image-size", "4x6"), "error: --image-size must be that of the images of idx"),
        (("--channels", 3), "error: --channels must be that of the images of idx"),
        (("--skip-broken",), "error: --skip-broken must be False"),
    ):
        status, _, err = run_command(capsys, *arguments, *options)
        assert status == 2
        assert err.startswith(message)
        assert not (tmp_path / "run").exists()
    assert run_command(capsys, *arguments, "--image-size", "6x4", "--channels", 1)[0] == 0


def test_errors_name_options_and_files(capsys, tmp_path, pictures):
    import shutil

    folder = tmp_path / "pictures"
    shutil.copytree(pictures, folder)
    (folder / "kind [0]" / "x.webp").write_bytes(b"")
    pytest.importorskip(PNG).fromarray(np.zeros((3, 3), np.uint8)).save(folder / "kind [1]" / "zz.png")
    arguments = ("train", "--data", folder, "--run", tmp_path / "run", "--epochs", 1, "--batch-size", 8, "-q")
    err = run_command(capsys, *arguments)[2]
    assert err.startswith(f"error: {folder / 'kind [0]' / 'x.webp'} must be an image")
    assert "take it away, or give --skip-broken." in err
    err = run_command(capsys, *arguments, "--skip-broken")[2]
    assert err.startswith(f"error: {folder / 'kind [1]' / 'zz.png'} must be 8x8 as ")
    assert "Give --image-size WIDTHxHEIGHT to resize" in err
    status, _, err = run_command(capsys, *arguments, "--skip-broken", "--image-size", 8)
    assert (status, err[:44]) == (0, "note: 1 broken images left out, the first: /")


def test_a_training_that_diverges(capsys, tmp_path, idx, monkeypatch):
    from openmps.training.metrics import RunningMetrics

    path = tmp_path / "run"
    arguments = ("train", "--data", idx, "--run", path, "--epochs", 3, "--batch-size", 8)
    monkeypatch.setattr(RunningMetrics, "loss", property(lambda self: 2.8e26 if self._seen > 40 else 0.5))
    status, out, err = run_command(capsys, *arguments)
    assert status == 2
    assert "loss must be below 1e+09" in err and "got 2.8e+26 in epoch 2. Training diverges: lower" in err
    assert not LAST_LINE.search(out)
    monkeypatch.undo()
    assert run_command(capsys, "evaluate", path, "-q")[0] == 0  # the weights of the first epoch


def test_runs_go_by_their_names(capsys, tmp_path, run, monkeypatch):
    import shutil

    shutil.copytree(run, tmp_path / "runs" / "first")
    (tmp_path / "runs" / "no run").mkdir()
    monkeypatch.chdir(tmp_path)
    pytest.importorskip(PNG).fromarray(np.zeros((4, 6), np.uint8)).save("a.png")
    for command in (("evaluate", "first", "-q"), ("summary", "first"), ("predict", "first", "a.png")):
        assert run_command(capsys, *command)[0] == 0
        status, _, err = run_command(capsys, command[0], "frist", *command[2:])
        assert status == 2
        assert err == "error: frist must be a folder, got nothing there. In runs there are: first.\n"


TRAIN = "train --data {data} --epochs 1 --batch-size 8 --run {run}/other"
OUTPUTS = {
    # What Python makes of its streams where it starts so, and what they can be asked to take.
    "an encoding that lacks the names": (
        "sys.stdout.reconfigure(encoding='ascii')",
        ("predict {run} {run}/a.png", TRAIN),
    ),
    "closed": ("os.close(1); sys.stdout = None", ("summary {run}", TRAIN)),
    "a device that is full": (
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 1)",
        ("summary {run}", "predict {run} {run}/a.png"),
    ),
    "closed for errors, too": ("os.close(2); sys.stderr = None", ("predict {run} nowhere.png",)),
}
OTHER_STREAMS = """
import os, sys
{change}
from openmps.cli import main
from openmps.formats import atomic
from openmps.training import session
atomic._sync = session.draw_curve = session.draw_misclassified = lambda *arguments, **named: None
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("way", OUTPUTS)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="devices and shells of Unix")
def test_output_that_cannot_be_written(tmp_path, run, way):
    """No traceback, whatever standard output is."""
    import json

    path = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(run, path)
    described = json.loads((path / "run.json").read_text())
    described["class_names"] = ["日本", "a"]
    (path / "run.json").write_text(json.dumps(described))
    pytest.importorskip(PNG).fromarray(np.zeros((4, 6), np.uint8)).save(path / "a.png")
    change, commands = OUTPUTS[way]
    places = {"run": path, "data": RunFolder.open(run).config["data"]["path"]}
    for command in commands:
        arguments = [part.format(**places) for part in command.split()]
        child = forked.run("-c", OTHER_STREAMS.format(change=change), *arguments, has_openmps=True)
        assert "Traceback" not in child.stderr and "Exception ignored" not in child.stderr, child.stderr
        assert child.returncode == {"a device that is full": 1, "closed for errors, too": 2}.get(way, 0), child.stderr
        if way == "a device that is full":
            assert child.stderr.endswith("error: the output could not be written: No space left on device\n")


def test_two_quick_ctrl_cs_say_where_the_weights_are(capsys, tmp_path, idx, monkeypatch):
    from openmps.training.progress import TrainingProgress

    def update(self, status):
        if status.iteration == 7:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingProgress, "update", update)
    path = tmp_path / "run"
    status, _, err = run_command(capsys, "train", "--data", idx, "--run", path, "--epochs", 9, "--batch-size", 8)
    assert status == 130
    assert err == (
        f"note: interrupted: {path} holds the weights that were saved last\n"
        f"note: openmps train --resume {path} goes on from there\n"
    )
    assert run_command(capsys, "evaluate", path, "-q")[0] == 0


@pytest.mark.parametrize("command", ["evaluate", "summary", "train --resume"])
def test_a_run_that_nothing_may_be_looked_at_in(capsys, tmp_path, monkeypatch, command):
    path, stat = tmp_path / "closed" / "run", os.stat

    def refuse(path, **options):
        if str(path).endswith("closed/run"):
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    status, _, err = run_command(capsys, *command.split(), path)
    assert (status, err) == (2, f"error: {path} could not be read, got Permission denied\n")


def test_warnings_of_openmps_are_one_plain_line(capsys, monkeypatch):
    import warnings

    import openmps.cli
    from openmps.errors import MPSTrainingWarning

    def command(**options):
        warnings.warn("nothing is learnt", MPSTrainingWarning, stacklevel=1)

    monkeypatch.setattr(openmps.cli, "app", command)
    show = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        main([])
    assert capsys.readouterr().err == "warning: nothing is learnt\n"
    assert warnings.showwarning is show


# --- export -----------------------------------------------------------------------------------------------------------


def test_a_run_is_exported_as_swift(run, tmp_path, capsys):
    assert main(["export", "--swift", str(run), str(tmp_path / "stripes"), "--half"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'stripes' / 'Stripes'}.swift and 4 file(s) of weights\n"
    text = (tmp_path / "stripes" / "Stripes.swift").read_text()
    assert "public final class Stripes {" in text
    assert "//  Images are 6x4" in text
    assert "0 to 255 stand for 0 to 1" in text
    assert "public static let preprocessing = StripesPreprocessing(order: " in " ".join(text.split()).replace("( ", "(")
    assert "dataType: .float16" in text
    assert main(["export", "--swift", str(run), str(tmp_path / "train"), "--training", "--name", "Train"]) == 0
    assert "MPSCNNConvolutionGradientNode" in (tmp_path / "train" / "Train.swift").read_text()


def test_the_preprocessing_of_a_run_is_in_its_source(run, tmp_path):
    from openmps.training import RunFolder
    from openmps.training.inference import described_preprocessing
    from openmps.training.preprocessing import Preprocessing

    folder = RunFolder.open(shutil.copytree(run, tmp_path / "other"))
    seen = described_preprocessing(folder)
    other = Preprocessing(seen.order, tuple(100.0 + place for place in range(len(seen.mean))), seen.scale)
    folder.amend(other.describe())
    assert main(["export", "--swift", str(folder.path), str(tmp_path / "Out")]) == 0
    text = (tmp_path / "Out" / "Out.swift").read_text()
    assert f"{other}, as float16 or float32." in text
    assert f'OutPreprocessing(order: "{other.order}", mean: [100.0' in text
    assert "0 to 255 stand for" not in text


def test_an_archive_is_exported_as_swift(tmp_path, capsys):
    node = mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode(mps.Handle("x")))
    mps.MPSKeyedArchiver.archive(mps.MPSNNGraph(mps.mtl_device("cpu"), node.result_image), tmp_path / "graph")
    assert main(["export", "--swift", str(tmp_path / "graph"), str(tmp_path / "Out")]) == 0
    assert (tmp_path / "Out" / "Out.swift").exists()
    assert main(["export", "--swift", str(tmp_path / "graph"), str(tmp_path / "Out")]) == 2
    assert "must be new, got something there. --force replaces it" in capsys.readouterr().err


def test_an_export_replaces_only_what_it_writes_anew(tmp_path, capsys):
    def export(slope):
        node = mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode(mps.Handle("x")), slope)
        mps.MPSKeyedArchiver.archive(mps.MPSNNGraph(mps.mtl_device("cpu"), node.result_image), tmp_path / "graph")
        return main(["export", "--swift", str(tmp_path / "graph"), str(tmp_path / "Out"), "--force"])

    texts = [(export(slope), (tmp_path / "Out" / "Out.swift").read_text()) for slope in (0.25, 0.5)]
    assert [status for status, _ in texts] == [0, 0] and texts[0] != texts[1]
    capsys.readouterr()
    (tmp_path / "Out" / "Mine.swift").write_text("mine")
    assert export(0.75) == 2
    assert "must hold no files but those that are written anew, got Mine.swift" in capsys.readouterr().err
    assert {each.name for each in tmp_path.iterdir()} == {"graph", "Out"}
    assert (tmp_path / "Out" / "Mine.swift").read_text() == "mine"
    assert (tmp_path / "Out" / "Out.swift").read_text() == texts[1][1]


def test_a_graph_is_exported_as_onnx(run, tmp_path, capsys):
    pytest.importorskip("onnx")
    from openmps.formats import onnx
    from openmps.training import Classifier

    out = tmp_path / "net.onnx"
    assert main(["export", "--onnx", str(run), str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: ")
    model, classifier = onnx.network(out).model(mps.mtl_device("cpu")), Classifier.open(run, mps.mtl_device("cpu"))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 6, classifier.shape.channels), np.uint8)
    (found,) = model.run({model.inputs[0].name: np.float32(pixels / 255).transpose(0, 3, 1, 2)}).values()
    np.testing.assert_allclose(found.reshape(2, -1), classifier.probabilities(pixels), atol=1e-5)
    mps.MPSKeyedArchiver.archive(model.graph, tmp_path / "net.mps")
    again = [str(tmp_path / "net.mps"), str(tmp_path / "again.onnx")]
    assert main(["export", "--onnx", *again]) == 2
    assert "is needed: the file leaves the size of" in capsys.readouterr().err
    assert main(["export", "--onnx", *again, "--image", f"6x4x{pixels.shape[3]}"]) == 0
    assert main(["export", "--onnx", *again, "--image", f"6x4x{pixels.shape[3]}"]) == 2
    assert "must be new" in capsys.readouterr().err
    assert main(["export", "--swift", str(tmp_path / "net.mps"), str(tmp_path / "Swift")]) == 0
    model.save(tmp_path / "net.mps")  # which says how large its images are
    assert main(["export", "--onnx", str(tmp_path / "net.mps"), str(tmp_path / "third.onnx")]) == 0


@pytest.mark.skipif(find_spec("coremltools") is None, reason="coremltools is not installed")
def test_a_graph_is_exported_for_core_ml(run, tmp_path, capsys):
    from openmps.formats import coreml
    from openmps.training import Classifier

    classifier = Classifier.open(run, mps.mtl_device("cpu"))
    pixels = np.random.default_rng(0).integers(0, 256, (1, 4, 6, 1), np.uint8)
    for option, most in ((), 1e-5), (("--half",), 1e-2):
        out = tmp_path / f"net{''.join(option)}.mlpackage"
        assert main(["export", "--coreml", str(run), str(out), *option]) == 0
        assert capsys.readouterr().out.startswith(f"{out}: ")
        network = coreml.network(out)
        assert network.class_labels == classifier.class_names and network.image_inputs == (("image", "GRAYSCALE"),)
        (found,) = network.model(mps.mtl_device("cpu")).run({"image": pixels.transpose(0, 3, 1, 2)}).values()
        np.testing.assert_allclose(found.reshape(1, -1), classifier.probabilities(pixels), atol=most)
    assert main(["export", "--coreml", str(run), str(tmp_path / "many.mlpackage"), "--batch", "3"]) == 0
    assert "the input is an array" in capsys.readouterr().err
    assert coreml.network(tmp_path / "many.mlpackage").image_inputs == ()
    assert main(["export", "--coreml", str(run), str(tmp_path / "net.mps")]) == 2
    assert "must end in .mlpackage" in capsys.readouterr().err
    assert main(["convert", str(out), str(tmp_path / "net.mps")]) == 0
    assert main(["export", "--coreml", str(tmp_path / "net.mps"), str(tmp_path / "again.mlpackage")]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["RUN", "OUT"], "--swift"),
        (["--swift", "--onnx", "RUN", "OUT"], "--swift, --onnx, --mlx, --coreml or --coreai"),
        (["--onnx", "--batch", "2", "RUN", "OUT"], "is for --coreml and --coreai"),
        (["--coreai", "--half", "RUN", "OUT"], "is for --swift and --coreml"),
        (["--coreai", "RUN", "OUT"], "must end in .aimodel"),
        (["--coreml", "--name", "Net", "RUN", "OUT"], "is for --swift and --mlx"),
        (["--coreml", "--samples", "a.npz", "RUN", "OUT"], "is for --swift: leave it out"),
        (["--onnx", "--half", "RUN", "OUT"], "is for --swift"),
        (["--mlx", "--training", "RUN", "OUT"], "is for --swift: leave it out"),
        (["--mlx", "--name", "no name", "RUN", "OUT"], "a name for a class"),
        (["--swift", "--image", "6x4x1", "RUN", "OUT"], "are for ONNX, MLX, Core ML, Core AI and --capture"),
        (["--onnx", "--image", "6x4", "RUN", "OUT"], "is no size"),
        (["--swift", "--half", "--training", "RUN", "OUT"], "leave one of them out"),
        (["--swift", "nothing", "OUT"], "nothing there"),
        (["--swift", "TEXT", "OUT"], "TEXT"),
        (["--swift", "--training", "TEXT", "OUT"], "an archive holds one graph"),
        (["--swift", "--name", "no name", "RUN", "OUT"], "a name for a class of Swift"),
    ],
)
def test_exports_that_cannot_be(run, tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TEXT").write_text("text")
    assert main(["export", *(str(run) if each == "RUN" else each for each in arguments)]) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["TEXT"]


# --- lint -------------------------------------------------------------------------------------------------------------


def test_lint_of_a_run(run, tmp_path, capsys):
    assert main(["lint", str(run), "--target", "macos-11"]) == 0
    assert "0 errors" in capsys.readouterr().out
    assert main(["lint", str(run), "--target", "macos-10.13"]) == 1  # the policy of its pooling is no class
    np.savez(tmp_path / "images.npz", image=np.zeros((3, 4, 6, 1), np.uint8))
    assert main(["lint", str(run), "--samples", str(tmp_path / "images.npz")]) == 0
    assert "largest magnitudes of results" in capsys.readouterr().out
    assert main(["lint", str(run), "--training", "--target", "macos-10.14"]) == 1
    assert "MPSCNNFullyConnectedGradientNode came with macOS 10.15" in capsys.readouterr().out


def test_lint_of_an_archive(tmp_path, capsys):
    node = mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode(mps.Handle("x")))
    mps.MPSKeyedArchiver.archive(mps.MPSNNGraph(mps.mtl_device("cpu"), node.result_image), tmp_path / "graph")
    assert main(["lint", str(tmp_path / "graph"), "--image", "20000x1x1"]) == 1
    assert "20000x1x1" in capsys.readouterr().out
    np.save(tmp_path / "one.npy", np.full((1, 2, 2, 1), 1e5, np.float32))
    assert main(["lint", str(tmp_path / "graph"), "--samples", str(tmp_path / "one.npy")]) == 1
    assert "activation-range" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "windows-11"], "macos-10.14"),
        (["--image", "large"], "write 224x224x3"),
        (["--samples", "missing.npz"], "missing.npz"),
        (["--samples", "text.npz"], "must be arrays of NumPy"),
        (["--samples", "objects.npz"], "must be arrays of NumPy"),
        (["--samples", "wrong.npz"], "samples must be [images, height, width, channels]"),
    ],
)
def test_lints_that_cannot_be(run, tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.npz").write_text("text")
    np.savez(tmp_path / "objects.npz", image=np.array([{}], dtype=object))
    np.savez(tmp_path / "wrong.npz", image=np.zeros(3))
    assert main(["lint", str(run), *arguments]) == 2
    assert words in capsys.readouterr().err


# --- quantize -------------------------------------------------------------------------------------------------------


def test_a_run_is_as_right_in_8_bits(run, tmp_path, capsys):
    out, report = tmp_path / "small.mps", tmp_path / "report.json"
    status, text, _ = run_command(capsys, "quantize", run, out, "--report", report)
    assert status == 0
    accuracy = json.loads(report.read_text())["test_accuracy"]
    assert accuracy == {"before": 1.0, "after": 1.0}
    assert text.splitlines()[-3:-1] == ["test accuracy before: 100.00 %", "test accuracy after: 100.00 %"]
    assert out.stat().st_size < 0.3 * (run / "weights.safetensors").stat().st_size
    # Other labels are another accuracy: the data that are named are looked at.
    for file in Path(json.loads((run / "run.json").read_text())["data"]["path"]).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    status, _, error = run_command(capsys, "quantize", run, tmp_path / "one", "--report", tmp_path / "." / "one")
    assert (status, os.path.exists(tmp_path / "one")) == (2, False), "the report would take the archive's place"
    assert "must be another file than" in error
    labels = tmp_path / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:8] + bytes(10))
    status, *_ = run_command(capsys, "quantize", run, out, "--data", tmp_path, "--report", report, "--force")
    assert status == 0
    assert json.loads(report.read_text())["test_accuracy"] == {"before": 0.5, "after": 0.5}
