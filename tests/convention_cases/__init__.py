"""For each convention with several choices: what depends on it, in all forms, and what each choice makes of it."""

from __future__ import annotations

from collections.abc import Mapping

from convention_cases import filters, graphs, kernels, losses, numbers, windows
from convention_cases.case import Case

CASES: Mapping[str, Case] = {
    **losses.CASES,
    **kernels.CASES,
    **numbers.CASES,
    **windows.CASES,
    **graphs.CASES,
    **filters.CASES,
}
"""By the names of the conventions."""
