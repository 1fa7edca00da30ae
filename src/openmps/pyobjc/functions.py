"""The functions of the framework and of Metal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from openmps.pyobjc.bridge import to_native, to_python
from openmps.pyobjc.selectors import check_count
from openmps.pyobjc.structs import STRUCTS
from openmps.pyobjc.types import CType, ctype
from openmps.pyobjc.values import public


@dataclass(frozen=True)
class Function:
    """A function of openmps with the framework's types; ``objc.function``."""

    name: str
    result: CType
    arguments: tuple[CType, ...]

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *arguments: Any) -> Any:
        """The result, of arguments in their order."""
        check_count(len(self.arguments), len(arguments))
        given = (to_native(each, kind) for each, kind in zip(arguments, self.arguments, strict=True))
        return to_python(public(self.name)(*given), self.result)

    def __metadata__(self) -> dict[str, Any]:
        """Result and arguments, each with its encoding."""
        kinds = tuple({"type": each.encoding.encode()} for each in self.arguments)
        return {"retval": {"type": self.result.encoding.encode()}, "arguments": kinds}


_BATCH, _STATES, _BUFFER = "MPSImageBatch*", "MPSStateBatch*", "id<MTLCommandBuffer>"
_DECLARED: Mapping[str, Sequence[str]] = {
    "MPSImageBatchIncrementReadCount": ("NSUInteger", _BATCH, "NSInteger"),
    "MPSImageBatchIterate": ("NSInteger", _BATCH, "MPSImageBatchIterator"),
    "MPSImageBatchResourceSize": ("NSUInteger", _BATCH),
    "MPSImageBatchSynchronize": ("void", _BATCH, _BUFFER),
    "MPSStateBatchIncrementReadCount": ("NSUInteger", _STATES, "NSInteger"),
    "MPSStateBatchResourceSize": ("NSUInteger", _STATES),
    "MPSStateBatchSynchronize": ("void", _STATES, _BUFFER),
    "MPSSupportsMTLDevice": ("BOOL", "id<MTLDevice>"),
    "MTLCopyAllDevices": ("NSArray*",),
    "MTLCreateSystemDefaultDevice": ("id<MTLDevice>",),
}
"""The types of each function's result and arguments."""


@cache
def functions(prefix: str) -> Mapping[str, Function]:
    """The functions that openmps has, of the names with this beginning."""
    named = {name: types for name, types in _DECLARED.items() if name.startswith(prefix) and public(name) is not None}
    return {name: Function(name, ctype(types[0]), tuple(map(ctype, types[1:]))) for name, types in named.items()}


def _struct(name: str, count: int) -> Callable[..., Any]:
    def make(*values: Any) -> Any:
        check_count(count, len(values))
        return STRUCTS[name](*values)

    return make


def _region(dimensions: int) -> Callable[..., Any]:
    """Of origin and size in as many dimensions; further ones begin at 0, and are 1 large."""

    def make(*values: Any) -> Any:
        check_count(2 * dimensions, len(values))
        origin = [*values[:dimensions], 0, 0][:3]
        size = [*values[dimensions:], 1, 1][:3]
        return STRUCTS["MTLRegion"](STRUCTS["MTLOrigin"](*origin), STRUCTS["MTLSize"](*size))

    return make


METAL_INLINES: Mapping[str, Callable[..., Any]] = {
    "MTLOriginMake": _struct("MTLOrigin", 3),
    "MTLSizeMake": _struct("MTLSize", 3),
    "MTLRegionMake1D": _region(1),
    "MTLRegionMake2D": _region(2),
    "MTLRegionMake3D": _region(3),
}
"""What Metal's headers define in themselves."""
FOUNDATION_INLINES: Mapping[str, Callable[..., Any]] = {"NSMakeRange": _struct("NSRange", 2)}
"""What Foundation's headers define in themselves."""
