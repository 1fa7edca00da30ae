"""MPSNNOptimizer: what all optimizers share, and the one path of their encodes (MPSNNOptimizers.h, macOS 10.14)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from openmps.checks import Shown, finite, store
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.kernel.configuration import Setting
from openmps.core.kernel.operands import OperandContext, OperandKernel, OperandPlan
from openmps.core.state.state import MPSState
from openmps.core.training_state import TrainingState, check_names, finite_number
from openmps.core.vector import MPSVector, numbers_of
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
from openmps.kernels.optimizers.operands import accumulators
from openmps.kernels.optimizers.parameters import (
    Layer,
    batch_normalization_layer,
    convolution_gradients,
    convolution_layer,
    stays,
)
from openmps.metal.device import CommandBuffer, MTLDevice
from openmps.metal.pending import require_written, unwritten
from openmps.ops.op import Function
from openmps.ops.update.optimizers import GradientRule, HandOn, Update
from openmps.ops.update.shards import Shard
from openmps.runtime.binding import Binding, HeldTensor, Number, Numbers
from openmps.runtime.dispatch import Dispatch, Frame, function_of_op, record_op
from openmps.selectors import no_argument
from openmps.types import MPSNNRegularizationType

_LayerOf = Callable[[str, Mapping[str, Any], "CommandBuffer"], Layer]

_LAYERS: dict[str, _LayerOf] = {
    "convolution_": convolution_layer,
    "batch_normalization_": batch_normalization_layer,
}
"""The kinds of states, by the beginning of their arguments' names."""
_GRADIENTS = "convolution_gradient_state"
_GIVEN_ANEW = 3
"""The first arguments of every encode: the optimizer, the command buffer, and the gradients of a convolution."""
_BATCH_NORMALIZATION = 4
"""Where they have the state of a batch normalization."""
_NONE: Mapping[int, Any] = {}
_NEEDED = "Give convolution_gradient_state and convolution_source_state, or batch_normalization_state"
_NO_OPERANDS = ("self", "command_buffer", "operands")


