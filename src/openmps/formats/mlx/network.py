"""A whole network for MLX: the module's head, its class, the weights, and the index that says what the folder is."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from openmps.convention.table import CONVENTIONS
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.errors import MPSArgumentError, MPSExportError
from openmps.formats.atomic import digest_of
from openmps.formats.mlx.folder import FORMAT, INDEX, MODULE, VERSION, WEIGHTS
from openmps.formats.mlx.layers import LAYERS
from openmps.formats.mlx.text import Text, template
from openmps.formats.mlx.training import loss_lines, optimizer_of
from openmps.formats.onnx.problems import NodeError
from openmps.formats.onnx.writing import layer_of
from openmps.formats.safetensors_parts import SafetensorsParts
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.loss import MPSCNNLossNode
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNImageNode
from openmps.graph.run.trace import filter_names, gradient_images, source_names

WHO = "openmps.formats.mlx.export"
_WRITTEN = frozenset({
    *("alignment", "negative_remainder", "average_preset", "average_valid_preset", "excluded_edges", "l2_clamp"),
    *("concatenation_filler", "graph_primary_scale", "bilinear_centres"),
    *("source_order", "source_reads", "intermediate_order"),
})  # fmt: skip
"""Conventions whose every choice is written."""
_NO_COUNTERPART = "it is not written for MLX"
_WIDTH = 100
_USE = """
    network = NAME.load()
    results = network(SOURCES)
"""
_TRAIN = """
Training, as the graph does it:

    network.train()
    optimizer, step = NAME.optimizer(), nn.value_and_grad(network, network.loss)
    loss, gradients = step(SOURCES, labels)
    optimizer.update(network, gradients)
    mx.eval(network.parameters(), optimizer.state)
    network.save_weights("trained.safetensors")
"""


def network_files(
    graph: MPSNNGraph, given: Sequence[MPSImageDescriptor], name: str, notes: Sequence[str]
) -> dict[str, bytes | SafetensorsParts]:
    """The module, its weights and the index, by file name."""
    _check_conventions(graph, given)
    made = _Network(graph, given, name, notes)
    weights = SafetensorsParts(made.text.weights)
    index = {
        "format": FORMAT, "version": VERSION, "class": name, "sources": made.sources_index(given),
        "weights_sha256": digest_of(weights),
    }  # fmt: skip
    return {MODULE: made.module().encode(), WEIGHTS: weights, INDEX: json.dumps(index, indent=2).encode() + b"\n"}


def _check_conventions(graph: MPSNNGraph, given: Sequence[MPSImageDescriptor]) -> None:
    """Only readings that are written: each module gives the graph's numbers, or there is none."""
    for name, choice in graph.conventions_asked(given).items():
        if choice != CONVENTIONS[name].default and name not in _WRITTEN:
            rule = f"follows the convention {name}={choice!r}, which is not written for MLX"
            remedy = f"Make it with {name}={CONVENTIONS[name].default!r}"
            raise MPSArgumentError(WHO, "graph", rule, None, remedy)


