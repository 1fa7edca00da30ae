"""Updates of parameters behind a gradient pass, by the device and by the CPU.

(MPSNeuralNetworkTypes.h, ``MPSNNTrainingStyle``, macOS 10.13.4.) What the data sources of each kind are asked for is in
`graph.nodes.training`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from openmps.checks import flag, store
from openmps.core.kernel.encode import ImageKernel
from openmps.core.state.batch import MPSStateBatch
from openmps.errors import MPSTypeError, MTLCommandBufferError
from openmps.graph.compile.declared_updates import as_update, splice_updates
from openmps.graph.compile.gradients import PLAIN, KeptGradients, Treatment, treated
from openmps.graph.compile.program import Program, Stage
from openmps.graph.compile.shards import Shardable, Shards
from openmps.graph.compile.sharing import Sharing
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNGradientFilterNode, MPSNNImageNode, MPSNNStateNode
from openmps.graph.nodes.trainable import TrainableNode, asked_updates, training_of
from openmps.graph.nodes.training import Callback
from openmps.graph.run.encode_warnings import Layer, Watch
from openmps.graph.run.encoding import Images, StagesStates, batch_of, persistent_bindings
from openmps.graph.run.training_step import TrainingStep
from openmps.metal.device import CommandBuffer, MTLCommandQueue
from openmps.metal.pending import NOT_COMMITTED
from openmps.ops.rewrite.rule import place_of
from openmps.runtime.step_trace import (
    StepTrace,
    Traced,
    UndeclaredError,
    check_numbers,
    check_reusable,
    depends_on,
    is_declared,
)
from openmps.types import MPSNNTrainingStyle

_Places = tuple[Layer, Stage, Sequence[int]]
"""A layer, its forward kernel, and the kernels that fill in its states."""


class Updates:
    """The trainable layers of one graph, in the order in which their gradients are computed: the last layer first.

    Each is updated once a batch, however many gradient nodes it has: those of one forward node are one layer, and so
    are the convolutions over one data source, whose weights are the same. Nodes of another training style are apart.
    """

    def __init__(self, filters: Sequence[MPSNNFilterNode], kernels: dict[MPSNNFilterNode, ImageKernel]) -> None:
        self._layers: dict[Layer, list[MPSNNGradientFilterNode]] = {}
        first: dict[tuple[object, MPSNNTrainingStyle], Layer] = {}
        for node in kernels:
            if isinstance(node, MPSNNGradientFilterNode) and isinstance(node, TrainableNode) and asked_updates(node):
                layer = _layer(node, kernels)
                asked = first.setdefault((_owner(layer), layer.style), layer)
                self._layers.setdefault(asked, []).append(node)
        self._methods = [(layer.source, each.method) for layer in self._layers for each in layer.callbacks]
        self._may_be_declared = bool(self._layers) and all(layer.style is _ON_DEVICE for layer in self._layers)
        self._watch = Watch(filters, list(self._layers))
        self._kept = KeptGradients()
        self._places: tuple[Program | None, list[_Places]] = None, []
        """Where the layers are in the program that was encoded last."""

    def share_among(self, who: str, shards: Shards | None) -> None:
        """Have the data sources keep what optimizers keep of a share of the parameters; None for all of it.

        Raises before any of them is told if one does not offer it.
        """
        sources = {id(layer.source): (layer.kernel.name, layer.source) for layer in self._layers}.values()
        if shards is not None:
            for name, source in sources:
                if not isinstance(source, Shardable):
                    rule = "must offer shard_optimizer(shards), as the package's trainable data sources do"
                    remedy = "Share the graph without shards_optimizer_state"
                    raise MPSTypeError(who, f"data source of {name}", rule, type(source).__name__, remedy)
        for _, source in sources:
            if isinstance(source, Shardable):
                source.shard_optimizer(shards)

    def check(self, command_buffer: CommandBuffer, who: str, program: Program, *, has_states: bool) -> None:
        """Raise, before an encode counts, where the command buffer takes what is the same each time alone."""
        check_numbers(command_buffer, who, program.function)
        if self._layers:
            check_reusable(command_buffer, who, "a graph that trains, whose updates have numbers of their step")
        if has_states:
            check_reusable(command_buffer, who, "an encode with states, each of which belongs to one encode")
        for stage in program.stages:
            for version in stage.kernel.parameter_versions():
                depends_on(command_buffer, version)

    def begin(self, program: Program, states: StagesStates) -> UpdatePass:
        """States for each layer that is updated, which the layer's kernels fill in."""
        self._watch.before_encode()
        return UpdatePass(self._make_states(program, states), self._watch)

    def _make_states(self, program: Program, states: StagesStates) -> list[tuple[Layer, MPSStateBatch]]:
        program_before, places = self._places
        if program_before is not program:
            places = [self._places_of(program, layer, nodes) for layer, nodes in self._layers.items()]
            self._places = program, places
        made: list[tuple[Layer, MPSStateBatch]] = []
        count = program.images
        for layer, stage, filled in places:
            state = stage.kernel.make_state()
            if state is None:
                continue
            store(state, "_record", stage.plan.record)
            whole = layer.is_whole
            batch = MPSStateBatch.repeated(state, count) if whole else batch_of(stage.kernel, state, count)
            for place in filled:
                states.hold(place, batch)
            made.append((layer, batch))
        return made

    def treatment(self, limit: float | None, *, keeps: bool) -> Treatment:
        """What becomes of the gradients of the next encode, whose norm has a limit or none."""
        self._kept.limit = limit
        if limit is None and not keeps and not self._kept.encodes:
            return PLAIN
        return Treatment(limit is not None and not keeps, self._kept.encodes > 0, not keeps)

    # --- declared updates ---------------------------------------------------------------------------------------------

    def step(
        self,
        program: Program,
        queue: Callable[[], MTLCommandQueue],
        sharing: Sharing | None,
        given: Collection[MPSNNStateNode],
        treatment: Treatment,
    ) -> TrainingStep | None:
        """The program with its updates, if data sources declare all of them; None where they are asked each time.

        ``queue`` is of the graph's own, ``given`` are the nodes of states of the user.
        """
        traced = program.updates.get(treatment)
        if traced is None or not traced.is_current():
            if not self._may_be_declared or not all(is_declared(*each) for each in self._methods):
                return None
            taken = program.taken(given)
            traced = program.updates[treatment] = self._trace(program, queue(), sharing, taken, treatment)
            if not traced.is_current():  # something that it depends on has changed while it was recorded
                return None
        return traced.frame if isinstance(traced.frame, TrainingStep) else None

    def _trace(
        self,
        program: Program,
        queue: MTLCommandQueue,
        sharing: Sharing | None,
        taken: Collection[int],
        treatment: Treatment,
    ) -> Traced:
        """Have the data sources record their updates once."""
        states = StagesStates(program)
        update = UpdatePass(self._make_states(program, states), self._watch)
        ends = states.ends()
        trace = StepTrace(queue)
        trace.declared += self._methods
        # First: the versions are those of what is bound now, and more may follow from it than before.
        given = persistent_bindings(program, taken)
        for version in program.versions:
            depends_on(trace, version)
        try:
            update.ask(trace, sharing)
            recorded = [(label, as_update(label, work)) for label, work in trace.take()]
            works = treated(recorded, treatment, self._kept, trace.device)
            own = [place for place in taken if place not in states.held]
            place = place_of(trace.device.torch_device)
            spliced = splice_updates(program, given, ends, [work for _, work in works], own, place)
        except UndeclaredError:
            return Traced(trace, None)
        finally:
            trace.take()
        return Traced(trace, TrainingStep(program, spliced, trace, ends, works))

    def encode_step(
        self,
        step: TrainingStep,
        command_buffer: CommandBuffer,
        who: str,
        program: Program,
        sources: Sequence[Images],
        states: StagesStates,
        outputs: Mapping[MPSNNImageNode, Images],
        checked: bool,
        treatment: Treatment,
    ) -> None:
        """Record what `step` gave; ``checked`` has results looked at before anything is updated."""
        watches = treatment.updates and not self._watch.has_judged
        if watches:
            self._watch.before_encode()
        step.encode(command_buffer, who, program, sources, states, outputs, checked=checked)
        self._kept.encodes = 0 if treatment.updates else self._kept.encodes + 1
        if watches:
            self._watch.after_encode(command_buffer)

    @staticmethod
    def _places_of(program: Program, layer: Layer, nodes: Sequence[MPSNNGradientFilterNode]) -> _Places:
        place = program.places[layer.node.forward]
        forward = [place] if layer.training.fills_forward else []
        return layer, program.stages[place], [*forward, *(program.places[node] for node in nodes)]


