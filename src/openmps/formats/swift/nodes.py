"""Nodes as Swift: each by its initializer, then what is set on it and on its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from openmps.checks import Checked
from openmps.core.image.image import MPSImage
from openmps.core.image.temporary import MPSTemporaryImage
from openmps.core.padding.explicit import ExplicitPadding
from openmps.core.padding.policy import MPSNNDefaultPadding, MPSNNPadding, preset_choice
from openmps.formats.swift.classes import template
from openmps.formats.swift.layers import Layers
from openmps.formats.swift.literals import camel, case, float32, literal, options, string
from openmps.formats.swift.text import Text
from openmps.graph.compile.interface import source_label
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes import neuron
from openmps.graph.nodes.catalog import SINCE, rows
from openmps.graph.nodes.node import (
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNImageNode,
    MPSNNStateNode,
    handle_label,
    row_of,
)
from openmps.graph.nodes.rows import Form, Row
from openmps.kernels.loss import MPSCNNLossDescriptor, MPSCNNYOLOLossDescriptor
from openmps.types import (
    MPSImageEdgeMode,
    MPSImageFeatureChannelFormat,
    MPSNNPaddingMethod,
)

_FUSION = int(MPSNNPaddingMethod.CUSTOM_ALLOW_FOR_NODE_FUSION)
_PRESETS = {
    "average_preset": "MPSNNDefaultPadding.forTensorflowAveragePooling()",
    "average_valid_preset": "MPSNNDefaultPadding.forTensorflowAveragePoolingValidOnly()",
}
"""Presets by the conventions on what they are: a Mac knows."""
_CUSTOM = int(MPSNNPaddingMethod.CUSTOM)
_IMAGES = {"source": 0, "left_source": 0, "right_source": 1, "source_gradient": 0, "source_image": 1}
"""Arguments that are one of the node's sources, and which."""
_STATES = {
    "gradient_state": "resultState",
    "convolution_gradient_state": "convolutionGradientState",
    "convolution_transpose_gradient_state": "resultState",
    "paired_state": "convolutionGradientState",
}
"""Arguments that are the node's source state, and the property of the filter that leaves it."""
_LABELS = {
    "paired_state": "convolutionGradientState",
}
"""Labels that are not the names of our arguments."""
_CALLBACKS = ("transform_provider", "property_call_back")
_SINCE_PROPERTY = {"accumulator_precision": "10.14"}
_FORWARD_STYLE = "10.15"
"""The macOS since which forward nodes have a training style; gradient nodes always had."""
_TERMS = ("output_bias_terms", "output_scale_terms", "input_bias_terms", "input_scale_terms")
_LATER_EDGES = (MPSImageEdgeMode.MIRROR, MPSImageEdgeMode.MIRROR_WITH_EDGE, MPSImageEdgeMode.CONSTANT)


