"""The detector's loss against loops, finite differences, PyTorch's losses and boxes worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, TOLERANCE, array, assert_close, tensor
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError
from openmps.ops.loss import loss as losses
from openmps.ops.loss import yolo_loss as ops
from openmps.types import MPSCNNLossType, MPSCNNReductionType
from oracles import finite_difference
from oracles import loss as loss_oracle
from oracles import yolo_loss as oracle
from oracles.loss import MEAN, NONE, SUM, SUM_BY_NON_ZERO_WEIGHTS
from oracles.yolo_loss import Parameters
from samples.loss import detector_labels

ANCHORS = ((1.0, 2.0), (1.5, 1.0), (3.0, 2.5))
KINDS = [kind for kind in range(10) if loss_oracle.NAMES[kind] != "cosine_distance"]
SOFTMAX, HUBER, SIGMOID = 2, 6, 3


def _loss_parameters(p: loss_oracle.Parameters) -> losses.LossParameters:
    return losses.LossParameters(
        MPSCNNLossType(p.kind),
        MPSCNNReductionType.SUM,
        p.weight,
        p.label_smoothing,
        p.number_of_classes,
        p.epsilon,
        p.delta,
    )


def _parameters(p: Parameters) -> ops.YOLOLossParameters:
    return ops.YOLOLossParameters(
        *(_loss_parameters(part) for part in (p.xy, p.wh, p.confidence, p.classes)),
        MPSCNNReductionType(p.reduction),
        p.reduce_across_batch,
        p.rescore,
        p.scale_xy,
        p.scale_wh,
        p.scale_no_object,
        p.scale_object,
        p.scale_class,
        p.presence,
        p.absence,
        p.raw_labels,
    )


def _evaluate(
    y: Any,
    t: Any,
    weights: Any,
    p: Parameters,
    device: Any,
    dtype: torch.dtype = torch.float64,
    layout: str = LAYOUTS[0],
) -> tuple[torch.Tensor, torch.Tensor]:
    given = None if weights is None else tensor(weights, dtype, device, layout)
    anchors = tensor(p.anchors, torch.float32, device)
    return ops.yolo_loss(
        tensor(y, dtype, device, layout), tensor(t, dtype, device, layout), given, anchors, _parameters(p)
    )


def _images(p: Parameters, size: tuple[int, int, int], classes: int, rng: np.random.Generator) -> tuple[Any, Any]:
    shape = (size[0], (5 + classes) * len(p.anchors), *size[1:])
    return rng.normal(size=shape), detector_labels(shape, p, rng)


def _check(p: Parameters, y: Any, t: Any, weights: Any, device: Any, dtype=torch.float64, layout=LAYOUTS[0]) -> None:
    found = _evaluate(y, t, weights, p, device, dtype, layout)
    for actual, wanted, what in zip(found, oracle.loss(y, t, weights, p), ("loss", "gradient"), strict=True):
        assert actual.dtype == dtype
        assert_close(actual, wanted, TOLERANCE[dtype], what)


# --- against the loops -----------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("classes", [0, 1, 4])
@pytest.mark.parametrize("boxes", [1, 2, 3])
def test_equals_loops(boxes, classes, layout, dtype, device: torch.device, rng: np.random.Generator) -> None:
    p = Parameters(ANCHORS[:boxes])
    for size in [(2, 3, 2), (1, 1, 1), (0, 2, 2)]:
        y, t = _images(p, size, classes, rng)
        _check(p, y, t, None, device, dtype, layout)


@in_one_test
@pytest.mark.parametrize("across", [False, True], ids=["each image", "across batch"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("reduction", [NONE, SUM, MEAN, SUM_BY_NON_ZERO_WEIGHTS])
def test_reductions_and_weights(reduction, weighted, across, device: torch.device, rng: np.random.Generator) -> None:
    p = Parameters(ANCHORS, reduction=reduction, reduce_across_batch=across)
    y, t = _images(p, (3, 2, 3), 3, rng)
    weights = rng.integers(0, 3, size=y.shape).astype(np.float64)
    weights[1] = 0.0
    _check(p, y, t, weights if weighted else None, device)


@in_one_test
@pytest.mark.parametrize("part", ["xy", "wh", "confidence", "classes"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: loss_oracle.NAMES[kind])
def test_any_loss_for_any_part(kind: int, part: str, device: torch.device, rng: np.random.Generator) -> None:
    """With parameters of its own."""
    own = loss_oracle.Parameters(kind, SUM, 0.75, 0.1, 3, 1e-4, 0.4)
    p = replace(Parameters(ANCHORS), **{part: own})
    y, t = _images(p, (2, 2, 2), 3, rng)
    name = loss_oracle.NAMES[kind]
    if name in ("categorical_cross_entropy", "log"):
        y = rng.uniform(0.1, 0.9, size=y.shape)
    if part == "wh" and name in ("kullback_leibler", "log"):
        pytest.skip("logarithms of sizes are no probabilities")
    _check(p, y, t, None, device)


@pytest.mark.parametrize("rescore", [False, True])
@pytest.mark.parametrize("raw", [False, True], ids=["sizes", "raw"])
def test_scales_limits_and_forms(raw, rescore, device: torch.device, rng: np.random.Generator) -> None:
    p = Parameters(ANCHORS, MSE := loss_oracle.Parameters(1), MSE, rescore=rescore, raw_labels=raw)
    p = replace(p, scale_xy=0.3, scale_wh=0.7, scale_object=1.1, scale_no_object=0.9, scale_class=0.1)
    for presence, absence in ((0.7, 0.3), (0.2, 0.1), (1.0, 1.0), (0.5, 0.0)):
        p = replace(p, presence=presence, absence=absence)
        y, t = _images(p, (2, 3, 3), 2, rng)
        _check(p, y, t, None, device)


# --- finite differences ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rescore", [False, True])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("raw", [False, True], ids=["sizes", "raw"])
def test_gradient(raw, weighted, rescore, device: torch.device, rng: np.random.Generator) -> None:
    """The masks depend on labels alone. The confidence's target is held: nothing flows through it."""
    p = Parameters(ANCHORS, rescore=rescore, raw_labels=raw)
    y, t = _images(p, (1, 2, 3), 3, rng)
    # One weight for all classes of a box: the slope of softmax cross entropy is the framework's.
    weights = np.repeat(rng.uniform(0.5, 2.0, size=(1, 3, 2, 3)), 8, axis=1) if weighted else None
    found = _evaluate(y, t, weights, p, device)[1]
    held = finite_difference.gradient(lambda v: float(oracle.loss(v, t, weights, p, y)[0].sum()), y, 1e-6)
    assert_close(found, held, 1e-7)
    if not rescore:
        free = finite_difference.gradient(lambda v: float(array(_evaluate(v, t, weights, p, device)[0]).sum()), y, 1e-6)
        assert_close(found, free, 1e-7)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM_BY_NON_ZERO_WEIGHTS])
