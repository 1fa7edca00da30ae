"""What one process of a group trains: graphs and kernels encoded by hand, alone or with others.

usage: group_worker.py OUT DEVICE CASE… (the launcher's variables in the environment say with whom). The first process
writes what each case came to into OUT, ``{case}/{name}``.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import every_option
import openmps as mps
from openmps.distributed import Group
from openmps.training import (
    ArrayConvolutionDataSource,
    Augmentation,
    Batch,
    Checkpoint,
    Dataset,
    Network,
    NetworkShape,
    RunFolder,
    TrainableBatchNormalizationDataSource,
    TrainingOptions,
    describe_run,
    graph_parts,
    optimizer_factory,
    resume,
    session,
    train,
)
from openmps.training import TrainableConvolutionDataSource as Trained
from openmps.training.processes import FollowedRun
from openmps.training.stepper import TrainingStepper
from replay_twin import outcomes, replaying_queue

IMAGES, SIDE, CLASSES, STEPS = 8, 6, 3, 10
FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32
EPSILON, MOMENTUM, RATE = 1e-3, 0.1, 0.05
Array = np.ndarray


def numbers(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def start() -> dict[str, Array]:
    """The network's first numbers, weights OHWI."""
    return {
        "first": numbers(4, 3, 3, 2, seed=1) / 4,
        "first.biases": numbers(4, seed=2) / 4,
        "last": numbers(CLASSES, SIDE, SIDE, 4, seed=3) / 12,
        "last.biases": numbers(CLASSES, seed=4) / 4,
        "gamma": 1 + numbers(4, seed=5) / 8,
        "beta": numbers(4, seed=6) / 8,
    }


def batch(step: int) -> tuple[Array, Array]:
    """Images [N, H, W, C] and classes of one step."""
    images = numbers(IMAGES, SIDE, SIDE, 2, seed=100 + step) + np.arange(IMAGES).reshape(-1, 1, 1, 1) / 8
    return images, np.random.default_rng(200 + step).integers(0, CLASSES, IMAGES)


def optimizers(name: str) -> Callable[[mps.MTLDevice], Any]:
    kinds = {
        "sgd": mps.MPSNNOptimizerStochasticGradientDescent,
        "adam": mps.MPSNNOptimizerAdam,
        "momentum": partial(mps.MPSNNOptimizerStochasticGradientDescent, momentum_scale=0.9),
    }
    return lambda device: kinds[name](device, RATE)


class World:
    """This process's device and share; all of a batch where there is no group."""

    def __init__(self, device: mps.MTLDevice | str, group: Group | None) -> None:
        self.group = group
        self.device = mps.mtl_device(device) if group is None else group.device
        self.rank, self.count = (0, 1) if group is None else (group.rank, group.count)

    def own(self, values: Array) -> Array:
        size = len(values) // self.count
        return values[self.rank * size : (self.rank + 1) * size]

    def images(self, values: Array) -> mps.MPSImageBatch:
        return mps.MPSImageBatch.from_numpy(self.device, self.own(values))

    def labels(self, classes: Array) -> Any:
        return mps.MPSCNNLossLabels.batch(self.device, np.eye(CLASSES, dtype=np.float32)[self.own(classes)])


# --- graphs -----------------------------------------------------------------------------------------------------------


