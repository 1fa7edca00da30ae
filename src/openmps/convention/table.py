"""Questions that the framework's headers leave open, and what openmps answers: a table.

`docs/conventions.md` is made of it. A row with one choice says why there is no other. Evidence names headers (with
lines of the macOS 10.14 ones, of 16.5's where marked +), measured facts of ``tests/mac_facts``, and public clients.
"""

from __future__ import annotations

from collections.abc import Mapping

from openmps.convention.filters import FILTERS
from openmps.convention.row import NO_NUMBERS, NOT_DEFINED, Convention

_OTHER_OBJECTS = "it concerns objects of Metal, not numbers"
_M4 = "macOS 27, M4"
_TURI = "Turi Create's comparison of its own two implementations"
_KERNELS = (
    Convention(
        "weights_precision", ("K1", "R19"), "Are float32 weights rounded to float16?",
        {"as_images": "with float16 images, unless the data source asks for float32"},
        ("MPSCNNConvolution",), ("MPSCNNConvolution.h+ 845-848, 964, 1370",),
        why_not="`kernel_weights_data_type` of the data source and `weights_fp16` of the kernel choose",
    ),
    Convention(
        "secondary_offset", ("K2", "R13"), "Where does secondaryOffset of a convolution gradient count from?",
        {"forward_offset": "the window's centre: it is the forward kernel's offset (10.14)",
         "first_tap": "the window's first tap (16.5)"},
        ("MPSCNNConvolutionGradient",), ("MPSCNNConvolution.h (10.14 and 16.5 differ)",),
    ),
    Convention(
        "loss_gradient_mean", ("K3",), "Does MPSNNLossGradient divide by what MEAN divides by?",
        {"undivided": "no: the gradient is the sum's", "divided": "by W H C, and W H for soft-max cross entropy"},
        ("MPSNNLossGradient",), ("MPSCNNLoss.h+ 315-316",),
    ),
    Convention(
        "hinge_labels", ("K4",), "Which labels does the hinge loss multiply by?",
        {"signs": "2 t - 1, for t of 0 and 1", "as_given": "t, as the formula is printed"},
        ("MPSCNNLoss", "MPSNNForwardLoss", "MPSNNLossGradient"), ("MPSCNNLoss.h",),
    ),
    Convention(
        "soft_max_slope", ("K5",), "What is the gradient of soft-max cross entropy where labels do not sum to 1?",
        {"difference": "softmax(y) - t", "derivative": "softmax(y) sum(t) - t, the exact derivative"},
        ("MPSCNNLoss", "MPSNNLossGradient"), ("MPSCNNLoss.h 437",),
    ),
    Convention(
        "cosine_distance", ("K6",), "What is the 1 of a cosine distance added to?",
        {"image": "once to an image's sum", "pixel": "once to each pixel's"},
        ("MPSCNNLoss", "MPSNNForwardLoss"), ("MPSCNNLoss.h",),
    ),
    Convention(
        "reshape_order", ("K7",), "In which order does a reshape read and write numbers?",
        {"pixels": "rows, columns, channels", "planes": "channels, rows, columns"},
        ("MPSNNReshape", "MPSNNReshapeGradient"), ("MPSNNReshape.h",),
    ),
    Convention(
        "dropout_encodes", ("K8", "R29"), "Do two encodes of one dropout kernel have different masks?",
        {"differ": "yes", "equal": "no: each begins again"}, ("MPSCNNDropout",), ("MPSCNNDropout.h",),
    ),
    Convention(
        "yolo_slope", ("K9",), "Does the gradient of a YOLO loss's positions go through their sigmoid?",
        {"sigmoid": "yes: it is that of the predictions", "position": "no: it is that of the sigmoid's results"},
        ("MPSCNNYOLOLoss",), (_TURI,),
    ),
    Convention(
        "yolo_sizes", ("K9",), "What are the predicted sizes of a YOLO loss compared with?",
        {"logarithms": "ln(size / anchor) of the labels",
         "as_given": "the labels, which hold logarithms: a size is anchor e^label"},
        ("MPSCNNYOLOLoss",), (_TURI,),
    ),
    Convention(
        "yolo_confidence", ("K9",), "What is a YOLO loss's confidence compared with where it rescores?",
        {"overlap": "the overlap of the predicted box and the label's", "one": "1"}, ("MPSCNNYOLOLoss",), (_TURI,),
    ),
    Convention(
        "statistics_restart", ("K10",), "When do the statistics of a batch normalization's state begin again?",
        {"phase": "with the first encode of statistics behind one that normalized", "reset": "with its reset alone"},
        ("MPSCNNBatchNormalizationStatistics",), ("MPSCNNBatchNormalization.h",),
    ),
    Convention(
        "variance", ("K11",), "Are variances those of the population?",
        {"population": "yes: divided by the count", "sample": "no: divided by one less; of one number it is NaN"},
        ("MPSCNNBatchNormalizationStatistics", "MPSCNNBatchNormalizationGradient", "MPSCNNInstanceNormalization",
         "MPSCNNGroupNormalization"),
        ("MPSMatrixBatchNormalization on an M4 computes the population's (C, B): the nearest kernel measured",),
    ),
    Convention(
        "l2_clamp", ("K12",), "What does L2 pooling read outside the image where the edge mode is Clamp?",
        {"repeated": "the edge's pixels", "left_out": "nothing"}, ("MPSCNNPoolingL2Norm",), ("MPSCNNPooling.h",),
    ),
    Convention(
        "pooling_ties", ("K13",), "Which of equal maxima gets the gradient of max pooling?",
        {"first": "the first, row by row", "last": "the last"},
        ("MPSCNNPoolingMax", "MPSCNNPoolingMaxGradient", "MPSCNNDilatedPoolingMax", "MPSCNNDilatedPoolingMaxGradient"),
        ("MPSCNNPooling.h",),
    ),
    Convention(
        "argument_ties", ("K13",), "Which index do the arguments of minimum and maximum give for equal channels?",
        {"first": "the lowest", "last": "the highest"},
        ("MPSNNReduceFeatureChannelsArgumentMax", "MPSNNReduceFeatureChannelsArgumentMin"), ("MPSNNReduce.h",),
    ),
    Convention(
        "region_corners", ("K14",), "Where do the samples of a cropped region lie?",
        {"corners": "from pixel to pixel, fractions of the last one's place; 0 outside the image",
         "edges": "the same, fractions of the image's length", "steps": "at equal steps from the region's beginning"},
        ("MPSNNCropAndResizeBilinear",), ("MPSNNResize.h",),
    ),
    Convention(
        "grid_corners", ("K15",), "Where do the coordinates of a grid point to?",
        {"corners": "-1 and 1 are the centres of the outer pixels; 0 outside the image",
         "edges": "-1 and 1 are the image's edges", "pixels": "to pixels by their number"}, ("MPSNNGridSample",),
        ("MPSNNGridSample.h+",),
    ),
    Convention(
        "weighted_mean", ("K16",), "What divides a mean of channels with weights?",
        {"channels": "the number of channels", "weights": "the sum of the weights"},
        ("MPSNNReduceFeatureChannelsAndWeightsMean",), ("MPSNNReduce.h",),
    ),
    Convention(
        "upsampling_origin", ("K17",), "Does upsampling into a clip rectangle count from its corner?",
        {"clip": "yes, and offsets are in source pixels", "image": "no: from the destination's corner"},
        ("MPSCNNUpsamplingNearest", "MPSCNNUpsamplingBilinear"), ("MPSCNNUpsampling.h",),
    ),
    Convention(
        "alignment", ("K18", "R5"), "What do ALIGN_TOP_LEFT and ALIGN_BOTTOM_RIGHT of a padding method place there?",
        {"padding": "the padding", "reading": "the first window: padding goes to the other side"},
        ("MPSNNDefaultPadding",), ("MPSNeuralNetworkTypes.h",),
    ),
    Convention(
        "clamp_gradient", ("K19",), "What does a convolution's gradient take from pixels that Clamp repeated?",
        {"adjoint": "what the forward kernel read: the exact derivative", "zeros": "nothing",
         "mixed": "nothing for the data, the repeated pixels for the weights"},
        ("MPSCNNConvolutionGradient",), ("MPSCNNConvolution.h",),
    ),
    Convention(
        "clamp_mask", ("K20",), "Do gradients of arithmetic vanish where the forward kernel was clamped?",
        {"applied": "yes, where the state is given", "ignored": "no"},
        ("MPSCNNAddGradient", "MPSCNNSubtractGradient", "MPSCNNMultiplyGradient"), ("MPSCNNMath.h",),
    ),
    Convention(
        "binary_border", ("K21",), "What do binary convolutions read outside the image?",
        {"zeros": "zeros, which count as +1", "zero_bits": "bits of 0", "nothing": "nothing"},
        ("MPSCNNBinaryConvolution",), ("MPSCNNConvolution.h",),
    ),
)  # fmt: skip
_GRAPHS = (
    Convention(
        "source_order", ("R1",), "In which order does a graph take its sources?",
        {"depth": "depth first from the results, arguments left to right", "breadth": "breadth first from the results"},
        ("MPSNNGraph",), ("MPSNNGraph.h", "graph-order-of-sources: left, right of one node"),
    ),
    Convention(
        "nil_handles", ("R2",), "What handles do nodes without one have in a graph?",
        {"own": "one of the graph's own for each", "none": "none: None stands in their places"}, ("MPSNNGraph",),
        ("graph-two-nodes-of-an-image", "graph-result-handle: nil, in prose alone"),
    ),
    Convention(
        "source_reads", ("R3",), "How many reads does a graph take of a temporary source?",
        {"enough": "one for each filter that reads it, or one where it has fewer", "one": "one"}, ("MPSNNGraph",),
        ("MPSNNGraph.h documents both",),
    ),
    Convention(
        "result_states", ("R4",), "Which states does a graph hand out?",
        {"exported": "those that are exported"}, ("MPSNNGraph",), ("MPSNNGraph.h",), why_not=NO_NUMBERS,
    ),
    Convention(
        "negative_remainder", ("R6",), "How is half of a negative remainder of padding rounded?",
        {"truncated": "towards zero, as C does", "floor": "down"},
        ("MPSNNDefaultPadding",), ("MPSNeuralNetworkTypes.h",),
    ),
    Convention(
        "average_preset", ("R7",), "Which method is TensorFlow's preset of average pooling?",
        {"prose": "0x401C, as the header's words", "code": "0x4010, as its sample code"},
        ("MPSNNDefaultPadding",), ("MPSNeuralNetworkTypes.h",),
    ),
    Convention(
        "average_valid_preset", ("R8",), "Which method is its sister for valid pixels?",
        {"bottom_right": "0x400E", "plain": "0x4000", "remainder": "0x400C"},
        ("MPSNNDefaultPadding",), ("MPSNeuralNetworkTypes.h: none is printed",),
    ),
    Convention(
        "excluded_edges", ("R9",), "How much padding does average pooling count where a method excludes edges?",
        {"window": "what the size of the result needs, ke // 2 for same", "none": "none: pixels of the image alone"},
        ("MPSCNNPoolingAverage",),
        ("MPSNeuralNetworkTypes.h", "average-divides-by-window: the kernel without the bit"),
    ),
    Convention(
        "reverse_offset", ("R10",), "Where does the offset of a transposed convolution go?",
        {"kernel_offset": "into kernelOffset, counted in the source with zeros between"},
        ("MPSCNNConvolutionTranspose",), ("MPSNeuralNetworkTypes.h",), why_not=NOT_DEFINED,
    ),
    Convention(
        "default_policies", ("R11",), "Which padding policy and edge mode has a fresh kernel?",
        {"same": "method 16 and Zero; valid only for fully connected layers"}, ("MPSCNNKernel",),
        ("MPSCNNConvolution.h 1684-1685", "fresh-pooling-edge-mode"), why_not=NOT_DEFINED,
    ),
    Convention(
        "result_format", ("R12",), "How is an image stored that an encode makes of one of whole numbers?",
        {"source": "as the source", "float16": "as Float16"}, ("MPSCNNKernel",), ("MPSCNNKernel.h",),
    ),
    Convention(
        "shared_operand_reads", ("R14",), "How often is a temporary image read that is both operands?",
        {"arguments": "once for each argument"}, ("MPSCNNBinaryKernel",), ("MPSImage.h",), why_not=NO_NUMBERS,
    ),
    Convention(
        "view_reads", ("R15",), "How is a read of views of one image counted?",
        {"group": "once for a group of views"}, ("MPSImage",), ("MPSImage.h",), why_not=NO_NUMBERS,
    ),
    Convention(
        "broadcast_size", ("R16",), "How large is the result of arithmetic on images of different sizes?",
        {"larger": "as the larger one along each axis", "primary": "as the primary one"},
        ("MPSCNNArithmetic",), ("MPSCNNMath.h",),
    ),
    Convention(
        "last_texel", ("R17",), "What becomes of channels behind the last one written, up to a multiple of four?",
        {"untouched": "they stay", "zeros": "0"}, ("MPSCNNKernel",), ("silent",),
    ),
    Convention(
        "concatenation_filler", ("R18",), "What fills one and two channels of a concatenation up to four?",
        {"texture": "0, and 1 in the fourth channel, as such a texture is read", "zeros": "0"},
        ("MPSNNConcatenationNode",), ("graph-concatenation-1-1", "graph-concatenation-2-2"), (_M4,),
    ),
    Convention(
        "graph_primary_scale", ("F1",), "Does a graph use the primary_scale of an addition node?",
        {"kept": "yes, as the node documents it", "dropped": "no: the primary image counts once"},
        ("MPSNNAdditionNode",), ("graph-primary-scale: dropped by an M4; other nodes and properties were not tried",),
    ),
    Convention(
        "shared_updates", ("R20",), "How often is a data source of several layers asked for an update?",
        {"layers": "once a layer, with the old weights"}, ("MPSNNGraph",), ("MPSNNGraph.h",), why_not=NO_NUMBERS,
    ),
    Convention(
        "normalization_updates", ("R21",), "In which order is a batch normalization's source asked for updates?",
        {"gamma_first": "gamma and beta, then mean and variance"}, ("MPSNNGraph",), ("Turi Create calls them so",),
        why_not=NO_NUMBERS,
    ),
    Convention(
        "handler_pruning", ("R22",), "Where does a handler end a training graph by stop_gradient?",
        {"there": "at the image on which it is set"}, ("MPSNNFilterNode",), ("MPSNNGraphNodes.h",),
        why_not=NO_NUMBERS,
    ),
    Convention(
        "addition_order", ("R23",), "In which order are gradients of one image added?",
        {"readers": "in the order of its readers, from the left", "reversed": "from the last reader on"},
        ("MPSNNFilterNode",), ("MPSNNGraphNodes.h",),
    ),
    Convention(
        "intermediate_order", ("R24",), "In which order do intermediate images come?",
        {"exported": "exported ones as they are made, then further results", "made": "all as they are made",
         "results": "further results, then exported ones as they are made"},
        ("MPSNNGraph",), ("MPSNNGraph.h", "graph-intermediates-of-clients: handles are those of exported ones"),
    ),
    Convention(
        "handlers_and_waits", ("R25",), "Have completed handlers returned when a wait ends?",
        {"always": "yes"}, ("MTLCommandBuffer",), (), why_not=_OTHER_OBJECTS,
    ),
    Convention(
        "command_buffer_misuse", ("R26",), "What becomes of a second commit, or an encode behind the commit?",
        {"error": "an error at the line that does it"}, ("MTLCommandBuffer",), (), why_not=_OTHER_OBJECTS,
    ),
    Convention(
        "kernel_archives", ("R27",), "Which properties of a kernel does an archive keep?",
        {"all": "all that can be set"}, ("MPSKeyedArchiver",), ("MPSKernel.h",), why_not=NOT_DEFINED,
    ),
    Convention(
        "node_defaults", ("R28",), "What do the parameters of a neuron node default to?",
        {"formulas": "to those that its formula is printed with"}, ("MPSCNNNeuronNode",),
        ("MPSNNGraphNodes.h", "relu-parameters: the kernel's, not the node's"), why_not=NOT_DEFINED,
    ),
    Convention(
        "states_of_batches", ("R30",), "Does one state serve a batch?",
        {"by_class": "of dropout and convolutions; pooling has one for each image"}, ("MPSNNGradientState",),
        ("MPSCNNDropout.h+ 129",), why_not=NO_NUMBERS,
    ),
)  # fmt: skip
_BESIDES = (
    Convention(
        "registered_metadata", ("P0",), "Do registrations of metadata work in PyObjC?",
        {"yes": "as its source reads"}, (), ("PyObjC",), why_not="it concerns PyObjC, not the framework",
    ),
    Convention(
        "missing_neuron", ("P1",), "What are the neuron parameters of a convolution without a neuron?",
        {"one": "1", "zero": "0"}, ("MPSCNNConvolution",), ("MPSCNNConvolution.h 771, 777, 783",),
    ),
    Convention(
        "loss_weights", ("P2",), "Does a loss with weights multiply by the descriptor's weight, too?",
        {"image": "no: the weights stand in its place", "product": "yes"},
        ("MPSCNNLoss", "MPSNNForwardLoss", "MPSNNLossGradient"), ("MPSCNNLoss.h 303-308",),
    ),
    Convention(
        "batch_divisor", ("P3",), "What does MEAN of soft-max cross entropy divide by across a batch?",
        {"pixels": "W H N", "numbers": "W H C N"}, ("MPSCNNLoss", "MPSNNForwardLoss"),
        ("MPSCNNLoss.h+ 244-246 against 409-411",),
    ),
    Convention(
        "connected_size", ("P4",), "What does a fully connected layer of 1x1 give for a larger image?",
        {"pixels": "a result for each pixel"}, ("MPSCNNFullyConnected",), (), why_not=NOT_DEFINED,
    ),
    Convention(
        "neuron_in_place", ("P5",), "May a neuron write to the image that it reads?",
        {"allowed": "yes"}, ("MPSCNNNeuron",), (), why_not=NOT_DEFINED,
    ),
    Convention(
        "bilinear_centres", ("P6",), "Where do bilinear samples lie without aligned corners?",
        {"asymmetric": "at i / factor", "half_pixel": "at (i + 1/2) / factor - 1/2: pixels are squares"},
        ("MPSCNNUpsamplingBilinear",), ("MetalTensors' tests on Macs: asymmetric",),
    ),
    Convention(
        "normalization_slopes", ("P7",), "Are gradients of local normalizations the derivatives, or as printed?",
        {"derivative": "the derivatives",
         "printed": "as printed: sums of squares without 1 / N, and numbers of the pixel that they are for"},
        ("MPSCNNSpatialNormalization", "MPSCNNSpatialNormalizationGradient", "MPSCNNLocalContrastNormalization",
         "MPSCNNLocalContrastNormalizationGradient", "MPSCNNCrossChannelNormalization",
         "MPSCNNCrossChannelNormalizationGradient"),
        ("MPSCNNNormalization.h 107, 295, 470: the printed formulas are no derivatives",),
    ),
    Convention(
        "gelu_slope", ("P7",), "Is the gradient of GeLU the derivative, or as printed?",
        {"derivative": "the derivative", "printed": "as printed: with twice the derivative's second term"},
        ("MPSCNNNeuron", "MPSCNNNeuronGradient", "MPSCNNBatchNormalizationGradient"),
        ("MPSCNNNeuron.h+ 260: a parenthesis is closed that none opens",),
    ),
    Convention(
        "maxima_of_nan", ("P8",), "What do max pooling and ReLU make of NaN?",
        {"kept": "NaN", "lost": "the largest of the other numbers, -infinity of none; 0 of a ReLU"},
        ("MPSCNNPoolingMax", "MPSCNNDilatedPoolingMax", "MPSCNNNeuronReLU"), ("silent",),
    ),
    Convention(
        "infinite_quotients", ("P8",), "Do infinite quotients pass the default limits?",
        {"pass": "yes: 1/0 is infinite, 0/0 NaN", "cut": "no: 1/0 is the largest float32; NaN stays"},
        ("MPSCNNDivide",), ("MetalTensors' tests on Macs: infinities pass default limits",),
    ),
    Convention(
        "infinite_soft_max", ("P8",), "What is the soft-max of infinity?",
        {"nan": "NaN, as infinity less infinity is"}, ("MPSCNNSoftMax",), ("silent",),
        why_not="by the formula it is NaN; what else a kernel may return is no reading of it",
    ),
    Convention(
        "optimizer_steps", ("P9",), "Do optimizers compute as their formulas are printed?",
        {"printed": "yes"}, ("MPSNNOptimizer",), ("Turi Create's results",), why_not=NOT_DEFINED,
    ),
    Convention(
        "matrix_sum_bias", ("F4",), "To which columns goes the bias of a transposed sum of matrices?",
        {"transposed": "to those of the transposed sum", "stored": "to those of the sum before it is transposed"},
        ("MPSMatrixSum",), ("MPSMatrixSum.h+ 51-52", "matrix-sum-transposed-bias"),
    ),
    Convention(
        "matrix_sum_scales", ("F5",), "What do matrices of a sum add for which there is no scale?",
        {"refused": "there must be one for each: an error", "nothing": "nothing"},
        ("MPSMatrixSum",), ("MPSMatrixSum.h", "matrix-sum-few-scales"),
    ),
    Convention(
        "matrix_sum_result", ("F6",), "What becomes of a sum of matrices that is larger than its result?",
        {"refused": "an error", "cut": "what fits is written"},
        ("MPSMatrixSum",), ("MPSMatrixSum.h", "matrix-sum-small-result"),
    ),
    Convention(
        "matrix_product_batches", ("F7",), "Which of several matrices does a product of matrices use?",
        {"range": "batch_size ones from batch_start on, of which there must be one",
         "first": "the first batch_size ones wherever batch_start is; none of a batch_size of 0"},
        ("MPSMatrixMultiplication",), ("MPSMatrixMultiplication.h", "matrix-product-batches"),
    ),
    Convention(
        "matrix_normalization_sums", ("F8",), "What are the gradients of gamma and beta of normalized matrices?",
        {"computed": "the derivatives", "zeros": "0"},
        ("MPSMatrixBatchNormalizationGradient",),
        ("MPSMatrixBatchNormalization.h", "matrix-normalization-sums: of one encode, which had no beta"),
    ),
)  # fmt: skip
_OBJECTS = (
    Convention(
        "state_resource_size", ("F2",), "Which bytes does resourceSize of a state count?",
        {"resources": "those of its resources", "pages": "16384 for each page that a resource begins"},
        ("MPSState",), ("state-resource-size: 16384 for 64; it depends on the device",),
    ),
    Convention(
        "short_row_bytes", ("F3",), "Is a matrix descriptor made whose rows overlap?",
        {"refused": "no: an error", "taken": "yes; a matrix of it is refused"},
        ("MPSMatrixDescriptor",), ("short-row-bytes",),
    ),
    Convention(
        "matrix_sum_of_one", ("F9",), "May a sum of matrices be of a single one?",
        {"taken": "yes", "refused": "no: an error"},
        ("MPSMatrixSum",), ("silent", "matrix-sum-of-one: described, not printed; of no machine's choices"),
    ),
    Convention(
        "array_view_lengths", ("F10",), "Which lengths does lengthOfDimension of a view of an array say?",
        {"view": "its own", "parent": "those of the array that it is a view of"},
        ("MPSNDArray",), ("MPSNDArray.h+ 232-236", "array-view-lengths"),
    ),
)  # fmt: skip
CONVENTIONS: Mapping[str, Convention] = {row.name: row for row in (*_KERNELS, *_GRAPHS, *_BESIDES, *_OBJECTS, *FILTERS)}
"""All of them by name."""
MACHINES: Mapping[str, Mapping[str, str]] = {
    _M4: {
        "concatenation_filler": "texture",
        "graph_primary_scale": "dropped",
        "matrix_sum_bias": "stored",
        "matrix_sum_scales": "nothing",
        "matrix_sum_result": "cut",
        "matrix_normalization_sums": "zeros",
        "matrix_product_batches": "first",
    },
    "macOS 26.5, M4": {"state_resource_size": "pages", "short_row_bytes": "taken", "array_view_lengths": "parent"},
}
"""What is known of machines: the choices that they were seen to make, the default's among them."""