def test_the_reduction_does_not_scale_the_gradient(reduction, device: torch.device, rng: np.random.Generator) -> None:
    p = Parameters(ANCHORS)
    y, t = _images(p, (2, 2, 2), 3, rng)
    expected = _evaluate(y, t, None, p, device)[1]
    for across in (False, True):
        other = replace(p, reduction=reduction, reduce_across_batch=across)
        assert torch.equal(_evaluate(y, t, None, other, device)[1], expected)


# --- by hand ---------------------------------------------------------------------------------------------------------


def _one_cell(rows: list[list[float]]) -> np.ndarray:
    return np.array(rows).reshape(1, -1, 1, 1)


LOGIT = math.log(0.25 / 0.75)


def test_a_box_by_hand(device: torch.device) -> None:
    """One box of 2 x 2 around (.25, .5), predicted 2 x 2 around (.5, .5): they share 1.75 x 2 of 4.5."""
    p = Parameters(((2.0, 2.0),))
    y = _one_cell([[0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]])
    t = _one_cell([[0.25, 0.5, 2.0, 2.0, 1.0, 0.0, 1.0]])
    share = 3.5 / 4.5
    size = math.log(1 + 1e-5)
    values, gradient = _evaluate(y, t, None, replace(p, reduction=NONE), device)
    expected = [10 * 0.0625, 0, 5 * size**2, 5 * size**2, 100 * math.log(2), 0, 2 * math.log(2)]
    assert_close(values.ravel(), expected, 1e-12)
    slopes = [10 * 2 * 0.25 * 0.25, 0, -10 * size, -10 * size, 100 * (0.5 - share), 2 * 0.5, 2 * -0.5]
    assert_close(gradient.ravel(), slopes, 1e-12)
    plain = _evaluate(y, t, None, replace(p, rescore=False), device)[1]
    assert_close(plain.ravel()[4], 100 * (0.5 - 1.0), 1e-12)
    exact = _evaluate(np.where(np.arange(7).reshape(1, 7, 1, 1) == 0, LOGIT, y), t, None, p, device)[1]
    assert_close(exact.ravel()[[0, 4]], [0.0, 100 * (0.5 - 1.0)], 1e-12)


