"""What tests/test_performance_page.py has benchmarks measure."""

from __future__ import annotations

import time

from bench.harness import SkippedError, Turn


def steps() -> Turn:
    return Turn(lambda count: time.sleep(1e-3 * count))


def skipped() -> Turn:
    raise SkippedError("a reason")
