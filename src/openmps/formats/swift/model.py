"""A whole model in Swift: the head that says how to use it, the class that makes the graph, what stands beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.errors import MPSExportError
from openmps.formats.swift.capture import SwiftGolden, capture_files
from openmps.formats.swift.classes import template
from openmps.formats.swift.layers import Layers
from openmps.formats.swift.literals import case, comment, literal, string
from openmps.formats.swift.nodes import Nodes
from openmps.formats.swift.text import Text, call, laid_out
from openmps.formats.swift.trained import Trained
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.releases import IOS, order_of
from openmps.graph.run.trace import filter_names
from openmps.kernels.optimizers import MPSNNOptimizer

_WIDTH = 95
"""Of a line of the head, behind its slashes and blanks."""
_NOT_SENDABLE = (
    "A graph with its weights. It is not `Sendable`: a graph is used by one thread at a time. Keep a",
    "model in one actor, or on one queue, or make one for each.",
)
_CATALYST = "13.0"
"""The first Mac Catalyst."""


class SwiftPreprocessing(NamedTuple):
    """What was done to pixels from 0 to 255: ``(pixel - mean) scale``, with a number for each channel, in an order."""

    order: str
    mean: tuple[float, ...]
    scale: tuple[float, ...]


class Model:
    """One graph as Swift: a source and the files that it reads.

    Raises:
        MPSExportError: Something of the graph cannot be said in Swift; the error lists all of it.
    """

    def __init__(
        self,
        graph: MPSNNGraph,
        name: str,
        *,
        half: bool = False,
        optimizer: MPSNNOptimizer | None = None,
        notes: Sequence[str] = (),
        preprocessing: SwiftPreprocessing | None = None,
        golden: SwiftGolden | None = None,
    ) -> None:
        self._graph, self._name, self._notes, self._preprocessing = graph, name, notes, preprocessing
        self._golden = golden
        self._faults: list[str] = []
        self._text = Text(name)
        if preprocessing is not None:
            self._text.use(template("preprocessing"))
            self._compare()
        self._trained = Trained(graph, optimizer, self._text, self._faults)
        self._layers = Layers(self._text, self._trained, half=half, graph_format=graph.format)
        self._nodes = Nodes(graph, self._text, self._layers, self._faults)
        self._check()
        self._inputs = self._nodes.inputs()
        for node, kernel in graph.kernels.items():
            self._nodes.filter(node, kernel)
        if self._faults:
            raise MPSExportError("export to Swift", graph.name, self._faults)
        self._graph_lines()

    @property
    def files(self) -> dict[str, bytes]:
        """Every file by its name: the source, and what it reads; with goldens what captures and tests it."""
        found = {f"{self._name}.swift": self._source().encode(), **self._text.files}
        if self._golden is not None:
            is_asked = self._preprocessing is not None
            found |= capture_files(self._name, self._available, self._golden, is_asked=is_asked)
        return found

    def _check(self) -> None:
        allocator = self._graph.destination_image_allocator
        if allocator not in (MPSImage.default_allocator(), MPSTemporaryImage.default_allocator()):
            name = type(allocator).__name__
            self._faults.append(f"{self._graph.name}: its allocator {name} is Python; set one in Swift")
        if not self._graph.kernels:
            self._faults.append(f"{self._graph.name}: has no filter that runs")

    def _compare(self) -> None:
        """The app must prepare images as the network was trained with them."""
        name, text = self._name, self._text
        text.line(f"guard preprocessing == {name}.preprocessing else {{")
        text.line(f"  throw {name}Error(")
        text.line("    description:")
        text.line(f'      "{name} must be given images as \\({name}.preprocessing), "')
        text.line('      + "the app prepares them as \\(preprocessing)")')
        text.line("}")

    # --- the graph ----------------------------------------------------------------------------------------------------

    def _graph_lines(self) -> None:
        text, interface = self._text, self._graph.interface
        if self._golden is not None:
            self._show()
        others = [image for image in interface.intermediates if image not in interface.exported]
        results = [self._nodes.image(image) for image in (interface.result, *others)]
        needed = [literal(interface.result_is_needed), *["true"] * len(others)]
        text.line("guard")
        if others:
            text.needs("10.15")
            text.lines.insert(-1, f"var needed: [ObjCBool] = [{', '.join(needed)}]")
            how = {"resultImages": f"[{', '.join(results)}]", "resultsAreNeeded": "&needed"}
        else:
            how = {"resultImage": results[0], "resultImageIsNeeded": needed[0]}
        text.call("  let graph = MPSNNGraph", {"device": "device", **how})
        text.line("else {")
        text.line(f'  throw {self._name}Error(description: "the device cannot run the graph")')
        text.line("}")
        text.line(f"graph.format = {case(self._graph.format)}")
        if self._graph.output_state_is_temporary:
            text.line("graph.outputStateIsTemporary = true")
        if self._graph.label is not None:
            text.line(f"graph.label = {string(self._graph.label)}")
        if self._graph.destination_image_allocator is MPSTemporaryImage.default_allocator():
            text.line("graph.destinationImageAllocator = MPSTemporaryImage.defaultAllocator()")

    def _show(self) -> None:
        """Hand every result out by the label that it has in traces, if the app asks for it."""
        filters, text = list(self._graph.kernels), self._text
        text.use(template("show"))
        text.line("if capturing {")
        for node, label in zip(filters, filter_names(filters, self._inputs), strict=True):
            image = self._nodes.image(node.result_image)
            text.line(f"  {self._name}Handle.show({image}, as: {string(label)})")
        text.line("}")

    # --- the source ---------------------------------------------------------------------------------------------------

    @property
    def _available(self) -> str:
        macos = self._text.since
        ios = IOS[macos]
        catalyst = max(ios, _CATALYST, key=order_of)
        return f"macOS {macos}, iOS {ios}, tvOS {ios}, macCatalyst {catalyst}, *"

    def _source(self) -> str:
        text = self._text
        beside = "".join(part.replace("AVAILABLE", self._available).replace("NAME", self._name) for part in text.beside)
        trained = self._trained.variables
        members = ["  /// The graph; encode it into a command buffer of the device that it was made for.",
                   "  public let graph: MPSNNGraph"]  # fmt: skip
        body = [part for line in text.lines for part in laid_out(f"    {line}")]
        body.append("    self.graph = graph")
        if self._preprocessing is not None:
            members += [
                "",
                "  /// What the network was trained with: an app that does anything else gets wrong results.",
                *laid_out(call(f"  public static let preprocessing = {self._name}Preprocessing", self._prepared())),
            ]
        if trained:
            members += self._trained_members()
            body += self._trained_lines()
        return "\n".join(
            [
                self._head(),
                "import Foundation",
                "import Metal",
                "import MetalPerformanceShaders",
                "",
                *(f"/// {line}" for line in _NOT_SENDABLE),
                f"@available({self._available})",
                f"public final class {self._name} {{",
                *members,
                "",
                "  /// The graph on a device, with the weights of the files in a folder.",
                *laid_out(f"  public init({', '.join(['device: MTLDevice, folder: URL', *self._asked()])}) throws {{"),
                *body,
                "  }",
                *(self._save() if trained else ()),
                "}",
                beside,
            ]
        )

    def _asked(self) -> list[str]:
        asked = [] if self._preprocessing is None else [f"preprocessing: {self._name}Preprocessing"]
        return [*asked, "capturing: Bool = false"] if self._golden is not None else asked

    def _prepared(self) -> dict[str, str]:
        """The arguments of the preprocessing in Swift."""
        assert self._preprocessing is not None
        order, mean, scale = self._preprocessing
        rows = (f"[{', '.join(literal(float(each)) for each in row)}]" for row in (mean, scale))
        return {"order": string(order), "mean": next(rows), "scale": next(rows)}

    def _trained_members(self) -> list[str]:
        return [f"  private let {group}: [{self._name}{kind}]" for group, kind in self._groups()]

    def _groups(self) -> list[tuple[str, str]]:
        kinds = (("trainedWeights", "TrainedWeights"), ("trainedNormalizations", "TrainedNormalization"))
        return [(group, kind) for group, kind in kinds if self._of_kind(kind)]

    def _of_kind(self, kind: str) -> list[str]:
        """The variables of trained data sources of one class."""
        start = f"{self._name}{kind}"
        return [
            name
            for name in self._trained.variables
            if any(line.startswith(f"let {name} = try {start}") for line in self._text.lines)
        ]

    def _trained_lines(self) -> list[str]:
        return [
            part
            for group, kind in self._groups()
            for part in laid_out(f"    self.{group} = [{', '.join(self._of_kind(kind))}]")
        ]

    def _save(self) -> list[str]:
        return [
            "",
            "  /// Write all that was trained into a folder, in files of the same names, once no work is under",
            "  /// way.",
            "  public func save(to folder: URL) throws {",
            *(f"    for each in {group} {{ try each.save(to: folder) }}" for group, _ in self._groups()),
            "  }",
        ]

    def _usage(self) -> list[str]:
        """How the model is made and encoded, as statements."""
        lines = ["let folder = Bundle.main.resourceURL ?? Bundle.main.bundleURL"]
        if self._preprocessing is None:
            lines.append(f"let model = try {self._name}(device: device, folder: folder)")
        else:
            lines += ["// What the app does to pixels; anything else is an error."]
            lines += laid_out(call(f"let preprocessing = {self._name}Preprocessing", self._prepared()))
            lines.append(f"let model = try {self._name}(")
            lines.append("  device: device, folder: folder, preprocessing: preprocessing)")
        one, several = self._sources("image"), self._sources("images")
        if self._graph.interface.input_states:
            lines.append("// images and labels are lists, with an MPSCNNLossLabels for each image.")
            states = f"[{', '.join(['labels'] * len(self._graph.interface.input_states))}]"
        else:
            lines += laid_out(f"let result = model.graph.encode(to: commandBuffer, sourceImages: {one})")
            lines.append("// A batch of images is encoded at once: a list for each source, all of one length.")
            states = "nil"
        lines.append("let results = model.graph.encodeBatch(")
        lines.append(f"  to: commandBuffer, sourceImages: {several}, sourceStates: {states})")
        return lines

    def _sources(self, name: str) -> str:
        count = len(self._inputs)
        return f"[{', '.join([name] if count == 1 else [f'{name}{place + 1}' for place in range(count)])}]"

    def _head(self) -> str:
        """How to use the model."""
        interface, name = self._graph.interface, self._name
        states = len(interface.input_states)
        lines = [f"{name}.swift", ""]
        lines += map(comment, self._notes)
        lines.append(f"It needs macOS {self._text.since} or iOS {IOS[self._text.since]}.")
        lines.append("")
        lines.append(
            f"Add this file to a target, and the {len(self._text.files)} .dat file(s) beside it to its resources:"
        )
        lines += [f"    {line}" for line in self._usage()]
        lines.append("")
        listed = ", ".join(repr(comment(label)) for label in self._inputs)
        lines.append(f"Source images by the labels of graph.sourceImageHandles: {listed}.")
        if states:
            lines.append(
                f"Source states by graph.sourceStateHandles: {states}, an MPSCNNLossLabels for each image of a batch."
            )
        if interface.exported:
            lines.append(f"Exported images: {len(interface.exported)}; take them as intermediateImages.")
        if self._golden is not None:
            lines.append(f"With capturing: true the graph hands out every image, for {self._name}Capture.swift.")
        if self._trained.variables:
            lines.append(
                "Each encode asks the data sources for an update; save(to:) writes the numbers when it is done."
            )
        wrapped = [part for line in lines for part in _wrapped(line)]
        return "\n".join(["//" if not line else f"//  {line}" for line in wrapped]) + "\n"


def _wrapped(line: str) -> list[str]:
    if line.startswith("    ") or len(line) <= _WIDTH:
        return [line]
    return textwrap.wrap(line, _WIDTH)
