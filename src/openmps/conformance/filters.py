"""Cases of image filters: over images that are written into another, counts of numbers, tables, and fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import openmps.names as names
from openmps.conformance.arrays import array_of, written
from openmps.conformance.kernels import empty, image, pixels
from openmps.conformance.objects import Maker


def filter_answer(maker: Maker, entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """What a filter makes of images: one of the size ``destination``, or the ``counts`` of a histogram."""
    device, kernel = maker.device, maker.filter(entry["kernel"])
    sources = [image(device, each) for each in entry["sources"]]
    command_buffer = device.new_command_queue().command_buffer()
    if "counts" in entry:
        counts = device.new_buffer(4 * int(np.prod(entry["counts"])))
        kernel.encode(command_buffer, sources[0], counts, 0)
        _finish(command_buffer)
        found = np.frombuffer(counts.contents(), np.uint32).astype(np.float32)
        return {"counts": written(found.reshape(entry["counts"]))}, [kernel]
    result = empty(device, entry["destination"])
    if isinstance(kernel, names.MPSImageGuidedFilter):
        source, guidance, *weights = sources
        kernel.encode_regression(command_buffer, source, guidance, *weights, destination_coefficients_texture=result)
    else:
        histograms = [device.new_buffer(data=array_of(each).astype(np.uint32)) for each in entry.get("histograms", ())]
        if histograms:
            kernel.encode_transform(command_buffer, sources[0], *(part for each in histograms for part in (each, 0)))
        kernel.encode(command_buffer, *sources, result)
    _finish(command_buffer)
    return {"result": written(pixels(result))}, [kernel]


def _finish(command_buffer: Any) -> None:
    command_buffer.commit()
    command_buffer.wait_until_completed()
