"""A network out of an ONNX file that is trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnx_models import CPU, model, node, numbers, saved
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.errors import MPSError, MPSTypeError
from openmps.formats import onnx as reader
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.loss import MPSCNNLossNode
from openmps.kernels.loss import MPSCNNLossDescriptor, MPSCNNLossLabels
from openmps.kernels.optimizers import MPSNNOptimizerAdam
from openmps.training.source_makers import TrainableDataSources
from openmps.types import MPSCNNLossType, MPSCNNReductionType, MPSImageFeatureChannelFormat, MTLSize

pytest.importorskip("onnx")


def test_a_converted_network_learns(tmp_path: Path) -> None:
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c g h m v", "n"),
        node("Relu", "n", "r"),
        node("GlobalAveragePool", "r", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f k", "y", transB=1),
    ]
    constants = {
        "w": numbers(8, 3, 3, 3, scale=0.2),
        "b": numbers(8),
        "g": np.ones(8, np.float32),
        "h": np.zeros(8, np.float32),
        "m": np.zeros(8, np.float32),
        "v": np.ones(8, np.float32),
        "k": numbers(4, 8, scale=0.3),
    }
    path = saved(model(nodes, {"x": ["n", 3, 6, 6]}, **constants), tmp_path)
    sources = TrainableDataSources(lambda device: MPSNNOptimizerAdam(device, 0.02))
    found = reader.network(path, trainable=sources)

    loss = MPSCNNLossNode(
        found.outputs["y"].producer.result_image,
        MPSCNNLossDescriptor(MPSCNNLossType.MEAN_SQUARED_ERROR, MPSCNNReductionType.MEAN),
    )
    (last,) = loss.training_graph()
    graph = MPSNNGraph(CPU, last.result_image, result_image_is_needed=False)
    graph.format = MPSImageFeatureChannelFormat.FLOAT32
    inference = found.model(CPU)
    pixels, target = numbers(5, 6, 6, 3), numbers(4, seed=3)
    feeds = {"x": np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))}
    distances = []
    for _ in range(60):
        label = MPSImage.from_numpy(CPU, target.reshape(1, 1, 4))
        labels = [MPSCNNLossLabels(CPU, labels_image=label, loss_image_size=MTLSize(1, 1, 1)) for _ in pixels]
        command_buffer = CPU.new_command_queue().command_buffer()
        graph.encode_batch(command_buffer, [MPSImageBatch.from_numpy(CPU, pixels)], [labels])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        inference.graph.reload_from_data_sources()
        distances.append(float(((inference.run(feeds)["y"] - target) ** 2).mean()))
    assert distances[-1] < 0.1 * distances[0]


def test_what_makes_no_sources_is_refused() -> None:
    with pytest.raises(MPSTypeError, match="optimizer must be a function of a device"):
        TrainableDataSources("adam")  # type: ignore[arg-type]
    sources = TrainableDataSources(lambda device: MPSNNOptimizerAdam(device, 0.02))
    with pytest.raises(MPSError):
        sources.batch_normalization(np.array(1.0), [[1.0]], [1.0, 2.0], [1.0], 0.0, "norm")  # type: ignore[arg-type]
    assert len(sources.batch_normalization(np.array(1.0), [1.0], [0.0], [1.0], 0.0, "norm").gamma()) == 1  # type: ignore[arg-type]
