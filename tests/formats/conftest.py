"""What tests of formats share."""

from __future__ import annotations

from pathlib import Path

import pytest

import swift_compiler


@pytest.fixture(scope="session")
def swift_stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stubs of Apple's frameworks, compiled; the test is skipped where there is no compiler."""
    swift_compiler.require_compiler()
    return swift_compiler.stubs(tmp_path_factory.mktemp("stubs"))
