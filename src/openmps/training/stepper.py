"""Training steps on a device, two command buffers in flight."""

from __future__ import annotations

import queue
import threading
from typing import Any, NamedTuple

import numpy as np
import torch

from openmps.core.image.batch import MPSImageBatch
from openmps.core.training_state import Checkpointed
from openmps.errors import MPSError, MTLExecutionError
from openmps.kernels.loss import MPSCNNLossLabels
from openmps.metal.device import MTLDevice
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.training.checkpoint import graph_parts
from openmps.training.dataset import Batch
from openmps.training.network import Network
from openmps.types import MPSImageFeatureChannelFormat

_IN_FLIGHT = 2


class PreparedBatch(NamedTuple):
    """One batch on the device."""

    images: MPSImageBatch
    labels: list[MPSCNNLossLabels]
    classes: torch.Tensor


class _Finished(NamedTuple):
    """What one command buffer left: loss and number of correct classifications, or the error."""

    figures: torch.Tensor | None
    error: MTLExecutionError | None


class TrainingStepper:
    """Runs training steps, at most two at a time, while the caller prepares the next one."""

    def __init__(
        self,
        network: Network,
        device: MTLDevice,
        channel_format: MPSImageFeatureChannelFormat,
        *,
        batch_size: int,
        dropout_seed: int,
    ) -> None:
        self._device = device
        self._graph = network.training_graph(
            device, channel_format, loss_weight=1 / batch_size, dropout_seed=dropout_seed
        )
        self._queue = device.new_command_queue()
        self._free = threading.Semaphore(_IN_FLIGHT)
        self._finished: queue.SimpleQueue[_Finished] = queue.SimpleQueue()
        classes = network.shape.classes
        one_hot = np.eye(classes, dtype=np.float32).reshape(classes, 1, 1, classes)
        self._one_hot = list(MPSImageBatch.from_numpy(device, one_hot))

    def parts(self) -> dict[str, Checkpointed]:
        """What a checkpoint has to keep: the data sources, and the kernels that draw random numbers."""
        return graph_parts(self._graph)

    def reload(self) -> None:
        """Take over the weights of data sources that were restored; no step may be under way."""
        self._graph.reload_from_data_sources()

    def prepare(self, batch: Batch) -> PreparedBatch:
        """Bring a batch to the device."""
        images = MPSImageBatch.from_numpy(self._device, batch.images)
        # Labels of one class share one image: a batch costs no copies to the device but its own.
        labels = [MPSCNNLossLabels(self._device, labels_image=self._one_hot[label]) for label in batch.labels.tolist()]
        classes = torch.from_numpy(batch.labels).to(self._device.torch_device, non_blocking=True)
        return PreparedBatch(images, labels, classes)

    def step(self, batch: PreparedBatch) -> None:
        """Start one step, the update of the weights included; waits while two are under way."""
        self._free.acquire()
        try:
            command_buffer = self._encode(batch)
        except BaseException:
            self._free.release()  # nothing is under way that would
            raise
        command_buffer.commit()

    def _encode(self, batch: PreparedBatch) -> MPSCommandBuffer:
        command_buffer = MPSCommandBuffer(self._queue)
        logits: list[MPSImageBatch] = []
        self._graph.encode_batch(command_buffer, [batch.images], [batch.labels], logits)
        figures: list[torch.Tensor] = []
        command_buffer.record("measure", lambda: figures.append(_measure(batch, logits[0])))

        def completed(buffer: Any) -> None:
            self._finished.put(_Finished(figures[0] if figures else None, buffer.error))
            self._free.release()

        command_buffer.add_completed_handler(completed)
        return command_buffer

    def wait(self) -> None:
        """Wait until no step is under way."""
        for _ in range(_IN_FLIGHT):
            self._free.acquire()
        self._free.release(_IN_FLIGHT)

    def collect(self) -> list[tuple[float, int]]:
        """Loss and correct classifications of the steps that have finished since; raises what made one fail."""
        found: list[tuple[float, int]] = []
        while not self._finished.empty():
            figures, error = self._finished.get()
            if error is not None:
                raise error.__cause__ if isinstance(error.__cause__, MPSError) else error
            assert figures is not None
            loss, correct = figures.tolist()
            found.append((loss, round(correct)))
        return found


def _measure(batch: PreparedBatch, logits: MPSImageBatch) -> torch.Tensor:
    """Loss and number of correct classifications; runs on the queue, so that reading them makes nobody wait."""
    losses = torch.cat([label.loss_image().tensor() for label in batch.labels]).sum()
    predictions = logits.tensor().flatten(1).argmax(1)
    correct = (predictions == batch.classes).sum()
    figures = torch.stack((losses.to(torch.float32), correct.to(torch.float32)))
    if not figures.is_cuda:
        return figures
    return torch.empty(2, pin_memory=True).copy_(figures, non_blocking=True)
