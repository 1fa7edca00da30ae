"""The layers that a graph trains, and the optimizer that does it, as Swift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.formats.swift.classes import filled, template
from openmps.formats.swift.literals import case, float32, float64, literal, string, whole
from openmps.formats.swift.text import Text
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode
from openmps.graph.nodes.trainable import TrainableNode, offered_updates, training_of
from openmps.graph.nodes.training import STATES_OF_IMAGES
from openmps.kernels.optimizers import (
    MPSNNOptimizer,
    MPSNNOptimizerAdam,
    MPSNNOptimizerRMSProp,
    MPSNNOptimizerStochasticGradientDescent,
)
from openmps.types import MPSImageFeatureChannelFormat, MPSNNRegularizationType, MPSNNTrainingStyle

_NONE, _CPU, _DEVICE = (
    MPSNNTrainingStyle.UPDATE_DEVICE_NONE,
    MPSNNTrainingStyle.UPDATE_DEVICE_CPU,
    MPSNNTrainingStyle.UPDATE_DEVICE_GPU,
)
_MOMENTUM = 0.1
"""Of running statistics, for a data source that does not say."""
_ASK = "pass optimizer, one of the framework's, for Swift to update with"


class Trained:
    """Which layers of a graph are trained, and by what; what Swift cannot do of it is among ``faults``."""

    def __init__(self, graph: MPSNNGraph, optimizer: MPSNNOptimizer | None, text: Text, faults: list[str]) -> None:
        self._graph, self._text, self._faults = graph, text, faults
        self._given = optimizer
        self._layers: dict[int, MPSNNTrainingStyle] = {}
        self._rule: Rule | None = None
        self._values: dict[str, str] = {}
        self.variables: list[str] = []
        """The data sources that are trained."""
        for node, kernel in graph.kernels.items():
            if isinstance(node, MPSNNGradientFilterNode) and isinstance(node, TrainableNode):
                self._look_at(node, kernel)
        self._styles = set(self._layers.values())

    @property
    def numbers(self) -> dict[str, str]:
        """The optimizer's numbers, for those who show them; empty where nothing is trained."""
        return dict(self._values)

    def asks(self, kernel: Any) -> bool:
        """Whether a kernel's layer is trained."""
        return _owner(kernel) in self._layers

    def _look_at(self, node: Any, kernel: Any) -> None:
        read = self._graph.interface.styles.get(node)
        style: MPSNNTrainingStyle = node.training_style if read is None else read
        own = kernel if hasattr(kernel, "parameters") else self._graph.kernels[node.forward]
        training = training_of(node)
        offered = offered_updates(node)
        if style is _NONE or training is None or not (offered or self._given):
            return
        if training is STATES_OF_IMAGES:
            if offered:
                self._refuse(node, "its data source updates gamma and beta, which no optimizer of the framework does")
            return
        source = own.data_source
        if self._given is None and not callable(getattr(source, "optimizer_for", None)):
            self._refuse(node, f"its data source {type(source).__name__} updates in Python; {_ASK}")
            return
        known = self._layers.setdefault(_owner(own), style)
        if known is not style:
            self._refuse(node, f"its weights are updated in two styles, {known.name} and {style.name}")
        self._take(
            node, self._given or source.optimizer_for(self._graph.device), bool(getattr(source, "amsgrad", False))
        )

    def _refuse(self, node: MPSNNFilterNode, why: str) -> None:
        self._faults.append(f"{node.name}: {why}")

    def _take(self, node: MPSNNFilterNode, optimizer: MPSNNOptimizer, is_amsgrad: bool) -> None:
        found = _rule_of(optimizer, is_amsgrad)
        if found is None:
            self._refuse(node, f"is trained by {type(optimizer).__name__}, which is none of the framework's optimizers")
            return
        if optimizer.additions():
            self._refuse(node, f"is trained with {optimizer.additions()}, which the framework's optimizers have not")
            return
        if self._rule is None:
            self._rule, self._values = found
        elif (self._rule, self._values) != found:
            self._refuse(node, f"is trained otherwise than the layers before it; {_ASK}")

    # --- what is written ----------------------------------------------------------------------------------------------

    def convolution(
        self, label: str | None, variable: str, descriptor: str, weights: NDArray[np.float32], biases: bytes
    ) -> None:
        """The data source of a convolution that is trained."""
        self._use("convolution", "convolutionGradientState: gradientState,\n      convolutionSourceState: sourceState")
        counts = {"weightCount": whole(weights.size), "biasCount": whole(len(biases) // 4)}
        content = weights.astype("<f4").tobytes() + biases
        self._make("TrainedWeights", label, variable, content, {**counts, "descriptor": descriptor})

    def normalization(
        self,
        label: str | None,
        variable: str,
        rows: Sequence[NDArray[np.float32]],
        content: bytes,
        epsilon: float,
        source: Any,
    ) -> None:
        """The data source of a batch normalization that is trained."""
        self._use("normalization", "batchNormalizationState: batchNormalizationState")
        numbers = {"epsilon": float32(epsilon), "momentum": float32(getattr(source, "momentum", _MOMENTUM))}
        self._make("TrainedNormalization", label, variable, content, {"channels": whole(rows[0].size), **numbers})

    def _make(self, kind: str, label: str | None, variable: str, content: bytes, arguments: Mapping[str, str]) -> None:
        """A data source over a file with this content."""
        text = self._text
        file = text.path(text.file(label or variable, content))
        self.variables.append(variable)
        given = {"device": "device", "label": "nil" if label is None else string(label), "file": file, **arguments}
        text.call(f"let {variable} = try {text.model}{kind}", given)

    def _use(self, what: str, states: str) -> None:
        """The class of a data source with its updates, and what they need."""
        rule = self._rule
        if rule is None:  # refused: nothing will be written
            return
        styles = _DEVICE in self._styles, _CPU in self._styles
        self._text.needs("10.15" if rule is AMSGRAD else "10.14")
        self._text.use(template("trained_memory"))
        self._text.use(rule.text(styles, self._values))
        places = [place for place, is_used in zip(("device", "cpu"), styles, strict=True) if is_used]
        methods = "".join(template(f"trained_{what}_on_{place}") for place in places)
        precise = self._graph.format is MPSImageFeatureChannelFormat.FLOAT32
        words = {
            "UPDATES": methods.replace("ENCODE", rule.encode(states)),
            "PRECISION": ".float32" if precise else ".float16",
        }
        self._text.use(filled(template(f"trained_{what}"), words))


def _owner(kernel: Any) -> int:
    """What kernels of one layer share: the weights, or the kernel of a normalization."""
    return id(getattr(kernel, "parameters", kernel))


def _rule_of(optimizer: MPSNNOptimizer, is_amsgrad: bool) -> tuple[Rule, dict[str, str]] | None:
    """How an optimizer is written, and its numbers."""
    values = {
        "LEARNING_RATE": float32(optimizer.learning_rate),
        "RESCALE": float32(optimizer.gradient_rescale),
        "CLIPPING": literal(optimizer.apply_gradient_clipping),
        "CLIP_MAX": float32(optimizer.gradient_clip_max),
        "CLIP_MIN": float32(optimizer.gradient_clip_min),
        "REGULARIZATION": case(optimizer.regularization_type),
        "DECAY": float32(optimizer.regularization_scale),
        "REGULARIZED": _regularized(optimizer),
    }
    if isinstance(optimizer, MPSNNOptimizerAdam):
        betas = {"BETA1": float64(optimizer.beta1), "BETA2": float64(optimizer.beta2)}
        rule = AMSGRAD if is_amsgrad else ADAM
        return rule, {**values, **betas, "EPSILON": float32(optimizer.epsilon)}
    if isinstance(optimizer, MPSNNOptimizerRMSProp):
        return RMSPROP, {
            **values, "RATE_OF_DECAY": float64(optimizer.decay), "EPSILON": float32(optimizer.epsilon)
        }  # fmt: skip
    if isinstance(optimizer, MPSNNOptimizerStochasticGradientDescent):
        rule = NESTEROV if optimizer.use_nesterov_momentum else DESCENT
        own = {"MOMENTUM": float32(optimizer.momentum_scale), "NESTEROV": literal(optimizer.use_nesterov_momentum)}
        return rule, {**values, **own}
    return None


def _regularized(optimizer: MPSNNOptimizer) -> str:
    scale = float32(optimizer.regularization_scale)
    terms = {
        MPSNNRegularizationType.L1: f"{scale} * (value[index] > 0 ? 1 : value[index] < 0 ? -1 : 0)",
        MPSNNRegularizationType.L2: f"{scale} * value[index]",
    }
    term = terms.get(optimizer.regularization_type)
    return "" if term is None else f"      g += {term}\n"


@dataclass(frozen=True)
class Rule:
    """One kind of optimizer: what it is made of, and how it steps on the CPU."""

    kind: str
    initializer: str
    vectors: tuple[tuple[str, str], ...]
    """Names of its vectors in `NAMERule`, and the labels by which an encode takes them."""
    step: str
    """The rest of the CPU's step: ``g`` is the gradient, ``value[index]`` the number."""
    before: str = ""
    """What the CPU's step computes once."""

    def text(self, styles: tuple[bool, bool], values: Mapping[str, str]) -> str:
        """`NAMERule`, for updates on the device and on the CPU."""
        members, made, step = list[str](), list[str](), ""
        if styles[0]:
            members.append(f"  let optimizer: {self.kind}")
            members += [f"  let {name}: [MPSVector]" for name, _ in self.vectors]
            made.append(template("rule_descriptor").strip("\n"))
            made.append(f"    optimizer = {self.kind}({self.initializer})")
            made += [f"    {name} = try counts.map {{ try NAMEFiles.vector(device, $0) }}" for name, _ in self.vectors]
        if styles[1]:
            members += [f"  private var {name}OnCPU: [[Float]]" for name, _ in self.vectors]
            members.append("  private var step = 0")
            zeros = "counts.map { [Float](repeating: 0, count: $0) }"
            made += [f"    {name}OnCPU = {zeros}" for name, _ in self.vectors]
            step = filled(template("rule_step"), {"BEFORE": self.before, "NUMBERS": self.step})
        parts = {"MEMBERS": "\n".join(members), "MADE": "\n".join(made), "STEP": step}
        return filled(filled(template("rule"), parts), values)

    def encode(self, head: str) -> str:
        """The call that steps on the device; ``head`` holds the states that it reads, and the result comes last."""
        vectors = "".join(f",\n      {label}: rule.{name}" for name, label in self.vectors)
        arguments = f"commandBuffer: commandBuffer, {head}{vectors},\n      resultState: result"
        return f"rule.optimizer.encode(\n      {arguments}\n    )"


ADAM = Rule(
    "MPSNNOptimizerAdam",
    "\n      device: device, beta1: BETA1, beta2: BETA2, epsilon: EPSILON, timeStep: 0,"
    "\n      optimizerDescriptor: descriptor\n    ",
    (("momenta", "inputMomentumVectors"), ("velocities", "inputVelocityVectors")),
    """      let momentum = Float(BETA1) * momentaOnCPU[place][index] + Float(1 - BETA1) * g
      let velocity = Float(BETA2) * velocitiesOnCPU[place][index] + Float(1 - BETA2) * g * g
      momentaOnCPU[place][index] = momentum
      velocitiesOnCPU[place][index] = velocity
      value[index] -= rate * momentum / (velocity.squareRoot() + EPSILON)
""",
    """    let root = (1 - pow(BETA2, Double(step))).squareRoot()
    let rate = LEARNING_RATE * Float(root / (1 - pow(BETA1, Double(step))))
""",
)
AMSGRAD = Rule(
    ADAM.kind,
    ADAM.initializer,
    (*ADAM.vectors, ("maxima", "maximumVelocityVectors")),
    """      let momentum = Float(BETA1) * momentaOnCPU[place][index] + Float(1 - BETA1) * g
      let velocity = Float(BETA2) * velocitiesOnCPU[place][index] + Float(1 - BETA2) * g * g
      let largest = max(maximaOnCPU[place][index], velocity)
      momentaOnCPU[place][index] = momentum
      velocitiesOnCPU[place][index] = velocity
      maximaOnCPU[place][index] = largest
      value[index] -= rate * momentum / (largest.squareRoot() + EPSILON)
""",
    ADAM.before,
)
RMSPROP = Rule(
    "MPSNNOptimizerRMSProp",
    "\n      device: device, decay: RATE_OF_DECAY, epsilon: EPSILON,\n      optimizerDescriptor: descriptor\n    ",
    (("squares", "inputSumOfSquaresVectors"),),
    """      let square = Float(RATE_OF_DECAY) * squaresOnCPU[place][index] + Float(1 - RATE_OF_DECAY) * g * g
      squaresOnCPU[place][index] = square
      value[index] -= LEARNING_RATE * g / (square.squareRoot() + EPSILON)
""",
)
_DESCENT = (
    "MPSNNOptimizerStochasticGradientDescent",
    "\n      device: device, momentumScale: MOMENTUM, useNestrovMomentum: NESTEROV,"
    "\n      optimizerDescriptor: descriptor\n    ",
    (("momenta", "inputMomentumVectors"),),
)
DESCENT = Rule(
    *_DESCENT,
    """      let momentum = MOMENTUM * momentaOnCPU[place][index] + LEARNING_RATE * g
      momentaOnCPU[place][index] = momentum
      value[index] -= momentum
""",
)
NESTEROV = Rule(
    *_DESCENT,
    """      let momentum = MOMENTUM * momentaOnCPU[place][index] + g
      momentaOnCPU[place][index] = momentum
      value[index] -= LEARNING_RATE * (g + MOMENTUM * momentum)
""",
)
