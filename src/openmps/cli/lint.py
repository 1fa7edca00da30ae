"""``openmps lint``: what an Apple GPU would refuse of a graph, or do otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmps.cli.models import Images, as_taken, chosen_images, open_graph
from openmps.cli.options import Samples, Training, note
from openmps.cli.reading import Network
from openmps.cli.registry import Modules, registry_of
from openmps.errors import MPSFileError

if TYPE_CHECKING:
    from openmps.graph.graph import MPSNNGraph

_HAS_ERRORS = 1


def lint(
    graph: Network,
    target: Annotated[
        str | None,
        typer.Option(metavar="SYSTEM", help="The oldest system: macos-10.14, ios-12, tvos-13.", show_default=False),
    ] = None,
    samples: Samples = None,
    image: Images = None,
    training: Training = False,
    conformance: Annotated[
        bool, typer.Option("--conformance", help="Say, too, of each class of filters what is proven by Macs.")
    ] = False,
    registry: Modules = None,
) -> None:
    """Say what an Apple GPU would refuse.

    Or would do otherwise than openmps: findings are errors, warnings and notes, each with the filter, the rule, what
    was found and what to do. The exit status is 1 if there are errors. Samples are run in float32 to see which images
    float16 cannot hold.
    """
    from openmps.graph.lint import lint as look

    found = open_graph(graph, training=training, registry=registry_of(registry, graph))
    if image and samples is not None:
        raise typer.BadParameter("must be left out: samples have a size", param_hint="--image")
    given = None if samples is None else arrays_in(samples)
    shapes = chosen_images(found, image)
    if given is not None:
        given, notes = as_taken(found, given)
        note(*notes)
    report = look(found.graph, shapes if given is None else None, target=target, samples=given)
    print(report)
    if conformance:
        _print_conformance(found.graph)
    if not report.ok:
        raise typer.Exit(_HAS_ERRORS)


def _print_conformance(graph: MPSNNGraph) -> None:
    """How many cases that ask the network's classes are proven, and by whom."""
    from openmps.conformance.cases import cases
    from openmps.conformance.evidence import network_proof, proof_table
    from openmps.conformance.goldens import goldens
    from openmps.runtime.devices import mtl_device

    print(f"\n{proof_table(network_proof(graph, cases(), goldens(), mtl_device('cpu')))}")


def arrays_in(path: Path) -> dict[str, Any]:
    """The arrays of a file; objects in it are refused, as they could run code."""
    from openmps.formats.exchange.npz import load_npy, load_npz
    from openmps.formats.paths import begins_with

    is_zip = begins_with(path, "lint", b"PK")
    try:
        return load_npz(path) if is_zip else {"image": load_npy(path)}
    except MPSFileError as error:
        why = str(error).removeprefix(f"{error.who}: ")
        raise MPSFileError("lint", str(path), "must be arrays of NumPy, .npz or .npy", None, why) from error
