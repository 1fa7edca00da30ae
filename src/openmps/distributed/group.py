"""The processes that train together: how they meet, what they add up, what they tell one another."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from openmps.checks import NamedAttributes, Shown, flag, number, of_kind, whole
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.state.state import MPSState
from openmps.distributed.launch import Place, meet, place_from_environment
from openmps.distributed.sums import Gradients, gradients_of
from openmps.errors import MPSArgumentError, MPSError, MPSProcessError, MPSTypeError
from openmps.graph.compile.shards import Shards
from openmps.graph.compile.sharing import BUCKET_BYTES, Sharing
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.node import MPSNNGradientFilterNode
from openmps.kernels.batch_normalization import MPSCNNBatchNormalizationState
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.metal.queue_executor import forget_captures
from openmps.ops.op import Equation, Function, Input, Role
from openmps.ops.update.collectives import FinishSum, Processes, SharedMoments, StartSum
from openmps.runtime.binding import Numbers, Replaced
from openmps.runtime.devices import mtl_device
from openmps.runtime.dispatch import function_of_op, record_function

T = TypeVar("T")
_VERSION: str = import_module("openmps").__version__
_ENDED = "ended/{}"
_LONGEST = 400
_PATIENCE = 1.0
"""Seconds for which another process's last words are waited for."""


