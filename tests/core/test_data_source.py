"""Copies of data sources: ``copy(device)``, else ``copy()``, else ``__copy__()``, else the source is shared."""

from __future__ import annotations

from typing import Any

import pytest

from openmps.core.data_source import copy_of
from openmps.errors import MPSTypeError
from openmps.runtime.devices import mtl_device

CPU = mtl_device("cpu")


class Source:
    """A data source that notes how it was copied."""

    def __init__(self, how: Any = "new") -> None:
        self.how = how

    def label(self) -> None:
        return None


class ForDevice(Source):
    def copy(self, device: Any = None) -> Source:
        return Source(device)


class ByKeyword(Source):
    def copy(self, *, device: Any) -> Source:
        return Source(device)


class ByPlace(Source):
    def copy(self, where: Any, /) -> Source:
        return Source(where)


class Plain(Source):
    def copy(self) -> Source:
        return Source("copy()")


class WithOptions(Source):
    """What its copy takes is no device."""

    def copy(self, deep: bool = False, **more: Any) -> Source:
        assert deep is False
        return Source("copy()")


class Standard(Source):
    def __copy__(self) -> Source:
        return Source("__copy__()")


class Both(Plain):
    def __copy__(self) -> Source:
        raise AssertionError("copy() comes first")


class NoMethod(Source):
    """An attribute of the name is no method."""

    copy = "the sources of a network"


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (ForDevice, CPU),
        (ByKeyword, CPU),
        (ByPlace, CPU),
        (Plain, "copy()"),
        (WithOptions, "copy()"),
        (Standard, "__copy__()"),
        (Both, "copy()"),
    ],
)
def test_the_first_that_is_offered(kind: type[Source], how: Any) -> None:
    assert copy_of(kind(), CPU).how is how


@pytest.mark.parametrize("kind", [Source, NoMethod])
def test_sources_that_cannot_be_copied_are_shared(kind: type[Source]) -> None:
    source = kind()
    assert copy_of(source, CPU) is source


class Dictionary(dict[str, Any]):
    """Its copy, inherited and written in C, is a plain dictionary."""

    def label(self) -> None:
        return None


class Nothing(Source):
    def copy(self) -> None:
        return None


@pytest.mark.parametrize(("source", "got"), [(Dictionary(), "dict"), (Nothing(), "NoneType")])
def test_a_copy_that_is_no_data_source(source: Any, got: str) -> None:
    rule = rf"^{type(source).__name__}: copy must return a data source, got {got}\. Leave the method out"
    with pytest.raises(MPSTypeError, match=rule):
        copy_of(source, CPU)
