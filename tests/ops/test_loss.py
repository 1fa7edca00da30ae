"""The ten losses, their gradients and reductions against loops, PyTorch, finite differences and printed numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers import LAYOUTS, TOLERANCE, array, assert_close, assert_digits, tensor
from in_one_test import in_one_test
from openmps.errors import MPSArgumentError
from openmps.ops.loss import loss as ops
from openmps.types import MPSCNNLossType, MPSCNNReductionType
from oracles import finite_difference
from oracles import loss as oracle
from oracles.loss import MEAN, NONE, SUM, SUM_BY_NON_ZERO_WEIGHTS, Parameters

NAMES = oracle.NAMES
COSINE = NAMES.index("cosine_distance")
SOFTMAX = NAMES.index("softmax_cross_entropy")
SIGMOID = NAMES.index("sigmoid_cross_entropy")
REDUCTIONS = [NONE, SUM, MEAN, SUM_BY_NON_ZERO_WEIGHTS]
SHAPES = [(3, 5, 2, 3), (1, 1, 1, 1), (1, 10, 1, 1), (2, 3, 1, 4), (0, 3, 2, 2)]


def parameters(p: Parameters) -> ops.LossParameters:
    return ops.LossParameters(
        kind=MPSCNNLossType(p.kind),
        reduction=MPSCNNReductionType(p.reduction),
        weight=p.weight,
        label_smoothing=p.label_smoothing,
        number_of_classes=p.number_of_classes,
        epsilon=p.epsilon,
        delta=p.delta,
        reduce_across_batch=p.reduce_across_batch,
    )


def sources(kind: int, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and labels inside the loss's domain."""
    name = NAMES[kind]
    if name in ("categorical_cross_entropy", "log"):
        y = rng.uniform(0.05, 0.95, size=shape)
    elif name == "kullback_leibler":
        y = np.log(rng.uniform(0.05, 0.95, size=shape))
    else:
        y = rng.normal(size=shape) * 2
    if name == "hinge":
        return y, rng.integers(0, 2, size=shape).astype(np.float64)
    if name in ("mean_absolute_error", "mean_squared_error", "huber", "cosine_distance"):
        return y, rng.normal(size=shape)
    t = rng.uniform(0.0, 1.0, size=shape)
    if name in ("softmax_cross_entropy", "categorical_cross_entropy", "kullback_leibler"):
        t = t / np.maximum(t.sum(axis=1, keepdims=True), 1e-3)
    if name == "kullback_leibler" and t.size:
        t.flat[0] = 0.0
    return y, t


def settings(kind: int, reduction: int) -> Parameters:
    smoothing = 0.1 if kind in (SOFTMAX, SIGMOID) else 0.0
    return Parameters(kind, reduction, 0.75, smoothing, 5, 1e-4, 0.8)


def check(p: Parameters, y, t, weights, dtype, device, layout="contiguous") -> None:
    found = ops.loss(
        tensor(y, dtype, device, layout),
        tensor(t, dtype, device, layout),
        None if weights is None else tensor(weights, dtype, device, layout),
        parameters(p),
    )
    expected = oracle.loss(y, t, weights, p)
    for actual, wanted, what in zip(found, expected, ("values", "gradient"), strict=True):
        assert actual.dtype == dtype
        assert_close(actual, wanted, TOLERANCE[dtype], f"{what} of {p}")


@in_one_test
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", range(10), ids=NAMES)
def test_equals_loops(
    kind: int,
    reduction: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    rng: np.random.Generator,
) -> None:
    if kind == COSINE:
        reduction = SUM
    y, t = sources(kind, shape, rng)
    layout = LAYOUTS[(kind + reduction) % 3]
    check(settings(kind, reduction), y, t, None, dtype, device, layout)


