"""An ONNX model by bare calls of torch, an operator a call, channels-last: what PyTorch itself takes for a network.

Everything that follows from constants and shapes is computed once, before the first step. Biases of a convolution and a
normalization stay calls of their own, as in a module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

LAST = torch.channels_last
Made = Any


class TorchModel:
    """The operators of a model, in order, over named values."""

    def __init__(self, model: Any, outputs: Sequence[str] | None = None) -> None:
        from onnx import numpy_helper

        self.outputs = list(outputs or [value.name for value in model.graph.output])
        constants = {each.name: numpy_helper.to_array(each).copy() for each in model.graph.initializer}
        self.inputs = [value.name for value in model.graph.input if value.name not in constants]
        self._values: dict[str, Made] = {name: _held(array) for name, array in constants.items()}
        self._nodes = [_Node(node) for node in model.graph.node]
        self._steps: list[_Node] | None = None

    def run(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs, as arrays, as ONNX Runtime gives them."""
        with torch.inference_mode():
            values = {**self._values, **{name: _laid(torch.from_numpy(each)) for name, each in arrays.items()}}
            if self._steps is None:
                self._steps = self._traced(values)
            for node in self._steps:
                values[node.outputs[0]] = node.call(values)
            return [values[name].contiguous().numpy() for name in self.outputs]

    def _traced(self, values: dict[str, Made]) -> list[_Node]:
        """The nodes that the results need and that depend on the inputs; what others give is kept."""
        wanted, needed = set(self.outputs), list[_Node]()
        for node in reversed(self._nodes):
            if wanted.intersection(node.outputs):
                wanted.update(node.inputs)
                needed.insert(0, node)
        real, kept = set(self.inputs), list[_Node]()
        for node in needed:
            follows = node.operator not in ("Shape", "Constant") and real.intersection(node.inputs)
            if follows:
                real.update(node.outputs)
                kept.append(node)
                values[node.outputs[0]] = node.call(values)
            else:
                self._values[node.outputs[0]] = values[node.outputs[0]] = node.call(values)
        return kept


class _Node:
    def __init__(self, node: Any) -> None:
        from onnx import helper

        self.operator, self.inputs, self.outputs = node.op_type, list(node.input), list(node.output)
        self.attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        self._call = _CALLS[self.operator]

    def call(self, values: Mapping[str, Made]) -> Made:
        return self._call(self.attributes, *[values[name] if name else None for name in self.inputs])


def _held(array: np.ndarray) -> Tensor:
    return _laid(torch.from_numpy(np.ascontiguousarray(array)) if array.ndim else torch.tensor(array[()]))


def _laid(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=LAST) if x.ndim == 4 else x


