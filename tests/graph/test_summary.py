"""The table of a graph: shapes, placement, parameters and bytes counted by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest

from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSArgumentError, MPSError
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.arithmetic import MPSNNAdditionNode
from openmps.graph.nodes.concatenation import MPSNNConcatenationNode
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.neuron import MPSCNNNeuronReLUNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.graph.nodes.pooling import MPSCNNPoolingMaxNode
from openmps.graph.summary import COLUMNS, graph_summary
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.runtime.devices import mtl_device
from openmps.training.data_sources import ArrayConvolutionDataSource
from openmps.training.network import NetworkShape, SampleNetwork, optimizer_factory
from openmps.types import MPSImageFeatureChannelFormat as Format
from openmps.types import MPSNNPaddingMethod

VALID = MPSNNDefaultPadding(MPSNNPaddingMethod.SIZE_VALID_ONLY)


def _source(label, biases=True):
    descriptor = MPSCNNConvolutionDescriptor(3, 5, 2, 6)
    return ArrayConvolutionDataSource(descriptor, np.zeros((6, 5, 3, 2)), np.zeros(6) if biases else None, label)


def _graph(*, biases=True, fuse=True):
    convolution = MPSCNNConvolutionNode(MPSNNImageNode(), _source("<first>", biases))
    convolution.padding_policy = VALID
    relu = MPSCNNNeuronReLUNode(convolution.result_image)
    pooling = MPSCNNPoolingMaxNode(relu.result_image, 2, 2)
    graph = MPSNNGraph(mtl_device("cpu"), pooling.result_image)
    graph.allow_fusion = fuse
    return graph


IMAGE = MPSImageDescriptor(Format.UNORM8, 10, 9, 2)


def test_rows_by_hand():
    summary = graph_summary(_graph(fuse=False), IMAGE, 3)
    convolution, relu, pooling = summary.rows
    assert (convolution.label, convolution.class_name) == ("<first>", "MPSCNNConvolutionNode")
    assert (convolution.sources, convolution.result) == (((10, 9, 2),), (8, 5, 6))
    assert convolution.channel_format is Format.FLOAT16
    assert convolution.padding == VALID.label()
    assert convolution.offset == (1, 2)
    assert convolution.parameters == 6 * 5 * 3 * 2 + 6
    assert convolution.parameter_bytes == 4 * convolution.parameters
    assert convolution.result_bytes == 3 * 2 * 8 * 5 * 6
    assert (relu.label, relu.padding, relu.offset, relu.parameters) == ("", None, None, 0)
    assert (relu.sources, relu.result, relu.is_fused) == (((8, 5, 6),), (8, 5, 6), False)
    assert (pooling.result, pooling.offset) == ((4, 3, 6), (1, 0))
    assert (summary.images, summary.parameters, summary.parameter_bytes) == (3, 186, 744)
    assert summary.result_bytes == sum(row.result_bytes for row in summary.rows) == 3 * 2 * 6 * (40 + 40 + 12)


def test_a_kernel_that_is_fused_keeps_its_row_and_has_no_memory():
    rows = graph_summary(_graph(), IMAGE).rows
    assert [row.is_fused for row in rows] == [True, False, False]
    assert rows[0].result == (8, 5, 6)
    assert rows[0].result_bytes == 0
    assert rows[0].cells()[-2] == "fused"


def test_missing_biases_are_not_counted():
    assert graph_summary(_graph(biases=False), IMAGE).parameters == 180


def test_shared_weights_are_counted_once_and_each_source_has_its_shape():
    shared, image = _source("shared"), MPSNNImageNode()
    left, right = (MPSCNNConvolutionNode(image, shared) for _ in range(2))
    addition = MPSNNAdditionNode(left.result_image, right.result_image)
    summary = graph_summary(MPSNNGraph(mtl_device("cpu"), addition.result_image), [IMAGE])
    assert [row.parameters for row in summary.rows] == [186, 0, 0]
    assert summary.rows[2].sources == ((10, 9, 6), (10, 9, 6))


def test_a_training_graph():
    network = SampleNetwork.create(NetworkShape(8, 8, 1, 10), seed=0, optimizer=optimizer_factory("adam", 1e-3))
    graph = network.training_graph(mtl_device("cpu"), Format.FLOAT16, loss_weight=1, dropout_seed=0)
    summary = graph_summary(graph, network.shape.image_descriptor(), 40)
    rows = {row.label: row for row in summary.rows}
    assert summary.parameters == sum(array.size for array in network.arrays().values())
    first = rows["conv1 gradient"]
    assert (first.result, first.result_bytes, first.parameters) == (None, 0, 0)
    second = rows["conv2 gradient"]
    assert (second.sources, second.result) == (((4, 4, 64), (4, 4, 32)), (4, 4, 32))
    assert (second.padding, second.offset) == (None, None)
    assert rows["relu3"].channel_format is Format.FLOAT16
    assert second.channel_format is Format.FLOAT32


def test_text_and_html():
    summary = graph_summary(_graph(), IMAGE)
    head, body, total = (part.splitlines() for part in re.split(r"\n-+\n", str(summary)))
    assert head[0].split("  ")[0].strip() == COLUMNS[0].heading
    assert all(column.heading in " ".join(head) for column in COLUMNS)
    assert (len(head), len(body), len(total)) == (2, 2 * len(summary.rows), 2)
    assert "10x9x2" in body[0] and "(1, 2)" in body[0]
    assert "186" in body[0] and VALID.label() in body[1]
    assert total[0].startswith("total    3 kernels, 1 image  ") and total[0].endswith(" 186")
    assert body[0].index("186") == total[0].index("186")
    html = summary._repr_html_()
    assert "&lt;first&gt;" in html
    assert "<first>" not in html
    assert html.count("<tr>") == len(summary.rows) + 2


def test_the_table_of_a_deep_graph_fits_80_columns():
    """A layer takes a line, or two or more where its shapes or names are long; a long cell is wrapped."""
    image = MPSNNImageNode()
    joined = MPSNNConcatenationNode([MPSCNNNeuronReLUNode(image).result_image for _ in range(30)])
    joined.label = "everything " * 12
    lines = str(graph_summary(MPSNNGraph(mtl_device("cpu"), joined.result_image), IMAGE)).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.count("everything") for line in lines) == 12
    assert sum(line.count("10x9x2") for line in lines) == 3 * 30
    assert any("10x9x120" in line for line in lines)  # each source on slices of 4 channels


@pytest.mark.parametrize(
    ("images", "count", "kind"),
    [
        ([], 1, MPSArgumentError),
        ([IMAGE, IMAGE], 1, MPSArgumentError),
        (IMAGE, 0, MPSArgumentError),
        (IMAGE, 1.5, MPSArgumentError),
        (MPSImageDescriptor(Format.UNORM8, 10, 9, 1), 1, MPSError),
        (MPSImageDescriptor(Format.UNORM8, 0, 9, 2), 1, MPSError),
        (MPSImageDescriptor(Format.UNORM8, 2, 2, 2), 1, MPSError),
    ],
)
def test_images_that_the_graph_cannot_take_are_named(images, count, kind):
    with pytest.raises(kind):
        graph_summary(_graph(), images, count)
