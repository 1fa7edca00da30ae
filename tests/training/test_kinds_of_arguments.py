"""Arguments of another kind are named by the class or function that they are given to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import openmps as mps
from in_one_test import in_one_test
from openmps import training

CPU = mps.mtl_device("cpu")
SHAPE = training.NetworkShape(8, 8, 1, 2, "tiny")


def network() -> Any:
    return training.Network.create(SHAPE, seed=0, optimizer=training.optimizer_factory("sgd", 0.1))


@in_one_test
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: training.Classifier(1.5, CPU, ("a", "b")), "Classifier: network must be a Network, got float"),
        (lambda: training.Classifier(network(), CPU, 7), "Classifier: class_names must be"),
        (lambda: training.Classifier(network(), None, ("a", "b")), "Classifier: device must be an MTLDevice"),
        (lambda: training.Network("tiny", {}), "Network: shape must be a NetworkShape, got str"),
        (lambda: training.RunFolder(np.zeros(2), {}), "RunFolder: path must be"),
        (lambda: training.RunFolder("run", "text"), "RunFolder: description must be a Mapping, got str"),
        (lambda: training.RunningMetrics(5, clock=1), "RunningMetrics: clock must be a function that gives seconds"),
        (lambda: training.TrainingProgress(1, 1, clock="now"), "TrainingProgress: clock must be a function"),
        (lambda: training.TrainingProgress(1, 1, console=range(3)), "TrainingProgress: console must be a Console"),
        (lambda: training.load_dataset(size=object()), "load_dataset: size must be that of the images of digits"),
        (lambda: training.load_dataset(channels=np.ones(2)), "load_dataset: channels must be that of the images"),
        (lambda: training.load_image("a.png", channels=np.ones(2)), "load_image: channels must be 1"),
    ],
)
def test_arguments_of_another_kind_are_named(make: Any, message: str) -> None:
    with pytest.raises(mps.MPSError, match=f"^{message}"):
        make()
