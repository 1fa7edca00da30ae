"""Every public constructor, factory and method that makes something, given a wrong argument: a named error.

Arguments are found by introspection, and right ones by their names; one at a time is then something else.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from in_one_test import in_one_test
from openmps.errors import MPSError

pytestmark = [
    pytest.mark.usefixtures("in_an_empty_folder"),
    pytest.mark.filterwarnings("ignore::openmps.MPSTrainingWarning"),
]

CPU = mps.mtl_device("cpu")
FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32
HINGE, SUM = mps.MPSCNNLossType.HINGE, mps.MPSCNNReductionType.SUM
WRONG: dict[str, Any] = {
    "none": None, "text": "text", "number": 3, "fraction": -1.5, "nothing": [], "texts": ["text", None], "mapping": {},
    "array": np.zeros(3), "object": object(), "class": mps.MPSImage, "large number": 1 << 80, "bytes": b"x",
    "nan": float("nan"), "flag": True, "function": lambda: None, "another value": mps.MPSImageEdgeMode.CLAMP,
    "another descriptor": mps.MPSImageDescriptor(FLOAT32, 1, 1, 1), "device": CPU, "tensor": torch.zeros(3),
}  # fmt: skip
EXTENDS = "for those who extend the framework"
LEFT_OUT = {
    "MPSStateBatch.of_images": EXTENDS, "MPSStateBatch.repeated": EXTENDS, "MTLBuffer.holding": EXTENDS,
    "MPSImage.member": EXTENDS, "MPSTemporaryImage.temporary_member": EXTENDS, "MPSNNGraph.assembled": EXTENDS,
    "MPSCNNGroupNormalizationGradientState": EXTENDS, "MPSCNNInstanceNormalizationGradientState": EXTENDS,
    "convolution.copy_over": EXTENDS,
}  # fmt: skip
MAKES = ("new_", "make", "temporary_", "result_state", "gradient_filter", "training_graph", "command_buffer",
         "blit_command_encoder", "batch_representation", "sub_image", "descriptor", "destination_image_descriptor",
         "export_", "resource_at_index", "copy", "prefetch_storage")  # fmt: skip
"""How the names of methods begin that make something."""


def _source() -> mps.ArrayConvolutionDataSource:
    return mps.ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(1, 1, 2, 2), [1.0, 2, 3, 4], [1.0, 2], "conv")


_MADE_ONCE = {
    "graph": mps.MPSNNGraph(CPU, mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode()).result_image),
    "batch_normalization": mps.MPSCNNBatchNormalization(CPU, mps.ArrayBatchNormalizationDataSource(2)),
    "convolution_transpose": mps.MPSCNNConvolutionTranspose(CPU, _source()),
}
"""What takes long to make, and is changed by no call that it is given to."""


def _right() -> dict[str, Any]:
    """What is right, by the name of the argument."""
    queue, image = CPU.new_command_queue(), mps.MPSImage.from_numpy(CPU, np.zeros((4, 4, 2), np.float32))
    node, relu = mps.MPSNNImageNode(), mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode())
    loss = mps.MPSCNNLossDescriptor(HINGE, SUM)
    return {
        **dict.fromkeys(("source_gradient", "source_image", "source", "left_source", "right_source"), node),
        **dict.fromkeys(("kernel_width", "kernel_height", "window_width", "window_height", "resize_width"), 3),
        **dict.fromkeys(("resize_height", "number_of_regions", "source_count", "index", "count", "vectors"), 2),
        **dict.fromkeys(("left", "top", "right", "bottom", "pad", "padding", "result_width"), 1),
        **dict.fromkeys(("stride_in_pixels_x", "stride_in_pixels_y", "dilation_rate_x", "dilation_rate_y"), 2),
        **dict.fromkeys(("integer_scale_factor_x", "integer_scale_factor_y", "result_height"), 2),
        **dict.fromkeys(("gamma", "beta", "mean", "variance", "buffer"), CPU.new_buffer(length=64)),
        **dict.fromkeys(("rows", "columns", "number_of_feature_channels", "result_feature_channels", "amount"), 2),
        **dict.fromkeys(("xy_loss_type", "wh_loss_type", "confidence_loss_type", "classes_loss_type", "type"), HINGE),
        **dict.fromkeys(("loss_type",), HINGE), "reduction_type": SUM, "keep_probability": 0.5, "limit": 0.1,
        "array": np.zeros((1, 4, 4, 2), np.float32), "tensor": torch.zeros(1, 2, 4, 4), "length": 8, "width": 4,
        "height": 4, "feature_channels": 2, "channel_format": FLOAT32, "data_type": mps.MPSDataType.FLOAT32,
        "device": CPU, "command_buffer": queue.command_buffer(), "queue": queue, "weights": _source(), "bias": 0.0,
        "image_descriptor": mps.MPSImageDescriptor(FLOAT32, 4, 4, 2), "loss_descriptor": loss, "seed": 0,
        "labels": np.eye(2, dtype=np.float32), "images": [image], "batch": [image], "source_images": [image],
        "result_image": relu.result_image, "gradient_state": relu.result_state, "range": range(4), "size": 64,
        "descriptor": mps.MPSVectorDescriptor(4), "matrix_descriptor": mps.MPSMatrixDescriptor(2, 2),
        "neuron_descriptor": mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.RELU, 0.0), "buffer_size": 16,
        "optimizer_descriptor": mps.MPSNNOptimizerDescriptor(), "data": [1.0, 2.0], "block": lambda *_: None,
        "a_data": [1.0, 2.0], "a": 1.0, "b": 0.0, "edge_mode": mps.MPSImageEdgeMode.ZERO, "pads": [1, 1, 1, 1],
        "padding_size_before": mps.MPSImageCoordinate(0, 0, 0), "padding_size_after": mps.MPSImageCoordinate(0, 0, 0),
        "feature_channel_range": range(4), "method": mps.MPSNNPaddingMethod.SIZE_SAME, "policy": "same", "kernel": 3,
        "which": "cpu",
        "convolution_descriptor": mps.MPSCNNConvolutionDescriptor(1, 1, 2, 2), "image": image, "options": 0,
        "cnn_convolution_descriptor": mps.MPSCNNConvolutionDescriptor(1, 1, 2, 2), "object": relu.padding_policy,
        "image_descriptor_list": [mps.MPSImageDescriptor(FLOAT32, 4, 4, 2)], "path": "file", "sources": [node, node],
        "matrix_descriptor_list": [mps.MPSMatrixDescriptor(2, 2)], "descriptor_list": [mps.MPSVectorDescriptor(4)],
        "anchor_boxes": [1.0, 1.0], "number_of_anchor_boxes": 1, "feature_channel_offset": 0, "minimum": 0.0,
        "maximum": 1.0, "standard_deviation": 1.0, "data_source": mps.ArrayBatchNormalizationDataSource(2),
        "rnn_descriptor": mps.MPSRNNSingleGateDescriptor(2, 2), "trainable_weights": [],
        "input_feature_channels": 2, "output_feature_channels": 2,
        "convolution_data": _source(), "start": 0, "offset": mps.MPSImageCoordinate(0, 0, 0), "findings": (),
        "number_of_feature_channels_to_read_write": 4, "location": 0, "torch_device": torch.device("cpu"),
        **_MADE_ONCE, "kernel_size": 3,
        "labels_image": image,
        "output_size": mps.MTLSize(4, 4, 2),
        "scale_factor_x": 2.0, "scale_factor_y": 2.0, "primary_image": image, "secondary_image": image,
        "mask_stride_in_pixels": mps.MTLSize(1, 1, 1), "origin": mps.MTLOrigin(0, 0, 0), "entries": (),
        "optimizer": lambda device: mps.MPSNNOptimizerAdam(device, 0.1), "number_of_groups": 1, "axes": (),
        "image_descriptors": mps.MPSImageDescriptor(FLOAT32, 4, 4, 2), "regions": CPU.new_buffer(length=64),
        "values": np.zeros((3, 3), np.float32), "sigma": 1.0, "kernel_diameter": 3, "threshold_value": 0.5,
        "maximum_value": 1.0, "histogram_info": mps.MPSImageHistogramInfo(8), "texture": image.texture,
        "pixel_format": mps.MTLPixelFormat.RGBA8_UNORM, "mipmapped": False, "folder": ".",
        "convolution_gradient_state": mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), _source()).result_state,
    }  # fmt: skip


_IMAGE = mps.MPSImage.from_numpy(CPU, np.zeros((4, 4, 2), np.float32))
_FLOATS = mps.MPSDataType.FLOAT32
_SMALL = mps.MPSCNNConvolutionDescriptor(1, 1, 1, 2)
NEEDED = {
    **dict.fromkeys(("MPSCNNConvolution", "MPSCNNFullyConnected", "MPSCNNConvolutionTransposeNode"), "weights"),
    **{f"MPSNN{name}Node": "sources" for name in (
        "Addition", "Subtraction", "Multiplication", "Division", "Comparison", "BinaryArithmetic"
    )},
    **{f"MPSCNNPooling{name}Node": "kernel_width kernel_height" for name in ("Max", "Average", "L2Norm", "")},
    **dict.fromkeys(("MPSNNBilinearScaleNode", "MPSNNLanczosScaleNode", "MPSNNScaleNode"), "output_size"),
    **{f"{each}.{name}": "source" for each in ("node", "convolution node", "loss node")
       for name in ("gradient_filter", "gradient_filters")},
    "MPSImage": "device image_descriptor", "MPSTemporaryImage": "image_descriptor", "MPSNNGraph": "result_image",
    "MPSVector": "device descriptor", "MPSMatrix": "device descriptor", "MPSMatrixDescriptor": "rows",
    **dict.fromkeys(("MPSRNNMatrixInferenceLayer", "MPSRNNImageInferenceLayer"), "rnn_descriptor"),
    "MPSPredicate": "device", "MPSCNNLossLabels": "labels_image", "MPSNNForwardLossNode": "loss_descriptor",
    "device.new_buffer": "length",
}  # fmt: skip
"""What calls need besides that has a default, as it can be said in several ways."""
_TEXTURE = mps.MTLTextureDescriptor.texture_2d_descriptor(mps.MTLPixelFormat.RGBA8_UNORM, 4, 4, mipmapped=False)
OWN: dict[str, dict[str, Any]] = {
    **{key: {"descriptor": _TEXTURE} for key in ("MTLTexture", "device.new_texture")},
    "MPSImageConvolution": {"weights": np.zeros((3, 3), np.float32)},
    "MPSImageRegion": {"size": mps.MPSImageCoordinate(1, 1, 1)},
    **{each: {"descriptor": mps.MPSNDArrayDescriptor(_FLOATS, [2])} for each in ("MPSNDArray", "MPSTemporaryNDArray")},
    "MPSNDArrayDescriptor": {"shape": None, "dimension_sizes": [2, 3], "dimension_count": 2},
    **{f"{each}.{name}": {"source_image": _IMAGE}
       for each in ("convolution", "pooling", "loss", "batch normalization")
       for name in ("result_state", "temporary_result_state")},
    **{f"{each}.{name}_batch": {"source_image": [_IMAGE]}
       for each in ("convolution", "pooling", "loss", "batch normalization")
       for name in ("result_state", "temporary_result_state")},
    **{f"addition.{name}_batch": {"primary_image": [_IMAGE], "secondary_image": [_IMAGE]}
       for name in ("result_state", "temporary_result_state")},
    "addition.destination_image_descriptor": {"source_images": [_IMAGE, _IMAGE]},
    "MPSCNNConvolutionGradientState": {"kernel": mps.MPSCNNConvolution(CPU, _source())},
    "MTLHeap": {"descriptor": mps.MTLHeapDescriptor(64)}, "device.new_heap": {"descriptor": mps.MTLHeapDescriptor(64)},
    "MPSMatrixRandomDistributionDescriptor.normal_distribution_descriptor": {"mean": 0.0},
    "state.resource_at_index": {"index": 0},
    "TrainableConvolutionDataSource": {"descriptor": _SMALL, "weights": [1.0, 2.0]}, "MPSMatrix": {
        "descriptor": mps.MPSMatrixDescriptor(2, 2)}, "explain_padding": {"source": 8},
    "ArrayConvolutionDataSource": {"descriptor": _SMALL, "weights": [1.0, 2.0]},
    "ArrayConvolutionDataSource.uniform": {"descriptor": _SMALL},
    "MPSVector.from_numpy": {"array": np.zeros(4, np.float32)}, "MPSVector.from_dlpack": {"tensor": torch.zeros(4)},
    "MPSMatrix.from_numpy": {"array": np.zeros((2, 2), np.float32)},
    "MPSMatrix.from_dlpack": {"tensor": torch.zeros(2, 2)},
    "MPSCNNNeuronNode": {"descriptor": mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.RELU, 0.0)},
    **{
        f"MPSStateBatch{each}": {"batch": [mps.MPSState(CPU, buffer_size=4)]}
        for each in ("IncrementReadCount", "ResourceSize", "Synchronize")
    },
}  # fmt: skip
"""Right arguments of some calls that have another meaning in the others."""


def _objects() -> dict[str, Any]:
    """Objects whose methods make others."""
    right = _right()
    queue, image, relu = right["queue"], right["image"], mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode())
    return {
        "device": CPU, "queue": queue, "command buffer": queue.command_buffer(), "image": image,
        "framework's command buffer": mps.MPSCommandBuffer(queue), "batch": mps.MPSImageBatch([image]),
        "heap": CPU.new_heap(mps.MTLHeapDescriptor(4096)), "graph": right["graph"],
        "convolution": mps.MPSCNNConvolution(CPU, _source()), "pooling": mps.MPSCNNPoolingMax(CPU, 2, 2),
        "addition": mps.MPSCNNAdd(CPU), "loss": mps.MPSCNNLoss(CPU, right["loss_descriptor"]), "node": relu,
        "convolution node": mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), _source()),
        "batch normalization": mps.MPSCNNBatchNormalization(CPU, mps.ArrayBatchNormalizationDataSource(2)),
        "loss node": mps.MPSCNNLossNode(mps.MPSNNImageNode(), right["loss_descriptor"]),
        "state": mps.MPSState(CPU, buffer_size=4), "addition node": mps.MPSNNAdditionNode(right["sources"]),
    }  # fmt: skip


def _method(key: str, kind: type, name: str) -> Callable[..., Any]:
    things: dict[str, Any] = {}

    def call(**given: Any) -> Any:
        things.update({} if things else _objects())
        return getattr(things[key], name)(**given)

    found = inspect.signature(inspect.getattr_static(kind, name))
    call.__signature__ = found.replace(parameters=[*found.parameters.values()][1:])  # type: ignore[attr-defined]
    return call


def _calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in mps.__all__:
        thing = getattr(mps, name)
        if inspect.isfunction(thing):
            yield name, thing
        if not inspect.isclass(thing) or issubclass(thing, enum.Enum | BaseException | tuple):
            continue
        if not getattr(thing, "_is_protocol", False):
            yield name, thing
            for key, member in vars(thing).items():
                if key[0] != "_" and isinstance(member, classmethod | staticmethod):
                    yield f"{name}.{key}", getattr(thing, key)
    for key, thing in _objects().items():
        for name in dir(type(thing)):
            if name.startswith(MAKES) and inspect.isfunction(inspect.getattr_static(type(thing), name)):
                yield f"{key}.{name}", _method(key, type(thing), name)


CALLS = {name: call for name, call in _calls() if name not in LEFT_OUT}


def _parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    found = inspect.signature(call).parameters.values()
    return [each for each in found if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]


def _given(name: str, parameters: list[inspect.Parameter]) -> dict[str, Any]:
    known = _right() | OWN.get(name, {})
    needed = {each.name for each in parameters if each.default is each.empty} | {*NEEDED.get(name, "").split()}
    return {each: known[each] for each in needed if each in known}


@in_one_test
@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_a_named_error(name: str) -> None:
    call, found = CALLS[name], list[str]()
    parameters = _parameters(call)
    right = _given(name, parameters)
    for argument, wrong in ((each.name, wrong) for each in parameters for wrong in WRONG):
        try:
            call(**{**right, argument: WRONG[wrong]})
        except MPSError:
            continue
        except Exception as error:
            # Arguments that are left out are Python's own affair.
            if not (isinstance(error, TypeError) and "missing" in str(error) and "required" in str(error)):
                found.append(f"{argument}={wrong}: {type(error).__name__}: {error}"[:150])
    assert not found


def test_most_calls_are_tried_with_right_arguments_besides() -> None:
    """Else an error about one of them would hide what is asked."""
    right = 0
    for name, call in CALLS.items():
        try:
            call(**_given(name, _parameters(call)))
            right += 1
        except (MPSError, TypeError):
            continue
    assert right > 0.8 * len(CALLS)
