"""Swift of the classes that stand beside a graph: handles, padding policies, data sources; ``NAME`` is the model's.

Each is a file of ``templates``, so that a source has those that it needs and no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from openmps.types import MPSCNNWeightsQuantizationType

_TEMPLATES = files("openmps.formats.swift") / "templates"
_PART = re.compile(r" *// with (\w+)\n")
"""A line in the place of what several classes have, which is a file of its own."""
_MEAN_AND_VARIANCE = """
  public func mean() -> UnsafeMutablePointer<Float>? {
    return rows + 2 * channels
  }

  public func variance() -> UnsafeMutablePointer<Float>? {
    return rows + 3 * channels
  }

  public func load() -> Bool {
    return true
  }

  public func purge() {
  }
"""
_COUNT_METHOD = """
  public func numberOfFeatureChannels() -> Int {
    return channels
  }
"""
_COUNT_PROPERTY = """
  public var numberOfFeatureChannels: Int { return channels }
"""
_NORMALIZATIONS = {
    "batch": (
        "BatchNormalization",
        "gamma, beta, mean, variance",
        {"COUNT": _COUNT_METHOD, "FURTHER": _MEAN_AND_VARIANCE},
    ),
    "instance": ("InstanceNormalization", "gamma, beta", {"COUNT": _COUNT_PROPERTY}),
    "group": (
        "GroupNormalization",
        "gamma, beta",
        {
            "COUNT": _COUNT_PROPERTY,
            "STORED\n": "  public var numberOfGroups: Int\n",
            "PARAMETER": "groups: Int, ",
            "SET": "    numberOfGroups = groups\n",
        },
    ),
}
"""What each kind of normalization is called, its rows of numbers, and what its data source has besides."""
_QUANTIZED = {
    MPSCNNWeightsQuantizationType.LINEAR: {
        "KIND": "Linear", "WHAT": "the lowest and highest weight of each channel", "ELEMENT": "SIMD2<Float>",
        "METHOD": "rangesForUInt8Kernel",
    },
    MPSCNNWeightsQuantizationType.LOOKUP_TABLE: {
        "KIND": "Table", "WHAT": "the 256 weights that they stand for", "ELEMENT": "Float",
        "METHOD": "lookupTableForUInt8Kernel",
    },
}  # fmt: skip
"""What each kind of 8-bit weights is called, and has besides."""


@cache
def template(name: str) -> str:
    """The Swift of one file, behind a blank line, with the parts that it names."""
    return "\n" + _PART.sub(lambda part: _text(part[1]), _text(name))


def _text(name: str) -> str:
    return (_TEMPLATES / f"{name}.swift").read_text("utf-8")


def filled(text: str, values: Mapping[str, str]) -> str:
    """A text with its words in capitals replaced, the longest first."""
    for word in sorted(values, key=len, reverse=True):
        text = text.replace(word, values[word])
    return text


def normalization(what: str) -> str:
    """The data source of a ``batch``, ``instance`` or ``group`` normalization."""
    kind, rows, parts = _NORMALIZATIONS[what]
    names = {
        "WHAT": what, "CLASS": f"NAME{kind}", "PROTOCOL": f"MPSCNN{kind}DataSource",
        "ROW_COUNT": str(rows.count(",") + 1), "ROWS": rows,
    }  # fmt: skip
    empty = dict.fromkeys(("STORED\n", "PARAMETER", "SET", "COUNT", "FURTHER"), "")
    return filled(template("normalization"), {**empty, **names, **parts})


def quantized(kind: MPSCNNWeightsQuantizationType) -> tuple[str, str]:
    """What the data source of 8-bit weights is called behind the model's name, and its Swift."""
    words = _QUANTIZED[kind]
    return f"{words['KIND']}Weights", filled(template("quantized"), {**words, "VALUE": str(int(kind))})
