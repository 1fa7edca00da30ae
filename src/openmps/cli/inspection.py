"""``openmps trace``, ``openmps compare`` and ``openmps profile``: looking inside of networks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmps.cli.options import Device, Format, Samples, Training, refuse_given
from openmps.cli.reading import require_network, require_unread
from openmps.cli.registry import Modules, registry_of
from openmps.cli.subjects import (
    IMAGES,
    Count,
    ImageFiles,
    Labels,
    check_used,
    chosen_format,
    found_at,
    given_to,
    run_among,
    traced,
)
from openmps.cli.training_options import NETWORK_NAMES

if TYPE_CHECKING:
    from openmps.cli.subjects import Given
    from openmps.debug import CaptureVerdict, Comparison
    from openmps.formats.archive import Registry
    from openmps.graph.run.trace import Trace

_DEPARTS = 1
_NETWORKS = "RUN|ARCHIVE|MODEL"
First = Annotated[
    Path,
    typer.Argument(
        metavar="A",
        help=f"{_NETWORKS}, of ONNX or Core ML; a folder of openmps trace or for MLX; a capture of a device.",
        show_default=False,
        callback=require_network,
    ),
]
More = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[B] [IMAGE...]", help="The other, A itself where left out; images.", show_default=False),
]
Formats = Annotated[
    str | None, typer.Option("--format", metavar="A[,B]", help="float32 or float16, of each.", show_default=False)
]
Tolerance = Annotated[
    float | None,
    typer.Option(help="Largest error.  [default: 1e-4, 2e-2 where float16 is stored]", show_default=False),
]
Rounding = Annotated[
    bool, typer.Option("--rounding", help="Run A's layers from B's images, and say what rounding explains.")
]
Fused = Annotated[bool, typer.Option("--fused", help="Run what an encode runs: without the images that fusions hide.")]


def trace(
    context: typer.Context,
    network: Annotated[
        Path, typer.Argument(metavar=_NETWORKS, help="What to run.", show_default=False, callback=require_network)
    ],
    images: ImageFiles = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder for the arrays.", show_default=False)
    ] = None,
    samples: Samples = None,
    count: Count = 8,
    labels: Labels = None,
    training: Training = False,
    fused: Fused = False,
    channel_format: Format = None,
    device: Device = "auto",
    registry: Modules = None,
) -> None:
    """Run a network, and show all its values.

    The ranges and zeros of every image, gradient, state and weight, and what is not finite.

    Images are those of the files, or the first test images of a run. With --out every value is written as .npy, and
    index.json says what is what. Nothing is trained: --training shows a step without its update.
    """
    from openmps.debug import save_trace
    from openmps.runtime.devices import mtl_device

    check_used(context, images or [], samples, training=training)
    makers = registry_of(registry, network)
    subject = found_at(network, mtl_device(device), chosen_format(channel_format), training=training, registry=makers)
    found = traced(subject, given_to(network, images or [], samples, count, labels, training=training), fused=fused)
    print(found)
    if out is not None:
        print(f"{len(found)} values in {save_trace(found, out)}")


def compare(
    context: typer.Context,
    first: First,
    more: More = None,
    samples: Samples = None,
    count: Count = 8,
    labels: Labels = None,
    training: Training = False,
    formats: Formats = None,
    devices: Annotated[str, typer.Option("--device", metavar="A[,B]", help="cpu, cuda or auto, of each.")] = "auto",
    fusion: Annotated[str, typer.Option(metavar="A[,B]", help="on or off, of each.")] = "off",
    tolerance: Tolerance = None,
    rounding: Rounding = False,
    run_python: Annotated[bool, typer.Option("--run-python", help="Run the Python of a folder for MLX.")] = False,
    registry: Modules = None,
) -> None:
    """Hold two networks against each other.

    Or one against itself in another format or on another device.

    Both are given the same images: files that end in .png, .jpg, .jpeg or .bmp. For every layer the error by
    percentiles, over its largest magnitude, and how much of float16's range is used; the first layer that departs is
    named, and the exit status is 1 if there is one.

    Of a capture each layer runs from the device's own images; what rounding does not explain departs, with the mistake
    that gives the device's numbers. Images are compared with what the device was given. So it is with --rounding, and
    where A or B is a folder for MLX, or on a Mac a Core ML package, of which Core ML itself gives the results.
    """
    from openmps.cli.captures import compare_with_capture
    from openmps.cli.judging import Sides, judge, runtime_of
    from openmps.debug import compare as hold_against
    from openmps.debug.files import is_trace
    from openmps.formats.captures import is_capture

    images, others = _images_among(more or [])
    if is_capture(first):
        _tell(compare_with_capture(context, first, others, images, samples, _two(devices, "--device")[0], registry))
        return
    other = others[0] if others else first
    if rounding or runtime_of(first) or runtime_of(other):
        places = _two(formats, "--format"), _two(devices, "--device")
        _tell(judge(context, Sides((first, other), images, samples, count, *places, registry, run_python)))
        return
    _check_other(context, first, other, images)
    check_used(context, images, samples, training=training)
    makers = registry_of(registry, *(path for path in (first, other) if not is_trace(path)))
    formats_of, devices_of, fusions = _two(formats, "--format"), _two(devices, "--device"), _two(fusion, "--fusion")
    given = _given(first, other, images, samples, count, labels, training=training)
    sides = (
        _side(path, given, form, device, _is_on(fused), training=training, registry=makers)
        for path, form, device, fused in zip((first, other), formats_of, devices_of, fusions, strict=True)
    )
    _tell(hold_against(*sides, tolerance=tolerance))


def _tell(found: Comparison | CaptureVerdict) -> None:
    """Print what was found; the exit status says whether something departs."""
    print(found)
    if not found.ok:
        raise typer.Exit(_DEPARTS)


def _images_among(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """What is an image by its name, and what is not: one path at most."""
    images = [path for path in paths if path.suffix.lower() in IMAGES]
    others = [path for path in paths if path not in images]
    if len(others) > 1:
        raise typer.BadParameter(f"{others[1]} is a third one; images end in {', '.join(IMAGES)}", param_hint="B")
    return images, others


def _check_other(context: typer.Context, first: Path, other: Path, images: list[Path]) -> None:
    """Refuse a capture in the second place, and between traces what only networks are given."""
    from openmps.debug.files import is_trace
    from openmps.formats.captures import is_capture

    if is_capture(other):
        raise typer.BadParameter(f"{other} is a capture: name it first, the network behind it", param_hint="B")
    if is_trace(first) and is_trace(other):
        why = "both are traces"
        refuse_given(context, "samples count labels training formats devices fusion", why)
        if images:
            raise typer.BadParameter(f"must be left out: {why}", param_hint="IMAGE")


def _given(
    first: Path, second: Path, images: list[Path], samples: Path | None, count: int, labels: str | None, *,
    training: bool,
) -> Given | None:  # fmt: skip
    """What both are given: of the run among them, if no images are; nothing where both are traces already."""
    from openmps.debug.files import is_trace

    networks = [path for path in (first, second) if not is_trace(path)]
    return given_to(run_among(networks), images, samples, count, labels, training=training) if networks else None


def _side(
    path: Path,
    given: Given | None,
    form: str | None,
    device: str | None,
    fused: bool,
    *,
    training: bool,
    registry: Registry,
) -> Trace:
    from openmps.debug import load_trace
    from openmps.debug.files import is_trace
    from openmps.runtime.devices import mtl_device

    if given is None or is_trace(path):
        return load_trace(path)
    place = mtl_device(device or "auto")
    subject = found_at(path, place, chosen_format(form), training=training, registry=registry)
    return traced(subject, given, fused=fused)


def _two(text: str | None, option: str) -> tuple[str | None, str | None]:
    """``float32,float16`` → both; one stands for both."""
    parts = [None] if text is None else [part.strip() for part in text.split(",")]
    if len(parts) not in (1, 2):
        raise typer.BadParameter(f"{text!r} has more than two parts", param_hint=option)
    if "" in parts:
        raise typer.BadParameter(f"{text!r} has an empty part: write one name, or A,B", param_hint=option)
    return parts[0], parts[-1]


def _is_on(text: str | None) -> bool:
    if text not in ("on", "off"):
        raise typer.BadParameter(f"{text!r} is neither on nor off", param_hint="--fusion")
    return text == "on"


def _known(network: Path) -> Path:
    return network if str(network) in NETWORK_NAMES else require_network(network)


def profile(
    context: typer.Context,
    network: Annotated[
        Path, typer.Argument(metavar=f"{_NETWORKS}|NETWORK", help="What to run.", show_default=False, callback=_known)
    ],
    batch: Annotated[int, typer.Option(min=1, max=1 << 16, help="Images at a time.")] = 32,
    training: Training = False,
    image: Annotated[
        str | None,
        typer.Option(metavar="WIDTHxHEIGHTxCHANNELS", help="The size of images, but for runs.", show_default=False),
    ] = None,
    classes: Annotated[int, typer.Option(min=2, max=1 << 16, help="Classes, of a NETWORK by name.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, max=1 << 16, help="Runs that are timed.")] = 5,
    chrome: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A Chrome trace to write.", show_default=False)
    ] = None,
    channel_format: Format = None,
    device: Device = "auto",
    registry: Modules = None,
) -> None:
    """Say where the time of a network goes.

    Each step's time, operations and bytes a second, and share of the limit.

    The limit is what the machine does in a matrix product and in a copy, measured at the start. NETWORK is a name of
    openmps train --network. Images are random, or a run's. What --training trains is not kept.
    """
    from openmps.cli.workloads import is_by_name, workload
    from openmps.debug import profile as time_steps
    from openmps.runtime.devices import mtl_device

    if not is_by_name(network):
        refuse_given(context, "classes", "it is for a NETWORK by name")
        if chrome is not None:
            require_unread(chrome, network)
    place = mtl_device(device)
    makers = registry_of(registry, None if is_by_name(network) else network)
    chosen = chosen_format(channel_format)
    encode = workload(network, place, chosen, batch, image, classes, training=training, registry=makers)
    found = time_steps(place, encode, repeats=repeats)
    print(found)
    if chrome is not None:
        found.save_chrome_trace(chrome)
        print(f"a Chrome trace in {chrome}")
