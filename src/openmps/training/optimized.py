"""What data sources with an optimizer of their own share: its vectors, its learning rate, what a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import Shown, finite, flag, store
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.training_state import TrainingState, check_names, finite_number, numbers
from openmps.core.vector import MPSVector, MPSVectorDescriptor
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.graph.compile.shards import Shards
from openmps.kernels.optimizers import (
    MPSNNOptimizer,
    MPSNNOptimizerAdam,
    MPSNNOptimizerRMSProp,
    MPSNNOptimizerStochasticGradientDescent,
)
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.runtime.dispatch import Dispatch

OptimizerFactory = Callable[["MTLDevice"], MPSNNOptimizer]
_ACCUMULATORS: dict[type[MPSNNOptimizer], tuple[str, ...]] = {
    MPSNNOptimizerAdam: ("input_momentum_vectors", "input_velocity_vectors"),
    MPSNNOptimizerRMSProp: ("input_sum_of_squares_vectors",),
    MPSNNOptimizerStochasticGradientDescent: ("input_momentum_vectors",),
}
_ENCODES: dict[type, Any] = {kind: getattr(kind, "encode", None) for kind in _ACCUMULATORS}


class _Settled(NamedTuple):
    """An update that is encoded again and again."""

    optimizer: MPSNNOptimizer
    source: object
    vectors: dict[str, list[MPSVector]]
    """By argument, in lists of its own."""
    arguments: list[object]


class Repeat:
    """A source's update by the gradients of one state that is encoded again and again (`graph.run.repeats`)."""

    __slots__ = ("_encode", "_own", "_settled", "_source", "_update", "operands")

    def __init__(self, source: Any, settled: _Settled, update: Any) -> None:
        self._source, self._settled, self._update = source, settled, update
        self.operands: Sequence[Any] = update.operands
        self._own, self._encode = type(source).update, _ENCODES[type(settled.optimizer)]

    def holds(self) -> bool:
        """Whether nothing of it has changed but the gradients' numbers and the rate."""
        source, settled, update = self._source, self._settled, self._update
        optimizer, asked = settled.optimizer, source.update
        encode: Any = getattr(optimizer, "encode", None)
        return (
            source._settled is settled
            and source._optimizer is optimizer
            and source._shards is None
            and settled.vectors == source._accumulators
            and update.clips is optimizer.apply_gradient_clipping
            and update.shard is optimizer._shard  # pyright: ignore[reportPrivateUsage]
            and getattr(asked, "__func__", None) is self._own
            and asked.__self__ is source
            and getattr(encode, "__func__", None) is self._encode
        )

    def check(self, command_buffer: CommandBuffer) -> None:
        """Raise unless it can be encoded to a command buffer."""
        optimizer = self._settled.optimizer
        check_command_buffer(optimizer.name, command_buffer, optimizer.device)

    def encoded(self) -> tuple[str, Dispatch]:
        """What is to be recorded, with its label; what else ``update`` does is done."""
        store(self._source, "_current", self._settled.source)
        return self._settled.optimizer._encoded(self._update)  # pyright: ignore[reportPrivateUsage]


def _encodes_as_it_came(optimizer: MPSNNOptimizer) -> bool:
    """Whether it is one of the framework's optimizers, whose ``encode`` nobody has put another in the place of."""
    encode: Any = getattr(optimizer, "encode", None)
    return getattr(encode, "__func__", None) is _ENCODES.get(type(optimizer), _ENCODES)


