"""The messages that Core ML's files are made of, as coremltools has them; nothing else of it is loaded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

from openmps.formats.extras import missing_package

_PACKAGE = "_openmps_coreml_messages"
"""Holds coremltools' modules of messages: importing coremltools itself takes seconds, and all that it converts with."""


@dataclass(frozen=True)
class Protos:
    """The modules of messages."""

    model: Any
    program: Any
    network: Any
    features: Any


def require_protos(who: str) -> Protos:
    """The messages of Core ML's files.

    Raises:
        MPSError: coremltools or protobuf is not installed.
    """
    try:
        _provide()
        names = ("Model_pb2", "MIL_pb2", "NeuralNetwork_pb2", "FeatureTypes_pb2")
        return Protos(*(import_module(f"{_PACKAGE}.{name}") for name in names))
    except ImportError as error:
        raise missing_package(who, "coremltools", "Core ML", "coreml") from error


def _provide() -> None:
    """Make a package of coremltools' folder of messages alone."""
    if _PACKAGE in sys.modules:
        return
    found = find_spec("coremltools")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'coremltools'")
    package = module_from_spec(ModuleSpec(_PACKAGE, None, is_package=True))
    package.__path__ = [str(Path(place) / "proto") for place in found.submodule_search_locations]
    sys.modules[_PACKAGE] = package
