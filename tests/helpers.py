"""Comparisons and tensors for the tests."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from openmps import cpu

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
"""Largest error allowed against a float64 oracle, as a share of the largest value expected (at least 1)."""

LAYOUTS = ("contiguous", "channels_last", "sliced", "odd_strides")


def array(value: Any) -> np.ndarray:
    """Any tensor or number as a float64 NumPy array."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value, dtype=np.float64)


def tensor(
    value: Any,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    layout: str = "contiguous",
) -> torch.Tensor:
    """A tensor with these values.

    `sliced` is a view with gaps on every axis of a larger tensor full of NaN. `odd_strides` is channels-last but for
    the strides of axes of length 1, which mean nothing: views come with any.
    """
    plain = torch.tensor(np.asarray(value), dtype=dtype, device=device)
    if layout == "channels_last":
        return plain.contiguous(memory_format=torch.channels_last)
    if layout == "sliced":
        larger = torch.full([2 * n + 1 for n in plain.shape], float("nan"), dtype=dtype, device=device)
        view = larger[tuple(slice(1, 2 * n, 2) for n in plain.shape)]
        view.copy_(plain)
        return view
    if layout == "odd_strides":
        strides = plain.contiguous(memory_format=torch.channels_last).stride()
        odd = [17 + axis if n == 1 else s for axis, (n, s) in enumerate(zip(plain.shape, strides, strict=True))]
        return plain.permute(0, 2, 3, 1).contiguous().as_strided(plain.shape, odd)
    return plain.contiguous()


def relative_error(actual: Any, expected: Any) -> float:
    """Largest difference as a share of the largest expected magnitude, which counts as 1 at least."""
    difference, scale = _difference(array(actual), array(expected))
    return float(difference.max(initial=0.0) / scale)


def assert_close(actual: Any, expected: Any, rtol: float, what: str = "values") -> None:
    """`max |actual - expected| <= rtol * max(1, max |expected|)`; NaN and infinities must stand in the same places."""
    got, want = array(actual), array(expected)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    if want.size == 0:
        return
    difference, scale = _difference(got, want)
    worst = np.unravel_index(int(np.argmax(difference)), want.shape)
    assert difference[worst] <= rtol * scale, (
        f"{what}: error {difference[worst]:.3e} of scale {scale:.3e} (allowed {rtol:.1e}) at {tuple(map(int, worst))}: "
        f"{got[worst]!r}, expected {want[worst]!r}; {int((difference > rtol * scale).sum())} of {want.size} are off"
    )


def assert_digits(actual: Any, expected: list[float] | float, places: int, what: str = "values") -> None:
    """Equal to the digits printed: within half a unit of the last of `places` decimals."""
    got, want = array(actual).ravel(), np.asarray(expected, dtype=np.float64).ravel()
    assert got.shape == want.shape, f"{what}: {got.shape[0]} values, expected {want.shape[0]}"
    bound = 0.5 * 10.0**-places + 1e-12
    assert np.all(np.abs(got - want) <= bound), f"{what}: {got.tolist()}, expected {want.tolist()} to {places} places"


def _difference(got: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, float]:
    finite = np.isfinite(want)
    scale = max(1.0, float(np.abs(want[finite]).max(initial=0.0)))
    with np.errstate(invalid="ignore"):
        difference = np.where(finite, np.abs(got - want), 0.0)
        same = finite | (got == want) | (np.isnan(got) & np.isnan(want))
    return np.where(same & ~np.isnan(difference), difference, np.inf), scale


def inner(a: Any, b: Any) -> float:
    """The scalar product of two arrays."""
    return float(np.sum(array(a) * array(b)))


def tool(name: str) -> Any:
    """The module of a file in tools/, which is no package."""
    path = Path(__file__).resolve().parents[1] / "tools" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@functools.cache
def _classes_of(module: str) -> dict[str, str]:
    """The text of each class that stands in a module by itself."""
    text = inspect.getsource(sys.modules[module])
    lines, found = text.splitlines(), [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in found}


def source_of(kind: type) -> str:
    """The text of a class, as `inspect.getsource`, which parses the module of each class anew."""
    return _classes_of(kind.__module__)[kind.__qualname__]


def on_a_cpu_of(patch: pytest.MonkeyPatch, *, is_intel: bool) -> None:
    """Choose forms as on a processor of one maker or another."""
    features = cpu.cpu_features()._replace(maker="GenuineIntel" if is_intel else "AuthenticAMD")
    patch.setattr(cpu, "cpu_features", lambda: features)


def close_to_torch(found: np.ndarray, wanted: torch.Tensor, name: str) -> None:
    """Within 5e-5 of the largest number, in float32 over a whole network."""
    numbers = wanted.detach().numpy()
    scale = np.abs(numbers).max()
    assert scale > 0.0, f"{name}: nothing to compare"
    error = np.abs(found - numbers).max() / scale
    assert error < 5e-5, f"{name}: {error:.1e} of {scale:.2g}"
