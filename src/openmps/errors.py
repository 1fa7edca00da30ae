"""Every exception of openmps, the sentence that each one says, and how it warns.

Each error names who refused (class and label), which argument, the rule, what it got and what to do about it.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
import warnings
from collections.abc import Mapping, Sequence

_LONGEST_PART = 800
"""Characters of each part of a sentence: what a file says may be of any length."""
_LONGEST_VALUE = 200
"""Characters of the value that was found."""
_MOST_PROBLEMS = 1000
"""Lines of an error that lists all that it found."""


def shown(value: object) -> str:
    """``repr(value)``, but of an integer with more digits than Python writes how many it has."""
    try:
        return repr(value)
    except ValueError:
        if isinstance(value, int):
            return f"an integer of about {int(value.bit_length() * 0.30103) + 1:,} digits"
        return f"{type(value).__name__} of a very large integer"


def _short(part: object, most: int = _LONGEST_PART) -> str:
    try:
        text = str(part)
    except ValueError:
        text = shown(part)
    return text if len(text) <= most else f"{text[:most]}…"


def counted(number: int, word: str) -> str:
    """``1 kernel``, ``2 kernels``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def printable(text: str) -> str:
    """Text on one line, without what moves the cursor of a terminal: names in files may be of any characters."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


class MPSError(Exception):
    """Base of every error that openmps raises.

    ``who`` is the class and label of the object that refused, ``argument`` the argument or property at fault, ``rule``
    what must hold, ``got`` what was found and ``remedy`` what to do.
    """

    def __init__(self, who: str, argument: str, rule: str, got: object = None, remedy: str = "") -> None:
        self.who = who
        self.argument = argument
        self.rule = rule
        self.got = got
        self.remedy = remedy
        found = "" if got is None else f", got {_short(got, _LONGEST_VALUE)}"
        todo = f". {_short(remedy)}" if remedy else ""
        super().__init__(f"{_short(who)}: {_short(argument)} {_short(rule)}{found}{todo}")


class MPSArgumentError(MPSError, ValueError):
    """An argument or property has a value that the framework does not accept."""


class MPSTypeError(MPSError, TypeError):
    """An argument has the wrong type, or a method is called that the framework marks unavailable."""


class MPSAttributeError(MPSError, AttributeError):
    """An attribute is set or read that the class does not have, or a name that openmps does not have."""


class MPSBufferError(MPSArgumentError, BufferError):
    """Memory cannot be handed to another library by DLPack in the way that it asks for."""


class MPSDeviceError(MPSArgumentError):
    """Objects of different devices meet in one operation, or the device asked for is not there."""


class MPSMemoryError(MPSError, MemoryError):
    """The device has no memory left for what was asked for."""


class MPSLifetimeError(MPSError, RuntimeError):
    """A temporary object is used after its read count reached zero, or outside its command buffer."""


class MTLCommandBufferError(MPSError, RuntimeError):
    """A command buffer is used out of order (encode after commit, commit twice, wait before commit)."""


class MTLExecutionError(MPSError, RuntimeError):
    """Work of a committed command buffer failed; the original exception is the ``__cause__``."""


class MPSProcessError(MPSError, RuntimeError):
    """Processes that train together cannot: one is missing, has ended, does not answer, or has other things."""


class MPSFileError(MPSError, ValueError):
    """A file or folder is missing, truncated, damaged or not of the format expected."""


class _ListingError(MPSError):
    """An error that lists all that it found: ``problems`` has a line for each."""

    def __init__(self, who: str, argument: str, rule: str, problems: Sequence[str], remedy: str = "") -> None:
        super().__init__(who, argument, rule, None, remedy)
        self.problems = tuple(printable(_short(problem)) for problem in problems)
        self.args = ("\n".join([f"{_short(who)}: {_short(argument)} {_short(rule)}:", *self._lines(), *self._todo()]),)

    def _lines(self) -> list[str]:
        shown = self.problems[:_MOST_PROBLEMS]
        more = len(self.problems) - len(shown)
        return [*(f"  {problem}" for problem in shown), *([f"  and {more} more"] if more else [])]

    def _todo(self) -> list[str]:
        return [self.remedy] if self.remedy else []


class MPSExportError(_ListingError, MPSArgumentError):
    """Something of a graph cannot be said in the format asked for; ``problems`` lists all of it, a line each."""

    def __init__(self, who: str, argument: str, problems: Sequence[str]) -> None:
        rule = f"must hold only what the format has; {counted(len(problems), 'problem')} in the way"
        super().__init__(who, argument, rule, problems)


class MPSWeightsError(_ListingError, MPSArgumentError):
    """Weights do not fit a network; ``problems`` lists all that were found, a line each."""


class MPSOperatorError(_ListingError, MPSFileError):
    """A model has operators that the framework's nodes cannot express; ``problems`` lists all of them, a line each.

    ``nodes`` has the same as dictionaries: ``node``, ``operator``, ``why`` and ``remedy``. The sentence names as
    many as fit a screen or two: nodes with the same operator and reason stand in one line. ``invalid`` of them are
    wrong in the file itself: operators or shapes against ONNX's rules.
    """

    def __init__(self, who: str, argument: str, nodes: Sequence[Mapping[str, str]], invalid: int = 0) -> None:
        self.nodes = [dict(each) for each in nodes]
        counts = {
            "that the framework cannot express": len(nodes) - invalid,
            "against ONNX's rules": invalid,
        }
        rule = "has " + " and ".join(f"{counted(count, 'node')} {what}" for what, count in counts.items() if count)
        problems = [_said(each["operator"], each["why"], each["remedy"], [each["node"]]) for each in nodes]
        super().__init__(who, argument, rule, problems)

    def _lines(self) -> list[str]:
        return self._table().splitlines()

    def _table(self) -> str:
        """A line for each operator and reason, with the nodes that it is about."""
        alike: dict[tuple[str, str, str], list[str]] = {}
        for each in self.nodes:
            alike.setdefault((each["operator"], each["why"], each["remedy"]), []).append(each["node"])
        lines = [_line(*key, nodes) for key, nodes in alike.items()]
        text, rest = "", len(lines)
        while lines and len(text) + len(lines[0]) < _LONGEST_TABLE:
            text += lines.pop(0) + "\n"
            rest -= 1
        return (text + (f"  and {rest} more kinds; see nodes of the error\n" if rest else "")).rstrip()


_LONGEST_TABLE = 3200
"""Characters of the list of operators in one error."""
_WIDTH = 80


def _line(operator: str, why: str, remedy: str, nodes: Sequence[str]) -> str:
    text = _said(operator, why, remedy, nodes)
    return textwrap.fill(text, _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _said(operator: str, why: str, remedy: str, nodes: Sequence[str]) -> str:
    named = ", ".join(node[:60] for node in nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
    return f"{operator[:60]} ({named}): {why[:400]}{f'. {remedy[:200]}' if remedy else ''}"


class MPSNonFiniteError(MPSError, ArithmeticError):
    """A NaN or an infinity appeared; ``who`` is the first kernel that produced one."""


class MPSTrainingWarning(UserWarning):
    """Weights do not arrive: they did not move, no update was ever asked for, or a kernel holds older ones."""


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line of the program that called: outside this package and Python's own library.

    A thread of the package's own has no such line: there, the line that calls this is named.
    """
    # By names of modules: what `dataclass` writes has no file of the package's.
    frame, level = inspect.currentframe(), 1
    while frame is not None and not _is_of_program(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=2 if frame is None else level)


def _is_of_program(module: str) -> bool:
    package = module.partition(".")[0]
    return package != _PACKAGE and package not in sys.stdlib_module_names


_PACKAGE = __name__.partition(".")[0]


def lengths_text(lengths: Sequence[int]) -> str:
    """``(28, 20)`` as ``28x20``."""
    return "x".join(str(length) for length in lengths)


def size_text(shape: Sequence[int]) -> str:
    """The size of pixels in an array of this shape, (height, width, …), as the framework puts it: width first.

    ``(20, 28, 3)`` as ``28x20x3``. Every size that is printed has this order; what has Python's is a shape, in
    parentheses.
    """
    height, width, *more = shape
    return lengths_text((width, height, *more))
