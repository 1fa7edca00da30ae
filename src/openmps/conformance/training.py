"""Cases of training graphs: forward nodes up to a loss, gradient nodes behind them, and what data sources are shown.

Layers are trained in the CPU's style by data sources that change nothing: they are shown the gradients of their
parameters when the command buffer has completed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import openmps.names as names
from openmps.conformance.arrays import array_of, written
from openmps.conformance.graphs import NodeMaker
from openmps.conformance.kernels import PARAMETER_GRADIENTS, loss_data, pixels
from openmps.conformance.objects import Maker
from openmps.formats.archive.sources import ArchivedConvolutionWeights

Given = Mapping[str, Any]


class _Shown(ArchivedConvolutionWeights):
    """The data source of a convolution that keeps the gradients that it is shown."""

    gradients: Mapping[str, Any]

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> bool:
        """Keep them. The parameters are right as they are: True, for False is a failure."""
        self.gradients = {
            name: written(np.frombuffer(getattr(gradient_state, attribute).contents(), np.float32))
            for name, attribute in PARAMETER_GRADIENTS.items()
            if hasattr(gradient_state, attribute)
        }
        return True


class _TrainingMaker(NodeMaker):
    """Makes data sources that are shown gradients."""

    def __init__(self, device: names.MTLDevice, sources: int) -> None:
        super().__init__(device, sources)
        self.shown: list[_Shown] = []

    def value(self, given: Any) -> Any:
        if not isinstance(given, Mapping) or "descriptor" not in given:
            return super().value(given)
        made = self.weights(given)
        shown = _Shown(made.convolution_descriptor, made.weight_array, made.bias_array)
        self.shown.append(shown)
        return shown


def training_answer(maker: Maker, entry: Given) -> tuple[dict[str, Any], list[Any]]:
    """What a training graph's case reads, and the forward nodes that answered."""
    device, nodes = maker.device, _TrainingMaker(maker.device, 1)
    for given in entry["nodes"]:
        nodes.nodes.append(nodes.object(given))
    (end,) = nodes.nodes[-1].training_graph()
    graph = names.MPSNNGraph(device, end.result_image)
    graph.format = names.MPSImageFeatureChannelFormat(entry["format"])
    graph.destination_image_allocator = names.MPSImage.default_allocator()
    images = names.MPSImageBatch.from_numpy(
        device, array_of(entry["sources"][0]), names.MPSImageFeatureChannelFormat.FLOAT32
    )
    if maker.noted is not None:
        maker.noted.asked |= graph.conventions_asked([images[0].descriptor()]).keys()
    size = names.MTLSize(*entry["lossImageSize"])
    labels = [
        names.MPSCNNLossLabels(device, loss_data(each), loss_image_size=size) for each in array_of(entry["labels"])
    ]
    command_buffer = device.new_command_queue().command_buffer()
    result = graph.encode_batch(command_buffer, [images], [names.MPSStateBatch(labels)])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return dict(_read(entry, result, labels, nodes.shown)), nodes.nodes


def _read(entry: Given, result: Any, labels: list[Any], shown: list[_Shown]) -> Iterator[tuple[str, Any]]:
    for name in entry["read"]:
        if name == "result":
            yield name, written(pixels(result))
        elif name == "loss":
            yield name, written(pixels([each.loss_image() for each in labels]))
        else:
            yield name, [each.gradients[name] for each in shown]
