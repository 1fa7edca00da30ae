"""Weight updates: both training styles, every kind of data source, and the numbers that they leave behind."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, numbers
from helpers import assert_close
from networks import (
    NETWORKS,
    Format,
    Network,
    Weights,
    convolution,
    digits,
    labels,
    losses,
    one_hot,
    shared,
    softmax_loss,
    training_graph,
)
from openmps.errors import MPSArgumentError, MPSTypeError, MTLCommandBufferError
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.convolution import MPSCNNFullyConnectedNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.kernels.convolution import MPSCNNConvolutionWeightsAndBiasesState
from openmps.kernels.optimizers import MPSNNOptimizerAdam, MPSNNOptimizerStochasticGradientDescent
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.types import MPSNNTrainingStyle
from trainable_sources import RATE, DeviceSgd, HostSgd, sample, trainable, values

NONE, CPU, GPU = (
    MPSNNTrainingStyle.UPDATE_DEVICE_NONE,
    MPSNNTrainingStyle.UPDATE_DEVICE_CPU,
    MPSNNTrainingStyle.UPDATE_DEVICE_GPU,
)
Array = np.ndarray


# --- a few steps ------------------------------------------------------------------------------------------------------


def trained(bench: Bench, network: Network, graph: MPSNNGraph, data: list[tuple[Array, Array]]) -> list[Array]:
    """Train on some batches without waiting in between; the losses."""
    given, buffers = [], []
    for images, targets in data:
        given.append(labels(bench, targets))
        buffers.append(bench.command_buffer())
        graph.encode_batch(buffers[-1], [bench.batch(images)], [given[-1]])
        buffers[-1].commit()
    for buffer in buffers:
        buffer.wait_until_completed()
    return [losses(each) for each in given]


def weights_in(graph: MPSNNGraph) -> dict[str, Array]:
    """Weights and biases that the kernels use now."""
    found: dict[str, Array] = {}
    for kernel in graph.kernels.values():
        if hasattr(kernel, "convolution_descriptor") and hasattr(kernel, "parameters"):
            p = kernel.parameters
            found[kernel.label] = np.concatenate([each.cpu().numpy().ravel() for each in (p.weights, p.biases)])
    return found


def expected_sgd(network: Network, data: list[tuple[Array, Array]]) -> tuple[dict[str, Array], list[Array]]:
    """Weights and biases after torch's gradients, float64, and the losses on the way."""
    held = []
    for images, targets in data:
        now, _, gradients = network.torch(images.astype(np.float32), targets)
        held.append(now)
        for name, source in network.sources.items():
            size = source.array.size
            source.array = source.array - RATE * gradients[name][:size].reshape(source.array.shape)
            source.bias = source.bias - RATE * gradients[name][size:]
    found = {name: np.concatenate([source.array.ravel(), source.bias]) for name, source in network.sources.items()}
    return found, held


def batches(network: Network, rng: np.random.Generator, steps: int) -> list[tuple[Array, Array]]:
    return [network.batch(rng, 3) for _ in range(steps)]


SGD = {
    "in place": (DeviceSgd.of, GPU),
    "the library's": (trainable(lambda device: MPSNNOptimizerStochasticGradientDescent(device, RATE)), GPU),
    "on the CPU": (HostSgd.of, CPU),
}


@pytest.mark.parametrize("kind", SGD)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_style_takes_the_steps_of_torch(kind: str, name: str, device: torch.device) -> None:
    bench = Bench.on(device)
    make, style = SGD[kind]
    network = NETWORKS[name](np.random.default_rng(3), make)
    reference = NETWORKS[name](np.random.default_rng(3))
    data = batches(network, np.random.default_rng(4), 3)
    graph = training_graph(bench, network, style=style, export=False)
    found = trained(bench, network, graph, data) if style is GPU else [
        trained(bench, network, graph, [each])[0] for each in data
    ]  # fmt: skip
    expected, held = expected_sgd(reference, data)
    for step, (mine, theirs) in enumerate(zip(found, held, strict=True)):
        assert_close(mine, theirs, 2e-5, f"losses of step {step}")
    assert held[0].sum() != held[2].sum()
    for layer, numbers_held in weights_in(graph).items():
        assert_close(numbers_held, expected[layer], 2e-5, layer)


