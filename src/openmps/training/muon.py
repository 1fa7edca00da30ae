"""Muon: descent by orthogonal matrices, for the weights of convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from openmps.core.numbers import not_negative
from openmps.errors import MPSArgumentError
from openmps.kernels.optimizers import MPSNNOptimizerDescriptor, MPSNNOptimizerStochasticGradientDescent
from openmps.kernels.optimizers.parameters import Layer
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.ops.update import muon as ops
from openmps.ops.update.optimizers import StochasticGradientDescent, Update
from openmps.ops.update.shards import Shard
from openmps.runtime.binding import Binding, HeldTensor


class Muon(MPSNNOptimizerStochasticGradientDescent):
    """Descent by the nearest orthogonal matrices of weights, by Nesterov's momentum of all else. Our addition.

    ``m = mu m + g``, and with the weights of a layer as a matrix of a row for each output channel
    ``v -= lr sqrt(max(1, rows / columns)) orthogonal(g + mu m)``, where ``orthogonal`` makes all singular values 0.7 to
    1.2 by five iterations of Newton and Schulz. Biases, gamma, beta and vectors follow
    `MPSNNOptimizerStochasticGradientDescent` in Nesterov's form: ``v -= lr (g + mu m)``. Operands are as there, and
    there must be momentum vectors. It cannot update shards of a layer: it multiplies whole matrices.

    Raises:
        MPSArgumentError: The learning rate is negative, here or when it is set, or a number is not finite.
    """

    _check_rate = staticmethod(not_negative)
    _optional = frozenset[str]()

    def __init__(
        self,
        device: MTLDevice,
        learning_rate: float | None = None,
        *,
        momentum_scale: float = 0.95,
        optimizer_descriptor: MPSNNOptimizerDescriptor | None = None,
    ) -> None:
        super().__init__(
            device,
            learning_rate,
            momentum_scale=momentum_scale,
            use_nesterov_momentum=True,
            optimizer_descriptor=optimizer_descriptor,
        )

    def additions(self) -> str:
        """That it is Muon, and the weight decay, if there is one."""
        return " and ".join(filter(None, ("Muon of matrices", super().additions())))

    def update_shards(self, shard: Shard | None) -> None:
        """Raises unless it is None."""
        if shard is not None:
            rule = "must be None: it multiplies whole matrices"
            raise MPSArgumentError(self.name, "shard", rule, shard, "Share the graph without shards_optimizer_state")
        super().update_shards(shard)

    def _step_of(self, form: str | int) -> Update:
        step = super()._step_of(form)
        if form == "vector":
            return step
        assert isinstance(step, StochasticGradientDescent)
        return ops.Muon(1, step.rule, step.momentum_scale, None if isinstance(form, str) else form)

    def _record(
        self,
        command_buffer: CommandBuffer,
        layer: Layer,
        kinds: Sequence[Sequence[Binding | None]],
        rounded: Binding,
        form: str | int = "vector",
    ) -> None:
        if layer.names[0] == "weights":
            super()._record(command_buffer, layer, [kind[:1] for kind in kinds], rounded, layer.lengths[1])
            kinds, rounded = [kind[1:] for kind in kinds], HeldTensor(None)
        if kinds[0]:
            super()._record(command_buffer, layer, kinds, rounded, form)