class MPSNNOptimizer(OperandKernel):
    """The base of optimizers (MPSNNOptimizers.h, macOS 10.14). Everything is float32.

    Raises:
        MPSTypeError: ``optimizer_descriptor`` is none.
    """

    apply_gradient_clipping: bool
    """Whether gradients are clipped; may be changed at any time."""

    _accumulators: tuple[str, ...] = ()
    _optional: frozenset[str] = frozenset()
    _named: Mapping[str, Any] = {}
    """The arguments of an encode, in order, as they are when they are left out."""
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
        self._learning_rate = finite(self.name, "learning_rate", given.learning_rate)
        self._clip_max, self._clip_min = given.gradient_clip_max, given.gradient_clip_min
        self._rule = GradientRule(
            rescale=given.gradient_rescale,
            clip=(self._clip_max, self._clip_min),
            regularization=given.regularization_type,
            regularization_scale=given.regularization_scale,
        )
        self._last: _Found | None = None
        self._shard: Shard | None = None
        self.apply_gradient_clipping = given.apply_gradient_clipping

    def set_learning_rate(self, new_learning_rate: float) -> None:
        """Change the step size of encodes to come."""
        self._learning_rate = finite(self.name, "new_learning_rate", new_learning_rate)

    def training_state(self) -> TrainingState:
        """What a checkpoint keeps of the optimizer, its vectors not included: they are the caller's. Our addition."""
        return {"learning_rate": self._learning_rate}

    def restore_training_state(self, state: TrainingState) -> None:
        """Go on as the optimizer would that gave ``state``. Our addition."""
        check_names(self.name, state, set(self.training_state()))
        self.set_learning_rate(finite_number(self.name, state, "learning_rate"))

    def update_shards(self, shard: Shard | None) -> None:
        """Update a part of each parameter from now on, with vectors of that part's numbers; None for all of it.

        Encodes take states then, and the whole results are for the caller to gather. Our addition.
        """
        self._shard = shard
        self._last = None

    # --- what a class fills in ----------------------------------------------------------------------------------------

    def _rate(self) -> float:
        """The rate of one encode, which is recorded then."""
        return self._learning_rate

    def _number(self, name: str, given: OperandPlan) -> float:
        return self._rate()

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
        check_command_buffer(self._name or self.name, command_buffer, self._device)
        given = [*arguments.values()]
        state = given[_GIVEN_ANEW - 1]
        prepared = getattr(given[_BATCH_NORMALIZATION] if state is None else state, "prepared", None)
        if prepared and self._encode_prepared(command_buffer, given, prepared):
            return
        if self._last is not None and self._encode_again(command_buffer, given, self._last):
            return
        forms, layers = _forms(tuple([name for name, value in arguments.items() if value is not None]))
        if len(forms) > 1:
            rule, remedy = "must be states, or vectors, or matrices", "Encode once for each"
            raise MPSTypeError(self.name, "arguments", rule, "several", remedy)
        if forms != ("state",):
            self._encode_operands(command_buffer, arguments, forms[0] if forms else "vector")
        elif len(layers) == 1:
            self._encode_states(command_buffer, arguments, layers[0](self.name, arguments, command_buffer))
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
        asked = suffix, self.apply_gradient_clipping
        self._encode(command_buffer, *given, arguments=listed, asked=asked)

    def _lower(self, at: OperandContext) -> None:
        suffix, clips = at.asked
        names = [name for part in parts_of(self._accumulators) if at.has(name := f"{part}_{suffix}")]
        at.check_alike(*names, what="the gradient's shape")
        self._step_of(1, clips=clips)(at.number("rate"), *map(at.elements, names), None)

    def _step_of(self, vectors: int, *, clips: bool, shard: Shard | None = None) -> Update:
        """The update of so many vectors."""
        step = self._step
        return replace(step, vectors=vectors, rule=step.rule if clips else replace(step.rule, clip=None), shard=shard)

    def _encode_states(self, command_buffer: CommandBuffer, arguments: Mapping[str, Any], layer: Layer) -> None:
        """The forms of a layer: index 0 of each list of vectors belongs to its first parameter, 1 to the second."""
        kept: list[Sequence[MPSVector]] = []
        own: list[list[Binding]] = []
        names, shard = layer.names, self._shard
        lengths = layer.lengths if shard is None else [*map(shard.room, layer.lengths)]
        for name in self._accumulators:
            vectors = arguments[f"{name}_vectors"]
            if vectors is not None:
                kept.append(vectors)
                own.append(accumulators(self.name, f"{name}_vectors", vectors, names, lengths, command_buffer))
            elif name not in self._optional:
                rule = f"are needed: for the {names[0]} and the {names[1]}"
                raise MPSTypeError(self.name, f"{name}_vectors", rule, None)
        values, results = layer.values[1], layer.results[1]
        parameters = 1
        if values is not None and results is not None:
            if min(map(len, kept), default=2) == 2:
                parameters = 2
            elif values.buffer is not results.buffer or values.offset != results.offset:
                record_op(command_buffer, f"{self.name} {names[1]}", HandOn(), (values, results))
        others = [each for kind in (layer.values, *own, layer.results) for each in kind[:parameters] if each]
        others.append(layer.rounded if shard is None else HeldTensor(None))
        function = self._record(command_buffer, parameters, [*layer.gradients[:parameters], *others])
        if values is None or parameters == 2:
            last = _Found.of(arguments, kept, layer.lengths, parameters, others, clips=self.apply_gradient_clipping)
            store(self, "_last", last)
            if layer.read[0].prepared is not None:
                self._keep(layer.read[0], _Prepared.of(arguments, kept, layer, function, others))
        for read in layer.read:
            read.count_read()
        for vectors in kept:
            for vector in vectors:
                vector.count_read()

    def _encode_prepared(self, command_buffer: CommandBuffer, given: list[Any], prepared: dict[int, _Prepared]) -> bool:
        """Update the parameters if all arguments are those of an encode before, the state of the gradients too."""
        found = prepared.get(id(self))
        if found is None or found.clips is not self.apply_gradient_clipping or found.shard is not self._shard:
            return False
        try:
            if given[found.first :] != found.arguments:
                return False
        except Exception:  # an array, which compares element by element: the checks say what is wrong with it
            return False
        if found.first > _GIVEN_ANEW and given[_GIVEN_ANEW - 1 : _GIVEN_ANEW + 1] != [None, None]:
            return False
        command_buffer.record(*self._encoded(found))
        return True

    def _settled_arguments(self) -> list[object] | None:
        """The arguments behind the gradients of the last encode, for `_found_prepared`; None where they will not do."""
        return None if self._last is None else self._last.arguments

    def _found_prepared(self, gradients: Any, arguments: list[object]) -> _Prepared | None:
        """What an encode of a convolution's update would record with these arguments, if it did so before.

        For data sources that know that nothing has changed and record what it encodes; others call ``encode``.
        """
        found: _Prepared | None = (gradients.prepared or _NONE).get(id(self))
        if found is None or found.clips is not self.apply_gradient_clipping or found.shard is not self._shard:
            return None
        if found.first != _GIVEN_ANEW:
            return None
        # Mostly the very list.
        return found if arguments is found.arguments or arguments == found.arguments else None

    def _check_written(self, read: Sequence[Binding]) -> None:
        """Raise where a dropped command buffer was to write gradients or values, before the update is counted."""
        require_written(self._name or self.name, "encode", (region for each in read for region in each.regions()))

    def _encoded(self, found: _Prepared) -> tuple[str, Dispatch]:
        """The update again, at the rate of this encode, and its label."""
        if unwritten:
            self._check_written(found.lent[: found.lends])
        inputs = (Number(self._rate()), *found.lent[: found.lends], *found.operands)
        return self._name or self.name, Dispatch(found.function, inputs, found.used, (), found.frame)

    def _encode_again(self, command_buffer: CommandBuffer, given: list[Any], last: _Found) -> bool:
        """Update a convolution's parameters if all arguments but the gradients are those of the last time."""
        try:
            if last.clips is not self.apply_gradient_clipping or given[_GIVEN_ANEW:] != last.arguments:
                return False
        except Exception:  # as above
            return False
        state = given[_GIVEN_ANEW - 1]
        gradients = convolution_gradients(self._name or self.name, state, command_buffer)
        if (gradients[0].count, gradients[1].count) != last.lengths:
            return False
        operands = [*gradients[: last.parameters], *last.operands]
        function = self._record(command_buffer, last.parameters, operands, last.frame)
        state.count_read()
        if state.prepared is not None:
            self._keep(state, _Prepared.of_last(state, gradients, last, function))
        return True

    def _keep(self, state: MPSState, prepared: _Prepared | None) -> None:
        """Have a state keep what is ready for the next encode with it."""
        if state.prepared is not None and prepared is not None:
            state.prepared[id(self)] = prepared._replace(
                owner=self, clips=self.apply_gradient_clipping, shard=self._shard
            )

    def _record(
        self, command_buffer: CommandBuffer, vectors: int, operands: list[Binding], frame: Frame | None = None
    ) -> Function:
        """Update so many vectors: gradients, values, accumulators and results, kind by kind, then what is rounded."""
        if unwritten:
            self._check_written(operands[: 2 * vectors])
        key = vectors, len(operands), self.apply_gradient_clipping, self._shard
        bound = (Number(self._rate()), *operands)
        function: Function | None = self._configuration.plans.get(key)
        if function is None:
            update = self._step_of(vectors, clips=self.apply_gradient_clipping, shard=self._shard)
            function = self._settled().keep(key, function_of_op(update, tuple(map(type, bound))))
        command_buffer.record(self._name or self.name, Dispatch(function, bound, (True,) * len(bound), (), frame))
        return function