def test_adam_of_the_sample_equals_the_librarys(device: torch.device) -> None:
    """A state of its own, copied into the kernels, and an update in place give the same bits."""
    bench = Bench.on(device)
    found = []
    for make in (sample(bench.device), trainable(lambda device: MPSNNOptimizerAdam(device, 1e-2))):
        network = digits(np.random.default_rng(3), make, keep=0.5, weight=1 / 3)
        data = batches(network, np.random.default_rng(4), 4)
        graph = training_graph(bench, network, style=GPU, export=False, needed=False)
        history = trained(bench, network, graph, data)
        found.append((history, weights_in(graph), network))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    for name, weights in found[0][1].items():
        np.testing.assert_array_equal(weights, found[1][1][name], err_msg=name)
        source = found[0][2].sources[name]
        assert source.steps == 4
        np.testing.assert_array_equal(values(source.state, "weights"), weights[: source.array.size])


def test_adam_against_torch(device: torch.device) -> None:
    bench = Bench.on(device)
    network = digits(np.random.default_rng(3), sample(bench.device))
    data = batches(network, np.random.default_rng(4), 3)
    graph = training_graph(bench, network, style=GPU, export=False)
    trained(bench, network, graph, data)
    p = {}
    for name, source in network.sources.items():
        arrays = (source.array.transpose(0, 3, 1, 2), source.bias)
        p[name] = tuple(torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in arrays)
    adam = torch.optim.Adam([each for pair in p.values() for each in pair], lr=1e-2)
    smallest = {name: torch.full((weights.numel(),), torch.inf).double() for name, (weights, _) in p.items()}
    for images, targets in data:
        adam.zero_grad()
        network.torch_losses(
            torch.tensor(images.astype(np.float32)).double(), torch.tensor(targets), p
        ).sum().backward()
        adam.step()
        for name, (weights, _) in p.items():
            assert weights.grad is not None
            smallest[name] = smallest[name].minimum(weights.grad.permute(0, 2, 3, 1).abs().reshape(-1))
    for name, (weights, _) in p.items():
        # Adam divides by the gradient's size: one that is all rounding gives a step that is.
        sure = smallest[name] > 1e-3
        assert sure.float().mean() > 0.2
        found = torch.tensor(weights_in(graph)[name][: weights.numel()])[sure]
        assert_close(found, weights.detach().permute(0, 2, 3, 1).reshape(-1)[sure], 2e-5, name)