class Nodes:
    """Writes the nodes of one graph; what Swift cannot say of them is among ``faults``."""

    def __init__(self, graph: MPSNNGraph, text: Text, layers: Layers, faults: list[str]) -> None:
        self._kernels, self._interface = graph.kernels, graph.interface
        self._text, self._layers, self._faults = text, layers, faults
        self._images: dict[MPSNNImageNode, str] = {}
        self._filters: dict[MPSNNFilterNode, str] = {}
        self._gradients: dict[tuple[MPSNNFilterNode, MPSNNImageNode], str] = {}
        """Lists of gradient nodes that Swift makes at once."""
        self._paddings: dict[int, str] = {}
        self._special: dict[str, Callable[[Any, Any], str]] = {
            "weights": self._layers.source_of,
            "data_source": self._layers.source_of,
            "sources": self._sources,
            "gradient_images": lambda node, kernel: f"[{self._images[node.sources[0]]}]",
            "forward_filter": lambda node, kernel: self._filters[node.forward],
            "descriptor": lambda node, kernel: self._layers.neuron(node.descriptor, self._name(node)),
            "a_data": lambda node, kernel: self._layers.slopes(node.descriptor, self._name(node)),
            "loss_descriptor": self._loss,
            "padding_policy": lambda node, kernel: self.policy(node, node.padding_policy),
        }

    # --- inputs -------------------------------------------------------------------------------------------------------

    def inputs(self) -> list[str]:
        """Write the source images; the labels by which the graph asks for them."""
        labels: list[str] = []
        for place, image in enumerate(self._interface.inputs):
            given = handle_label(image.handle)
            label = source_label(place) if given is None else given
            variable = self._images[image] = self._text.names.take(label)
            labels.append(label)
            self._text.use(template("handle"))
            self._text.line(f"let {variable} = MPSNNImageNode(handle: {self._text.model}Handle({string(label)}))")
            self._image(image, variable, by_handle=False)
        return labels

    # --- filters ------------------------------------------------------------------------------------------------------

    def filter(self, node: MPSNNFilterNode, kernel: Any) -> None:
        """Write one node."""
        found = form_of(node)
        if isinstance(found, str):
            self._faults.append(f"{node.name}: {found}")
            return
        kind, form = found
        for name in _CALLBACKS:
            if getattr(node, name, None) is not None:
                self._faults.append(f"{node.name}: its {name} is Python, and is asked at each encode; set one in Swift")
        self._text.needs(SINCE[kind.__name__])
        if "gradient_filters" in form.arguments:
            self._one_of_many(node)
        else:
            # Arguments first: they may write statements of their own.
            arguments = self._arguments(node, kernel, form)
            variable = self._variable(node)
            self._text.call(f"let {variable} = {kind.__name__}", arguments)
        self._settings(node, form)
        self._result(node)

    def _name(self, node: MPSNNFilterNode) -> str:
        return node.label or self._text.stem(node)

    def _variable(self, node: MPSNNFilterNode) -> str:
        variable = self._filters[node] = self._text.names.take(self._name(node))
        self._images[node.result_image] = f"{variable}.resultImage"
        return variable

    def _arguments(self, node: MPSNNFilterNode, kernel: Any, form: Form) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in form.arguments:
            if name == "binary_terms":
                found |= self._terms(node)
            elif name in _IMAGES:
                found[_label(name)] = self._images[node.sources[_IMAGES[name]]]
            elif name in _STATES:
                found[_label(name)] = self._state(node, _STATES[name])
            elif name in self._special:
                found[_label(name)] = self._special[name](node, kernel)
            else:
                value = getattr(node, name)
                if value in _LATER_EDGES and isinstance(value, MPSImageEdgeMode):
                    self._text.needs("10.14.1")
                found[_label(name)] = literal(value)
        return found

    def _sources(self, node: MPSNNFilterNode, kernel: Any) -> str:
        return f"[{', '.join(self._images[source] for source in node.sources)}]"

    def _state(self, node: MPSNNFilterNode, name: str) -> str:
        """The source state, by the property of the filter that leaves it."""
        if not node.source_states or node.source_states[0].producer is None:
            return "nil"
        self._text.needs("10.13.4")
        return self._left(self._filters[node.source_states[0].producer], name)

    def _left(self, forward: str, name: str = "resultState") -> str:
        """The state that a filter leaves; the class follows from where it goes."""
        self._text.use(template("states"))
        return f"try {self._text.model}States.state({forward}.{name}, of: {forward})"

    def _one_of_many(self, node: Any) -> None:
        """A gradient node of a concatenation: Swift is given those of all sources at once."""
        key = (node.forward, node.sources[0])
        if key not in self._gradients:
            name = self._gradients[key] = self._text.names.take(f"{self._filters[node.forward]}Gradients")
            source = self._images[node.sources[0]]
            self._text.line(f"let {name} = {self._filters[node.forward]}.gradientFilters(withSource: {source})")
        many = self._gradients[key]
        self._text.line(f"let {self._variable(node)} = {many}[{node.index}]")

    def _terms(self, node: Any) -> dict[str, str]:
        """What a binary convolution takes between its weights and its type."""
        if node.scale_value is not None:
            return {"scaleValue": float32(node.scale_value)}
        self._text.needs("10.13.4")
        found: dict[str, str] = {}
        for name in _TERMS:
            values = getattr(node, name)
            found[camel(name)] = "nil"
            if values is not None:
                found[camel(name)] = self._layers.numbers(f"{self._name(node)}_{name}", values)
        return found

    # --- losses -------------------------------------------------------------------------------------------------------

    def _loss(self, node: Any, kernel: Any) -> str:
        given, text = node.loss_descriptor, self._text
        variable = text.names.take(f"{self._name(node)}Descriptor")
        if isinstance(given, MPSCNNYOLOLossDescriptor):
            self._yolo(node, given, variable)
        else:
            self._loss_descriptor(given, variable)
        return variable

    def _loss_descriptor(self, given: MPSCNNLossDescriptor, variable: str) -> None:
        values = {"type": case(given.loss_type), "reductionType": case(given.reduction_type)}
        self._text.call(f"let {variable} = MPSCNNLossDescriptor", values)
        self._set_loss(given, variable)

    def _set_loss(self, given: MPSCNNLossDescriptor, target: str) -> None:
        for name in ("weight", "label_smoothing", "epsilon", "delta"):
            self._text.line(f"{target}.{camel(name)} = {float32(getattr(given, name))}")
        self._text.line(f"{target}.numberOfClasses = {int(given.number_of_classes)}")
        self._across_batch(given, target)

    def _across_batch(self, given: Any, target: str) -> None:
        if given.reduce_across_batch:
            self._text.needs("11.0")
            self._text.line(f"{target}.reduceAcrossBatch = true")

    def _yolo(self, node: Any, given: MPSCNNYOLOLossDescriptor, variable: str) -> None:
        text = self._text
        if given.labels_hold_raw_sizes:
            self._faults.append(f"{node.name}: labels_hold_raw_sizes is an addition of openmps: give labels with sizes")
        text.needs("10.14")
        boxes = text.names.take(f"{variable}Boxes")
        numbers = ", ".join(float32(each) for each in given.anchor_boxes.reshape(-1).tolist())
        text.line(f"let {boxes}: [Float] = [{numbers}]")
        parts = ("xy", "wh", "confidence", "classes")
        kinds = {part: getattr(given, f"{part}_loss_descriptor") for part in parts}
        text.call(
            f"let {variable} = MPSCNNYOLOLossDescriptor.cnnLossDescriptor",
            {
                "withXYLossType": case(kinds["xy"].loss_type),
                "whLossType": case(kinds["wh"].loss_type),
                "confidenceLossType": case(kinds["confidence"].loss_type),
                "classesLossType": case(kinds["classes"].loss_type),
                "reductionType": case(given.reduction_type),
                "anchorBoxes": f"{boxes}.withUnsafeBytes {{ Data($0) }}",
                "numberOfAnchorBoxes": str(given.number_of_anchor_boxes),
            },
        )
        for part in parts:
            self._set_loss(kinds[part], f"{variable}.{part}LossDescriptor")
        text.line(f"{variable}.rescore = {literal(given.rescore)}")
        for name in ("scale_no_object", "scale_object", "scale_class"):
            text.line(f"{variable}.{camel(name)} = {float32(getattr(given, name))}")
        text.line(f"{variable}.scaleXY = {float32(given.scale_xy)}")
        text.line(f"{variable}.scaleWH = {float32(given.scale_wh)}")
        text.line(f"{variable}.minIOUForObjectPresence = {float32(given.min_iou_for_object_presence)}")
        text.line(f"{variable}.maxIOUForObjectAbsence = {float32(given.max_iou_for_object_absence)}")
        self._across_batch(given, variable)

    # --- what is set --------------------------------------------------------------------------------------------------

    def _settings(self, node: MPSNNFilterNode, form: Form) -> None:
        variable = self._filters[node]
        is_gradient = isinstance(node, MPSNNGradientFilterNode)
        for name in (*form.settings, *form.changes):
            value = self._value(node, name)
            if name in form.changes and value == _default(node, name):
                continue
            self._text.needs(_SINCE_PROPERTY.get(name, "10.13"))
            if name == "training_style" and not is_gradient:
                self._text.needs(_FORWARD_STYLE)
            self._text.line(f"{variable}.{camel(name)} = {literal(value)}")
        if node.label is not None:
            self._text.line(f"{variable}.label = {string(node.label)}")
        if "padding_policy" not in form.arguments and not _is_default(node, form):
            self._text.line(f"{variable}.paddingPolicy = {self.policy(node, node.padding_policy)}")

    def _value(self, node: MPSNNFilterNode, name: str) -> Any:
        if name == "training_style":
            return self._interface.styles.get(node, getattr(node, name))
        return getattr(node, name)

    def _result(self, node: MPSNNFilterNode) -> None:
        image = node.result_image
        self._image(image, self._images[image], by_handle=True)
        state = node.result_state
        if state is not None and self._is_shown(state):
            variable = self._text.names.take(f"{self._filters[node]}State")
            self._text.line(f"let {variable}: MPSNNStateNode = {self._left(self._filters[node])}")
            self._exported(state, variable, state in self._interface.result_states)
        labels = getattr(node, "input_labels", None)
        if isinstance(labels, MPSNNStateNode):
            label = handle_label(labels.handle)
            self._text.use(template("handle"))
            self._text.line(
                f"{self._filters[node]}.inputLabels.handle = {self._text.model}Handle({string(label or 'labels')})"
            )

    def _image(self, image: MPSNNImageNode, variable: str, *, by_handle: bool) -> None:
        """What is set on an image node, as the graph has read it."""
        interface, text = self._interface, self._text
        form = interface.formats.get(image, image.format)
        if form is not MPSImageFeatureChannelFormat.NONE:
            text.line(f"{variable}.format = {case(form)}")
        if image.stop_gradient:
            text.needs("10.14")
            text.line(f"{variable}.stopGradient = true")
        if by_handle:
            self._exported(image, variable, image in interface.exported)
        allocator = interface.allocators.get(image, image.image_allocator)
        if allocator is MPSImage.default_allocator():
            text.line(f"{variable}.imageAllocator = MPSImage.defaultAllocator()")
        elif allocator is not MPSTemporaryImage.default_allocator():
            self._faults.append(
                f"{variable}: its image allocator {type(allocator).__name__} is Python; set one in Swift"
            )

    def _is_shown(self, state: MPSNNStateNode) -> bool:
        """Whether there is something to set on a state."""
        has_label = handle_label(state.handle) is not None
        return has_label or state in self._interface.result_states or state.synchronize_resource

    def _exported(self, thing: MPSNNImageNode | MPSNNStateNode, variable: str, is_exported: bool) -> None:
        label = handle_label(thing.handle)
        if label is not None:
            self._text.use(template("handle"))
            self._text.line(f"{variable}.handle = {self._text.model}Handle({string(label)})")
        if is_exported:
            self._text.line(f"{variable}.exportFromGraph = true")
        if thing.synchronize_resource:
            self._text.needs("10.13.4")
            self._text.line(f"{variable}.synchronizeResource = true")

    def image(self, image: MPSNNImageNode) -> str:
        """A node's result image, or a source image, in Swift."""
        return self._images[image]

    # --- padding ------------------------------------------------------------------------------------------------------

    def policy(self, node: MPSNNFilterNode, policy: MPSNNPadding) -> str:
        """A padding policy: the framework's, or a class beside the model."""
        method = int(policy.padding_method())
        if isinstance(policy, ExplicitPadding):
            if len(node.sources) > 1 and not isinstance(node, MPSNNGradientFilterNode):
                self._faults.append(f"{node.name}: ExplicitPadding is written for filters with one source; take it off")
            return self._explicit(policy)
        if type(policy) is MPSNNDefaultPadding and (preset := preset_choice(policy)) is not None:
            self._text.needs("10.13.4")
            return _PRESETS[preset[0]]
        if method & _CUSTOM:
            self._faults.append(
                f"{node.name}: its padding policy {type(policy).__name__} has a step in Python; use ExplicitPadding"
            )
        self._text.needs("10.14" if method & _FUSION else "10.13")
        return f"MPSNNDefaultPadding(method: {options(MPSNNPaddingMethod(method))})"

    def _explicit(self, policy: ExplicitPadding) -> str:
        """The variable of a policy, which a filter and its gradient share."""
        if id(policy) in self._paddings:
            return self._paddings[id(policy)]
        self._text.use(template("explicit_padding"))
        counts, edge = policy.count_include_pad, policy.edge_mode
        sides = ", ".join(f"{side}: {getattr(policy, side)}" for side in ("left", "top", "right", "bottom"))
        counted = "nil" if counts is None else literal(counts)
        mode = "nil" if edge is None else case(edge)
        ceil = literal(policy.ceil_mode)
        variable = self._paddings[id(policy)] = self._text.names.take("padding")
        made = f"{self._text.model}Padding({sides}, ceilMode: {ceil}, countIncludePad: {counted}, edgeMode: {mode})"
        self._text.line(f"let {variable} = {made}")
        return variable


