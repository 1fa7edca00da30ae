"""MPSNNOptimizer: what all optimizers share, and the one path of their encodes (MPSNNOptimizers.h, macOS 10.14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from openmps.core.base_kernel import MPSKernel
from openmps.core.kernel_checks import check_command_buffer
from openmps.errors import MPSTypeError
from openmps.kernels.optimizers.descriptor import MPSNNOptimizerDescriptor, number
from openmps.kernels.optimizers.operands import (
    Operand,
    Slot,
    biases_slot,
    check_accumulators,
    check_operand,
    check_states,
    copy_biases,
    share_biases,
    weights_slot,
)
from openmps.ops.optimizers import GradientRule
from openmps.types import MPSNNRegularizationType

if TYPE_CHECKING:
    from openmps.core.vector import MPSVector
    from openmps.metal.command import CommandBuffer
    from openmps.metal.device import MTLDevice

Update = Callable[[list[tuple[Tensor, Tensor, tuple[Tensor, ...], Tensor]]], None]
"""An update rule: takes the gradient, values, accumulators and result of each vector of parameters."""


class Forms(NamedTuple):
    """The arguments of one encode in its three forms, accumulators in the order of the class."""

    states: tuple[Any, Any, Any]
    lists: tuple[Sequence[MPSVector] | None, ...]
    vectors: tuple[Any, ...]
    matrices: tuple[Any, ...]
    """Vectors and matrices: gradient, values, accumulators, result."""


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

    def _encode(self, command_buffer: CommandBuffer, forms: Forms) -> None:
        check_command_buffer(self.name, command_buffer, self.device)
        chosen = [
            form for form in (forms.states, forms.vectors, forms.matrices) if any(each is not None for each in form)
        ]
        if len(chosen) > 1:
            remedy = "Encode once for each"
            raise MPSTypeError(self.name, "arguments", "must be states, or vectors, or matrices", "several", remedy)
        if chosen and chosen[0] is forms.states:
            self._encode_states(command_buffer, *forms.states, forms.lists)
        elif chosen and chosen[0] is forms.matrices:
            self._encode_operands(command_buffer, forms.matrices, "matrix")
        else:
            self._encode_operands(command_buffer, forms.vectors, "vector")

    def _encode_operands(self, command_buffer: CommandBuffer, given: tuple[Any, ...], suffix: str) -> None:
        """The vector and matrix forms."""
        names = ("input_gradient", "input_values", *self._accumulators, "result_values")
        for name, operand in zip(names, given, strict=True):
            argument = f"{name}_{suffix}"
            if operand is not None:
                like = given[0] if isinstance(given[0], Operand) else operand
                check_operand(self.name, argument, operand, like, command_buffer)
            elif name not in self._optional:
                raise MPSTypeError(self.name, argument, "is needed", None)
        gradient, values, *accumulators, result = given
        kept = [operand for operand in accumulators if operand is not None]
        slot = Slot(gradient.tensor, values.tensor, tuple(operand.tensor for operand in kept), result.tensor)
        self._record(command_buffer, [slot])
        for operand in (gradient, values, *kept):
            operand.count_read()

    def _encode_states(
        self, command_buffer: CommandBuffer, gradient: Any, source: Any, result: Any, lists: tuple[Any, ...]
    ) -> None:
        """The convolution form: index 0 of each list belongs to the weights, 1 to the biases."""
        lengths = check_states(self.name, gradient, source, result, command_buffer)
        kept: list[Sequence[MPSVector]] = []
        for name, vectors in zip(self._accumulators, lists, strict=True):
            if vectors is not None:
                check_accumulators(self.name, f"{name}_vectors", vectors, lengths, command_buffer)
                kept.append(vectors)
            elif name not in self._optional:
                raise MPSTypeError(self.name, f"{name}_vectors", "are needed: for the weights and the biases", None)
        slots = [weights_slot(gradient, source, result, [vectors[0] for vectors in kept])]
        if source.biases is not None and result.biases is not None:
            if all(len(vectors) == 2 for vectors in kept):
                slots.append(biases_slot(gradient, source, result, [vectors[1] for vectors in kept]))
            elif not share_biases(source, result):
                command_buffer.record(f"{self.name} biases", copy_biases(source, result, lengths[1]))
        self._record(command_buffer, slots)
        for read in (gradient, source, *(vector for vectors in kept for vector in vectors)):
            read.count_read()

    def _record(self, command_buffer: CommandBuffer, slots: list[Slot]) -> None:
        update = self._update()
        command_buffer.record(self.name, lambda: update([slot.tensors() for slot in slots]))
        self._encoded()
