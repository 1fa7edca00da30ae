"""What a constructor is given can be read back under the same name, as archives and programs expect."""

from __future__ import annotations

import enum
import functools
import inspect
import re

import pytest

import openmps as mps
from helpers import source_of
from in_one_test import in_one_test

READ_AS = {
    # The framework's own names for the parts.
    "MPSNDArrayDescriptor.dimension_count": "number_of_dimensions",
    "MPSCNNLossDescriptor.type": "loss_type",
    "MPSNNNeuronDescriptor.type": "neuron_type",
    "MPSNNDefaultPadding.method": "padding_method",
    "neuron_descriptor": "neuron_type",
    "optimizer_descriptor": "learning_rate",
    "neuron_filter": "neuron",
    "xy_loss_type": "xy_loss_descriptor",
    "wh_loss_type": "wh_loss_descriptor",
    "confidence_loss_type": "confidence_loss_descriptor",
    "classes_loss_type": "classes_loss_descriptor",
    "labels_descriptor": "labels_image",
    "weights_descriptor": "weights_image",
    "loss_image_size": "loss_image",
    "parent_image": "parent",
    "MPSCNNGroupNormalizationGradientState.kernel": "group_normalization",
    "MPSCNNInstanceNormalizationGradientState.kernel": "instance_normalization",
    "MPSCNNConvolution.weights": "data_source",
    "MPSCNNConvolutionTranspose.weights": "data_source",
    "MPSCNNConvolutionGradient.weights": "data_source",
    "MPSCNNConvolutionTransposeGradient.weights": "data_source",
    "ArrayConvolutionDataSource.biases": "bias_terms",
    "src_alpha": "source_alpha",
    "dest_alpha": "destination_alpha",
    "linear_gray_color_transform": "transform",
    "linear_to_gray_scale_transform": "color_transform",
    "MPSImageSobel.linear_gray_color_transform": "color_transform",
    # Other forms of an argument that has its name.
    "integer_scale_factor_x": "scale_factor_x",
    "integer_scale_factor_y": "scale_factor_y",
    "filter_size": "kernel_width",
    "stride": "stride_in_pixels_x",
    "dilation_rate": "dilation_rate_x",
    "a_data": "a",
    "count": "data",
    "kernel_weights": "parameters",
    "bias_terms": "parameters",
    # The windows of a gradient kernel are those of its second source.
    "kernel_width": "secondary_kernel_width",
    "kernel_height": "secondary_kernel_height",
    "stride_in_pixels_x": "secondary_stride_in_pixels_x",
    "stride_in_pixels_y": "secondary_stride_in_pixels_y",
    "dilation_rate_x": "secondary_dilation_rate_x",
    "dilation_rate_y": "secondary_dilation_rate_y",
    # The terms of a binary convolution, with the data source's among them.
    "output_bias_terms": "terms",
    "output_scale_terms": "terms",
    "input_bias_terms": "terms",
    "input_scale_terms": "terms",
    "scale_value": "terms",
    # Nodes: images and states in order, and for a gradient node its forward node.
    "source": "sources",
    "left_source": "sources",
    "right_source": "sources",
    "MPSNNForwardLossNode.labels": "sources",
    "MPSNNForwardLossNode.weights": "sources",
    "MPSNNLossGradientNode.labels": "sources",
    "MPSNNLossGradientNode.weights": "sources",
    "source_gradient": "sources",
    "source_image": "sources",
    "gradient_images": "sources",
    "gradient_state": "source_states",
    "states": "source_states",
    "forward_filter": "forward",
    "result_image": "result_handle",
    "result_images": "result_handle",
    "results_are_needed": "result_image_is_needed",
    # Descriptors: their fields are the object's own.
    "image_descriptor": "pixel_format",
    "texture_descriptor": "pixel_format",
    "matrix_descriptor": "rows",
    "MPSVector.descriptor": "length",
    "MPSMatrix.descriptor": "rows",
    "MTLHeap.descriptor": "size",
    "MPSVector.buffer": "data",
    "MPSMatrix.buffer": "data",
    "MPSMatrixDescriptor.dimensions": "rows",
}
"""Where the framework, or the object, has another name for it: an attribute that is there."""

