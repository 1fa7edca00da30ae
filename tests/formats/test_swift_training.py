"""Training in exported Swift: which optimizer updates what, and the numbers that its steps on the CPU give."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps as mps
import swift_compiler
import swift_reader
from encoding import Bench
from networks import NETWORKS, Weights, training_graph
from openmps.formats import swift
from openmps.formats.swift.trained import _rule_of  # pyright: ignore[reportPrivateUsage]
from openmps.runtime.devices import mtl_device
from openmps.training.network import Network, NetworkShape, optimizer_factory

CPU = mtl_device("cpu")
FLOAT16 = mps.MPSImageFeatureChannelFormat.FLOAT16

OPTIMIZERS = {
    "adam": (lambda: mps.MPSNNOptimizerAdam(CPU, 1e-3, beta1=0.8, epsilon=1e-7), {"momenta", "velocities"}),
    "rmsprop": (lambda: mps.MPSNNOptimizerRMSProp(CPU, 1e-3), {"squares"}),
    "descent": (lambda: mps.MPSNNOptimizerStochasticGradientDescent(CPU, 0.1), {"momenta"}),
    "momentum": (
        lambda: mps.MPSNNOptimizerStochasticGradientDescent(
            CPU, momentum_scale=0.9, use_nesterov_momentum=True,
            optimizer_descriptor=mps.MPSNNOptimizerDescriptor(
                0.1, 0.5, True, 1.0, -1.0, mps.MPSNNRegularizationType.L2, 1e-4
            ),
        ),
        {"momenta"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("style", ["UPDATE_DEVICE_GPU", "UPDATE_DEVICE_CPU"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str, style: str) -> None:
    make, vectors = OPTIMIZERS[name]
    network = NETWORKS["digits"](np.random.default_rng(0))
    graph = training_graph(Bench(CPU), network, style=mps.MPSNNTrainingStyle[style])
    text = swift.source(graph, optimizer=make())["Model.swift"].decode()
    assert swift_reader.faults(text) == []
    suffix = "" if style == "UPDATE_DEVICE_GPU" else "OnCPU"
    assert {each for each in ("momenta", "velocities", "squares") if f"{each}{suffix}: [" in text} == vectors
    if style == "UPDATE_DEVICE_GPU":
        assert f"let optimizer: {type(make()).__name__}" in text
        for part in ("learningRate", "gradientRescale", "regularizationType"):
            assert part in text
    if name == "momentum":
        assert ("useNestrovMomentum: true" in text) == (style == "UPDATE_DEVICE_GPU")
        assert ("min(max(g, -1.0), 1.0)" in text and "g *= 0.5" in text) == (style == "UPDATE_DEVICE_CPU")
    assert not {word for word in ("LEARNING_RATE", "RESCALE", "NAME", "AVAILABLE", "ENCODE") if word in text}


def _steps(text: str, values: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """What the CPU's rule makes of numbers, by its own lines: their expressions are Python's, too."""
    body = text.partition("func update(_ place: Int")[2].partition("\n    }\n")[0]
    before, _, loop = body.partition("for index in")
    lines = [line.strip() for line in loop.split("\n")[1:] if line.strip() not in ("", "}")]
    once = [line.strip() for line in before.split("\n") if line.strip().startswith("let r")]
    names = {
        "np": np, "Float": float, "Double": float, "pow": pow, "max": max, "min": min,
        "place": 0, "value": values.copy(),
        **{f"{each}OnCPU": [np.zeros(values.size)] for each in ("momenta", "velocities", "squares", "maxima")},
    }  # fmt: skip
    for step, gradient in enumerate(gradients, 1):
        names |= {"step": step, "gradient": gradient}
        for line in once:
            exec(_python(line), names)
        for index in range(values.size):
            names["index"] = index
            for line in lines:
                exec(_python(line), names)
    return names["value"]


def _python(line: str) -> str:
    line = re.sub(r"^(let|var) ", "", line)
    line = re.sub(r"^if (true|false) \{ (.*) \}$", lambda m: m[2] if m[1] == "true" else "pass", line)
    line = re.sub(r"\((.*) > 0 \? 1 : .* < 0 \? -1 : 0\)", r"np.sign(\1)", line)
    return re.sub(r"(\([^()]*\([^()]*\)\)\)|\([^()]*\([^()]*\([^()]*\)\)\)|\w+)\.squareRoot\(\)", r"(\1)**0.5", line)


@pytest.mark.parametrize("regularization", ["NONE", "L1", "L2"])
@pytest.mark.parametrize("kind", ["adam", "amsgrad", "rmsprop", "descent", "nesterov"])
def test_the_numbers_of_the_steps_on_the_cpu(kind: str, regularization: str) -> None:
    """Against the oracle of the optimizers, whose formulas are the header's."""
    values, gradients = _numbers()
    optimizer = _optimizer(kind, regularization)
    rule, numbers = _rule_of(optimizer, is_amsgrad=kind == "amsgrad")  # pyright: ignore[reportGeneralTypeIssues]
    text = rule.text((False, True), numbers)
    assert np.allclose(_steps(text, values, gradients), _oracle(kind, regularization, values, gradients), atol=1e-6)