def graph_case(
    world: World,
    optimizer: str,
    *,
    normalizes: bool = False,
    drops: bool = False,
    synchronizes: bool = False,
    replays: bool = False,
    shards: bool = False,
    halves: bool = False,
    bucket: int = 500,
    limit: float | None = None,
    parts: int = 1,
) -> dict[str, Array]:
    """Ten steps of a convolution, a normalization, a ReLU, a dropout and a fully connected layer."""
    own = start()
    same = mps.MPSNNDefaultPadding(mps.MPSNNPaddingMethod.SIZE_SAME)
    make = optimizers(optimizer)
    descriptors = mps.MPSCNNConvolutionDescriptor(3, 3, 2, 4), mps.MPSCNNConvolutionDescriptor(SIDE, SIDE, 4, CLASSES)
    # In front of a normalization biases have no gradient but rounding, which Adam would follow.
    biases = None if normalizes else own["first.biases"]
    first = Trained(descriptors[0], own["first"], biases, "first", optimizer=make)
    last = Trained(descriptors[1], own["last"], own["last.biases"], "last", optimizer=make)
    normalization = TrainableBatchNormalizationDataSource(
        4, own["gamma"], own["beta"], label="norm", epsilon=EPSILON, momentum=MOMENTUM, optimizer=make
    )
    convolution = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), first)
    convolution.padding_policy = same
    x = convolution.result_image
    if normalizes:
        x = mps.MPSCNNBatchNormalizationNode(x, normalization).result_image
    x = mps.MPSCNNNeuronReLUNode(x).result_image
    if drops:
        x = mps.MPSCNNDropoutNode(x, 0.75, 7).result_image
    x = mps.MPSCNNFullyConnectedNode(x, last).result_image
    said = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.SOFT_MAX_CROSS_ENTROPY, mps.MPSCNNReductionType.SUM)
    said.weight = 1 / IMAGES
    training = mps.MPSCNNLossNode(x, said).training_graph(None)
    graph = mps.MPSNNGraph(world.device, training[0].result_image, result_image_is_needed=False)
    graph.format = mps.MPSImageFeatureChannelFormat.FLOAT16 if halves else FLOAT32
    if world.group is not None:
        options = {"synchronizes_statistics": synchronizes, "shards_optimizer_state": shards}
        world.group.share(graph, **options, bucket_bytes=bucket)
    graph.gradient_norm_limit = limit
    queue = replaying_queue(world.device) if replays else world.device.new_command_queue()
    for step in range(STEPS):
        images, classes = batch(step)
        command_buffer = queue.command_buffer()
        for part in range(parts):
            graph.keeps_gradients = part + 1 < parts
            some, theirs = world.images(images[part::parts]), world.labels(classes[part::parts])
            graph.encode_batch(command_buffer, [some], [theirs])
        command_buffer.commit()
        command_buffer.wait_until_completed()
    if replays:
        assert set(outcomes(command_buffer)) == {"replayed"}, outcomes(command_buffer)
    found = {"first": first.weights(), "last": last.weights(), "last.biases": last.bias_terms()}
    return found | (normalization.arrays() if normalizes else {"first.biases": first.bias_terms()})


# --- by hand ----------------------------------------------------------------------------------------------------------


def by_hand(world: World, *, synchronizes: bool = False, replays: bool = False) -> dict[str, Array]:
    """Convolution, batch normalization in its four stages, updates; the gradient of the results is their square's."""
    own = start()
    make = optimizers("sgd")
    weights = Trained(
        mps.MPSCNNConvolutionDescriptor(3, 3, 2, 4), own["first"], own["first.biases"], "first", optimizer=make
    )
    source = TrainableBatchNormalizationDataSource(
        4, own["gamma"], own["beta"], label="norm", epsilon=EPSILON, momentum=MOMENTUM, optimizer=make
    )
    device, group = world.device, world.group
    convolution = mps.MPSCNNConvolution(device, weights=weights)
    slope = mps.MPSCNNConvolutionGradient(device, weights=weights)
    slope.gradient_option = mps.MPSCNNConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS
    normalization = mps.MPSCNNBatchNormalization(device, source)
    statistics, sums, back = (
        mps.MPSCNNBatchNormalizationStatistics(device),
        mps.MPSCNNBatchNormalizationStatisticsGradient(device),
        mps.MPSCNNBatchNormalizationGradient(device),
    )
    for kernel in (convolution, slope, normalization, back):
        kernel.destination_image_allocator = mps.MPSImage.default_allocator()
    queue = replaying_queue(device) if replays else device.new_command_queue()
    for step in range(STEPS):
        images = world.images(batch(step)[0])
        flow = world.images(numbers(IMAGES, SIDE, SIDE, 4, seed=300 + step) / 64)
        command_buffer = queue.command_buffer()
        x, states = convolution.encode_batch(command_buffer, images, destination_state_is_temporary=False)
        state = normalization.result_state(x[0])
        statistics.encode_batch(command_buffer, x, state)
        if group is not None and synchronizes:
            group.reduce_statistics(command_buffer, state)
        normalization.encode_batch(command_buffer, x, state)
        sums.encode_batch(command_buffer, flow, x, state)
        if group is not None and synchronizes:
            group.reduce(command_buffer, state)
        y = back.encode_batch(command_buffer, flow, x, state)
        slope.encode_batch(command_buffer, y, images, states)
        if group is not None:
            group.reduce(command_buffer, [states] if synchronizes else [state, states])
        weights.update(command_buffer, states.shared, convolution.parameters.state())
        normalization.reload_gamma_and_beta(command_buffer, source.update_gamma_and_beta(command_buffer, state))
        source.update_mean_and_variance(command_buffer, state)
        command_buffer.commit()
        command_buffer.wait_until_completed()
    return {"first": weights.weights(), "first.biases": weights.bias_terms(), **source.arrays()}