def test_style_none_leaves_the_weights(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    network = digits(rng, DeviceSgd.of)
    graph = training_graph(bench, network, style=NONE)
    before = weights_in(graph)
    trained(bench, network, graph, batches(network, rng, 2))
    for name, held in weights_in(graph).items():
        np.testing.assert_array_equal(held, before[name])
    assert all(source.calls == 0 for source in network.sources.values())


@pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")
@pytest.mark.parametrize("answer", [None, 0])
def test_an_update_may_have_nothing_to_say(answer: Any, rng: np.random.Generator) -> None:
    """None on the device, False on the CPU."""

    class Silent(Weights):
        def update(self, *arguments: Any) -> Any:
            return answer

    bench = Bench.on(torch.device("cpu"))
    network = digits(rng, Silent.of)
    graph = training_graph(bench, network, style=CPU if answer == 0 else GPU, export=False)
    before = weights_in(graph)
    trained(bench, network, graph, batches(network, rng, 2))
    for name, held in weights_in(graph).items():
        np.testing.assert_array_equal(held, before[name])


@pytest.mark.parametrize("answer", [True, 3, np.zeros(4)])
def test_an_update_on_the_device_returns_a_state(answer: Any, rng: np.random.Generator) -> None:
    class Wrong(Weights):
        def update(self, *arguments: Any) -> Any:
            return answer

    bench = Bench.on(torch.device("cpu"))
    network = digits(rng, Wrong.of)
    graph = training_graph(bench, network, style=GPU, export=False)
    images, targets = network.batch(rng, 2)
    message = r"^MPSCNNFullyConnectedGradient 'fc2': data source update\(\) must return an MPSCNNConvolutionWeightsAnd"
    with pytest.raises(MPSTypeError, match=message):
        graph.encode_batch(bench.command_buffer(), [bench.batch(images)], [labels(bench, targets)])


def test_an_update_on_the_device_that_reads_numbers_is_told_what_to_do(rng: np.random.Generator) -> None:
    """There is nothing to commit where the encode is recorded."""

    class Reading(Weights):
        def update(self, _: Any, gradient_state: Any, *arguments: Any) -> Any:
            return gradient_state.gradient_for_weights.contents()

    bench = Bench.on(torch.device("cpu"))
    network = digits(rng, Reading.of)
    graph = training_graph(bench, network, style=GPU, export=False)
    images, targets = network.batch(rng, 2)
    with pytest.raises(MTLCommandBufferError, match=r"contents cannot read .* update\(\) is called while .*DEVICE_CPU"):
        graph.encode_batch(bench.command_buffer(), [bench.batch(images)], [labels(bench, targets)])


def test_a_state_that_is_too_small_is_refused(rng: np.random.Generator) -> None:
    class Small(Weights):
        def update(self, command_buffer: Any, *arguments: Any) -> Any:
            return MPSCNNConvolutionWeightsAndBiasesState(weights=command_buffer.device.new_buffer(length=16))

    bench = Bench.on(torch.device("cpu"))
    network = digits(rng, Small.of)
    graph = training_graph(bench, network, style=GPU, export=False)
    images, targets = network.batch(rng, 2)
    with pytest.raises(MPSArgumentError, match="'fc2'"):
        graph.encode_batch(bench.command_buffer(), [bench.batch(images)], [labels(bench, targets)])


def test_a_temporary_result_state_is_read_once(device: torch.device, rng: np.random.Generator) -> None:
    class Temporary(Weights):
        handed_out: Any = None

        def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
            make = MPSCNNConvolutionWeightsAndBiasesState.temporary_cnn_convolution_weights_and_biases_state
            self.handed_out = make(command_buffer, self.made)
            MPSNNOptimizerStochasticGradientDescent(command_buffer.device, RATE).encode(
                command_buffer,
                convolution_gradient_state=gradient_state,
                convolution_source_state=source_state,
                result_state=self.handed_out,
            )
            return self.handed_out

    bench = Bench.on(device)
    network, plain = (digits(np.random.default_rng(5), make.of) for make in (Temporary, DeviceSgd))
    data = batches(network, rng, 2)
    found = []
    for each in (network, plain):
        graph = training_graph(bench, each, style=GPU, export=False)
        trained(bench, each, graph, data)
        found.append(weights_in(graph))
    for name, held in found[0].items():
        np.testing.assert_array_equal(held, found[1][name])
    assert all(source.handed_out.read_count == 0 for source in network.sources.values())


# --- one data source in two layers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("images", [1, 3])
def test_6_9_a_shared_data_source_is_asked_once_a_batch_after_all_gradients(
    images: int, rng: np.random.Generator
) -> None:
    """However many images there are."""
    log: list[str] = []

    class Logging(DeviceSgd):
        def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
            log.append(str(self.name))
            command_buffer.record("mark", lambda: log.append("runs"))
            return super().update(command_buffer, gradient_state, source_state)

    bench = Bench.on(torch.device("cpu"))
    network = shared(rng, Logging.of)
    graph = training_graph(bench, network, style=GPU, export=False)
    pixels, targets = network.batch(rng, images)
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [bench.batch(pixels)], [labels(bench, targets)])
    assert log == ["fc", "both"], "at each encode, the last layer first"
    finish(command_buffer)
    assert log[2:] == ["runs"] * 2


