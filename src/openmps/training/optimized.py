"""What data sources with an optimizer of their own share: its vectors, its learning rate, what a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from openmps.checks import Shown, finite, flag
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
from openmps.locks import new_reentrant_lock
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.metal.version import Version
from openmps.runtime.binding import Numbers
from openmps.runtime.step_trace import depends_on, depends_on_contents, require_declared

if TYPE_CHECKING:
    from openmps.training.averages import NumbersAverage

OptimizerFactory = Callable[["MTLDevice"], MPSNNOptimizer]
_ACCUMULATORS: dict[type[MPSNNOptimizer], tuple[str, ...]] = {
    MPSNNOptimizerAdam: ("input_momentum_vectors", "input_velocity_vectors"),
    MPSNNOptimizerRMSProp: ("input_sum_of_squares_vectors",),
    MPSNNOptimizerStochasticGradientDescent: ("input_momentum_vectors",),
}
_beginning = new_reentrant_lock()
"""Held where an optimizer is made: threads that encode a first step at once must count in one."""


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
        self._average: NumbersAverage | None = None
        self._restored: dict[str, Any] = {}  # what a checkpoint says of an optimizer that is not made yet
        self._version = Version()
        """Another one where updates record other work from now on."""

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
        self._version.advance()
        if optimizer is not None:
            self._make_vectors(optimizer)
            self._restore_optimizer(optimizer, state)

    # --- averages -----------------------------------------------------------------------------------------------------

    def keep_average(self, decay: float | None) -> None:
        """Keep an exponential average of all numbers from the next update on, see `averages`; None: no longer.

        After ``t`` updates it is ``(1 - decay) / (1 - decay^t)`` times the sum of ``decay^(t - i)`` times the numbers
        after update ``i``: those that training began with have no part in it.

        Raises:
            MPSArgumentError: ``decay`` is not above 0 and below 1.
        """
        from openmps.training.averages import NumbersAverage

        self._average = None if decay is None else NumbersAverage.of(self._name, decay)
        self._version.advance()

    def averages(self) -> dict[str, NDArray[np.float32]]:
        """The averages by the names of `arrays`, and the numbers themselves as long as there are none.

        Call it when the command buffers are done; in all processes where they share the optimizer's state.
        """
        now = self.arrays()
        return now if self._average is None else self._average.arrays(now, self._shards)

    def _record_average(self, command_buffer: CommandBuffer, names: Sequence[str], places: Sequence[Numbers]) -> None:
        """Behind an update of some of the numbers: record a step of their average, if there is to be one."""
        if self._average is not None:
            places_of = dict(zip(names, places, strict=False))
            self._average.record(command_buffer, self._name, places_of, self._shards)

    # --- updates ------------------------------------------------------------------------------------------------------

    def _check_update(self, command_buffer: CommandBuffer | None) -> CommandBuffer:
        """The command buffer of an update, which is on the device; raises where there is none."""
        if command_buffer is None:
            rule = "is needed: this data source updates on the device"
            raise MPSTypeError(self._name, "command_buffer", rule, None, "Use the training style UPDATE_DEVICE_GPU")
        return command_buffer

    def _check_step(self, command_buffer: CommandBuffer | None) -> CommandBuffer:
        """The command buffer of an optimizer's step; with shards of its state one on which a graph asks for it."""
        given = self._check_update(command_buffer)
        if self._shards is not None:
            self._shards.check_open(self._name, given)
        return given

    def _optimizer_on(self, command_buffer: CommandBuffer, lengths: Sequence[int]) -> Any:
        """The optimizer, to be encoded; the first time it is made, with vectors of these lengths.

        Its encode takes other arguments in each class, as `_ACCUMULATORS` lists them.
        """
        optimizer = self._begun(command_buffer.device, lengths)
        require_declared(command_buffer, optimizer, "encode")
        depends_on(command_buffer, self._version)
        vectors = {name: [*each] for name, each in self._accumulators.items()}
        depends_on_contents(command_buffer, self._accumulators, vectors)
        return optimizer

    def _begun(self, device: MTLDevice, lengths: Sequence[int]) -> MPSNNOptimizer:
        if self._optimizer is not None:
            return self._optimizer
        with _beginning:
            return self._begin(device, lengths) if self._optimizer is None else self._optimizer

    def _begin(self, device: MTLDevice, lengths: Sequence[int]) -> MPSNNOptimizer:
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
        self._version.advance()

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
        if self._average is not None:
            state |= self._average.state(self.averages())
        return state | (self._restored if self._optimizer is None else self._optimizer_state(self._optimizer))

    def restore_training_state(self, state: TrainingState) -> None:
        """Go on as the data source would that gave ``state``.

        Graphs see the numbers that are made afterwards, or told to ``reload_from_data_sources()``. Where there is no
        optimizer yet, the first update makes one and checks that ``state`` is of its kind.
        """
        mine = (*self._parts, "learning_rate")
        own = {name: state[name] for name in state if name in mine or name.startswith("average.")}
        rest = {name: value for name, value in state.items() if name not in own}
        shapes = {name: array.shape for name, array in self.arrays().items()}
        averaged = set[str]() if self._average is None else self._average.names(list(shapes))
        check_names(self._name, own, set(shapes) | averaged | ({"learning_rate"} & set(own)))
        found = {name: np.array(numbers(self._name, own, name, shape)) for name, shape in shapes.items()}
        rate = finite_number(self._name, own, "learning_rate") if "learning_rate" in own else None
        average = None if self._average is None else self._average.restored(self._name, own, shapes)
        if self._optimizer is None:
            self._restored = rest
        else:
            self._restore_optimizer(self._optimizer, rest)
        self._learning_rate, self._average = rate, average
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
