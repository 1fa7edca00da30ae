"""Models of other formats that are fuzzed: ONNX, Core ML packages and files, folders for MLX."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing import seeds
from fuzzing.messages import changed_message, changed_model
from fuzzing.mutations import INTEGERS, SAFETENSORS, Random, Special, changed_json
from fuzzing.target import Target
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.formats import coreml, mlx
from openmps.formats.archive import MPSKeyedArchiver
from openmps.formats.coreml.protos import require_protos
from openmps.formats.exchange.tensors import load_tensors
from openmps.formats.mlx.folder import INDEX, WEIGHTS, source_labels
from openmps.formats.onnx import OnnxModel, RecurrentLayer, network
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.convolution import MPSCNNConvolutionNode
from openmps.graph.nodes.node import Handle, MPSNNImageNode
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.runtime.devices import mtl_device
from openmps.training.data_sources import ArrayConvolutionDataSource
from openmps.types import MPSImageFeatureChannelFormat

_TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path.append(str(_TESTS))  # where models are made message by message
_CPU = mtl_device("cpu")

# --- ONNX -------------------------------------------------------------------------------------------------------------

_MODEL = "model.onnx"
_FILLED = 64 << 10
"""Bytes that operators may make which repeat numbers or choose channels."""
_MOST_NUMBERS = 1 << 20


def _write_onnx(folder: Path) -> None:
    import onnx

    model = seeds.onnx_model()
    onnx.save(model, folder / _MODEL, save_as_external_data=True, location="model.data", size_threshold=2000)


def _onnx_is_as_written(folder: Path, loaded: OnnxModel) -> bool:
    """Read again it is the same; its inputs are those of the model, in its order."""
    import onnx

    inputs = [value.name for value in onnx.load(folder / _MODEL, load_external_data=False).graph.input]
    named = [port.name for port in loaded.inputs]
    return (
        named == [name for name in inputs if name in named] and _onnx(folder).archived_data() == loaded.archived_data()
    )


def _onnx(folder: Path) -> OnnxModel:
    return network(folder / _MODEL, fill_limit=_FILLED).model(_CPU)


def changed_onnx(data: bytes, random: Random) -> bytes:
    """Fields of the model changed; of what is beside it, bytes."""
    try:
        return changed_model(data, random)
    except Exception:  # external data, which is no message
        return random.bytes(len(data))


def _run_onnx(loaded: OnnxModel) -> None:
    """Run the model on ones, if its images are small."""
    feeds = {port.name: np.ones([_small(length) for length in port.shape], np.float32) for port in loaded.inputs}
    loaded.check(feeds)
    descriptors = [MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT32, 1, 1, 1) for _ in loaded.inputs]
    for port in loaded.inputs:
        _, height, width, channels = port.pixels(feeds[port.name], "fuzz", port.name).shape
        kind = MPSImageFeatureChannelFormat.FLOAT32
        descriptors[port.image] = MPSImageDescriptor(kind, width, height, channels)
    images = loaded.graph.program_for(descriptors).descriptors.values()
    if sum(each.width * each.height * each.feature_channels for each in images) < _MOST_NUMBERS:
        loaded.run(feeds)


def _small(length: Any) -> int:
    return length if isinstance(length, int) and length < 64 else 2


# --- Core ML ----------------------------------------------------------------------------------------------------------

_PACKAGES = _TESTS / "formats" / "coreml_packages"


def _coreml(folder: Path) -> OnnxModel:
    path = next((each for each in folder.iterdir() if each.suffix == ".mlpackage"), folder / "model.mlmodel")
    return coreml.network(path, fill_limit=_FILLED).model(_CPU)


def _write_package(folder: Path, name: str) -> None:
    with zipfile.ZipFile(_PACKAGES / f"{name}.zip") as file:
        file.extractall(folder)


def _coreml_is_as_written(folder: Path, loaded: OnnxModel) -> bool:
    """Read again it is the same."""
    return _coreml(folder).archived_data() == loaded.archived_data()


def changed_coreml(data: bytes, random: Random) -> bytes:
    """Fields of the model changed; of what is beside it, names of the manifest, or heads of blobs and bytes."""
    if data[:1] == b"{":
        return changed_json(data, random)
    heads = [found.start() for found in re.finditer(b"\xef\xbe\xad\xde", data)]
    if not heads:
        return changed_message(require_protos("fuzz").model.Model.FromString(data), random)
    changed = bytearray(data)
    place = heads[int(random.integers(len(heads)))] + 4 * int(random.integers(6))
    number = int(INTEGERS[int(random.integers(len(INTEGERS)))])
    changed[place : place + 4] = struct.pack("<I", number % 2**32)
    return bytes(changed)


def _put_table(weights: Any) -> None:
    """Four bits a number, and a table of sixteen."""
    weights.rawValue = np.random.default_rng(7).bytes(8 * 3 * 9 // 2)
    weights.quantization.numberOfBits = 4
    weights.quantization.lookupTableQuantization.floatValue.extend(np.linspace(-1, 1, 16).tolist())


def _put_halves(weights: Any) -> None:
    weights.float16Value = np.random.default_rng(8).normal(size=(10, 72)).astype("<f2").tobytes()


def _write_layers(folder: Path, *, is_image: bool) -> None:
    """A neural network in a file by itself: a classifier of arrays, or of an image with what is done to its pixels."""
    from coreml_models import borders, neural, saved

    row = np.linspace(0.5, 2, 8)
    made = neural([
        ("convolution", "c", {"outputChannels": 8, "kernelChannels": 3, "kernelSize": [3, 3], "stride": [2, 2],
                              "weights": _put_table, "valid__paddingAmounts": borders((1, 1), (1, 1))}),
        ("batchnorm", "n", {"channels": 8, "gamma": row, "beta": row, "mean": row, "variance": row}),
        ("activation", "a", {"leakyReLU__alpha": 0.1}),
        ("add", "d", {"input": ["n", "a"]}),
        ("pooling", "p", {"type": 1, "kernelSize": [2, 2], "valid__paddingAmounts": borders((0, 0), (0, 0))}),
        ("flatten", "f", {"mode": 0}),
        ("innerProduct", "i", {"inputChannels": 72, "outputChannels": 10, "weights": _put_halves}),
        ("softmax", "s", {}),
    ], (3, 8, 8))  # fmt: skip
    if is_image:
        image = made.description.input[0].type.imageType
        image.width, image.height, image.colorSpace = 8, 8, 30  # BGR
        scaler = made.neuralNetwork.preprocessing.add(featureName="x").scaler
        scaler.channelScale, scaler.redBias = 1 / 127.5, -1.0
    saved(made, folder)


def _write_pipeline(folder: Path) -> None:
    """Two neural networks, of which the second takes what the first gives."""
    from coreml_models import neural, pipeline, saved

    fields = {"outputChannels": 8, "kernelChannels": 3, "kernelSize": [3, 3], "weights": _put_table}
    pool = {"type": 1, "kernelSize": [2, 2], "stride": [2, 2], "valid__paddingAmounts": None}
    first = neural([("convolution", "c", fields), ("pooling", "f", pool), ("flatten", "y", {"mode": 0})], (3, 8, 8))
    dense = {"inputChannels": 72, "outputChannels": 10, "weights": _put_halves, "input": ["y"]}
    second = neural([("innerProduct", "i", dense), ("softmax", "s", {})], (72,))
    second.description.input[0].name = "y"
    saved(pipeline([first, second], first, ["s"]), folder)


def _of_coreml() -> tuple[Target, ...]:
    """Where coremltools is installed, which describes the messages; a package of each kind of weights, and files."""
    if importlib.util.find_spec("coremltools") is None:
        return ()
    named: dict[str, Callable[[Path], None]] = {
        **{
            name: partial(_write_package, name=name)
            for name in ("half", "blocks", "sparse", "image", "palette_4", "linear")
        },
        "layers": partial(_write_layers, is_image=False),
        "layers of an image": partial(_write_layers, is_image=True),
        "pipeline": _write_pipeline,
    }
    return tuple(
        Target(
            f"Core ML, {name}", write, _coreml, lambda loaded: loaded.archived_data(), _coreml_is_as_written,
            knowing=(changed_coreml,), has_checksum=False, use=_run_onnx,
        )
        for name, write in named.items()
    ) + _of_recurrent()  # fmt: skip


def _recurrent(folder: Path) -> list[RecurrentLayer]:
    path = next((each for each in folder.iterdir() if each.suffix == ".mlpackage"), folder / "layers.mlmodel")
    return coreml.recurrent_layers(path)


def _recurrent_says(layers: list[RecurrentLayer]) -> bytes:
    """Names, and all that the descriptors are."""
    return MPSKeyedArchiver.archived_data([[each.name, each.is_reversed, list(each.descriptors)] for each in layers])


def _of_recurrent() -> tuple[Target, ...]:
    """A package and a file of recurrent layers."""
    return tuple(
        Target(
            f"Core ML, {name} of recurrent layers", partial(_write_package, name=file), _recurrent, _recurrent_says,
            lambda folder, found: _recurrent_says(_recurrent(folder)) == _recurrent_says(found),
            knowing=(changed_coreml,), has_checksum=False,
            use=lambda layers: [each.inference(_CPU) for each in layers],
        )
        for name, file in (("package", "sequence_half"), ("file", "layers"))
    )  # fmt: skip


# --- MLX --------------------------------------------------------------------------------------------------------------


def _write_mlx(folder: Path) -> None:
    random, image = np.random.default_rng(9), MPSNNImageNode(Handle("image"))
    for label, inputs in (("first", 3), ("second", 8)):
        weights = random.normal(size=(8, 3, 3, inputs)).astype(np.float32)
        source = ArrayConvolutionDataSource(MPSCNNConvolutionDescriptor(3, 3, inputs, 8), weights, None, label)
        image = MPSCNNConvolutionNode(image, source).result_image
    size = MPSImageDescriptor(MPSImageFeatureChannelFormat.FLOAT32, 8, 8, 3)
    mlx.export(MPSNNGraph(_CPU, image), folder / "net", size, "Net")


def _mlx(folder: Path) -> tuple[list[str], dict[str, np.ndarray]]:
    """What is read of a folder without running it."""
    return source_labels(folder / "net"), load_tensors(folder / "net" / WEIGHTS)


def _mlx_is_as_written(folder: Path, found: tuple[list[str], dict[str, np.ndarray]]) -> bool:
    index, weights = (folder / "net" / name for name in (INDEX, WEIGHTS))
    said = json.loads(index.read_bytes())["sources"]
    data = weights.read_bytes()
    return found[0] == [each["label"] for each in said] and all(each.tobytes() in data for each in found[1].values())


def changed_folder(data: bytes, random: Random) -> bytes | Special:
    """The index or the weights changed; the module, which is not read, is a byte shorter."""
    if data[:1] == b"{":
        return changed_json(data, random)
    if data[8:9] == b"{":
        return SAFETENSORS[int(random.integers(len(SAFETENSORS)))](data, random)
    return data[:-1]


MODELS: tuple[Target, ...] = (
    Target(
        "ONNX", _write_onnx, _onnx, lambda loaded: loaded.archived_data(), _onnx_is_as_written,
        knowing=(changed_onnx,), has_checksum=False, use=_run_onnx,
    ),
    *_of_coreml(),
    Target(
        "folder for MLX", _write_mlx, _mlx,
        lambda found: repr([found[0], [(key, each.shape, each.tobytes()) for key, each in found[1].items()]]).encode(),
        _mlx_is_as_written, knowing=(changed_folder,), has_checksum=False,
    ),
)  # fmt: skip
