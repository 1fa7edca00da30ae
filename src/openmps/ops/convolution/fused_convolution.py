"""Convolution with what stands behind it in one operation: batch normalization, an added image, an activation.

A normalization with stored statistics is folded into weights and biases, which are prepared once and not in each
encode: ``gamma (W x + b - mean) / sqrt(variance + epsilon) + beta`` is ``W' x + b'`` with ``s = gamma / sqrt(variance +
epsilon)``, ``W' = s W`` and ``b' = s (b - mean) + beta``. What remains is ``neuron(W' x + b' + residual)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmps.ops import triton
from openmps.ops.convolution.convolution import convolution, with_biases
from openmps.ops.convolution.library_convolution import operand_of, placed, regular
from openmps.ops.convolution.packed_weights import PackedWeights, behind, packed_weights
from openmps.ops.convolution.patch_convolution import (
    NO_RECTIFIER,
    Patches,
    Rectifier,
    patch_convolution,
    prepared_matrix,
)
from openmps.ops.geometry import Window
from openmps.ops.op import Kind, Op
from openmps.ops.pointwise.neuron import Neuron, neuron
from openmps.ops.pooling.pooling import MaxPooling
from openmps.types import MPSCNNNeuronType, MPSImageEdgeMode

_RELU, _RELU_N = MPSCNNNeuronType.RELU, MPSCNNNeuronType.RELU_N
_SIGMOID, _HARD_SIGMOID = MPSCNNNeuronType.SIGMOID, MPSCNNNeuronType.HARD_SIGMOID
_RECTIFIERS = frozenset({_RELU, _RELU_N})
_ACTIVATIONS = frozenset({*_RECTIFIERS, _SIGMOID, _HARD_SIGMOID})
"""The neurons that are computed in the place of what they are of."""
GATES = frozenset({_SIGMOID, _HARD_SIGMOID})
"""Those that it takes in with the product of a number and its neuron."""
_LARGEST_HALF = 65504.0
UNROUNDED = ", unrounded"
"""Behind such a name: the numbers before they are rounded to operands of float16, and the type of these."""
_ROUNDING = 2.0**-22
"""How far six times a slope may be from 1: a sixth may have been rounded to float32."""
_OWN_GATES = {"swish": torch.ops.aten.silu_, "hardswish": torch.ops.aten.hardswish_}
"""Gates in one pass."""


class Unrounded(NamedTuple):
    """Weights before they are rounded, and the type that they are multiplied in."""

    numbers: Tensor
    dtype: torch.dtype


class Prepared(NamedTuple):
    """What a fused convolution multiplies with and adds."""

    weights: Tensor | PackedWeights
    """OHWI; on the CPU as `openmps.ops.convolution.packed_weights` has them, with biases."""
    biases: Tensor | None
    """Float32."""
    rounded_biases: Tensor | None
    """Float16, beside float16 weights."""
    matrix: Tensor | None = None
    """Of `patch_convolution`, where that is faster."""


class Activation(NamedTuple):
    """A neuron behind a convolution: ``f(x)``, or with a gate ``scale x f(x) + bias``."""

    function: MPSCNNNeuronType
    a: float
    b: float
    is_gate: bool = False
    """Whether the neuron of a number is multiplied by the number."""
    scale: float = 1.0
    bias: float = 0.0

    takes_rows = True
    """Whether numbers in any order and shape will do."""

    @property
    def gate(self) -> str:
        """What oneDNN calls a gate, if it has it; rectifiers it has, too, but they lose what is not a number."""
        if not self.is_gate:
            return "none"
        if self.function is _SIGMOID:
            return "swish"
        return "hardswish" if self.b == 0.5 and abs(6.0 * self.a - 1.0) < _ROUNDING else "none"

    def of(self, x: Tensor) -> Tensor:
        """`neuron` of an image, which it may overwrite."""
        if self.is_gate:
            own = _OWN_GATES.get(self.gate)
            return self.behind_gate(x.mul_(neuron(x, self.function, self.a, self.b, 0.0)) if own is None else own(x))
        if self.function is _SIGMOID:
            return x.sigmoid_()
        if self.function is _HARD_SIGMOID:
            return x.mul_(self.a).add_(self.b).clamp_(0.0, 1.0)
        if self.a == 0.0:
            return x.clamp_min_(0.0) if self.function is _RELU else x.clamp_(0.0, self.b)
        return neuron(x, self.function, self.a, self.b, 0.0)

    def behind_gate(self, x: Tensor) -> Tensor:
        """``scale x + bias``, in place."""
        if self.bias == 0.0:
            return x if self.scale == 1.0 else x.mul_(self.scale)
        return torch.add(torch.full((), self.bias, dtype=x.dtype, device=x.device), x, alpha=self.scale, out=x)


class Pointwise(NamedTuple):
    """Any other pointwise operation behind a convolution."""

    op: Op
    rounds: bool = False
    """Whether the image is rounded to float16 first."""
    constants: tuple[Tensor, ...] = ()
    """What it reads besides the image, while it runs."""

    gate = "none"
    takes_rows = False
    """Not numbers that are no image, as tiles have them."""

    def of(self, x: Tensor) -> Tensor:
        """The operation of an image."""
        x = x.to(torch.float16) if self.rounds else x
        given = x if self.op.takes_half else x.to(torch.float32)
        result = self.op.run((True,), given, *self.constants)
        assert isinstance(result, Tensor)
        return result

    def behind_gate(self, x: Tensor) -> Tensor:
        """The image: there is no gate."""
        return x


def activation_of(op: Op, *, rounds: bool = False) -> Activation | Pointwise:
    """A pointwise operation behind a convolution or normalization, whose result is rounded to float16 or not."""
    if isinstance(op, Neuron) and op.function in _ACTIVATIONS:
        return Activation(op.function, op.a, op.b)
    return Pointwise(op, rounds)


_PLAIN_RELU = Activation(_RELU, 0.0, 0.0)


def folded(
    weights: Tensor,
    biases: Tensor | None,
    mean: Tensor,
    correction: Tensor | None,
    variance: Tensor,
    gamma: Tensor,
    beta: Tensor,
    *,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Weights, OHWI, and biases of a convolution that normalizes what it gives; see the module."""
    scale = gamma * (variance + epsilon).rsqrt_()
    centre = mean if biases is None else mean - biases
    if correction is not None:
        centre = centre + correction
    return weights * scale.view(-1, 1, 1, 1), torch.addcmul(beta, centre, scale, value=-1.0)


