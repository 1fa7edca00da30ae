"""Which node cases run: the adapters, and the page that lists them. ``python tests/node_cases/table.py`` writes it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from encoding import Bench
from node_cases import losses, normalizations, pointwise, reductions, shapes, windows
from node_cases.case import Case, NotExpressible, cases
from openmps.kernels.pooling import MPSCNNPoolingAverage, MPSCNNPoolingMax
from openmps.kernels.softmax import MPSCNNLogSoftMax, MPSCNNSoftMax
from openmps.types import MPSCNNNeuronType as Type
from openmps.types import MPSNNComparisonType as Comparison

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx_node_cases.md"


def _numbers(*names_and_defaults: tuple[str, float]) -> Any:
    return lambda case: tuple(float(case.get(name, default)) for name, default in names_and_defaults)


ADAPTERS: dict[str, Any] = {
    "Conv": windows.convolution,
    "ConvTranspose": windows.convolution_transpose,
    "MaxPool": windows.max_pooling,
    "AveragePool": windows.average_pooling,
    "LpPool": windows.lp_pooling,
    "GlobalMaxPool": windows.global_pooling(MPSCNNPoolingMax),
    "GlobalAveragePool": windows.global_pooling(MPSCNNPoolingAverage),
    "BatchNormalization": normalizations.batch,
    "InstanceNormalization": normalizations.instance,
    "GroupNormalization": normalizations.group,
    "LRN": normalizations.local_response,
    "Softmax": pointwise.softmax(MPSCNNSoftMax),
    "LogSoftmax": pointwise.softmax(MPSCNNLogSoftMax),
    "Relu": pointwise.activation(Type.RELU),
    "LeakyRelu": pointwise.activation(Type.RELU, _numbers(("alpha", 0.01))),
    "PRelu": pointwise.prelu,
    "Sigmoid": pointwise.activation(Type.SIGMOID),
    "HardSigmoid": pointwise.activation(Type.HARD_SIGMOID, _numbers(("alpha", 0.2), ("beta", 0.5))),
    "Tanh": pointwise.activation(Type.TANH),
    "Abs": pointwise.activation(Type.ABSOLUTE),
    "Softplus": pointwise.activation(Type.SOFT_PLUS),
    "Softsign": pointwise.activation(Type.SOFT_SIGN),
    "Elu": pointwise.activation(Type.ELU, _numbers(("alpha", 1.0))),
    "Exp": pointwise.activation(Type.EXPONENTIAL),
    "Log": pointwise.activation(Type.LOGARITHM),
    "Pow": pointwise.power,
    "Gelu": pointwise.gelu,
    "Clip": pointwise.clip,
    "Add": pointwise.arithmetic("MPSCNNAdd"),
    "Sub": pointwise.arithmetic("MPSCNNSubtract"),
    "Mul": pointwise.arithmetic("MPSCNNMultiply"),
    "Div": pointwise.arithmetic("MPSCNNDivide"),
    "Equal": pointwise.comparison(Comparison.EQUAL),
    "Less": pointwise.comparison(Comparison.LESS),
    "LessOrEqual": pointwise.comparison(Comparison.LESS_OR_EQUAL),
    "Greater": pointwise.comparison(Comparison.GREATER),
    "GreaterOrEqual": pointwise.comparison(Comparison.GREATER_OR_EQUAL),
    "Dropout": pointwise.dropout,
    "ReduceMax": reductions.reduction("MPSNNReduceFeatureChannelsMax"),
    "ReduceMin": reductions.reduction("MPSNNReduceFeatureChannelsMin"),
    "ReduceMean": reductions.reduction("MPSNNReduceFeatureChannelsMean"),
    "ReduceSum": reductions.reduction("MPSNNReduceFeatureChannelsSum"),
    "ArgMax": reductions.argument("MPSNNReduceFeatureChannelsArgumentMax"),
    "ArgMin": reductions.argument("MPSNNReduceFeatureChannelsArgumentMin"),
    "Pad": shapes.pad,
    "DepthToSpace": shapes.depth_to_space,
    "Reshape": shapes.reshape,
    "Slice": shapes.slice_,
    "Resize": shapes.resize,
    "Upsample": shapes.upsample,
    "GridSample": shapes.grid_sample,
    "SoftmaxCrossEntropyLoss": losses.softmax_cross_entropy,
    "NegativeLogLikelihoodLoss": losses.negative_log_likelihood,
}
"""The operators that kernels compute, in the order of the page, and how a case is put to them."""


@functools.cache
def collected() -> tuple[Case, ...]:
    """The cases of these operators, in the page's order."""
    order = list(ADAPTERS)
    return tuple(sorted(cases(frozenset(ADAPTERS)), key=lambda case: order.index(case.operator)))


def _reason(case: Case) -> str | None:
    """Why the framework has no way to say a case; None if it runs."""
    try:
        ADAPTERS[case.operator](case, Bench.on(torch.device("cpu")))
    except NotExpressible as reason:
        return str(reason)
    return None


def page(found: Mapping[str, str | None]) -> str:
    """The page: operators with how many cases run, and why the others do not, by the names of the cases."""
    run: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    for case in collected():
        reason = found[case.name]
        run[case.operator] += reason is None
        if reason is not None:
            reasons.setdefault(case.operator, Counter())[reason] += 1
    rows, total = [], Counter(case.operator for case in collected())
    for operator in ADAPTERS:
        others = "; ".join(f"{count} × {reason}" for reason, count in reasons.get(operator, Counter()).most_common())
        rows.append(f"| {operator} | {total[operator]} | {run[operator]} | {others} |")
    return HEAD.format(run=run.total(), total=total.total()) + "\n".join(rows) + "\n"


HEAD = """# ONNX's node cases

The `onnx` package generates a test case for every operator: inputs, attributes and the outputs that its reference
gives. Those of the operators that the framework's kernels compute are run through the kernels by the test suite. Every
case that the kernels can express gives ONNX's numbers (relative error at most 1e-5; one unit of the last decimal where
a case was typed in with four): {run} of {total}. For the others the table says what the framework has no way to say.
Whole numbers travel as float32, where it holds them exactly.

| operator | cases | run and agree | not expressible |
| --- | ---: | ---: | --- |
"""


def write() -> None:
    """Write the page."""
    PAGE.write_text(page({case.name: _reason(case) for case in collected()}))


if __name__ == "__main__":
    write()
