"""Pictures: that they are drawn, hold what they should, and leave pyplot and the old file alone."""

import json
import os
import sys

import forked
import numpy as np
import pytest
from PIL import Image

from openmps.errors import MPSArgumentError, MPSError
from openmps.training import pictures
from openmps.training.pictures import draw_curve, draw_misclassified

NAMES = tuple("0123456789")
IMAGES = np.random.default_rng(0).integers(0, 256, (100, 8, 8, 1)).astype(np.uint8)
LABELS = np.arange(100) % 10


@pytest.fixture
def figures(monkeypatch):
    """The figures saved in the test."""
    saved = []
    save = pictures._save

    def note(figure, path):
        saved.append(figure)
        save(figure, path)

    monkeypatch.setattr(pictures, "_save", note)
    return saved


def size(path):
    with Image.open(path) as image:
        image.load()
        return image.format, image.size


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_curve_draws_every_measurement_it_is_given(tmp_path, figures):
    metrics = [{"iteration": i, "epoch": 1, "loss": 1 / i, "accuracy": 0.01 * i} for i in range(1, 50)]
    metrics += [{"iteration": 50, "test_loss": 0.3, "test_accuracy": 0.9}, {"iteration": 51, "loss": float("nan")}]
    draw_curve(tmp_path / "curve.png", metrics, title="$x^$")
    assert size(tmp_path / "curve.png") == ("PNG", (1200, 480))
    loss, accuracy = figures[0].axes
    assert [axes.get_xlabel() for axes in (loss, accuracy)] == ["Iteration"] * 2
    assert [axes.get_ylabel() for axes in (loss, accuracy)] == ["Loss", "Accuracy (%)"]
    training, test = loss.lines
    assert training.get_xydata().tolist() == [[i, 1 / i] for i in range(1, 50)]
    assert test.get_xydata().tolist() == [[50, 0.3]]
    training, test = accuracy.lines
    np.testing.assert_allclose(training.get_xydata(), [[i, i] for i in range(1, 50)])
    assert test.get_xydata().tolist() == [[50, 90]]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training", "test"]


def test_curve_over_epochs_and_without_measurements(tmp_path, figures):
    draw_curve(tmp_path / "a.png", [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}])
    loss, accuracy = figures[0].axes
    assert loss.get_xlabel() == "Epoch"
    assert loss.lines[0].get_xydata().tolist() == [[1, 2.0], [2, 1.0]]
    assert [text.get_text() for text in accuracy.texts] == ["nothing measured yet"]
    draw_curve(tmp_path / "b.png", [])
    assert texts(figures[1]) == ["nothing measured yet"] * 2


def test_misclassified_shows_the_first_with_both_labels(tmp_path, figures):
    predictions = LABELS.copy()
    predictions[[3, 70, 99]] = [8, 1, 0]
    assert draw_misclassified(tmp_path / "a.png", IMAGES, LABELS, predictions, NAMES) == 3
    assert texts(figures[0]) == ["3 → 8", "0 → 1", "9 → 0"]
    shown = figures[0].axes[0].images
    for picture, index in zip(shown, (3, 70, 99), strict=True):
        np.testing.assert_array_equal(picture.get_array(), IMAGES[index, ..., 0])
    assert figures[0].get_suptitle() == "3 of 100 images misclassified (3.0 %)"
    assert size(tmp_path / "a.png")[0] == "PNG"


def test_no_more_than_the_limit_is_shown(tmp_path, figures):
    assert draw_misclassified(tmp_path / "a.png", IMAGES, LABELS, (LABELS + 1) % 10, NAMES) == 100
    assert len(figures[0].axes[0].images) == 64
    assert figures[0].get_suptitle() == "100 of 100 images misclassified (100.0 %); the first 64"
    draw_misclassified(tmp_path / "a.png", IMAGES, LABELS, (LABELS + 1) % 10, NAMES, limit=5)
    assert texts(figures[1]) == ["0 → 1", "1 → 2", "2 → 3", "3 → 4", "4 → 5"]


def test_the_surest_mistakes_come_first_with_their_probability(tmp_path, figures):
    predictions, confidence = LABELS.copy(), np.full(100, 0.99, np.float32)
    predictions[[3, 70, 99]] = [8, 1, 0]
    confidence[[3, 70, 99]] = [0.5, 0.987, 0.7]
    assert draw_misclassified(tmp_path / "a.png", IMAGES, LABELS, predictions, NAMES, confidence) == 3
    assert texts(figures[0]) == ["0 → 1 99 %", "9 → 0 70 %", "3 → 8 50 %"]
    for picture, index in zip(figures[0].axes[0].images, (70, 99, 3), strict=True):
        np.testing.assert_array_equal(picture.get_array(), IMAGES[index, ..., 0])
    draw_misclassified(tmp_path / "a.png", IMAGES, LABELS, (LABELS + 1) % 10, NAMES, confidence, limit=5)
    assert figures[1].get_suptitle() == "100 of 100 images misclassified (100.0 %); the surest 5"
    for bad in (confidence[:5], confidence * 2, confidence * np.nan):
        with pytest.raises(MPSArgumentError, match="confidence must be from 0 to 1, one for each of 100 images"):
            draw_misclassified(tmp_path / "a.png", IMAGES, LABELS, predictions, NAMES, bad)


@pytest.mark.parametrize(("least", "scale"), [(1e-6, "log"), (0.0, "linear"), (-1.0, "linear")])
def test_losses_are_on_a_logarithmic_axis(tmp_path, monkeypatch, least, scale):
    figures = []
    monkeypatch.setattr(pictures, "_save", lambda figure, path: figures.append(figure))
    lines = [{"iteration": 1, "loss": 100.0, "accuracy": 0.0}, {"iteration": 2, "test_loss": least, "accuracy": 0.5}]
    draw_curve(tmp_path / "a.png", lines)
    assert [axes.get_yscale() for axes in figures[0].axes] == [scale, "linear"]


