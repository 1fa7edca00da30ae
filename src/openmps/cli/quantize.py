"""``openmps quantize``: the weights of a network in 8 bits, with a report of what it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmps.cli.models import open_graph
from openmps.cli.options import Device, Samples, note, require_another, require_new
from openmps.cli.reading import is_model, is_onnx, open_run, require_data, require_network, require_unread
from openmps.cli.registry import Modules, registry_of
from openmps.cli.subjects import Given, ImageFiles, check_used, given_to, seen_by, sources_of
from openmps.errors import MPSFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openmps.formats.quantization import QuantizedForm
    from openmps.metal.device import MTLDevice
    from openmps.training.dataset import Dataset, DataSplit
    from openmps.training.run_folder import RunFolder

_NETWORK, _OUT = "RUN|ARCHIVE", "OUT"


Form = Annotated[
    str | None, typer.Option(help="linear or table, of all layers.  [default: what errs less]", show_default=False)
]
Report = Annotated[Path | None, typer.Option(metavar="FILE.json", help="The report as JSON.", show_default=False)]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="A run's data.  [default: those it names]", show_default=False, callback=require_data
    ),
]


def quantize(
    context: typer.Context,
    network: Annotated[
        Path,
        typer.Argument(
            metavar=_NETWORK,
            help="A run folder, or a graph in an archive.",
            show_default=False,
            callback=require_network,
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar=_OUT, help="The archive to write.", show_default=False)],
    images: ImageFiles = None,
    samples: Samples = None,
    count: Annotated[int, typer.Option(min=1, help="How many of a run's training images, if none are given.")] = 8,
    form: Form = None,
    report: Report = None,
    data: Data = None,
    device: Device = "auto",
    registry: Modules = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write a network with weights of 8 bits.

    Each convolution gets linear ranges a channel or a lookup table of 256, whichever errs less in its results for the
    images, a run's first training images unless others are given. The accuracy of a run on its test images is measured
    before and after. openmps run, export and compare take the archive.
    """
    from openmps.debug import quantize as in_8_bits
    from openmps.formats.atomic import write_all_atomic
    from openmps.runtime.devices import mtl_device

    check_used(context, images or [], samples, training=False)
    chosen, run = _form(form), _run(network, data)
    _check_files(network, out, report, [*(images or ()), samples], force=force)
    found = open_graph(network, device=mtl_device(device), registry=registry_of(registry, network))
    split = None if run is None else _data(run, data)
    if run is None or split is None or images or samples is not None:
        given = given_to(network, images or [], samples, count, None, training=False)
    else:
        given = Given({"": seen_by(run, split.training.images[:count])}, None)
    sources, notes = sources_of(found, given)
    note(*notes)
    made = in_8_bits(found.graph, sources, chosen)
    content = made.archived(found.graph if found.model is None else found.model.root)
    tested = {} if run is None or split is None else _tested(run, split.test, found.graph.device, content)
    facts = json.dumps({**made.facts(), **tested}, indent=2).encode() + b"\n"
    write_all_atomic({out: content, **({} if report is None else {report: facts})})
    print(made)
    for when, accuracy in tested.get("test_accuracy", {}).items():
        print(f"test accuracy {when}: {100 * accuracy:.2f} %")
    print(f"{out}: {len(content):,} bytes")


def _run(network: Path, data: Path | None) -> RunFolder | None:
    """The run that is given; None for an archive, which names no data."""
    from openmps.formats.paths import is_file

    if not (is_file(network, "openmps") or is_model(network)):
        return open_run(network)
    if data is not None:
        raise typer.BadParameter("is for run folders: an archive names no data", param_hint="--data")
    return None


def _data(run: RunFolder, data: Path | None) -> DataSplit:
    from openmps.training.run_description import run_data

    return run_data(run, data)


def _check_files(network: Path, out: Path, report: Path | None, read: Sequence[Path | None], *, force: bool) -> None:
    """Raise where one of the files cannot be written, or is another one of those that are named."""
    if is_onnx(out):
        raise MPSFileError("openmps quantize", str(out), "must not end in .onnx: what is written is an archive")
    for path in (out, *([] if report is None else [report])):
        require_unread(path, network, read)
        require_new(path, force=force)
    if report is not None:
        require_another(report, out, _OUT)


def _form(text: str | None) -> QuantizedForm | None:
    from openmps.debug import QuantizedForm

    if text is not None and text not in [*QuantizedForm]:
        raise typer.BadParameter(f"{text!r} is neither linear nor table", param_hint="--form")
    return None if text is None else QuantizedForm(text)


def _tested(run: RunFolder, test: Dataset, device: MTLDevice, content: bytes) -> dict[str, Any]:
    """How often the network of a run is right, with its own weights and with those of an archive of its graph."""
    from openmps.formats.archive import MPSKeyedUnarchiver
    from openmps.graph.graph import MPSNNGraph
    from openmps.training.inference import Classifier

    graph = MPSKeyedUnarchiver.unarchived_object_of_class(MPSNNGraph, content, device)
    before = Classifier.open(run, device)
    after = before.with_graph(graph)
    return {
        "test_images": len(test),
        "test_accuracy": {"before": before.evaluate(test).accuracy, "after": after.evaluate(test).accuracy},
    }
