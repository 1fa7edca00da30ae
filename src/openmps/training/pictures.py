"""Pictures of a training run: the curves of loss and accuracy, and a sheet of misclassified images."""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from openmps.checks import of_kind, whole
from openmps.core.kinds import listed, text
from openmps.errors import MPSArgumentError
from openmps.formats.atomic import write_atomic
from openmps.formats.extras import missing_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANELS = (
    ("Loss", (("loss", "training"), ("test_loss", "test"))),
    ("Accuracy (%)", (("accuracy", "training"), ("test_accuracy", "test"))),
)
_POSITIONS = (("iteration", "Iteration"), ("epoch", "Epoch"))
_MATPLOTLIB = "MPLCONFIGDIR"
_COLUMNS = 8
_LONGEST_NAME = 14


def draw_curve(path: str | os.PathLike[str], metrics: Sequence[Mapping[str, object]], *, title: str = "") -> None:
    """Draw loss and accuracy over the iterations as a PNG file.

    ``metrics`` are the lines of a run's ``metrics.jsonl``. The left panel has ``loss`` and ``test_loss``, on a
    logarithmic axis where all are above 0, the right one ``accuracy`` and ``test_accuracy`` (0 to 1, drawn as percent),
    each over ``iteration``, or over ``epoch`` where no line has an iteration. Lines without a value, and values that
    are not finite, are left out; a panel without any says so. Raises ``MPSError`` naming the extra to install where
    matplotlib is missing.
    """
    metrics = listed("draw_curve", "metrics", metrics, Mapping, "mappings")
    text("draw_curve", "title", title)
    figure = _figure("draw_curve", (10, 4))
    position, label = next(
        ((key, label) for key, label in _POSITIONS if any(key in line for line in metrics)), _POSITIONS[-1]
    )
    for index, (name, curves) in enumerate(_PANELS, start=1):
        axes = figure.add_subplot(1, 2, index)
        axes.set_xlabel(label)
        axes.set_ylabel(name)
        axes.grid(visible=True, alpha=0.3)
        _draw_curves(axes, metrics, position, curves, 100 if index == 2 else 1)
        if index == 1 and all(value > 0 for line in axes.lines for value in cast("Any", line.get_ydata())):
            axes.set_yscale("log")
    if title:
        figure.suptitle(_drawable(title), parse_math=False)
    _save(figure, path)