def test_names_that_no_font_can_draw(tmp_path):
    draw_curve(tmp_path / "a.png", [], title="caf\udce9")
    draw_misclassified(tmp_path / "b.png", IMAGES[:2], np.array([0, 1]), np.array([1, 1]), ("\udce9", "a"))


CACHES = """
import json, os, sys, tempfile
from openmps.training.pictures import cache_out_of_home, draw_curve

assert "matplotlib" not in sys.modules
for number, environment in enumerate(map(json.loads, sys.argv[1:])):
    if (child := os.fork()) == 0:
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        if number:
            with cache_out_of_home():  # as what draws does, which takes longer
                import matplotlib
        else:
            draw_curve(os.path.join(environment["HOME"], "a.png"), [])
            import matplotlib
        print(matplotlib.get_cachedir(), os.environ.get("MPLCONFIGDIR"))
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""
"""What a process of each environment says, of one that has imported all but matplotlib."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_matplotlib_s_cache_stays_out_of_the_home_of_who_only_trains(tmp_path):
    owned, environments = (None, ".config/matplotlib", ".cache/matplotlib", "MPLCONFIGDIR"), []
    places = [[tmp_path / str(number) / name for name in ("home", "temporary", "chosen")] for number in range(4)]
    for own, (home, temporary, chosen) in zip(owned, places, strict=True):
        for folder in (home, temporary):
            folder.mkdir(parents=True)
        environment = {name: value for name, value in os.environ.items() if name[:3] not in ("MPL", "XDG")}
        environment |= {"HOME": str(home), "TMPDIR": str(temporary)}
        if own == "MPLCONFIGDIR":
            environment[own] = str(chosen)
        elif own:
            (home / own).mkdir(parents=True)
        environments.append(json.dumps(environment))
    free = {name: value for name, value in os.environ.items() if name[:3] not in ("MPL", "XDG")}
    child = forked.run("-c", CACHES, *environments, env=free)
    assert child.returncode == 0, child.stderr
    for own, told, (home, temporary, chosen) in zip(owned, child.stdout.splitlines(), places, strict=True):
        cache, left = told.split()
        place = chosen if own == "MPLCONFIGDIR" else home if own else temporary
        assert cache.startswith(str(place))
        assert left == (str(chosen) if own == "MPLCONFIGDIR" else "None")
        assert own or not [entry.name for entry in home.rglob("*") if "matplotlib" in entry.name]


def test_none_misclassified_is_said(tmp_path, figures):
    assert draw_misclassified(tmp_path / "a.png", IMAGES, LABELS, LABELS, NAMES) == 0
    assert figures[0].get_suptitle() == "None of 100 images misclassified"
    assert texts(figures[0]) == ["nothing to show"]


@pytest.mark.parametrize("shape", [(2, 30, 5, 3), (2, 5, 30, 1), (2, 1, 1, 1)])
def test_pictures_keep_their_proportions(tmp_path, figures, shape):
    images = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    names = ("$x^$", "a very long name of a class", "ü")
    draw_misclassified(tmp_path / "a.png", images, np.array([0, 1]), np.array([1, 0]), names)
    axes = figures[0].axes[0]
    corners = axes.transData.transform([(p.get_extent()[0], p.get_extent()[2]) for p in axes.images])
    opposite = axes.transData.transform([(p.get_extent()[1], p.get_extent()[3]) for p in axes.images])
    for width, height in np.abs(opposite - corners):
        assert width / height == pytest.approx(shape[2] / shape[1], rel=1e-3)
    assert texts(figures[0]) == ["$x^$ →\na very long n…", "a very long n… →\n$x^$"]


def test_arguments_are_checked(tmp_path):
    path = tmp_path / "a.png"
    for images, labels, predictions, message in [
        (IMAGES[..., 0], LABELS, LABELS, r"images must be \[N, H, W, C\]"),
        (IMAGES.repeat(2, 3), LABELS, LABELS, "with 1 or 3 channels"),
        (IMAGES, LABELS[:5], LABELS, "labels must be one for each of 100 images"),
        (IMAGES, LABELS, LABELS + 1, "predictions must be 0 to 9, got 1 to 10"),
        (IMAGES, LABELS - 1, LABELS, "labels must be 0 to 9, got -1 to 8"),
    ]:
        with pytest.raises(MPSArgumentError, match=message):
            draw_misclassified(path, images, labels, predictions, NAMES)
    with pytest.raises(MPSArgumentError, match="limit must be 1 or more, got 0"):
        draw_misclassified(path, IMAGES, LABELS, LABELS, NAMES, limit=0)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_drawing_leaves_the_previous_picture(tmp_path, monkeypatch):
    path = tmp_path / "curve.png"
    draw_curve(path, [])
    before = path.read_bytes()

    def fail(self, file, **options):
        file.write(b"half a picture")
        raise RuntimeError("mine")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    with pytest.raises(RuntimeError, match="mine"):
        draw_curve(path, [])
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["curve.png"]


def test_pyplot_is_not_imported(tmp_path):
    program = (
        "import sys; from openmps.training.pictures import draw_curve; draw_curve(sys.argv[1], []);"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    done = forked.run("-c", program, tmp_path / "a.png")
    assert done.returncode == 0, done.stderr


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MPSError, match=r"needs matplotlib.*pip install '\.\[train\]'"):
        draw_curve(tmp_path / "a.png", [])
    with pytest.raises(MPSError, match="draw_misclassified"):
        draw_misclassified(tmp_path / "a.png", IMAGES, LABELS, LABELS, NAMES)
