"""Every initializer of the header, positional and by name: the same node, with what it was told and the defaults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import openmps as mps
from graph.node_initializers import INITIALIZERS
from in_one_test import in_one_test
from networks import Weights
from node_catalogue import mps_source
from openmps.graph.nodes.catalog import NODES, rows
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.types import (
    MPSCNNBinaryConvolutionFlags,
    MPSCNNBinaryConvolutionType,
    MPSCNNLossType,
    MPSImageCoordinate,
    MPSImageEdgeMode,
    MTLSize,
)
from oracles import yolo_loss
from samples.group_normalization import GammaAndBetaSource
from samples.loss import ANCHORS, detector_descriptor

FORMS = [(getattr(mps, name), tuple(form.split())) for forms, names in INITIALIZERS for form in forms for name in names]
CASES = [pytest.param(kind, form, id=f"{kind.__name__}-{' '.join(form)}") for kind, form in FORMS]
FORWARD: dict[type, Any] = {row.gradient.node: row.node for row in NODES if row.gradient is not None}
IMAGE, FLOW, LABELS, WEIGHTS = (mps.MPSNNImageNode(mps.Handle(name)) for name in ("x", "flow", "labels", "weights"))


class Provider:
    def transform(self, source_image: Any, handle: Any) -> Any:
        return mps.MPSScaleTransform(1.0, 1.0, 0.0, 0.0)


class Statistics(GammaAndBetaSource):
    """What batch normalization asks for besides."""

    def mean(self) -> None:
        return None

    variance = mean


_SOURCE = Weights.of(np.random.default_rng(0), (2, 3, 3, 1))
_WORDS = mps_source(MPSCNNConvolutionDescriptor(1, 1, 1, 1), np.zeros((1, 1, 1, 1), np.uint32))
_NEURON = mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.TANH, 0.5, 2.0)
_LOSS = mps.MPSCNNLossDescriptor(MPSCNNLossType.HUBER)
_STATE = mps.MPSNNForwardLossNode(IMAGE, LABELS, _LOSS).result_state

VALUES: dict[str, Any] = {
    "source": IMAGE, "left_source": IMAGE, "right_source": FLOW, "source_gradient": FLOW, "source_image": IMAGE,
    "kernel_width": 3, "kernel_height": 3, "stride_in_pixels_x": 2, "stride_in_pixels_y": 1, "filter_size": 2,
    "stride": 3, "dilation_rate": 4, "dilation_rate_x": 2, "dilation_rate_y": 5, "kernel_size": 3,
    "keep_probability": 0.25, "seed": 7, "mask_stride_in_pixels": MTLSize(1, 0, 1), "alpha": 0.5,
    "a": 0.5, "b": 2.0, "c": 3.0, "a_data": [0.5, 0.25], "descriptor": _NEURON,
    "padding_policy": mps.MPSNNDefaultPadding(0),
    "loss_descriptor": _LOSS, "labels": LABELS, "is_labels_gradient_filter": True, "is_secondary_source_filter": True,
    "data_source": Statistics(4, 2), "result_width": 2, "result_height": 3, "result_feature_channels": 4,
    "padding_size_before": MPSImageCoordinate(1, 2, 3), "padding_size_after": MPSImageCoordinate(0, 1, 4),
    "edge_mode": MPSImageEdgeMode.MIRROR, "output_size": MTLSize(5, 6, 0), "transform_provider": Provider(),
    "integer_scale_factor_x": 2, "integer_scale_factor_y": 3, "scale_factor_x": 2.0, "scale_factor_y": 3.0,
    "align_corners": True, "scale_value": 0.5, "type": MPSCNNBinaryConvolutionType.XNOR,
    "flags": MPSCNNBinaryConvolutionFlags.USE_BETA_SCALING, "output_bias_terms": [1.0], "output_scale_terms": None,
    "input_bias_terms": [2.0], "input_scale_terms": [3.0], "weights": _SOURCE,
}  # fmt: skip
"""An argument of each name; see `_value` for those that depend on the class."""


def _value(kind: type[MPSNNFilterNode], name: str, form: tuple[str, ...]) -> Any:
    forward: Any = _made(FORWARD[kind]) if kind in FORWARD else None
    if name in ("gradient_state", "convolution_gradient_state", "convolution_transpose_gradient_state"):
        return (forward or mps.MPSCNNConvolutionNode(IMAGE, _SOURCE)).result_state
    if name == "sources":
        count = 2 if kind is not mps.MPSNNLossGradientNode else 3
        return [IMAGE, LABELS] if count == 2 else [FLOW, IMAGE, LABELS]
    if name == "gradient_images":
        return [FLOW]
    if name == "forward_filter":
        return forward
    if name == "weights" and "labels" in form:
        return WEIGHTS
    if name == "weights" and issubclass(kind, mps.MPSCNNBinaryConvolutionNode):
        return _WORDS
    if name == "loss_descriptor" and kind is mps.MPSCNNYOLOLossNode:
        return detector_descriptor(yolo_loss.Parameters(ANCHORS))
    return VALUES[name]


def _arguments(kind: type[MPSNNFilterNode], form: tuple[str, ...]) -> dict[str, Any]:
    return {name: _value(kind, name, form) for name in form}


def _made(kind: type[Any]) -> Any:
    form = next(form for each, form in FORMS if each is kind)
    return kind(**_arguments(kind, form))


def _seen(node: Any) -> dict[str, Any]:
    """What a node tells of itself."""
    names = [name for name in dir(type(node)) if isinstance(getattr(type(node), name, None), property)]
    names += list(getattr(type(node), "__annotations__", {}))
    skipped = {"result_image", "result_state", "result_states", "input_labels", "source_states"}
    found = {"sources": [id(each) for each in node.sources]}
    for name in set(names) - skipped - {"sources"}:
        if name.startswith("_") or (name == "convolution_gradient_state" and "Binary" in type(node).__name__):
            continue
        value = getattr(node, name)
        found[name] = vars(value) if hasattr(value, "loss_type") or hasattr(value, "anchor_boxes") else value
    return {name: repr(value) for name, value in found.items() if "gradient_state" not in name and name != "forward"}


def test_the_list_is_of_every_node_class() -> None:
    listed = {kind for kind, _ in FORMS}
    concrete = {
        kind
        for kind in map(mps.__getattribute__, mps.__all__)
        if isinstance(kind, type) and issubclass(kind, MPSNNFilterNode)
    }
    assert {row.node for row in rows()} <= listed
    assert listed == {kind for kind in concrete if any(row.node in kind.__mro__ for row in rows())}


@in_one_test
@pytest.mark.parametrize(("kind", "form"), CASES)
def test_positional_and_by_name(kind: type[Any], form: tuple[str, ...]) -> None:
    arguments = _arguments(kind, form)
    named = kind(**arguments)
    assert _seen(kind(*arguments.values())) == _seen(named)
    assert isinstance(named, kind)
    for name in form:
        if hasattr(named, name) and "state" not in name and name not in _OTHERWISE:
            assert getattr(named, name) == arguments[name], name
    if isinstance(named, MPSNNGradientFilterNode):
        assert named.sources[:2] == (FLOW, FLOW if "forward_filter" in form else IMAGE)
        assert isinstance(named.forward, FORWARD[kind])


_OTHERWISE = ("sources", "gradient_images", "weights", "loss_descriptor", "forward_filter", "descriptor", "a_data")
"""Arguments that a node shows in another way."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "MPSCNNDropoutNode": {"keep_probability": 0.5, "seed": 0, "mask_stride_in_pixels": MTLSize(1, 1, 1)},
    "MPSCNNSpatialNormalizationNode": {"alpha": 1.0, "beta": 5.0, "delta": 1.0},
    "MPSCNNCrossChannelNormalizationNode": {
        "alpha": 1.0, "beta": 5.0, "delta": 1.0, "kernel_size_in_feature_channels": 5,
    },
    "MPSCNNLocalContrastNormalizationNode": {
        "alpha": 1.0, "beta": 0.5, "delta": 2.0**-10, "pm": 0.0, "ps": 1.0, "p0": 1.0,
    },
    "MPSCNNSpatialNormalizationGradientNode": {"alpha": 1.0, "beta": 5.0, "delta": 1.0},
    "MPSCNNLocalContrastNormalizationGradientNode": {
        "alpha": 0.0, "beta": 0.5, "delta": 2.0**-10, "pm": 0.0, "ps": 1.0, "p0": 1.0,
    },
    "MPSCNNBatchNormalizationNode": {"flags": mps.MPSCNNBatchNormalizationFlags.DEFAULT},
    "MPSNNComparisonNode": {"comparison_type": mps.MPSNNComparisonType.EQUAL, "primary_scale": 1.0, "bias": 0.0},
    "MPSNNReductionFeatureChannelsSumNode": {"weight": 1.0, "clip_rect_source": mps.MPSRectNoClip},
    "MPSNNPadNode": {"fill_value": 0.0},
    "MPSNNGramMatrixCalculationNode": {"alpha": 1.0, "property_call_back": None},
    "MPSNNForwardLossNode": {"weight": 1.0, "property_call_back": None, "reduce_across_batch": False},
}  # fmt: skip


