"""Slow tests of this folder run when they are asked for: ``pytest -m slow``."""

from __future__ import annotations

import pytest

from openmps.graph.compile import compiler
from openmps.ops.rewrite.rule import Place


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr:
        return
    slow = [item for item in items if item.get_closest_marker("slow") and "tests/graph/" in item.path.as_posix()]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.fixture
def rules_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fuse as for a GPU. The CPU does without these rules: here it runs the slow forms of what they make."""
    monkeypatch.setattr(compiler, "place_of", lambda device: Place.TRITON)
