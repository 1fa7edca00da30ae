"""What the kernels without samples compute from fixed numbers: a use of each, for properties of all kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import matrices
from encoding import Bench, finish, keep_results, numbers
from openmps.core.kernel.base import MPSKernel
from openmps.core.vector import MPSMatrix, MPSMatrixDescriptor, MPSVector, MPSVectorDescriptor
from openmps.kernels.batch_normalization import (
    MPSCNNBatchNormalization,
    MPSCNNBatchNormalizationGradient,
    MPSCNNBatchNormalizationStatistics,
    MPSCNNBatchNormalizationStatisticsGradient,
)
from openmps.kernels.image_copy import MPSImageCopyToMatrix, MPSMatrixCopyToImage
from openmps.kernels.image_filters import (
    MPSImageGaussianPyramid,
    MPSImageGuidedFilter,
    MPSImageHistogram,
    MPSImageHistogramEqualization,
    MPSImageHistogramSpecification,
    MPSImageNormalizedHistogram,
)
from openmps.kernels.image_scale import MPSImageBilinearScale, MPSImageLanczosScale
from openmps.kernels.matrix import MPSMatrixCopy, MPSMatrixCopyDescriptor, MPSMatrixSum
from openmps.kernels.optimizers import (
    MPSNNOptimizerAdam,
    MPSNNOptimizerRMSProp,
    MPSNNOptimizerStochasticGradientDescent,
)
from openmps.kernels.random import MPSMatrixRandomMTGP32, MPSMatrixRandomPhilox
from openmps.kernels.recurrent.image_inference import MPSRNNImageInferenceLayer
from openmps.kernels.recurrent.matrix_inference import MPSRNNMatrixInferenceLayer
from openmps.kernels.recurrent.matrix_training import MPSRNNMatrixTrainingLayer
from openmps.kernels.selection import AlternatingFlip, ImageSelection
from openmps.metal.texture_descriptor import MTLTextureDescriptor
from openmps.types import MPSDataType, MTLPixelFormat
from recurrent_layers import empty, run
from recurrent_layers import matrices as listed
from samples.batch_normalization import ChannelSource, rows
from samples.image_filters import FILTERS, PYRAMIDS
from samples.matrix import FIRST_OF_KIND

Array = np.ndarray
SHAPE = (2, 5, 4, 3)
ACCUMULATORS: dict[type[MPSKernel], tuple[str, ...]] = {
    MPSNNOptimizerStochasticGradientDescent: ("input_momentum",),
    MPSNNOptimizerRMSProp: ("input_sum_of_squares",),
    MPSNNOptimizerAdam: ("input_momentum", "input_velocity"),
}
_STAGES = {
    "statistics": MPSCNNBatchNormalizationStatistics,
    "sums": MPSCNNBatchNormalizationStatisticsGradient,
    "backward": MPSCNNBatchNormalizationGradient,
}


def drawn(what: str, shape: tuple[int, ...]) -> Array:
    """Numbers that are the same in every call."""
    seed = np.frombuffer(what.encode(), np.uint8)
    return np.random.default_rng(list(seed)).normal(size=shape).astype(np.float32).astype(np.float64)


def vector(bench: Bench, values: Array) -> MPSVector:
    return MPSVector(bench.device.new_buffer(data=values.astype(np.float32)), MPSVectorDescriptor(values.size))


def matrix(bench: Bench, values: Array) -> MPSMatrix:
    descriptor = MPSMatrixDescriptor(*values.shape, data_type=MPSDataType.FLOAT32)
    return MPSMatrix(bench.device.new_buffer(data=values.astype(np.float32)), descriptor)


def updated(bench: Bench, optimizer: Any) -> list[Array]:
    """Values and accumulators after two steps."""
    values = vector(bench, drawn("values", (7,)))
    kept = {name: vector(bench, np.zeros(7)) for name in ACCUMULATORS[type(optimizer)]}
    for step in range(2):
        command_buffer = bench.command_buffer()
        optimizer.encode(
            command_buffer,
            input_gradient_vector=vector(bench, drawn(f"gradient {step}", (7,))),
            input_values_vector=values,
            result_values_vector=values,
            **{f"{name}_vector": each for name, each in kept.items()},
        )
        finish(command_buffer)
    return [each.numpy() for each in (values, *kept.values())]


def normalized(bench: Bench, stage: Any) -> list[Array]:
    """Results, gradients and parameter gradients of a batch normalization of which ``stage`` is one kernel."""
    stages: dict[str, Any] = {
        name: stage if kind is type(stage) else kind(bench.device) for name, kind in _STAGES.items()
    }
    forward = MPSCNNBatchNormalization(bench.device, ChannelSource(SHAPE[1], 1e-3, **rows(SHAPE[1])))
    for kernel in (forward, stages["backward"]):
        keep_results(kernel)
    images, flow = (bench.batch(drawn(what, SHAPE)) for what in ("images", "flow"))
    state: Any = forward.result_state(images[0])
    command_buffer = bench.command_buffer()
    stages["statistics"].encode_batch(command_buffer, images, state)
    results = forward.encode_batch(command_buffer, images, state)
    stages["sums"].encode_batch(command_buffer, flow, images, state)
    gradients = stages["backward"].encode_batch(command_buffer, flow, images, state)
    finish(command_buffer)
    buffers = (state.mean(), state.variance(), state.gradient_for_gamma(), state.gradient_for_beta())
    return [numbers(results), numbers(gradients), *(each.contents().view(np.float32).copy() for each in buffers)]


def scaled(bench: Bench, kernel: Any) -> list[Array]:
    source, destination = bench.image(drawn("picture", (1, 3, 5, 4))), bench.empty((1, 3, 7, 9))
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, source, destination)
    finish(command_buffer)
    return [numbers(destination)]


def filtered(bench: Bench, kernel: Any) -> list[Array]:
    sample = FILTERS[type(kernel)][0]
    destination = bench.empty((1, *sample.destination), sample.stored_as)
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, *(bench.image(each, sample.stored_as) for each in sample.sources()), destination)
    finish(command_buffer)
    return [numbers(destination)]


def counted(bench: Bench, kernel: Any) -> list[Array]:
    """Bins of a picture, and the extremes where they are asked for."""
    image, found, histogram = bench.image(_picture()), bench.empty((1, 3, 1, 2)), bench.device.new_buffer(length=192)
    command_buffer = bench.command_buffer()
    between = [found] if isinstance(kernel, MPSImageNormalizedHistogram) else []
    kernel.encode(command_buffer, image, *between, histogram, 0)
    finish(command_buffer)
    return [histogram.contents().view(np.uint32).copy(), numbers(found)]


def transformed(bench: Bench, kernel: Any) -> list[Array]:
    """A picture by a table of its own histogram, or of that and another one."""
    image, result, command_buffer = bench.image(_picture()), bench.empty((1, 3, 5, 4)), bench.command_buffer()
    counts = bench.device.new_buffer(data=np.arange(96, dtype=np.uint32) % 7)
    more = [counts, 192] if isinstance(kernel, MPSImageHistogramSpecification) else []
    kernel.encode_transform(command_buffer, image, counts, 0, *more)
    kernel.encode(command_buffer, image, result)
    finish(command_buffer)
    return [numbers(result)]


def guided(bench: Bench, kernel: Any) -> list[Array]:
    """Coefficients of a channel by three, and the picture that they make."""
    guide, found, made = bench.image(_picture()), bench.empty((1, 4, 5, 4)), bench.empty((1, 1, 5, 4))
    command_buffer = bench.command_buffer()
    kernel.encode_regression(command_buffer, bench.image(_picture()[:, 1:2]), guide, None, found)
    kernel.encode_reconstruction(command_buffer, guide, found, made)
    finish(command_buffer)
    return [numbers(found), numbers(made)]


def levelled(bench: Bench, kernel: Any) -> list[Array]:
    """All levels of a texture, or their differences."""
    descriptor = MTLTextureDescriptor.texture_2d_descriptor(MTLPixelFormat.R32_FLOAT, 8, 6, True)
    source, result = (bench.device.new_texture(descriptor) for _ in range(2))
    for level in range(source.mipmap_level_count):
        rows, columns = max(1, 6 >> level), max(1, 8 >> level)
        source.replace_region(None, level, drawn(f"level {level}", (rows, columns, 1)).astype(np.float32))
    command_buffer = bench.command_buffer()
    if isinstance(kernel, MPSImageGaussianPyramid):
        result = kernel.encode(command_buffer, in_place_texture=source)
    else:
        kernel.encode(command_buffer, source, result)
    finish(command_buffer)
    return [result.numpy(level) for level in range(result.mipmap_level_count)]


def _picture() -> Array:
    return np.abs(drawn("picture", (1, 3, 5, 4))) % 1.0


def copied_to_matrix(bench: Bench, kernel: Any) -> list[Array]:
    destination = matrix(bench, np.zeros((2, 60)))
    command_buffer = bench.command_buffer()
    kernel.encode_batch(command_buffer, bench.batch(drawn("images", SHAPE)), destination)
    finish(command_buffer)
    return [destination.numpy()]


def copied_to_image(bench: Bench, kernel: Any) -> list[Array]:
    destination = bench.batch(np.zeros(SHAPE))
    command_buffer = bench.command_buffer()
    kernel.encode_batch(command_buffer, matrix(bench, drawn("matrix", (2, 60))), destination)
    finish(command_buffer)
    return [numbers(destination)]


def drawn_at_random(bench: Bench, kernel: Any) -> list[Array]:
    """The next 100 numbers."""
    destination = MPSVector(device=bench.device, descriptor=MPSVectorDescriptor(100, kernel.destination_data_type))
    command_buffer = bench.command_buffer()
    kernel.encode(command_buffer, destination)
    finish(command_buffer)
    return [destination.numpy()]


def of_matrices(bench: Bench, kernel: Any) -> list[Array]:
    """What a sample's operands become."""
    placed = matrices.Placed(bench, FIRST_OF_KIND[type(kernel)], MPSDataType.FLOAT32, is_placed=False)
    matrices.run(bench, getattr(kernel, placed.sample.encode), *placed.objects)
    return [*placed.results().values()]