def _numbers() -> tuple[np.ndarray, list[np.ndarray]]:
    """Numbers to train, one of them 0, and the gradients of some steps."""
    rng = np.random.default_rng(0)
    values, gradients = rng.normal(size=7), [rng.normal(size=7) for _ in range(4)]
    values[3] = 0.0
    return values, gradients


def _optimizer(kind: str, regularization: str) -> Any:
    options = mps.MPSNNOptimizerDescriptor(
        0.05, 0.5, True, 0.8, -0.6, mps.MPSNNRegularizationType[regularization], 0.01
    )  # fmt: skip
    descent = mps.MPSNNOptimizerStochasticGradientDescent
    return {
        "adam": lambda: mps.MPSNNOptimizerAdam(CPU, beta1=0.8, epsilon=1e-4, optimizer_descriptor=options),
        "amsgrad": lambda: mps.MPSNNOptimizerAdam(CPU, beta1=0.8, epsilon=1e-4, optimizer_descriptor=options),
        "rmsprop": lambda: mps.MPSNNOptimizerRMSProp(CPU, decay=0.7, epsilon=1e-4, optimizer_descriptor=options),
        "descent": lambda: descent(CPU, momentum_scale=0.9, optimizer_descriptor=options),
        "nesterov": lambda: descent(CPU, momentum_scale=0.9, use_nesterov_momentum=True, optimizer_descriptor=options),
    }[kind]()


class Trained(Weights):
    amsgrad = False


def _layer(kind: str, style: str, values: np.ndarray) -> mps.MPSNNGraph:
    """The training graph of one convolution, weights and biases of the same numbers."""
    source = Trained(values.reshape(-1, 1, 1, 1), values, "layer")
    source.amsgrad = kind == "amsgrad"
    node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(mps.Handle("image")), source)
    descriptor = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_SQUARED_ERROR, mps.MPSCNNReductionType.MEAN)
    (end,) = mps.MPSCNNLossNode(node.result_image, descriptor).training_graph()
    assert isinstance(end, mps.MPSCNNConvolutionGradientNode)
    end.training_style = mps.MPSNNTrainingStyle[style]
    return mps.MPSNNGraph(CPU, end.result_image)