def rounded_to_half(x: Tensor) -> Tensor:
    """Float16, with finite numbers that are too large as the largest one; float16 as it is."""
    return (
        x
        if x.dtype == torch.float16
        else torch.where(x.isinf(), x, x.clamp(-_LARGEST_HALF, _LARGEST_HALF)).to(torch.float16)
    )


@dataclass(frozen=True, slots=True)
class Fused:
    """How a fused convolution computes: see `fused_convolution`."""

    window: Window
    edge_mode: MPSImageEdgeMode
    groups: int
    allow_tf32: bool
    activation: Activation | Pointwise | None


def fused_convolution(x: Tensor, prepared: Prepared, residual: Tensor | None, how: Fused) -> Tensor:
    """``rectifier(W' * x + b' + residual)``: `convolution` by prepared weights, what is added, what is rectified."""
    weights, biases, *_ = prepared
    if isinstance(weights, PackedWeights):
        return weights(x.to(torch.float32), residual, how.activation)
    if x.is_cuda and x.dtype in _DTYPES and x.dtype == weights.dtype and x.numel():
        fits = residual is None or _lies_like_results(residual, x, weights, how)
        x = regular(x.contiguous(memory_format=torch.channels_last))
        known = how if is_rectifier(how.activation) else replace(how, activation=None)
        for form in _FORMS if fits else ():
            found = form(x, weights, prepared, residual, known)
            if found is not None:
                return behind(found, None, how.activation) if known is not how else found
    return behind(_plain(x, weights, biases, how), residual, how.activation)


def is_rectifier(activation: Activation | Pointwise | None) -> bool:
    """Whether forms for GPUs know it, or there is none."""
    if not isinstance(activation, Activation):
        return activation is None
    return activation.function in _RECTIFIERS and not activation.is_gate