def in_order(world: World) -> World:
    """The same processes, which make sums in their order."""
    return World(world.device, None if world.group is None else Group.join(world.device, in_order=True))


def pieces(world: World, parts: int) -> dict[str, Array]:
    """Gradients of a batch in so many pieces, by one process one behind the other, or by as many processes."""
    own, images, group = start(), batch(0)[0], in_order(world).group
    weights = ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(3, 3, 2, 4), own["first"], own["first.biases"])
    convolution = mps.MPSCNNConvolution(world.device, weights=weights)
    slope = mps.MPSCNNConvolutionGradient(world.device, weights=weights)
    command_buffer = world.device.new_command_queue().command_buffer()
    for kernel in (convolution, slope):
        kernel.destination_image_allocator = mps.MPSImage.default_allocator()
    count = IMAGES // parts
    given = [world.images(images)] if world.group else [
        mps.MPSImageBatch.from_numpy(world.device, images[part * count : (part + 1) * count]) for part in range(parts)
    ]  # fmt: skip
    whole = mps.MPSImageBatch([image for each in given for image in each])
    states = convolution.result_state_batch(whole)
    for piece in given:
        some = states[: len(piece)]
        y = convolution.encode_batch(command_buffer, piece, destination_states=some)
        slope.encode_batch(command_buffer, y, piece, some)
    if group is not None:
        group.reduce(command_buffer, states)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    state = states[0]
    return {
        "weights": state.gradient_for_weights.contents().view(np.float32).copy(),
        "biases": state.gradient_for_biases.contents().view(np.float32).copy(),
    }


# --- shares of the optimizer's state ----------------------------------------------------------------------------------


class Exact:
    """A layer whose gradients have the same bits however a batch is parted: sums of whole numbers, by any order.

    The slope of the loss is that of ``|x - t|`` far below ``t``.
    """

    OUTPUTS = 64
    NUMBERS = OUTPUTS * (SIDE * SIDE * 2 + 1)

    def __init__(self, world: World, *, shards: bool) -> None:
        self.world = world
        weights = np.zeros((self.OUTPUTS, SIDE, SIDE, 2), np.float32)
        descriptor = mps.MPSCNNConvolutionDescriptor(SIDE, SIDE, 2, self.OUTPUTS)
        self.source = Trained(descriptor, weights, np.zeros(self.OUTPUTS), "exact", optimizer=optimizers("adam"))
        self.source.keep_average(0.75)
        said = mps.MPSCNNLossDescriptor(mps.MPSCNNLossType.MEAN_ABSOLUTE_ERROR, mps.MPSCNNReductionType.SUM)
        said.weight = 1 / IMAGES
        last = mps.MPSCNNFullyConnectedNode(mps.MPSNNImageNode(), self.source).result_image
        training = mps.MPSCNNLossNode(last, said).training_graph(None)
        self.graph = mps.MPSNNGraph(world.device, training[0].result_image, result_image_is_needed=False)
        self.graph.format = FLOAT32
        if world.group is not None:
            world.group.share(self.graph, shards_optimizer_state=shards)
        self.queue = world.device.new_command_queue()

    def train(self, first: int, last: int) -> Checkpoint:
        """The checkpoint behind steps ``first`` to ``last``."""
        far = np.full((IMAGES, self.OUTPUTS), 1e6, np.float32)
        for step in range(first, last):
            images = np.random.default_rng(400 + step).integers(-4, 5, (IMAGES, SIDE, SIDE, 2)).astype(np.float32)
            labels = mps.MPSCNNLossLabels.batch(self.world.device, self.world.own(far))
            command_buffer = self.queue.command_buffer()
            self.graph.encode_batch(command_buffer, [self.world.images(images)], [labels])
            command_buffer.commit()
            command_buffer.wait_until_completed()
        return self.checkpoint(last)

    def checkpoint(self, step: int) -> Checkpoint:
        return Checkpoint.of(step, graph_parts(self.graph))

    def go_on_from(self, checkpoint: Checkpoint) -> Exact:
        checkpoint.restore(graph_parts(self.graph))
        self.graph.reload_from_data_sources()
        return self

    def moments(self) -> int:
        """Bytes of the optimizer's vectors."""
        return sum(row.data.length for rows in self.source.accumulators.values() for row in rows)


