"""Calls the public interface at random, with arguments of the types that it declares.

usage: random_calls.py [--calls 300000] [--seed 0] [--seconds S] [--only PATTERN]

Every outcome must be a value or an error of openmps's own family: whatever else is raised, or takes more than
``--seconds`` (10), is printed with the call that did it, and the exit status is 1. Calls come in episodes of 200 that
share their objects, each of which follows from the seed and its number alone. Arguments that a type checker would
refuse are not drawn: an argument is drawn by its annotation, one without an annotation is left out. With ``--only``
calls are of classes, and of their objects, whose names match, such as "Matrix|RNN".
"""

from __future__ import annotations

import argparse
import collections.abc
import contextlib
import dataclasses
import enum
import inspect
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import types
import typing
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import openmps as mps
from openmps.checks import is_writable
from openmps.core.kernel.configuration import Fixed, SourceProperty
from openmps.errors import MPSError

EPISODE = 200
MEMORY = 6 << 30
INTEGERS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 28, -1, -2, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**63, 2**70)
FLOATS = (0.0, 1.0, 0.5, -1.0, 1e-3, 3.0, -0.0, 1e30, 1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "a", "conv1", "same", "valid", "cpu", "日本", "a\x00b", "x" * 300, "../x")
LEFT_OUT = {
    "enqueue",
    "execute_async",
    "plan",
    "given",
    "repeated",
    "of_images",
    "own",
    "used",
    "output_bindings",
    "new_heap",
}
"""An enqueued buffer that nobody commits holds up what is behind it; other threads are reached by no time limit; the
others are for those who extend the framework, and trust their arguments. A heap takes its memory at once."""
PUBLIC = frozenset(mps.__all__)


class TooLong(BaseException):
    """A call took too long."""


class NoValueError(Exception):
    """There is no value of a type to be had."""


class NestedError(Exception):
    """A constructor that was called for an argument failed."""

    def __init__(self, who: str, error: Exception, arguments: list[Any]) -> None:
        self.who, self.error, self.arguments = who, error, arguments


class Source:
    """A data source of convolutions and normalizations."""

    def __init__(self, descriptor: mps.MPSCNNConvolutionDescriptor, channels: int) -> None:
        self._descriptor, self._channels = descriptor, channels

    def data_type(self) -> mps.MPSDataType:
        return mps.MPSDataType.FLOAT32

    def descriptor(self) -> mps.MPSCNNConvolutionDescriptor:
        return self._descriptor

    def weights(self) -> Any:
        return np.ones(self._descriptor.weight_shape(), np.float32)

    def bias_terms(self) -> None:
        return None

    gamma = beta = mean = variance = bias_terms

    def number_of_feature_channels(self) -> int:
        return self._channels

    def number_of_groups(self) -> int:
        return 1

    def load(self) -> bool:
        return True

    def purge(self) -> None:
        pass

    def label(self) -> str:
        return "source"


def seeds_of_matrices(device: mps.MTLDevice) -> list[Any]:
    """Matrices that fit one another, and kernels and recurrent layers that take them."""
    chance = np.random.default_rng(0)
    found: list[Any] = [
        mps.MPSMatrix.from_numpy(device, chance.normal(size=shape).astype(kind))
        for shape in ((4, 4), (4, 4), (2, 4), (1, 4), (2, 4, 4))
        for kind in (np.float32, np.float16)
    ]
    found += [mps.MPSMatrix.from_numpy(device, np.zeros((1, 4), kind)) for kind in (np.uint32, np.int32)]
    found += [mps.MPSVector.from_numpy(device, chance.normal(size=4).astype(np.float32)) for _ in range(2)]
    source, gates = Source(mps.MPSCNNConvolutionDescriptor(1, 1, 4, 4), 4), ("input", "forget", "cell", "output")
    lstm, gru, single = mps.MPSLSTMDescriptor(4, 4), mps.MPSGRUDescriptor(4, 4), mps.MPSRNNSingleGateDescriptor(4, 4)
    for gate in gates:
        setattr(lstm, f"{gate}_gate_input_weights", source)
        setattr(lstm, f"{gate}_gate_recurrent_weights", source)
    gru.input_gate_input_weights = gru.output_gate_recurrent_weights = single.input_weights = source
    for descriptor in (lstm, gru, single):
        weights: list[mps.MPSMatrix] = []
        trained = mps.MPSRNNMatrixTrainingLayer(device, descriptor, weights)
        found += [descriptor, mps.MPSRNNMatrixInferenceLayer(device, descriptor), trained, *weights[:2]]
    return [
        *found, mps.MPSMatrixMultiplication(device, False, True, 4, 4, 4, 1.0, 0.0), mps.MPSMatrixFindTopK(device, 2),
        mps.MPSMatrixDecompositionLU(device, 4, 4), mps.MPSMatrixDecompositionCholesky(device, False, 4),
        mps.MPSMatrixSolveLU(device, False, 4, 2), mps.MPSMatrixSolveCholesky(device, False, 4, 2),
        mps.MPSMatrixSoftMax(device), mps.MPSMatrixFullyConnected(device), mps.MPSMatrixSum(device, 2, 4, 4, False),
        mps.MPSMatrixVectorMultiplication(device, 4, 4), mps.MPSMatrixBatchNormalization(device),
    ]  # fmt: skip


