"""PyObjC's modules for one test file, and what it registers forgotten behind each test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import openmps.pyobjc
from openmps.pyobjc import metadata
from openmps.pyobjc.finder import MODULES


@pytest.fixture(scope="module", autouse=True)
def modules() -> Iterator[None]:
    """The modules can be imported; afterwards they cannot."""
    finders = [*sys.meta_path]
    assert openmps.pyobjc.install()
    yield
    sys.meta_path[:] = finders
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def MPS() -> Any:
    import MetalPerformanceShaders

    return MetalPerformanceShaders


@pytest.fixture(scope="module")
def device(MPS: Any) -> Any:
    return MPS.MTLCreateSystemDefaultDevice()


@pytest.fixture(autouse=True)
def registered_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_rows", {})
