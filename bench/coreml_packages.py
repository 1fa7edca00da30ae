"""Core ML packages that coremltools makes of torchvision's modules, converted in and held against PyTorch.

Usage: python -m bench.coreml_packages [NAME ...] [--no-record]

Each network has torchvision's own size and random weights, with batch normalizations folded by torch.fx: coremltools
folds them, too, and rounds what comes out. It is made in float32, in float16 of weights that float16 holds, and with
palettes of 4 bits or linear weights of 8, whose unpacked numbers PyTorch then computes with. It needs torchvision and
coremltools.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.harness import record
from openmps.formats import coreml
from openmps.runtime.devices import mtl_device

NAMES = (
    "resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1", "mnasnet1_0", "densenet121",
    "efficientnet_b0", "regnet_y_400mf", "convnext_tiny",
)  # fmt: skip
KINDS = ("float32", "float16", "palette", "linear")
_SIDE = 224
_CLOSE = 1e-4


def module(name: str) -> torch.nn.Module:
    """A network of torchvision, whose normalizations are a part of its convolutions."""
    import torchvision
    from torch.fx.experimental.optimization import fuse

    torch.manual_seed(0)
    made = torchvision.models.get_model(name, weights=None).eval()
    for each in made.modules():
        if isinstance(each, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(each.weight, 0.5, 1.5)
            torch.nn.init.normal_(each.bias, 0.0, 0.1)
    return fuse(made).eval()


def package(made: torch.nn.Module, kind: str, path: Path) -> None:
    """The package that coremltools makes of a module, whose weights become those of the package."""
    import coremltools as ct
    import coremltools.optimize.coreml as optimize

    if kind == "float16":
        for each in made.parameters():
            each.data.copy_(each.data.half().float())
    shape = (1, 3, _SIDE, _SIDE)
    precision = ct.precision.FLOAT16 if kind == "float16" else ct.precision.FLOAT32
    found = ct.convert(
        torch.jit.trace(made, torch.zeros(shape)), inputs=[ct.TensorType("x", shape=shape)],
        compute_precision=precision, minimum_deployment_target=ct.target.iOS16,
    )  # fmt: skip
    if kind == "palette":
        config = optimize.OptimizationConfig(optimize.OpPalettizerConfig(mode="uniform", nbits=4))
        found = optimize.palettize_weights(found, config)
    elif kind == "linear":
        config = optimize.OptimizationConfig(optimize.OpLinearQuantizerConfig(mode="linear_symmetric"))
        found = optimize.linear_quantize_weights(found, config)
    found.save(str(path))
    if kind in ("palette", "linear"):
        _take_in(made, optimize.decompress_weights(found))


def _take_in(made: torch.nn.Module, found: Any) -> None:
    """Give a module the weights that coremltools unpacks: each has one of its size that is nearest to it."""
    held = {re.sub(r"\W", "_", name): each for name, each in made.named_parameters()}
    for operation in found._mil_program.functions["main"].operations:
        weight = operation.inputs.get("weight")
        if weight is not None and weight.val is not None:
            name = weight.name.split("_weight")[0] + "_weight"
            numbers = torch.from_numpy(np.array(weight.val, np.float32))
            held[name].data.copy_(numbers.reshape(held[name].shape))


def measure(name: str, kind: str) -> dict[str, Any]:
    """How far what openmps computes is from PyTorch."""
    made = module(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.mlpackage"
        with redirect_stderr(StringIO()):
            package(made, kind, path)
        size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        began = time.process_time()
        model = coreml.network(path).model(mtl_device("cpu"))
        seconds = time.process_time() - began
    x = torch.randn(1, 3, _SIDE, _SIDE)
    with torch.inference_mode():
        wanted = made(x).numpy()
    (found,) = model.run({"x": x.numpy()}).values()
    error = float(np.abs(found.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max())
    return {"work": f"{name}, {kind}", "bytes": size, "seconds": round(seconds, 2), "error": error}


def _chosen(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each network in one precision, and in one packing of its weights, by turns."""
    for place, name in enumerate(NAMES):
        if not names or name in names:
            yield from ((name, kind) for kind in (KINDS[place % 2], KINDS[2 + place // 2 % 2]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--no-record", action="store_true", help="leave bench/results as it is")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    worst = 0.0
    for name, kind in _chosen(options.names):
        row = measure(name, kind)
        worst = max(worst, row["error"])
        print(f"{row['work']}: {row['bytes']:,} bytes, read in {row['seconds']} s, {row['error']:.1e}", flush=True)
        if not options.no_record:
            record("coreml_packages", "cpu", row)
    return 0 if worst <= _CLOSE else 1


if __name__ == "__main__":
    sys.exit(main())
