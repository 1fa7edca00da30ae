"""Pages: placements against results and the oracle, drawings, figures of numbers, and texts that are only texts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps as mps
from openmps.debug.page.document import PageExtras, curves, document
from openmps.debug.page.figures import feature_maps, filters, histogram, reduced
from openmps.debug.page.mistakes import Mistakes
from openmps.debug.page.view import GraphView, graph_view
from openmps.training import Network, optimizer_factory
from oracles import padding as oracle
from planted_networks import CLASSES, CPU, FLOAT32, SHAPE, arrays

HOSTILE = "</script><script>alert(1)</script> <!-- {{data}} & ' \" \u2028 \ud800"
METHOD = mps.MPSNNPaddingMethod


def embedded(page: bytes) -> Any:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page.decode(), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def source_of(label: str, shape: tuple[int, ...], stride: int = 1, dilation: int = 1) -> Any:
    weights = np.random.default_rng(len(label)).normal(size=shape).astype(np.float32)
    descriptor = mps.MPSCNNConvolutionDescriptor(shape[2], shape[1], shape[3], shape[0])
    descriptor.stride_in_pixels_x = descriptor.stride_in_pixels_y = stride
    descriptor.dilation_rate_x = descriptor.dilation_rate_y = dilation
    return mps.ArrayConvolutionDataSource(descriptor, weights, label=label)


def placed_graph() -> mps.MPSNNGraph:
    """A convolution whose padding has two sides, a dilated one, and a transposed one."""
    image = mps.MPSNNImageNode(mps.Handle("image"))
    first = mps.MPSCNNConvolutionNode(image, source_of("first", (2, 4, 4, 1), stride=2))
    first.padding_policy = mps.MPSNNDefaultPadding(METHOD.SIZE_SAME | METHOD.ADD_REMAINDER_TO_BOTTOM_RIGHT)
    wide = mps.MPSCNNConvolutionNode(first.result_image, source_of("wide", (2, 3, 3, 2), dilation=2))
    up = mps.MPSCNNConvolutionTransposeNode(wide.result_image, None, source_of("up", (1, 4, 4, 2), stride=2))
    for node, label in ((first, "first"), (wide, "wide"), (up, "up")):
        node.label = label
    graph = mps.MPSNNGraph(CPU, up.result_image)
    graph.format = FLOAT32
    return graph


def view_of_network(**more: Any) -> GraphView:
    network = Network.from_arrays(SHAPE, arrays()).inference_graph(CPU, FLOAT32)
    return graph_view(network, "Forward", descriptors=[SHAPE.image_descriptor()], **more)


def test_results_are_sums_over_the_pixels_that_the_page_names() -> None:
    images, graph = np.random.default_rng(0).normal(size=(1, 9, 7, 1)).astype(np.float32), placed_graph()
    nodes = {node["label"]: node for node in graph_view(graph, "", [images]).data["nodes"]}
    trace = graph.trace([images])
    for label, before in (("first", "image"), ("wide", "first"), ("up", "wide")):
        placement, source, weights = nodes[label]["placement"], trace[before][0], trace[f"{label}/weights"]
        expected = np.zeros(trace[label].shape[1:])
        for y, rows in enumerate(placement["y"]["taps"]):
            for x, columns in enumerate(placement["x"]["taps"]):
                for j, v in enumerate(rows):
                    for i, u in enumerate(columns):
                        if v in range(source.shape[0]) and u in range(source.shape[1]):
                            expected[y, x] += weights[:, j, i].astype(np.float64) @ source[v, u]
        assert np.allclose(trace[label][0], expected, atol=1e-5), label


def test_padding_on_edges_is_what_the_oracle_pads() -> None:
    found = graph_view(placed_graph(), "", [np.zeros((1, 9, 7, 1), np.float32)]).data
    first = next(edge for edge in found["edges"] if found["nodes"][edge["to"]]["label"] == "first")
    placement = found["nodes"][first["to"]]["placement"]
    for axis, length, sides in (("y", 9, (0, 2)), ("x", 7, (1, 3))):
        result, before = oracle.framework(length, 4, 2, 1, oracle.SAME, "centered", low=False)
        taps = oracle.taps(result, before, 4, 2, 1)
        assert placement[axis]["taps"] == taps
        assert [first["padding"][side] for side in sides] == [before, taps[-1][-1] - length + 1]


def test_the_drawing_has_every_filter_and_marks_what_is_fused() -> None:
    found = view_of_network().data
    nodes = {node["label"]: (index, node) for index, node in enumerate(found["nodes"])}
    assert [nodes[label][1]["fused"] for label in ("first_conv", "first_norm", "relu1")] == [True, True, False]
    assert {nodes[label][1]["group"] for label in ("first_conv", "first_norm", "relu1")} == {nodes["relu1"][0]}
    assert nodes["pool1"][1]["group"] is None
    assert nodes["first_conv"][1]["result"] == [8, 8, 8]
    pairs = {(found["nodes"][edge["from"]]["label"], found["nodes"][edge["to"]]["label"]) for edge in found["edges"]}
    assert {("first_conv", "first_norm"), ("first_norm", "relu1"), ("relu1", "pool1")} <= pairs


def test_a_training_graph_has_a_way_back_and_its_gradients() -> None:
    trained = Network.from_arrays(SHAPE, arrays(), optimizer=optimizer_factory("adam", 1e-3))
    network = trained.training_graph(CPU, FLOAT32, loss_weight=0.5, dropout_seed=0)
    labels = mps.MPSCNNLossLabels.batch(CPU, np.eye(4, dtype=np.float32)[[1, 3]])
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    nodes = {node["label"]: node for node in graph_view(network, "", [images], [labels]).data["nodes"]}
    assert nodes["first_conv gradient"]["gradient"]
    assert not nodes["first_conv"]["gradient"]
    kept = {value["label"]: value["histogram"] for value in nodes["first_conv gradient"]["values"]}
    gradient = network.trace([images], [labels])["first_conv gradient/weights_gradient"]
    assert kept["first_conv gradient/weights_gradient"]["largest"] == pytest.approx(float(gradient.max()), rel=1e-4)


def test_histograms_count_what_is_finite() -> None:
    found = histogram(np.float32([0, 0, 1, 2, 4, np.nan, np.inf]))
    assert (found["count"], found["not_finite"], found["zeros"]) == (7, 2, pytest.approx(2 / 7, rel=1e-4))
    assert (found["least"], found["largest"], found["mean"]) == (0, 4, 1.4)
    assert found["bins"][0] == 2
    assert sum(found["bins"]) == 5
    nothing = histogram(np.float32([np.nan]))
    assert (nothing["bins"], nothing["least"]) == ([], None)
    assert sum(histogram(np.full(3, 7.0))["bins"]) == 3
    assert sum(histogram(np.float32([-3e38, 3e38]))["bins"]) == 2


def test_pictures_are_means_of_blocks_within_their_budget() -> None:
    picture = np.arange(35.0).reshape(5, 7)
    blocks = [[picture[y : y + 2, x : x + 2].mean() for x in range(0, 7, 2)] for y in range(0, 5, 2)]
    assert np.allclose(reduced(picture, 4), blocks)
    maps = feature_maps(np.random.default_rng(0).random((3, 100, 50, 64)), 4000)
    assert all(len(each["names"]) * each["width"] * each["height"] <= 4000 for each in maps)
    assert maps[0]["of"] == 64
    whole = feature_maps(np.zeros((2, 1, 1, 9), np.float32), 100)
    assert [each["values"] for each in whole] == [[0.0] * 9] * 2
    assert filters(np.zeros(5, np.float32), 100) is None
    matrix = filters(np.zeros((100, 1, 1, 30), np.float32), 10_000)
    assert matrix is not None
    assert (matrix["height"], matrix["width"]) == (48, 30)


def test_texts_end_no_script_and_the_page_asks_for_nothing() -> None:
    mistakes = Mistakes(np.zeros((1, 2, 2, 1), np.uint8), [0], np.float32([[0.1, 0.9]]), [HOSTILE, "b"], 1, 1)
    page = document(HOSTILE, [view_of_network(missing=HOSTILE)], PageExtras((HOSTILE,), mistakes=mistakes))
    text = page.decode()
    assert text.count("<script") == text.count("</script>") == 2
    assert embedded(page)["title"] == HOSTILE
    assert embedded(page)["mistakes"]["images"][0]["true"] == HOSTILE
    assert re.findall(r"""(?:src|href)=["'](?!data:|#)""", text) == []
    assert "default-src 'none'" in text
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text) == []