class _Network:
    """One network as Python.

    Raises:
        MPSExportError: Nodes that have no counterpart; all of them.
    """

    def __init__(self, graph: MPSNNGraph, given: Sequence[MPSImageDescriptor], name: str, notes: Sequence[str]) -> None:
        program = graph.program_for(given, allow_fusion=False)
        backward, interface = gradient_images(program), graph.interface
        losses = [node for node in graph.kernels if isinstance(node, MPSCNNLossNode)]
        self._name, self._notes, self._inputs = name, notes, interface.inputs
        self._forward = {node: kernel for node, kernel in graph.kernels.items() if node.result_image not in backward}
        self._problems: list[str] = []
        self.text = text = Text(program, trains=bool(backward))
        self._sources = source_names(self._inputs)
        self._variables = [text.name(image, label) for image, label in zip(self._inputs, self._sources, strict=True)]
        self._labels = self._layers()
        wanted = [interface.result] * interface.result_is_needed + list(interface.intermediates)
        self._results = [image for image in wanted if image not in backward]
        self._loss = self._trained(losses) if backward else None
        if self._problems:
            raise MPSExportError(WHO, graph.name, self._problems)
        if not self._results:
            rule, remedy = "must have a result besides gradients", "Export an image, or export the graph that infers"
            raise MPSArgumentError(WHO, "graph", rule, None, remedy)

    def sources_index(self, given: Sequence[MPSImageDescriptor]) -> list[dict[str, Any]]:
        """What the index says of source images."""
        return [
            {"label": label, "height": each.height, "width": each.width, "channels": each.feature_channels}
            for label, each in zip(self._sources, given, strict=True)
        ]

    def _layers(self) -> dict[MPSNNImageNode, str]:
        """Write all filters; the labels of their results."""
        labels, text = dict[MPSNNImageNode, str](), self.text
        for (node, kernel), label in zip(
            self._forward.items(), filter_names(self._forward, self._sources), strict=True
        ):
            labels[node.result_image] = label
            name = text.name(node.result_image, label)
            try:
                layer = layer_of(LAYERS, node)
                if layer is None:
                    raise NodeError(_NO_COUNTERPART)
                text.assign(name, layer(text, node, kernel))
            except NodeError as problem:
                self._refuse(node, problem)
        return labels

    def _refuse(self, node: MPSNNFilterNode, problem: NodeError) -> None:
        self._problems.append(f"{type(node).__name__} {node.label or ''}".rstrip() + f": {problem.why}")

    def _trained(self, losses: Sequence[MPSCNNLossNode]) -> str:
        """The methods that train."""
        if len(losses) != 1:
            self._problems.append(
                f"the graph trains by {len(losses)} nodes of the class MPSCNNLossNode, one is written"
            )
            return ""
        (loss,), optimizer = losses, None
        try:
            if loss.sources[0] not in self._labels:
                raise NodeError("it is of a source image: nothing is trained")
            lines = loss_lines(loss.loss_descriptor)
            optimizer = optimizer_of(self.text, self._forward)
        except NodeError as problem:
            self._refuse(loss, problem)
            return ""
        label = self._labels[loss.sources[0]]
        text = template("training") if optimizer else template("training").partition("\n    @staticmethod")[0]
        words = {
            "PREDICTIONS_TEXT": f"those of the layer {_plain(label)}",
            "PREDICTIONS": _quoted(label),
            "OPTIMIZER": optimizer or "",
            "LOSS": "\n".join(f"        {line}" for line in lines),
        }
        return self._filled(text, words)

    # --- the module ---------------------------------------------------------------------------------------------------

    def module(self) -> str:
        """The source."""
        text, results = self.text, [self._labels[image] for image in self._results]
        found = [f"layers[{_quoted(label)}]" for label in results]
        listed = [f"            {_quoted(label)}: {text.variable(image)}," for image, label in self._labels.items()]
        training = self._loss or ""
        words = {
            "HEAD": self._head(),
            "IMPORTS": "import mlx.optimizers as optim\n" if "@staticmethod" in training else "",
            "BESIDE": text.beside,
            "MEMBERS": "\n".join(text.members),
            "RESULT_TEXT": f"The {'result' if len(results) == 1 else 'results'} {', '.join(map(_plain, results))}.",
            "RESULT": found[0] if len(found) == 1 else f"({', '.join(found)})",
            "STATEMENTS": "\n".join(text.statements),
            "LAYERS": "\n".join(listed),
            "TRAINING": training.rstrip("\n"),
        }
        return self._filled(template("module"), words).rstrip("\n") + "\n"

    def _filled(self, text: str, words: Mapping[str, str]) -> str:
        """A template with its words in capitals replaced; what is put there stays as it is."""
        found = {"SOURCES": ", ".join(self._variables), "NAME": self._name, **words}
        return re.sub(rf"\b({'|'.join(found)})(?![A-Z_])", lambda match: found[match[0]], text)

    def _head(self) -> str:
        """The docstring of the module."""
        sizes = [self.text.shape(image) for image in self._inputs]
        shapes = [f"{name} [N, {', '.join(map(str, size))}]" for name, size in zip(self._variables, sizes, strict=True)]
        lines = [f"A network for MLX, written by openmps. Images are float32 N, H, W, C: {', '.join(shapes)}.", ""]
        for note in self._notes:
            lines += textwrap.wrap(_plain(note), _WIDTH, break_long_words=False, break_on_hyphens=False)
        trains = _TRAIN if "@staticmethod" in (self._loss or "") else ""
        return "\n".join(lines) + self._filled(f"\n{_USE}{trains}", {})


def _quoted(label: str) -> str:
    """A label as a literal of text."""
    is_plain = label.isascii() and label.isprintable() and not set(label) & set('"\\')
    return f'"{label}"' if is_plain else repr(label)


def _plain(text: str) -> str:
    """Text that a docstring may hold."""
    return "".join(each if each.isprintable() and each not in '"\\' else " " for each in text)