@in_one_test
@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name: str) -> None:
    kind = getattr(mps, name)
    form = min((form for each, form in FORMS if each is kind), key=len)
    node = kind(**_arguments(kind, form))
    assert {each: getattr(node, each) for each in DEFAULTS[name]} == DEFAULTS[name]


def test_one_filter_size_is_the_dilation_rate_too() -> None:
    node = mps.MPSCNNDilatedPoolingMaxNode(IMAGE, 3)
    sizes = (node.kernel_width, node.kernel_height, node.stride_in_pixels_x, node.dilation_rate_x, node.dilation_rate_y)
    assert sizes == (3, 3, 3, 3, 3)
    other = mps.MPSCNNDilatedPoolingMaxNode(IMAGE, 3, 2, 4)
    assert (other.kernel_height, other.stride_in_pixels_y, other.dilation_rate_x) == (3, 2, 4)


@in_one_test
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mps.MPSCNNPoolingMaxNode(IMAGE, 1, 2, 3), r"arguments must be 4 behind the source"),
        (lambda: mps.MPSCNNPoolingMaxNode(IMAGE, 1, 2, 3, 4, kernel_width=1), "kernel_width must not be given twice"),
        (lambda: mps.MPSCNNDilatedPoolingMaxNode(IMAGE), "filter_size is needed, or all of kernel_width"),
        (lambda: mps.MPSCNNDilatedPoolingMaxNode(IMAGE, 3, 0), "must be integers of at least 1"),
        (lambda: mps.MPSCNNBinaryConvolutionNode(IMAGE, _WORDS, 1.0), "type must be one of"),
        (lambda: mps.MPSCNNBinaryConvolutionNode(IMAGE, _WORDS, 1.0, 1, 0, 0), "arguments must be at most 3 behind"),
        (
            lambda: mps.MPSCNNBinaryConvolutionNode(IMAGE, _WORDS, 1.0, 1, 0, input_bias_terms=[1.0]),
            "scale_value cannot be given together with input_bias_terms",
        ),
        (lambda: mps.MPSCNNConvolutionTransposeNode(IMAGE, IMAGE, _SOURCE), "convolution_gradient_state must be that"),
        (lambda: mps.MPSCNNConvolutionTransposeNode(IMAGE), "weights is needed"),
        (lambda: mps.MPSNNBilinearScaleNode(IMAGE, 3), "output_size must be an MTLSize"),
        (lambda: mps.MPSNNBilinearScaleNode(IMAGE, MTLSize(0, 1, 1)), "output_size must have at least one pixel"),
        (lambda: mps.MPSNNBilinearScaleNode(IMAGE, 3, MTLSize(1, 1, 1)), "transform_provider must have a method"),
        (lambda: mps.MPSNNReshapeNode(IMAGE, 0, 1, 1), "result_width must be an integer of at least 1"),
        (lambda: mps.MPSNNPadNode(IMAGE, 1, 1, MPSImageEdgeMode.ZERO), "padding_size_before must be an MPSImageCoord"),
        (lambda: mps.MPSCNNUpsamplingNearestNode(IMAGE, 1.5, 1), "integer_scale_factor_x must be an integer"),
        (lambda: mps.MPSNNForwardLossNode(IMAGE, LABELS), "loss_descriptor must be an MPSCNNLossDescriptor"),
        (lambda: mps.MPSNNForwardLossNode([IMAGE], _LOSS), "sources must be 2 or 3 image nodes"),
        (lambda: mps.MPSNNForwardLossNode(IMAGE, LABELS, _LOSS, sources=[IMAGE]), "sources must not be given beside"),
        (
            lambda: mps.MPSNNLossGradientNode(FLOW, IMAGE, LABELS, _STATE, _STATE, _LOSS),
            "arguments must be image nodes, one gradient state node or None",
        ),
        (lambda: mps.MPSCNNConvolutionTransposeGradientNode(FLOW, IMAGE), "convolution_transpose_gradient_state must"),
        (lambda: mps.MPSCNNYOLOLossNode(IMAGE, _LOSS), "loss_descriptor must be an MPSCNNYOLOLossDescriptor"),
        (lambda: mps.MPSCNNBatchNormalizationNode(IMAGE, 3), "data_source must be a data source with the methods"),
        (lambda: mps.MPSNNGramMatrixCalculationNode(IMAGE, "1"), "alpha must be a number"),
        (lambda: mps.MPSCNNSpatialNormalizationNode(IMAGE, 0), "kernel_size must be an integer of at least 1"),
    ],
)  # fmt: skip
def test_what_initializers_refuse(make: Any, message: str) -> None:
    with pytest.raises(mps.MPSError, match=message):
        make()