def copied_matrices(bench: Bench, kernel: Any) -> list[Array]:
    target = matrix(bench, np.zeros((4, 4)))
    descriptor = MPSMatrixCopyDescriptor(matrix(bench, drawn("matrix", (4, 4))), target)
    matrices.run(bench, kernel.encode, descriptor)
    return [target.numpy()]


def summed(bench: Bench, kernel: Any) -> list[Array]:
    target = matrix(bench, np.zeros((3, 2)))
    matrices.run(bench, kernel.encode, [matrix(bench, drawn(what, (2, 3))) for what in ("one", "two")], target)
    return [target.numpy()]


def _steps(columns: int) -> list[Array]:
    """A sequence whose last row ends early."""
    return [drawn(f"step {step}", (3 - step // 2, columns)) for step in range(4)]


def recurred(bench: Bench, layer: Any) -> list[Array]:
    states: list[Any] = []
    results = run(bench, layer, _steps(layer.input_feature_channels), None, states)
    made = [states[0].get_recurrent_output_matrix(index).numpy() for index in range(layer.number_of_layers)]
    return [*results, *made]


def recurred_over_images(bench: Bench, layer: Any) -> list[Array]:
    states: list[Any] = []
    sources = [bench.image(drawn(f"step {step}", (2, layer.input_feature_channels, 3, 4))) for step in range(3)]
    results = [bench.empty((2, layer.output_feature_channels, 3, 4)) for _ in sources]
    command_buffer = bench.command_buffer()
    layer.encode_sequence(command_buffer, sources, results, None, states)
    finish(command_buffer)
    made = [states[0].get_recurrent_output_image(index) for index in range(layer.number_of_layers)]
    return [numbers(each) for each in (*results, *made)]


def trained_over_a_sequence(bench: Bench, layer: Any) -> list[Array]:
    """Results and gradients; weights are the user's, so they are drawn here."""
    weights, gradients, states = [list[Any]() for _ in range(3)]
    layer.create_weight_matrices(weights)
    layer.create_weight_gradient_matrices(gradients)
    weights = listed(bench, [drawn(f"weights {place}", each.numpy().shape) for place, each in enumerate(weights)])
    sources, flow = _steps(layer.input_feature_channels), _steps(layer.output_feature_channels)
    given, results, found = listed(bench, sources), empty(bench, flow, flow[0].shape[1]), empty(bench, sources, 3)
    command_buffer = bench.command_buffer()
    layer.encode_forward_sequence(command_buffer, given, results, states, weights)
    layer.encode_gradient_sequence(command_buffer, given, listed(bench, flow), found, gradients, states, weights)
    finish(command_buffer)
    return [each.numpy() for each in (*results, *found, *gradients)]


def selected(bench: Bench, selection: ImageSelection) -> list[Array]:
    data, batch = bench.image(drawn("data", (5, 3, 4, 2))), bench.batch(np.zeros((4, 3, 4, 2)))
    command_buffer = bench.command_buffer()
    selection.first = 1
    selection.encode_batch(command_buffer, data, whole_numbers(bench, [9, 4, 0, 4, 2, 9]), batch)
    finish(command_buffer)
    return [numbers(batch)]


def flipped(bench: Bench, flip: AlternatingFlip) -> list[Array]:
    source, batch = bench.batch(drawn("images", (4, 3, 2, 5))), bench.batch(np.zeros((4, 3, 2, 5)))
    command_buffer = bench.command_buffer()
    flip.encode_batch(command_buffer, source, whole_numbers(bench, [7, 0, 300, 70000]), batch)
    finish(command_buffer)
    return [numbers(batch)]


def whole_numbers(bench: Bench, values: Sequence[int]) -> MPSVector:
    return MPSVector.from_numpy(bench.device, np.array(values, np.uint32))


EXERCISES: dict[type[MPSKernel], Callable[[Bench, Any], list[Array]]] = {
    **dict.fromkeys(ACCUMULATORS, updated),
    **dict.fromkeys(_STAGES.values(), normalized),
    **dict.fromkeys((MPSImageBilinearScale, MPSImageLanczosScale), scaled),
    **dict.fromkeys(FILTERS, filtered),
    **dict.fromkeys((MPSImageHistogram, MPSImageNormalizedHistogram), counted),
    MPSImageGuidedFilter: guided,
    **dict.fromkeys(PYRAMIDS, levelled),
    **dict.fromkeys((MPSImageHistogramEqualization, MPSImageHistogramSpecification), transformed),
    MPSImageCopyToMatrix: copied_to_matrix,
    MPSMatrixCopyToImage: copied_to_image,
    **dict.fromkeys((MPSMatrixRandomMTGP32, MPSMatrixRandomPhilox), drawn_at_random),
    **dict.fromkeys(FIRST_OF_KIND, of_matrices),
    MPSMatrixCopy: copied_matrices,
    MPSMatrixSum: summed,
    MPSRNNImageInferenceLayer: recurred_over_images,
    MPSRNNMatrixInferenceLayer: recurred,
    MPSRNNMatrixTrainingLayer: trained_over_a_sequence,
    ImageSelection: selected,
    AlternatingFlip: flipped,
}
"""What each kernel of `catalogue.OTHERS` computes."""