def _label(name: str) -> str:
    return _LABELS.get(name, camel(name))


def _default(node: MPSNNFilterNode, name: str) -> Any:
    """What a property is where nobody has set it."""
    found = getattr(type(node), name, None)
    return found.default if isinstance(found, Checked) else found


def _is_default(node: MPSNNFilterNode, form: Form) -> bool:
    """Whether a node's padding policy need not be written."""
    row = row_of(node)
    default = _default(node, "padding_policy") if not isinstance(row, Row) or row.padding is None else row.padding
    is_plain = type(node.padding_policy) is MPSNNDefaultPadding
    return not form.has_window and is_plain and node.padding_policy == default


def _whole(kind: type[MPSNNFilterNode], form: Form) -> Form:
    if form.arguments:
        return form
    parameters = inspect.signature(kind).parameters.values()
    return replace(form, arguments=tuple(each.name for each in parameters if each.kind is not each.VAR_POSITIONAL))


FORMS: Mapping[type[MPSNNFilterNode], Form] = {
    **{row.node: _whole(row.node, row.swift) for row in rows()},
    **{kind: _whole(kind, Form()) for kind in neuron.CLASSES.values()},
}
"""The form of each class of the framework; of a class that is derived from one that one's holds."""


def form_of(node: MPSNNFilterNode) -> tuple[type[MPSNNFilterNode], Form] | str:
    """The class that Swift makes for a node and how, or why it cannot."""
    for kind in type(node).__mro__:
        if kind in FORMS:
            return kind, FORMS[kind]
    return f"is of class {type(node).__name__}, which is no class of the framework"
