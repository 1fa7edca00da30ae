"""Swift beside a model that shows every image: a capture for ``openmps compare``, and a test with goldens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from openmps.formats.swift.classes import filled, template
from openmps.formats.swift.literals import float32, string
from openmps.formats.swift.text import call, laid_out


class SwiftGolden(NamedTuple):
    """What a network gives for some images, for a test on a device.

    ``sources`` are float16 images ``[images, height, width, channels]`` by the labels of source images, ``results``
    float32 ones by the labels of filters, with what 50, 90, 99 and 100 percent of their errors may be of the largest
    magnitude.
    """

    sources: Mapping[str, NDArray[np.float16]]
    results: Mapping[str, tuple[NDArray[np.float32], Sequence[float]]]


def capture_files(name: str, available: str, golden: SwiftGolden, *, is_asked: bool) -> dict[str, bytes]:
    """The files beside a model called ``name``; ``is_asked`` says that it asks for preprocessing."""
    sources = [("image" if len(golden.sources) == 1 else f"image{place + 1}") for place in range(len(golden.sources))]
    words = {
        "AVAILABLE": available,
        "NAME": name,
        "ASKED": "preprocessing: preprocessing, " if is_asked else "",
        "PREPARED": f"preprocessing: {name}.preprocessing, " if is_asked else "",
    }
    capture = filled(template("capture"), {**words, "SOURCES": ", ".join(sources)})
    test = filled(template("golden_test"), {**words, "COUNT": str(len(next(iter(golden.sources.values()))))})
    rows = {
        "[SOURCES]": [_source(label, array) for label, array in golden.sources.items()],
        "[RESULTS]": [_result(label, array, limits) for label, (array, limits) in golden.results.items()],
    }
    for word, listed in rows.items():
        lines = "".join(f"{part}\n" for row in listed for part in laid_out(f"    {row},"))
        test = test.replace(f"= {word}", f"= [\n{lines}  ]", 1)
    return {
        f"{name}Capture.swift": capture.lstrip("\n").encode(),
        f"{name}Tests.swift": test.lstrip("\n").encode(),
        f"{name}-golden.dat": _numbers(golden),
    }


def _source(label: str, array: NDArray[Any]) -> str:
    _, height, width, channels = array.shape
    lengths = {"width": str(width), "height": str(height), "channels": str(channels)}
    return call("Source", {"label": string(label), **lengths})


def _result(label: str, array: NDArray[Any], limits: Sequence[float]) -> str:
    shown = ", ".join(float32(float(np.float32(each))) for each in limits)
    return call("Result", {"label": string(label), "count": str(array[0].size), "limits": f"[{shown}]"})


def _numbers(golden: SwiftGolden) -> bytes:
    sources = (np.ascontiguousarray(each, "<f2").tobytes() for each in golden.sources.values())
    results = (np.ascontiguousarray(array, "<f4").tobytes() for array, _ in golden.results.values())
    return b"".join([*sources, *results])