class Drawn:
    """Values of types, from a pool of objects that grows as calls return some."""

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance, self.folder = chance, folder
        self.device = mps.mtl_device("cpu")
        self.queue = self.device.new_command_queue()
        self.pool: list[Any] = [self.device, self.queue]
        for channels, width, height in ((4, 5, 3), (1, 8, 8), (3, 2, 2)):
            pixels = np.ones((height, width, channels), np.float32)
            self.pool.append(mps.MPSImage.from_numpy(self.device, pixels))
            self.pool.append(mps.MPSImageBatch.from_numpy(self.device, np.stack([pixels] * 2)))
            descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, channels, channels)
            source = Source(descriptor, channels)
            self.pool += [descriptor, source, mps.MPSCNNConvolution(self.device, weights=source)]
        node = mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode())
        self.pool += [node, node.result_image, mps.MPSNNGraph(self.device, node.result_image)]
        self.pool.append(mps.MPSVector(self.device.new_buffer(64), mps.MPSVectorDescriptor(16)))
        self.pool += seeds_of_matrices(self.device)
        self.renew()

    def renew(self) -> None:
        """An open command buffer."""
        self.pool = [each for each in self.pool if not isinstance(each, mps.MTLCommandBuffer | mps.MPSCommandBuffer)]
        self.pool += [self.queue.command_buffer(), mps.MPSCommandBuffer(self.queue)]

    def keep(self, value: object) -> None:
        """Have a value serve in later calls."""
        # What is not exported is for those who look inside, and not checked.
        if type(value).__name__ in PUBLIC and not isinstance(value, enum.Enum | type):
            self.pool.append(value)
            if len(self.pool) > 150:
                del self.pool[30 + self.chance.randrange(100)]

    def of(self, hint: Any, depth: int = 0) -> Any:
        """A value of a type."""
        origin, parts = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._of_any(parts, depth)
        if origin is typing.Literal:
            return self.chance.choice(parts)
        if origin is typing.Annotated:
            return self.of(parts[0], depth)
        if hint is Any or isinstance(hint, typing.TypeVar):
            return self._anything(depth)
        if hint is None or hint is type(None):
            return None
        if origin is tuple:
            listed = parts[:1] * self.chance.randrange(4) if parts[-1] is ... else parts
            return tuple(self.of(each, depth + 1) for each in listed)
        kind = origin or hint
        if kind in (list, collections.abc.Sequence, collections.abc.Iterable):
            return [self.of(parts[0] if parts else Any, depth + 1) for _ in range(self.chance.randrange(4))]
        if kind is collections.abc.Callable:
            return lambda *arguments, **options: None
        if kind in (dict, collections.abc.Mapping):
            return {}
        if inspect.isclass(kind):
            return self._of_class(kind, depth)
        raise NoValueError

    def _of_any(self, parts: tuple[Any, ...], depth: int) -> Any:
        for part in self.chance.sample(parts, len(parts)):
            try:
                return self.of(part, depth)
            except NoValueError:
                continue
        raise NoValueError

    def _anything(self, depth: int) -> Any:
        plain = (int, float, str, bool, bytes, np.ndarray, type(None))
        return self._of_class(self.chance.choice(plain), depth) if self.chance.random() < 0.7 else self._one(object)

    def _one(self, kind: type) -> Any:
        fitting = [each for each in self.pool if _is(each, kind)]
        if not fitting:
            raise NoValueError
        return self.chance.choice(fitting)

    def _of_class(self, kind: type, depth: int) -> Any:
        plain: dict[type, Any] = {int: INTEGERS, float: FLOATS, str: TEXTS, bool: (True, False), type(None): (None,)}
        if kind in plain:
            return self.chance.choice(plain[kind])
        if kind is bytes:
            return self.chance.randbytes(self.chance.choice((0, 1, 4, 16, 64)))
        if issubclass(kind, enum.Enum):
            return self.chance.choice(list(kind))
        if issubclass(kind, np.ndarray):
            return self._array()
        if kind in (os.PathLike, Path):
            return self.folder / self.chance.choice(("there", "not there", "folder"))
        if depth < 3 and (self.chance.random() < 0.4 or not any(_is(each, kind) for each in self.pool)):
            try:
                made = self._made(kind, depth)
            except NoValueError:
                made = None
            if made is not None:
                return made
        return self._one(kind)

    def _array(self) -> np.ndarray[Any, Any]:
        shapes = ((), (0,), (4,), (3,), (2, 3), (3, 5, 4), (2, 2, 3, 4), (1, 1, 1, 1, 1))
        array = np.random.default_rng(self.chance.randrange(2**32)).normal(size=self.chance.choice(shapes))
        return np.asarray(array).astype(self.chance.choice((np.float32, np.float64, np.uint8, np.float16, np.int64)))

    def _made(self, kind: type, depth: int) -> Any:
        """A new object, by a constructor call; None if that is refused."""
        if kind.__module__.partition(".")[0] != "openmps" or getattr(kind, "_is_protocol", False):
            return None
        if inspect.isabstract(kind) or kind is mps.MTLHeap:
            return None
        bound, arguments = self.call(kind, depth + 1)
        try:
            made = bound()
        except MPSError:
            return None
        except Exception as error:
            raise NestedError(kind.__name__, error, arguments) from error
        self.keep(made)
        return made

    def call(self, function: Any, depth: int = 0) -> tuple[Any, list[Any]]:
        """A call with arguments, of which those with defaults are left out now and then."""
        hints, given, named, by_name = _hints(function), [], {}, False
        for each in inspect.signature(function).parameters.values():
            if each.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
                continue
            if each.default is not inspect.Parameter.empty and self.chance.random() < 0.3:
                by_name = True
                continue
            if each.name not in hints:
                raise NoValueError
            value = self.of(hints[each.name], depth + 1)
            if by_name or each.kind is inspect.Parameter.KEYWORD_ONLY:
                named[each.name] = value
            else:
                given.append(value)
        return (lambda: function(*given, **named)), [*given, *named.items()]


