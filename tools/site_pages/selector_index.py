"""The framework's selectors, properties, values and functions, each with its name in Python (docs/naming.md).

`selectors.txt` has a line for each public class, protocol, enumeration and function of the headers, with its header,
and below it, indented, what it declares: ``-`` and ``+`` for methods, ``@`` for properties, ``=`` for values.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import openmps

FILE = Path(__file__).with_name("selectors.txt")
_WORDS = {
    "UInt": "Uint",
    "PReLU": "Prelu",
    "ReLU": "Relu",
    "GeLU": "Gelu",
    "TanH": "Tanh",
    "AMSGrad": "Amsgrad",
    "IoU": "Iou",
    "TensorFlow": "Tensorflow",
}
_CLASS_FACTORY = re.compile(
    r"(?!\w+DistributionDescriptor)(node|graph|commandBuffer|predicate|resourceList|temporary(Image|Matrix|Vector)|create\w+Descriptor|\w*[dD]escriptor)"
    r"(With|From|$)"
)
FIXED = {
    "-initWithCoder:": "MPSKeyedUnarchiver",
    "-initWithCoder:device:": "MPSKeyedUnarchiver",
    "-encodeWithCoder:": "MPSKeyedArchiver",
    "-copyWithZone:": "copy.copy(…)",
    "-copyWithZone:device:": "copy(device)",
    "-debugDescription": "repr(…)",
    "-initForReadingFromData:device:error:": "MPSKeyedUnarchiver(init_for_reading_from_data=data, device=device)",
    "-initForReadingWithData:device:": "MPSKeyedUnarchiver(init_for_reading_with_data=data, device=device)",
    "-initWithTexture:featureChannels:": "MPSImage.from_tensor(device, tensor)",
}
"""What follows no rule: `NSCoding` and `NSCopying` have Python's own form."""
_LEFT_OUT = {"error", "no_copy", "bytes_per_row", "bytes_per_column", "bytes_per_image", "number_of_anchor_boxes"}
"""Arguments that Python has no use for: errors are raised, and arrays know their strides and sizes."""


@dataclass(frozen=True)
class Member:
    """What a class of the framework declares, and its name in Python."""

    selector: str
    name: str
    """The attribute of the class; empty where there is none of a rule's name."""
    call: str
    """How it is written in Python."""


@dataclass(frozen=True)
class Declared:
    """A class, protocol, enumeration or function of the framework."""

    name: str
    header: str
    members: tuple[Member, ...]

    @property
    def is_there(self) -> bool:
        """Whether openmps has it."""
        return self.name in openmps.__all__


@cache
def declared() -> dict[str, Declared]:
    """Everything that the headers declare, by its name."""
    found: dict[str, Declared] = {}
    for block in re.split(r"\n(?! )", FILE.read_text(encoding="utf-8").strip()):
        head, *rest = block.split("\n")
        name, header = head.split(" ")
        found[name] = Declared(name, header, tuple(_member(name, each.strip()) for each in rest))
    return found


def _member(owner: str, selector: str) -> Member:
    if selector in FIXED:
        return Member(selector, "", FIXED[selector])
    if selector[0] == "=":
        name = value_name(owner, selector[1:])
        return Member(selector, name, f"{owner}.{name}")
    if selector[0] == "@":
        name = snake(selector[1:])
        return Member(selector, name, name)
    name, arguments = _method(owner, selector)
    known = _parameters(owner, name)
    if ":" in selector and arguments and arguments[0] == snake(selector[1:].split(":")[0]) and known:
        arguments[0] = known[0]  # a selector that does not say what comes first: setLabel:
    return Member(selector, name, f"{owner if name == '__init__' else name}({', '.join(arguments)})")


def snake(name: str) -> str:
    """A name of the framework in Python."""
    for word, plain in _WORDS.items():
        name = name.replace(word, plain)
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return re.sub(r"([XYZ])(at)_", r"\1_\2_", name).lower()