@in_one_test
@pytest.mark.parametrize("across", [False, True], ids=["each image", "across batch"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", [k for k in range(10) if k != COSINE], ids=[n for n in NAMES if "cosine" not in n])
def test_weights_and_batches(
    kind: int, reduction: int, across: bool, device: torch.device, rng: np.random.Generator
) -> None:
    y, t = sources(kind, (3, 4, 2, 2), rng)
    weights = rng.uniform(0.0, 2.0, size=y.shape) * rng.integers(0, 2, size=y.shape)
    weights[1] = 0.0
    p = replace(settings(kind, reduction), reduce_across_batch=across)
    check(p, y, t, weights, torch.float64, device)
    check(p, y, t, None, torch.float64, device)


def test_cosine_across_batch(device: torch.device, rng: np.random.Generator) -> None:
    y, t = sources(COSINE, (3, 4, 2, 2), rng)
    check(replace(settings(COSINE, SUM), reduce_across_batch=True), y, t, None, torch.float64, device)


@pytest.mark.parametrize("implementation", ["op", "oracle"])
@pytest.mark.parametrize(
    ("smoothing", "loss", "gradient"),
    [(0.0, 0.407606, [0.090031, 0.244728, -0.334759]), (0.1, 0.507606, [0.056697, 0.211395, -0.268092])],
)
def test_printed_numbers(implementation: str, smoothing: float, loss: float, gradient: list[float]) -> None:
    y = np.array([1.0, 2.0, 3.0]).reshape(1, 3, 1, 1)
    t = np.array([0.0, 0.0, 1.0]).reshape(1, 3, 1, 1)
    p = Parameters(SOFTMAX, SUM, label_smoothing=smoothing, number_of_classes=3)
    if implementation == "op":
        values, slope = ops.loss(tensor(y), tensor(t), None, parameters(p))
    else:
        values, slope = oracle.loss(y, t, None, p)
    assert_digits(values, [loss], 6)
    assert_digits(slope, gradient, 6)


@in_one_test
@pytest.mark.parametrize("kind", range(10), ids=NAMES)
def test_gradient_equals_finite_differences(kind: int, device: torch.device, rng: np.random.Generator) -> None:
    y, t = sources(kind, (2, 3, 2, 2), rng)
    p = replace(settings(kind, SUM), number_of_classes=3)

    def total(v: np.ndarray) -> float:
        return float(array(ops.loss(tensor(v, device=device), tensor(t, device=device), None, parameters(p))[0]).sum())

    found = ops.loss(tensor(y, device=device), tensor(t, device=device), None, parameters(p))[1]
    assert_close(found, finite_difference.gradient(total, y, 1e-6), 1e-7, NAMES[kind])


F = torch.nn.functional
PYTORCH = {
    "mean_absolute_error": F.l1_loss,
    "mean_squared_error": F.mse_loss,
    "softmax_cross_entropy": lambda y, t, reduction: F.cross_entropy(y, t, reduction=reduction),
    "sigmoid_cross_entropy": F.binary_cross_entropy_with_logits,
    "huber": lambda y, t, reduction: F.huber_loss(y, t, reduction=reduction, delta=0.8),
    "log": F.binary_cross_entropy,
    "kullback_leibler": lambda y, t, reduction: (
        F.kl_div(y, t, reduction="sum") / (1 if reduction == "sum" else y.numel())
    ),
}


@pytest.mark.parametrize("name", PYTORCH)
def test_equals_pytorch(name: str, device: torch.device, rng: np.random.Generator) -> None:
    kind = NAMES.index(name)
    y, t = (tensor(v, device=device) for v in sources(kind, (1, 4, 3, 2), rng))
    leaf = y.clone().requires_grad_()
    p = Parameters(kind, SUM, delta=0.8, epsilon=1e-30)
    expected = PYTORCH[name](leaf, t, reduction="sum")
    values, gradient = ops.loss(y, t, None, parameters(p))
    assert_close(values.ravel(), expected.reshape(1), 1e-12, name)
    assert_close(gradient, torch.autograd.grad(expected, leaf)[0], 1e-12, f"{name} gradient")
    mean, same = ops.loss(y, t, None, parameters(replace(p, reduction=MEAN)))
    assert_close(mean.ravel(), PYTORCH[name](y, t, reduction="mean").reshape(1), 1e-12, f"{name} mean")
    assert torch.equal(same, gradient), "the reduction must not reach the gradient"


def test_label_smoothing_equals_pytorch(device: torch.device, rng: np.random.Generator) -> None:
    y = tensor(rng.normal(size=(4, 6, 1, 1)), device=device)
    classes = torch.tensor([0, 5, 2, 2], device=device)
    leaf = y.clone().requires_grad_()
    expected = F.cross_entropy(leaf[:, :, 0, 0], classes, reduction="sum", label_smoothing=0.2)
    t = F.one_hot(classes, 6).to(torch.float64)[:, :, None, None]
    p = Parameters(SOFTMAX, SUM, label_smoothing=0.2, number_of_classes=6)
    values, gradient = ops.loss(y, t, None, parameters(p))
    assert_close(values.sum(), expected, 1e-12, "smoothed loss")
    assert_close(gradient, torch.autograd.grad(expected, leaf)[0], 1e-12, "smoothed gradient")


def test_multi_label_hinge(device: torch.device, rng: np.random.Generator) -> None:
    y, t = sources(NAMES.index("hinge"), (2, 5, 1, 1), rng)
    values, _ = ops.loss(
        tensor(y, device=device), tensor(t, device=device), None, parameters(Parameters(NAMES.index("hinge"), NONE))
    )
    assert_close(values, np.maximum(0.0, 1.0 - np.where(t == 1.0, 1.0, -1.0) * y), 1e-14, "hinge")


@pytest.mark.parametrize("name", ["softmax_cross_entropy", "sigmoid_cross_entropy"])
def test_large_logits_do_not_overflow(name: str, device: torch.device) -> None:
    y = np.array([1e4, -1e4, 0.0]).reshape(1, 3, 1, 1)
    t = np.array([0.0, 1.0, 0.0]).reshape(1, 3, 1, 1)
    check(Parameters(NAMES.index(name), NONE), y, t, None, torch.float32, device)


@pytest.mark.parametrize("kind", [NAMES.index("mean_absolute_error"), NAMES.index("huber")])
def test_no_gradient_at_equality(kind: int, device: torch.device) -> None:
    y = torch.full((1, 2, 1, 1), 0.5, device=device)
    values, gradient = ops.loss(y, y.clone(), None, parameters(Parameters(kind, SUM)))
    assert float(values.sum()) == 0.0
    assert gradient.ravel().tolist() == [0.0, 0.0]


def test_smoothing_without_classes_adds_everything(device: torch.device) -> None:
    """The number of classes is 1 unless it is set: the framework's own trap."""
    y, t = np.zeros((1, 3, 1, 1)), np.array([0.0, 0.0, 1.0]).reshape(1, 3, 1, 1)
    _, gradient = ops.loss(
        tensor(y, device=device),
        tensor(t, device=device),
        None,
        parameters(Parameters(SOFTMAX, SUM, label_smoothing=0.1)),
    )
    assert_close(gradient.ravel(), np.full(3, 1 / 3) - np.array([0.1, 0.1, 1.0]), 1e-14, "gradient")


@in_one_test
@pytest.mark.parametrize("kind", range(10), ids=NAMES)
def test_channels_last_stays(kind: int, device: torch.device, rng: np.random.Generator) -> None:
    y, t = (tensor(v, torch.float32, device, "channels_last") for v in sources(kind, (2, 4, 3, 2), rng))
    assert ops.loss(y, t, None, parameters(Parameters(kind, SUM)))[1].is_contiguous(memory_format=torch.channels_last)


@in_one_test
@pytest.mark.parametrize("kind", range(10), ids=NAMES)
def test_sources_stay_untouched(kind: int, device: torch.device, rng: np.random.Generator) -> None:
    y, t = (tensor(v, device=device) for v in sources(kind, (2, 3, 2, 2), rng))
    weights = None if kind == COSINE else torch.rand_like(y)
    kept = [v.clone() for v in (y, t)]
    for p in (Parameters(kind, SUM), settings(kind, SUM)):
        ops.loss(y, t, weights, parameters(p))
    assert torch.equal(y, kept[0])
    assert torch.equal(t, kept[1])


@pytest.mark.parametrize("name", ["softmax_cross_entropy", "categorical_cross_entropy", "kullback_leibler"])
def test_a_label_of_zero_adds_nothing(name: str, device: torch.device) -> None:
    """Also where the logarithm beside it is minus infinity."""
    impossible = 0.0 if name == "categorical_cross_entropy" else -np.inf
    y = tensor(np.array([impossible, 1.0]).reshape(1, 2, 1, 1), device=device)
    t = tensor(np.array([0.0, 1.0]).reshape(1, 2, 1, 1), device=device)
    values, gradient = ops.loss(y, t, None, parameters(Parameters(NAMES.index(name), NONE)))
    assert float(values[0, 0]) == 0.0
    assert bool(torch.isfinite(gradient).all())


def test_what_the_parameters_refuse(device: torch.device) -> None:
    y = torch.zeros(1, 1, 1, 1, device=device)
    for reduction in (NONE, MEAN, SUM_BY_NON_ZERO_WEIGHTS):
        with pytest.raises(MPSArgumentError, match="SUM"):
            parameters(Parameters(COSINE, reduction))
    with pytest.raises(MPSArgumentError, match="weights"):
        ops.loss(y, y, y, parameters(Parameters(COSINE, SUM)))
    with pytest.raises(MPSArgumentError, match="number_of_classes"):
        parameters(Parameters(SOFTMAX, SUM, number_of_classes=0))
    with pytest.raises(MPSArgumentError, match="loss_type"):
        ops.LossParameters(MPSCNNLossType.COUNT, MPSCNNReductionType.SUM)
    with pytest.raises(MPSArgumentError, match="reduction_type"):
        ops.LossParameters(MPSCNNLossType.HINGE, MPSCNNReductionType.COUNT)


def test_hinge_on_its_margin_has_no_gradient(device: torch.device) -> None:
    y = torch.tensor([1.0, -1.0], device=device).reshape(1, 2, 1, 1)
    t = torch.tensor([1.0, 0.0], device=device).reshape(1, 2, 1, 1)
    values, gradient = ops.loss(y, t, None, parameters(Parameters(NAMES.index("hinge"), NONE)))
    assert values.ravel().tolist() == [0.0, 0.0]
    assert gradient.ravel().tolist() == [0.0, 0.0]


# --- value and gradient apart ----------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("shape", [(3, 5, 2, 3), (1, 1, 1, 1), (0, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", range(10), ids=NAMES)
def test_forward_alone(kind, reduction, shape, weighted, device: torch.device, rng: np.random.Generator) -> None:
    """The value of the pair, bit by bit."""
    if kind == COSINE and (reduction != SUM or weighted):
        pytest.skip("sums over the image, with one number as weight")
    y, t = (tensor(v, device=device) for v in sources(kind, shape, rng))
    weights = tensor(rng.integers(0, 3, size=shape), device=device) if weighted else None
    for across in (False, True):
        p = parameters(replace(settings(kind, reduction), reduce_across_batch=across))
        assert torch.equal(ops.forward_loss(y, t, weights, p), ops.loss(y, t, weights, p)[0])


@in_one_test
@pytest.mark.parametrize("of_labels", [False, True], ids=["of predictions", "of labels"])
@pytest.mark.parametrize("broadcast", [False, True], ids=["each", "one for all"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", range(10), ids=NAMES)
def test_what_flows_back(kind, dtype, broadcast, of_labels, device: torch.device, rng: np.random.Generator) -> None:
    for number, shape in enumerate([(2, 4, 2, 3), (1, 1, 1, 1), (1, 3, 1, 1), (0, 2, 1, 1)]):
        y, t = sources(kind, shape, rng)
        flow = rng.normal(size=(shape[0], 1, 1, 1) if broadcast else shape)
        weights = rng.uniform(0.0, 2.0, size=shape) if number % 2 == 0 and kind != COSINE else None
        layout = LAYOUTS[number]
        p = settings(kind, SUM)
        found = ops.loss_gradient(
            tensor(flow, dtype, device),
            tensor(y, dtype, device, layout),
            tensor(t, dtype, device, layout),
            None if weights is None else tensor(weights, dtype, device, layout),
            parameters(p),
            of_labels=of_labels,
        )
        assert found.dtype == dtype
        assert_close(found, oracle.flow(flow, y, t, weights, p, of_labels), TOLERANCE[dtype], NAMES[kind])


def _chain(kind: int, p: Parameters, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Predictions, labels, weights and the gradient of the loss image, away from kinks.

    The framework's slope of softmax cross entropy, ``softmax(y) - t``, is the derivative where labels sum to 1 and what
    multiplies it is the same for all channels of a pixel.
    """
    y, t = sources(kind, shape, rng)
    if NAMES[kind] == "kullback_leibler":
        t = np.maximum(t, 0.05)
    pixel = (shape[0], 1, *shape[2:])
    weights = np.broadcast_to(rng.uniform(0.5, 2.0, size=pixel if kind == SOFTMAX else shape), shape).copy()
    flow = rng.normal(size=(shape[0], 1, 1, 1))
    if p.reduction == NONE:
        flow = np.broadcast_to(rng.normal(size=pixel if kind == SOFTMAX else shape), shape).copy()
    return y, t, weights, flow


@in_one_test
@pytest.mark.parametrize("of_labels", [False, True], ids=["of predictions", "of labels"])
@pytest.mark.parametrize("reduction", [NONE, SUM])
@pytest.mark.parametrize("across", [False, True], ids=["each image", "across batch"])
@pytest.mark.parametrize("kind", range(10), ids=NAMES)
def test_chain_rule_by_finite_differences(
    kind, reduction, across, of_labels, device: torch.device, rng: np.random.Generator
) -> None:
    if kind == COSINE and reduction == NONE:
        pytest.skip("sums over the image")
    p = replace(settings(kind, reduction), number_of_classes=3, reduce_across_batch=across)
    y, t, weights, flow = _chain(kind, p, (2, 3, 2, 2), rng)
    factors = None if kind == COSINE else tensor(weights, device=device)

    def total(v: np.ndarray) -> float:
        pair = (tensor(y, device=device), tensor(v, device=device))
        if not of_labels:
            pair = (tensor(v, device=device), tensor(t, device=device))
        return float((array(ops.forward_loss(*pair, factors, parameters(p))) * flow).sum())

    found = ops.loss_gradient(
        tensor(flow, device=device),
        tensor(y, device=device),
        tensor(t, device=device),
        factors,
        parameters(p),
        of_labels=of_labels,
    )
    wanted = finite_difference.gradient(total, t if of_labels else y, 1e-6)
    assert_close(found, wanted, 2e-7, NAMES[kind])


@pytest.mark.parametrize("reduction", [MEAN, SUM_BY_NON_ZERO_WEIGHTS])
def test_the_reduction_does_not_divide_what_flows_back(reduction: int, device: torch.device) -> None:
    y, t, g = torch.randn(3, 2, 4, 2, 2, device=device).unbind(0)
    found = [
        ops.loss_gradient(g, y, t, None, parameters(Parameters(kind=1, reduction=each))) for each in (SUM, reduction)
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("name", [name for name in PYTORCH if name != "log"])  # which has no gradient of labels there
def test_label_gradients_equal_pytorch(name: str, device: torch.device, rng: np.random.Generator) -> None:
    kind = NAMES.index(name)
    y, t = (tensor(v, device=device) for v in sources(kind, (1, 4, 3, 2), rng))
    if name == "kullback_leibler":
        t = t.clamp_min(0.05)
    leaf = t.clone().requires_grad_()
    expected = torch.autograd.grad(PYTORCH[name](y, leaf, reduction="sum"), leaf)[0]
    found = ops.loss_gradient(
        torch.ones(1, 1, 1, 1, dtype=y.dtype, device=device),
        y,
        t,
        None,
        parameters(Parameters(kind, SUM, delta=0.8, epsilon=1e-30)),
        of_labels=True,
    )
    assert_close(found, expected, 1e-12, name)


def test_smoothing_scales_label_gradients(device: torch.device, rng: np.random.Generator) -> None:
    for kind in (SOFTMAX, SIGMOID):
        y, t = (tensor(v, device=device) for v in sources(kind, (1, 4, 1, 1), rng))
        one = torch.ones(1, 1, 1, 1, dtype=y.dtype, device=device)
        plain, soft = (
            ops.loss_gradient(one, y, t, None, parameters(Parameters(kind, SUM, label_smoothing=e)), of_labels=True)
            for e in (0.0, 0.25)
        )
        assert_close(soft, array(plain) * 0.75, 1e-14)


def test_a_label_of_zero_has_no_divergence_to_lose(device: torch.device) -> None:
    """Its derivative, minus infinity, would spoil every number that it meets."""
    y = torch.tensor([-1.0, -torch.inf], device=device).reshape(1, 2, 1, 1)
    t = torch.zeros_like(y)
    p = parameters(Parameters(NAMES.index("kullback_leibler"), SUM))
    found = ops.loss_gradient(torch.ones(1, 1, 1, 1, device=device), y, t, None, p, of_labels=True)
    assert found.ravel().tolist() == [0.0, 0.0]


@in_one_test
@pytest.mark.parametrize("kind", range(10), ids=NAMES)
def test_flowing_back_leaves_sources_alone(kind: int, device: torch.device, rng: np.random.Generator) -> None:
    y, t = (tensor(v, device=device, layout="channels_last") for v in sources(kind, (2, 4, 3, 2), rng))
    weights, flow = None if kind == COSINE else torch.rand_like(y), torch.ones_like(y)
    kept = [v.clone() for v in (y, t, flow)]
    for of_labels in (False, True):
        found = ops.loss_gradient(flow, y, t, weights, parameters(settings(kind, SUM)), of_labels=of_labels)
        assert found.is_contiguous(memory_format=torch.channels_last)
        ops.forward_loss(y, t, weights, parameters(settings(kind, SUM)))
    assert all(torch.equal(v, before) for v, before in zip((y, t, flow), kept, strict=True))


def test_a_negative_delta_is_refused() -> None:
    with pytest.raises(MPSArgumentError, match="delta must be at least 0, got -1"):
        parameters(Parameters(NAMES.index("huber"), SUM, delta=-1.0))