class Recorder(Weights):
    """Keeps the gradients that it is given and has nothing new."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.states: list[Any] = []

    def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> Any:
        self.states.append(gradient_state)


@pytest.mark.parametrize("style", [GPU, CPU])
def test_6_9_a_shared_data_source_gets_the_sum_of_its_gradients(
    style: MPSNNTrainingStyle, rng: np.random.Generator
) -> None:
    """Adam is not linear in the gradient: a step by each part would end elsewhere."""
    bench = Bench.on(torch.device("cpu"))
    network = shared(rng, Recorder.of)
    graph = training_graph(bench, network, style=style, export=False)
    images, targets = network.batch(rng, 2)
    _, _, expected = network.torch(images, targets)
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [bench.batch(images)], [labels(bench, targets)])
    finish(command_buffer)
    for name, source in network.sources.items():
        (state,) = source.states
        found = [values(state, each) for each in ("gradient_for_weights", "gradient_for_biases")]
        assert_close(np.concatenate(found), expected[name], 2e-5)


def test_the_kernels_of_a_shared_data_source_share_the_weights(rng: np.random.Generator) -> None:
    bench = Bench.on(torch.device("cpu"))
    network = shared(rng, DeviceSgd.of)
    graph = training_graph(bench, network, style=GPU, export=False)
    owners = [kernel.parameters for kernel in graph.kernels.values() if getattr(kernel, "label", None) == "both"]
    assert len(owners) == 4 and len(set(map(id, owners))) == 1


# --- order and time ---------------------------------------------------------------------------------------------------


def test_updates_of_one_encode_are_seen_by_the_next_and_not_by_itself(device: torch.device) -> None:
    """On one command buffer too: two encodes recorded before anything runs."""
    bench = Bench.on(device)
    network = digits(np.random.default_rng(3), DeviceSgd.of)
    reference = digits(np.random.default_rng(3))
    data = batches(network, np.random.default_rng(4), 2)
    graph = training_graph(bench, network, style=GPU, export=False)
    given = [labels(bench, targets) for _, targets in data]
    command_buffer = bench.command_buffer()
    for (images, _), each in zip(data, given, strict=True):
        graph.encode_batch(command_buffer, [bench.batch(images)], [each])
    finish(command_buffer)
    _, held = expected_sgd(reference, data)
    for mine, theirs in zip(given, held, strict=True):
        assert_close(losses(mine), theirs, 2e-5)


def test_cpu_updates_run_when_the_buffer_completes(rng: np.random.Generator) -> None:
    seen: list[tuple[str, bool]] = []

    class Noting(HostSgd):
        def update(self, command_buffer: Any, gradient_state: Any, source_state: Any) -> bool:
            same = np.array_equal(values(source_state, "weights"), self.array.ravel())
            seen.append((str(self.name), same and threading.current_thread() is not threading.main_thread()))
            return super().update(command_buffer, gradient_state, source_state)

    bench = Bench.on(torch.device("cpu"))
    network = digits(rng, Noting.of)
    graph = training_graph(bench, network, style=CPU, export=False)
    images, targets = network.batch(rng, 2)
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [bench.batch(images)], [labels(bench, targets)])
    assert seen == []
    finish(command_buffer)
    assert seen == [(name, True) for name in ("fc2", "fc1", "conv2", "conv1")]


def test_an_update_on_the_cpu_returns_whether_there_are_new_weights(rng: np.random.Generator) -> None:
    class Wrong(Weights):
        def update(self, *arguments: Any) -> Any:
            return "yes"

    bench = Bench.on(torch.device("cpu"))
    network = digits(rng, Wrong.of)
    graph = training_graph(bench, network, style=CPU, export=False)
    images, targets = network.batch(rng, 2)
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [bench.batch(images)], [labels(bench, targets)])
    command_buffer.commit()
    with pytest.raises(RuntimeError, match=r"update\(\) must return True, False or None .*, got 'yes'"):
        command_buffer.wait_until_completed()


def test_a_failing_update_is_the_buffers_error(rng: np.random.Generator) -> None:
    class Failing(Weights):
        def update(self, *arguments: Any) -> bool:
            raise ZeroDivisionError("in update")

    bench = Bench.on(torch.device("cpu"))
    network = digits(rng, Failing.of)
    graph = training_graph(bench, network, style=CPU, export=False)
    images, targets = network.batch(rng, 2)
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [bench.batch(images)], [labels(bench, targets)])
    command_buffer.commit()
    with pytest.raises(RuntimeError, match="in update"):
        command_buffer.wait_until_completed()


@pytest.mark.filterwarnings("ignore:.*was given newer weights:openmps.errors.MPSTrainingWarning")
def test_other_graphs_keep_their_weights_until_they_reload(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    network = digits(rng, trainable(lambda device: MPSNNOptimizerStochasticGradientDescent(device, RATE)))
    training = training_graph(bench, network, style=GPU, export=False)
    inference = MPSNNGraph(bench.device, network.nodes["fc2"].result_image)
    inference.format = Format.FLOAT32
    images, _ = network.batch(rng, 2)

    def predictions() -> Array:
        result = inference.encode_batch(command_buffer := bench.command_buffer(), [bench.batch(images)])
        finish(command_buffer)
        return numbers(result)

    before = predictions()
    trained(bench, network, training, batches(network, rng, 2))
    np.testing.assert_array_equal(predictions(), before)
    held = weights_in(training)
    inference.reload_from_data_sources()
    after = predictions()
    assert not np.array_equal(after, before)
    for name, weights in weights_in(inference).items():
        np.testing.assert_array_equal(weights, held[name])
    for name, weights in weights_in(training).items():
        np.testing.assert_array_equal(weights, held[name], err_msg="reloading one graph leaves the other alone")


def test_training_by_the_samples_loop(device: torch.device) -> None:
    """Two MPSCommandBuffers in flight, a semaphore, handlers that read the losses: the losses go down."""
    bench = Bench.on(device)
    network = digits(np.random.default_rng(3), sample(bench.device), weight=1 / 16)
    graph = training_graph(bench, network, style=GPU, export=False, needed=False)
    rng = np.random.default_rng(4)
    classes = rng.integers(0, 10, 16)
    images = np.repeat(np.eye(12)[None, None], 16, 0) * (classes[:, None, None, None] / 10.0)
    targets = np.eye(10)[classes][:, :, None, None]
    gate, history = threading.Semaphore(2), []
    command_buffer: Any = None
    for _ in range(30):
        assert gate.acquire(timeout=60)
        given = labels(bench, targets, channels=12)
        command_buffer = MPSCommandBuffer(command_queue=bench.queue)
        assert graph.encode_batch(command_buffer, [bench.images(images)], [given]) is None

        def done(buffer: Any, given: Any = given) -> None:
            gate.release()
            assert buffer.error is None
            history.append(losses(given).sum())

        command_buffer.add_completed_handler(done)
        command_buffer.commit()
    command_buffer.wait_until_completed()
    assert len(history) == 30, "handlers have returned before the wait does"
    assert history[-1] < 0.7 * history[0]


def test_two_gradient_nodes_of_one_layer_fill_one_exported_state(rng: np.random.Generator) -> None:
    """Two losses derived one by one: one update by the sum, which the exported state holds too."""
    image = MPSNNImageNode()
    trunk = convolution(image, source := DeviceSgd.of(rng, (4, 3, 3, 2), "trunk"))
    heads = [MPSCNNFullyConnectedNode(trunk.result_image, DeviceSgd.of(rng, (3, 4, 4, 4), name)) for name in "ab"]
    both = [softmax_loss(head.result_image) for head in heads]
    termini = [node for loss in both for node in loss.training_graph() or []]
    assert [node.label for node in termini] == ["trunk", "trunk"]
    trunk.convolution_gradient_state.export_from_graph = True
    bench = Bench.on(torch.device("cpu"))
    graph = MPSNNGraph(
        bench.device, result_images=[node.result_image for node in termini], results_are_needed=[False] * 2
    )
    graph.format = Format.FLOAT32
    before = source.array.copy()
    made: list[Any] = []
    command_buffer = bench.command_buffer()
    given = [labels(bench, one_hot(rng.integers(0, 3, 2), 3)) for _ in both]
    graph.encode_batch(command_buffer, [bench.batch(rng.random((2, 2, 4, 4)))], given, destination_states=made)
    finish(command_buffer)
    assert source.calls == 1
    total = values(made[0][0], "gradient_for_weights").reshape(before.shape)
    assert_close(values(source.state, "weights").reshape(before.shape), before - RATE * total, 1e-6)
