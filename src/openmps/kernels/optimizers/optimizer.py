"""MPSNNOptimizer: what all optimizers share, and the one path of their encodes (MPSNNOptimizers.h, macOS 10.14)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from openmps.checks import Shown, finite, flag
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.kernel.configuration import Setting
from openmps.core.kernel.operands import OperandContext, OperandKernel, OperandPlan
from openmps.core.numbers import not_negative
from openmps.core.state.state import MPSState
from openmps.core.training_state import TrainingState, check_names, finite_number
from openmps.core.vector import MPSVector
from openmps.errors import MPSTypeError
from openmps.kernels.optimizers.arguments import (
    KINDS,
    Operands,
    accumulators_of,
    arguments_of,
    names_of,
    parts_of,
    signature_of,
)
from openmps.kernels.optimizers.descriptor import MPSNNOptimizerDescriptor
from openmps.kernels.optimizers.parameters import (
    Layer,
    accumulators,
    batch_normalization_layer,
    convolution_layer,
)
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.metal.pending import require_written, unwritten
from openmps.metal.version import Version
from openmps.ops.op import Function
from openmps.ops.update.optimizers import GradientRule, HandOn, Update
from openmps.ops.update.shards import Shard
from openmps.runtime.binding import Binding, HeldTensor, Number
from openmps.runtime.dispatch import Dispatch, function_of_op, record_op
from openmps.runtime.step_trace import depends_on, step_number
from openmps.selectors import no_argument
from openmps.types import MPSNNRegularizationType

_LayerOf = Callable[[str, Mapping[str, Any], "CommandBuffer"], Layer]

_LAYERS: dict[str, _LayerOf] = {
    "convolution_": convolution_layer,
    "batch_normalization_": batch_normalization_layer,
}
"""The kinds of states, by the beginning of their arguments' names."""
_NEEDED = "Give convolution_gradient_state and convolution_source_state, or batch_normalization_state"
_NO_OPERANDS = ("self", "command_buffer", "operands")


