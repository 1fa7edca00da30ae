"""Packages that only some of openmps needs, and what to say when one is not installed."""

from __future__ import annotations

from openmps.errors import MPSError


def missing_package(who: str, package: str, purpose: str, extra: str = "train") -> MPSError:
    """The error to raise when ``package`` cannot be imported; it names the extra of openmps that installs it."""
    remedy = f"Install it: pip install '.[{extra}]' in a clone of openmps's repository"
    return MPSError(who, purpose, f"needs {package}", "an ImportError", remedy)
