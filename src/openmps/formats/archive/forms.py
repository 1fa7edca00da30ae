"""What an archive keeps of each class: the arguments that make an object again, and its writable properties.

Most classes need no word here: their constructor's arguments are readable under the same names, as in the framework.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, get_origin

import openmps.kernels as kernels
from openmps.checks import is_writable
from openmps.core.kernel.base import MPSKernel
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.core.padding.explicit import ExplicitPadding
from openmps.core.padding.policy import MPSNNDefaultPadding
from openmps.errors import MPSTypeError
from openmps.formats.archive.sources import SOURCES, ArchivedConvolutionWeights, StandIns
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.node import Handle
from openmps.kernels.batch_normalization import MPSCNNBatchNormalization
from openmps.kernels.convolution import (
    MPSCNNBinaryConvolution,
    MPSCNNConvolution,
    MPSCNNConvolutionDescriptor,
    MPSCNNConvolutionGradient,
    MPSCNNConvolutionTranspose,
    MPSCNNConvolutionTransposeGradient,
)
from openmps.kernels.convolution.descriptor import BatchNormalizationFold
from openmps.kernels.group_normalization import MPSCNNGroupNormalization, MPSCNNInstanceNormalization
from openmps.kernels.loss import MPSCNNLossDescriptor, MPSCNNYOLOLossDescriptor
from openmps.kernels.neuron import MPSCNNNeuron, MPSCNNNeuronGradient
from openmps.kernels.optimizers import MPSNNOptimizer, MPSNNOptimizerDescriptor
from openmps.kernels.random import MPSMatrixRandomDistributionDescriptor
from openmps.kernels.recurrent.descriptors import MPSRNNDescriptor
from openmps.kernels.recurrent.image_inference import MPSRNNImageInferenceLayer
from openmps.kernels.recurrent.layer import Layer, describe
from openmps.kernels.recurrent.matrix_inference import MPSRNNMatrixInferenceLayer
from openmps.kernels.recurrent.matrix_training import MPSRNNMatrixTrainingLayer
from openmps.kernels.recurrent.stack import RecurrentStack, layers_of
from openmps.kernels.recurrent.training_weights import form_of
from openmps.kernels.upsampling import MPSCNNUpsampling, MPSCNNUpsamplingGradient

_PLAIN: tuple[type, ...] = (
    Handle,
    MPSCNNConvolutionDescriptor,
    MPSCNNLossDescriptor,
    MPSCNNYOLOLossDescriptor,
    MPSNNDefaultPadding,
    MPSNNNeuronDescriptor,
    MPSNNOptimizerDescriptor,
    MPSMatrixRandomDistributionDescriptor,
    MPSRNNDescriptor,
    BatchNormalizationFold,
    ExplicitPadding,
    *SOURCES,
)
"""Archived classes that are not kernels; with them their subclasses."""

_OURS = ("openmps.kernels.augmentation", "openmps.kernels.selection")
"""Modules of kernels that the framework does not have, and that are not named as its are."""


def _neuron(kernel: MPSCNNNeuron | MPSCNNNeuronGradient, _: StandIns) -> dict[str, Any]:
    names = signature(type(kernel)).parameters
    if "neuron_descriptor" in names:
        parts = (kernel.neuron_type, kernel.a, kernel.b, kernel.c)
        return {"neuron_descriptor": MPSNNNeuronDescriptor(*parts, data=kernel.data)}
    if kernel.data is not None:
        return {"a": kernel.data}
    return {name: getattr(kernel, name) for name in ("a", "b", "c") if name in names}


def _yolo_losses(descriptor: MPSCNNYOLOLossDescriptor, _: StandIns) -> dict[str, Any]:
    parts = ("xy", "wh", "confidence", "classes")
    types = {f"{part}_loss_type": getattr(descriptor, f"{part}_loss_descriptor").loss_type for part in parts}
    return {**types, "reduction_type": descriptor.reduction_type, "anchor_boxes": descriptor.anchor_boxes}


def _optimizer(kernel: MPSNNOptimizer, _: StandIns) -> dict[str, Any]:
    if kernel.additions():
        rule = f"cannot be archived with {kernel.additions()}, which the framework's optimizers have not"
        raise MPSTypeError("MPSKeyedArchiver", type(kernel).__name__, rule, None)
    descriptor = MPSNNOptimizerDescriptor(
        kernel.learning_rate,
        kernel.gradient_rescale,
        apply_gradient_clipping=kernel.apply_gradient_clipping,
        gradient_clip_max=kernel.gradient_clip_max,
        gradient_clip_min=kernel.gradient_clip_min,
        regularization_type=kernel.regularization_type,
        regularization_scale=kernel.regularization_scale,
    )
    names = [name for name in signature(type(kernel)).parameters if name not in _DESCRIBED]
    return {**{name: getattr(kernel, name) for name in names}, "optimizer_descriptor": descriptor}


def _descriptor(descriptor: MPSCNNConvolutionDescriptor, _: StandIns) -> dict[str, Any]:
    names = ("kernel_width", "kernel_height", "input_feature_channels", "output_feature_channels")
    return {name: getattr(descriptor, name) for name in names}


def _binary(kernel: MPSCNNBinaryConvolution, stand_ins: StandIns) -> dict[str, Any]:
    terms = kernel.terms._asdict().items()
    rows = {f"{name}_terms": None if row is None else row.cpu().numpy() for name, row in terms}
    return {"convolution_data": stand_ins.binary(kernel), "type": kernel.type, "flags": kernel.flags, **rows}


def _convolution(kernel: Any, stand_ins: StandIns) -> dict[str, Any]:
    return {"weights": stand_ins.convolution(kernel)}


def _normalization(kernel: Any, stand_ins: StandIns) -> dict[str, Any]:
    return {"data_source": stand_ins.normalization(kernel)}


def _batch_normalization(kernel: Any, stand_ins: StandIns) -> dict[str, Any]:
    return {**_normalization(kernel, stand_ins), "fused_neuron_descriptor": kernel.fused_neuron_descriptor}


def _upsampling(kernel: Any, _: StandIns) -> dict[str, Any]:
    names = [name for name in signature(type(kernel)).parameters if name != "device"]
    values = {name: getattr(kernel, name.removeprefix("integer_")) for name in names}
    return {name: int(value) if name.startswith("integer_") else value for name, value in values.items()}


def _recurrent(kernel: RecurrentStack[Any], _: StandIns) -> dict[str, Any]:
    return {"rnn_descriptors": [describe(layer, ArchivedConvolutionWeights) for layer in layers_of(kernel)]}


def _trained(kernel: MPSRNNMatrixTrainingLayer, _: StandIns) -> dict[str, Any]:
    """Without weights, which are the user's: those of the layer that is made are zeros."""
    descriptor = describe(Layer(form_of(kernel), {}), ArchivedConvolutionWeights)
    return {"rnn_descriptor": descriptor, "trainable_weights": []}