def _layer(node: Any, kernels: dict[MPSNNFilterNode, ImageKernel]) -> Layer:
    training, own, forward = training_of(node), kernels[node], kernels[node.forward]
    assert training is not None
    holder: Any = own if hasattr(own, "data_source") else forward
    mine = getattr(holder, "parameters", None)
    # Convolutions of one data source share their weights.
    others = [each for each in kernels.values() if each is not holder and _source(each) is holder.data_source]
    apart = [each for each in others if mine is None or getattr(each, "parameters", None) is not mine]
    return Layer(
        node,
        holder,
        holder.data_source,
        node.training_style,
        [holder, *apart],
        training,
        training.offered_by(holder.data_source),
        forward.is_result_state_reused_across_batch(),
    )


def _owner(layer: Layer) -> object:
    """What gradient nodes of one layer have in common: the weights, or the forward node of a normalization."""
    return getattr(layer.kernel, "parameters", layer.node.forward)


def _source(kernel: Any) -> Any:
    return getattr(kernel, "data_source", kernel)


class UpdatePass:
    """The updates of one encode."""

    __slots__ = ("_asked", "_watch")

    def __init__(self, states: Sequence[tuple[Layer, MPSStateBatch]], watch: Watch) -> None:
        self._watch = watch
        self._asked = [
            partial(_STYLES[layer.style], layer, callback, batch)
            for layer, batch in states
            for callback in layer.callbacks
        ]
        """What asks the data sources, callback by callback."""

    def encode(self, command_buffer: CommandBuffer, sharing: Sharing | None = None) -> None:
        """Ask the data sources for updates, each once a batch; all gradients are recorded by now.

        A data source of several convolutions gets the sum of their gradients, which are all of the same weights.
        """
        self.ask(command_buffer, sharing)
        if self._asked:
            self._watch.after_encode(command_buffer)

    def ask(self, command_buffer: CommandBuffer, sharing: Sharing | None) -> None:
        """The same without a look at what comes of it."""
        if sharing is not None and sharing.shards is not None:
            self._encode_shards(command_buffer, sharing.shards, sharing.bucket_bytes)
            return
        for ask in self._asked:
            ask(command_buffer, None)

    def _encode_shards(self, command_buffer: CommandBuffer, shards: Shards, bucket_bytes: int) -> None:
        """Kernels take the parameters when the shards of all processes are there."""
        reloads: list[Callable[[], None]] = []
        with shards.of_graph(command_buffer, bucket_bytes):
            for ask in self._asked:
                ask(command_buffer, reloads)
        for reload in reloads:
            reload()


