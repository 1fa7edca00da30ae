"""What each framework calls the arrays of a layer, and in what order it keeps their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from openmps.errors import MPSArgumentError
from openmps.formats.exchange.layers import LayerKind, WeightLayer
from openmps.formats.exchange.order import Order

_KERNELS = (
    LayerKind.CONVOLUTION,
    LayerKind.DEPTHWISE,
    LayerKind.TRANSPOSED,
    LayerKind.SUB_PIXEL,
    LayerKind.FULLY_CONNECTED,
)


class WeightLayout(StrEnum):
    """Whose names and order of axes a file of weights has."""

    OPENMPS = "openmps"
    PYTORCH = "pytorch"
    KERAS = "keras"
    MLX = "mlx"


_Names = Mapping[str, tuple[str, ...]]


def _named(kernels: _Names, batch: _Names, *slopes: str) -> dict[LayerKind, _Names]:
    affine = {part: batch[part] for part in ("gamma", "beta")}
    return {
        **dict.fromkeys(_KERNELS, kernels),
        LayerKind.BATCH_NORMALIZATION: batch,
        LayerKind.NORMALIZATION: affine,
        LayerKind.PRELU: {"slopes": slopes},
    }


_OWN = {part: (part,) for part in ("weights", "biases", "slopes", "gamma", "beta", "mean", "variance")}
_TORCH = _named(
    {"weights": ("weight",), "biases": ("bias",), "slopes": ("slopes",)},
    {"gamma": ("weight",), "beta": ("bias",), "mean": ("running_mean",), "variance": ("running_var",)},
    "weight",
)
_KERAS = _named(
    {"weights": ("kernel", "depthwise_kernel", "vars/0"), "biases": ("bias", "vars/1"), "slopes": ("slopes",)},
    {
        "gamma": ("gamma", "vars/0"),
        "beta": ("beta", "vars/1"),
        "mean": ("moving_mean", "vars/2"),
        "variance": ("moving_variance", "vars/3"),
    },
    "alpha",
    "vars/0",
)
_NAMES: Mapping[WeightLayout, Mapping[LayerKind, _Names]] = {
    WeightLayout.OPENMPS: dict.fromkeys(LayerKind, _OWN),
    WeightLayout.PYTORCH: _TORCH,
    WeightLayout.KERAS: _KERAS,
    WeightLayout.MLX: _TORCH,
}
"""What stands behind a layer's name, by its kind and part; the first is the one that is written."""

SEPARATORS: Mapping[WeightLayout, str] = {layout: "/" if layout == "keras" else "." for layout in WeightLayout}
"""What stands between."""

COUNTERS = ("num_batches_tracked",)
"""Tensors of PyTorch's batch normalization that nothing is computed with."""

_WEIGHTS: Mapping[LayerKind, Mapping[WeightLayout, tuple[str, ...]]] = {
    LayerKind.CONVOLUTION: {
        WeightLayout.OPENMPS: ("O H W I",),
        WeightLayout.PYTORCH: ("O I H W",),
        WeightLayout.KERAS: ("H W I O",),
        WeightLayout.MLX: ("O H W I",),
    },
    LayerKind.DEPTHWISE: {
        WeightLayout.OPENMPS: ("(C m) H W u",),
        WeightLayout.PYTORCH: ("(C m) u H W",),
        WeightLayout.KERAS: ("H W C m",),
        WeightLayout.MLX: ("(C m) H W u",),
    },
    LayerKind.TRANSPOSED: {
        WeightLayout.OPENMPS: ("(g o) H W I",),
        WeightLayout.PYTORCH: ("(g I) o ~H ~W",),
        WeightLayout.KERAS: ("~H ~W (g o) I",),
        WeightLayout.MLX: ("(g o) ~H ~W I",),
    },
    LayerKind.SUB_PIXEL: {
        WeightLayout.OPENMPS: ("(f h C) H W I",),
        WeightLayout.PYTORCH: ("(C f h) I H W",),
        WeightLayout.KERAS: ("H W I (f h C)",),
        WeightLayout.MLX: ("(f h C) H W I",),
    },
    LayerKind.FULLY_CONNECTED: {
        WeightLayout.OPENMPS: ("O H W C",),
        WeightLayout.PYTORCH: ("O ({flatten})", "O C H W"),
        WeightLayout.KERAS: ("({flatten}) O", "H W C O"),
        WeightLayout.MLX: ("O ({flatten})", "O H W C"),
    },
}
"""Orders of weights; the first is the one that is written, all are read: how many axes there are tells them apart."""

_FLATTENED = {
    WeightLayout.OPENMPS: "HWC",
    WeightLayout.PYTORCH: "CHW",
    WeightLayout.KERAS: "HWC",
    WeightLayout.MLX: "HWC",
}
"""How a framework flattens an image, unless a network says otherwise; the last letter is the fastest."""


def suffixes(layout: WeightLayout, kind: LayerKind, part: str) -> tuple[str, ...]:
    """What a framework calls a part of a layer of this kind."""
    return _NAMES[layout][kind][part]


def orders(layout: WeightLayout, layer: WeightLayer, part: str, flatten: str | None = None) -> tuple[Order, ...]:
    """The orders in which a framework keeps a part of a layer; the first is the one that is written.

    Raises:
        MPSArgumentError: The framework has no such layer: transposed convolutions in groups, in Keras.
    """
    if part == "weights":
        if layout is WeightLayout.KERAS and layer.kind is LayerKind.TRANSPOSED and layer.sizes["g"] > 1:
            rule = "must have one group: Keras has no transposed convolution in groups"
            raise MPSArgumentError("orders", f"layer {layer.label!r}", rule, layer.sizes["g"])
        letters = " ".join(flatten or _FLATTENED[layout])
        return tuple(Order(text.format(flatten=letters), layer.sizes) for text in _WEIGHTS[layer.kind][layout])
    if layer.kind is LayerKind.SUB_PIXEL:
        return (Order("(C f h)" if layout is WeightLayout.PYTORCH else "(f h C)", layer.sizes),)
    letter = "O" if layer.kind in _KERNELS else "C"
    sizes = {**layer.sizes, "u": 1, "v": 1}
    if part == "slopes" and layout is WeightLayout.KERAS:
        return Order(f"u v {letter}", sizes), Order(letter, sizes)
    return (Order(letter, sizes),)