_DESCRIBED = ("device", "learning_rate", "optimizer_descriptor")

_ARGUMENTS: dict[type, Callable[[Any, StandIns], dict[str, Any]]] = {
    Handle: lambda each, _: {"label": each.label()},
    MPSNNNeuronDescriptor: lambda each, _: {
        "type": each.neuron_type, "a": each.a, "b": each.b, "c": each.c, "data": each.copy().data
    },
    MPSNNDefaultPadding: lambda each, _: {"method": each.padding_method()},
    MPSCNNNeuron: _neuron,
    MPSCNNNeuronGradient: _neuron,
    MPSCNNConvolutionDescriptor: _descriptor,
    MPSCNNConvolution: _convolution,
    MPSCNNConvolutionTranspose: _convolution,
    MPSCNNConvolutionGradient: _convolution,
    MPSCNNConvolutionTransposeGradient: _convolution,
    MPSCNNLossDescriptor: lambda each, _: {"type": each.loss_type, "reduction_type": each.reduction_type},
    MPSCNNYOLOLossDescriptor: _yolo_losses,
    MPSCNNBinaryConvolution: _binary,
    MPSCNNBatchNormalization: _batch_normalization,
    MPSCNNInstanceNormalization: _normalization,
    MPSCNNGroupNormalization: _normalization,
    MPSCNNUpsampling: _upsampling,
    MPSCNNUpsamplingGradient: _upsampling,
    MPSNNOptimizer: _optimizer,
    MPSRNNImageInferenceLayer: _recurrent,
    MPSRNNMatrixInferenceLayer: _recurrent,
    MPSRNNMatrixTrainingLayer: _trained,
    # Its numbers say more than its arguments take: those of the default distribution are 0, and no deviation is.
    MPSMatrixRandomDistributionDescriptor: lambda each, _: {},
}  # fmt: skip
"""Where the arguments are not attributes of the same names."""