def _lies_like_results(residual: Tensor, x: Tensor, weights: Tensor, how: Fused) -> bool:
    shape = (x.shape[0], weights.shape[0], *how.window.result)
    is_last = residual.is_contiguous(memory_format=torch.channels_last)
    return residual.shape == shape and residual.dtype == x.dtype and is_last


def _plain(x: Tensor, weights: Tensor, biases: Tensor | None, how: Fused) -> Tensor:
    """The convolution and its biases."""
    more: Any = {"groups": how.groups, "edge_mode": how.edge_mode, "allow_tf32": how.allow_tf32}
    return convolution(x, weights, biases, how.window, **more)


# --- forms for GPUs: None where one does not fit ----------------------------------------------------------------------


def _by_patches(
    x: Tensor, weights: Tensor, prepared: Prepared, residual: Tensor | None, how: Fused, pooling: Window | None = None
) -> Tensor | None:
    """Few channels: by a kernel that reads windows row by row, and may pool."""
    if prepared.matrix is None or residual is not None or (how.allow_tf32 and x.dtype == torch.float32):
        return None
    patches, rectifier = Patches(how.window, pooling), named(how.activation)
    return patch_convolution(x, prepared.matrix, len(weights), prepared.biases, patches, rectifier)


def _of_few_pixels(
    x: Tensor, weights: Tensor, prepared: Prepared, residual: Tensor | None, how: Fused
) -> Tensor | None:
    """Float16: by a kernel that keeps a GPU busy with few of them."""
    if x.dtype != torch.float16 or how.groups != 1:
        return None
    from openmps.ops.convolution.half_forms import half_convolution

    where = how.window, how.edge_mode, named(how.activation)
    return half_convolution(x, weights, prepared.biases, residual, *where)


def _in_one_kernel(
    x: Tensor, weights: Tensor, prepared: Prepared, residual: Tensor | None, how: Fused
) -> Tensor | None:
    """Few terms a number: by kernels that add and rectify what they sum up."""
    if not _is_ours(x, weights, how, adds=residual is not None) or not triton.runs_on(x.device):
        return None
    from openmps.ops.triton.convolution import fused_convolution as fast

    form = fast.depthwise if _is_depthwise(weights, how.groups) else fast.contraction
    clamps = how.edge_mode == MPSImageEdgeMode.CLAMP
    name, slope, limit = named(how.activation)
    return form(
        x, weights, prepared.biases, residual, how.window, clamps=clamps, rectifier=name, slope=slope,
        limit=limit,
    )  # fmt: skip


def _is_depthwise(weights: Tensor, groups: int) -> bool:
    return groups > 1 and weights.shape[3] == 1


def _is_ours(x: Tensor, weights: Tensor, how: Fused, *, adds: bool) -> bool:
    """Whether cuDNN is slower: depthwise, exact float32 of more than a few channels, few float16 terms to add to."""
    outputs, rows, columns, inputs = weights.shape
    if how.groups != 1:
        return _is_depthwise(weights, how.groups)
    if x.dtype == torch.float16:
        return adds and rows * columns * inputs <= _FEW_TERMS < outputs
    return inputs >= _MANY_TERMS and not how.allow_tf32


def _by_cudnn(x: Tensor, weights: Tensor, prepared: Prepared, residual: Tensor | None, how: Fused) -> Tensor | None:
    """Float16 before a ReLU: cuDNN adds and rectifies what it sums up; what is not a number stays so."""
    if not _is_cudnns(prepared, how):
        return None
    assert prepared.rounded_biases is not None
    if not torch.backends.cudnn.is_acceptable(x):
        return None
    from openmps.ops.convolution.half_forms import for_first_layer

    window, padding = placed(how.window, how.edge_mode)
    operand = operand_of(x, window, padding, how.edge_mode)
    image, weights = for_first_layer(operand.image, weights, operand.stride)
    kernel, where = weights.permute(0, 3, 1, 2), (operand.stride, operand.padding, window.dilation, 1)
    aten: Any = torch.ops.aten
    if residual is None:
        return aten.cudnn_convolution_relu(image, kernel, prepared.rounded_biases, *where)
    return aten.cudnn_convolution_add_relu(image, kernel, residual, 1.0, prepared.rounded_biases, *where)


