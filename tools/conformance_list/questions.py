"""Cases that settle open questions of the headers: an experiment or two for each that the list's words can say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import openmps as mps
from conformance_list import filters
from conformance_list.describe import DEVICE, described, listed
from conformance_list.kernels import family_of
from conformance_list.nodes import FLOAT32

Loss, Reduction, Method = mps.MPSCNNLossType, mps.MPSCNNReductionType, mps.MPSNNPaddingMethod
CLAMP = mps.MPSImageEdgeMode.CLAMP
SAME, VALID, FULL = Method.SIZE_SAME, Method.SIZE_VALID_ONLY, Method.SIZE_FULL
Entry = dict[str, Any]
APART = {
    "secondary_offset": "an encode whose gradient kernel has an offset of its own",
    "dropout_encodes": "two encodes of one kernel", "statistics_restart": "statistics over several encodes",
    "nil_handles": "identity of objects", "source_reads": "counts of temporary images",
    "result_states": "states of graphs", "shared_operand_reads": "counts of temporary images",
    "view_reads": "counts of temporary images", "last_texel": "a destination that is filled before",
    "shared_updates": "training graphs", "normalization_updates": "training graphs",
    "handler_pruning": "training graphs", "addition_order": "training graphs",
    "intermediate_order": "exported images of graphs", "handlers_and_waits": "handlers of command buffers",
    "command_buffer_misuse": "command buffers by themselves", "kernel_archives": "archives",
    "states_of_batches": "batches", "registered_metadata": "PyObjC alone", "neuron_in_place": "one image for both",
    "optimizer_steps": "optimizers", "batch_divisor": "batches", "upsampling_origin": "a destination that is filled",
    "state_resource_size": "states by themselves", "short_row_bytes": "a descriptor by itself",
    **dict.fromkeys(
        ("matrix_sum_bias", "matrix_sum_scales", "matrix_sum_result", "matrix_sum_of_one"),
        "the list has no sums of matrices",
    ),
    "matrix_normalization_sums": "the list has no normalized matrices",
    "matrix_product_batches": "the list has no products of several matrices",
    "array_view_lengths": "the list has no arrays",
    **filters.APART,
}  # fmt: skip
"""Questions that the list does not ask, by the names of conventions: what that would take."""


def row(*numbers: Any) -> Entry:
    """An image of one row of pixels: numbers, or lists of one for each channel."""
    pixels = [each if isinstance(each, list) else [each] for each in numbers]
    return listed([pixels])


def _kernel(kernel: Any, *sources: Entry, read: Sequence[str] = ("result",), **more: Any) -> Entry:
    entry = {"kind": "kernel", "classes": [type(kernel).__name__], "kernel": described(kernel)}
    return {**entry, "sources": list(sources), "read": list(read), **more}


def _set(kernel: Any, **properties: Any) -> Any:
    for name, value in properties.items():
        setattr(kernel, name, value)
    return kernel


def _weighted(kind: str, numbers: Any, *sources: Entry, stride: int = 1, padding: Any = None, **more: Any) -> Entry:
    """A convolution of one row of weights."""
    weights = listed(np.asarray(numbers, np.float32).reshape(1, 1, -1, 1))
    names = {"kernelWidth": weights["shape"][2], "kernelHeight": 1, "inputFeatureChannels": 1}
    descriptor: Entry = {"class": "MPSCNNConvolutionDescriptor", "arguments": {**names, "outputFeatureChannels": 1}}
    if stride > 1:
        descriptor["properties"] = {"strideInPixelsX": stride}
    source = {"descriptor": descriptor, "weights": weights}
    kernel: Entry = {"class": kind, "arguments": {"weights": source}}
    properties = more.pop("properties", {})
    if padding is not None:
        properties["padding"] = {"padding": int(padding)}
    if properties:
        kernel["properties"] = properties
    entry = {"kind": "kernel", "classes": [kind], "kernel": kernel, "sources": list(sources), "read": ["result"]}
    if "gradient" in more:
        gradient = {"class": f"{kind}Gradient", "arguments": {"weights": source}}
        entry["gradients"] = [{"kernel": gradient, "secondary": 0, "incoming": more.pop("gradient")}]
        entry["read"] = ["result", "gradients", "gradientForWeights"]
    return {**entry, **more}


def _loss(kind: Loss, y: Entry, t: Entry, weights: Entry | None = None, **properties: Any) -> Entry:
    """Loss and gradient of MPSCNNLoss, summed."""
    descriptor = _set(mps.MPSCNNLossDescriptor(kind, Reduction.SUM), **properties)
    more: Entry = {"labels": t, "lossImageSize": [1, 1, 1]}
    if weights is not None:
        more["labelWeights"] = weights
    return _kernel(mps.MPSCNNLoss(DEVICE, descriptor), y, read=["result", "loss"], **more)


def _graph(nodes: Sequence[Entry], *sources: Entry, read: Sequence[str] = ("result",)) -> Entry:
    classes = sorted({node["class"] for node in nodes})
    return {"kind": "graph", "classes": classes, "nodes": list(nodes), "format": FLOAT32,
            "sources": list(sources), "read": list(read)}  # fmt: skip


def _object(kind: str, shows: Sequence[str], described_as: Entry | None = None, **arguments: Any) -> Entry:
    made = {"class": kind, "arguments": arguments} if described_as is None else described_as
    return {"kind": "object", "classes": [kind], "object": made, "shows": list(shows)}


def _added(left: Entry, right: Entry) -> Entry:
    return {"class": "MPSNNAdditionNode", "arguments": {"leftSource": left, "rightSource": right}}


def _binary(kind: mps.MPSCNNBinaryConvolutionType) -> Entry:
    names = {"kernelWidth": 3, "kernelHeight": 3, "inputFeatureChannels": 1, "outputFeatureChannels": 1}
    descriptor = {"class": "MPSCNNConvolutionDescriptor", "arguments": names}
    data = {"descriptor": descriptor, "words": [1] * 9}
    kernel = {"class": "MPSCNNBinaryConvolution"}
    kernel["arguments"] = {"convolutionData": data, "type": int(kind), "flags": 0}  # type: ignore[assignment]
    return {"kind": "kernel", "classes": [kernel["class"]], "kernel": kernel, "sources": [row(1)], "read": ["result"]}


def _padded(kernel: Any, source: Entry, method: Any, *shows: str) -> Entry:
    policy = mps.MPSNNDefaultPadding(method) if isinstance(method, int) else None
    entry = _kernel(kernel if policy is None else _set(kernel, padding=policy), source, shows=list(shows))
    if policy is None:
        entry["kernel"].setdefault("properties", {})["padding"] = {"padding": method}
    return entry


def _average(width: int, stride: int) -> Any:
    return mps.MPSCNNPoolingAverage(DEVICE, width, 1, stride, 1)


def _maximum(width: int, stride: int) -> Any:
    return mps.MPSCNNPoolingMax(DEVICE, width, 1, stride, 1)


def _ramp(count: int, first: int = 1) -> Entry:
    return row(*range(first, first + count))


def _precision() -> Iterator[tuple[str, str, Entry]]:
    entry = _weighted("MPSCNNConvolution", [1 + 2**-12], row(1))
    yield "weights_precision", "a weight that float16 does not hold", entry


def _losses() -> Iterator[tuple[str, str, Entry]]:
    yield "hinge_labels", "y .5, t 0", _loss(Loss.HINGE, row(0.5), row(0))
    yield "soft_max_slope", "labels of 1 1 0", _loss(Loss.SOFT_MAX_CROSS_ENTROPY, row([1, 2, 3]), row([1, 1, 0]))
    yield "soft_max_slope", "labels of 0", _loss(Loss.SOFT_MAX_CROSS_ENTROPY, row([1, 2, 3]), row([0, 0, 0]))
    two = row([1, 2], [3, 4]), row([0.125, 0.25], [0.375, 0.5])
    yield "cosine_distance", "two pixels", _loss(Loss.COSINE_DISTANCE, *two)
    weighted = _loss(Loss.MEAN_ABSOLUTE_ERROR, row(1), row(0), row(3), weight=2.0)
    yield "loss_weights", "a weight of 2 and an image of 3", weighted
    mean = mps.MPSNNLossGradient(DEVICE, mps.MPSCNNLossDescriptor(Loss.MEAN_SQUARED_ERROR, Reduction.MEAN))
    entry = _kernel(mean, row(1), row([1, 2], [3, 4]), labels=row([0, 0], [0, 0]))
    yield "loss_gradient_mean", "the gradient of a mean", entry
    types = [Loss.MEAN_SQUARED_ERROR, Loss.HUBER, Loss.SIGMOID_CROSS_ENTROPY, Loss.SOFT_MAX_CROSS_ENTROPY]
    boxes = mps.MPSCNNYOLOLossDescriptor(*types, Reduction.SUM, [(1.0, 2.0)])
    y, t = row([0.25, -0.25, 0.125, 0.375, 0.5, 1, 2]), row([0.625, 0.75, 1.5, 2, 1, 1, 0])
    more = {"labels": t, "lossImageSize": [1, 1, 1]}
    cell = _kernel(mps.MPSCNNYOLOLoss(DEVICE, boxes), y, read=["result", "loss"], **more)
    for name in ("yolo_slope", "yolo_sizes", "yolo_confidence"):
        yield name, "one cell", cell


def _kernels() -> Iterator[tuple[str, str, Entry]]:
    yield (
        "reshape_order",
        "two pixels in one",
        _kernel(mps.MPSNNReshape(DEVICE), row([1, 2], [3, 4]), destination=[1, 1, 4]),
    )
    rows = {"gamma": row(1), "beta": row(0)}
    instance = {
        "class": "MPSCNNInstanceNormalization",
        "arguments": {"dataSource": {name: {"shape": [1], "numbers": each["numbers"]} for name, each in rows.items()}
                      | {"epsilon": 0.0}},
    }  # fmt: skip
    yield "variance", "2 and 4", {
        "kind": "kernel", "classes": [instance["class"]], "kernel": instance, "sources": [row(2, 4)],
        "read": ["result"],
    }  # fmt: skip
    norms = _set(mps.MPSCNNPoolingL2Norm(DEVICE, 3, 1), edge_mode=CLAMP)
    yield "l2_clamp", "3 4", _kernel(norms, row(3, 4))
    for name in ("ArgumentMax", "ArgumentMin"):
        kind = getattr(mps, f"MPSNNReduceFeatureChannels{name}")
        yield "argument_ties", f"four equal channels, {name}", _kernel(kind(DEVICE), row([7, 7, 7, 7]))
    for width in (0.5, 1.0, 1.5):
        part = mps.MPSRegion(mps.MPSOrigin(0.0, 0.0, 0.0), mps.MPSSize(width, 1.0, 1.0))
        crop = mps.MPSNNCropAndResizeBilinear(DEVICE, 3, 1, 1, [part])
        yield "region_corners", f"a region {width} wide", _kernel(crop, _ramp(5, 0))
    for absolute, places in ((True, ([-1, 0], [0, 0], [1, 0])), (False, ([0, 0], [0.5, 0], [1, 0]))):
        sample = _set(mps.MPSNNGridSample(DEVICE), use_grid_value_as_input_coordinate=absolute)
        yield "grid_corners", f"useGridValue {absolute}", _kernel(sample, row(10, 20, 30), row(*places))
    features, weights = row([1, 2, 3, 4], [5, 6, 7, 8]), row([1, 0, 1, 0], [1, 0, 1, 0])
    mean = mps.MPSNNReduceFeatureChannelsAndWeightsMean(DEVICE)
    yield "weighted_mean", "every second channel", _kernel(mean, features, weights)
    for kind in (mps.MPSCNNBinaryConvolutionType.XNOR, mps.MPSCNNBinaryConvolutionType.AND):
        yield "binary_border", f"one pixel, {kind.name}", _binary(kind)
    ties = {"kernel": described(mps.MPSCNNPoolingMaxGradient(DEVICE, 2, 1, 2, 1)), "secondary": 0}
    pooled = _kernel(mps.MPSCNNPoolingMax(DEVICE, 2, 1, 2, 1), row(1, 1, 1, 1), read=["result", "gradients"])
    pooled["gradients"] = [{**ties, "incoming": {"numbers": [1, 1]}}]
    yield "pooling_ties", "ones", pooled
    added = _kernel(_set(mps.MPSCNNAdd(DEVICE), maximum_value=5.0), row(1, 4), row(2, 3), read=["result", "gradients"])
    gradient = {"kernel": described(mps.MPSCNNAddGradient(DEVICE)), "secondary": 0, "incoming": {"numbers": [1, 1]}}
    yield "clamp_mask", "a sum at its limit", {**added, "gradients": [gradient]}
    clamped = _weighted(
        "MPSCNNConvolution", [1, 10, 100], row(1, 2), properties={"edgeMode": int(CLAMP)},
        gradient={"numbers": [1, 1]},
    )  # fmt: skip
    yield "clamp_gradient", "two pixels", clamped
    yield (
        "missing_neuron",
        "a convolution without one",
        _weighted("MPSCNNConvolution", [1], row(1), shows=["neuronParameterA", "neuronParameterB", "neuronParameterC"]),
    )
    larger = mps.MPSCNNUpsamplingBilinear(DEVICE, 2, 1)
    yield "bilinear_centres", "upsampling by 2", _kernel(larger, row(0, 10, 20))
    yield "bilinear_centres", "resizing 3 to 6", _kernel(mps.MPSNNResizeBilinear(DEVICE, 6, 1, False), row(0, 10, 20))
    yield "maxima_of_nan", "maximum", _kernel(_maximum(2, 1), row("nan", 1, 2, 3), destination=[4, 1, 1])
    yield "maxima_of_nan", "ReLU", _kernel(mps.MPSCNNNeuronReLU(DEVICE, 0.0), row("nan", "inf", "-inf", -1))
    yield "infinite_quotients", "division", _kernel(mps.MPSCNNDivide(DEVICE), row(1, 0, -1), row(0, 0, 0))
    yield "infinite_soft_max", "infinity and 0", _kernel(mps.MPSCNNSoftMax(DEVICE), row(["inf", 0]))
    for form in ("UNORM8", "UNORM16", "FLOAT16"):
        source = {"format": int(mps.MPSImageFeatureChannelFormat[form]), **row([0, 1, 0, 1])}
        neuron = mps.MPSCNNNeuronReLU(DEVICE, 0.0)
        yield "result_format", f"of {form}", _kernel(neuron, source, read=["pixelFormat"])
    one = _set(mps.MPSCNNAdd(DEVICE), primary_stride_in_pixels_x=0, primary_stride_in_pixels_y=0)
    yield "broadcast_size", "one pixel and six", _kernel(one, row(1), _ramp(6), read=["size"])
    yield "broadcast_size", "two and three", _kernel(mps.MPSCNNAdd(DEVICE), row(1, 2), row(10, 20, 30), read=["size"])
    contrast = _set(mps.MPSCNNLocalContrastNormalization(DEVICE, 3, 3), alpha=1.0)
    contrast_back = _set(mps.MPSCNNLocalContrastNormalizationGradient(DEVICE, 3, 3), alpha=1.0)
    squares, squares_back = mps.MPSCNNSpatialNormalization, mps.MPSCNNSpatialNormalizationGradient
    channels, channels_back = mps.MPSCNNCrossChannelNormalization, mps.MPSCNNCrossChannelNormalizationGradient
    gelu = mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.GELU)
    neuron, neuron_back = mps.MPSCNNNeuron(DEVICE, gelu), mps.MPSCNNNeuronGradient(DEVICE, gelu)
    for name, what, forward, back, source in (
        ("normalization_slopes", "three channels", channels(DEVICE, 3), channels_back(DEVICE, 3), row([0.5, 1, 2])),
        ("normalization_slopes", "squares of windows", squares(DEVICE, 3, 3), squares_back(DEVICE, 3, 3), _ramp(3)),
        ("normalization_slopes", "contrast of windows", contrast, contrast_back, _ramp(3)),
        ("gelu_slope", "three numbers", neuron, neuron_back, row(-1.5, 0.5, 2)),
    ):
        entry = _kernel(forward, source, read=["result", "gradients"])
        incoming = {"kernel": described(back), "secondary": 0, "incoming": {"numbers": [1, 1, 1]}}
        yield name, what, {**entry, "gradients": [incoming]}


def _policies() -> Iterator[tuple[str, str, Entry]]:
    for size in (Method.SIZE_SAME, Method.SIZE_FULL):
        for align in (Method.ALIGN_TOP_LEFT, Method.ALIGN_BOTTOM_RIGHT):
            entry = _weighted("MPSCNNConvolution", [1, 10, 100], _ramp(5), padding=int(size | align), shows=["offset"])
            yield "alignment", f"{size.name}, {align.name}", entry
    remainders = ("top left", Method.ADD_REMAINDER_TO_TOP_LEFT), ("bottom right", Method.ADD_REMAINDER_TO_BOTTOM_RIGHT)
    for side, added in remainders:
        name = "negative_remainder"
        yield name, f"valid only, {side}", _padded(_maximum(3, 2), _ramp(8), int(VALID | added), "offset")
        yield name, f"same, {side}", _padded(_maximum(1, 2), _ramp(4), int(SAME | added), "offset")
    preset = "paddingForTensorflowAveragePooling"
    yield "average_preset", "1 to 10", _padded(_average(3, 2), _ramp(10), preset, "offset", "edgeMode", "padding")
    entry = _padded(_average(3, 3), _ramp(11), f"{preset}ValidOnly", "offset", "edgeMode", "padding")
    yield "average_valid_preset", "1 to 11", entry
    edges, ones = int(Method.EXCLUDE_EDGES), row(1, 1, 1, 1)
    shows = ("edgeMode", "zeroPadSizeX")
    yield "excluded_edges", "same", _padded(_average(3, 1), ones, int(SAME) | edges, *shows)
    yield "excluded_edges", "full", _padded(_average(3, 2), ones, int(FULL) | edges, *shows)
    yield "excluded_edges", "without the bit", _padded(_average(3, 1), ones, int(SAME), *shows)
    transposed = ("3 same", [1, 10, 100], SAME), ("3 full", [1, 10, 100], FULL), ("2 full", [1, 10], FULL)
    for name, weights, method in (*transposed, ("4 same", [1, 10, 100, 1000], SAME)):
        yield "reverse_offset", name, _weighted(
            "MPSCNNConvolutionTranspose", weights, _ramp(4), stride=2, padding=int(method),
            shows=["offset", "kernelOffsetX"],
        )  # fmt: skip
    for kind in ("MPSCNNPoolingMax", "MPSCNNPoolingAverage", "MPSCNNPoolingL2Norm"):
        yield "default_policies", kind, _object(kind, ["padding", "edgeMode"], kernelWidth=3, kernelHeight=3)
    for kind in ("MPSCNNSoftMax", "MPSCNNNeuronAbsolute"):
        yield "default_policies", kind, _object(kind, ["padding", "edgeMode"])


def _graphs() -> Iterator[tuple[str, str, Entry]]:
    first, second, third = ({"source": place} for place in range(3))
    before = {"node": 0}
    sources = row(1), row(2), row(4)
    orders = {"(c + b) + a": ((third, second), (before, first)), "a + (c + b)": ((third, second), (first, before))}
    for name, (one, two) in orders.items():
        yield "source_order", name, _graph([_added(*one), _added(*two)], *sources, read=["sourceOrder"])
    yield (
        "concatenation_filler",
        "one and two channels",
        _graph([{"class": "MPSNNConcatenationNode", "arguments": {"sources": [first, second]}}], row([1]), row([5, 6])),
    )
    for kind in ("Addition", "Subtraction", "Multiplication", "Division"):
        for name in ("primaryScale", "secondaryScale", "bias"):
            node = {**_added(first, second), "class": f"MPSNN{kind}Node", "properties": {name: 2.0}}
            yield "graph_primary_scale", f"{name} of {kind}", _graph([node], row(1, 2, 3, 4), row(10, 20, 30, 40))
    for kind in ("ReLU", "ReLUN", "ELU", "HardSigmoid", "SoftPlus", "TanH", "Power", "Exponential", "Logarithm",
                 "Linear"):  # fmt: skip
        node = {"class": f"MPSCNNNeuron{kind}Node", "arguments": {"source": first}}
        yield "node_defaults", kind, _graph([node], row(-0.5, 0.5, 1, 2))
    descriptor = {
        "class": "MPSCNNConvolutionDescriptor",
        "arguments": {
            "kernelWidth": 1, "kernelHeight": 1, "inputFeatureChannels": 1, "outputFeatureChannels": 1,
        },
    }  # fmt: skip
    source = {"descriptor": descriptor, "weights": {"shape": [1, 1, 1, 1], "numbers": [2]}}
    node = {"class": "MPSCNNFullyConnectedNode", "arguments": {"source": first, "weights": source}}
    yield "connected_size", "1x1 on three pixels", _graph([node], row(1, 2, 3), read=["size"])


def question_cases() -> Iterator[Entry]:
    """Named after conventions and what is asked."""
    for part in (_precision, _losses, _kernels, _policies, _graphs, filters.filter_questions):
        for convention, what, entry in part():
            family = family_of(entry["classes"][0])
            yield {"name": f"question: {convention}: {what}", "family": family, "questions": [convention], **entry}