class _Found(NamedTuple):
    """What the permanent states and vectors of an update were found to hold, so that they need not be asked again."""

    arguments: list[object]
    """All but the first three, which are the optimizer, the command buffer and the gradients; lists as they were."""
    lengths: tuple[int, int]
    parameters: int
    """How many of them are updated."""
    operands: list[Binding]
    clips: bool
    frame: Frame
    """Of the inputs besides them, the rate and the gradients; the function is another one if it clips."""

    @classmethod
    def of(
        cls,
        arguments: Mapping[str, Any],
        kept: Sequence[Sequence[MPSVector]],
        lengths: tuple[int, int],
        parameters: int,
        operands: list[Binding],
        *,
        clips: bool,
    ) -> _Found | None:
        """None unless they will be found in the same memory the next time."""
        states = arguments["convolution_source_state"], arguments["result_state"]
        if states[0] is None or not all(map(stays, states)):
            return None
        if any(numbers_of(vector) is None for vectors in kept for vector in vectors):
            return None
        given = [copy(value) if any(value is each for each in kept) else value for value in arguments.values()]
        return cls(given[_GIVEN_ANEW:], lengths, parameters, operands, clips, Frame(tuple(range(1 + parameters))))


class _Prepared(NamedTuple):
    """An update from one state of gradients, which comes again: kept by that state, so it does not hold it."""

    first: int
    """Where the arguments begin that must be the same."""
    arguments: list[object]
    lent: Sequence[Binding]
    """What the state says that updates are bound to, in a sequence of the state's own."""
    lends: int
    """How many of these come first among the operands."""
    operands: list[Binding]
    """Those behind them."""
    function: Function
    used: tuple[bool, ...]
    frame: Frame
    owner: object = None
    """The optimizer, by whose identity it is found."""
    clips: bool = False
    shard: Shard | None = None

    @classmethod
    def of_last(cls, state: Any, gradients: Sequence[Binding], last: _Found, function: Function) -> _Prepared | None:
        """An update of a convolution."""
        lent = state.own_operands()
        if lent is not gradients:
            return None
        used = (True,) * len(function.inputs)
        return cls(_GIVEN_ANEW, last.arguments, lent, last.parameters, last.operands, function, used, Frame((0,)))

    @classmethod
    def of(
        cls,
        arguments: Mapping[str, Any],
        kept: Sequence[Sequence[MPSVector]],
        layer: Layer,
        function: Function,
        others: list[Binding],
    ) -> _Prepared | None:
        """An update of gamma and beta; None unless all but these will be found in the same memory the next time."""
        given, state = [*arguments.values()], layer.read[0]
        if given[_BATCH_NORMALIZATION] is not state or len(layer.read) != 1:
            return None
        lent, first = state.own_operands(), _BATCH_NORMALIZATION + 1
        if arguments["result_state"].lives_on is not None or not _are_same(lent, (*layer.gradients, *layer.values)):
            return None
        if any(numbers_of(vector) is None for vectors in kept for vector in vectors):
            return None
        same = [copy(value) if any(value is each for each in kept) else value for value in given[first:]]
        used = (True,) * len(function.inputs)
        return cls(first, same, lent, len(lent), others[len(layer.values) :], function, used, Frame((0,)))


def _are_same(lent: Sequence[Any], bound: Sequence[Any]) -> bool:
    """Whether what a state lends is the memory that an update was bound to."""
    pairs = zip(lent, bound, strict=False)
    return len(lent) == len(bound) and all(
        isinstance(each, Numbers) and each.buffer is own.buffer for own, each in pairs
    )


@lru_cache(maxsize=256)
def _forms(given: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[_LayerOf, ...]]:
    """The forms of encode, and the kinds of layers, that arguments of these names belong to."""
    names = [name for name in given if name not in _NO_OPERANDS]
    endings = [name.rpartition("_")[2] for name in names]
    forms = {ending if ending in ("vector", "matrix") else "state" for ending in endings}
    layers = [layer for start, layer in _LAYERS.items() if any(name.startswith(start) for name in names)]
    return tuple(forms), tuple(layers)
