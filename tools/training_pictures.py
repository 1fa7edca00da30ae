"""Writes docs/assets/training/*.svg: what the options of a training do, as curves.

usage: training_pictures.py [--train [NAME ...]]

Schedules are drawn as they are, and block ends by second moments of the results of `bench.second_moments`. Other curves
are of short trainings on scikit-learn's digits, whose numbers are in docs/assets/training/curves.json: --train trains
those that are named, or all of them, anew, in a minute or two. tests/test_training_pictures.py holds the pictures to
the numbers, and these to the options here.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from line_chart import Chart, Points

import openmps as mps
from openmps.training import (
    Classifier,
    EpochReport,
    RunFolder,
    TrainingCallback,
    TrainingOptions,
    describe_run,
    load_dataset,
    train,
)
from openmps.training.schedules import ScheduleName

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "assets" / "training"
NUMBERS = FOLDER / "curves.json"
_STEPS = 500
_SHOWN = 60
"""Points of a curve over images."""


# --- rates ------------------------------------------------------------------------------------------------------------


def _halved(step: int, steps: int) -> float:
    return 0.5 ** (5 * step // steps)


def _rates(**said: Any) -> Points:
    options = TrainingOptions(epochs=1, learning_rate=0.1, **said)
    return [(step, options.learning_rate_at(step, _STEPS)) for step in range(0, _STEPS, 4)]


def schedules() -> Chart:
    """Every schedule by name, and a function."""
    curves = {name: _rates(schedule=name) for name in get_args(ScheduleName)}
    return Chart("step", "learning rate", {**curves, "a function": _rates(schedule=_halved)})


def warmup() -> Chart:
    """Steps before a cosine."""
    return Chart(
        "step", "learning rate", {f"warmup {count}": _rates(schedule="cosine", warmup=count) for count in (0, 50, 150)}
    )


def decay() -> Chart:
    """Of the linear schedule."""
    return Chart("step", "learning rate", {f"decay {part:g}": _rates(decay=part) for part in (0.0, 0.3, 1.0)})


def second_moments() -> Chart:
    """What trainings of ResNet-50 by `bench.second_moments` on the digits end with, on the CPU."""
    lines = (ROOT / "bench" / "results" / "second_moments.jsonl").read_text(encoding="utf-8").splitlines()
    wanted = ("cpu", "resnet50", "digits")
    rows = [row for row in map(json.loads, lines) if (row["device"], row["network"], row["data"]) == wanted]
    curves = {
        f"{row['format']}, {way}": [(seed, ended["loss"]) for seed, ended in enumerate(ends)]
        for row in rows
        for way, ends in row["ways"].items()
    }
    return Chart("seed", "loss of the last 20 steps", curves, is_scattered=True)


# --- short trainings --------------------------------------------------------------------------------------------------


class Watched(TrainingCallback):
    """Numbers of each epoch's weights."""

    def __init__(self) -> None:
        self.norms: list[tuple[float, float]] = []
        self.largest: list[tuple[float, float]] = []

    def finish_epoch(self, report: EpochReport) -> None:
        """Two of them."""
        numbers = np.concatenate([each.ravel() for name, each in report.weights.items() if _is_trained(name)])
        self.norms.append((report.status.epoch, float(np.linalg.norm(numbers))))
        self.largest.append((report.status.epoch, float(abs(numbers).max())))


def _is_trained(name: str) -> bool:
    return not name.endswith((".mean", ".variance"))


