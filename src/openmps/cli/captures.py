"""The loop with a device: what it has computed beside the network here, and what it is given to compute."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from openmps.cli.lint import arrays_in
from openmps.cli.models import Found, required_images
from openmps.cli.options import note, refuse_given
from openmps.cli.registry import registry_of
from openmps.cli.subjects import Given, found_at, given_to, sources_of

if TYPE_CHECKING:
    from openmps.debug import CaptureVerdict
    from openmps.formats.swift import SwiftGolden

_REFUSED = "count labels training formats fusion tolerance"


def compare_with_capture(
    context: typer.Context,
    capture: Path,
    others: Sequence[Path],
    images: Sequence[Path],
    samples: Path | None,
    device: str | None,
    registry: list[str] | None,
) -> CaptureVerdict:
    """Judge the layers of a capture by the network at the one other path."""
    from openmps.debug import compare_capture, load_capture
    from openmps.formats.captures import is_capture
    from openmps.runtime.devices import mtl_device
    from openmps.types import MPSImageFeatureChannelFormat

    refuse_given(context, _REFUSED, "A is a capture, which says what it was given and how it is stored")
    if not others or is_capture(others[0]):
        raise typer.BadParameter("is needed behind a capture: the network that the device ran", param_hint="B")
    (network,) = others
    place = mtl_device(device or "auto")
    makers = registry_of(registry, network)
    found = found_at(network, place, MPSImageFeatureChannelFormat.FLOAT32, training=False, registry=makers)
    sources = None
    if images or samples is not None:
        given = given_to(network, images, samples, 1, None, training=False)
        sources, notes = sources_of(found, given)
        note(*notes)
    return compare_capture(found.graph, load_capture(capture), sources)


def golden_of(found: Found, sizes: Sequence[str], samples: Path | None) -> SwiftGolden:
    """What a network gives for samples, or for noise of the size of its images, rounded to float16."""
    import numpy as np

    from openmps.debug import make_golden
    from openmps.formats.captures import numbers_of
    from openmps.formats.swift import SwiftGolden

    if samples is not None:
        if sizes:
            raise typer.BadParameter("must be left out: the samples have one", param_hint="--image")
        sources, _ = sources_of(found, Given(arrays_in(samples), None))
    else:
        rng, images = np.random.default_rng(0), required_images(found, sizes, otherwise=", or --samples FILE.npz")
        sources = [rng.random((1, each.height, each.width, each.feature_channels), np.float32) for each in images]
        if found.preprocessing is not None:
            mean, scale = (np.array(each, np.float32) for each in found.preprocessing[1:])
            sources = [(255 * each - mean) * scale for each in sources]
    halves = [numbers_of(each).astype(np.float16) for each in sources]
    golden = make_golden(found.graph, [each.astype(np.float32) for each in halves])
    labels = [each.label for each in golden.sources]
    results = {each.image.label: (each.image.array, each.limits) for each in golden.results}
    return SwiftGolden(dict(zip(labels, halves, strict=True)), results)
