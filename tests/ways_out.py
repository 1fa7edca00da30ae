"""What becomes of a network in each format: read back by that format's own loader, and run, or converted in again.

Weights are held by their bits, whatever their order: what order means, the results tell.
"""

from __future__ import annotations

import asyncio
import hashlib
import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import openmps as mps
from moved_networks import CPU, Moved
from openmps.formats import coreai, coreml, mlx, onnx

Array = np.ndarray
_SMALL = 64 * 64
"""Pixels up to which a batch has two images."""
ROUNDED = "rounded"
CLOSE = {ROUNDED: 1e-4, "ONNX": 1e-4, "Core ML": 1e-4, "Core ML, float16": 1e-2, "Core AI": 1e-4, "MLX": 1e-4}
"""How near results are, of the largest magnitude of each: the graph's, or in float16 those of rounded numbers."""


class Outcome(NamedTuple):
    """Of a network's arrays of weights, how many have the same bits there; and how far the results are off.

    ``rounded`` is how far they are from those of ONNX Runtime with all numbers rounded as they are, and
    ``rounding`` how far these are from the graph's.
    """

    arrays: int
    exact: int
    error: float
    rounded: float | None = None
    rounding: float | None = None

    def is_good(self, way: str) -> bool:
        """Whether all weights are there, and the results as near as they are to be."""
        is_close = self.error <= CLOSE[way] or (self.rounded is not None and self.rounded <= CLOSE[ROUNDED])
        return self.exact == self.arrays and is_close


class Case:
    """A network, images for it, and its results as N, C, H, W by their names."""

    def __init__(self, moved: Moved) -> None:
        self.graph, self.descriptors = moved.graph, moved.descriptors()
        rng, batch = np.random.default_rng(0), 2 if max(np.prod(each[:2]) for each in moved.sizes) <= _SMALL else 1
        self.sources = [rng.uniform(-1, 1, (batch, *size)).astype(np.float32) for size in moved.sizes]
        self.planes = [np.ascontiguousarray(each.transpose(0, 3, 1, 2)) for each in self.sources]
        self.wanted = self._results()

    def _results(self) -> list[Array]:
        command_buffer, others = CPU.new_command_queue().command_buffer(), list[Any]()
        batches = [mps.MPSImageBatch.from_numpy(CPU, each) for each in self.sources]
        first = self.graph.encode_batch(command_buffer, batches, None, others)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        return [each.numpy().transpose(0, 3, 1, 2) for each in (first, *others)]

    def weights(self) -> list[Array]:
        """The arrays of weights and biases that kernels compute with."""
        held = (getattr(kernel, "parameters", None) for kernel in self.graph.kernels.values())
        rows = [(each.weights, each.biases) for each in held if each is not None]
        return [each.numpy() for pair in rows for each in pair if each is not None]

    def outcome(self, there: Iterable[Array], found: Sequence[Array], kind: type = np.float32) -> Outcome:
        """The arrays and results of a format beside the graph's."""
        marks, own = {mark(each) for each in there}, [mark(each.astype(kind)) for each in self.weights()]
        return Outcome(len(own), sum(mark in marks for mark in own), error(found, self.wanted))

    def run_onnx(self, path: Path) -> list[Array]:
        """The results of ONNX Runtime."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        return session.run(None, dict(zip(names, self.planes, strict=True)))


def error(found: Sequence[Array], wanted: Sequence[Array]) -> float:
    """The largest error of a result, over its largest magnitude."""
    pairs = zip(found, wanted, strict=True)
    return max(float(np.abs(a.reshape(b.shape) - b).max() / np.abs(b).max()) for a, b in pairs)


def mark(array: Array) -> bytes:
    """The same of arrays with the same numbers, in any order."""
    bits = np.sort(array.reshape(-1).view(f"u{array.itemsize}"))
    return hashlib.sha256(bits.tobytes()).digest()


# --- the formats ------------------------------------------------------------------------------------------------------


def _onnx(case: Case, folder: Path) -> Outcome:
    """onnx's checker, and ONNX Runtime."""
    import onnx as package

    path = folder / "net.onnx"
    onnx.save(case.graph, path, case.descriptors)
    package.checker.check_model(str(path), full_check=True)
    arrays = [package.numpy_helper.to_array(each) for each in _numbers(package.load(path))]
    return case.outcome(arrays, case.run_onnx(path))


def _numbers(model: Any) -> list[Any]:
    """The constants of real numbers."""
    return [each for each in model.graph.initializer if each.data_type == model.graph.initializer[0].FLOAT]