def test_who_is_responsible(device: torch.device) -> None:
    """The box that fits best, and every other that fits better than the limit; none for those that fit badly."""
    p = Parameters(((2.0, 2.0), (2.0, 1.8), (2.0, 1.0), (0.5, 0.5)), rescore=False, reduction=NONE)
    t = _one_cell([[0.5, 0.5, 2.0, 2.0, 1.0]] * 4)
    values, _ = _evaluate(_one_cell([[0.0, 0.0, 0.0, 0.0, 0.0]] * 4), t, None, p, device)
    once = math.log(2)
    # IOU 1 and .9: objects; .5: neither; .0625: none.
    assert_close(values.ravel()[4::5], [100 * once, 100 * once, 0.0, 5 * once], 1e-12)
    poor = _one_cell([[0.5, 0.5, 30.0, 30.0, 1.0]] * 4)
    values, _ = _evaluate(_one_cell([[0.0] * 5] * 4), poor, None, p, device)
    assert_close(values.ravel()[4::5], [100 * once, 5 * once, 5 * once, 5 * once], 1e-12)


def test_the_first_of_equal_boxes(device: torch.device) -> None:
    p = Parameters(((1.0, 2.0), (2.0, 1.0), (1.0, 2.0)), rescore=False, reduction=NONE, presence=0.99)
    t = _one_cell([[0.5, 0.5, 2.0, 2.0, 1.0]] * 3)
    values, _ = _evaluate(_one_cell([[0.0] * 5] * 3), t, None, p, device)
    assert_close(values.ravel()[4::5], [100 * math.log(2), 0.0, 0.0], 1e-12)


def test_empty_cells_have_a_loss_of_confidence_only(device: torch.device, rng: np.random.Generator) -> None:
    """Whatever stands in channels that do not count, logarithms of nothing and infinities too."""
    p = Parameters(ANCHORS, wh=loss_oracle.Parameters(1), reduction=NONE)
    y = rng.normal(size=(1, 24, 2, 2))
    y[:, 2::8] = 1e30
    y[:, 3::8] = -1e30
    values, gradient = _evaluate(y, np.zeros(y.shape), None, p, device, torch.float32)
    others = [channel for channel in range(24) if channel % 8 != 4]
    assert not values[:, others].any()
    assert not gradient[:, others].any()
    assert_close(values[:, 4::8], 5 * np.log1p(np.exp(y[:, 4::8])), 1e-5)


def test_equals_pytorch(device: torch.device, rng: np.random.Generator) -> None:
    """Every cell an object of its only box: four of PyTorch's losses, and its autograd through the sigmoid."""
    F = torch.nn.functional
    p = Parameters(((1.5, 2.5),), wh=loss_oracle.Parameters(HUBER, delta=0.5), rescore=False)
    y, t = _images(p, (2, 3, 2), 4, rng)
    t[:, 0:2], t[:, 4], t[:, 5:] = 0.3, 1.0, np.eye(4)[rng.integers(0, 4, size=(2, 3, 2))].transpose(0, 3, 1, 2)
    t[:, 2:4] = rng.uniform(0.5, 3.0, size=(2, 2, 3, 2))
    leaf, labels = tensor(y, device=device).requires_grad_(), tensor(t, device=device)
    raw = torch.log(labels[:, 2:4] / tensor([1.5, 2.5], device=device)[None, :, None, None] + 1e-5)
    total = (
        10 * F.mse_loss(torch.sigmoid(leaf[:, :2]), labels[:, :2], reduction="sum")
        + 10 * F.huber_loss(leaf[:, 2:4], raw, reduction="sum", delta=0.5)
        + 100 * F.binary_cross_entropy_with_logits(leaf[:, 4], labels[:, 4], reduction="sum")
        + 2 * F.cross_entropy(leaf[:, 5:], labels[:, 5:], reduction="sum")
    )
    values, gradient = _evaluate(y, t, None, p, device)
    assert_close(values.sum(), total, 1e-12)
    assert_close(gradient, torch.autograd.grad(total, leaf)[0], 1e-12)


# --- memory and refusals ---------------------------------------------------------------------------------------------


def test_channels_last_stays_and_sources_are_left_alone(device: torch.device, rng: np.random.Generator) -> None:
    p = Parameters(ANCHORS, reduction=NONE)
    y, t = (tensor(v, torch.float32, device, "channels_last") for v in _images(p, (2, 3, 4), 3, rng))
    weights = torch.ones_like(y)
    kept = [v.clone() for v in (y, t, weights)]
    found = ops.yolo_loss(y, t, weights, torch.tensor(ANCHORS, device=device), _parameters(p))
    assert all(part.is_contiguous(memory_format=torch.channels_last) for part in found)
    assert all(torch.equal(v, before) for v, before in zip((y, t, weights), kept, strict=True))


def test_a_loss_of_whole_images_is_refused() -> None:
    cosine = losses.LossParameters(MPSCNNLossType.COSINE_DISTANCE, MPSCNNReductionType.SUM)
    other = losses.LossParameters(MPSCNNLossType.HUBER, MPSCNNReductionType.SUM)
    with pytest.raises(MPSArgumentError, match="loss types must be losses of single elements.*COSINE_DISTANCE"):
        ops.YOLOLossParameters(other, other, cosine, other, MPSCNNReductionType.SUM)
