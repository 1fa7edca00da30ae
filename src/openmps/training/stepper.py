"""Training steps on a device, two command buffers in flight."""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openmps.core.image.batch import MPSImageBatch
from openmps.core.state.batch import MPSStateBatch
from openmps.core.training_state import Checkpointed
from openmps.errors import MPSError, MTLExecutionError
from openmps.kernels.loss import MPSCNNLossLabels
from openmps.metal.device import MTLBuffer, MTLDevice
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.ops.op import Kind, Op
from openmps.ops.update.collectives import TotalFigures
from openmps.runtime.binding import Binding, Number, Numbers
from openmps.runtime.dispatch import record_op
from openmps.training.augmentation import AS_THEY_ARE, Augmentation
from openmps.training.checkpoint import graph_parts
from openmps.training.dataset import Batch
from openmps.training.network import Network
from openmps.training.processes import TrainingProcesses
from openmps.types import MPSImageFeatureChannelFormat, MTLCommandBufferStatus

if TYPE_CHECKING:
    from openmps.training.augmented_batches import AugmentedBatches

IN_FLIGHT = 2
"""Steps under way at a time."""


class PreparedBatch(NamedTuple):
    """One batch, or a part of one, on the device."""

    images: MPSImageBatch
    labels: MPSStateBatch
    unmixed: MPSImageBatch | None = None
    """The labels that those of the step are mixed of."""
    place: int = 0
    """That of its first image in the order of the epoch."""


class _Started(NamedTuple):
    """One step that is under way."""

    command_buffer: MPSCommandBuffer
    figures: MTLBuffer
    """What it leaves: loss and number of correct classifications."""


