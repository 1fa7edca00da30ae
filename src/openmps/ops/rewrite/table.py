"""The table of fusions: one row a rule, applied in this order by `openmps.ops.rewrite.fuse`.

To add one is to add a row, and a function in `openmps.ops.rewrite.rules` that says what a match becomes:
`tests/sweeps/test_fusions.py` tries each row on every pair of operations that its patterns take.
"""

from __future__ import annotations

import math

from openmps.ops.convolution.convolution import Convolution, ConvolutionGradient, FullyConnected
from openmps.ops.convolution.fused_convolution import GATES, FusedConvolution
from openmps.ops.convolution.projected_convolution import ProjectedConvolution
from openmps.ops.elements import Load
from openmps.ops.layout.concatenation import Concatenate
from openmps.ops.normalization.batch_normalization import Normalize
from openmps.ops.normalization.normalized_neuron import NormalizedNeuron, PassedSums
from openmps.ops.normalization.projected_neuron import ProjectedNeuron
from openmps.ops.normalization.stored_normalization import StoredNormalization
from openmps.ops.op import Kind, Role
from openmps.ops.pointwise.arithmetic import Arithmetic, Combination, CombinationGradient
from openmps.ops.pointwise.layer_end import LayerEnd, LayerEndGradient
from openmps.ops.pointwise.neuron import Neuron
from openmps.ops.pooling.pooling import AveragePoolingGradient, MaxPooling
from openmps.ops.rewrite.data_flow import LOAD_HALF, STORE_HALF
from openmps.ops.rewrite.rule import Place, Rule, Term
from openmps.ops.rewrite.rules import (
    concatenation,
    convolution,
    layer_end,
    normalization,
    pooled_convolution,
    preactivation,
    projection,
    relu_pooling,
    second_moments,
    stored_normalization,
)
from openmps.types import MPSCNNNeuronType

_HALF = {"channel_format": {LOAD_HALF.channel_format}}
_MEMORY = frozenset({Role.BUFFER})
"""Memory that stays."""
POINTWISE = Term(Kind.POINTWISE, fields={"results": {1}}, besides=frozenset({Role.CONSTANT}))
"""Any, of one image."""
ACTIVATION = POINTWISE._replace(besides=frozenset())
STORED_STATISTICS = Term(Kind.POINTWISE, (Normalize,), besides=_MEMORY)
NORMALIZATION = Term(Kind.POINTWISE, (Normalize,))
SUM = Term(
    Kind.POINTWISE,
    (Combination,),
    {
        "operation": {Arithmetic.ADD}, "primary_scale": {1.0}, "secondary_scale": {1.0}, "bias": {0.0},
        "minimum": {-math.inf}, "maximum": {math.inf},
    },
)  # fmt: skip
RELU = Term(Kind.POINTWISE, (Neuron,), {"function": {MPSCNNNeuronType.RELU}})
GATE = Term(Kind.POINTWISE, (Neuron,), {"function": GATES})
PRODUCT = Term(Kind.POINTWISE, (Combination,), {"operation": {Arithmetic.MULTIPLY}})
RELU_N = Term(Kind.POINTWISE, (Neuron,), {"function": {MPSCNNNeuronType.RELU_N}, "a": {0.0}})
GELU = Term(Kind.POINTWISE, (Neuron,), {"function": {MPSCNNNeuronType.GELU}})
NORMALIZED_NEURON = Term(Kind.POINTWISE, (NormalizedNeuron,))
BLOCK_END = Term(Kind.POINTWISE, (NormalizedNeuron, ProjectedNeuron))
STORED_NORMALIZATION = Term(Kind.POINTWISE, (StoredNormalization,))
SUM_GRADIENT = Term(Kind.REDUCTION, (CombinationGradient,), {"operation": {Arithmetic.ADD, Arithmetic.SUBTRACT}})
CONVOLUTION = Term(Kind.CONTRACTION, (Convolution,), besides=_MEMORY)
PIXELWISE = Term(Kind.CONTRACTION, (Convolution,), {"groups": {1}})
FUSED_CONVOLUTION = Term(Kind.CONTRACTION, (FusedConvolution,))
ADDING_CONVOLUTION = Term(Kind.CONTRACTION, (FusedConvolution, ProjectedConvolution))
FULLY_CONNECTED = Term(Kind.CONTRACTION, (FullyConnected,))
CONVOLUTION_GRADIENT = Term(Kind.CONTRACTION_GRADIENT, (ConvolutionGradient,))
PLAIN_END = Term(Kind.WINDOW, (LayerEnd,), {"rectifies": {False}, "mask": {None}})
POOLED_GRADIENT = Term(Kind.WINDOW, (LayerEndGradient,), {"pools": {True}})
MAX_POOLING = Term(Kind.WINDOW, (MaxPooling,))
AVERAGE_POOLING_GRADIENT = Term(Kind.WINDOW, (AveragePoolingGradient,))
PASSED_SUMS = Term(Kind.REDUCTION, (PassedSums,))
CONCATENATION = Term(Kind.STORAGE, (Concatenate,))
LOAD = Term(Kind.STORAGE, (Load,))
LOADED_HALF = Term(Kind.STORAGE, (Load,), _HALF)
STORED_HALF = Term(Kind.STORAGE, (type(STORE_HALF),), _HALF)

