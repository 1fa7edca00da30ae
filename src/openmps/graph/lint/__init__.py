"""What an Apple GPU would refuse of a graph, or do otherwise: a table of rules, each a function over what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from openmps.checks import of_kind
from openmps.convention.table import CONVENTIONS, MACHINES
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor, descriptors_of
from openmps.graph.graph import MPSNNGraph
from openmps.graph.lint import limits, numbers, placing, system
from openmps.graph.lint.findings import (
    Finding,
    LintReport,
    Magnitude,
    OpenReading,
    Severity,
    sorted_findings,
)
from openmps.graph.lint.samples import Samples, batches_of, peaks
from openmps.graph.lint.target import Target
from openmps.graph.lint.view import View

__all__ = ["RULES", "Finding", "LintReport", "Magnitude", "OpenReading", "Rule", "Severity", "lint"]

_SHAPES, _TARGET, _SAMPLES = "the shapes of source images", "a target", "samples"


class Rule(NamedTuple):
    """One rule: its names in findings, what it looks at, and what it needs besides the graph."""

    names: tuple[str, ...]
    check: Callable[[View], Iterator[Finding]]
    needs: str = ""


RULES: tuple[Rule, ...] = (
    Rule(("release",), system.releases, _TARGET),
    Rule(("groups",), limits.groups),
    Rule(("depthwise",), limits.depthwise),
    Rule(("sub-pixels",), limits.sub_pixels),
    Rule(("concatenation",), limits.concatenations, _SHAPES),
    Rule(("image-size",), limits.sizes, _SHAPES),
    Rule(("padded-channels",), limits.padded_channels),
    Rule(("unread-channels",), limits.unread_channels, _SHAPES),
    Rule(("weight-range",), numbers.weight_range),
    Rule(("weight-precision",), numbers.weight_precision),
    Rule(("activation-range",), numbers.activations, _SAMPLES),
    Rule(("format",), numbers.formats),
    Rule(("argument-format",), numbers.arguments),
    Rule(("padding-remainder",), placing.remainder, _SHAPES),
    Rule(("padding-dilation", "padding-edges"), placing.dilation),
    Rule(("padding-transposed",), placing.transposed),
    Rule(("read-count",), system.read_counts),
    Rule(("export",), system.exports),
    Rule(("labels",), system.labels),
)
"""Every rule, in the order in which a graph is looked at."""


def lint(
    graph: MPSNNGraph,
    image_descriptors: MPSImageDescriptor | Sequence[MPSImageDescriptor] | None = None,
    *,
    target: str | None = None,
    samples: Samples | None = None,
) -> LintReport:
    """What an Apple GPU would refuse of a graph, or do otherwise. Our addition.

    Rules on shapes need ``image_descriptors``, one for each of ``graph.source_image_handles``, or samples. ``target``
    names the oldest system that the graph is to run on, ``macos-10.14`` or ``ios-12``: classes and properties that came
    later are errors. Where shapes are known, the report names each open reading of the documentation that the graph
    depends on; see `conventions`. ``samples`` are arrays ``[images, height, width, channels]`` by the labels of the
    source images: they are run in float32, and the largest magnitude of every image is held against float16's 65,504.
    Uint8 numbers stand for 0 to 1.

    The rules are those of the framework's headers and of Metal's textures; no device is asked. What `Finding` says of
    a device that nobody has tried is what the headers say.

    Raises:
        MPSArgumentError: The target is none, samples do not fit the graph, or an encode of such images would fail.
        MPSTypeError: The graph is none, or samples are no arrays by label.
    """
    of_kind("lint", "graph", graph, MPSNNGraph)
    parsed = None if target is None else Target.parse(of_kind("lint", "target", target, str))
    arrays = None if samples is None else batches_of(graph, samples)
    given = _descriptors(graph, image_descriptors, arrays)
    program = None if given is None else graph.program_for(given, allow_fusion=False)
    view = View(graph, program, parsed, None if arrays is None else peaks(graph, arrays))
    has = {_SHAPES: program is not None, _TARGET: parsed is not None, _SAMPLES: arrays is not None, "": True}
    found = [finding for rule in RULES if has[rule.needs] for finding in rule.check(view)]
    left_out = [f"{', '.join(rule.names)}, which needs {rule.needs}" for rule in RULES if not has[rule.needs]]
    if given is None:
        left_out.append(f"conventions, which needs {_SHAPES}")
    readings = () if given is None else tuple(_readings(graph, given))
    return LintReport(sorted_findings(found), tuple(left_out), tuple(_magnitudes(view)), readings)


def _readings(graph: MPSNNGraph, given: Sequence[MPSImageDescriptor]) -> Iterator[OpenReading]:
    """The conventions on which encodes of such images depend, in the order of the table."""
    asked = graph.conventions_asked(given)
    for name, row in CONVENTIONS.items():
        if name in asked:
            choice = asked[name]
            proven = tuple(machine for machine, choices in MACHINES.items() if choices.get(name) == choice)
            yield OpenReading(name, choice, row.asks, proven)


def _magnitudes(view: View) -> Iterator[Magnitude]:
    for node, _ in view.layers():
        if view.peaks is not None:
            form = view.format_of(node.result_image).name.lower()
            peak = view.peaks[node.result_image]
            yield Magnitude(view.where(node), type(node).__name__, form, peak.magnitude)


def _descriptors(
    graph: MPSNNGraph, given: MPSImageDescriptor | Sequence[MPSImageDescriptor] | None, arrays: Sequence[object] | None
) -> list[MPSImageDescriptor] | None:
    """The shapes that were given, or those of the samples."""
    if given is not None:
        return descriptors_of("lint", given)
    if arrays is None:
        return None
    return [MPSImageBatch.from_numpy(graph.device, array)[0].descriptor() for array in arrays]
