"""Swift of the optimizers of data sources that are trained; ``NAME`` is the model's.

The CPU's steps are those of the framework's optimizers (MPSNNOptimizers.h, macOS 10.14); see `ops.update.optimizers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openmps.formats.swift.classes import filled, template


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
