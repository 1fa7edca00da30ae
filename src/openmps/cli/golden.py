"""``openmps golden``: what a network gives, kept for CI, and held against what another one or a device gives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openmps.cli.options import Device, Format, Samples, refuse_given
from openmps.cli.reading import require_data, require_network
from openmps.cli.registry import Modules, registry_of
from openmps.cli.subjects import Count, ImageFiles, check_used, chosen_format, found_at, given_to, sources_of

_BEYOND = 1
_NETWORK = "RUN|ARCHIVE|MODEL.onnx"

golden_app = typer.Typer(
    name="golden",
    help="Keep a network's results for CI, and check others against them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@golden_app.command()
def make(
    context: typer.Context,
    network: Annotated[
        Path, typer.Argument(metavar=_NETWORK, help="What to run.", show_default=False, callback=require_network)
    ],
    images: ImageFiles = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="A new folder, needed.", show_default=False)] = None,
    samples: Samples = None,
    count: Count = 8,
    channel_format: Annotated[
        str, typer.Option("--format", help="What a device may store: float32 or float16.")
    ] = "float16",
    device: Device = "auto",
    registry: Modules = None,
) -> None:
    """Run a network in float32, and keep its results with limits.

    Limits are percentiles of errors, of the largest magnitude: what rounding to the device's format explains. Images
    are those of the files, or the first test images of a run.
    """
    from openmps.cli.options import format_of
    from openmps.debug import make_golden, save_golden
    from openmps.runtime.devices import mtl_device
    from openmps.types import MPSImageFeatureChannelFormat

    if out is None:
        raise typer.BadParameter("is needed: the folder to make", param_hint="--out")
    check_used(context, images or [], samples, training=False)
    form, makers = format_of(channel_format), registry_of(registry, network)
    full = MPSImageFeatureChannelFormat.FLOAT32
    found = found_at(network, mtl_device(device), full, training=False, registry=makers)
    sources, _ = sources_of(found, given_to(network, images or [], samples, count, None, training=False))
    golden = make_golden(found.graph, sources, form)
    folder = save_golden(golden, out)
    print(f"{len(golden.sources[0].array)} image(s), {len(golden.results)} result(s) in {folder}")


@golden_app.command()
def check(
    context: typer.Context,
    golden: Annotated[
        Path, typer.Argument(help="A folder of openmps golden make.", show_default=False, callback=require_data)
    ],
    found: Annotated[
        Path,
        typer.Argument(
            metavar=f"{_NETWORK}|CAPTURE", help="What is held against it.", show_default=False, callback=require_network
        ),
    ],
    channel_format: Format = None,
    device: Device = "auto",
    registry: Modules = None,
) -> None:
    """Hold a network's results, or a device's, against those kept.

    The exit status is 1 if a percentile of the errors is beyond its limit.
    """
    from openmps.debug import check_golden, load_capture, load_golden
    from openmps.formats.captures import is_capture
    from openmps.runtime.devices import mtl_device

    kept = load_golden(golden)
    if is_capture(found):
        refuse_given(context, "channel_format device registry", "a capture has run already")
        report = check_golden(kept, load_capture(found))
    else:
        makers, form = registry_of(registry, found), chosen_format(channel_format)
        graph = found_at(found, mtl_device(device), form, training=False, registry=makers).graph
        report = check_golden(kept, graph)
    print(report)
    if not report.ok:
        raise typer.Exit(_BEYOND)
