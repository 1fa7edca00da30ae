"""The rule by which the framework's selectors become Python names (docs/naming.md)."""

from __future__ import annotations

import re

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
LEFT_OUT = {"error", "no_copy", "bytes_per_row", "bytes_per_column", "bytes_per_image", "number_of_anchor_boxes"}
"""Arguments that Python has no use for: errors are raised, and arrays know their strides and sizes."""


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


def is_initializer(selector: str) -> bool:
    """Whether a selector with its sign, ``-initWithDevice:``, is that of an initializer."""
    return re.match(r"-init(?![a-z])", selector) is not None


def python_call(selector: str) -> tuple[str, list[str]]:
    """The Python name of a selector with its sign, ``-`` or ``+``, and an argument for each colon.

    The name of what makes an object is ``__init__``. A first argument of which the selector says nothing has the name
    of the whole first word.
    """
    first, *others = selector[1:].split(":")
    others = [snake(each) for each in others if each]
    if re.fullmatch(r"\w+AtIndex:", selector[1:]):
        return snake(first), ["index"]
    name, argument = _parts(first) if ":" in selector else (snake(first), "")
    if is_initializer(selector):
        name, argument = "__init__", snake(re.sub(r"^init(With)?", "", first))
    elif first == "paddingWithMethod" or (selector[0] == "+" and _CLASS_FACTORY.match(first)):
        name = "__init__"
    arguments = [argument or snake(first)] if ":" in selector else []
    return name, arguments + ["index" if each == "at_index" else each for each in others]


def _parts(first: str) -> tuple[str, str]:
    """What stands before the last With, To, For, From or On, and what follows it."""
    ends = list(re.finditer(r"(?<=.)(?:With|To|For|From|On)(?=[A-Z])", first))
    if not ends:
        return snake(first), ""
    return snake(first[: ends[-1].start()]), snake(first[ends[-1].end() :])


def keywords(selector: str) -> tuple[str, ...]:
    """The keywords that stand for an initializer or factory in a call of its class, in order: ``device, weights``."""
    first, *others = selector.split(":")
    if ":" not in selector:
        return ()
    word = re.sub(r"^init(With)?(?=[A-Z])|^.*With(?=[A-Z])", "", first)
    # A word in capitals stays so: xYLossType, WHLossType.
    return (word[:1].lower() + word[1:] if word[1:2].islower() or len(word) == 1 else word, *others[:-1])
