"""What the stages of batch normalization have in common, besides their state (MPSCNNBatchNormalization.h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from openmps.core.kernel.base import KernelProperties
from openmps.core.kernel.configuration import Configured, Setting
from openmps.core.kernel.lowering_context import LoweringContext
from openmps.core.neuron import MPSNNNeuronDescriptor, NeuronParameters
from openmps.core.state.batch import MPSStateBatch
from openmps.errors import MPSTypeError
from openmps.metal.device import CommandBuffer
from openmps.ops.normalization.batch_normalization import Normalize
from openmps.ops.op import Value


def refuse_arguments(who: str, unavailable: Mapping[str, object], remedy: str) -> None:
    """Raise if arguments are given that belong to forms of encode that the framework marks unavailable."""
    given = [name for name, value in unavailable.items() if value is not None]
    if given:
        raise MPSTypeError(who, " and ".join(given), "must not be given: this class has no such encode", None, remedy)


def refuse(who: str, what: str, remedy: str) -> NoReturn:
    """Raise for a form of encode that the framework marks unavailable."""
    raise MPSTypeError(who, what, "is not available for this class", None, remedy)


def check_usable(who: str, states: MPSStateBatch, command_buffer: CommandBuffer) -> None:
    """Raise unless an encode on ``command_buffer`` may use the state."""
    for state in states.counted():
        state.check_usable(who, "batch_normalization_state", command_buffer)


class OfBatches(KernelProperties):
    """A kernel whose sums over a batch go into the state."""

    _use: ClassVar[str]
    """How it is encoded."""

    @property
    def is_state_modified(self) -> bool:
        """True: what is computed is added to the state."""
        return True

    def append_batch_barrier(self) -> bool:
        """True: the sums are complete when the whole batch went through."""
        return True

    def encode(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise: the sums are those of a batch."""
        refuse(self.name, "encode", self._use)


class FusedNeuron(Configured):
    """What the kernels with a fused neuron have in common."""

    _neuron = Setting[NeuronParameters | None]()

    @property
    def fused_neuron_descriptor(self) -> MPSNNNeuronDescriptor | None:
        """A copy of the descriptor of the fused neuron that the kernel was made with, or None."""
        return None if self._neuron is None else self._neuron.descriptor()

    def _fuse(self, descriptor: object) -> None:
        """Take the values of ``descriptor``, so that later changes to it change no kernel."""
        if not isinstance(descriptor, MPSNNNeuronDescriptor | None):
            rule = "must be an MPSNNNeuronDescriptor or None"
            raise MPSTypeError(self.name, "fused_neuron_descriptor", rule, type(descriptor).__name__)
        self._neuron = None if descriptor is None else descriptor.parameters()


def normalized(
    at: LoweringContext, x: Value, epsilon: float, *, has_statistics: bool, is_rounded: bool = False
) -> Value:
    """The normalization of ``x`` before its neuron."""
    return Normalize(epsilon, is_rounded)(x, *statistics(at, has_statistics), at.buffer("gamma"), at.buffer("beta"))


def statistics(at: LoweringContext, has_statistics: bool) -> tuple[Value, Value | None, Value]:
    """Mean, what rounding took from it, and variance; stored means are as they are."""
    return at.buffer("mean"), at.buffer("correction") if has_statistics else None, at.buffer("variance")