def test_the_state_of_a_transposed_convolutions_gradient() -> None:
    """By the name of its own initializer, and by that of the one it inherits."""
    forward = mps.MPSCNNConvolutionTransposeNode(IMAGE, None, _SOURCE)
    kind, state = mps.MPSCNNConvolutionTransposeGradientNode, forward.result_state
    for node in (
        kind(FLOW, IMAGE, state, _SOURCE),
        kind(FLOW, IMAGE, convolution_transpose_gradient_state=state),
        kind(FLOW, IMAGE, convolution_gradient_state=state, weights=_SOURCE),
    ):
        assert node.convolution_gradient_state is node.convolution_transpose_gradient_state is state
    with pytest.raises(mps.MPSTypeError, match="must be given, by one of its two names"):
        kind(FLOW, IMAGE, state, convolution_gradient_state=state)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (mps.MPSNNReductionRowMinNode, "clip_rect_source", 3),
        (mps.MPSNNGramMatrixCalculationNode, "property_call_back", 3),
        (mps.MPSNNForwardLossNode, "property_call_back", 3),
        (mps.MPSNNComparisonNode, "comparison_type", 77),
    ],
)
def test_what_properties_refuse(kind: type[Any], name: str, value: Any) -> None:
    with pytest.raises(mps.MPSError, match=f"^{kind.__name__}: {name} must"):
        setattr(_made(kind), name, value)


