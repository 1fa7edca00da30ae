"""Kernels over matrices and vectors: products, soft-max, top-k, copies, sums, layers, factorizations, solutions."""

from openmps.kernels.matrix.batch_normalization import MPSMatrixBatchNormalization as MPSMatrixBatchNormalization
from openmps.kernels.matrix.batch_normalization import (
    MPSMatrixBatchNormalizationGradient as MPSMatrixBatchNormalizationGradient,
)
from openmps.kernels.matrix.combination import MPSMatrixCopy as MPSMatrixCopy
from openmps.kernels.matrix.combination import MPSMatrixCopyDescriptor as MPSMatrixCopyDescriptor
from openmps.kernels.matrix.decomposition import MPSMatrixDecompositionCholesky as MPSMatrixDecompositionCholesky
from openmps.kernels.matrix.decomposition import MPSMatrixDecompositionLU as MPSMatrixDecompositionLU
from openmps.kernels.matrix.find_top_k import MPSMatrixFindTopK as MPSMatrixFindTopK
from openmps.kernels.matrix.fully_connected import MPSMatrixFullyConnected as MPSMatrixFullyConnected
from openmps.kernels.matrix.fully_connected import MPSMatrixFullyConnectedGradient as MPSMatrixFullyConnectedGradient
from openmps.kernels.matrix.multiplication import MPSMatrixMultiplication as MPSMatrixMultiplication
from openmps.kernels.matrix.multiplication import MPSMatrixVectorMultiplication as MPSMatrixVectorMultiplication
from openmps.kernels.matrix.neuron import MPSMatrixNeuron as MPSMatrixNeuron
from openmps.kernels.matrix.neuron import MPSMatrixNeuronGradient as MPSMatrixNeuronGradient
from openmps.kernels.matrix.softmax import MPSMatrixLogSoftMax as MPSMatrixLogSoftMax
from openmps.kernels.matrix.softmax import MPSMatrixLogSoftMaxGradient as MPSMatrixLogSoftMaxGradient
from openmps.kernels.matrix.softmax import MPSMatrixSoftMax as MPSMatrixSoftMax
from openmps.kernels.matrix.softmax import MPSMatrixSoftMaxGradient as MPSMatrixSoftMaxGradient
from openmps.kernels.matrix.solve import MPSMatrixSolveCholesky as MPSMatrixSolveCholesky
from openmps.kernels.matrix.solve import MPSMatrixSolveLU as MPSMatrixSolveLU
from openmps.kernels.matrix.solve import MPSMatrixSolveTriangular as MPSMatrixSolveTriangular
from openmps.kernels.matrix.sum import MPSMatrixSum as MPSMatrixSum
