"""Graphs as Swift: the source that makes the same MPSNNGraph in an app, and the files of its weights beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from openmps.checks import flag, of_kind
from openmps.core.kinds import listed
from openmps.errors import MPSArgumentError, shown
from openmps.formats.atomic import write_atomic
from openmps.formats.folders import require_new_folder, whole_folder
from openmps.formats.swift.capture import SwiftGolden
from openmps.formats.swift.literals import is_class_name
from openmps.formats.swift.model import Model, SwiftPreprocessing
from openmps.graph.graph import MPSNNGraph
from openmps.kernels.optimizers import MPSNNOptimizer

__all__ = ["SwiftGolden", "SwiftPreprocessing", "export", "source"]

_WHO = "export to Swift"


def source(
    graph: MPSNNGraph,
    name: str = "Model",
    *,
    half: bool = False,
    optimizer: MPSNNOptimizer | None = None,
    notes: Sequence[str] = (),
    preprocessing: SwiftPreprocessing | None = None,
    golden: SwiftGolden | None = None,
) -> dict[str, bytes]:
    """The files that `export` writes, by their names: ``NAME.swift``, and the ``.dat`` files that it reads."""
    of_kind(_WHO, "graph", graph, MPSNNGraph)
    if not isinstance(name, str) or not is_class_name(name):
        rule, remedy = "must be a name for a class of Swift: a capital, then letters and digits", "For example Digits"
        raise MPSArgumentError(_WHO, "name", rule, shown(name), remedy)
    half, notes = flag(_WHO, "half", half), listed(_WHO, "notes", notes, str, "text")
    if optimizer is not None:
        of_kind(_WHO, "optimizer", optimizer, MPSNNOptimizer)
    if preprocessing is not None:
        of_kind(_WHO, "preprocessing", preprocessing, SwiftPreprocessing)
    if golden is not None and (optimizer is not None or graph.interface.input_states):
        raise MPSArgumentError(_WHO, "golden", "is for graphs that infer", "one that trains")
    model = Model(
        graph, name, half=half, optimizer=optimizer, notes=notes, preprocessing=preprocessing, golden=_checked(golden)
    )
    return model.files


def _checked(golden: object) -> SwiftGolden | None:
    """Goldens of as many images of each source and result."""
    if golden is None:
        return None
    found = of_kind(_WHO, "golden", golden, SwiftGolden)
    arrays = [*found.sources.values(), *(array for array, _ in found.results.values())]
    if not found.sources or not found.results or any(array.ndim != 4 for array in arrays):
        rule = "must have sources and results, [images, height, width, channels]"
        raise MPSArgumentError(_WHO, "golden", rule, ", ".join(str(array.shape) for array in arrays) or "none")
    if len({len(array) for array in arrays}) > 1:
        raise MPSArgumentError(_WHO, "golden", "must have as many images of each", [len(array) for array in arrays])
    return found


def export(
    graph: MPSNNGraph,
    folder: str | os.PathLike[str],
    name: str = "Model",
    *,
    half: bool = False,
    optimizer: MPSNNOptimizer | None = None,
    notes: Sequence[str] = (),
    preprocessing: SwiftPreprocessing | None = None,
    golden: SwiftGolden | None = None,
    replace: bool = False,
) -> Path:
    """Write a graph as Swift into a new folder, and return the folder.

    ``folder/NAME.swift`` has a class ``NAME`` whose initializer makes the same ``MPSNNGraph``: nodes, arguments,
    padding policies, labels, exports, formats. Beside it stand the files of weights, one a layer: OHWI numbers of
    float32, or float16 where ``half`` is set, then float32 biases from the next multiple of 4 bytes on; rows of gamma
    and beta, and of mean and variance, of a normalization; slopes of a PReLU. They hold the numbers that the graph's
    kernels have now: call it when no work is under way. What was set on the graph's `kernels` by hand is not written.

    A training graph has data sources that update their weights on the device or on the CPU, as the training styles of
    its gradient nodes say, with ``optimizer`` or, where that is None, the one of a `TrainableConvolutionDataSource` or
    `TrainableBatchNormalizationDataSource`; its vectors begin with zeros. ``notes`` are lines of the source's head.

    ``preprocessing`` is what was done to pixels in training. The class has it as a constant then, and its initializer
    must be told what the app does: anything else is a precondition that fails.

    With a ``golden``, what the graph gives for some images, the class takes ``capturing: true``, by which the graph
    hands out every image; ``NAMECapture.swift`` reads them into a folder for `openmps.debug.load_capture`, and
    ``NAMETests.swift`` is a test that holds a device against the golden, whose numbers are in ``NAME-golden.dat``.

    The folder is there whole or not at all; those above it that are missing are made. With ``replace`` it takes the
    place of one that has no files but those that are written anew. The same graph gives the same bytes.

    Raises:
        MPSArgumentError: The name is none of a class.
        MPSExportError: Something of the graph cannot be said in Swift: callbacks, allocators, padding policies and
            updates in Python, and what openmps adds to the framework. It lists all of it.
        MPSFileError: The folder is there, or cannot be written.
    """
    target = require_new_folder(folder, _WHO, replace=replace)
    files = source(graph, name, half=half, optimizer=optimizer, notes=notes, preprocessing=preprocessing, golden=golden)
    with whole_folder(folder, _WHO, replace=replace) as made:
        for file, content in files.items():
            write_atomic(made / file, content)
    return target