class Optimized:
    """A data source that trains its numbers on the device with an optimizer of its own, made at the first update."""

    _parts: ClassVar[tuple[str, ...]]
    """What `arrays` may hold."""
    _label: str | None

    def _train_with(self, optimizer: OptimizerFactory, *, amsgrad: bool) -> None:
        self._make_optimizer = optimizer
        if not callable(optimizer):
            rule, remedy = "must be a function of a device", "Pass lambda device: MPSNNOptimizerAdam(device, 1e-3)"
            raise MPSTypeError(self._name, "optimizer", rule, type(optimizer).__name__, remedy)
        self._amsgrad = flag(self._name, "amsgrad", amsgrad)
        self._optimizer: MPSNNOptimizer | None = None
        self._learning_rate: float | None = None
        self._accumulators: dict[str, list[MPSVector]] = {}
        self._lengths: Sequence[int] = ()  # of the parameters
        self._shards: Shards | None = None
        self._restored: dict[str, Any] = {}  # what a checkpoint says of an optimizer that is not made yet
        self._settled: _Settled | None = None

    optimizer = Shown[MPSNNOptimizer | None]("_optimizer", "The optimizer, once the first update has made it.")
    amsgrad = Shown[bool]("_amsgrad", "Whether Adam keeps the maximum of the velocities.")
    accumulators = Shown[dict[str, list[MPSVector]]](
        "_accumulators",
        "The optimizer's vectors by argument name: the first parameter's, then the second's; of processes that share "
        "the optimizer's state those of this process's share.",
    )

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """The numbers as they are now, by name."""
        raise NotImplementedError

    def _take(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        """Take over other numbers; graphs read them when they are made or reloaded."""
        raise NotImplementedError

    def set_learning_rate(self, learning_rate: float) -> None:
        """Change the step size of the updates that are encoded from now on."""
        rate = self._learning_rate = finite(self._name, "learning_rate", learning_rate)
        if self._optimizer is not None:
            self._optimizer.set_learning_rate(rate)

    def optimizer_for(self, device: MTLDevice) -> MPSNNOptimizer:
        """The optimizer; one like that which the first update will make, as long as there is none."""
        return self._make_optimizer(device) if self._optimizer is None else self._optimizer

    def shard_optimizer(self, shards: Shards | None) -> None:
        """Keep the optimizer's vectors of this process's share of the parameters from now on; None: of all of them.

        `Group.share` calls it, in all processes: vectors that are there already are cut, or gathered. Our addition.
        """
        if shards is self._shards:
            return
        optimizer, state = self._optimizer, {} if self._optimizer is None else self._optimizer_state(self._optimizer)
        self._shards = shards
        if optimizer is not None:
            self._make_vectors(optimizer)
            self._restore_optimizer(optimizer, state)

    # --- updates ------------------------------------------------------------------------------------------------------

    def _needs_device(self) -> MPSTypeError:
        """What to raise for an update without a command buffer."""
        rule, remedy = "is needed: this data source updates on the device", "Use the training style UPDATE_DEVICE_GPU"
        return MPSTypeError(self._name, "command_buffer", rule, None, remedy)

    def _begun(self, device: MTLDevice, lengths: Sequence[int]) -> Any:
        """The optimizer; the first time it is made, with vectors of these lengths.

        Its encode takes other arguments in each class, as `_ACCUMULATORS` lists them.
        """
        if self._optimizer is not None:
            return self._optimizer
        optimizer = self._make_optimizer(device)
        self._lengths = tuple(lengths)
        self._make_vectors(optimizer)
        if self._restored:
            self._restore_optimizer(optimizer, self._restored)
        if self._learning_rate is not None:
            optimizer.set_learning_rate(self._learning_rate)
        self._optimizer, self._restored = optimizer, {}
        return optimizer

    def _make_vectors(self, optimizer: MPSNNOptimizer) -> None:
        """The optimizer's vectors, of zeros."""
        shard = None if self._shards is None else self._shards.shard
        descriptors = [MPSVectorDescriptor(n if shard is None else shard.room(n)) for n in self._lengths]
        self._accumulators = {
            name: [MPSVector(descriptor=each, device=optimizer.device) for each in descriptors]
            for name in self._vector_names(optimizer)
        }
        for vector in (vector for vectors in self._accumulators.values() for vector in vectors):
            vector.memory()  # Zeros are what they hold, also where the first update is never committed.
        optimizer.update_shards(shard)

    def _settle(self, source: object, result: object) -> None:
        """Know the update that was just encoded, for the next one like it."""
        optimizer, settled = self._optimizer, None
        # Those of a user may do anything in their encode.
        if optimizer is not None and _encodes_as_it_came(optimizer) and source is result:
            arguments = optimizer._settled_arguments()  # pyright: ignore[reportPrivateUsage]
            if arguments is not None:
                vectors = {name: [*each] for name, each in self._accumulators.items()}
                settled = _Settled(optimizer, source, vectors, arguments)
        store(self, "_settled", settled)

    def _repeat_of(self, gradients: object, source: object) -> Repeat | None:
        """That update from these gradients, for those who need not ask `update` each time; None where they must."""
        settled = self._settled
        if settled is None or settled.source is not source or self._shards is not None:
            return None
        update = settled.optimizer._found_prepared(  # pyright: ignore[reportPrivateUsage]
            gradients, settled.arguments
        )
        return None if update is None else Repeat(self, settled, update)

    def _vector_names(self, optimizer: MPSNNOptimizer) -> tuple[str, ...]:
        """The optimizer's arguments that take vectors."""
        names = next((names for kind, names in _ACCUMULATORS.items() if isinstance(optimizer, kind)), None)
        got = type(optimizer).__name__
        if names is None:
            raise MPSTypeError(self._name, "optimizer", "must make one of the framework's optimizers", got)
        if not self._amsgrad:
            return names
        if not isinstance(optimizer, MPSNNOptimizerAdam):
            raise MPSTypeError(self._name, "optimizer", "must make an MPSNNOptimizerAdam for amsgrad", got)
        return (*names, "maximum_velocity_vectors")

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def training_state(self) -> TrainingState:
        """The numbers, the optimizer's kind, its own numbers and its vectors, as they are now.

        Call it when the command buffers are done; in all processes where they share the optimizer's state, whose
        vectors are whole here.
        """
        state: dict[str, Any] = dict(self.arrays())
        if self._learning_rate is not None:
            state["learning_rate"] = self._learning_rate
        return state | (self._restored if self._optimizer is None else self._optimizer_state(self._optimizer))

    def restore_training_state(self, state: TrainingState) -> None:
        """Go on as the data source would that gave ``state``.

        Graphs see the numbers that are made afterwards, or told to ``reload_from_data_sources()``. Where there is no
        optimizer yet, the first update makes one and checks that ``state`` is of its kind.
        """
        own = {name: state[name] for name in state if name in (*self._parts, "learning_rate")}
        rest = {name: value for name, value in state.items() if name not in own}
        shapes = {name: array.shape for name, array in self.arrays().items()}
        check_names(self._name, own, set(shapes) | ({"learning_rate"} & set(own)))
        found = {name: np.array(numbers(self._name, own, name, shape)) for name, shape in shapes.items()}
        rate = finite_number(self._name, own, "learning_rate") if "learning_rate" in own else None
        if self._optimizer is None:
            self._restored = rest
        else:
            self._restore_optimizer(self._optimizer, rest)
        self._learning_rate = rate
        self._take(found)

    def _optimizer_state(self, optimizer: MPSNNOptimizer) -> dict[str, Any]:
        """Its class ``optimizer``, numbers (``optimizer.time_step``) and vectors (``input_momentum_vectors.0``)."""
        return {
            "optimizer": type(optimizer).__name__,
            **{f"optimizer.{name}": value for name, value in optimizer.training_state().items()},
            **{
                f"{name}.{index}": self._whole(row, self._lengths[index])
                for name, rows in self._accumulators.items()
                for index, row in enumerate(rows)
            },
        }

    def _restore_optimizer(self, optimizer: MPSNNOptimizer, state: TrainingState) -> None:
        kind = type(optimizer).__name__
        if state.get("optimizer") != kind:
            got = state.get("optimizer", "a state from before the first step")
            raise MPSArgumentError(self._name, "state 'optimizer'", f"must be {kind}", got, "Train with that optimizer")
        rows = {f"{name}.{index}": row for name, each in self._accumulators.items() for index, row in enumerate(each)}
        own = {f"optimizer.{name}" for name in optimizer.training_state()}
        check_names(self._name, state, {"optimizer", *own, *rows})
        length_of = {name: self._lengths[int(name.rpartition(".")[2])] for name in rows}
        values = {name: numbers(self._name, state, name, (length_of[name],)) for name in rows}
        optimizer.restore_training_state({name.partition(".")[2]: state[name] for name in own})
        for name, row in rows.items():
            own = torch.from_numpy(values[name])
            own = own if self._shards is None else self._shards.shard.of(own)
            row.memory()[: len(own)].copy_(own)

    def _whole(self, row: MPSVector, length: int) -> NDArray[np.float32]:
        """A vector with the shares of all processes."""
        if self._shards is None:
            return row.numpy()
        return self._shards.processes.whole(row.tensor(), length).cpu().numpy()

    @property
    def _name(self) -> str:
        return f"{type(self).__name__} {self._label!r}"