class TrainingStepper:
    """Runs training steps, at most two at a time, while the caller prepares the next one.

    With ``processes`` each of them steps on its share of a batch; ``batch_size`` counts the images of all. The share is
    computed in ``parts``, whose gradients are added up and have ``norm_limit``, see `MPSNNGraph.gradient_norm_limit`.
    """

    def __init__(
        self,
        network: Network,
        device: MTLDevice,
        channel_format: MPSImageFeatureChannelFormat,
        *,
        batch_size: int,
        dropout_seed: int,
        processes: TrainingProcesses | None = None,
        synchronizes_statistics: bool = False,
        shards_optimizer_state: bool = False,
        norm_limit: float | None = None,
        parts: int = 1,
        augmentation: Augmentation = AS_THEY_ARE,
    ) -> None:
        self._parts = parts
        self._processes = processes
        self._device = device
        self._graph = network.training_graph(
            device,
            channel_format,
            loss_weight=1 / batch_size,
            dropout_seed=dropout_seed,
            label_smoothing=augmentation.label_smoothing,
        )
        share = 0 if processes is None else processes.rank
        channels = network.shape.channels
        self._augmented = _augmented(augmentation, device, channel_format, channels, dropout_seed, share)
        self._graph.gradient_norm_limit = norm_limit
        if processes is not None:
            processes.share(
                self._graph,
                synchronizes_statistics=synchronizes_statistics,
                shards_optimizer_state=shards_optimizer_state,
            )
        self._queue = device.new_command_queue()
        self._queue.measures_times = False
        self._started: deque[_Started] = deque()
        self.collected = 0
        """How many steps were collected."""
        self.stops_at: int | None = None
        """The first step, counted from 0, in which a process said that it is to stop."""
        self.saves_at: int | None = None
        """The first step, since the last checkpoint, in which a process said that one is to be written."""
        self._finished: deque[list[float] | MTLExecutionError] = deque()
        self._one_hot = np.eye(network.shape.classes, dtype=np.float32)
        self._side = torch.cuda.Stream(device.torch_device) if device.is_cuda else None

    def parts(self) -> dict[str, Checkpointed]:
        """What a checkpoint has to keep: the data sources, and the kernels that draw random numbers."""
        return {**graph_parts(self._graph), **({} if self._augmented is None else self._augmented.parts())}

    def reload(self) -> None:
        """Take over the weights of data sources that were restored; no step may be under way."""
        self._graph.reload_from_data_sources()

    def begin_epoch(self, number: int, order: NDArray[np.int64]) -> None:
        """Take the order in which an epoch visits the images; no step is under way."""
        if self._augmented is not None:
            self._augmented.begin_epoch(number, order)

    def prepare(self, batch: Batch, place: int = 0) -> PreparedBatch:
        """Bring a batch to the device; ``place`` is that of its first image in the order of the epoch."""
        images, one_hot = MPSImageBatch.from_numpy(self._device, batch.images), self._one_hot[batch.labels]
        labels = MPSCNNLossLabels.batch(self._device, one_hot)
        unmixed = None if self._augmented is None else self._augmented.unmixed(one_hot)
        return PreparedBatch(images, labels, unmixed, place)

    def step(self, batch: PreparedBatch, *, is_to_stop: bool = False, is_to_save: bool = False) -> None:
        """Start one step, the update of the weights included; waits while two are under way.

        ``is_to_stop`` tells all processes that this one is to stop, ``is_to_save`` that it wants a checkpoint.
        """
        self._finish_all_but(IN_FLIGHT - 1)
        started = self._encode(batch, (is_to_stop, is_to_save))
        started.command_buffer.commit()
        self._started.append(started)

    def _encode(self, batch: PreparedBatch, signals: tuple[bool, bool] = (False, False)) -> _Started:
        command_buffer = MPSCommandBuffer(self._queue)
        labels: list[MPSCNNLossLabels] = list(batch.labels)  # pyright: ignore[reportAssignmentType]
        known = MPSImageBatch([each.labels_image() for each in labels])
        images = batch.images
        if self._augmented is not None:
            images = self._augmented.encode(command_buffer, images, batch.place)
            self._augmented.encode_labels(command_buffer, batch.unmixed, known)
        read: list[Binding] = []
        size = len(images) // self._parts
        for first in range(0, len(images), size):
            part = slice(first, first + size)
            logits: list[MPSImageBatch] = []
            self._graph.keeps_gradients = part.stop < len(images)
            given = (images, batch.labels) if self._parts == 1 else (images[part], batch.labels[part])
            self._graph.encode_batch(command_buffer, [given[0]], [given[1]], logits)
            losses = MPSImageBatch([each.loss_image() for each in labels[part]])
            read += [losses.whole(), logits[0].whole(), known[part].whole()]
        figures = self._device.new_buffer(2 * 4)
        record_op(command_buffer, "measure", Measure(), read, (Numbers(figures),))
        if self._processes is not None:
            own, figures = figures, self._device.new_buffer((2 + len(signals)) * 4)
            said = [Number(float(signal)) for signal in signals]
            total = TotalFigures(self._processes.processes)
            record_op(command_buffer, "total", total, (Numbers(own), *said), (Numbers(figures),))
        return _Started(command_buffer, figures)

    def _finish_all_but(self, count: int) -> None:
        """Wait until no more steps than so many are under way. No handler is told: it would want a thread to wake."""
        while len(self._started) > count:
            command_buffer, figures = self._started.popleft()
            try:
                command_buffer.wait_until_completed()
                self._finished.append(self._read(figures))
            except MTLExecutionError as error:
                self._finished.append(error)

    def _read(self, figures: MTLBuffer) -> list[float]:
        """The figures of a step that has completed; waits for no other."""
        with torch.cuda.stream(self._side):
            return figures.memory(torch.float32).tolist()

    def wait(self) -> None:
        """Wait until no step is under way."""
        self._finish_all_but(0)

    def collect(self) -> list[tuple[float, int]]:
        """Loss and correct classifications of the steps that have finished since; raises what made one fail."""
        has_ended = (each.command_buffer.status >= MTLCommandBufferStatus.COMPLETED for each in self._started)
        self._finish_all_but(len(self._started) - sum(takewhile(bool, has_ended)))
        found: list[tuple[float, int]] = []
        while self._finished:
            figures = self._finished.popleft()
            if isinstance(figures, MTLExecutionError):
                raise figures.__cause__ if isinstance(figures.__cause__, MPSError) else figures
            loss, correct, is_to_stop, is_to_save = [*figures, 0.0, 0.0][:4]
            self.collected += 1
            if is_to_stop and self.stops_at is None:
                self.stops_at = self.collected - 1
            if is_to_save and self.saves_at is None:
                self.saves_at = self.collected - 1
            found.append((loss, round(correct)))
        return found


def _augmented(
    how: Augmentation,
    device: MTLDevice,
    channel_format: MPSImageFeatureChannelFormat,
    channels: int,
    seed: int,
    share: int,
) -> AugmentedBatches | None:
    """What augments the batches; its kernels are loaded where there is something to do."""
    if how == AS_THEY_ARE:
        return None
    from openmps.training.augmented_batches import AugmentedBatches

    return AugmentedBatches(how, device, channel_format, channels=channels, seed=seed, share=share)


class Measure(Op, kind=Kind.REDUCTION):
    """Loss and number of correct classifications of a batch, as one row: of losses, logits and labels of each part."""

    def run(self, wanted: tuple[bool, ...], *operands: Tensor) -> Tensor:
        """See the class."""
        found = [_measure(*operands[first : first + 3]) for first in range(0, len(operands), 3)]
        return found[0] if len(found) == 1 else torch.stack(found).sum(0)


def _measure(losses: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    correct = (logits.flatten(1).argmax(1) == labels.flatten(1).argmax(1)).sum()
    return torch.stack((losses.sum(dtype=torch.float32), correct.to(torch.float32)))
