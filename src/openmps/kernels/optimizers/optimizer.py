"""MPSNNOptimizer: what all optimizers share, and the one path of their encodes (MPSNNOptimizers.h, macOS 10.14)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from openmps.core.kernel.base import MPSKernel, decided_as_a_whole
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.numbers import number
from openmps.core.training_state import TrainingState, check_names, finite_number
from openmps.errors import MPSTypeError
from openmps.kernels.optimizers.descriptor import MPSNNOptimizerDescriptor
from openmps.kernels.optimizers.operands import Operand, Slot, check_accumulators, check_operand
from openmps.kernels.optimizers.parameters import Layer, Parameter, batch_normalization_layer, convolution_layer
from openmps.ops.optimizers import GradientRule
from openmps.types import MPSNNRegularizationType

if TYPE_CHECKING:
    from openmps.core.vector import MPSVector
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

Update = Callable[[list[tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]]], None]
"""An update rule: takes the gradient, values, accumulators and result of each vector of parameters."""

_LAYERS: dict[str, Callable[[str, Mapping[str, Any], CommandBuffer], Layer]] = {
    "convolution_": convolution_layer,
    "batch_normalization_": batch_normalization_layer,
}
"""The kinds of states, by the beginning of their arguments' names."""


class MPSNNOptimizer(MPSKernel):
    """The base of optimizers (MPSNNOptimizers.h, macOS 10.14). Everything is float32.

    Raises:
        MPSTypeError: ``optimizer_descriptor`` is none.
    """

    apply_gradient_clipping: bool
    """Whether gradients are clipped; may be changed at any time."""

    _accumulators: tuple[str, ...] = ()
    _optional: frozenset[str] = frozenset()

    def __init__(self, device: MTLDevice, optimizer_descriptor: MPSNNOptimizerDescriptor) -> None:
        super().__init__(device)
        given = optimizer_descriptor
        if not isinstance(given, MPSNNOptimizerDescriptor):
            rule = "must be an MPSNNOptimizerDescriptor"
            raise MPSTypeError(self.name, "optimizer_descriptor", rule, type(given).__name__)
        self._learning_rate = number(self.name, "learning_rate", given.learning_rate)
        self._gradient_rescale = given.gradient_rescale
        self._clip_max, self._clip_min = given.gradient_clip_max, given.gradient_clip_min
        self._regularization = given.regularization_type
        self._regularization_scale = given.regularization_scale
        self.apply_gradient_clipping = given.apply_gradient_clipping

    @property
    def learning_rate(self) -> float:
        """The step size."""
        return self._learning_rate

    def set_learning_rate(self, new_learning_rate: float) -> None:
        """Change the step size of encodes to come."""
        self._learning_rate = number(self.name, "new_learning_rate", new_learning_rate)

    @property
    def gradient_rescale(self) -> float:
        """Factor of the clipped gradient."""
        return self._gradient_rescale

    @property
    def gradient_clip_max(self) -> float:
        """Upper limit of clipped gradients."""
        return self._clip_max

    @property
    def gradient_clip_min(self) -> float:
        """Lower limit of clipped gradients."""
        return self._clip_min

    @property
    def regularization_type(self) -> MPSNNRegularizationType:
        """NONE, L1 or L2."""
        return self._regularization

    @property
    def regularization_scale(self) -> float:
        """Factor of the regularization's gradient."""
        return self._regularization_scale

    def training_state(self) -> TrainingState:
        """What a checkpoint keeps of the optimizer, its vectors not included: they are the caller's. Our addition."""
        return {"learning_rate": self._learning_rate}

    def restore_training_state(self, state: TrainingState) -> None:
        """Go on as the optimizer would that gave ``state``. Our addition."""
        check_names(self.name, state, set(self.training_state()))
        self.set_learning_rate(finite_number(self.name, state, "learning_rate"))

    # --- what a class fills in ----------------------------------------------------------------------------------------

    def _update(self) -> Update:
        """The update rule with the properties as they stand."""
        raise MPSTypeError(self.name, "encode", "is not offered by this base class", None, "Use one of its subclasses")

    def _encoded(self) -> None:
        """Called when an encode was recorded."""

    def _rule(self) -> GradientRule:
        return GradientRule(
            rescale=self._gradient_rescale,
            clip=(self._clip_max, self._clip_min) if self.apply_gradient_clipping else None,
            regularization=self._regularization,
            regularization_scale=self._regularization_scale,
        )

    # --- one path for every form --------------------------------------------------------------------------------------

    @decided_as_a_whole
    def _encode(self, command_buffer: CommandBuffer, arguments: Mapping[str, Any]) -> None:
        """The arguments of encode by name: states, or vectors, or matrices."""
        check_command_buffer(self.name, command_buffer, self.device)
        given = [name for name, value in arguments.items() if value is not None and name not in _NO_OPERANDS]
        forms = {_form(name) for name in given}
        if len(forms) > 1:
            rule, remedy = "must be states, or vectors, or matrices", "Encode once for each"
            raise MPSTypeError(self.name, "arguments", rule, "several", remedy)
        if forms == {"state"}:
            self._encode_states(command_buffer, arguments, given)
        else:
            self._encode_operands(command_buffer, arguments, forms.pop() if forms else "vector")

    def _encode_operands(self, command_buffer: CommandBuffer, arguments: Mapping[str, Any], suffix: str) -> None:
        """The vector and matrix forms."""
        names = ("input_gradient", "input_values", *self._accumulators, "result_values")
        operands = [arguments[f"{name}_{suffix}"] for name in names]
        for name, operand in zip(names, operands, strict=True):
            argument = f"{name}_{suffix}"
            if operand is not None:
                like = operands[0] if isinstance(operands[0], Operand) else operand
                check_operand(self.name, argument, operand, like, command_buffer)
            elif name not in self._optional:
                raise MPSTypeError(self.name, argument, "is needed", None)
        gradient, values, *accumulators, result = operands
        kept = [operand for operand in accumulators if operand is not None]
        slot = Slot(gradient.tensor, values.tensor, tuple(operand.tensor for operand in kept), result.tensor)
        self._record(command_buffer, [slot])
        for operand in (gradient, values, *kept):
            operand.count_read()

    def _encode_states(self, command_buffer: CommandBuffer, arguments: Mapping[str, Any], given: list[str]) -> None:
        """The forms of a layer: index 0 of each list of vectors belongs to its first parameter, 1 to the second."""
        layer = self._layer(command_buffer, arguments, given)
        kept = self._lists(command_buffer, arguments, layer)
        slots = [_slot(layer.first, [vectors[0] for vectors in kept])]
        if layer.second.values is not None and layer.second.result is not None:
            if all(len(vectors) == 2 for vectors in kept):
                slots.append(_slot(layer.second, [vectors[1] for vectors in kept]))
            elif layer.second.values != layer.second.result:
                command_buffer.record(f"{self.name} {layer.second.name}", _copy(layer.second))
        self._record(command_buffer, slots)
        for read in (*layer.read, *(vector for vectors in kept for vector in vectors)):
            read.count_read()

    def _layer(self, command_buffer: CommandBuffer, arguments: Mapping[str, Any], given: list[str]) -> Layer:
        kinds = [kind for kind in _LAYERS if any(name.startswith(kind) for name in given)]
        if len(kinds) != 1:
            rule = "must be states of a convolution, or of a batch normalization"
            raise MPSTypeError(self.name, "arguments", rule, "both" if kinds else "neither", "Encode once for each")
        return _LAYERS[kinds[0]](self.name, arguments, command_buffer)

    def _lists(
        self, command_buffer: CommandBuffer, arguments: Mapping[str, Any], layer: Layer
    ) -> list[Sequence[MPSVector]]:
        """The vectors of each accumulator."""
        names = layer.first.name, layer.second.name
        lengths = layer.first.gradient.count, layer.second.gradient.count
        kept: list[Sequence[MPSVector]] = []
        for name in self._accumulators:
            argument = f"{name}_vectors"
            vectors = arguments[argument]
            if vectors is not None:
                check_accumulators(self.name, argument, vectors, names, lengths, command_buffer)
                kept.append(vectors)
            elif name not in self._optional:
                raise MPSTypeError(self.name, argument, f"are needed: for the {names[0]} and the {names[1]}", None)
        return kept

    def _record(self, command_buffer: CommandBuffer, slots: list[Slot]) -> None:
        update = self._update()
        command_buffer.record(self.name, lambda: update([slot.tensors() for slot in slots]))
        self._encoded()


_NO_OPERANDS = ("self", "command_buffer")


def _form(argument: str) -> str:
    ending = argument.rsplit("_", 1)[1]
    return ending if ending in ("vector", "matrix") else "state"


def _slot(parameter: Parameter, rows: Sequence[MPSVector]) -> Slot:
    assert parameter.values is not None
    assert parameter.result is not None
    accumulators = tuple(row.tensor for row in rows)
    return Slot(parameter.gradient.tensor, parameter.values.tensor, accumulators, parameter.result.tensor)


def _copy(parameter: Parameter) -> Callable[[], None]:
    """Work that hands a parameter on as it is."""
    source, result = parameter.values, parameter.result
    assert source is not None
    assert result is not None

    def work() -> None:
        result.tensor().copy_(source.tensor())

    return work
