"""All cases of a test in one: of cases of milliseconds pytest itself takes most of the time."""

from __future__ import annotations

import functools
import inspect
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet

Test = Callable[..., None]
Case = dict[str, Any]
Makes = dict[str, Callable[[Any], Any]]


def in_one_test(test: Test | None = None, /, **makes: Callable[[Any], Any]) -> Any:
    """Try every case that the `parametrize` marks below say, in one test that names all that fail.

    ``rng``, ``monkeypatch`` and ``tmp_path`` are each case's own; the numbers depend on its name alone. A case may be
    skipped. Of a value that ``makes`` has a function for, a case gets what that makes. `pytest -k` finds a test by the
    name of any of its cases, and runs them all.
    """
    if test is None:
        return functools.partial(in_one_test, **makes)
    cases = _cases(test)

    def every(**fixtures: Any) -> None:
        _try_all(test, cases, fixtures, makes)

    _describe(every, test, cases[0])
    vars(every).update({_name(case): True for case in cases})  # what -k looks at
    return every


def in_one_test_of_each(name: Callable[[Any], str], argument: str = "sample") -> Callable[[Test], Test]:
    """Likewise, in one test for each name that values of an argument have, which is what pytest calls it."""

    def merged(test: Test) -> Test:
        groups: dict[str, list[Case]] = {}
        for case in _cases(test):
            groups.setdefault(name(case[argument]), []).append(case)

        def every(cases: Sequence[Case], **fixtures: Any) -> None:
            _try_all(test, cases, fixtures, {})

        _describe(every, test, next(iter(groups.values()))[0], "cases")
        return pytest.mark.parametrize("cases", [*groups.values()], ids=[*groups])(every)

    return merged


def _try_all(
    test: Test, cases: Sequence[Case], fixtures: dict[str, Any], makes: dict[str, Callable[[Any], Any]]
) -> None:
    failed, skipped = list[str](), list[str]()
    folder = fixtures.get("tmp_path")
    for number, case in enumerate(cases):
        name = _name(case)
        if folder is not None:
            fixtures["tmp_path"] = folder / str(number)
            fixtures["tmp_path"].mkdir()
        if "rng" in fixtures:
            fixtures["rng"] = np.random.default_rng(zlib.crc32(f"{test.__name__}, {name}".encode()))
        with pytest.MonkeyPatch.context() as patch:
            if "monkeypatch" in fixtures:
                fixtures["monkeypatch"] = patch
            try:
                test(**fixtures, **{key: makes[key](value) if key in makes else value for key, value in case.items()})
            except pytest.skip.Exception as reason:
                skipped.append(str(reason))
            except (Exception, pytest.fail.Exception):
                failed.append(f"{name}: {traceback.format_exc(limit=-2)}")
    assert not failed, f"{len(failed)} of {len(cases)} cases fail\n\n" + "\n".join(failed)
    if len(skipped) == len(cases):
        pytest.skip(skipped[0])


def _describe(every: Any, test: Test, case: Case, *more: str) -> None:
    """Have pytest see what it calls as the test with other arguments than those of its cases."""
    functools.update_wrapper(every, test)
    kept = [each for each in inspect.signature(test).parameters.values() if each.name not in case]
    added = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in more]
    every.__signature__ = inspect.Signature([*kept, *added])
    every.pytestmark = [mark for mark in every.pytestmark if mark.name != "parametrize"]


def _name(case: Case) -> str:
    # As ASCII: reports of pytest-xdist hold names, and no halves of characters.
    return ", ".join(f"{key} {value}" for key, value in case.items()).encode("ascii", "backslashreplace").decode()


def _cases(test: Any) -> list[Case]:
    sets = [list(_values(mark)) for mark in test.pytestmark if mark.name == "parametrize"]
    return [{name: value for part in parts for name, value in part.items()} for parts in product(*sets)]


def _values(mark: pytest.Mark) -> Iterator[Case]:
    names, values = mark.args
    several = [each.strip() for each in names.split(",")] if isinstance(names, str) else list(names)
    for value in values:
        given = ParameterSet.extract_from(value, force_tuple=isinstance(names, str) and len(several) == 1)
        assert not given.marks, "a case with marks of its own is a test of its own"
        yield dict(zip(several, given.values, strict=True))
