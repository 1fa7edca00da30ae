"""What `openmps export` and `openmps convert` take of memory and time for a ResNet-50: the table of docs/moving.md.

Usage: python -m bench.moving_cost [WAY ...] [--no-record]

Each way is a process of its own, which first takes a small network the same way, so that all is imported. Memory is the
most that the process grows by after that, over the bytes of the network's weights in float32; time is the processor's.
Linux alone tells the most memory anew. It needs onnx and coremltools.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bench.harness import ROOT, record

sys.path.append(str(ROOT / "tests"))  # where the networks are
_SIZE = ("--image", "224x224x3")
WAYS: Mapping[str, tuple[str, ...]] = {
    "Core ML": ("export", "--coreml", "net.mps", "out.mlpackage", *_SIZE),
    "Core ML, float16": ("export", "--coreml", "--half", "net.mps", "out.mlpackage", *_SIZE),
    "MLX": ("export", "--mlx", "net.mps", "out", *_SIZE),
    "ONNX": ("export", "--onnx", "net.mps", "out.onnx", *_SIZE),
    "Swift": ("export", "--swift", "net.mps", "out"),
    "from Core ML": ("convert", "net.mlpackage", "out.mps"),
    "from Core ML, float16": ("convert", "half.mlpackage", "out.mps"),
    "from ONNX": ("convert", "net.onnx", "out.mps"),
    "from Core ML to MLX": ("export", "--mlx", "net.mlpackage", "out"),
}
"""Commands, whose files lie in one folder."""
_MOST = 4.0


def _run(command: Sequence[str]) -> None:
    from openmps.cli import main

    with contextlib.redirect_stdout(io.StringIO()):
        status = main([*command])
    if status:
        raise SystemExit(status)


def make(folder: Path, *, is_small: bool) -> int:
    """The files that are taken, of ResNet-50 or of three small layers; bytes of the weights."""
    import openmps as mps
    from openmps.formats import onnx
    from openmps.training import ArrayConvolutionDataSource
    from trained_networks import network_file

    folder.mkdir()
    if is_small:
        image = mps.MPSNNImageNode(mps.Handle("x"))
        for inputs in (3, 8, 8):
            source = ArrayConvolutionDataSource(
                mps.MPSCNNConvolutionDescriptor(3, 3, inputs, 8), np.ones((8, 3, 3, inputs), np.float32), None, "c"
            )
            image = mps.MPSCNNConvolutionNode(image, source).result_image
        mps.MPSKeyedArchiver.archive(mps.MPSNNGraph(mps.mtl_device("cpu"), image), folder / "net.mps")
    else:
        onnx.network(network_file("resnet50", folder)).model(mps.mtl_device("cpu")).save(folder / "net.mps")
    with contextlib.chdir(folder):
        for option, out in (((), "net.mlpackage"), (("--half",), "half.mlpackage")):
            _run(["export", "--coreml", *option, "net.mps", out, *_SIZE])
        _run(["export", "--onnx", "net.mps", "net.onnx", *_SIZE])
    return (folder / "net.mlpackage/Data/com.apple.CoreML/weights/weight.bin").stat().st_size


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def taken(way: str, small: Path, large: Path) -> dict[str, float]:
    """What one way takes in this process."""
    with contextlib.chdir(small):
        _run(WAYS[way])
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before, began = _status("VmRSS"), time.process_time()
    with contextlib.chdir(large):
        _run(WAYS[way])
    return {"seconds": time.process_time() - began, "bytes": _status("VmHWM") - before}


def measure(way: str, folder: Path, weights: int) -> dict[str, Any]:
    """What one way takes in a new process, of memory in times of the weights."""
    command = [sys.executable, "-m", "bench.moving_cost", "--inside", str(folder), way]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
    for out in folder.glob("*/out*"):
        shutil.rmtree(out) if out.is_dir() else out.unlink()
    return {"work": way, "times": round(found["bytes"] / weights, 2), "seconds": round(found["seconds"], 1),
            "weights": weights}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY")
    parser.add_argument("--no-record", action="store_true", help="leave bench/results as it is")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        print(json.dumps(taken(options.ways[0], options.inside / "small", options.inside / "large")))
        return 0
    worst = 0.0
    with TemporaryDirectory() as name:
        folder = Path(name)
        make(folder / "small", is_small=True)
        weights = make(folder / "large", is_small=False)
        for way in options.ways or WAYS:
            row = measure(way, folder, weights)
            worst = max(worst, row["times"])
            print(f"{way}: {row['times']} times {weights:,} bytes, {row['seconds']} s", flush=True)
            if not options.no_record:
                record("moving_cost", "cpu", row)
    return 0 if worst < _MOST else 1


if __name__ == "__main__":
    sys.exit(main())
