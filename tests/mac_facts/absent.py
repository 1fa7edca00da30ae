"""Facts about classes that openmps does not have: neither held nor tested. Who adds a class begins with these."""

from __future__ import annotations

ABSENT = {
    "MPSMatrixMultiplication": [
        "four transpositions with alpha 2, beta 0.5 (B)", "half product 17 23 41 55 (B)", "fresh ranges (A)",
    ],
    "MPSMatrixVectorMultiplication": ["alpha 1.5: 7.5 16.5, transposed -4.5 -4.5 (B)"],
    "MPSMatrixCopy": ["offsets with four flag pairs (B)", "row swap and column reversal (B)", "8-byte elements (J)"],
    "MPSMatrixSoftMax": ["formula, log form, gradient (B)"],
    "MPSMatrixFindTopK": [
        "values with ties 9 9 7, 1 1 1 (B)", "indices of ties (A)", "k 5 of 20 descending, k above 16 refused (B, J)",
    ],
    "MPSMatrixNeuron": ["15 types and PReLU (B)", "GeLU within 7.02e-5 (A)"],
    "MPSMatrixNeuronGradient": ["data with alpha, bias without (A)"],
    "MPSMatrixFullyConnected": ["formula with alpha 1.25 (B)"],
    "MPSMatrixFullyConnectedGradient": ["formula; gradient of the bias 12 15 18, without alpha (B)"],
    "MPSMatrixBatchNormalization": [
        "with the root of variance + epsilon (A)", "population variance (B)", "PReLU refused (A)",
    ],
    "MPSMatrixBatchNormalizationGradient": ["data (A, eight numbers)", "gamma and beta gradients 0 (A, doubtful)"],
    "MPSMatrixSum": [
        "scales, bias by column (B)", "three biases (A)", "transposed (A)", "transposed with bias (A)",
        "startIndex into scales (A)", "offsets are row, column (B)", "two sources at least (C)",
    ],
    "MPSMatrixDecompositionLU": ["L U = P A, SINGULAR (B, A, J)"],
    "MPSNDArray": [
        "written 1..24, read packed; fresh zeros (A)", "resourceSize 960 of [2, 3, 4, 5] (A)",
        "lengths transposed (A, J)", "transposed view 1 3 5 2 4 6 (A)", "slice of a dimension (A)",
    ],
    "MPSNDArrayMatrixMultiplication": ["fresh alpha and beta 1 (A, J)"],
    "MPSImageAdd": ["11 22 33 44; primaryScale 2: 12 24 36 48 (A)"],
    "MPSImageLaplacian": ["1..16, fresh; bias 1 (A)"],
    "MPSImageConversion": ["info NULL, alpha is one (A)"],
    "MPSImageGaussianPyramid": ["5x5 by default (A)"],
}  # fmt: skip
"""What is known of each class, in words; the numbers are with the sources."""
