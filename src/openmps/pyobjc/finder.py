"""How the modules become importable."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

MODULES = frozenset({"objc", "objc.simd", "Foundation", "Cocoa", "AppKit", "Metal", "MetalPerformanceShaders"})
"""The modules that there are."""


class _Loader(Loader):
    """Makes a module; the engine is imported with the first of them."""

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its names."""
        from openmps.pyobjc.modules import fill

        fill(module)


class _Finder(MetaPathFinder):
    """Finds the modules behind all other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of one of the modules."""
        return ModuleSpec(fullname, _Loader(), is_package=fullname == "objc") if fullname in MODULES else None


def install() -> bool:
    """Have scripts written for PyObjC find its modules here; whether they do.

    The finder stands behind all others: modules of the same names that are installed, or lie beside the script, win. If
    a module ``objc`` can be found, nothing is installed, as objects of two worlds do not mix. To call it twice is
    no error. ``sys.platform`` stays as it is.
    """
    if any(isinstance(each, _Finder) for each in sys.meta_path):
        return True
    if find_spec("objc") is not None:
        return False
    sys.meta_path.append(_Finder())
    return True
