"""Packages that only some of openmps needs, and what to say when one is not installed."""

from __future__ import annotations

from openmps.errors import MPSError

EXTRA = "train"


def missing_package(who: str, package: str, purpose: str, extra: str = EXTRA) -> MPSError:
    """The error to raise when ``package`` cannot be imported; it names the extra of openmps that installs it."""
    return MPSError(who, purpose, f"needs {package}", "an ImportError", f'Install it: pip install "openmps[{extra}]"')