def draw_misclassified(
    path: str | os.PathLike[str],
    images: NDArray[np.uint8],
    labels: NDArray[np.integer[Any]],
    predictions: NDArray[np.integer[Any]],
    class_names: Sequence[str],
    confidence: NDArray[np.floating[Any]] | None = None,
    *,
    limit: int = 64,
) -> int:
    """Draw the images that were classified wrongly, up to ``limit`` of them, as a sheet, and return how many there are.

    ``images`` are uint8 ``[N, H, W, C]`` with C 1 or 3, ``labels`` the true and ``predictions`` the predicted class
    indices, ``[N]``. Each picture is titled *true → predicted*. With the ``confidence`` of each prediction, its
    probability from 0 to 1, ``[N]``, the surest mistakes come first, with that probability in percent. Where none is
    wrong, the sheet says so. Raises ``MPSError`` naming the extra to install where matplotlib is missing.
    """
    who = "draw_misclassified"
    for argument, array in (("images", images), ("labels", labels), ("predictions", predictions)):
        of_kind(who, argument, array, np.ndarray)
    class_names = listed(who, "class_names", class_names, str, "text")
    if confidence is not None:
        of_kind(who, "confidence", confidence, np.ndarray)
    whole(who, "limit", limit, rule="must be 1 or more")
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise MPSArgumentError(who, "images", "must be [N, H, W, C] with 1 or 3 channels", f"shape {images.shape}")
    for argument, values in (("labels", labels), ("predictions", predictions)):
        if values.shape != images.shape[:1]:
            rule = f"must be one for each of {len(images)} images"
            raise MPSArgumentError(who, argument, rule, f"shape {values.shape}")
        if values.size and not 0 <= int(values.min()) <= int(values.max()) < len(class_names):
            got = f"{values.min()} to {values.max()}"
            raise MPSArgumentError(who, argument, f"must be 0 to {len(class_names) - 1}", got)
    wrong = np.flatnonzero(labels != predictions)
    if confidence is not None:
        if confidence.shape != labels.shape or not ((confidence >= 0) & (confidence <= 1)).all():
            rule = f"must be from 0 to 1, one for each of {len(images)} images"
            raise MPSArgumentError(who, "confidence", rule, f"shape {confidence.shape}")
        wrong = wrong[np.argsort(-confidence[wrong], kind="stable")]
    shown = wrong[:limit]
    rows = max(math.ceil(len(shown) / _COLUMNS), 2)
    figure = _figure(who, (_COLUMNS * 1.2, rows * 1.4 + 0.6))
    figure.suptitle(_sheet_title(len(wrong), len(shown), len(images), "first" if confidence is None else "surest"))
    # One pair of axes for the whole sheet, a unit square for each picture: 64 pairs take seconds.
    sheet = figure.add_subplot()
    sheet.set_axis_off()
    for place, index in enumerate(shown.tolist()):
        caption = _caption(class_names[int(labels[index])], class_names[int(predictions[index])])
        if confidence is not None:
            caption += f" {100 * float(confidence[index]):.0f} %"
        _draw_picture(sheet, images[index], caption, place % _COLUMNS, place // _COLUMNS)
    if not len(wrong):
        sheet.text(_COLUMNS / 2, rows / 2, "nothing to show", ha="center", va="center")
    sheet.set(xlim=(0, _COLUMNS), ylim=(rows, 0), aspect=1.4 / 1.2)
    _save(figure, path)
    return len(wrong)


def _draw_curves(
    axes: Axes,
    metrics: Sequence[Mapping[str, object]],
    position: str,
    curves: tuple[tuple[str, str], ...],
    scale: float,
) -> None:
    drawn = False
    for key, label in curves:
        points = [
            (x, y * scale)
            for line in metrics
            if (x := _number(line, position)) is not None and (y := _number(line, key)) is not None
        ]
        if points:
            xs, ys = zip(*points, strict=True)
            # A single measurement is no line: mark the few, draw the many.
            axes.plot(xs, ys, label=label, marker="o" if len(points) <= 20 else None, markersize=3)
            drawn = True
    if drawn:
        axes.legend()
    else:
        axes.text(0.5, 0.5, "nothing measured yet", ha="center", va="center", transform=axes.transAxes)


def _draw_picture(sheet: Axes, image: NDArray[np.uint8], caption: str, column: int, row: int) -> None:
    """One picture in its cell, in its own proportions (a cell is 1.2 wide and 1.4 high), its caption above it."""
    height, width, channels = image.shape
    scale = min(0.9 * 1.2 / width, 0.75 * 1.4 / height)
    half_width, half_height = scale * width / 1.2 / 2, scale * height / 1.4 / 2
    x, y = column + 0.5, row + 0.6
    sheet.imshow(
        image[..., 0] if channels == 1 else image,
        cmap="gray",
        vmin=0,
        vmax=255,
        extent=(x - half_width, x + half_width, y + half_height, y - half_height),
    )
    sheet.text(x, row + 0.2, caption, ha="center", va="bottom", fontsize=8, parse_math=False)


def _number(line: Mapping[str, object], key: str) -> float | None:
    value = line.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _sheet_title(wrong: int, shown: int, total: int, kind: str) -> str:
    if not wrong:
        return f"None of {total} images misclassified"
    rest = f"; the {kind} {shown}" if shown < wrong else ""
    return f"{wrong} of {total} images misclassified ({100 * wrong / total:.1f} %){rest}"


def _caption(true: str, predicted: str) -> str:
    gap = "\n" if len(true) + len(predicted) > _LONGEST_NAME else " "
    return _drawable(f"{_short(true)} →{gap}{_short(predicted)}")


def _drawable(text: str) -> str:
    """Text without what no font can draw: halves of characters, as names that are not UTF-8 have them."""
    return text.encode(errors="replace").decode()


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


def _figure(who: str, size: tuple[float, float]) -> Figure:
    """A figure of its own canvas: nothing of pyplot's global state is used or changed."""
    try:
        with cache_out_of_home():
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_package(who, "matplotlib", "drawing pictures") from error
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def cache_out_of_home() -> Generator[None]:
    """While matplotlib is imported: let it keep its list of fonts with the temporary files of the system.

    Who has chosen a folder by ``MPLCONFIGDIR``, or has folders of matplotlib's already, keeps them.
    """
    home, user = Path("~").expanduser(), os.getuid() if hasattr(os, "getuid") else ""
    theirs = (home / ".config" / "matplotlib", home / ".cache" / "matplotlib", home / ".matplotlib")
    if "matplotlib" in sys.modules or _MATPLOTLIB in os.environ or any(map(os.path.exists, theirs)):
        yield
        return
    os.environ[_MATPLOTLIB] = os.path.join(tempfile.gettempdir(), f"openmps-matplotlib-{user}")
    try:
        yield
        import matplotlib

        for remembered in (matplotlib.get_configdir, matplotlib.get_cachedir):
            remembered()
    finally:
        del os.environ[_MATPLOTLIB]


def _save(figure: Figure, path: str | os.PathLike[str]) -> None:
    def write(file: BinaryIO) -> None:
        cast("Any", figure).savefig(file, format="png", dpi=120)

    write_atomic(path, write)
