"""Answers: what openmps says to a case, as a recording of a Mac holds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import openmps.names as names
from openmps.conformance.arrays import array_of, written
from openmps.conformance.cases import Case
from openmps.conformance.filters import filter_answer
from openmps.conformance.graphs import graph_answer
from openmps.conformance.kernels import KernelRun, shown
from openmps.conformance.objects import Maker, attribute
from openmps.conformance.training import training_answer
from openmps.convention import NotingConventions
from openmps.errors import MPSError

Answer = dict[str, Any]


def answer_of(case: Case, device: names.MTLDevice, noted: NotingConventions | None = None) -> Answer:
    """``values``, and ``classes`` of the objects that gave them; or ``refused``, the class of openmps' error.

    Kernels and graphs note what they ask the conventions in ``noted``, whose block is the caller's.
    """
    try:
        values, things = _KINDS[case.kind](Maker(device, noted), case.entry)
    except MPSError as error:
        return {"refused": type(error).__name__}
    return {"values": values, "classes": [type(each).__name__ for each in things]}


def _kernel(maker: Maker, entry: Mapping[str, Any]) -> tuple[Answer, list[Any]]:
    run = KernelRun(maker, entry)
    return run.answer(), run.kernels


def _object(maker: Maker, entry: Mapping[str, Any]) -> tuple[Answer, list[Any]]:
    """Properties of something that is only made."""
    made = maker.value(entry["object"])
    return {name: shown(getattr(made, attribute(made, name))) for name in entry["shows"]}, [made]


def _random(maker: Maker, entry: Mapping[str, Any]) -> tuple[Answer, list[Any]]:
    """Numbers of a matrix that a generator fills; words as whole numbers."""
    kernel = maker.object(entry["kernel"])
    rows, columns = entry["matrix"]
    descriptor = names.MPSMatrixDescriptor(rows, columns, data_type=kernel.destination_data_type)
    matrix = names.MPSMatrix(device=maker.device, descriptor=descriptor)
    command_buffer = maker.device.new_command_queue().command_buffer()
    kernel.encode(command_buffer, destination_matrix=matrix)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return {"matrix": written(np.asarray(matrix.numpy()))}, [kernel]


def _matrices(maker: Maker, entry: Mapping[str, Any]) -> tuple[Answer, list[Any]]:
    """What a kernel over Float32 matrices makes of a result's numbers, zeros unless said."""
    kernel = maker.object(entry["kernel"])
    sources = [names.MPSMatrix.from_numpy(maker.device, array_of(each)) for each in entry["sources"]]
    initial = array_of(entry["initial"]) if "initial" in entry else np.zeros(entry["matrix"], np.float32)
    result = names.MPSMatrix.from_numpy(maker.device, initial)
    command_buffer = maker.device.new_command_queue().command_buffer()
    kernel.encode(command_buffer, *sources, result)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return {"matrix": written(result.numpy())}, [kernel]


def _spacing(_: Maker, entry: Mapping[str, Any]) -> tuple[Answer, list[Any]]:
    """Bytes from row to row that the framework advises, for numbers of columns."""
    kind = names.MPSDataType(entry["dataType"])
    advised = [names.MPSMatrixDescriptor.row_bytes(columns, kind) for columns in entry["columns"]]
    return {"rowBytes": advised}, []


_KINDS: Mapping[str, Callable[[Maker, Mapping[str, Any]], tuple[Answer, list[Any]]]] = {
    "kernel": _kernel, "graph": lambda maker, entry: graph_answer(maker, entry), "object": _object,
    "training": lambda maker, entry: training_answer(maker, entry), "matrices": _matrices, "random": _random,
    "spacing": _spacing, "filter": filter_answer,
}  # fmt: skip