def value_name(owner: str, value: str) -> str:
    """A value of an enumeration without what all of them share."""
    stem = owner
    while not value.startswith(stem):
        stem = stem[:-1]
    rest = re.sub(r"(?<=eight|Width|nnels)x(?=[A-Z])", "X", value[len(stem) :])  # HeightxWidth
    short = snake(rest) or snake(value)
    return ("_" + short if short[0].isdigit() else short.strip("_")).upper()


def _method(owner: str, selector: str) -> tuple[str, list[str]]:
    """The Python name of a method, and its arguments; that of what makes an object is ``__init__``."""
    first, *others = selector[1:].split(":")
    others = [each for each in others if each]
    if re.fullmatch(r"\w+AtIndex:", selector[1:]):
        return snake(first), ["index"]
    name, argument = _parts(first) if ":" in selector else (snake(first), "")
    if selector.startswith("-init"):
        name, argument = "__init__", snake(re.sub(r"^init(With)?", "", first))
    elif first == "paddingWithMethod" or (selector[0] == "+" and _CLASS_FACTORY.match(first)):
        name = "__init__"
    arguments = [argument or snake(first)] if ":" in selector else []
    arguments += [re.sub(r"^at_index$", "index", snake(each)) for each in others]
    if first == "readBytes":
        arguments = arguments[1:]
    return name, [each for each in arguments if each not in _LEFT_OUT]


def _parameters(owner: str, name: str) -> list[str]:
    """The arguments of a method or of a constructor; none where a class has none of that name."""
    kind = getattr(openmps, owner, None) if owner in openmps.__all__ else None
    function = kind if name == "__init__" else getattr(kind, name, None)
    if getattr(kind, "_is_protocol", False) or not callable(function):
        return []
    return [each for each in inspect.signature(function).parameters if each != "self"]


def _parts(first: str) -> tuple[str, str]:
    """What stands before the last With, To, For, From or On, and what follows it."""
    ends = list(re.finditer(r"(?<=.)(?:With|To|For|From|On)(?=[A-Z])", first))
    if not ends:
        return snake(first), ""
    return snake(first[: ends[-1].start()]), snake(first[ends[-1].end() :])


def has(kind: Any, name: str) -> bool:
    """Whether a class has an attribute, of its own or of its objects."""
    if hasattr(kind, name):
        return True
    if any(name in getattr(each, "__annotations__", {}) for each in kind.__mro__):
        return True
    # A protocol's optional methods are said in its description.
    return getattr(kind, "_is_protocol", False) and re.search(rf"\b{name}\b", kind.__doc__ or "") is not None


def absent() -> list[str]:
    """What the rule asks for of classes that openmps has, and they have not."""
    return [
        f"{each.name} {member.selector}: {member.name}"
        for each in declared().values()
        if each.is_there
        for member in each.members
        if member.name and not has(getattr(openmps, each.name), member.name)
    ]


def table(name: str) -> str:
    """The members of a class as a table, empty where it declares none."""
    members = declared()[name].members if name in declared() else ()
    lines = [f"| `{each.selector.lstrip('@=')}` | `{each.call}` |" for each in members]
    return "\n".join(["| in the framework | in Python |", "| --- | --- |", *lines]) + "\n" if lines else ""


def page() -> str:
    """The index."""
    there = [each for each in declared().values() if each.is_there]
    missing = [each.name for each in declared().values() if not each.is_there]
    count = sum(len(each.members) for each in there)
    parts = [
        "# Every selector\n",
        f"{count:,} selectors, properties and values of {len(there)} classes, protocols, enumerations and functions",
        "of the framework, each with its name in Python; [the rule](naming.md). What a class inherits stands with the",
        "class that declares it. A constructor stands for `init…` and for the factories of the same arguments; an",
        "argument may be left out where several selectors share a name.\n",
        "Functions keep their names: "
        + ", ".join(f"`{each.name}`" for each in there if not each.members and _is_function(each.name))
        + ".\n",
    ]
    for each in there:
        if each.members:
            parts += [f"## {each.name}\n", f"{each.header}. [Reference](reference/{each.name}.md)\n", table(each.name)]
    parts += ["## Not there yet\n", ", ".join(f"`{name}`" for name in missing) + "\n"]
    return "\n".join(parts)


def _is_function(name: str) -> bool:
    return not isinstance(getattr(openmps, name), type)
