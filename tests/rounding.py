"""torch with other roundings: as another processor might give them, or independent of the order of sums.

Libraries sum in an order that depends on the processor, on shapes and on how operands lie in memory. Two forms of a
computation have equal bits for certain only where both do the same operation on operands of one layout. What holds
otherwise holds by luck, on one machine. Both modes here replace torch's operations that round more than once, on the
CPU, for all threads, by themselves in float64, rounded once at the end:

- `rounded_once`: all of them. Orders and layouts no longer show, so that forms which differ in nothing else are equal
  bit for bit, on every processor.
- `rounded_by_layout`: about half of the layouts of operands, which ones follows from a seed. The same operation on the
  same layout still gives the same bits; equalities by luck fail.

Convolutions by prepacked weights, and single operations such as sums of two numbers, stay as they are.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

_OPERATIONS = """
    mm addmm bmm baddbmm addbmm dot addmv convolution convolution_backward
    sum mean var std var_mean std_mean prod linalg_vector_norm norm logsumexp cumsum
    native_batch_norm native_batch_norm_backward native_group_norm native_group_norm_backward native_layer_norm
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data
    avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d upsample_bilinear2d upsample_bilinear2d_backward
    grid_sampler_2d grid_sampler_2d_backward
    exp exp2 expm1 log log1p log2 log10 tanh sigmoid softplus elu erf sin cos tan rsqrt gelu silu mish logaddexp
    tanh_backward sigmoid_backward softplus_backward elu_backward
""".split()
"""Of ``aten``: sums, and functions of which a processor's vectors give other last digits than its single numbers."""
_NARROW = frozenset({torch.float16, torch.float32})
Chosen = Callable[[str, tuple[Any, ...]], bool]
"""Whether an operation is rounded once, by its name and operands."""


def largest_difference(terms: int, magnitudes: np.ndarray) -> np.ndarray:
    """How far apart two float32 sums of so many terms may be, each in an order of its own.

    ``magnitudes`` are the sums of the terms' magnitudes; either sum is off by at most ``terms 2^-24`` of them.
    """
    return terms * float(np.finfo(np.float32).eps) * np.asarray(magnitudes, np.float64)


def likely_error(terms: int, magnitudes: np.ndarray) -> np.ndarray:
    """How far a float32 sum of so many random terms is from the exact one, with near certainty, in any order.

    Roundings are of either sign, so that ``sqrt(terms)`` of them count, each at most ``2^-24`` of the magnitudes; twice
    that is hardly ever exceeded.
    """
    return terms**0.5 * float(np.finfo(np.float32).eps) * np.asarray(magnitudes, np.float64)


@contextmanager
def rounded_once() -> Generator[None]:
    """Sums whose rounding depends on no order."""
    with _replaced(lambda name, operands: True):
        yield


@contextmanager
def rounded_by_layout(seed: int) -> Generator[None]:
    """Sums whose rounding depends on the layout of operands in another way than on this machine."""

    def chosen(name: str, operands: tuple[Any, ...]) -> bool:
        if name == "convolution_backward":
            operands = operands[:-1]  # which gradients are wanted: each is an operation of its own
        return bool(zlib.crc32(repr((seed, name, *map(_layout, operands))).encode()) & 1)

    with _replaced(chosen):
        yield


@contextmanager
def _replaced(chosen: Chosen) -> Generator[None]:
    libraries = {name: torch.library.Library(name, "IMPL") for name in ("aten", "mkldnn", "mkl")}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of kernels that are replaced
            for name in _OPERATIONS:
                for form in (name, f"{name}_"):
                    packet = getattr(torch.ops.aten, form, None)
                    for overload in () if packet is None else packet.overloads():
                        _replace(libraries["aten"], getattr(packet, overload), name, chosen)
            _replace_products(libraries, chosen)
        yield
    finally:
        for library in libraries.values():
            library._destroy()


def _replace(library: Any, overload: Any, name: str, chosen: Chosen) -> None:
    """Replace one form of an operation: functional, in place or with memory for its results."""
    full = overload.name()
    try:
        kernel = torch.library.get_kernel(full, "CPU")
    except RuntimeError:  # made of others
        return
    arguments = overload._schema.arguments
    names = [argument.name for argument in arguments]
    written = {each.name for each in arguments if each.alias_info is not None and each.alias_info.is_write}

    def run(keys: Any, *args: Any, **more: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **more}
        operands = tuple(value for key, value in given.items() if key == "self" or key not in written)
        if torch.jit.is_tracing() or not any(map(_is_narrow, operands)) or not chosen(name, operands):
            return kernel.call_boxed(keys, *args, **more)
        wide = {key: _own(_widened(value), key) if key in written else _widened(value) for key, value in given.items()}
        try:
            found = kernel.call_boxed(keys, *[wide[key] for key in names[: len(args)]], **{k: wide[k] for k in more})
        except RuntimeError:  # refuses these types: what it gives, or raises, as it is
            return kernel.call_boxed(keys, *args, **more)
        made = kernel.call_boxed(keys, *args, **more)
        several = (made, found) if isinstance(made, (tuple, list)) else ((made,), (found,))
        for one, other in zip(*several, strict=True):
            _take(one, other)
        return made

    library.impl(full.removeprefix("aten::"), run, "CPU", with_keyset=True)


def _replace_products(libraries: dict[str, Any], chosen: Chosen) -> None:
    """Replace products by the libraries' own calls, which take float32 alone."""
    named = "mkldnn::_linear_pointwise", "mkl::_mkl_linear"
    onednn, mkl = (torch.library.get_kernel(name, "CPU") for name in named)

    def linear(keys: Any, x: Tensor, weights: Tensor, biases: Tensor | None, gate: str, *more: Any) -> Tensor:
        made = onednn.call_boxed(keys, x, weights, biases, gate, *more)
        return made if gate != "none" else _product("linear", made, x, weights, biases, chosen)

    def ordered(keys: Any, x: Tensor, packed: Tensor, weights: Tensor, biases: Tensor | None, rows: int) -> Tensor:
        made = mkl.call_boxed(keys, x, packed, weights, biases, rows)
        return _product("ordered", made, x, weights, biases, chosen)

    libraries["mkldnn"].impl("_linear_pointwise", linear, "CPU", with_keyset=True)
    libraries["mkl"].impl("_mkl_linear", ordered, "CPU", with_keyset=True)


def _product(name: str, made: Tensor, x: Tensor, weights: Tensor, biases: Tensor | None, chosen: Chosen) -> Tensor:
    if chosen(name, (x, weights)):
        _take(made, functional.linear(x.double(), weights.double(), None if biases is None else biases.double()))
    return made


def _is_narrow(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in _NARROW and value.layout == torch.strided


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(torch.float64) if _is_narrow(value) else value
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROW else value


def _own(value: Any, name: str) -> Any:
    """Memory that may be written: with the numbers that are there where they are read, too."""
    if not isinstance(value, Tensor):
        return value
    return value.clone() if name == "self" else torch.empty_like(value)


def _take(made: Any, found: Any) -> None:
    """Write what is found, rounded, over what was made; what is not finite stays."""
    if _is_narrow(made) and isinstance(found, Tensor) and made.shape == found.shape:
        rounded = found.to(made.dtype)
        made.copy_(torch.where(made.isfinite() & rounded.isfinite(), rounded, made))


def _layout(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return repr(value)
    return value.shape, value.stride() if value.layout == torch.strided else None, value.dtype
