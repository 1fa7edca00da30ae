"""Calls of encodes that do not fit: every kernel names itself, the argument and what it takes.

Python refuses such a call itself, before the method runs, and names the base class that has the method.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import openmps as mps
from in_one_test import in_one_test
from openmps import names
from openmps.core.kernel.operands import OperandKernel
from openmps.metal.device import CommandBuffer

_KERNELS = [each for each in vars(names).values() if isinstance(each, type) and issubclass(each, mps.MPSKernel)]
_TAKES_ANY = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
_ENCODES = [
    (kind, name)
    for kind in _KERNELS
    for name in sorted(dir(kind))
    if name.startswith("encode")
    and inspect.isfunction(getattr(kind, name, None))
    and not _TAKES_ANY & {each.kind for each in inspect.signature(getattr(kind, name)).parameters.values()}
]
of_every_encode = pytest.mark.parametrize("encode", _ENCODES, ids=lambda each: f"{each[0].__name__}.{each[1]}")


def _refused(encode: tuple[type[mps.MPSKernel], str], *arguments: object, **named: object) -> mps.MPSTypeError:
    """The error of a kernel that has a label, and nothing else."""
    kind, name = encode
    kernel = object.__new__(kind)
    vars(kernel)["_label"] = "first"
    with pytest.raises(mps.MPSTypeError) as caught:
        getattr(kernel, name)(*arguments, **named)
    assert caught.value.who == f"{kind.__name__} 'first'"
    return caught.value


def _parameters(encode: tuple[type, str]) -> list[inspect.Parameter]:
    return list(inspect.signature(getattr(*encode)).parameters.values())[1:]


def test_there_are_encodes_of_every_kind() -> None:
    kinds = {kind for kind, _ in _ENCODES}
    assert {mps.MPSCNNConvolution, mps.MPSImageSobel, mps.MPSImageHistogram, mps.MPSRNNMatrixInferenceLayer} <= kinds


@in_one_test
@of_every_encode
def test_an_unknown_argument(encode: tuple[type[mps.MPSKernel], str]) -> None:
    error = _refused(encode, no_such=1)
    assert (error.argument, error.rule) == ("no_such", "is no argument here")
    assert all(each.name in error.remedy for each in _parameters(encode))


@in_one_test
@of_every_encode
def test_all_that_must_be_given(encode: tuple[type[mps.MPSKernel], str]) -> None:
    required = [each.name for each in _parameters(encode) if each.default is each.empty]
    error = _refused(encode)
    assert (error.argument, error.rule) == (" and ".join(required), "must be given")


@in_one_test
@of_every_encode
def test_arguments_without_the_command_buffer(encode: tuple[type[mps.MPSKernel], str]) -> None:
    """Whatever stands in its place is named, not what is missing at the end."""
    required = [each for each in _parameters(encode) if each.default is each.empty]
    if required[0].name != "command_buffer" or len(required) < 2:
        return
    error = _refused(encode, *[object()] * (len(required) - 1))
    assert (error.argument, error.got) == ("command_buffer", "object")


@in_one_test
@of_every_encode
def test_more_arguments_than_there_are(encode: tuple[type[mps.MPSKernel], str]) -> None:
    places = [each for each in _parameters(encode) if each.kind is each.POSITIONAL_OR_KEYWORD]
    device = mps.mtl_device("cpu")
    first = mps.MPSCommandBuffer(device.new_command_queue()) if places[0].name == "command_buffer" else object()
    error = _refused(encode, first, *[None] * len(places))
    assert (error.argument, error.rule) == ("arguments by place", f"must be at most {len(places)}")
    assert error.got == len(places) + 1


# --- what a program makes itself --------------------------------------------------------------------------------------


class Taking(OperandKernel):
    """Tells what it is given."""

    def encode(self, command_buffer: CommandBuffer, a: Any, b: Any = 2, *, c: Any, d: Any = 4) -> tuple[Any, ...]:
        """Tell it."""
        return command_buffer, a, b, c, d

    def encode_all(self, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        return arguments, named


def test_arguments_arrive_as_they_are_given() -> None:
    kernel: Any = Taking(mps.mtl_device("cpu"))
    for given in (kernel.encode("now", 1, c=3), kernel.encode(c=3, a=1, command_buffer="now")):
        assert given == ("now", 1, 2, 3, 4)
    assert kernel.encode("now", None, False, c=(), d=None) == ("now", None, False, (), None)
    assert kernel.encode_all("now", b=2) == (("now",), {"b": 2})


def test_a_missing_argument_that_goes_by_name() -> None:
    kernel: Any = Taking(mps.mtl_device("cpu"))
    with pytest.raises(
        mps.MPSTypeError, match="^Taking: c must be given. The arguments are command_buffer, a, b, c, d$"
    ):
        kernel.encode(mps.MPSCommandBuffer(kernel.device.new_command_queue()), 1)


def test_the_method_keeps_its_signature_and_text() -> None:
    assert str(inspect.signature(Taking.encode)).startswith(
        "(self, command_buffer: 'CommandBuffer', a: 'Any', b: 'Any'"
    )
    assert (Taking.encode.__doc__, Taking.encode.__qualname__) == ("Tell it.", "Taking.encode")


# --- filters, which take images under two names -----------------------------------------------------------------------


def _image() -> mps.MPSImage:
    descriptor = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 4, 4, 1)
    return mps.MPSImage(mps.mtl_device("cpu"), descriptor)


@pytest.mark.parametrize("make", [mps.MPSImageSobel, mps.MPSImageAdd], ids=lambda each: each.__name__)
def test_a_filter_without_its_command_buffer(make: Any) -> None:
    device, images = mps.mtl_device("cpu"), [_image() for _ in range(3)]
    kernel: Any = make(device)
    remedy = "Make one with command_queue.command_buffer"
    for count in (2, 3):
        with pytest.raises(
            mps.MPSTypeError, match=f"^{make.__name__}: command_buffer must be .*, got MPSImage. {remedy}"
        ):
            kernel.encode(*images[:count])


def test_a_filter_without_a_destination() -> None:
    device = mps.mtl_device("cpu")
    command_buffer = mps.MPSCommandBuffer(device.new_command_queue())
    said = "destination_image must be an MPSImage, got None. Filters make no images: pass all of them"
    with pytest.raises(mps.MPSTypeError, match=f"^MPSImageSobel: {said}$"):
        mps.MPSImageSobel(device).encode(command_buffer, _image())


def test_encode_batch_is_advised_for_batches_alone() -> None:
    device = mps.mtl_device("cpu")
    command_buffer = mps.MPSCommandBuffer(device.new_command_queue())
    kernel: Any = mps.MPSImageSobel(device)
    with pytest.raises(mps.MPSTypeError, match="got list. Use encode_batch for batches of images$"):
        kernel.encode(command_buffer, [_image()], _image())
    with pytest.raises(mps.MPSTypeError, match="got MPSCommandBuffer$"):
        kernel.encode(command_buffer, command_buffer, _image())


@pytest.mark.parametrize("kind", [mps.MPSNNOptimizerAdam, mps.MPSNNOptimizerStochasticGradientDescent])
def test_methods_that_take_any_argument_name_what_is_missing(kind: Any) -> None:
    with pytest.raises(mps.MPSTypeError, match=f"{kind.__name__}: command_buffer must be given"):
        kind(mps.mtl_device("cpu"), 0.1).encode()


@pytest.mark.parametrize("name", ["_method", "_surplus", "_unknown", "_refuse", "_absent", "dict"])
def test_subclasses_may_call_their_arguments_anything(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def encode(self, command_buffer, {name}): return {name}", space)
    kind: Any = type("Own", (mps.MPSCNNNeuronLinear,), {"encode": space["encode"]})
    kernel = kind(mps.mtl_device("cpu"), 2.0, 0.0)
    assert kernel.encode(None, 5) == kernel.encode(None, **{name: 5}) == 5
    with pytest.raises(mps.MPSTypeError, match="command_buffer"):
        kernel.encode()


def test_coroutines_and_generators_stay_what_they_are() -> None:
    class Own(mps.MPSCNNNeuronLinear):
        async def encode_later(self, command_buffer: Any) -> None: ...

        def encode_each(self, command_buffer: Any) -> Any:
            yield command_buffer

    assert inspect.iscoroutinefunction(Own.encode_later)
    assert inspect.isgeneratorfunction(Own.encode_each)