NOT_KEPT = {
    "MPSState.buffer_size": "the resources are asked for by index",
    "MPSState.texture_descriptor": "the resources are asked for by index",
    "MPSState.resource_list": "the resources are asked for by index",
    "MPSState.resources": "the resources are asked for by index",
    "MTLTexture.memory": "for those who extend the framework; the pixels are asked for",
    "MPSStateResourceList.buffer_sizes": "the states that it makes say their sizes",
    "MPSStateResourceList.texture_descriptors": "the states that it makes say their sizes",
    "MPSCNNConvolutionWeightsAndBiasesState.cnn_convolution_descriptor": "the buffers have the sizes that it asks for",
    "MPSCNNConvolution.flags": "there is one value only",
    "MPSCNNBinaryConvolution.convolution_data": "it is read once, and may be given up",
    "MPSCNNLossDataDescriptor.data": "it is read once, and may be given up",
    "MPSMatrixCopyDescriptor.source_matrix": "encodes alone ask for the copies",
    "MPSMatrixCopyDescriptor.destination_matrix": "encodes alone ask for the copies",
    "MPSMatrixCopyDescriptor.offsets": "encodes alone ask for the copies",
    "MPSMatrixCopyDescriptor.device": "encodes alone ask for the copies",
    "MPSMatrixCopyDescriptor.count": "encodes alone ask for the copies",
    "MPSMatrixCopyDescriptor.source_matrices": "encodes alone ask for the copies",
    "MPSMatrixCopyDescriptor.destination_matrices": "encodes alone ask for the copies",
    "MPSMatrixCopyDescriptor.offset": "encodes alone ask for the copies",
    "MPSNDArray.scalar": "it is the element",
    "MPSNDArrayDescriptor.dimension_sizes": "length_of_dimension tells each, and reshape changes them",
    "MPSNDArrayDescriptor.shape": "length_of_dimension tells each, and reshape changes them",
    "MPSRNNImageInferenceLayer.rnn_descriptor": "sources are read once, and may be given up",
    "MPSRNNImageInferenceLayer.rnn_descriptors": "sources are read once, and may be given up",
    "MPSRNNMatrixInferenceLayer.rnn_descriptor": "sources are read once, and may be given up",
    "MPSRNNMatrixInferenceLayer.rnn_descriptors": "sources are read once, and may be given up",
    "MPSRNNMatrixTrainingLayer.rnn_descriptor": "sources are read once, and may be given up",
    "MPSRNNMatrixTrainingLayer.trainable_weights": "the list is the user's",
    "MPSImage.slice_range": "the view has the channels that it names",
    "MPSImageBatch.images": "it is a sequence of them",
    "MPSStateBatch.states": "it is a sequence of them",
    "MPSKeyedUnarchiver.init_for_reading_from_data": "the bytes are read when it is made",
    "MPSKeyedUnarchiver.init_for_reading_with_data": "the bytes are read when it is made",
    "MPSKeyedUnarchiver.device": "what it restores has one",
    "MPSKeyedUnarchiver.registry": "it names classes of the program's",
    "command_buffer": "a temporary object ends with it, and does not hold it",
    "MPSPredicate.buffer": "predicates are not asked for their parts",
    "MPSPredicate.offset": "predicates are not asked for their parts",
    "MPSPredicate.device": "predicates are not asked for their parts",
    "MTLBlitCommandEncoder.close": "made by a command buffer, not by programs",
    "MTLBuffer.options": "made by a device, not by programs",
    "MTLBuffer.storage": "made by a device, not by programs",
    "MTLCommandBuffer.executor": "made by a queue, not by programs",
    "MTLCommandQueue.max_command_buffer_count": "made by a device, not by programs",
}
"""Arguments that cannot be read back, and why."""

_SET = re.compile(r"self\.(\w+)(?:: [^=\n]+)? = ")


def _classes() -> list[type]:
    found = [getattr(mps, name) for name in mps.__all__]
    kinds = [kind for kind in found if inspect.isclass(kind) and not issubclass(kind, enum.Enum | BaseException)]
    return [kind for kind in kinds if not getattr(kind, "_is_protocol", False)]


@functools.cache
def _own_attributes(kind: type) -> frozenset[str]:
    """Those that a class declares, and those that its methods set."""
    return frozenset({*_SET.findall(source_of(kind)), *vars(kind).get("__annotations__", ())})


def _attributes(kind: type) -> set[str]:
    own = (base for base in kind.__mro__ if base.__module__.startswith("openmps"))
    return {*dir(kind)}.union(*map(_own_attributes, own))


def _rule(table: dict[str, str], kind: type, argument: str) -> str | None:
    names = (f"{base.__name__}.{argument}" for base in kind.__mro__)
    return next((table[name] for name in (*names, argument) if name in table), None)


@in_one_test
@pytest.mark.parametrize("kind", _classes(), ids=lambda kind: kind.__name__)
def test_arguments_are_attributes(kind: type) -> None:
    known = _attributes(kind)
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    arguments = [each.name for each in inspect.signature(kind).parameters.values() if each.kind in plain]
    missing = [
        argument
        for argument in arguments
        if argument not in known
        and _rule(READ_AS, kind, argument) not in known
        and _rule(NOT_KEPT, kind, argument) is None
    ]
    assert missing == [], "give it an attribute of that name, or a line in READ_AS or NOT_KEPT"


def test_every_line_of_the_tables_is_needed() -> None:
    """None names an argument that is an attribute by now, or that no class has."""
    arguments = {(kind, name) for kind in _classes() for name in inspect.signature(kind).parameters}
    bare = [(kind, name) for kind, name in arguments if name not in _attributes(kind)]
    needed = {f"{base.__name__}.{name}" for kind, name in bare for base in kind.__mro__} | {name for _, name in bare}
    assert sorted({*READ_AS, *NOT_KEPT} - needed) == []
