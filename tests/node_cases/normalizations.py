"""Batch, instance, group and local response normalization nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from encoding import Bench, finish, numbers, run
from node_cases.case import Array, Case, NotExpressible, planar
from openmps.core.vector import MPSVector
from openmps.core.vector_descriptor import MPSVectorDescriptor
from openmps.kernels.batch_normalization import (
    MPSCNNBatchNormalization,
    MPSCNNBatchNormalizationState,
    MPSCNNBatchNormalizationStatistics,
)
from openmps.kernels.group_normalization import MPSCNNGroupNormalization, MPSCNNInstanceNormalization
from openmps.kernels.normalization import MPSCNNCrossChannelNormalization
from openmps.kernels.optimizers import (
    MPSNNOptimizerDescriptor,
    MPSNNOptimizerStochasticGradientDescent,
)
from openmps.types import MPSDataType, MPSNNRegularizationType


class Source:
    """A data source of a normalization, with the numbers of a case."""

    def __init__(self, case: Case, channels: int, groups: int = 1) -> None:
        self._case, self._channels, self._groups = case, channels, groups

    def number_of_feature_channels(self) -> int:
        return self._channels

    def number_of_groups(self) -> int:
        return self._groups

    def gamma(self) -> Array:
        return self._case.tensor(1)

    def beta(self) -> Array:
        return self._case.tensor(2)

    def mean(self) -> Array | None:
        return self._case.input(3)

    def variance(self) -> Array | None:
        return self._case.input(4)

    def epsilon(self) -> float:
        return float(self._case.get("epsilon", 1e-5))

    def load(self) -> bool:
        return True

    def purge(self) -> None: ...

    def label(self) -> str:
        return self._case.name


def batch(case: Case, bench: Bench) -> list[Array]:
    """Inference; or training, whose running statistics are the client's part: an optimizer on their vectors."""
    x = planar(case.tensor(0))
    kernel = MPSCNNBatchNormalization(bench.device, Source(case, x.shape[1]))
    if not case.get("training_mode", 0):
        return [run(bench, kernel, [bench.image(x)]).reshape(case.outputs[0].shape)]
    images, buffer = bench.batch(x), bench.command_buffer()
    state = kernel.result_state(images[0], None, None)
    assert isinstance(state, MPSCNNBatchNormalizationState)
    MPSCNNBatchNormalizationStatistics(bench.device).encode_batch(buffer, images, state)
    result = bench.batch(np.zeros_like(x))
    kernel.encode_batch(buffer, images, batch_normalization_state=state, destination_images=result)
    running = [
        _running(bench, buffer, case, case.tensor(3), state.mean()),
        _running(bench, buffer, case, case.tensor(4), state.variance()),
    ]
    finish(buffer)
    return [numbers(result), *(np.array(values.contents().view(np.float32)) for values in running)]


def _running(bench: Bench, buffer: Any, case: Case, old: Array, found: Any) -> Any:
    """momentum * old + (1 - momentum) * found, by the framework's descent: rate -(1 - momentum), L2 scale -1."""
    descriptor = MPSVectorDescriptor(old.size, MPSDataType.FLOAT32)
    values = bench.device.new_buffer(data=np.ascontiguousarray(old, np.float32))
    options = MPSNNOptimizerDescriptor(
        -(1.0 - float(case.get("momentum", 0.9))),
        1.0,
        regularization_type=MPSNNRegularizationType.L2,
        regularization_scale=-1.0,
    )
    vector = MPSVector(values, descriptor)
    descent = MPSNNOptimizerStochasticGradientDescent(bench.device, optimizer_descriptor=options)
    descent.encode(
        buffer,
        input_gradient_vector=MPSVector(found, descriptor),
        input_values_vector=vector,
        input_momentum_vector=None,
        result_values_vector=vector,
    )
    return values


def instance(case: Case, bench: Bench) -> list[Array]:
    x = planar(case.tensor(0))
    kernel = MPSCNNInstanceNormalization(bench.device, Source(case, x.shape[1]))
    return [run(bench, kernel, [bench.image(x)]).reshape(case.outputs[0].shape)]


def group(case: Case, bench: Bench) -> list[Array]:
    x = planar(case.tensor(0))
    kernel = MPSCNNGroupNormalization(bench.device, Source(case, x.shape[1], int(case.attributes["num_groups"])))
    return [run(bench, kernel, [bench.image(x)]).reshape(case.outputs[0].shape)]


def local_response(case: Case, bench: Bench) -> list[Array]:
    size = int(case.attributes["size"])
    if size % 2 == 0:
        raise NotExpressible("an even window: it leans to the upper channels in ONNX, to the lower ones here")
    kernel = MPSCNNCrossChannelNormalization(bench.device, size)
    kernel.alpha, kernel.beta = float(case.get("alpha", 1e-4)), float(case.get("beta", 0.75))
    kernel.delta = float(case.get("bias", 1.0))
    x = planar(case.tensor(0))
    return [run(bench, kernel, [bench.image(x)]).reshape(case.outputs[0].shape)]
