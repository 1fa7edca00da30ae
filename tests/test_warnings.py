"""Warnings name the line of the program that did what they are about."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import numpy as np
import pytest

import openmps as mps
from openmps.errors import warn_user

DEVICE = mps.mtl_device("cpu")


def _source(channels: int = 3, groups: int = 1) -> mps.ArrayConvolutionDataSource:
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, channels, 6)
    descriptor.groups = groups
    with warnings.catch_warnings():  # they tell of groups that Apple devices refuse, too
        warnings.simplefilter("ignore")
        return mps.ArrayConvolutionDataSource(descriptor, np.ones((6, 1, 1, channels // groups), np.float32))


def _encode_with_channels_left_over() -> None:
    image = mps.MPSImage.from_numpy(DEVICE, np.ones((2, 2, 9), np.float32))
    mps.MPSCNNConvolution(DEVICE, _source()).encode(DEVICE.new_command_queue().command_buffer(), image)


def _make_groups_that_apple_devices_refuse() -> None:
    mps.MPSCNNConvolution(DEVICE, _source(6, groups=3))


def _encode_a_training_without_updates() -> None:
    layer = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), _source())
    (gradients, *_) = mps.MPSNNInitialGradientNode(layer.result_image).training_graph()
    image = mps.MPSImage.from_numpy(DEVICE, np.ones((2, 2, 3), np.float32))
    graph = mps.MPSNNGraph(DEVICE, gradients.result_image)
    graph.encode(DEVICE.new_command_queue().command_buffer(), [image])


@pytest.mark.parametrize(
    ("act", "line"),
    [
        (_encode_with_channels_left_over, 2),
        (_make_groups_that_apple_devices_refuse, 1),
        (_encode_a_training_without_updates, 5),
    ],
)
def test_they_name_the_line_that_called(act: Callable[[], None], line: int) -> None:
    with pytest.warns(UserWarning, match="MPSCNN") as caught:
        act()
    told = {(each.filename, each.lineno - act.__code__.co_firstlineno) for each in caught}
    assert told == {(__file__, line)}


def test_a_thread_of_the_package_names_the_line_that_warned() -> None:
    """No line of a program is below it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warn_user, args=("said",))
        thread.start()
        thread.join()
    assert [each.filename for each in caught] == [threading.__file__]
