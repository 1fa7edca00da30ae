"""Planned encodes of filters: on the CPU by a library that has a form, else by bands of rows; on CUDA in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from torch import Tensor

from openmps.core.image.storage import Shape
from openmps.core.kernel.plan import Plan
from openmps.core.kernel.row_bands import RowBands
from openmps.core.state.gradient import ForwardRecord
from openmps.ops import numba, opencv
from openmps.ops.elements import Load, Read, Store
from openmps.ops.image.library_form import ByLibrary, Form, is_large, meet
from openmps.ops.image.site import BYTES, LARGEST, MOVES, Site, Stored
from openmps.ops.numba import table as numba_table
from openmps.ops.op import Function, Op
from openmps.ops.opencv import table as opencv_table

_NAMES = {numba: "Numba", opencv: "OpenCV"}
_TABLES: tuple[tuple[ModuleType, dict[tuple[type[Op], ...], Form]], ...] = (
    (numba, numba_table.FORMS),
    (opencv, opencv_table.FORMS),
)
"""The libraries' packages with the forms of each, in the order in which they are asked."""


class CpuForms:
    """What a planned encode of a filter has besides its function, on the CPU."""

    def __init__(self, by_library: Sequence[tuple[ModuleType, ByLibrary]], bands: RowBands | None) -> None:
        self.by_library = by_library
        """Forms, and the package that has each."""
        self.bands = bands

    def library(self, has_run: bool) -> str:
        """What computes the filter. Before it has run nothing is loaded to tell: an installed library may fail to."""
        names = [_NAMES[package] for package, _ in self.by_library if not has_run or package.library() is not None]
        return names[0] if names else "PyTorch"

    def run(self, values: list[Any], room: Tensor | None) -> list[Any] | None:
        """See `openmps.ops.op.Form`."""
        for package, form in self.by_library:
            library = package.library()
            if library is not None:
                return [form.run(library, values, room)]
        if self.bands is None:
            return None
        others = [each.numpy() for each in values if isinstance(each, Tensor)]
        has_room = room is not None and not meet(room.numpy(), *others)
        return self.bands.run(values, room if has_room else None)


def set_forms(plan: Plan, shapes: tuple[Shape, ...], stored: Shape | None, bands: RowBands | None) -> None:
    """Give the function of a planned encode, into images of the shape ``stored``, its faster forms."""
    function = plan.function
    site = None if stored is None or len(function.outputs) != 1 else _site(function, plan.record, shapes, stored)
    by_library = [] if site is None else _forms_by_library(site, function)
    forms = CpuForms(by_library, bands)
    function.library = forms.library
    if by_library or bands is not None:
        function.forms["cpu"] = forms.run
    if site is not None:
        from openmps.ops.image.one_pass import one_pass

        form = one_pass(site, function)
        if form is not None:
            function.forms["cuda"], function.placement, function.launches = form.run, form.placed, 1


def _forms_by_library(site: Site, function: Function) -> list[tuple[ModuleType, ByLibrary]]:
    """The forms by libraries that are installed."""
    found: list[tuple[ModuleType, ByLibrary]] = []
    for package, forms in _TABLES:
        form = forms.get(tuple(map(type, site.ops))) if package.is_installed() else None
        run = None if form is None or not is_large(form, site) else form.make(site)
        if form is not None and run is not None:
            found.append((package, ByLibrary(form, run, site, function)))
    return found


def _site(function: Function, record: ForwardRecord, shapes: tuple[Shape, ...], stored: Shape) -> Site | None:
    """What forms are told; None where channels are chosen or added."""
    sources, target = record.sources, record.target
    moved = [each.op for each in function.equations if isinstance(each.op, MOVES)]
    reads = {(each.window, each.edge_mode) for each in moved if isinstance(each, Read)}
    if any(each.channels != shape.extent.channels for each, shape in zip(sources, shapes, strict=True)) or not (
        reads <= {(each.window, each.edge_mode) for each in sources}
    ):
        return None
    return Site(
        tuple(each.op for each in function.equations if not isinstance(each.op, MOVES)),
        tuple(Stored(shape.channel_format, shape.extent.channels) for shape in shapes),
        tuple(each.window for each in sources),
        tuple(each.edge_mode for each in sources),
        Stored(stored.channel_format, target.channels),
        (target.height, target.width),
        1.0 / LARGEST if Load(BYTES) in moved else 1.0,
        LARGEST if Store(BYTES) in moved else 1.0,
    )