def _update_on_device(
    layer: Layer,
    callback: Callback,
    states: MPSStateBatch,
    command_buffer: CommandBuffer,
    later: list[Callable[[], None]] | None,
) -> None:
    kernel = layer.kernel
    given = states if callback.takes_batch else states.shared
    update = getattr(layer.source, callback.method)
    if callback.takes_source:
        # The source state is the kernel's own memory: an update in place needs no copy.
        weights = kernel.parameters
        source = weights.state()
        with _while_recorded(callback):
            new = update(command_buffer, given, source)
        if new is source:
            layer.has_answered = True
            if later is None:
                weights.reload_from(kernel.name, command_buffer, new)
            else:
                # In front of the others: where nothing came behind the rounding of the gathered, it need not be again.
                later.insert(0, partial(weights.reload_from, kernel.name, command_buffer, new))
            return
    else:
        with _while_recorded(callback):
            new = update(command_buffer, given)
    if new is None:
        return
    if not isinstance(new, callback.result):
        rule = f"must return an {callback.result.__name__} or None when it updates on the device"
        remedy = "Return the state that holds the new numbers"
        if callback.takes_source:
            remedy = "Return the state that holds the new weights; it may be source_state, changed in place"
        raise MPSTypeError(kernel.name, f"data source {callback.method}()", rule, type(new).__name__, remedy)
    layer.has_answered = True
    if len(layer.holders) > 1:
        new.add_reads(len(layer.holders) - 1)
    if later is not None:
        later += [partial(getattr(each, callback.reload), command_buffer, new) for each in layer.holders]
        return
    for each in layer.holders:
        getattr(each, callback.reload)(command_buffer, new)


@contextmanager
def _while_recorded(callback: Callback) -> Generator[None]:
    """Say what else there is to do where an update reads what the encode that asks for it is to write."""
    try:
        yield
    except MTLCommandBufferError as error:
        if error.rule != NOT_COMMITTED:
            raise
        remedy = (
            f"{callback.method}() is called while the encode is recorded: record an optimizer or another kernel on its "
            "command buffer, or set training_style to UPDATE_DEVICE_CPU, by which it is called when they are there"
        )
        raise MTLCommandBufferError(error.who, error.argument, error.rule, error.got, remedy) from error


def _update_on_cpu(
    layer: Layer, callback: Callback, states: MPSStateBatch, command_buffer: CommandBuffer, later: object
) -> None:
    def finished(buffer: Any) -> None:
        kernel = layer.kernel
        given = states if callback.takes_batch else states.shared
        arguments = (given, kernel.parameters.state()) if callback.takes_source else (given,)
        if buffer.error is not None:
            return
        answer = getattr(layer.source, callback.method)(None, *arguments)
        if _says_new(kernel.name, callback, answer):
            layer.has_answered = True
            for each in layer.holders:
                getattr(each, callback.reload_from_data_source)()

    command_buffer.add_completed_handler(finished)


def _says_new(who: str, callback: Callback, answer: Any) -> bool:
    """Whether a data source has new numbers; a state, with which it answers on the device, says so, too."""
    if isinstance(answer, callback.result):
        return True
    rule = "must return True, False or None when it updates on the CPU"
    return answer is not None and flag(who, f"data source {callback.method}()", answer, rule)


_ON_DEVICE = MPSNNTrainingStyle.UPDATE_DEVICE_GPU
_STYLES = {
    MPSNNTrainingStyle.UPDATE_DEVICE_CPU: _update_on_cpu,
    _ON_DEVICE: _update_on_device,
}
