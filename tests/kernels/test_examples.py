"""The examples in docstrings run, those of one group one after the other, and show what they print."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

import openmps
from in_one_test import in_one_test

GROUPS = [
    [
        "MPSCNNBatchNormalization",
        "MPSCNNBatchNormalizationState",
        "MPSCNNBatchNormalizationStatistics",
        "MPSCNNBatchNormalizationStatisticsGradient",
        "MPSCNNBatchNormalizationGradient",
    ],
    ["MPSState", "MPSStateResourceList", "MPSStateBatch"],
    [
        "MPSNNGradientState",
        "MPSNNBinaryGradientState",
        "MPSCNNArithmeticGradientState",
        "MPSCNNDropoutGradientState",
    ],
    [
        "MPSCNNConvolutionGradientState",
        "MPSCNNConvolutionWeightsAndBiasesState",
        "MPSCNNConvolutionTransposeGradientState",
    ],
    ["MPSCNNNormalizationGammaAndBetaState", "MPSCNNNormalizationMeanAndVarianceState"],
    ["MPSCNNLossLabels"],
    ["MPSCNNInstanceNormalizationGradientState"],
    ["MPSCNNGroupNormalizationGradientState"],
]


@in_one_test
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_examples_run(names: list[str]) -> None:
    known: dict[str, Any] = {}
    for name in names:
        example = doctest.DocTestParser().get_doctest(getattr(openmps, name).__doc__, known, name, None, None)
        assert example.examples, f"{name} has no example"
        said: list[str] = []
        doctest.DocTestRunner().run(example, out=said.append, clear_globs=False)
        assert said == []
        known.update(example.globs)