def shared_state(world: World) -> dict[str, Array]:
    """A run with shares of the state, and runs that go on from its checkpoint with and without; moments in bytes."""
    never_stopped = Exact(world, shards=True)
    middle = never_stopped.train(0, 3)
    found = {"middle": middle, "never stopped": never_stopped.train(3, 6)}
    bytes_of = {"never stopped": never_stopped.moments()}
    for name, shards in (("shards", True), ("whole", False)):
        read = Checkpoint.from_bytes(middle.to_bytes())
        found[name] = (run := Exact(world, shards=shards).go_on_from(read)).train(3, 6)
        bytes_of[name] = run.moments()
    # A graph that is shared in another way goes on with what it has.
    if world.group is not None:
        for name, shards in (("gathered", False), ("cut", True)):
            world.group.share(never_stopped.graph, shards_optimizer_state=shards)
            found[name], bytes_of[name] = never_stopped.checkpoint(6), never_stopped.moments()
    sizes = bytes_of if world.group is None else {
        name: [each[name] for each in world.group.gather(bytes_of)] for name in bytes_of
    }  # fmt: skip
    arrays = {name: np.frombuffer(each.to_bytes(), np.uint8) for name, each in found.items()}
    return arrays | {f"bytes, {name}": np.array(size) for name, size in sizes.items()}