def test_mistakes_are_sorted_by_confidence() -> None:
    sure = np.float32([[0.5, 0.3, 0.1, 0.1], [0.0, 0.9, 0.06, 0.04], [0.2, 0.1, 0.3, 0.4]])
    data = Mistakes(np.zeros((3, 4, 4, 3), np.uint8), [1, 0, 0], sure, CLASSES, 90, 5).data()
    assert [(image["true"], image["taken"]) for image in data["images"]] == [
        ("ant", "bee"),
        ("bee", "ant"),
        ("ant", "dog"),
    ]
    assert data["images"][0]["likeliest"] == [["bee", 0.9], ["cat", 0.06], ["dog", 0.04], ["ant", 0.0]]


def test_curves_keep_their_ends_and_leave_out_what_is_no_number() -> None:
    lines = [{"iteration": place, "loss": 1 / place, "test_loss": "nan"} for place in range(1, 1002)]
    (panel,) = curves([*lines, {"iteration": 2000, "loss": float("nan")}, {"event": "interrupted"}])
    assert [line["name"] for line in panel["lines"]] == ["training"]
    points = panel["lines"][0]["points"]
    assert len(points) <= 401
    assert (points[0], points[-1]) == ([1, 1], [1001, 0.000999])
    assert curves([]) == []


def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    graph = placed_graph()
    with pytest.raises(mps.MPSArgumentError, match="image_descriptors must be given"):
        mps.debug.save_page(tmp_path / "page.html", graph)
    with pytest.raises(mps.MPSTypeError, match="must be an MPSNNGraph"):
        mps.debug.save_page(tmp_path / "page.html", "graph")  # type: ignore[arg-type]
    with pytest.raises(mps.MPSFileError, match="folder"):
        mps.debug.save_page(tmp_path / "none" / "page.html", graph, [np.zeros((1, 9, 7, 1), np.float32)])
    assert list(tmp_path.iterdir()) == []
    size = mps.debug.save_page(tmp_path / "page.html", graph, [np.zeros((1, 9, 7, 1), np.float32)], repeats=1)
    data = embedded((tmp_path / "page.html").read_bytes())
    assert size == (tmp_path / "page.html").stat().st_size
    assert [node["seconds"] > 0 for node in data["views"][0]["nodes"][1:]] == [True] * 3