class Group(NamedAttributes):
    """The processes of one training, each with a device of its own and an equal share of every batch.

    `join` waits for all that a launcher has started. Then, in each process: `share` a graph, or `reduce` the gradient
    states of kernels encoded by hand between their gradient kernels and the updates. Gradients are **sums** over all
    processes: with the loss's weight that one process would use for the whole batch, N processes with B images each
    compute what one computes with N·B.

    All processes encode the same work in the same order, on one queue.
    """

    device = Shown[MTLDevice]("_device", "The device of this process.")
    restarts = Shown[int]("_place.restarts", "How many times the launcher has started all processes anew.")
    most_restarts = Shown[int]("_place.most_restarts", "How many times it may.")

    def __init__(self, place: Place, device: MTLDevice, store: Any, timeout: timedelta, *, in_order: bool) -> None:
        self._place = place
        self._device = device
        self._store = store
        self._has_said_why = False
        self._functions: dict[tuple[int, tuple[float, ...]], Function] = {}
        # What the processes tell one another goes by the CPU, and never between two sums on the device.
        with self._heard():
            self._talk: Any = dist.new_group(backend="gloo", timeout=timeout)
        self._processes = Processes(None, place.rank, place.size, in_order=in_order, explain=self._explained)
        self._shards = Shards(self._processes) if place.size > 1 else None

    @classmethod
    def join(
        cls,
        device: MTLDevice | str | None = None,
        *,
        timeout: float = 45.0,
        in_order: bool = False,
        since: float | None = None,
    ) -> Group:
        """Meet the processes that ``torchrun``, or another launcher with its environment variables, has started.

        Without ``device`` each process takes the GPU of its local rank, or the CPU where there is none. A process that
        does not come, or does not answer for ``timeout`` seconds later on, is an `MPSProcessError` in all others.
        ``in_order`` makes every sum in the order of the processes: its bits depend on nothing else then, at the price
        of more traffic. The engine's default group is used where the program has made one.

        ``since``, a ``time.monotonic()``, says when this process was started with the others, which must come within
        ``timeout`` seconds of that, or within 20 seconds of now; without it of now.

        Raises:
            MPSProcessError: A process is missing, or has another version of openmps or PyTorch, or another backend.
        """
        in_order = flag("Group.join", "in_order", in_order)
        seconds = number("Group.join", "timeout", timeout)
        if not seconds > 0:
            raise MPSArgumentError("Group.join", "timeout", "must be above 0 seconds", timeout)
        patience, given = timedelta(seconds=seconds), dist.is_initialized()
        place = _place_in_default_group() if given else place_from_environment()
        own = device if isinstance(device, MTLDevice) else mtl_device(_named(device, place))
        if own.is_cuda:
            torch.cuda.set_device(own.torch_device)
        if given:
            store: Any = dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
        else:
            backend = "nccl" if own.is_cuda else "gloo"
            began = time.monotonic() if since is None else number("Group.join", "since", since)
            store = meet(place, backend, patience, own.torch_device if own.is_cuda else None, began)
        group = cls(place, own, store, patience, in_order=in_order)
        group._check_versions()
        return group

    @property
    def rank(self) -> int:
        """Which process this is, counted from 0."""
        return self._place.rank

    @property
    def count(self) -> int:
        """How many processes there are."""
        return self._place.size

    @property
    def processes(self) -> Processes:
        """The processes as operations know them; for those who extend."""
        return self._processes

    @property
    def name(self) -> str:
        """What errors call this process."""
        return f"process {self.rank} of {self.count}"

    def leave(self) -> None:
        """End the group; the last call. Waits for nobody, but for a moment where the others are to read why."""
        self._talk = None
        if self._device.is_cuda:
            # The engine waits for ever for captures that use the connections.
            torch.cuda.synchronize(self._device.torch_device)
            forget_captures(self._device.torch_device)
            gc.collect()
        with suppress(RuntimeError, ValueError, AssertionError):
            dist.destroy_process_group()
        if self._has_said_why and self.rank == 0:
            time.sleep(1.5 * _PATIENCE)  # without a launcher of its own, this process keeps what they read

    # --- what is added up ---------------------------------------------------------------------------------------------

    def share(
        self,
        graph: MPSNNGraph,
        *,
        synchronizes_statistics: bool = False,
        shards_optimizer_state: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """Have a training graph encode this process's share of each batch, and add up what it trains with.

        The sums start while the gradient pass goes on, some ``bucket_bytes`` at a time; data sources and exported
        states get them. ``synchronizes_statistics`` True normalizes with mean and variance of the whole batch; else
        each process normalizes its share by itself, and running averages take the mean of all processes' statistics.
        Dropout draws the masks of the images at their places in the whole batch.

        ``shards_optimizer_state`` True has each process keep the optimizers' vectors (momenta, velocities) of its share
        of the parameters, update these, and get the others from the other processes: the same numbers with a part of
        the memory. Data sources must offer it, as the package's trainable ones do; their ``training_state()`` is to be
        called in all processes then.

        Raises:
            MPSArgumentError: The graph has no gradients.
            MPSTypeError: A data source does not offer to keep a share.
            MPSProcessError: The graph has other parameters here than in another process, or other options.
        """
        graph = of_kind("Group.share", "graph", graph, MPSNNGraph)
        if not any(isinstance(node, MPSNNGradientFilterNode) for node in graph.kernels):
            remedy = "Make it by training_graph(); a graph of inference shares nothing"
            raise MPSArgumentError("Group.share", "graph", "must be a training graph", repr(graph), remedy)
        synchronizes = flag("Group.share", "synchronizes_statistics", synchronizes_statistics)
        shards = flag("Group.share", "shards_optimizer_state", shards_optimizer_state)
        limit = whole("Group.share", "bucket_bytes", bucket_bytes)
        options = {
            "synchronizes_statistics": synchronizes, "shards_optimizer_state": shards, "bucket_bytes": limit,
            "in_order": self._processes.in_order,
        }  # fmt: skip
        self.check_alike("options of the graph", options, "Share it in the same way in all processes")
        self.check_alike("parameters of the graph", _fingerprints(graph), "Make them from one seed, or load one file")
        graph.share_among(Sharing(self._processes, synchronizes, limit, self._shards if shards else None))

    def reduce(self, command_buffer: CommandBuffer, states: MPSState | Sequence[MPSState]) -> None:
        """Record that the gradients in states become the sums over all processes.

        ``states`` are those of convolutions, of batch, instance and group normalizations, in the same order in every
        process. Encode it behind their gradient kernels and before the optimizers. A batch normalization whose
        statistics were shared by `reduce_statistics` comes here between `MPSCNNBatchNormalizationStatisticsGradient`
        and `MPSCNNBatchNormalizationGradient`; one that was not comes behind both.

        Raises:
            MPSTypeError: A state holds no gradients of parameters.
            MPSArgumentError: A batch normalization's gradient is yet to be encoded with sums of this process alone.
        """
        check_command_buffer(self.name, command_buffer, self._device)
        found = gradients_of(self.name, command_buffer, states)
        if found.places:
            scales = tuple(1 / self.count if is_mean else 1.0 for is_mean in found.are_means)
            self._record_sum(command_buffer, found, scales)

    def reduce_statistics(
        self, command_buffer: CommandBuffer, batch_normalization_state: MPSCNNBatchNormalizationState
    ) -> None:
        """Record that mean and variance in a state become those of the whole batch.

        Encode it between `MPSCNNBatchNormalizationStatistics`, of as many pixels in every process, and
        `MPSCNNBatchNormalization`. `reduce` must then come before `MPSCNNBatchNormalizationGradient`.
        """
        check_command_buffer(self.name, command_buffer, self._device)
        kind = MPSCNNBatchNormalizationState
        state = of_kind("Group.reduce_statistics", "batch_normalization_state", batch_normalization_state, kind)
        state.check_usable(self.name, "batch_normalization_state", command_buffer)
        state.share_statistics(self.name, self.count)
        rows = [state.own(name) for name in ("mean", "correction", "variance")]
        function = function_of_op(SharedMoments(self._processes), (Numbers,) * 3, 3)
        record_function(command_buffer, "shared statistics", function, rows, [*map(Replaced, rows)])

    def _record_sum(self, command_buffer: CommandBuffer, found: Gradients, scales: tuple[float, ...]) -> None:
        places = [*found.places]
        count = len(places)
        start = Equation(StartSum(self._processes), tuple(range(count)), (count,))
        parts = tuple(range(count + 1, 2 * count + 1))
        steps = (start, Equation(FinishSum(self._processes, count, scales), (count,), parts))
        inputs = tuple(Input(Role.BUFFER, str(index)) for index in range(count))
        key = (count, scales)
        function = self._functions.get(key)
        if function is None:
            names = tuple(map(str, range(count)))
            function = self._functions[key] = Function(inputs, steps, names, parts, 2 * count + 1)
        record_function(command_buffer, "shared gradients", function, places, [*map(Replaced, places)])

    # --- what processes tell one another ------------------------------------------------------------------------------

    def gather(self, value: T) -> list[T]:
        """What every process gives, in their order."""
        found: list[Any] = [None] * self.count
        with self._heard():
            dist.all_gather_object(found, value, group=self._talk)
        return found

    def broadcast(self, value: T, source: int = 0) -> T:
        """What process ``source`` gives; the others' values are not looked at."""
        box: list[Any] = [value if self.rank == source else None]
        with self._heard():
            dist.broadcast_object_list(box, src=source, group=self._talk)
        return box[0]

    def together(self, work: Callable[[], T]) -> T:
        """Do something in every process; where it fails in one, all raise: that one its error, the others which."""
        error: MPSError | None = None
        value: Any = None
        try:
            value = work()
        except MPSError as fault:
            error = fault
        said = self.gather(None if error is None else str(error)[:_LONGEST])
        if error is not None:
            raise error
        faulty = next((rank for rank, text in enumerate(said) if text is not None), None)
        if faulty is not None:
            raise MPSProcessError(self.name, f"process {faulty}", f"has failed: {said[faulty]}")
        return value

    def check_alike(self, what: str, value: Any, remedy: str = "") -> None:
        """Raise `MPSProcessError` in every process unless all give equal values, saying which differs from the first's.

        Of two mappings the first key that differs is named.
        """
        said = self.gather(value)
        for rank, other in enumerate(said):
            if other != said[0]:
                part = _difference(said[0], other)
                rule = f"must be those of process 0{part}"
                raise MPSProcessError(self.name, what, rule, f"others in process {rank}", remedy)

    def say_why(self, error: BaseException) -> None:
        """Leave word for the others of why this process ends; not where it ends because of another."""
        if isinstance(error, MPSProcessError | SystemExit):
            return
        text = f"{error}" if isinstance(error, MPSError) else f"{type(error).__name__}: {error}"
        self._has_said_why = True
        with suppress(RuntimeError):
            self._store.set(_ENDED.format(self.rank), text[:_LONGEST])

    @contextmanager
    def _heard(self) -> Generator[None]:
        try:
            yield
        except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise self._explained(error) from error

    def _explained(self, error: BaseException) -> MPSProcessError:
        """What is raised where the engine says that others are gone."""
        words = self._last_words()
        remedy = "Start all processes again, from the last checkpoint"
        if words:
            rank, text = words
            return MPSProcessError(self.name, f"process {rank}", f"has failed: {text}", None, remedy)
        # Without the place in the engine's source, and what it says to its developers.
        got = re.sub(r"^\[[^\]]*\] ?", "", str(error)).partition("\n")[0].partition(". ")[0]
        rule = "must answer: one of them was killed, has hung, or its machine is gone"
        return MPSProcessError(self.name, "the other processes", rule, got, remedy)

    def _last_words(self) -> tuple[int, str] | None:
        others = [rank for rank in range(self.count) if rank != self.rank]
        end = time.monotonic() + _PATIENCE
        with suppress(RuntimeError):
            while time.monotonic() < end:
                for rank in others:
                    if self._store.check([_ENDED.format(rank)]):
                        return rank, self._store.get(_ENDED.format(rank)).decode(errors="replace")
                time.sleep(_PATIENCE / 20)
        return None

    def _check_versions(self) -> None:
        mine = {"openmps": _VERSION, "torch": str(torch.__version__), "backend": dist.get_backend()}
        self.check_alike("versions", mine, "Install the same packages for all processes")

    def __repr__(self) -> str:
        return f"<{self.name} on {self.device.name}>"


def _place_in_default_group() -> Place:
    rank = dist.get_rank()
    return Place(rank, dist.get_world_size(), int(os.environ.get("LOCAL_RANK", str(rank))), 0, 0)


def _named(device: object, place: Place) -> str:
    """The name of the device of this process."""
    if device is not None and not isinstance(device, str):
        raise MPSTypeError("Group.join", "device", "must be an MTLDevice, a name or None", type(device).__name__)
    gpus = torch.cuda.device_count()
    if device == "cpu" or (device in (None, "auto") and not gpus):
        return "cpu"
    if device in (None, "auto", "cuda"):
        if place.local_rank >= gpus:
            rule = f"must be below {gpus}, the number of GPUs that this machine has"
            remedy = "Start as many processes as there are GPUs, or take the CPU"
            raise MPSProcessError("Group.join", "local rank", rule, place.local_rank, remedy)
        return f"cuda:{place.local_rank}"
    return device


def _difference(first: Any, other: Any) -> str:
    if isinstance(first, dict) and isinstance(other, dict):
        for key in {**first, **other}:
            if first.get(key) != other.get(key):
                return f", which has {key} {_shown(first.get(key))}, not {_shown(other.get(key))}"
    return ""


def _shown(value: Any) -> str:
    return f"{value}"[:60]


def _fingerprints(graph: MPSNNGraph) -> dict[str, str]:
    """A digest of the numbers of each kernel that has some, by name."""
    found: dict[str, str] = {}
    for place, kernel in enumerate(graph.kernels.values()):
        held = getattr(kernel, "parameters", None)
        if held is not None:
            tensors = [held.weights, *([] if held.biases is None else [held.biases])]
        elif hasattr(kernel, "gamma_and_beta"):
            tensors = [buffer.memory(torch.float32) for buffer in kernel.gamma_and_beta]
        else:
            continue
        digest = hashlib.sha256()
        for tensor in tensors:
            digest.update(np.ascontiguousarray(tensor.detach().cpu().numpy()).tobytes())
        found[f"{place} {kernel.name}"] = digest.hexdigest()[:12]
    return found