def _can_be_set(thing: object, name: str, member: object) -> bool:
    """Whether a type checker lets a property be set."""
    if isinstance(thing, tuple) or dataclasses.is_dataclass(thing):
        return False
    if isinstance(member, SourceProperty):
        return member.is_writable
    if isinstance(member, Fixed):
        return False
    if isinstance(member, property):
        return is_writable(type(thing), name)
    return hasattr(type(member), "__set__")


def _is(value: object, kind: type) -> bool:
    try:
        return isinstance(value, kind)
    except (TypeError, MPSError):  # a protocol looks at properties
        return False


def _hints(call: Any) -> dict[str, Any]:
    function = call.__init__ if inspect.isclass(call) else call
    function = getattr(function, "__func__", function)
    known = {name: getattr(mps, name) for name in mps.__all__}
    try:
        return typing.get_type_hints(function, localns=known)
    except (NameError, TypeError, AttributeError):
        return {}


class Driver:
    """Episodes of calls, and what came of them."""

    def __init__(self, seconds: float, only: str = "") -> None:
        self.seconds = seconds
        self.only = re.compile(only)
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        values = [getattr(mps, name) for name in mps.__all__]
        kinds = [value for value in values if inspect.isclass(value) and not inspect.isabstract(value)]
        kinds.remove(mps.MTLHeap)
        self.kinds = [kind for kind in kinds if not issubclass(kind, BaseException) and self.only.search(kind.__name__)]
        self.functions = [value for value in values if inspect.isfunction(value)]

    def episode(self, seed: int, number: int, calls: int) -> None:
        chance = random.Random(f"{seed} {number}")
        # Some calls write files, by names that are drawn: they, and what ".." leads to, lie in a folder of their own.
        with tempfile.TemporaryDirectory() as outer:
            folder = Path(outer) / "inner"
            folder.mkdir()
            with contextlib.chdir(folder):
                self._episode(chance, folder, f"--seed {seed}, episode {number}", calls)

    def _episode(self, chance: random.Random, folder: Path, where: str, calls: int) -> None:
        (folder / "folder").mkdir()
        (folder / "there").write_bytes(b"something")
        drawn = Drawn(chance, folder)
        for place in range(calls):
            if place % 20 == 19:
                self._finish(drawn)
            self._call(drawn, f"{where}, call {place}")

    def _finish(self, drawn: Drawn) -> None:
        """Run what was recorded, now and then; what fails then is an error of the family too."""
        for buffer in [each for each in drawn.pool if isinstance(each, mps.MTLCommandBuffer | mps.MPSCommandBuffer)]:
            if drawn.chance.random() < 0.5:
                self._outcome(drawn, f"{type(buffer).__name__}.commit", buffer.commit, [], "the end of a part")
                wait = buffer.wait_until_completed
                if buffer.status.value >= 2:
                    self._outcome(drawn, f"{type(buffer).__name__}.wait_until_completed", wait, [], "the end of a part")
        drawn.renew()

    def _call(self, drawn: Drawn, where: str) -> None:
        chance = drawn.chance
        which = chance.random()
        if which < 0.25:
            kind = chance.choice(self.kinds)
            if not issubclass(kind, enum.Enum) and not getattr(kind, "_is_protocol", False):
                self._with_arguments(drawn, kind.__name__, kind, where)
        elif which < 0.3 and not self.only.pattern:
            function = chance.choice(self.functions)
            self._with_arguments(drawn, function.__name__, function, where)
        else:
            fitting = [each for each in drawn.pool if self.only.search(type(each).__name__)]
            self._member(drawn, chance.choice(fitting), where)

    def _member(self, drawn: Drawn, thing: Any, where: str) -> None:
        kind = type(thing)
        names = [name for name in dir(kind) if name[0] != "_" and name not in LEFT_OUT] or ["x"]
        if self.only.pattern and drawn.chance.random() < 0.7:
            # Of the members of a kernel few are encodes, which most can go wrong in.
            names = [name for name in names if name.startswith("encode_") or name == "encode"] or names
        name = drawn.chance.choice(names)
        who = f"{kind.__name__}.{name}"
        member = inspect.getattr_static(kind, name, None)
        if callable(member) or isinstance(member, classmethod | staticmethod):
            if not name.startswith("wait_until"):
                self._with_arguments(drawn, who, getattr(thing, name), where)
            return
        value = self._outcome(drawn, f"get {who}", lambda: getattr(thing, name), [], where)
        hint = type(value) if value is not None else Any
        if drawn.chance.random() < 0.5 and _can_be_set(thing, name, member):
            try:
                new = drawn.of(hint, 1)
            except (NoValueError, NestedError):
                return
            self._outcome(drawn, f"set {who}", lambda: setattr(thing, name, new), [new], where)

    def _with_arguments(self, drawn: Drawn, who: str, call: Any, where: str) -> None:
        try:
            bound, arguments = drawn.call(call)
        except (NoValueError, ValueError, TypeError):
            self.counts["not called"] += 1
            return
        except NestedError as nested:
            self.counts["failed"] += 1
            self._fail(nested.who, nested.error, nested.arguments, where)
            return
        self._outcome(drawn, who, bound, arguments, where)

    def _outcome(self, drawn: Drawn, who: str, call: Any, arguments: list[Any], where: str) -> Any:
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            value = call()
            self.counts["value"] += 1
            drawn.keep(value)
            return value
        except MPSError:
            self.counts["own error"] += 1
        except (Exception, TooLong) as error:
            self.counts["failed"] += 1
            self._fail(who, error, arguments, where)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return None

    def _fail(self, who: str, error: BaseException, arguments: list[Any], where: str) -> None:
        shown = ", ".join(_shown(each) for each in arguments)
        key = f"{who} {type(error).__name__} {str(error)[:40]}"
        self.failures.setdefault(key, f"{who}({shown}): {type(error).__name__}: {str(error)[:200]}\n    {where}")


def _shown(value: object) -> str:
    try:
        return repr(value)[:60]
    except Exception as error:
        return f"<no repr: {type(error).__name__}>"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--first", type=int, default=0, help="the first episode")
    parser.add_argument("--only", default="", metavar="PATTERN", help="classes whose names match")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def stop(number: int, frame: object) -> None:
        raise TooLong(f"took more than {options.seconds} s")

    signal.signal(signal.SIGALRM, stop)
    driver, began = Driver(options.seconds, options.only), time.perf_counter()
    for number in range(-(-options.calls // EPISODE)):
        driver.episode(options.seed, options.first + number, min(EPISODE, options.calls - number * EPISODE))
    for failure in driver.failures.values():
        print(failure)
    found = ", ".join(f"{count:,} {what}" for what, count in sorted(driver.counts.items()))
    seconds = time.perf_counter() - began
    print(f"{options.calls:,} calls in {seconds:.0f} s: {found}; {len(driver.failures)} kinds of failure")
    return 1 if driver.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