def pooled_convolution(x: Tensor, prepared: Prepared, how: Fused, pooling: MaxPooling) -> Tensor:
    """Max pooling of `fused_convolution`, whose rectifier never falls.

    Where everything behind the products is a pass of its own, it is made of the pooled numbers: biases, rectifiers and
    roundings that never fall give the same numbers before the largest is chosen and after.
    """
    weights = prepared.weights
    takes_pooling = Patches(how.window, pooling.window).fits(how.edge_mode)
    if isinstance(weights, Tensor) and prepared.matrix is not None and takes_pooling and x.numel():
        x = regular(x.contiguous(memory_format=torch.channels_last))
        if (found := _by_patches(x, weights, prepared, None, how, pooling.window)) is not None:
            return found
    if not isinstance(weights, Tensor) or _is_fused(x, weights, prepared, how):
        return pooling.run((True, False), fused_convolution(x, prepared, None, how))[0]
    y = _plain(regular(x.contiguous(memory_format=torch.channels_last)), weights, None, how)
    return _finished(pooling.run((True, False), y)[0], prepared, None, how)


def _is_fused(x: Tensor, weights: Tensor, prepared: Prepared, how: Fused) -> bool:
    """Whether biases and rectifier cost no pass of their own."""
    if x.dtype not in _DTYPES or x.dtype != weights.dtype or not x.numel():
        return True
    return _is_ours(x, weights, how, adds=False) or _is_cudnns(prepared, how)


def _is_cudnns(prepared: Prepared, how: Fused) -> bool:
    """Whether cuDNN has a form that adds and rectifies what it sums up."""
    return how.activation == _PLAIN_RELU and prepared.rounded_biases is not None and how.groups == 1


def _in_two_passes(
    x: Tensor, weights: Tensor, prepared: Prepared, residual: Tensor | None, how: Fused
) -> Tensor | None:
    """The convolution, then everything else in its result's place."""
    return _finished(_plain(x, weights, None, how), prepared, residual, how)


def _finished(y: Tensor, prepared: Prepared, residual: Tensor | None, how: Fused) -> Tensor:
    """Everything that stands behind the products, in their memory."""
    name, slope, limit = named(how.activation)
    is_all = prepared.biases is None and residual is None and name == "NONE"
    if is_all or not triton.runs_on(y.device) or not y.is_contiguous(memory_format=torch.channels_last):
        return behind(with_biases(y, prepared.biases), residual, how.activation)
    from openmps.ops.triton.convolution import fused_convolution as fast

    return fast.finish(y, prepared.biases, residual, name, slope, limit)


_FORMS = (_by_patches, _of_few_pixels, _in_one_kernel, _by_cudnn, _in_two_passes)
_DTYPES = (torch.float16, torch.float32)
_FEW_TERMS = 64
"""Of float16, which take less time than the image that is added."""
_MANY_TERMS = 16
"""Fewer channels are padded by a form that takes a run of them at a time."""


def named(rectifier: Activation | Pointwise | None) -> Rectifier:
    """What kernels call a rectifier, its slope and its limit."""
    if not isinstance(rectifier, Activation):
        return NO_RECTIFIER
    name = "RELU" if rectifier.a == 0.0 else "LEAKY"
    return Rectifier(name if rectifier.function is _RELU else name + "_N", rectifier.a, rectifier.b)


# --- operations -------------------------------------------------------------------------------------------------------


class Source(NamedTuple):
    """Where weights and biases come from: whether there are rows of a batch normalization, and its epsilon."""

    epsilon: float | None


