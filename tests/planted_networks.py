"""Networks with a fault in them, or without, one a heading of the page; each gives what its statements name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import openmps as mps
from openmps.formats import onnx
from openmps.training import Network, NetworkShape, Preprocessing, RunFolder, TrainingOptions, optimizer_factory
from openmps.training.inference import describe_network

FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32
CPU = mps.mtl_device("cpu")
SHAPE = NetworkShape(8, 8, 3, 4, "tiny")
CLASSES = ("ant", "bee", "cat", "dog")
Names = dict[str, Any]
Change = Callable[[dict[str, np.ndarray]], None]


def arrays(shape: NetworkShape = SHAPE) -> dict[str, np.ndarray]:
    network = Network.create(shape, seed=1, optimizer=optimizer_factory("adam", 1e-3))
    return {name: array.copy() for name, array in network.arrays().items()}


def _unchanged(arrays: dict[str, np.ndarray]) -> None:
    pass


def run(name: str, change: Change = _unchanged, *, with_options: bool = False) -> RunFolder:
    given = arrays()
    change(given)
    options = {"options": TrainingOptions(epochs=1, batch_size=2).describe()} if with_options else {}
    folder = RunFolder.create("runs", {**describe_network(SHAPE, CLASSES), **options}, name=name)
    folder.save_weights(given)
    return folder


def photo() -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    Image.fromarray(pixels).save("cat.png")
    return pixels


def transposed_weights(*, is_wrong: bool = True) -> Names:
    def transpose(arrays: dict[str, np.ndarray]) -> None:
        arrays["second_conv.weights"] = arrays["second_conv.weights"].transpose(0, 2, 1, 3).copy()

    photo()
    run("ported", transpose if is_wrong else _unchanged)
    reference = Network.from_arrays(SHAPE, arrays()).inference_graph(CPU, FLOAT32)
    onnx.save(reference, "reference.onnx", SHAPE.image_descriptor())
    return {}


def padding_off_by_one(*, is_wrong: bool = True) -> Names:
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in ((4, 4, 4, 1), (2, 3, 3, 4))]

    def graph(method: mps.MPSNNPaddingMethod) -> mps.MPSNNGraph:
        image = mps.MPSNNImageNode(mps.Handle("image"))
        for label, array in zip(("conv1", "conv2"), weights, strict=True):
            descriptor = mps.MPSCNNConvolutionDescriptor(array.shape[2], array.shape[1], array.shape[3], array.shape[0])
            node = mps.MPSCNNConvolutionNode(image, mps.ArrayConvolutionDataSource(descriptor, array, label=label))
            node.label, node.padding_policy = label, mps.MPSNNDefaultPadding(method)
            image = mps.MPSCNNNeuronReLUNode(node.result_image).result_image
        made = mps.MPSNNGraph(CPU, image)
        made.format = FLOAT32
        return made

    method = mps.MPSNNPaddingMethod
    right, wrong = method.ADD_REMAINDER_TO_BOTTOM_RIGHT, method.ADD_REMAINDER_TO_TOP_LEFT
    image = mps.MPSImageDescriptor(FLOAT32, 8, 8, 1)
    onnx.save(graph(method.SIZE_SAME | right), "reference.onnx", image)
    mps.MPSKeyedArchiver.archive(graph(method.SIZE_SAME | (wrong if is_wrong else right)), Path("ported.archive"))
    np.savez("images.npz", image=rng.random((2, 8, 8, 1), np.float32))
    return {}


def float16_overflow(*, is_wrong: bool = True) -> Names:
    photo()
    run("loud", lambda arrays: arrays["first_conv.weights"].__imul__(1e5 if is_wrong else 1))
    return {}


def _reference(preprocessing: Preprocessing) -> None:
    """A trace of the network in PyTorch, whose preprocessing is what it should be."""
    module = torch.nn.Sequential()
    module.add_module("first_conv", torch.nn.Conv2d(3, 8, 3, padding=1, bias=False))
    weights = arrays()["first_conv.weights"].transpose(0, 3, 1, 2).copy()
    module.load_state_dict({"first_conv.weight": torch.from_numpy(weights)})
    seen = preprocessing.applied(photo()[np.newaxis])
    mps.debug.save_trace(mps.debug.trace_torch(module, seen), "reference")


def wrong_mean(*, is_wrong: bool = True) -> Names:
    run("ported")
    _reference(Preprocessing("RGB", (104, 117, 123) if is_wrong else (0, 0, 0), (1 / 255,) * 3))
    return {}


def swapped_channels(*, is_wrong: bool = True) -> Names:
    run("ported")
    _reference(Preprocessing("BGR" if is_wrong else "RGB", (0, 0, 0), (1 / 255,) * 3))
    return {}


def dead_relu(*, is_wrong: bool = True) -> Names:
    photo()
    run("dead", lambda arrays: arrays["first_norm.beta"].__isub__(100 if is_wrong else 0))
    return {}


def label_off_by_one(*, is_wrong: bool = True) -> Names:
    """A network that tells four shades of grey apart by their mean: logits 2 m c - c² for the shades c."""
    shape, shades = NetworkShape(8, 8, 1, 4, "tiny"), np.array([0.1, 0.35, 0.6, 0.85], np.float32)
    zeros = {name: np.zeros_like(array) for name, array in arrays(shape).items()}
    zeros["first_conv.weights"][0, 1, 1, 0] = zeros["second_conv.weights"][0, 1, 1, 0] = 1
    for norm in ("first_norm", "second_norm"):
        zeros[f"{norm}.gamma"] += 1
        zeros[f"{norm}.variance"] += 1
    zeros["fc.weights"][:, 0, 0, 0] = 400 * shades
    zeros["fc.biases"][:] = -200 * shades**2
    RunFolder.create("runs", describe_network(shape, ("0", "1", "2", "3")), name="shades").save_weights(zeros)
    classes = np.arange(12) % 4
    pixels = (np.round(255 * shades[classes])[:, np.newaxis, np.newaxis] * np.ones((1, 8, 8))).astype(np.uint8)
    given = (classes + is_wrong) % 4
    Path("shifted").mkdir()
    for part in ("train", "t10k"):
        header = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (12, 8, 8))
        Path("shifted", f"{part}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        header = b"\0\0\x08\x01" + (12).to_bytes(4, "big")
        Path("shifted", f"{part}-labels-idx1-ubyte").write_bytes(header + given.astype(np.uint8).tobytes())
    weights = np.broadcast_to(zeros["fc.weights"][:, :1, :1, :1] / 64, (4, 8, 8, 1)).copy()
    source = _source(weights, "fc1", zeros["fc.biases"])
    node = mps.MPSCNNFullyConnectedNode(mps.MPSNNImageNode(mps.Handle("image")), source)
    node.label = "fc1"
    labels = mps.MPSCNNLossLabels.batch(CPU, np.eye(4)[given])
    graph, inference = _graphs(node.result_image, node.result_image)
    return {"graph": graph, "inference": inference, "images": pixels[..., np.newaxis], "labels": labels, "mps": mps}


# --- programs ---------------------------------------------------------------------------------------------------------


def _source(
    array: np.ndarray, label: str, biases: np.ndarray | None = None, rate: float = 1e-3
) -> mps.TrainableConvolutionDataSource:
    descriptor = mps.MPSCNNConvolutionDescriptor(array.shape[2], array.shape[1], array.shape[3], array.shape[0])
    return mps.TrainableConvolutionDataSource(
        descriptor, array, biases, label, optimizer=lambda device: mps.MPSNNOptimizerAdam(device, rate)
    )


def _graphs(logits: mps.MPSNNImageNode, again: mps.MPSNNImageNode) -> list[mps.MPSNNGraph]:
    """The graph that trains, and the one that infers, from two images of the same layers, or one."""
    softmax = mps.MPSCNNSoftMaxNode(again)
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM)
    loss = mps.MPSCNNLossNode(logits, descriptor)
    softmax.label, loss.label = "softmax", "loss"
    results = (loss.training_graph()[0].result_image, False), (softmax.result_image, True)
    graphs = [mps.MPSNNGraph(CPU, *result) for result in results]
    for graph in graphs:
        graph.format = FLOAT32
    return graphs


def program(rate: float = 1e-3, *, is_fixed: bool = False) -> Names:
    """A network of two layers that a program trains; of conv1 the weights stay if it is fixed."""
    rng = np.random.default_rng(2)
    shapes = {"conv1": (4, 3, 3, 1), "fc1": (3, 6, 6, 4)}
    sources = {
        label: _source((rng.normal(size=shape) / shape[1]).astype(np.float32), label, rate=rate)
        for label, shape in shapes.items()
    }
    if is_fixed:
        given = sources["conv1"]
        sources["conv1"] = mps.ArrayConvolutionDataSource(given.descriptor(), given.weights(), label="conv1")

    def logits() -> mps.MPSNNImageNode:
        node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(mps.Handle("image")), sources["conv1"])
        relu = mps.MPSCNNNeuronReLUNode(node.result_image)
        connected = mps.MPSCNNFullyConnectedNode(relu.result_image, sources["fc1"])
        node.label, relu.label, connected.label = "conv1", "relu1", "fc1"
        return connected.result_image

    graph, inference = _graphs(logits(), logits())
    images, queue = rng.random((4, 6, 6, 1), np.float32), CPU.new_command_queue()
    labels = mps.MPSCNNLossLabels.batch(CPU, np.eye(3)[[0, 1, 2, 0]])

    def step() -> None:
        command_buffer = mps.MPSCommandBuffer(queue)
        graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(CPU, images)], [labels])
        command_buffer.commit()
        command_buffer.wait_until_completed()

    return {"graph": graph, "inference": inference, "images": images, "labels": labels, "step": step, "mps": mps}


def layer_without_update(*, is_wrong: bool = True) -> Names:
    return program(is_fixed=is_wrong)


def stale_weights(*, is_wrong: bool = True) -> Names:
    names = program()
    names["step"]()
    if not is_wrong:
        names["inference"].reload_from_data_sources()
    return names


def learning_rate_too_high(*, is_wrong: bool = True) -> Names:
    return program(rate=1.0 if is_wrong else 1e-3)


PLANTS: dict[str, Callable[..., Names]] = {
    "Weights transposed": transposed_weights,
    "Padding off by one": padding_off_by_one,
    "A layer without update": layer_without_update,
    "Float16 overflow": float16_overflow,
    "A wrong mean": wrong_mean,
    "Swapped channels": swapped_channels,
    "Stale weights": stale_weights,
    "A dead ReLU": dead_relu,
    "A learning rate too high": learning_rate_too_high,
    "A label off by one": label_off_by_one,
}
"""Each fault by its heading on the page."""