class MPSNNOptimizer(OperandKernel):
    """The base of optimizers (MPSNNOptimizers.h, macOS 10.14). Everything is float32.

    Learning rates may be negative: they ascend.

    Raises:
        MPSTypeError: ``optimizer_descriptor`` is none.
        MPSArgumentError: A number is not finite.
    """

    _accumulators: tuple[str, ...] = ()
    _optional: frozenset[str] = frozenset()
    _named: Mapping[str, Any] = {}
    """The arguments of an encode, in order, as they are when they are left out."""
    _check_rate = staticmethod(finite)
    """What a learning rate must be: the header sets no bound, and programs add with a rate of -1."""
    _step = Setting[Update]()
    """The update of one vector, whose gradient is clipped."""

    _shown = ("learning_rate",)
    learning_rate = Shown[float]("_learning_rate", "The step size.")
    gradient_rescale = Shown[float]("_rule.rescale", "Factor of the clipped gradient.")
    gradient_clip_max = Shown[float]("_clip_max", "Upper limit of clipped gradients.")
    gradient_clip_min = Shown[float]("_clip_min", "Lower limit of clipped gradients.")
    regularization_type = Shown[MPSNNRegularizationType]("_rule.regularization", "NONE, L1 or L2.")
    regularization_scale = Shown[float]("_rule.regularization_scale", "Factor of the regularization's gradient.")

    def __init__(self, device: MTLDevice, optimizer_descriptor: MPSNNOptimizerDescriptor) -> None:
        super().__init__(device)
        given = optimizer_descriptor
        if not isinstance(given, MPSNNOptimizerDescriptor):
            rule = "must be an MPSNNOptimizerDescriptor"
            raise MPSTypeError(self.name, "optimizer_descriptor", rule, type(given).__name__)
        self._learning_rate = self._check_rate(self.name, "learning_rate", given.learning_rate)
        self._clip_max, self._clip_min = given.gradient_clip_max, given.gradient_clip_min
        self._rule = GradientRule(
            rescale=given.gradient_rescale,
            clip=(self._clip_max, self._clip_min),
            regularization=given.regularization_type,
            regularization_scale=given.regularization_scale,
        )
        self._weight_decay = 0.0
        self._shard: Shard | None = None
        self._version = Version()
        """Another one where encodes record other work from now on, the rate aside."""
        self.apply_gradient_clipping = given.apply_gradient_clipping

    def set_learning_rate(self, new_learning_rate: float) -> None:
        """Change the step size of encodes to come."""
        self._learning_rate = self._check_rate(self.name, "new_learning_rate", new_learning_rate)

    def training_state(self) -> TrainingState:
        """What a checkpoint keeps of the optimizer, its vectors not included: they are the caller's. Our addition."""
        return {"learning_rate": self._learning_rate}

    def restore_training_state(self, state: TrainingState) -> None:
        """Go on as the optimizer would that gave ``state``. Our addition."""
        check_names(self.name, state, set(self.training_state()))
        self.set_learning_rate(finite_number(self.name, state, "learning_rate"))

    def additions(self) -> str | None:
        """What of it the framework's optimizers have not, in words; None for nothing. Our addition."""
        return f"weight_decay {self._weight_decay:g}" if self._weight_decay else None

    def update_shards(self, shard: Shard | None) -> None:
        """Update a part of each parameter from now on, with vectors of that part's numbers; None for all of it.

        Encodes take states then, and the whole results are for the caller to gather. Our addition.
        """
        self._shard = shard
        self._version.advance()

    @property
    def apply_gradient_clipping(self) -> bool:
        """Whether gradients are clipped; may be changed at any time."""
        return self._clips

    @apply_gradient_clipping.setter
    def apply_gradient_clipping(self, value: bool) -> None:
        self._clips = flag(self.name, "apply_gradient_clipping", value)
        self._version.advance()

    @property
    def weight_decay(self) -> float:
        """The part of the values that a step takes off before all else, times the learning rate; 0 or more.

        ``v -= learning_rate weight_decay v``, apart from the gradient: with Adam this is AdamW. 0, and may be changed
        at any time. Our addition.
        """
        return self._weight_decay

    @weight_decay.setter
    def weight_decay(self, value: float) -> None:
        self._weight_decay = not_negative(self.name, "weight_decay", value)
        self._version.advance()

    # --- what a class fills in ----------------------------------------------------------------------------------------

    def _rate(self) -> float:
        """The rate of one encode, which is recorded then."""
        return self._learning_rate

    def _decay_rate(self) -> float:
        """The part of the values that one encode takes off."""
        return self._learning_rate * self._weight_decay

    def _number(self, name: str, given: OperandPlan) -> float:
        return self._rate() if name == "rate" else self._decay_rate()

    # --- one path for every form --------------------------------------------------------------------------------------

    def __init_subclass__(cls, *, takes: type[Operands] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if takes is not None:
            cls._accumulators = accumulators_of(takes)
            cls._named = {"self": None, "command_buffer": None, **dict.fromkeys(names_of(takes)), "operands": ()}
            setattr(vars(cls)["encode"], "__signature__", signature_of(vars(cls)["encode"], takes))  # noqa: B010

    def _update_operands(
        self, command_buffer: CommandBuffer, operands: tuple[Any, ...], named: Mapping[str, Any]
    ) -> None:
        """What encode is given by name: states, or vectors, or matrices; or ``operands`` in a selector's order."""
        arguments: Mapping[str, Any] = {**self._named, **named, "operands": operands}
        if len(arguments) > len(self._named) or "operands" in named:
            unknown = "operands" if "operands" in named else min(arguments.keys() - self._named.keys())
            raise no_argument(self, unknown, [name for name in self._named if name not in _NO_OPERANDS])
        if operands:
            arguments = self._by_name(arguments)
        who = self._name or self.name
        check_command_buffer(who, command_buffer, self._device)
        depends_on(command_buffer, self._version)
        forms, layers = _forms(tuple([name for name, value in arguments.items() if value is not None]))
        if len(forms) > 1:
            rule, remedy = "must be states, or vectors, or matrices", "Encode once for each"
            raise MPSTypeError(self.name, "arguments", rule, "several", remedy)
        if forms != ("state",):
            self._encode_operands(command_buffer, arguments, forms[0] if forms else "vector")
        elif len(layers) == 1:
            self._encode_states(command_buffer, arguments, layers[0](who, arguments, command_buffer))
        else:
            rule = "must be states of a convolution, or of a batch normalization"
            got, remedy = ("both", "Encode once for each") if layers else ("neither", _NEEDED)
            raise MPSTypeError(self.name, "arguments", rule, got, remedy)

    def _by_name(self, named: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments with the operands by their names; the first two operands tell which form it is."""
        operands = named["operands"]
        names = self._order(operands)
        if len(operands) == len(names) - 1 and self._accumulators[-1].startswith("maximum"):
            names = [name for name in names if not name.startswith("maximum")]
        if len(operands) != len(names):
            rule = f"must be {len(names)} operands, {', '.join(names)}"
            raise MPSTypeError(self.name, "arguments", rule, len(operands), "Name them to leave some out")
        given = dict(zip(names, operands, strict=True))
        twice = sorted(name for name in given if named[name] is not None)
        if twice:
            raise MPSTypeError(self.name, " and ".join(twice), "must not be given twice", None)
        return {**named, **given, "operands": ()}

    def _order(self, operands: Sequence[Any]) -> list[str]:
        """The arguments of the selector whose first operands are of these classes."""
        first, second = [*operands, None][:2]
        for suffix, kind in KINDS.items():
            if isinstance(first, kind):
                return [f"{part}_{suffix}" for part in parts_of(self._accumulators)]
        beginning = ["convolution_gradient_state", "convolution_source_state"]
        if hasattr(first, "batch_normalization"):
            beginning = ["batch_normalization_state"]
            if isinstance(second, MPSState):
                beginning = ["batch_normalization_gradient_state", "batch_normalization_source_state"]
        return [*beginning, *(f"{part}_vectors" for part in self._accumulators), "result_state"]

    def _encode_operands(self, command_buffer: CommandBuffer, arguments: Mapping[str, Any], suffix: str) -> None:
        """The vector and matrix forms."""
        if self._shard is not None:
            rule, remedy = "must be states: it updates shards of a layer's parameters", "Use an optimizer of your own"
            raise MPSTypeError(self.name, "arguments", rule, suffix, remedy)
        listed = arguments_of(self._accumulators, self._optional, suffix)
        given = [arguments[each.name] for each in listed]
        asked = suffix, self.apply_gradient_clipping, self._weight_decay != 0.0
        self._encode(command_buffer, *given, arguments=listed, asked=asked)

    def _lower(self, at: OperandContext) -> None:
        suffix, clips, decays = at.asked
        names = [name for part in parts_of(self._accumulators) if at.has(name := f"{part}_{suffix}")]
        at.check_alike(*names, what="the gradient's shape")
        numbers = map(at.number, ("rate", "decay") if decays else ("rate",))
        update = self._update_of(suffix, 1, clips=clips, decays=decays)
        update(*numbers, *map(at.elements, names), None)

    def _step_of(self, form: str | int) -> Update:
        """The update of a ``vector``, of a ``matrix``, or of vectors that are matrices of so many rows."""
        return self._step

    def _update_of(
        self, form: str | int, vectors: int, *, clips: bool, decays: bool, shard: Shard | None = None
    ) -> Update:
        """The update of so many vectors."""
        step = self._step_of(form)
        rule = step.rule if clips else replace(step.rule, clip=None)
        return replace(step, vectors=vectors, rule=rule, shard=shard, decays=decays)

    def _encode_states(self, command_buffer: CommandBuffer, arguments: Mapping[str, Any], layer: Layer) -> None:
        """The forms of a layer: index 0 of each list of vectors belongs to its first parameter, 1 to the second."""
        who = self._name or self.name
        kept: list[Sequence[MPSVector]] = []
        own: list[list[Binding]] = []
        names, shard = layer.names, self._shard
        lengths = layer.lengths if shard is None else [*map(shard.room, layer.lengths)]
        for name in self._accumulators:
            vectors = arguments[f"{name}_vectors"]
            if vectors is not None:
                kept.append(vectors)
                own.append(accumulators(who, f"{name}_vectors", vectors, names, lengths, command_buffer))
            elif name not in self._optional:
                rule = f"are needed: for the {names[0]} and the {names[1]}"
                raise MPSTypeError(who, f"{name}_vectors", rule, None)
        values, results = layer.values[1], layer.results[1]
        parameters = 1
        if values is not None and results is not None:
            if min(map(len, kept), default=2) == 2:
                parameters = 2
            elif values.buffer is not results.buffer or values.offset != results.offset:
                record_op(command_buffer, f"{who} {names[1]}", HandOn(), (values, results))
        kinds = [kind[:parameters] for kind in (layer.gradients, layer.values, *own, layer.results)]
        self._record(command_buffer, layer, kinds, layer.rounded if shard is None else HeldTensor(None))
        for read in layer.read:
            read.count_read()
        for vectors in kept:
            for vector in vectors:
                vector.count_read()

    def _check_written(self, read: Sequence[Binding]) -> None:
        """Raise where a dropped command buffer was to write gradients or values, before the update is counted."""
        require_written(self._name or self.name, "encode", (region for each in read for region in each.regions()))

    def _record(
        self,
        command_buffer: CommandBuffer,
        layer: Layer,
        kinds: Sequence[Sequence[Binding | None]],
        rounded: Binding,
        form: str | int = "vector",
    ) -> None:
        """Update a layer: gradients, values, accumulators and results; ``rounded`` takes the first result so."""
        operands = [each for kind in kinds for each in kind if each is not None]
        vectors = len(kinds[0])
        if unwritten:
            self._check_written(operands[: 2 * vectors])
        decays = self._weight_decay != 0.0
        key = form, vectors, len(operands), self._clips, self._shard, decays
        asked = (self._rate, self._decay_rate) if decays else (self._rate,)
        bound = (*(step_number(command_buffer, ask) for ask in asked), *operands, rounded)
        function: Function | None = self._configuration.plans.get(key)
        if function is None:
            update = self._update_of(form, vectors, clips=self._clips, decays=decays, shard=self._shard)
            kept = (*[Number] * len(asked), *map(type, operands), type(rounded))
            function = self._interned_configuration().keep(key, function_of_op(update, kept))
        command_buffer.record(self._name or self.name, Dispatch(function, bound, (True,) * len(bound), ()))


@lru_cache(maxsize=256)
def _forms(given: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[_LayerOf, ...]]:
    """The forms of encode, and the kinds of layers, that arguments of these names belong to."""
    names = [name for name in given if name not in _NO_OPERANDS]
    endings = [name.rpartition("_")[2] for name in names]
    forms = {ending if ending in ("vector", "matrix") else "state" for ending in endings}
    layers = [layer for start, layer in _LAYERS.items() if any(name.startswith(start) for name in names)]
    return tuple(forms), tuple(layers)
