"""Every ONNX node case that maps onto the kernels: it gives ONNX's numbers, or its reason is in the table."""

from __future__ import annotations

import traceback

import numpy as np
import pytest
import torch

from encoding import Bench
from helpers import relative_error
from node_cases.case import Case, NotExpressible
from node_cases.table import ADAPTERS, PAGE, collected, page

# ONNX groups as it likes.
pytestmark = pytest.mark.filterwarnings("ignore:.*multiples of 4 channels a group:UserWarning")

TOLERANCE = 1e-5
PRINTED = 4
"""Some cases were typed in, inputs and outputs, with this many decimals: they agree to one unit of the last."""


def test_every_case_gives_the_numbers_of_onnx_or_has_its_reason_on_the_page(device: torch.device) -> None:
    reasons, failed = dict[str, str | None](), list[str]()
    for case in collected():
        try:
            found = ADAPTERS[case.operator](case, Bench.on(device))
            reasons[case.name] = None
            check(case, found)
        except NotExpressible as reason:
            reasons[case.name] = str(reason)
        except Exception:  # of whatever kind: the others are tried, too
            failed.append(f"{case}: {traceback.format_exc(limit=-3)}")
    assert not failed, "\n".join(failed)
    assert PAGE.read_text() == page(reasons), "write it again: python -m node_cases.table"


def check(case: Case, found: list[np.ndarray]) -> None:
    """Raise unless the outputs are a case's."""
    assert len(found) == len(case.outputs)
    for actual, expected in zip(found, case.outputs, strict=True):
        actual = np.asarray(actual)
        assert actual.shape == expected.shape
        if expected.dtype.kind == "f" and expected.dtype.itemsize == 2:
            assert np.allclose(actual, expected.astype(np.float64), rtol=2.0**-10, atol=2.0**-24, equal_nan=True)
        elif expected.dtype.kind == "f" and np.array_equal(np.round(expected, PRINTED), expected):
            assert np.abs(actual - expected).max(initial=0.0) <= 10.0**-PRINTED
        else:
            assert relative_error(actual, expected.astype(np.float64)) <= TOLERANCE