def _coreml(case: Case, folder: Path) -> Outcome:
    """coremltools reads it; openmps converts it in again."""
    coreml.save(case.graph, folder / "net.mlpackage", case.descriptors, batch=len(case.planes[0]))
    return case.outcome(coreml_arrays(folder / "net.mlpackage"), _run_package(case, folder / "net.mlpackage"))


def _coreml_half(case: Case, folder: Path) -> Outcome:
    """The same in float16, and ONNX Runtime with numbers that float16 holds, those of operators among them."""
    import onnx as package

    path, plain = folder / "net.mlpackage", folder / "net.onnx"
    coreml.save(case.graph, path, case.descriptors, half=True, batch=len(case.planes[0]))
    onnx.save(case.graph, plain, case.descriptors)
    model = package.load(plain)
    for each in (each for node in model.graph.node for each in node.attribute if each.type == each.FLOAT):
        each.f = float(np.float16(each.f))
    for each in _numbers(model):
        rounded = package.numpy_helper.to_array(each).astype(np.float16).astype(np.float32)
        each.CopyFrom(package.numpy_helper.from_array(rounded, each.name))
    package.save(model, plain)
    found = _run_package(case, path)
    outcome = case.outcome(coreml_arrays(path), found, np.float16)
    rounded = case.run_onnx(plain)
    return outcome._replace(rounded=error(found, rounded), rounding=error(rounded, case.wanted))


def _run_package(case: Case, path: Path) -> list[Array]:
    model = coreml.network(path).model(CPU)
    return [*model.run(dict(zip((port.name for port in model.inputs), case.planes, strict=True))).values()]


def coreml_arrays(path: Path) -> list[Array]:
    """The constants of a package as coremltools loads them; to import it takes seconds."""
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load

    model = ct.models.MLModel(str(path), skip_model_load=True)
    spec = model.get_spec()
    program = load(spec, spec.specificationVersion, model.weights_dir)
    found = [np.asarray(each.outputs[0].val) for each in program.functions["main"].find_ops(op_type="const")]
    return [each for each in found if each.dtype.kind == "f"]


def _coreai(case: Case, folder: Path) -> Outcome:
    """Core AI's runtime. Its loader shows no large array: their bytes are looked for in the file that it reads."""
    import onnx as package

    path, plain = folder / "net.aimodel", folder / "net.onnx"
    coreai.save(case.graph, path, case.descriptors, batch=len(case.planes[0]))
    onnx.save(case.graph, plain, case.descriptors)
    model = package.load(plain)
    with (path / "main.mlirb").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        arrays = [package.numpy_helper.to_array(each) for each in _numbers(model)]
        held = [each for each in arrays if _is_in(each, content)]
    feeds = {port.name: planes for port, planes in zip(model.graph.input, case.planes, strict=True)}
    found = asyncio.run(_run_asset(path, feeds))
    return case.outcome(held, [found[each.name] for each in model.graph.output])


def _is_in(array: Array, content: mmap.mmap) -> bool:
    """Whether a file has an array, or its transpose; one of equal numbers is kept as a single one."""
    first = array.reshape(-1)[:1]
    forms = (array, array.T, first) if (array == first).all() else (array, array.T)
    return any(content.find(np.ascontiguousarray(each).tobytes()) >= 0 for each in forms)


async def _run_asset(path: Path, feeds: Mapping[str, Array]) -> dict[str, Array]:
    from coreai.authoring import AIModelAsset
    from coreai.runtime import NDArray

    async with AIModelAsset.load(path).executable() as model:
        found: Any = await model.load_function("main")({name: NDArray(x) for name, x in feeds.items()})
        return {name: np.array(array.numpy()) for name, array in found.items()}


def _mlx(case: Case, folder: Path) -> Outcome:
    """MLX's own loader of weights, and MLX."""
    import mlx.core as mx

    out = mlx.export(case.graph, folder / "net", case.descriptors)
    names: dict[str, Any] = {"__file__": str(out / "network.py")}
    exec(compile((out / "network.py").read_bytes(), "network.py", "exec"), names)
    found = names["Network"].load()(*map(mx.array, case.sources))
    results = [found] if isinstance(found, mx.array) else [*found]
    arrays = [np.array(each) for each in mx.load(str(out / "weights.safetensors")).values()]
    return case.outcome(arrays, [np.array(each).transpose(0, 3, 1, 2) for each in results])


WAYS: Mapping[str, Callable[[Case, Path], Outcome]] = {
    "ONNX": _onnx,
    "Core ML": _coreml,
    "Core ML, float16": _coreml_half,
    "Core AI": _coreai,
    "MLX": _mlx,
}
"""How a network goes out, and is read."""