def _padded(x: Tensor, a: Mapping[str, Any], window: Sequence[int], fill: float) -> tuple[Tensor, tuple[int, int]]:
    """The image, and the padding that is left for the call: the same on both sides."""
    pads = list(a.get("pads", [0, 0, 0, 0]))
    if a.get("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER"):
        totals = []
        for length, size, stride in zip(x.shape[2:], window, a.get("strides", [1, 1]), strict=True):
            totals.append(max((-(-length // stride) - 1) * stride + size - length, 0))
        low = [total // 2 for total in totals]
        pads = [*low, *(total - each for total, each in zip(totals, low, strict=True))]
    if pads[:2] == pads[2:]:
        return x, (pads[0], pads[1])
    return functional.pad(x, (pads[1], pads[3], pads[0], pads[2]), value=fill), (0, 0)


def _conv(a: Mapping[str, Any], x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    x, padding = _padded(x, a, weight.shape[2:], 0.0)
    return torch.conv2d(x, weight, bias, a.get("strides", 1), padding, a.get("dilations", 1), a.get("group", 1))


def _transposed(a: Mapping[str, Any], x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    padding = a.get("pads", [0, 0])[:2]
    return functional.conv_transpose2d(x, weight, bias, a.get("strides", 1), padding, 0, a.get("group", 1))


def _max_pool(a: Mapping[str, Any], x: Tensor) -> Tensor:
    window = a["kernel_shape"]
    x, padding = _padded(x, a, window, -torch.inf)
    return functional.max_pool2d(x, window, a.get("strides", 1), padding, ceil_mode=bool(a.get("ceil_mode", 0)))


def _average_pool(a: Mapping[str, Any], x: Tensor) -> Tensor:
    window = a["kernel_shape"]
    counts, is_padded = bool(a.get("count_include_pad", 0)), _padded(x, a, window, 0.0)[0] is not x

    def averages(x: Tensor) -> Tensor:
        x, padding = _padded(x, a, window, 0.0)
        more = bool(a.get("ceil_mode", 0)), counts
        return functional.avg_pool2d(x, window, a.get("strides", 1), padding, *more)

    return averages(x) / averages(torch.ones_like(x[:1, :1])) if is_padded and not counts else averages(x)


def _normalized(a: Mapping[str, Any], x: Tensor, *rows: Tensor) -> Tensor:
    scale, shift, mean, variance = rows
    return functional.batch_norm(x, mean, variance, scale, shift, False, 0.0, a.get("epsilon", 1e-5))


def _clip(a: Mapping[str, Any], x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    limits = [a.get("min") if low is None else float(low), a.get("max") if high is None else float(high)]
    return torch.clamp(x, *limits)


def _reshape(a: Mapping[str, Any], x: Tensor, shape: Tensor) -> Tensor:
    sizes = [x.shape[place] if size == 0 else size for place, size in enumerate(shape.tolist())]
    return _laid(x.reshape(sizes))


def _gemm(a: Mapping[str, Any], x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(x, matrix if a.get("transB", 0) else matrix.t(), bias)


def _resize(a: Mapping[str, Any], x: Tensor, *rest: Any) -> Tensor:
    scales = [float(each) for each in next(each for each in rest if each is not None and each.numel() == 4)]
    return functional.interpolate(x, scale_factor=scales[2:], mode="nearest")


def _softmax(a: Mapping[str, Any], x: Tensor) -> Tensor:
    return torch.softmax(x, a.get("axis", 1))


def _constant(a: Mapping[str, Any]) -> Tensor:
    from onnx import numpy_helper

    return _held(numpy_helper.to_array(a["value"]).copy())


def _squeezed(a: Mapping[str, Any], x: Tensor) -> Tensor:
    return x.squeeze(tuple(a["axes"])) if "axes" in a else x.squeeze()


def _unsqueezed(a: Mapping[str, Any], x: Tensor, axes: Tensor | None = None) -> Tensor:
    for axis in a["axes"] if axes is None else axes.tolist():
        x = x.unsqueeze(axis)
    return x


def _summed(a: Mapping[str, Any], *xs: Tensor) -> Tensor:
    total = xs[0]
    for each in xs[1:]:
        total = total + each
    return total


def _sliced(a: Mapping[str, Any], x: Tensor, starts: Tensor, ends: Tensor, axes: Any = None, steps: Any = None) -> Made:
    chosen = range(len(starts)) if axes is None else axes.tolist()
    where = [slice(None)] * x.ndim
    for axis, start, end in zip(chosen, starts.tolist(), ends.tolist(), strict=True):
        where[axis] = slice(start, min(end, 2**62))
    return x[tuple(where)]


def _hard_sigmoid(a: Mapping[str, Any], x: Tensor) -> Tensor:
    return (x * a.get("alpha", 0.2) + a.get("beta", 0.5)).clamp_(0.0, 1.0)


def _cast(a: Mapping[str, Any], x: Tensor) -> Tensor:
    from onnx import helper

    return x.to(getattr(torch, str(helper.tensor_dtype_to_np_dtype(a["to"]))))


def _lrn(a: Mapping[str, Any], x: Tensor) -> Tensor:
    return functional.local_response_norm(x, a["size"], a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0))


_CALLS: dict[str, Callable[..., Made]] = {
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda a, x: functional.adaptive_avg_pool2d(x, 1),
    "BatchNormalization": _normalized,
    "LRN": _lrn,
    "Relu": lambda a, x: torch.relu(x),
    "PRelu": lambda a, x, slope: torch.prelu(x, slope.reshape(-1)),
    "Sigmoid": lambda a, x: torch.sigmoid(x),
    "HardSigmoid": _hard_sigmoid,
    "Clip": _clip,
    "Softmax": _softmax,
    "Add": lambda a, x, y: x + y,
    "Sub": lambda a, x, y: x - y,
    "Mul": lambda a, x, y: x * y,
    "Div": lambda a, x, y: x / y,
    "Pow": lambda a, x, y: x**y,
    "Sqrt": lambda a, x: torch.sqrt(x),
    "Sum": _summed,
    "Concat": lambda a, *xs: torch.cat(xs, a["axis"]),
    "Resize": _resize,
    "Reshape": _reshape,
    "Transpose": lambda a, x: _laid(x.permute(a["perm"])),
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "Slice": _sliced,
    "Gather": lambda a, x, index: x.select(a.get("axis", 0), int(index)),
    "Gemm": _gemm,
    "MatMul": lambda a, x, y: torch.matmul(x, y),
    "ReduceMean": lambda a, x: x.mean(tuple(a["axes"]), bool(a.get("keepdims", 1))),
    "Shape": lambda a, x: torch.tensor(x.shape),
    "Cast": _cast,
    "Constant": _constant,
    "ConstantOfShape": lambda a, shape: torch.zeros(shape.tolist()),
    "Dropout": lambda a, x: x,
    "Identity": lambda a, x: x,
}