_SHOWN_AS: Mapping[str, tuple[str, ...]] = {
    "dest_alpha": ("destination_alpha",),
    "linear_gray_color_transform": ("transform", "color_transform"),
    "linear_to_gray_scale_transform": ("color_transform",),
    "src_alpha": ("source_alpha",),
}
"""Arguments of filters that the framework shows as properties of other names."""

_OTHER_PROPERTIES: dict[type, tuple[frozenset[str], frozenset[str]]] = {
    MPSCNNConvolutionDescriptor: (frozenset({"batch_normalization"}), frozenset({"neuron"})),
}
"""Properties to keep that no annotation names, and such as only show another one."""


@functools.cache
def classes() -> Mapping[str, type]:
    """Every class that an archive may hold, by name: the framework's and ours that go with them, and no others."""
    for module in iter_modules(kernels.__path__):  # also those that the program itself has not asked for
        import_module(f"{kernels.__name__}.{module.name}")
    found: dict[str, type] = {}
    ahead: list[type] = [MPSKernel, MPSNNGraph, *_PLAIN]
    while ahead:
        kind = ahead.pop()
        ahead += kind.__subclasses__()
        name, module = kind.__name__, kind.__module__
        is_known = name.startswith("MPS") or kind in _PLAIN or (module in _OURS and not name.startswith("_"))
        if module.startswith("openmps.") and is_known:
            found[name] = kind
    return found


def arguments(thing: Any, stand_ins: StandIns) -> dict[str, Any]:
    """The arguments that make an object like this one, but for the device."""
    for kind in type(thing).__mro__:
        if kind in _ARGUMENTS:
            return _ARGUMENTS[kind](thing, stand_ins)
    return {name: _read_back(thing, name) for name in signature(type(thing)).parameters if name != "device"}


def _read_back(thing: Any, name: str) -> Any:
    """An argument of the constructor, which a gradient kernel shows as a property of its forward source."""
    for attribute in (name, f"secondary_{name}", *_SHOWN_AS.get(name, ())):
        if hasattr(thing, attribute):
            return getattr(thing, attribute)
    raise MPSTypeError("MPSKeyedArchiver", type(thing).__name__, f"cannot be archived: its {name} cannot be read", None)


def takes_device(kind: type) -> bool:
    """Whether the constructor takes a device."""
    return "device" in signature(kind).parameters


@functools.cache
def properties(kind: type) -> frozenset[str]:
    """The names of the writable public properties and attributes."""
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        return frozenset()
    names = {name for each in kind.__mro__ for name, value in vars(each).items() if hasattr(type(value), "__set__")}
    names |= {name for each in kind.__mro__ for name, hint in inspect.get_annotations(each).items() if _is_own(hint)}
    for each, (more, fewer) in _OTHER_PROPERTIES.items():
        if issubclass(kind, each):
            names = (names | more) - fewer
    return frozenset(name for name in names if not name.startswith("_") and is_writable(kind, name))


def _is_own(hint: Any) -> bool:
    """Whether an annotation is of an object's attribute, not of its class's."""
    return get_origin(hint) is not ClassVar and not (isinstance(hint, str) and hint.startswith("ClassVar"))


@functools.cache
def signature(kind: type) -> inspect.Signature:
    """The named arguments of a constructor."""
    whole = inspect.signature(kind)
    kept = [each for each in whole.parameters.values() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return whole.replace(parameters=kept)
