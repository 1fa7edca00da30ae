"""The contenders of PyTorch: eager, whole steps in one CUDA graph, torch.compile; channels-last, fused optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.harness import SkippedError, Turn
from bench.networks import Detector, detector_loss, make_network
from bench.work import Work, batches, pictures

LAST = torch.channels_last


def training(device: str, how: str = "eager", memory: str = "channels last", **said: Any) -> Turn:
    """Steps from bytes and classes on the host to the new weights.

    ``how`` is "eager", "graph" (the whole step in one CUDA graph), or a mode of torch.compile.
    """
    work = Work(**said)
    _prepare(device, how)
    layout = LAST if memory == "channels last" else torch.contiguous_format
    network = make_network(work).to(device=device, memory_format=layout)
    optimizer = _optimizer(network, work, device, capturable=how in ("graph", "reduce-overhead"))
    is_detector = isinstance(network, Detector)

    def losses(pixels: Tensor, targets: Tensor) -> Tensor:
        x = pixels.permute(0, 3, 1, 2).to(torch.float32).div_(255).contiguous(memory_format=layout)
        with _precision(device, work):
            y = network(x)
        return detector_loss(y.float(), targets) if is_detector else functional.cross_entropy(y.float(), targets)

    forward = losses if how in ("eager", "graph") else torch.compile(losses, mode=how)

    def step(pixels: Tensor, targets: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        forward(pixels, targets).backward()
        optimizer.step()

    given = _given(work, is_detector)
    if device == "cpu":
        return Turn(lambda steps: [step(*next(given)) for _ in range(steps)])
    held = [tensor.to(device) for tensor in next(given)]
    play = _captured(lambda: step(*held)) if how == "graph" else (lambda: step(*held))

    def run(steps: int) -> None:
        for _ in range(steps):
            for place, tensor in zip(held, next(given), strict=True):
                place.copy_(tensor.pin_memory(), non_blocking=True)
            play()
        torch.cuda.synchronize()

    return Turn(run)


def inference(device: str, how: str = "eager", **said: Any) -> Turn:
    """Probabilities, or what a detector finds, of one batch after another; the images are on the device."""
    work = Work(**said)
    _prepare(device, how)
    network = with_results(work).eval().to(device=device, memory_format=LAST)
    x = torch.from_numpy(pictures(work)).permute(0, 3, 1, 2).to(device).contiguous(memory_format=LAST)
    if work.half:
        network, x = network.half(), x.half()

    def results() -> Tensor:
        return network(x)

    go = results if how in ("eager", "graph") else torch.compile(results, mode=how)
    with torch.inference_mode():
        play: Callable[[], object] = _captured(go) if how == "graph" else go

    def run(steps: int) -> None:
        with torch.inference_mode():
            for _ in range(steps):
                play()
        if device != "cpu":
            torch.cuda.synchronize()

    return Turn(run)


def exactly(threads: int | None = None) -> None:
    """Have PyTorch multiply float32 numbers as they are on a GPU, as we do: unless told, convolutions round to TF32.

    ``threads`` is how many it has on the CPU, where that is said.
    """
    if threads:
        torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def _prepare(device: str, how: str) -> None:
    exactly()
    torch.backends.cudnn.benchmark = True
    if how in ("graph", "reduce-overhead") and device == "cpu":
        raise SkippedError("CUDA graphs need a CUDA device")


def _given(work: Work, is_detector: bool) -> Iterator[tuple[Tensor, Tensor]]:
    labels = torch.from_numpy(Detector.labels(work)) if is_detector else None
    for images, classes in batches(work):
        yield torch.from_numpy(images), torch.from_numpy(classes) if labels is None else labels


def _precision(device: str, work: Work) -> AbstractContextManager[Any]:
    return torch.autocast(device, dtype=torch.float16) if work.half else nullcontext()


def _optimizer(network: nn.Module, work: Work, device: str, *, capturable: bool) -> torch.optim.Optimizer:
    if work.optimizer == "adam":
        more = {} if device == "cpu" else {"capturable": capturable}
        return torch.optim.Adam(network.parameters(), 1e-3, fused=True, **more)
    return torch.optim.SGD(network.parameters(), 0.01, momentum=0.9, fused=True)


def _captured(step: Callable[[], object]) -> Callable[[], None]:
    """Replays of a step that was captured behind a few that warm up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(5):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


class _Probabilities(nn.Module):
    """Float32, as openmps computes them."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x.float(), 1)


def with_results(work: Work) -> nn.Module:
    """The network up to what an app reads."""
    network = make_network(work)
    return network if isinstance(network, Detector) else nn.Sequential(network, _Probabilities())


def onnx_inference(device: str, **said: Any) -> Turn:
    """The same network in ONNX Runtime."""
    import onnxruntime

    file, x = as_onnx(device, Work(**said))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return Turn(lambda steps: [session.run(None, {"x": x}) for _ in range(steps)])


def openvino_inference(device: str, **said: Any) -> Turn:
    """The same network in OpenVINO, in float32, one request after the other."""
    import openvino

    file, x = as_onnx(device, Work(**said))
    core = openvino.Core()
    hints = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    hints["INFERENCE_NUM_THREADS"] = str(torch.get_num_threads())
    request = core.compile_model(core.read_model(file), "CPU", hints).create_infer_request()
    return Turn(lambda steps: [request.infer({0: x}, share_inputs=True) for _ in range(steps)])


def as_onnx(device: str, work: Work) -> tuple[bytes, np.ndarray]:
    """The network as an ONNX file, and images for it."""
    import io

    if device != "cpu" or work.half:
        raise SkippedError("measured on the CPU alone, in float32")
    x = np.ascontiguousarray(pictures(work).transpose(0, 3, 1, 2))
    network, file = with_results(work).eval(), io.BytesIO()
    torch.onnx.export(network, (torch.from_numpy(x),), file, input_names=["x"], dynamo=False)
    return file.getvalue(), x
