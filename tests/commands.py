"""Commands in the process of a test."""

from __future__ import annotations

from typing import Any

import pytest

from openmps.cli import main


def run_command(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    """The exit status of a command line, and what it prints on standard output and as errors."""
    status = main([str(each) for each in arguments])
    output = capsys.readouterr()
    return status, output.out, output.err
