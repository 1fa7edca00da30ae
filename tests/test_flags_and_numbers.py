"""Every flag is a bool and every number one of float32, wherever they are set or passed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import openmps as mps
from in_one_test import in_one_test
from openmps.core.image.picture import png
from openmps.core.state.resources import MPSStateResourceList
from openmps.kernels.concatenation import Concatenation
from openmps.spellings import OtherSpelling
from samples.convolution import ArraySource

CPU = mps.mtl_device("cpu")
SUM, MSE = mps.MPSCNNReductionType.SUM, mps.MPSCNNLossType.MEAN_SQUARED_ERROR
Pass = Callable[[Any], object]
NOT_FLAGS = ["False", "no", "", 2, -1, 0.0, 5.5, [], np.array([True, False])]
YES = [True, 1, np.True_, np.int64(1)]
NO = [False, 0, np.False_, np.int64(0)]


def _image() -> mps.MPSImage:
    return mps.MPSImage.from_numpy(CPU, np.zeros((2, 2, 4), np.float32))


def _node() -> Any:
    return mps.MPSNNImageNode()


def _buffer() -> Any:
    return CPU.new_command_queue().command_buffer()


def _source() -> ArraySource:
    return ArraySource(mps.MPSCNNConvolutionDescriptor(1, 1, 4, 2), np.zeros((2, 1, 1, 4), np.float32))


def _adam(device: Any) -> Any:
    return mps.MPSNNOptimizerAdam(device, 1e-3)


def _graph(**flags: Any) -> mps.MPSNNGraph:
    return mps.MPSNNGraph(CPU, mps.MPSCNNNeuronReLUNode(_node()).result_image, **flags)


def _added() -> Any:
    return mps.MPSNNAdditionNode(_node(), _node())


def _state() -> Any:
    return mps.MPSState(CPU, resource_list=MPSStateResourceList(buffer_sizes=[4]))


def _loss_gradient(value: Any) -> Any:
    descriptor = mps.MPSCNNLossDescriptor(MSE, SUM)
    loss = mps.MPSNNForwardLossNode(_node(), _node(), descriptor)
    made = loss.gradient_filter(_node())
    return mps.MPSNNLossGradientNode(
        made.sources[0], made.sources[1], made.sources[2], None, loss.result_state, descriptor, value
    )


def _encode(kernel: Any, *sources: Any, batch: bool = False) -> Pass:
    def encode(value: Any) -> None:
        method = kernel.encode_batch if batch else kernel.encode
        method(_buffer(), *sources, destination_state_is_temporary=value)

    return encode


def _transposed() -> Any:
    return mps.MPSCNNConvolutionTranspose(CPU, _source())


def _forward_loss() -> Any:
    return mps.MPSNNForwardLoss(CPU, mps.MPSCNNLossDescriptor(MSE, SUM))


FLAGS: dict[str, Pass] = {
    "ExplicitPadding(ceil_mode)": lambda v: mps.ExplicitPadding(0, 0, 0, 0, ceil_mode=v),
    "ExplicitPadding(count_include_pad)": lambda v: mps.ExplicitPadding(0, 0, 0, 0, count_include_pad=v),
    "ExplicitPadding.onnx(ceil_mode)": lambda v: mps.ExplicitPadding.onnx([0] * 4, ceil_mode=v),
    "ExplicitPadding.onnx(count_include_pad)": lambda v: mps.ExplicitPadding.onnx([0] * 4, count_include_pad=v),
    "ExplicitPadding.pytorch(ceil_mode)": lambda v: mps.ExplicitPadding.pytorch(0, ceil_mode=v),
    "ExplicitPadding.pytorch(count_include_pad)": lambda v: mps.ExplicitPadding.pytorch(0, count_include_pad=v),
    "ExplicitPadding.placement(is_backwards)": lambda v: mps.ExplicitPadding(0, 0, 0, 0).placement(
        3, 2, is_backwards=v
    ),
    "MPSCNNAddGradient(is_secondary_source_filter)": lambda v: mps.MPSCNNAddGradient(CPU, v),
    "MPSCNNArithmeticGradient(is_secondary_source_filter)": lambda v: mps.MPSCNNMultiplyGradient(CPU, v),
    "MPSImageHistogramInfo(histogram_for_alpha)": lambda v: mps.MPSImageHistogramInfo(4, v),
    "MPSMatrixCopy(destinations_are_transposed)": lambda v: mps.MPSMatrixCopy(CPU, 1, 1, False, v),
    "MPSMatrixCopy(sources_are_transposed)": lambda v: mps.MPSMatrixCopy(CPU, 1, 1, v, False),
    "MPSMatrixDecompositionCholesky(lower)": lambda v: mps.MPSMatrixDecompositionCholesky(CPU, v, 1),
    "MPSMatrixMultiplication(transpose_left)": lambda v: mps.MPSMatrixMultiplication(CPU, 1, 1, 1, transpose_left=v),
    "MPSMatrixMultiplication(transpose_right)": lambda v: mps.MPSMatrixMultiplication(CPU, 1, 1, 1, transpose_right=v),
    "MPSMatrixSolveCholesky(upper)": lambda v: mps.MPSMatrixSolveCholesky(CPU, v, 1, 1),
    "MPSMatrixSolveLU(transpose)": lambda v: mps.MPSMatrixSolveLU(CPU, v, 1, 1),
    "MPSMatrixSolveTriangular(right)": lambda v: mps.MPSMatrixSolveTriangular(CPU, v, False, False, False, 1, 1, 1.0),
    "MPSMatrixSolveTriangular(transpose)": lambda v: mps.MPSMatrixSolveTriangular(
        CPU, False, False, v, False, 1, 1, 1.0
    ),
    "MPSMatrixSolveTriangular(unit)": lambda v: mps.MPSMatrixSolveTriangular(CPU, False, False, False, v, 1, 1, 1.0),
    "MPSMatrixSolveTriangular(upper)": lambda v: mps.MPSMatrixSolveTriangular(CPU, False, v, False, False, 1, 1, 1.0),
    "MPSMatrixSum(transpose)": lambda v: mps.MPSMatrixSum(CPU, 2, 1, 1, v),
    "MPSMatrixVectorMultiplication(transpose)": lambda v: mps.MPSMatrixVectorMultiplication(CPU, 1, 1, transpose=v),
    **{
        f"load_texture({each})": lambda v, each=each: mps.load_texture(
            png(np.zeros((2, 2, 1), np.uint8)), CPU, **{each: v}
        )
        for each in ("generate_mipmaps", "premultiply", "srgb")
    },
    "MTLTextureDescriptor.texture_2d_descriptor(mipmapped)": lambda v: mps.MTLTextureDescriptor.texture_2d_descriptor(
        mps.MTLPixelFormat.R8_UNORM, 4, 4, v
    ),
    "MPSCNNMultiplyGradient(is_secondary_source_filter)": lambda v: mps.MPSCNNMultiplyGradient(CPU, v),
    "MPSCNNSubtractGradient(is_secondary_source_filter)": lambda v: mps.MPSCNNSubtractGradient(CPU, v),
    "MPSCNNBinaryKernel.encode(destination_state_is_temporary)": _encode(mps.MPSCNNAdd(CPU), _image(), _image()),
    "MPSCNNBinaryKernel.encode_batch(destination_state_is_temporary)": _encode(
        mps.MPSCNNAdd(CPU), [_image()], [_image()], batch=True
    ),
    "MPSCNNKernel.encode(destination_state_is_temporary)": _encode(mps.MPSCNNNeuronReLU(CPU, 0.0), _image()),
    "MPSCNNKernel.encode_batch(destination_state_is_temporary)": _encode(
        mps.MPSCNNNeuronReLU(CPU, 0.0), [_image()], batch=True
    ),
    "MPSCNNMultiaryKernel.encode(destination_state_is_temporary)": _encode(Concatenation(CPU, 2), [_image(), _image()]),
    "MPSCNNMultiaryKernel.encode_batch(destination_state_is_temporary)": _encode(
        Concatenation(CPU, 2), [[_image()], [_image()]], batch=True
    ),
    "MPSCNNConvolution.export_weights_and_biases(result_state_can_be_temporary)": lambda v: mps.MPSCNNConvolution(
        CPU, weights=_source()
    ).export_weights_and_biases(_buffer(), v),
    "MPSCNNConvolutionTranspose.export_weights_and_biases(result_state_can_be_temporary)": lambda v: (
        mps.MPSCNNConvolutionTranspose(CPU, weights=_source()).export_weights_and_biases(_buffer(), v)
    ),
    "MPSCNNUpsamplingBilinear(align_corners)": lambda v: mps.MPSCNNUpsamplingBilinear(CPU, 2, 2, v),
    "MPSCNNUpsamplingBilinearNode(align_corners)": lambda v: mps.MPSCNNUpsamplingBilinearNode(_node(), 2, 2, v),
    "MPSNNResizeBilinear(align_corners)": lambda v: mps.MPSNNResizeBilinear(CPU, 2, 2, v),
    "MPSImage.from_tensor(copy)": lambda v: mps.MPSImage.from_tensor(
        CPU, torch.zeros(2, 2, 4).permute(2, 0, 1), copy=v
    ),
    "MPSMatrix.from_dlpack(copy)": lambda v: mps.MPSMatrix.from_dlpack(CPU, torch.zeros(2, 2), v),
    "MPSMatrix.from_numpy(copy)": lambda v: mps.MPSMatrix.from_numpy(CPU, np.zeros((2, 2), np.int8), v),
    "MPSNDArray.from_dlpack(copy)": lambda v: mps.MPSNDArray.from_dlpack(CPU, torch.zeros(2, 2), v),
    "MPSNDArray.from_numpy(copy)": lambda v: mps.MPSNDArray.from_numpy(CPU, np.zeros((2, 2), np.int8), v),
    "MPSVector.from_dlpack(copy)": lambda v: mps.MPSVector.from_dlpack(CPU, torch.zeros(4), v),
    "MPSVector.from_numpy(copy)": lambda v: mps.MPSVector.from_numpy(CPU, np.zeros(4, np.int8), v),
    "MTLBuffer.from_dlpack(copy)": lambda v: mps.MTLBuffer.from_dlpack(CPU, torch.zeros(4), v),
    "MTLBuffer.from_numpy(copy)": lambda v: mps.MTLBuffer.from_numpy(CPU, np.zeros(4), v),
    "MTLBuffer.__array__(copy)": lambda v: CPU.new_buffer(length=4).__array__(None, v),
    "MPSVector.__array__(copy)": lambda v: mps.MPSVector.from_numpy(CPU, np.zeros(4, np.int8)).__array__(None, v),
    "MPSKeyedArchiver.archived_data(requiring_secure_coding)": lambda v: mps.MPSKeyedArchiver.archived_data(
        mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_SAME), v
    ),
    "MPSNNAdditionGradientNode(is_secondary_source_filter)": lambda v: mps.MPSNNAdditionGradientNode(
        [_node()], _added(), is_secondary_source_filter=v
    ),
    "MPSNNArithmeticGradientNode(is_secondary_source_filter)": lambda v: mps.MPSNNAdditionGradientNode(
        [_node()], _added(), None, v
    ),
    "MPSNNSubtractionGradientNode(is_secondary_source_filter)": lambda v: mps.MPSNNSubtractionGradientNode(
        [_node()], mps.MPSNNSubtractionNode(_node(), _node()), is_secondary_source_filter=v
    ),
    "MPSNNMultiplicationGradientNode(is_secondary_source_filter)": lambda v: mps.MPSNNMultiplicationGradientNode(
        [_node()], mps.MPSNNMultiplicationNode(_node(), _node()), is_secondary_source_filter=v
    ),
    "MPSNNForwardLoss.encode(destination_state_is_temporary)": _encode(_forward_loss(), _image(), _image()),
    "MPSNNForwardLoss.encode_batch(destination_state_is_temporary)": _encode(
        _forward_loss(), [_image()], [_image()], batch=True
    ),
    "MPSNNGraph.trace(fused)": lambda v: _graph().trace([_image()], fused=v),
    "MPSNNGraph(result_image_is_needed)": lambda v: _graph(result_image_is_needed=v),
    "MPSNNGraph(results_are_needed)": lambda v: mps.MPSNNGraph(
        CPU, result_images=[mps.MPSCNNNeuronReLUNode(_node()).result_image], results_are_needed=[v]
    ),
    "MPSNNOptimizerDescriptor(apply_gradient_clipping)": lambda v: mps.MPSNNOptimizerDescriptor(
        apply_gradient_clipping=v
    ),
    "MPSNNOptimizerStochasticGradientDescent(use_nesterov_momentum)": lambda v: (
        mps.MPSNNOptimizerStochasticGradientDescent(CPU, 0.1, use_nesterov_momentum=v)
    ),
    "MPSNNOptimizerStochasticGradientDescent(use_nestrov_momentum)": lambda v: (
        mps.MPSNNOptimizerStochasticGradientDescent(CPU, 0.1, use_nestrov_momentum=v)
    ),
    "MPSNNReduceFeatureChannelsAndWeightsSum(do_weighted_sum_by_non_zero_weights)": lambda v: (
        mps.MPSNNReduceFeatureChannelsAndWeightsSum(CPU, v)
    ),
    "MPSNNReshape.encode(destination_state_is_temporary)": lambda v: mps.MPSNNReshape(CPU).encode(
        _buffer(),
        _image(),
        destination_state_is_temporary=v,
        reshaped_width=4,
        reshaped_height=1,
        reshaped_feature_channels=4,
    ),
    "MPSNNReshape.encode_batch(destination_state_is_temporary)": lambda v: mps.MPSNNReshape(CPU).encode_batch(
        _buffer(),
        [_image()],
        destination_state_is_temporary=v,
        reshaped_width=4,
        reshaped_height=1,
        reshaped_feature_channels=4,
    ),
    "MPSState.resource_at_index(allocate_memory)": lambda v: _state().resource_at_index(0, v),
    "TrainableBatchNormalizationDataSource(amsgrad)": lambda v: mps.TrainableBatchNormalizationDataSource(
        2, optimizer=_adam, amsgrad=v
    ),
    "TrainableBatchNormalizationDataSource(trains_gamma)": lambda v: mps.TrainableBatchNormalizationDataSource(
        2, optimizer=_adam, trains_gamma=v
    ),
    "TrainableConvolutionDataSource(amsgrad)": lambda v: mps.TrainableConvolutionDataSource(
        mps.MPSCNNConvolutionDescriptor(1, 1, 1, 1), [1.0], optimizer=_adam, amsgrad=v
    ),
    "TrainableGroupNormalizationDataSource(amsgrad)": lambda v: mps.TrainableGroupNormalizationDataSource(
        2, 1, optimizer=_adam, amsgrad=v
    ),
    "TrainableInstanceNormalizationDataSource(amsgrad)": lambda v: mps.TrainableInstanceNormalizationDataSource(
        2, optimizer=_adam, amsgrad=v
    ),
    "explain_padding(backwards)": lambda v: mps.explain_padding(4, kernel=2, policy="same", backwards=v),
}
ELSEWHERE = {
    "load_textures(generate_mipmaps)": "goes the way of load_texture",
    "load_textures(premultiply)": "goes the way of load_texture",
    "load_textures(srgb)": "goes the way of load_texture",
    "MPSCNNConvolutionTranspose.encode(destination_state_is_temporary)": "goes the way of the others",
    "MPSCNNConvolutionTranspose.encode_batch(destination_state_is_temporary)": "goes the way of the others",
    "MPSImage.__array__(copy)": "NumPy passes it",
    "MPSImageBatch.__array__(copy)": "NumPy passes it",
    "MTLTexture.__array__(copy)": "NumPy passes it",
    "MPSImageBatch.from_tensor(copy)": "goes the way of MPSImage.from_tensor",
    "MPSCNNBinaryKernel.plan(is_batch)": "for those who schedule kernels",
    "MPSCNNKernel.plan(is_batch)": "for those who schedule kernels",
    "MPSCNNMultiaryKernel.plan(is_batch)": "for those who schedule kernels",
    "MPSUnaryImageKernel.plan(is_batch)": "for those who schedule kernels",
    "MPSNNGraph.program_for(allow_fusion)": "for those who look inside",
    "MPSNNLossGradientNode(is_labels_gradient_filter)": "told from the other arguments by its type",
    "MTLCommandBuffer(retained_references)": "made by a queue",
}
"""Flags that are not tried, and why."""
OPTIONAL = (
    "(count_include_pad)",
    "(copy)",
    "nesterov_momentum)",
    "nestrov_momentum)",
    "(destination_state_is_temporary)",
)


def _public_flags() -> set[str]:
    """Every argument of a public callable that is declared as a flag, but inherited ones."""
    found: set[str] = set()
    for name, thing in ((name, getattr(mps, name)) for name in mps.__all__):
        if inspect.ismodule(thing) or not callable(thing):
            continue
        if not inspect.isclass(thing):
            found |= {f"{name}({flag})" for flag in _flags_of(thing)}
            continue
        if issubclass(thing, Exception):
            continue
        if "__init__" in vars(thing):
            found |= {f"{name}({flag})" for flag in _flags_of(thing.__init__)}
        here = [key for key, value in vars(thing).items() if not isinstance(value, OtherSpelling)]
        methods = {key: getattr(thing, key) for key in here if key[0] != "_" or key == "__array__"}
        methods = {key: method for key, method in methods.items() if not inspect.isclass(method)}
        found |= {f"{name}.{key}({flag})" for key, method in methods.items() for flag in _flags_of(method)}
    return found


def _flags_of(function: Any) -> set[str]:
    if not callable(function):
        return set()
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {each.name for each in parameters if each.annotation in ("bool", "bool | None")}


def test_every_flag_is_tried() -> None:
    inherited = {f"MPSCNN{kind}Kernel" for kind in ("", "Binary", "Multiary")}
    found = {each for each in _public_flags() if "fills_states" not in each}
    missing = {each for each in found - set(FLAGS) - set(ELSEWHERE) if each.split(".")[0] not in inherited}
    assert not missing


@in_one_test
@pytest.mark.parametrize("name", FLAGS)
def test_text_and_numbers_are_no_flags(name: str) -> None:
    wrong = [*NOT_FLAGS, *([] if name.endswith(OPTIONAL) else [None])]
    for value in wrong:
        with pytest.raises(mps.MPSTypeError, match="must be (None, )?True or False"):
            FLAGS[name](value)
    refuses_no = "requiring_secure_coding" in name
    for value in YES + ([] if refuses_no else NO):
        FLAGS[name](value)


# --- attributes -------------------------------------------------------------------------------------------------------

THINGS: dict[str, Callable[[], Any]] = {
    "MPSCNNLossDescriptor": lambda: mps.MPSCNNLossDescriptor(MSE),
    "MPSCNNYOLOLossDescriptor": lambda: mps.MPSCNNYOLOLossDescriptor(MSE, MSE, MSE, MSE, SUM, [1.0, 1.0]),
    "MPSNNGraph": _graph,
    "MPSNNImageNode": mps.MPSNNImageNode,
    "MPSNNStateNode": lambda: mps.MPSCNNNeuronReLUNode(_node()).result_state,
    "MPSNNOptimizer": lambda: _adam(CPU),
    "MPSNNOptimizerDescriptor": mps.MPSNNOptimizerDescriptor,
    "MPSNNNeuronDescriptor": mps.MPSNNNeuronDescriptor,
    "MPSNNBinaryArithmeticNode": _added,
    "MPSNNArithmeticGradientNode": lambda: _added().gradient_filters(_node())[0],
    "MPSCNNNormalizationNode": lambda: mps.MPSCNNSpatialNormalizationNode(_node(), 3),
    "MPSNNGridSample": lambda: mps.MPSNNGridSample(CPU),
    "MPSNNLossGradient": lambda: mps.MPSNNLossGradient(CPU, mps.MPSCNNLossDescriptor(MSE, SUM)),
    "MPSCNNConvolutionGradient": lambda: mps.MPSCNNConvolutionGradient(CPU, weights=_source()),
    "MPSCNNConvolution": lambda: mps.MPSCNNConvolution(CPU, weights=_source()),
    "MPSNNPadNode": lambda: mps.MPSNNPadNode(
        _node(), mps.MPSImageCoordinate(0, 0, 0), mps.MPSImageCoordinate(0, 0, 0), mps.MPSImageEdgeMode.ZERO
    ),
    "MPSMatrixRandomDistributionDescriptor": lambda: mps.MPSMatrixRandomDistributionDescriptor(0.0, 1.0),
}


def _settable(kind: str) -> list[tuple[str, str, str]]:
    """The flags and numbers of a thing that can be set."""
    thing = THINGS[kind]()
    found: list[tuple[str, str, str]] = []
    for base in type(thing).__mro__:
        for name, declared in getattr(base, "__annotations__", {}).items():
            is_public = name[0] != "_" and base.__module__.startswith("openmps")
            if is_public and declared in ("bool", "bool | None", "float"):
                found.append((kind, name, declared))
    return sorted(set(found))


ATTRIBUTES = [each for kind in THINGS for each in _settable(kind)]


@in_one_test
@pytest.mark.parametrize(("kind", "name", "declared"), ATTRIBUTES, ids=lambda value: str(value))
def test_attributes_are_checked_where_they_are_set(kind: str, name: str, declared: str) -> None:
    thing = THINGS[kind]()
    before = getattr(thing, name)
    if declared == "float":
        for value in ("1.0", "", None, True, 1e300, 10**400, math.nan, [1.0, 2.0]):
            with pytest.raises(mps.MPSError, match=rf"{type(thing).__name__}: {name} must be a number"):
                setattr(thing, name, value)
        setattr(thing, name, np.float64(0.25))
        assert type(getattr(thing, name)) is float
        return
    wrong = [*NOT_FLAGS, *([] if "None" in declared else [None])]
    for value in wrong:
        with pytest.raises(mps.MPSTypeError, match=rf"{type(thing).__name__}.*: {name} must be .*True or False"):
            setattr(thing, name, value)
        assert getattr(thing, name) is before
    for value in YES:
        setattr(thing, name, value)
        assert getattr(thing, name) is True


def test_the_table_of_things_has_every_class_with_a_flag() -> None:
    kinds: dict[str, type] = {name: kind for name, kind in vars(mps).items() if inspect.isclass(kind)}
    tried = {base for kind in THINGS.values() for base in type(kind()).__mro__}
    declares = {
        name
        for name, kind in kinds.items()
        for attribute, declared in inspect.get_annotations(kind).items()
        if declared in ("bool", "bool | None") and attribute[0] != "_" and kind not in tried
    }
    frozen = {"ExplicitPadding", "MPSImageHistogramInfo"}
    assert declares <= frozen


# --- what else is passed in the wrong place, or is another number -----------------------------------------------------


def test_options_that_are_none() -> None:
    kernel = mps.MPSCNNNeuronReLU(CPU, 0.0)
    for value in (-1, 2**40, "VERBOSE", None, 1.0, True):
        with pytest.raises(mps.MPSArgumentError, match="MPSCNNNeuronReLU: options must combine .* of MPSKernelOptions"):
            kernel.options = value
    kernel.options = int(mps.MPSKernelOptions.ALLOW_REDUCED_PRECISION)  # type: ignore[assignment]
    assert kernel.options is mps.MPSKernelOptions.ALLOW_REDUCED_PRECISION


def test_results_that_are_needed_are_listed() -> None:
    image = mps.MPSCNNNeuronReLUNode(_node()).result_image
    for value in (5, True, "yes"):
        with pytest.raises(mps.MPSTypeError, match="results_are_needed must be a sequence of flags"):
            mps.MPSNNGraph(CPU, result_images=[image], results_are_needed=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["update", "kernel_weights_data_type"])
def test_an_optional_method_that_is_none(name: str) -> None:
    source = _source()
    setattr(source, name, 5)
    node = mps.MPSCNNConvolutionNode(_node(), source)
    gradient = node.gradient_filter(_node())
    with pytest.raises(mps.MPSTypeError, match=f"data source {name} must be a method, got 5"):
        mps.MPSNNGraph(CPU, gradient.result_image)


@pytest.mark.parametrize("answer", [None, False, 0, "yes", 5])
def test_what_load_returns_is_shown(answer: Any) -> None:
    source = _source()
    source.load = lambda: answer  # type: ignore[method-assign]
    with pytest.raises(
        mps.MPSError, match=rf"load\(\) must (return|be) .*got {answer!r}" if answer is not None else "got None"
    ):
        mps.MPSCNNConvolution(CPU, weights=source)


def test_swapped_arguments_name_the_one_in_the_wrong_place(tmp_path: Any) -> None:
    kernel, image, buffer = mps.MPSCNNNeuronReLU(CPU, 0.0), _image(), _buffer()
    graph = _graph()
    swapped: dict[str, Callable[[], Any]] = {
        "encode": lambda: kernel.encode(image, buffer),  # type: ignore[arg-type]
        "encode_batch": lambda: kernel.encode_batch([image], buffer),  # type: ignore[arg-type]
        "encode of a graph": lambda: graph.encode([image], buffer),  # type: ignore[arg-type]
        "encode_batch of a graph": lambda: graph.encode_batch([[image]], buffer),  # type: ignore[arg-type]
    }
    for call in swapped.values():
        with pytest.raises(mps.MPSTypeError, match="command_buffer must be a command buffer, got (list|MPSImage)"):
            call()
    with pytest.raises(mps.MPSTypeError, match="MPSCNNLossLabels: device must be an MTLDevice, got ndarray"):
        mps.MPSCNNLossLabels.batch(np.zeros((2, 3)), CPU)  # type: ignore[arg-type]
    with pytest.raises(mps.MPSTypeError, match="path must be the path of the file: the object comes first"):
        mps.MPSKeyedArchiver.archive(tmp_path / "kernel", kernel)  # type: ignore[arg-type]
    data = mps.MPSKeyedArchiver.archived_data(kernel)
    with pytest.raises(mps.MPSTypeError, match="device must be an MTLDevice, got bytes"):
        mps.MPSKeyedUnarchiver.unarchived_object_of_class(mps.MPSCNNNeuronReLU, CPU, data)  # type: ignore[arg-type]


def test_a_learning_rate_that_is_no_number() -> None:
    source = mps.TrainableConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(1, 1, 1, 1), [1.0], optimizer=_adam)
    for value in (math.nan, "fast", 1e300, None):
        with pytest.raises(mps.MPSError, match="learning_rate must be a number"):
            source.set_learning_rate(value)  # type: ignore[arg-type]
    with pytest.raises(mps.MPSTypeError, match="optimizer must be a function of a device"):
        mps.TrainableConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(1, 1, 1, 1), [1.0], optimizer=_adam(CPU))


def test_slopes_alone_are_those_of_prelu() -> None:
    made = mps.MPSNNNeuronDescriptor(data=[1.0, 2.0])
    assert made.neuron_type is mps.MPSCNNNeuronType.PRELU
    assert mps.MPSNNNeuronDescriptor().neuron_type is mps.MPSCNNNeuronType.NONE


def test_slopes_for_fewer_channels_than_there_are() -> None:
    slopes = np.array([1.0, 2.0, 3.0], np.float32)
    image = mps.MPSImage.from_numpy(CPU, np.zeros((1, 1, 9), np.float32))
    for data in (slopes, memoryview(slopes), memoryview(slopes.tobytes()), slopes.tobytes(), slopes.tolist()):
        with pytest.raises(mps.MPSArgumentError, match=r"must hold one number a channel, 9, got 3 number"):
            mps.MPSCNNNeuronPReLU(CPU, data).encode(_buffer(), image)  # type: ignore[arg-type]
    for count in (0, 4, -1, 2.0, True):
        with pytest.raises(mps.MPSArgumentError, match="count must be an integer of 1 to 3, as there are numbers"):
            mps.MPSCNNNeuronPReLU(CPU, slopes, count)  # type: ignore[arg-type]
    kernel = mps.MPSCNNNeuronPReLU(CPU, slopes.tobytes(), 2)  # type: ignore[arg-type]
    np.testing.assert_array_equal(kernel.data, slopes[:2])


# --- images that are not there ----------------------------------------------------------------------------------------


def _several(images: int) -> mps.MPSImage:
    descriptor = mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 3, 3, 4, images)
    return mps.MPSImage(CPU, descriptor)


def _region(first: int, depth: int) -> mps.MTLRegion:
    everything = 2**64 - 1
    return mps.MTLRegion(mps.MTLOrigin(0, 0, first), mps.MTLSize(everything, everything, depth))


@pytest.mark.parametrize(
    ("sources", "destinations", "z", "first", "depth", "message"),
    [
        (3, 3, 0, 0, 4, r"at most 3, the images of destination_image from 0 on, got 4"),
        (3, 3, 0, 2, 2, r"at most 1, the images of destination_image from 2 on, got 2"),
        (3, 5, 0, 0, 4, r"at most 3, the images of source_image from 0 on, got 4"),
        (3, 5, 1, 0, 3, r"at most 2, the images of source_image from 1 on, got 3"),
    ],
)
def test_a_clip_rectangle_that_asks_for_images_that_are_not_there(
    sources: int, destinations: int, z: int, first: int, depth: int, message: str
) -> None:
    kernel = mps.MPSCNNNeuronReLU(CPU, 0.0)
    kernel.offset, kernel.clip_rect = mps.MPSOffset(0, 0, z), _region(first, depth)
    with pytest.raises(
        mps.MPSArgumentError, match=rf"MPSCNNNeuronReLU: clip_rect.size.depth must be {message}\. Leave"
    ):
        kernel.encode(_buffer(), _several(sources), _several(destinations))


@pytest.mark.parametrize(("z", "first"), [(3, 0), (0, 3), (7, 0)])
def test_a_first_image_that_is_not_there(z: int, first: int) -> None:
    kernel = mps.MPSCNNNeuronReLU(CPU, 0.0)
    kernel.offset, kernel.clip_rect = mps.MPSOffset(0, 0, z), _region(first, 2**64 - 1)
    with pytest.raises(
        mps.MPSArgumentError, match=rf"must select at least one image .* got \({z},\), {first} and \d+ for"
    ):
        kernel.encode(_buffer(), _several(3), _several(3))


def test_images_that_are_there() -> None:
    kernel = mps.MPSCNNNeuronReLU(CPU, 0.0)
    for z, first, depth in ((0, 0, 3), (1, 0, 2), (1, 2, 1), (0, 0, 2**64 - 1), (2, 1, 2**64 - 1)):
        kernel.offset, kernel.clip_rect = mps.MPSOffset(0, 0, z), _region(first, depth)
        kernel.encode(_buffer(), _several(3), _several(3))


def test_other_kernels_that_choose_images() -> None:
    added = mps.MPSCNNAdd(CPU)
    added.clip_rect = _region(0, 3)
    with pytest.raises(mps.MPSArgumentError, match="at most 2, the images of secondary_image from 0 on, got 3"):
        added.encode(_buffer(), _several(3), _several(2), _several(3))
    reduced = mps.MPSNNReduceRowMean(CPU)
    reduced.clip_rect_source = _region(1, 3)
    with pytest.raises(
        mps.MPSArgumentError, match="clip_rect_source.size.depth must be at most 2, .* from 1 on, got 3"
    ):
        reduced.encode(_buffer(), _several(3))
    joined = Concatenation(CPU, 2)
    joined.clip_rect = _region(0, 2)
    target = mps.MPSImage(CPU, mps.MPSImageDescriptor(mps.MPSImageFeatureChannelFormat.FLOAT32, 3, 3, 8, 2))
    with pytest.raises(mps.MPSArgumentError, match=r"at most 1, the images of source_images\[1\] from 0 on, got 2"):
        joined.encode(_buffer(), [_several(2), _several(1)], target)


# --- values out of bounds ---------------------------------------------------------------------------------------------

FARTHEST = 2**31 - 1
POOLINGS = ["MPSCNNPoolingMax", "MPSCNNPoolingAverage", "MPSCNNPoolingL2Norm"]


@in_one_test
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("size", [2**31, 2**63, 2**70])
@pytest.mark.parametrize("kind", POOLINGS)
def test_windows_and_strides_beyond_any_image(kind: str, size: int, place: int) -> None:
    sizes = [2, 2, 1, 1]
    sizes[place] = size
    name = ("kernel_width", "kernel_height", "stride_in_pixels_x", "stride_in_pixels_y")[place]
    with pytest.raises(
        mps.MPSArgumentError, match=f"{kind}: {name} must be an integer of at most {FARTHEST}, got {size}"
    ):
        getattr(mps, kind)(CPU, *sizes)


@pytest.mark.parametrize("kind", POOLINGS)
def test_the_largest_windows_and_strides_run(kind: str) -> None:
    image = mps.MPSImage.from_numpy(CPU, np.ones((4, 4, 1), np.float32))
    for sizes in ((FARTHEST, 1), (1, FARTHEST), (1, 1, FARTHEST, FARTHEST)):
        kernel = getattr(mps, kind)(CPU, *sizes)
        kernel.destination_image_allocator = mps.MPSImage.default_allocator()
        kernel.edge_mode = mps.MPSImageEdgeMode.CLAMP
        command_buffer = _buffer()
        result = kernel.encode(command_buffer, image)
        command_buffer.commit()
        command_buffer.wait_until_completed()
        expected = math.sqrt(sizes[0] * sizes[1]) if kind == "MPSCNNPoolingL2Norm" else 1.0
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["kernel_width", "kernel_height", "stride_in_pixels_x", "stride_in_pixels_y", "dilation_rate_x", "groups"]
)
def test_descriptors_beyond_any_image(name: str) -> None:
    descriptor = mps.MPSCNNConvolutionDescriptor(1, 1, 1, 1)
    setattr(descriptor, name, 2**70)
    with pytest.raises(mps.MPSArgumentError, match=f"descriptor.{name} must be at most {FARTHEST}, got {2**70}"):
        mps.MPSCNNConvolution(CPU, descriptor, [1.0])


def test_strides_of_two_sources_beyond_any_image() -> None:
    kernel = mps.MPSCNNAdd(CPU)
    with pytest.raises(mps.MPSArgumentError, match=f"primary_stride_in_pixels_x must be .* at most {FARTHEST}"):
        kernel.primary_stride_in_pixels_x = 2**31


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": math.inf}, "limit must be a finite number of at least 0, got inf"),
        ({"limit": math.nan}, "limit must be a finite number of at least 0, got nan"),
        ({"limit": -1.0}, "limit must be a finite number of at least 0, got -1.0"),
        ({"limit": 1e308}, "limit must be a number of float32"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"seed": 2**128}, "seed must be an integer of at most"),
        ({"bias": math.nan}, "bias must be a number, got nan"),
    ],
)
def test_random_weights_that_cannot_be_drawn(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"limit": 0.5, "bias": 0.0, "seed": 1} | arguments
    with pytest.raises(mps.MPSArgumentError, match=f"ArrayConvolutionDataSource: {message}"):
        mps.ArrayConvolutionDataSource.uniform(mps.MPSCNNConvolutionDescriptor(1, 1, 1, 1), **given)


def test_one_object_where_a_list_belongs() -> None:
    with pytest.raises(mps.MPSTypeError, match=r"images must be a sequence of MPSImage, got MPSImage. Pass \[image\]"):
        mps.MPSImageBatch(_image())  # type: ignore[arg-type]
    with pytest.raises(mps.MPSTypeError, match=r"states must be a sequence of MPSState, got MPSState. Pass \[state\]"):
        mps.MPSStateBatch(_state())
    with pytest.raises(
        mps.MPSTypeError, match=r"result_images must be a sequence of MPSNNImageNode, got .* Pass \[node\]"
    ):
        mps.MPSNNGraph(CPU, result_images=_node())