@dataclass(frozen=True)
class Ended:
    """A training that has ended, and what may be drawn of it."""

    run: RunFolder
    watched: Watched

    def logged(self, x: str, y: str) -> Points:
        """Two numbers of every line of the metrics that has both."""
        return [(line[x], line[y]) for line in self.run.read_metrics() if x in line and y in line]  # type: ignore[misc]

    def confidence(self) -> Points:
        """The probability of what the network says, from the least sure test image to the surest."""
        found = np.sort(Classifier.open(self.run, _CPU).evaluate(load_dataset().test).confidence)
        return [(place / _SHOWN, float(found[place * (len(found) - 1) // _SHOWN])) for place in range(_SHOWN + 1)]


_CPU = mps.mtl_device("cpu")
MEASURES: Mapping[str, tuple[str, str, Callable[[Ended], Points]]] = {
    "loss": ("step", "loss", lambda ended: ended.logged("iteration", "loss")),
    "test loss": ("epoch", "loss of the test", lambda ended: ended.logged("epoch", "test_loss")),
    "test accuracy": ("epoch", "accuracy of the test", lambda ended: ended.logged("epoch", "test_accuracy")),
    "norm": ("epoch", "norm of all numbers", lambda ended: ended.watched.norms),
    "largest": ("epoch", "largest number", lambda ended: ended.watched.largest),
    "confidence": ("part of the test images", "probability of the class said", Ended.confidence),
}
"""What the axes are, and how the points come out of a training."""


@dataclass(frozen=True)
class Trainings:
    """Trainings side by side: their names, and what each changes of the common options."""

    measure: str
    runs: Mapping[str, Mapping[str, Any]]
    common: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_logarithmic: bool = False
    marks_best: bool = False

    def options(self, name: str) -> dict[str, Any]:
        """Of one of them."""
        return {
            "epochs": 4,
            "batch_size": 50,
            "network": "tiny",
            "learning_rate": 0.01,
            **self.common,
            **self.runs[name],
        }

    def curve(self, name: str) -> list[list[float]]:
        """Train it."""
        digits, options = load_dataset(), TrainingOptions(**self.options(name))
        with tempfile.TemporaryDirectory() as folder:
            run, watched = RunFolder.create(folder, describe_run(digits, options), name="run"), Watched()
            train(digits, run, options, _CPU, callbacks=[watched])
            points = MEASURES[self.measure][2](Ended(run, watched))
        return [[float(f"{each:.4g}") for each in point] for point in points]

    def chart(self, curves: Mapping[str, Points]) -> Chart:
        """The picture of what they gave."""
        x, y, _ = MEASURES[self.measure]
        best = [max(curve, key=lambda point: (point[1], -point[0])) for curve in curves.values()]
        return Chart(x, y, curves, self.is_logarithmic, best if self.marks_best else ())


TRAININGS: Mapping[str, Trainings] = {
    "optimizer": Trainings(
        "loss",
        {
            "adam, 0.01": {},
            "rmsprop, 0.01": {"optimizer": "rmsprop"},
            "sgd, 0.5": {"optimizer": "sgd", "learning_rate": 0.5},
            "muon, 0.02": {"optimizer": "muon", "learning_rate": 0.02},
        },
        is_logarithmic=True,
    ),
    "weight_decay": Trainings(
        "norm", {f"weight decay {each:g}": {"weight_decay": each} for each in (0.0, 0.2, 1.0)}, {"epochs": 8}
    ),
    "average": Trainings(
        "test loss",
        {"weights": {}, "their average, 0.9": {"average": 0.9}},
        {"epochs": 6, "learning_rate": 0.02, "schedule": "constant"},
        is_logarithmic=True,
    ),
    "clip_norm": Trainings(
        "loss",
        {"no limit": {}, "limit 0.5": {"clip_norm": 0.5}},
        {"network": "sample", "optimizer": "sgd", "learning_rate": 0.2, "schedule": "constant", "epochs": 2},
        is_logarithmic=True,
    ),
    "accumulate": Trainings(
        "loss",
        {f"{parts} part{'s'[: parts > 1]}": {"accumulate": parts} for parts in (1, 2, 5)},
        {"network": "lenet", "learning_rate": 0.005},
        is_logarithmic=True,
    ),
    "patience": Trainings(
        "test accuracy",
        {f"patience {each}": {"patience": each} for each in (2, 5)},
        {"epochs": 30, "batch_size": 100, "learning_rate": 0.02, "schedule": "constant", "keep": "best"},
        marks_best=True,
    ),
    "smooth": Trainings(
        "confidence",
        {"as they are": {}, **{f"smooth:{each}": {"augmentation": f"smooth:{each}"} for each in (0.1, 0.3)}},
        {"epochs": 8},
    ),
    "callbacks": Trainings("largest", {"weights": {}}, {"epochs": 8}),
}
"""By the name of the picture."""


# --- files ------------------------------------------------------------------------------------------------------------


def numbers() -> dict[str, Any]:
    """What was trained: options and curves of each picture, by the names of its trainings."""
    return json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}


def described(trainings: Trainings) -> dict[str, dict[str, Any]]:
    """The options of each, as they are kept beside its curve."""
    return {name: TrainingOptions(**trainings.options(name)).describe() for name in trainings.runs}


TITLES = {
    "schedules": "The learning rate over 500 steps by each schedule",
    "warmup": "The learning rate over 500 steps by a cosine after a warm-up of none, 50 and 150 steps",
    "decay": "The learning rate over 500 steps by the linear schedule, decay 0, 0.3 and 1",
    "optimizer": "The loss of the small network by each optimizer at a rate of its own",
    "weight_decay": "The norm of all numbers after each epoch, by three weight decays",
    "average": "The loss of the test after each epoch, of the weights of a large constant rate and of their average",
    "clip_norm": "The loss at a large learning rate, with and without a limit of the gradients' norm",
    "accumulate": "The loss of batches that are computed in 1, 2 and 5 parts",
    "patience": "The accuracy of the test after each epoch, until none was better for 2 and for 5; the best is marked",
    "smooth": "The probability of the class that the network says, from the least sure test image to the surest",
    "callbacks": "The largest weight after each epoch, as a callback has seen it",
    "second_moments": "The loss that trainings from three seeds end with, by second moments and one operation by one",
}
"""What each picture shows."""
DRAWN: Mapping[str, Callable[[], Chart]] = {
    "schedules": schedules,
    "warmup": warmup,
    "decay": decay,
    "second_moments": second_moments,
}
"""Those that need no training."""


def pictures() -> dict[str, str]:
    """All files, by their names."""
    known = numbers()
    charts = {name: draw() for name, draw in DRAWN.items()}
    charts |= {name: each.chart(known[name]["curves"]) for name, each in TRAININGS.items()}
    return {f"{name}.svg": charts[name].svg(title) for name, title in TITLES.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train what is asked for, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs="*", metavar="NAME")
    names = parser.parse_args(arguments).train
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    known = {name: row for name, row in numbers().items() if name in TRAININGS}
    for name in [] if names is None else names or TRAININGS:
        trainings = TRAININGS[name]
        curves = {each: trainings.curve(each) for each in trainings.runs}
        known[name] = {"options": described(trainings), "curves": curves}
        print(name, {each: curve[-1] for each, curve in curves.items()}, flush=True)
        rows = [f"{json.dumps(each)}: {json.dumps(row)}" for each, row in sorted(known.items())]
        NUMBERS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    for file, text in pictures().items():
        (FOLDER / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
