"""What a group refuses before it asks the other processes."""

from __future__ import annotations

import pytest

import openmps as mps
from openmps.distributed import Group


def test_a_graph_that_trains_nothing_is_not_shared() -> None:
    graph = mps.MPSNNGraph(mps.mtl_device("cpu"), mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode()).result_image)
    with pytest.raises(mps.MPSArgumentError, match="must be a training graph"):
        Group.share(object.__new__(Group), graph)