_CPU, _TRITON = frozenset({Place.CPU}), frozenset({Place.TRITON})
_ALONE = "nothing else reads what lies between, and it does not come out"

RULES: tuple[Rule, ...] = (
    Rule(
        "convolution with GeLU",
        ((CONVOLUTION, GELU),),
        _ALONE,
        convolution.with_gelu,
        "a `GeluConvolution`",
        "the convolution, then GeLU",
        _TRITON,
    ),
    Rule(
        "convolution end",
        ((CONVOLUTION, STORED_STATISTICS), (CONVOLUTION, SUM), (CONVOLUTION, POINTWISE), (CONVOLUTION, GATE, PRODUCT)),
        f"one of each at most, a normalization before a sum; a product is that of a number and its neuron; {_ALONE}",
        convolution.with_what_is_behind,
        "a `FusedConvolution` by weights with the normalization in them",
        "the convolution, then normalization, sum and pointwise operation, as many as there are",
        in_training=False,
    ),
    Rule(
        "packed convolution",
        ((CONVOLUTION,),),
        "none",
        convolution.packed,
        "a `FusedConvolution` with nothing behind it",
        "the convolution",
        _CPU,
        in_training=False,
        prepares=True,
    ),
    Rule(
        "joined biases",
        ((FUSED_CONVOLUTION, FUSED_CONVOLUTION),),
        f"the first has no activation, and the second adds its result; {_ALONE}",
        convolution.joined_biases,
        "the two, the second of which adds the biases of both",
        "the two as they are",
        in_training=False,
    ),
    Rule(
        "projected end",
        ((FUSED_CONVOLUTION, FUSED_CONVOLUTION),),
        f"the first, of single pixels inside its image, has no activation, and the second adds its result; {_ALONE}",
        convolution.projected,
        "a `ProjectedConvolution`",
        "the first, then the second",
        _TRITON,
        in_training=False,
    ),
    Rule(
        "followed end",
        ((ADDING_CONVOLUTION, FUSED_CONVOLUTION),),
        "the first adds an image, or a projection of one; the second adds none; both of single pixels, one group",
        convolution.followed,
        "a `FollowedEnd`, with the results of both",
        "the first, then the second",
        _TRITON,
        in_training=False,
    ),
    Rule(
        "stored normalization",
        ((STORED_STATISTICS, ACTIVATION), (STORED_STATISTICS,)),
        f"an activation may be missing; {_ALONE}",
        stored_normalization.stored,
        "a `StoredNormalization` by prepared factors",
        "the normalization, then the pointwise operation",
        _CPU,
        in_training=False,
        prepares=True,
    ),
    Rule(
        "preactivation",
        ((STORED_NORMALIZATION, FUSED_CONVOLUTION),),
        f"a ReLU behind the normalization, windows of one pixel, one group, float32 throughout; {_ALONE}",
        preactivation.preactivated,
        "a `PreactivatedConvolution` of bounds",
        "the normalization, then the convolution",
        _CPU,
        in_training=False,
        prepares=True,
    ),
    Rule(
        "growing concatenation",
        ((CONCATENATION, CONCATENATION),),
        "the second begins with the first's result; besides, only prepared normalizations read that",
        concatenation.growing,
        "a `Concatenate` that leaves room, and a `Grow` for each that follows",
        "the concatenations",
        _CPU,
        in_training=False,
        prepares=True,
    ),
    Rule(
        "numbers loaded once",
        ((LOAD,),),
        "it reads an input that another equation before it reads alike",
        normalization.loaded_again,
        "what the other gives",
        "the conversion",
    ),
    Rule(
        "gradient handed on",
        ((SUM_GRADIENT,),),
        "no scale, no mask, no broadcast axis",
        normalization.handed_on,
        "the gradient of the sum",
        "the gradient of its operand",
    ),
    Rule(
        "rounded once",
        ((STORED_HALF, STORED_HALF),),
        "the second reads what the first gives as it is",
        normalization.stored_again,
        "what the first gives",
        "the two conversions",
    ),
    Rule(
        "normalized neuron",
        (
            (NORMALIZATION, RELU),
            (NORMALIZATION, RELU_N),
            (NORMALIZATION, GELU),
            (NORMALIZATION, SUM, RELU),
            (NORMALIZATION, SUM, RELU_N),
        ),
        "the gradients of both, if there are any, are all that reads what lies between besides",
        normalization.normalized_neuron,
        "a `NormalizedNeuron`, its gradient in the sums for gamma and beta and in the gradient of the source",
        "the normalization, the sum if there is one, the neuron, and their gradients",
        _TRITON,
    ),
    Rule(
        "normalized pooling",
        ((NORMALIZED_NEURON, MAX_POOLING),),
        "no image is added, the slope is 0, no window reads zeros; the pooling's gradient alone reads besides",
        normalization.normalized_pooling,
        "a `NormalizedPooling`, its gradient in those of the neuron",
        "the neuron, the pooling, and their gradients",
        _TRITON,
    ),
    Rule(
        "added normalization",
        ((NORMALIZATION, NORMALIZED_NEURON),),
        f"the first gives the image that the second adds; {_ALONE}",
        projection.added_normalization,
        "a `ProjectedNeuron`, and the gradients of both sources as one equation",
        "the two, and their gradients",
        _TRITON,
    ),
    Rule(
        "spread gradient",
        ((AVERAGE_POOLING_GRADIENT, PASSED_SUMS),),
        f"one window of all pixels; {_ALONE}",
        projection.spread_gradient,
        "`SpreadSums` of one pixel an image",
        "the gradient of the pooling, then the sums",
        _TRITON,
    ),
    Rule(
        "end by moments",
        ((PIXELWISE, BLOCK_END),),
        "it is asked for, windows of one pixel, statistics of this batch alone; nothing else reads result or gradient",
        second_moments.end_by_moments,
        "a `MomentsEnd`, whose convolutions never give anything, and its gradients",
        "the convolutions, their statistics, the end of the block, and their gradients",
        _TRITON,
    ),
    Rule(
        "pooling before ReLU",
        ((RELU, MAX_POOLING),),
        "a slope of at least 0; the gradients of both, one behind the other, are all that reads between besides",
        relu_pooling.pooled_before_relu,
        "the pooling, then the ReLU of a smaller image, and a `ReluPoolGradient`",
        "the ReLU, the pooling, and their gradients",
    ),
    Rule(
        "pooled convolution",
        ((FUSED_CONVOLUTION, MAX_POOLING),),
        f"no image is added, a rectifier that never falls or none, no zeros outside the source; {_ALONE}",
        pooled_convolution.pooled,
        "a `PooledConvolution`",
        "the convolution, then the pooling",
        _TRITON,
        in_training=False,
    ),
    Rule(
        "layer end",
        ((MAX_POOLING,), (RELU,)),
        "windows that share no pixel; its gradients are all that reads between besides",
        layer_end.layer_end,
        "a `LayerEnd` that adds biases, pools, rectifies and drops out, as far as there is any, and its gradient",
        "biases, pooling, ReLU, dropout, and their gradients with the sums for the biases",
        _TRITON,
    ),
    Rule(
        "convolution with its end",
        ((CONVOLUTION, PLAIN_END),),
        f"windows that pool; the convolution adds no biases of its own; {_ALONE}",
        layer_end.with_end,
        "a `ConvolutionEnd`",
        "the convolution, then its end",
        _TRITON,
    ),
    Rule(
        "gradient of a convolution with its end",
        ((POOLED_GRADIENT, CONVOLUTION_GRADIENT),),
        f"nobody reads a gradient of the source, nor sums for biases but the end's; {_ALONE}",
        layer_end.with_end_gradient,
        "a `ConvolutionEndGradient`",
        "the gradient of the end, then those of the convolution",
        _TRITON,
    ),
    Rule(
        "wide products",
        ((LOADED_HALF, FULLY_CONNECTED),),
        "none",
        layer_end.wide_products,
        "`FullyConnected` of what is stored, whose sums are float32",
        "the conversion, then the layer",
        _TRITON,
    ),
)