KINDS = [
    (kind, rule) for kind in ("adam", "amsgrad", "rmsprop", "descent", "nesterov") for rule in ("NONE", "L1", "L2")
]
TRAIN = """
do {
  let model = try NAME(device: device, folder: folder)
  let source = model.graph.nodes[0].given[1].1 as! MPSCNNConvolutionDataSource
  for step in 0..<4 {
    let buffers = [HostBuffer(length: 28), HostBuffer(length: 28)]
    for each in buffers { gradients.getBytes(each.contents(), range: NSRange(location: 28 * step, length: 28)) }
    let gradient = MPSCNNConvolutionGradientState(weights: buffers[0], biases: buffers[1])
    let state = MPSCNNConvolutionWeightsAndBiasesState(weights: buffers[0], biases: nil)
    let isDone = source.update(with: gradient, sourceState: state)
    let result = source.update(with: HostCommandBuffer(device: device), gradientState: gradient, sourceState: state)
    show(["done": isDone, "encoded": result != nil, "rules": MPSNNOptimizer.encoded])
    MPSNNOptimizer.encoded = []
  }
  try model.save(to: folder)
}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("style", ["UPDATE_DEVICE_CPU", "UPDATE_DEVICE_GPU"])
def test_compiled_steps(swift_stubs: Path, tmp_path: Path, style: str) -> None:
    """Each optimizer as Swift: on the CPU its numbers, on the device what is encoded; the numbers are saved."""
    values, gradients = _numbers()
    exports = {
        f"Net{place}": swift.source(_layer(kind, style, values), f"Net{place}", optimizer=_optimizer(kind, rule))
        for place, (kind, rule) in enumerate(KINDS)
    }
    app = tmp_path / "app"
    app.mkdir()
    (app / "gradients.dat").write_bytes(np.array(gradients, "<f4").tobytes())
    program = "let device = HostDevice()\n"
    program += 'let gradients = try NSData(contentsOf: folder.appendingPathComponent("gradients.dat"), options: [])\n'
    program += "".join(TRAIN.replace("NAME", name) for name in exports)
    steps = iter(swift_compiler.run(swift_stubs, app, exports, program))
    for name, (kind, rule) in zip(exports, KINDS, strict=True):
        found = [next(steps) for _ in gradients]
        is_cpu = style == "UPDATE_DEVICE_CPU"
        count = {"adam": 2, "amsgrad": 3}.get(kind, 1)
        encoded = f"{type(_optimizer(kind, rule)).__name__}{' 7+7' * count}{' ' * (kind == 'adam')}"
        assert all(each == {"done": is_cpu, "encoded": not is_cpu, "rules": [] if is_cpu else [encoded]}
                   for each in found)  # fmt: skip
        wanted = _oracle(kind, rule, values, gradients) if is_cpu else values.astype(np.float32)
        saved = np.frombuffer((app / f"{name}-layer.dat").read_bytes(), "<f4").reshape(2, 7)
        assert np.allclose(saved, wanted, atol=1e-6), (kind, rule)


def _oracle(kind: str, regularization: str, v: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    v, m, u, x = v.copy(), np.zeros(7), np.zeros(7), np.zeros(7)
    for t, g in enumerate(gradients, 1):
        g = 0.5 * np.clip(g, -0.6, 0.8)
        g = g + {"NONE": 0.0, "L1": 0.01 * np.sign(v), "L2": 0.01 * v}[regularization]
        if kind in ("adam", "amsgrad"):
            m, u = 0.8 * m + 0.2 * g, 0.999 * u + 0.001 * g * g
            x = np.maximum(x, u) if kind == "amsgrad" else u
            v = v - 0.05 * np.sqrt(1 - 0.999**t) / (1 - 0.8**t) * m / (np.sqrt(x) + 1e-4)
        elif kind == "rmsprop":
            u = 0.7 * u + 0.3 * g * g
            v = v - 0.05 * g / (np.sqrt(u) + 1e-4)
        elif kind == "nesterov":
            m = 0.9 * m + g
            v = v - 0.05 * (g + 0.9 * m)
        else:
            m = 0.9 * m + 0.05 * g
            v = v - m
    return v


def test_the_optimizer_of_trainable_sources() -> None:
    shape = NetworkShape(8, 8, 1, 3, "tiny")
    network = Network.create(shape, seed=0, optimizer=optimizer_factory("rmsprop", 0.25))
    graph = network.training_graph(CPU, FLOAT16, loss_weight=1.0, dropout_seed=0)
    text = swift.source(graph)["Model.swift"].decode()
    assert "let optimizer: MPSNNOptimizerRMSProp" in text
    assert "learningRate: 0.25" in text
    assert "updateGammaAndBetaWithCommandBuffer:batchNormalizationState:" in text
    assert "updateMeanAndVarianceWithCommandBuffer:batchNormalizationState:" in text


def test_what_the_framework_has_not_is_refused() -> None:
    """The framework's optimizers have none, and no Muon: Swift would train otherwise."""
    shape = NetworkShape(8, 8, 1, 3, "tiny")
    for chosen, said in ((("adam", 0.25, 0.1), r"weight_decay 0\.1"), (("muon", 0.25), "Muon of matrices")):
        network = Network.create(shape, seed=0, optimizer=optimizer_factory(*chosen))
        graph = network.training_graph(CPU, FLOAT16, loss_weight=1.0, dropout_seed=0)
        with pytest.raises(mps.MPSExportError, match=f"is trained with {said}, which the framework's optimizers have"):
            swift.source(graph)


class Updating(Weights):
    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        return None


def test_updates_in_python_are_refused_without_an_optimizer() -> None:
    network = NETWORKS["digits"](np.random.default_rng(0), Updating.of)
    graph = training_graph(Bench(CPU), network, style=mps.MPSNNTrainingStyle.UPDATE_DEVICE_GPU)
    with pytest.raises(mps.MPSExportError) as caught:
        swift.source(graph)
    assert len(caught.value.problems) == 4
    assert all("Updating updates in Python; pass optimizer" in fault for fault in caught.value.problems)
    assert swift.source(graph, optimizer=mps.MPSNNOptimizerAdam(CPU, 0.1))