def augmented(world: World) -> dict[str, Array]:
    """Steps on shares of batches that are augmented in every way."""
    how = Augmentation.parse(every_option.AUGMENTATION)
    network = Network.create(
        NetworkShape(SIDE, SIDE, 1, CLASSES, "lenet"), seed=1, optimizer=optimizer_factory("sgd", RATE)
    )
    stepper = TrainingStepper(
        network, world.device, FLOAT32, batch_size=IMAGES, dropout_seed=3, processes=world.group, augmentation=how
    )
    stepper.begin_epoch(1, np.arange(IMAGES * STEPS) * 3)
    for step in range(STEPS):
        images, classes = batch(step)
        pixels = (images[..., :1] * 40 + 128).clip(0, 255).astype(np.uint8)
        own = Batch(world.own(pixels), world.own(classes), world.own(np.arange(IMAGES)))
        stepper.step(stepper.prepare(own, IMAGES * step + world.rank * IMAGES // world.count))
    stepper.wait()
    stepper.collect()
    return network.arrays()


# --- every option -----------------------------------------------------------------------------------------------------

STOPS = (2, 4)
"""Steps, of three an epoch, from whose checkpoints the run goes on."""


def with_every_option(world: World, *, shards: bool, **changes: Any) -> dict[str, Array]:
    """The files of a run with all options at once, and of the runs that go on from its checkpoints."""
    generator = np.random.default_rng(9)
    pixels = generator.integers(0, 256, (40, SIDE, SIDE, 1), np.uint8)
    data = Dataset(pixels, np.arange(40) % 2, ("a", "b"), "noise").split()
    said = {**every_option.OPTIONS, **changes}
    options = TrainingOptions(
        epochs=2, batch_size=IMAGES, network="tiny", checkpoint_every=1, checkpoints_kept=99, **said
    )
    together: Any = {"processes": world.group, "shards_optimizer_state": shards}
    description, found = describe_run(data, options), dict[str, Array]()
    with tempfile.TemporaryDirectory() as folder, nothing_but_numbers():
        whole = Path(folder, "whole")
        run = FollowedRun(whole, description) if world.rank else RunFolder.create(folder, description, name="whole")
        train(data, run, options, world.device, **together)
        found |= files_of(whole, "whole")
        for step in STOPS:
            path = Path(folder, f"from {step}")
            if not world.rank:
                shutil.copytree(whole, path)
            again = FollowedRun(path, description) if world.rank else RunFolder.open(path)
            stopped = None if world.rank else again.checkpoints.load(step)
            resume(data, again, world.device, checkpoint=stopped, **together)
            found |= files_of(path, path.name)
    return found


def files_of(path: Path, name: str) -> dict[str, Array]:
    """The bytes of a run's arrays; none where another process has it."""
    files = [*path.glob("*.safetensors"), *path.glob("*.dat")]
    return {f"{name}/{file.name}": np.frombuffer(file.read_bytes(), np.uint8) for file in files}


@contextmanager
def nothing_but_numbers() -> Generator[None]:
    """Without pictures, and without care for power cuts, which would take most of the time."""
    leave = {name: lambda *arguments, **named: None for name in ("draw_curve", "draw_misclassified")}
    with patch.multiple(session, **leave), patch.object(os, "fsync", lambda file: None):
        yield


CASES: dict[str, Callable[[World], dict[str, Array]]] = {
    "sgd": lambda world: graph_case(world, "sgd", drops=True),
    "adam": lambda world: graph_case(world, "adam", drops=True),
    "sgd, normalized": lambda world: graph_case(world, "sgd", normalizes=True, drops=True, synchronizes=True),
    "adam, normalized": lambda world: graph_case(world, "adam", normalizes=True, synchronizes=True),
    "apart": lambda world: graph_case(world, "sgd", normalizes=True, synchronizes=False),
    "replayed": lambda world: graph_case(world, "sgd", normalizes=True, drops=True, synchronizes=True, replays=True),
    "one bucket": lambda world: graph_case(world, "sgd", drops=True, bucket=1 << 20),
    "momentum": lambda world: graph_case(world, "momentum", normalizes=True, synchronizes=True, limit=0.2, parts=2),
    "sgd, shards": lambda world: graph_case(world, "sgd", drops=True, shards=True),
    "momentum, shards": lambda world: graph_case(
        world, "momentum", normalizes=True, synchronizes=True, shards=True, limit=0.2, parts=2, replays=True
    ),
    "adam, normalized, shards": lambda world: graph_case(
        world, "adam", normalizes=True, synchronizes=True, shards=True, replays=True
    ),
    "halves": lambda world: graph_case(world, "adam", normalizes=True, synchronizes=True, halves=True),
    "halves, shards": lambda world: graph_case(
        world, "adam", normalizes=True, synchronizes=True, halves=True, shards=True, replays=True
    ),
    "in order": lambda world: graph_case(in_order(world), "adam", drops=True),
    "in order, shards": lambda world: graph_case(in_order(world), "adam", drops=True, shards=True),
    "shared state": shared_state,
    "augmented": augmented,
    "every option": lambda world: with_every_option(world, shards=False),
    "every option, shards": lambda world: with_every_option(world, shards=True, optimizer="adam"),
    "by hand": lambda world: by_hand(world, synchronizes=True),
    "by hand, replayed": lambda world: by_hand(world, synchronizes=True, replays=True),
    "by hand, apart": by_hand,
    "2 pieces": lambda world: pieces(world, 2),
    "4 pieces": lambda world: pieces(world, 4),
}


def run(out: str, device: str, names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    group = Group.join(device) if "RANK" in os.environ else None
    world = World(device, group)
    found = {f"{case}/{name}": array for case in names for name, array in CASES[case](world).items()}
    if world.rank == 0:
        np.savez(out, **found)
    if group is not None:
        group.leave()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3:] or list(CASES))
