"""All cases of a test in one: of cases of milliseconds pytest itself takes most of the time."""

from __future__ import annotations

import functools
import inspect
import traceback
import zlib
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet


def in_one_test(test: Callable[..., None]) -> Callable[..., None]:
    """Try every case that the `parametrize` marks below say, in one test that names all that fail.

    ``rng`` and ``monkeypatch`` are each case's own; the numbers depend on its name alone. A case may be skipped.
    """
    marks: list[pytest.Mark] = test.pytestmark  # type: ignore[attr-defined]
    sets = [list(_values(mark)) for mark in marks if mark.name == "parametrize"]
    cases = [{name: value for part in parts for name, value in part.items()} for parts in product(*sets)]
    signature = inspect.signature(test)

    @functools.wraps(test)
    def every(**fixtures: Any) -> None:
        failed, skipped = list[str](), list[str]()
        for case in cases:
            name = ", ".join(f"{key} {value}" for key, value in case.items())
            if "rng" in fixtures:
                fixtures["rng"] = np.random.default_rng(zlib.crc32(f"{test.__name__}, {name}".encode()))
            with pytest.MonkeyPatch.context() as patch:
                if "monkeypatch" in fixtures:
                    fixtures["monkeypatch"] = patch
                try:
                    test(**fixtures, **case)
                except pytest.skip.Exception as reason:
                    skipped.append(str(reason))
                except (Exception, pytest.fail.Exception):
                    failed.append(f"{name}: {traceback.format_exc(limit=-2)}")
        assert not failed, f"{len(failed)} of {len(cases)} cases fail\n\n" + "\n".join(failed)
        if len(skipped) == len(cases):
            pytest.skip(skipped[0])

    others = [each for each in signature.parameters.values() if each.name not in cases[0]]
    every.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    every.pytestmark = [mark for mark in marks if mark.name != "parametrize"]  # type: ignore[attr-defined]
    return every


def _values(mark: pytest.Mark) -> Iterator[dict[str, Any]]:
    names, values = mark.args
    several = [each.strip() for each in names.split(",")] if isinstance(names, str) else list(names)
    for value in values:
        given = ParameterSet.extract_from(value, force_tuple=isinstance(names, str) and len(several) == 1)
        assert not given.marks, "a case with marks of its own is a test of its own"
        yield dict(zip(several, given.values, strict=True))
