"""Cross-entropy and negative log likelihood, on one-hot labels and, where there are weights, one weight an element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from encoding import Bench, finish, keep_results, numbers, run
from node_cases.case import Array, Case, numeric
from openmps.kernels.loss import MPSCNNLossDescriptor, MPSNNForwardLoss
from openmps.kernels.softmax import MPSCNNLogSoftMax
from openmps.types import MPSCNNLossType, MPSCNNReductionType


def softmax_cross_entropy(case: Case, bench: Bench) -> list[Array]:
    found = [_loss(case, bench, MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY)]
    if len(case.outputs) > 1:
        pixels = _pixels(case.tensor(0))
        found.append(run(bench, MPSCNNLogSoftMax(bench.device), [bench.image(pixels)]).reshape(case.outputs[1].shape))
    return found


def negative_log_likelihood(case: Case, bench: Bench) -> list[Array]:
    """Kullback-Leibler divergence from a one-hot label t to log-probabilities y: t (log t - y) = -y there."""
    return [_loss(case, bench, MPSCNNLossType.KULLBACK_LEIBLER_DIVERGENCE)]


def _pixels(value: Array) -> Array:
    """``[N, C, ...]`` as ``[N, C, 1, W]``."""
    return numeric(value).reshape(*value.shape[:2], 1, math.prod(value.shape[2:]))


def _loss(case: Case, bench: Bench, kind: MPSCNNLossType) -> Array:
    """Ignored labels have no class, so no loss. A weighted mean is a sum with weights that add up to 1."""
    y, target, reduction = _pixels(case.tensor(0)), case.tensor(1), case.get("reduction", "mean")
    classes = y.shape[1]
    labels = target.reshape(y.shape[0], 1, y.shape[3])
    ignored = labels == case.get("ignore_index", np.iinfo(np.int64).min)
    one_hot = (np.arange(classes)[None, :, None] == labels) & ~ignored
    given = case.input(2)
    weights = one_hot * (np.ones(classes) if given is None else given.astype(float))[None, :, None]
    if reduction == "mean":
        weights = weights / weights.sum()
    found = _run(case, bench, kind, y, one_hot[:, :, None].astype(float), weights[:, :, None], reduction == "none")
    return np.asarray(found, np.float32).reshape(case.outputs[0].shape)


def _run(case: Case, bench: Bench, kind: MPSCNNLossType, y: Array, labels: Array, weights: Array, is_none: bool) -> Any:
    descriptor = MPSCNNLossDescriptor(kind, MPSCNNReductionType.NONE if is_none else MPSCNNReductionType.SUM)
    descriptor.reduce_across_batch = not is_none
    kernel = MPSNNForwardLoss(bench.device, descriptor)
    keep_results(kernel)
    buffer = bench.command_buffer()
    losses = kernel.encode_batch(buffer, bench.batch(y), labels=bench.batch(labels), weights=bench.batch(weights))
    finish(buffer)
    return numbers(losses).sum(axis=1) if is_none else numbers(losses)[0].ravel()[0]