def test_binary_convolutions_have_no_gradient_state() -> None:
    with pytest.raises(mps.MPSTypeError, match="convolution_gradient_state is not offered"):
        _ = _made(mps.MPSCNNBinaryConvolutionNode).convolution_gradient_state


@in_one_test
@pytest.mark.parametrize("kind", [row.node for row in NODES if row.gradient is None])
def test_nodes_without_gradient_say_so(kind: type[Any]) -> None:
    node = _made(kind)
    assert node.result_state is None
    rule = "the result image of a loss is its gradient" if kind in _STARTS else "this filter has no gradient"
    with pytest.raises(mps.MPSTypeError, match=rule):
        node.gradient_filters(FLOW)


_STARTS = (mps.MPSCNNLossNode, mps.MPSCNNYOLOLossNode, mps.MPSNNInitialGradientNode)


@in_one_test
@pytest.mark.parametrize("row", [row for row in NODES if row.gradient is not None], ids=lambda row: row.node.__name__)
def test_gradient_nodes_take_over_what_the_forward_node_says(row: Any) -> None:
    node = _made(row.node)
    for made in node.gradient_filters(FLOW):
        assert type(made) is row.gradient.node
        assert made.forward is node
        assert made.source_states == (node.result_state,)
        assert type(node.result_state) is row.state
        for name in (*row.gradient.takes, *row.gradient.copies):
            if hasattr(made, name):
                assert getattr(made, name) == getattr(node, name), name