class PrepareConvolution(Op, kind=Kind.PREPARATION):
    """What a `FusedConvolution` multiplies with and adds.

    The operands are weights before rounding, biases, which may be left out, and with an epsilon mean, correction,
    variance, gamma and beta of a batch normalization. With ``addend`` there follow those of the convolution that made
    the image which is added: its biases are added here, and ``keeps_biases`` says so there.
    """

    window: Window
    edge_mode: MPSImageEdgeMode
    groups: int
    images: int
    epsilon: float | None
    addend: Source | None = None
    keeps_biases: bool = True
    pooling: Window | None = None
    """Of the max pooling behind it, if that runs before biases and neuron."""
    is_kept: bool = True
    """Whether it is made once for many runs: in memory of its own, float32 weights on the CPU packed for a library."""

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Any:
        """See the class."""
        return self.laid_out(*self.exact(*operands), operands[0].dtype)

    def laid_out(self, weights: Tensor, biases: Tensor | None, dtype: torch.dtype) -> Prepared:
        """Numbers that were prepared, in the memory of their own that is fastest.

        With a normalization in them they may be too large for float16: then they stay float32.
        """
        stays = dtype == torch.float16 and self.epsilon is not None and _overflow(weights, biases)
        if dtype == torch.float16 and not stays:
            half = None if biases is None else rounded_to_half(biases)
            rounded = rounded_to_half(weights)
            return Prepared(self._of_kernels(rounded), biases, half, self._matrix(rounded))
        is_packable = weights.device.type == "cpu" and weights.dtype == torch.float32
        if self.is_kept and is_packable and torch.backends.mkldnn.is_available() and not stays:
            where = self.window, self.edge_mode, self.groups, self.images
            return Prepared(packed_weights(weights, biases, *where), biases, None)
        if self.epsilon is None and self.is_kept:
            # Its own numbers: whoever prepares them writes later ones over them.
            weights, biases = weights.clone(), None if biases is None else biases.clone()
        return Prepared(self._of_kernels(weights), biases, None, self._matrix(weights))

    def exact(self, given: Unrounded | Tensor, *operands: Any) -> tuple[Tensor, Tensor | None]:
        """Weights and biases before they are rounded, or as they are multiplied with."""
        count = 1 if self.epsilon is None else 6
        weights, biases = given if isinstance(given, Tensor) else given.numbers, operands[0]
        if self.epsilon is not None:
            weights, biases = folded(weights, *operands[:count], epsilon=self.epsilon)
        if self.addend is not None:
            biases = _sum(biases, self._biases_of_addend(self.addend, *operands[count:]))
        return weights, biases if self.keeps_biases else None

    @staticmethod
    def _biases_of_addend(addend: Source, weights: Unrounded, biases: Tensor | None, *rows: Any) -> Tensor | None:
        if addend.epsilon is None:
            return biases
        return folded(weights.numbers[:, :1, :1, :1], biases, *rows, epsilon=addend.epsilon)[1]

    def _matrix(self, weights: Tensor) -> Tensor | None:
        """What windows over few channels are multiplied with, where that is faster."""
        patches = Patches.of(self.window, self.pooling, self.edge_mode)
        return None if self.groups != 1 else prepared_matrix(weights, patches, self.edge_mode, self.images)

    def _of_kernels(self, weights: Tensor) -> Tensor:
        """Weights in the memory that kernels want, OHWI all the same: the taps of depthwise ones side by side."""
        if weights.is_cuda and _is_depthwise(weights, self.groups) and triton.runs_on(weights.device):
            return weights.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
        return weights


def _overflow(*numbers: Tensor | None) -> bool:
    """Whether finite numbers become too large when they are rounded to float16."""
    given = [each for each in numbers if each is not None]
    return any(bool(((each.abs() > _LARGEST_HALF) & each.isfinite()).any()) for each in given)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


class FusedConvolution(Op, kind=Kind.CONTRACTION, half=True):
    """`fused_convolution` of an image, by what `PrepareConvolution` gives, and of an image to add, if there is one.

    What the activation reads besides comes last, behind an image to add that may be left out.
    """

    how: Fused

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the function."""
        x, prepared, *others = operands
        residual, *constants = others or (None,)
        how = self.how
        if constants and isinstance(how.activation, Pointwise):
            how = replace(how, activation=how.activation._replace(constants=tuple(constants)))
        return fused_convolution(x, prepared, residual, how)


class PooledConvolution(Op, kind=Kind.CONTRACTION, half=True):
    """`pooled_convolution` of an image, by what `PrepareConvolution` gives."""

    how: Fused
    pooling: MaxPooling

    def run(self, wanted: tuple[bool, ...], *operands: Any) -> Tensor:
        """See the function."""
        x, prepared = operands
        return pooled_convolution(x, prepared, self.how, self.pooling)
