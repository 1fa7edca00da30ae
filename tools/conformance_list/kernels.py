"""Cases of kernels: the samples of the tests' catalogue, at one image each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from catalogue import SAMPLES
from conformance_list.describe import DEVICE, described, drawn, listed
from encoding import Bench
from samples.sample import Sample

FAMILIES = {
    "convolution": ("MPSCNNConvolution", "MPSCNNFullyConnected"),
    "transposed convolution": ("MPSCNNConvolutionTranspose",),
    "binary convolution": ("MPSCNNBinary",),
    "pooling": ("MPSCNNPooling", "MPSCNNDilatedPooling"),
    "neuron": ("MPSCNNNeuron",),
    "local normalization": ("MPSCNNSpatial", "MPSCNNLocalContrast", "MPSCNNCrossChannel"),
    "normalization": ("MPSCNNBatchNormalization", "MPSCNNInstanceNormalization", "MPSCNNGroupNormalization"),
    "soft-max": ("MPSCNNSoftMax", "MPSCNNLogSoftMax"),
    "dropout": ("MPSCNNDropout",),
    "arithmetic": (
        "MPSCNNAdd", "MPSCNNSubtract", "MPSCNNMultiply", "MPSCNNDivide", "MPSNNCompar", "MPSNNAddition",
        "MPSNNSubtraction", "MPSNNMultiplication", "MPSNNDivision",
    ),
    "loss": ("MPSCNNLoss", "MPSCNNYOLO", "MPSNNForwardLoss", "MPSNNLoss", "MPSNNInitialGradient"),
    "reduction": ("MPSNNReduc", "MPSNNLocalCorrelation", "MPSNNGramMatrix"),
    "shape": ("MPSNNReshape", "MPSNNPad", "MPSNNSlice", "MPSNNConcatenation"),
    "resampling": ("MPSCNNUpsampling", "MPSNNResize", "MPSNNCropAndResize", "MPSNNGridSample"),
    "random numbers": ("MPSMatrixRandom",),
    "padding policy": ("MPSNNDefaultPadding",),
    "image filters": ("MPSImage",),
}  # fmt: skip
"""Rows of the page, by how classes begin."""
_PARAMETERS = {
    "Convolution": ("gradientForWeights", "gradientForBiases"),
    "FullyConnected": ("gradientForWeights", "gradientForBiases"),
    "InstanceNormalization": ("gradientForGamma", "gradientForBeta"),
    "GroupNormalization": ("gradientForGamma", "gradientForBeta"),
}
"""What states hold of parameters' gradients."""
OURS = ("raw labels",)
"""Words in the names of samples that need what only openmps has."""


def family_of(name: str) -> str:
    """The family of a class, by the longest beginning."""
    found = [(len(start), family) for family, starts in FAMILIES.items() for start in starts if name.startswith(start)]
    return max(found)[1]


def kernel_cases() -> Iterator[dict[str, Any]]:
    """One for each sample."""
    for kind, samples in SAMPLES.items():
        for sample in samples:
            if not any(word in sample.name for word in OURS):
                yield _case(kind, sample)


def _case(kind: type, sample: Sample) -> dict[str, Any]:
    kernel = sample.make(DEVICE)
    shaped = hasattr(kernel.padding, "shape")
    shape = kernel.padding.shape if shaped else None
    if shaped:  # the sample sizes its result by a policy of Python's
        kernel.padding = type(kernel)(DEVICE).padding
    entry: dict[str, Any] = {
        "name": f"kernel: {sample.name}",
        "family": family_of(kind.__name__),
        "kind": "kernel",
        "classes": [kind.__name__],
        "kernel": described(kernel, sample.name),
        "sources": [
            drawn((height, width, channels), f"{sample.name} source {place}", sample.domain)
            for place, (channels, height, width) in enumerate(sample.shapes)
        ],
        "read": ["result"],
    }
    if shape is not None:
        channels, height, width = shape
        entry["destination"] = [width, height, channels]
    entry.update(_operands(sample))
    entry.update(_gradients(kind, sample))
    if "lossImageSize" in entry:
        entry["read"].append("loss")
    if "random" in sample.traits:
        entry["compare"] = "shape"
    return entry


def _operands(sample: Sample) -> dict[str, Any]:
    """Labels, and weights of labels."""
    bench = Bench(DEVICE)
    if sample.operands is not None:
        labels, weights, _ = sample.operands(bench, 0, 1, True)
        found: dict[str, Any] = {"labels": listed(labels.numpy())}
        return found if weights is None else {**found, "labelWeights": listed(weights.numpy())}
    if sample.labels is not None:
        (labels,) = sample.labels(bench, 0, 1)
        size = labels.loss_image()
        return {
            "labels": listed(np.asarray(labels.labels_image().numpy())),
            "lossImageSize": [size.width, size.height, size.feature_channels],
        }
    return {}


def _gradients(kind: type, sample: Sample) -> dict[str, Any]:
    if not sample.gradients:
        return {}
    listing = []
    for place, backward in enumerate(sample.gradients):
        incoming = drawn((), f"{sample.name} gradient {place}")
        del incoming["shape"]
        kernel = described(backward.make(DEVICE), sample.name)
        secondary = "result" if backward.reads_result else backward.secondary
        listing.append({"kernel": kernel, "secondary": secondary, "incoming": incoming})
    more = next((names for word, names in _PARAMETERS.items() if word in kind.__name__), ())
    return {"gradients": listing, "read": ["result", "gradients", *more]}
