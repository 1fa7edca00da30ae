"""The page of every kernel: what it computes on, and the largest errors that the suite saw.

``make pages`` runs the tests that record them and writes the page; ``make pages KERNEL=squares`` those of one kernel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from catalogue import GRADIENTS, OTHERS, OURS, SAMPLES, SELECTIONS
from node_catalogue import NODES_OF_KERNELS

ROOT = Path(__file__).resolve().parent.parent
ERRORS = ROOT / "bench" / "results" / "kernel_errors.json"
PAGE = ROOT / "docs" / "kernels.md"
SINCE = re.compile(r"(MPS\w+\.h), ((?:macOS|iOS) [\d.]+)")

HEAD = """# Every kernel

Written by the test suite (`make pages`): each kernel over its configurations in `tests/catalogue.py`, against float64
loops that share no code with it. Errors are of float32 images, as a share of the largest expected number (at least 1);
the limit is 1e-5. Formats are those that the suite ran besides float32: a float16 result is the float32 one rounded
once, a byte the nearest of 256 steps. {machines}

## Kernels on images

| kernel | since | gradient | node of a graph | CPU: forward | gradient | CUDA: forward | gradient | formats |
| --- | --- | --- | --- | ---: | ---: | ---: | ---: | --- |
"""
REST = """
## Kernels on states, vectors and matrices

| kernel | since | node of a graph | CPU | CUDA |
| --- | --- | --- | ---: | ---: |
"""


def recorded() -> dict[str, Any]:
    """What the suite recorded, by device."""
    return json.loads(ERRORS.read_text())


def since(kernel: type) -> str:
    """The header and the release that a kernel's description names, or that of its nearest base that does."""
    if kernel in (*OURS, *SELECTIONS):
        return "ours"
    for kind in kernel.__mro__:
        found = SINCE.search(vars(kind).get("__doc__") or "")
        if found:
            return f"{found[1]}, {found[2]}"
    return ""


def page() -> str:
    """The page."""
    errors = recorded()
    machines = "; ".join(
        f"{device}: {seen['machine']}, torch {seen['torch']}"
        + "".join(f", and {each} for some kernels" for each in seen.get("others", ()))
        for device, seen in errors.items()
    )
    lines = [HEAD.format(machines=f"Seen on {machines}.")]
    for kernel in (*SAMPLES, *OURS):
        gradients = _gradients(kernel)
        figures = " | ".join(
            f"{_largest(errors, device, [kernel], 'forward')} | {_largest(errors, device, gradients, 'gradient')}"
            for device in ("cpu", "cuda")
        )
        names = ", ".join(each.__name__ for each in gradients)
        head = f"{kernel.__name__} | {since(kernel)} | {names} | {_node(kernel)}"
        lines.append(f"| {head} | {figures} | {_formats(errors, kernel)} |\n")
    lines.append(REST)
    for kernel in OTHERS:
        figures = " | ".join(_largest(errors, device, [kernel], "forward") for device in ("cpu", "cuda"))
        lines.append(f"| {kernel.__name__} | {since(kernel)} | {_node(kernel)} | {figures} |\n")
    return "".join(lines)


def _node(kernel: type) -> str:
    """The node that runs a kernel in a graph; a dash where there is none."""
    return NODES_OF_KERNELS.get(kernel.__name__, "-")


def _gradients(kernel: type) -> list[type]:
    """The gradient kernels of a kernel, or of its nearest base that has any."""
    for kind in kernel.__mro__:
        found = [each for each, forward in GRADIENTS.items() if forward is kind]
        if found:
            return found
    return []


def _largest(errors: dict[str, Any], device: str, kernels: Iterable[type], what: str) -> str:
    known = errors.get(device, {}).get("kernels", {})
    found = [known[each.__name__][what] for each in kernels if what in known.get(each.__name__, {})]
    if not found:
        return "–"
    return f"{max(found):.1e}" if max(found) else "0"


def _formats(errors: dict[str, Any], kernel: type) -> str:
    formats = errors["cpu"]["kernels"].get(kernel.__name__, {}).get("formats", [])
    return ", ".join(["float32", *formats])


if __name__ == "__main__":
    PAGE.write_text(page())
