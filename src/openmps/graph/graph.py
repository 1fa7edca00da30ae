"""MPSNNGraph: a network compiled from nodes (MPSNNGraph.h, macOS 10.13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, overload

from openmps.checks import Checked, MaybeNone, Shown, finite, flag
from openmps.convention import NotingConventions, current
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage, MPSImageAllocator
from openmps.core.image.storage import Shape
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.kernel.encode import ImageKernel
from openmps.core.lifetime import COMMAND_BUFFERS, check_is_open
from openmps.core.numbers import integer
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTrainingWarning, MPSTypeError, warn_user
from openmps.graph.compile.compiler import copy_kernels, make_kernels
from openmps.graph.compile.gradients import PLAIN
from openmps.graph.compile.interface import Interface, Results
from openmps.graph.compile.passes import Network, check_gradients, check_listed, reachable, required
from openmps.graph.compile.program import Program
from openmps.graph.description import description, table
from openmps.graph.nodes.node import (
    MPSHandle,
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNImageNode,
    MPSNNStateNode,
    checked_allocator,
)
from openmps.graph.nodes.trainable import training_of
from openmps.graph.planning import PlannedGraph
from openmps.graph.run.encode_warnings import StaleWeights
from openmps.graph.run.encoding import (
    Images,
    StagesStates,
    as_image,
    as_images,
    batch_list,
    bindings,
    check_receiver,
    check_sources,
    count_reads,
    image_list,
    make_outputs,
    make_states,
    other_formats,
    output_bindings,
    state_batch_list,
    state_list,
    tell,
    traced_sources,
    traced_states,
)
from openmps.graph.run.non_finite import encoding_of
from openmps.graph.run.trace import Trace, Tracer, without_steps
from openmps.metal.device import CommandBuffer, MTLCommandQueue, MTLDevice
from openmps.ops import triton
from openmps.selectors import Factory, accepts, takes

_NOTHING_TO_DO = (
    "there is nothing to do, so encodes return None: no result is needed, no image or state is exported, and no "
    "gradient node has a data source with an update(); set result_image_is_needed, or give it what it is to train"
)
CompletionHandler = Callable[[MPSImage | None, Exception | None], object]


def _checked_limit(who: str, name: str, value: object) -> float | None:
    """A limit of the norm, or None."""
    if value is None:
        return None
    found = finite(who, name, value)
    if found <= 0:
        raise MPSArgumentError(who, name, "must be above 0, or None", found)
    return found


class MPSNNGraph(PlannedGraph):
    """A network of filter nodes, compiled for a device (MPSNNGraph.h, macOS 10.13).

    ``MPSNNGraph(device, result_image=node, result_image_is_needed=True)`` runs everything that the result depends on;
    ``result_images=[…], results_are_needed=[…]`` (macOS 10.15) takes several. An unneeded result is not computed
    beyond what updates parameters, and an encode returns None in its place; if that leaves nothing to do, there is an
    `MPSTrainingWarning`. Nodes and data sources are read when the graph is made. The graph is planned once for each set
    of input shapes, and again where a property of one of its `kernels` was set.

    Raises:
        MPSArgumentError: A result is an input, nodes form a cycle, or a gradient node mixes two layers.
        MPSTypeError: A result is no image node, or a node has no kernel.
    """

    output_state_is_temporary: bool = False
    """Whether exported states live on the command buffer only. Default False."""
    stop_on_non_finite: bool = False
    """Fail a run in which a loss, a gradient of weights or a result is NaN or infinite, before anything is updated.

    The error is an `MPSNonFiniteError` that names the first kernel, image and channel at fault. Default False.
    """

    gradient_norm_limit = Checked[float | None](
        None,
        _checked_limit,
        """The largest norm of the gradients that updates take: of those of all parameters together.

        Gradients of a larger norm are multiplied by ``gradient_norm_limit / norm``, before an optimizer's own limits;
        the norm is of what is left by the optimizers' ``gradient_rescale``. Default None: no limit. Our addition.
        """,
    )
    keeps_gradients = Checked[bool](
        False,
        flag,
        """Whether encodes keep their gradients and update nothing but running statistics.

        The first encode behind that with False updates by the sum of its gradients and all that were kept, in the order
        of the encodes. Default False. Our addition.
        """,
    )

    graph = Factory(
        "graphWithDevice:resultImage:resultImageIsNeeded:", "graphWithDevice:resultImages:resultsAreNeeded:"
    )

    @overload
    def __init__(
        self,
        device: MTLDevice,
        result_images: Sequence[MPSNNImageNode],
        results_are_needed: Sequence[bool] | None = None,
        /,
    ) -> None: ...
    @overload
    def __init__(
        self,
        device: MTLDevice,
        result_image: MPSNNImageNode | None = None,
        result_image_is_needed: bool = True,
        *,
        result_images: Sequence[MPSNNImageNode] | None = None,
        results_are_needed: Sequence[bool] | None = None,
    ) -> None: ...
    @takes(
        {"device": object, "result_images": Sequence},
        {"device": object, "result_images": Sequence, "results_are_needed": object},
    )
    def __init__(  # pyright: ignore[reportInconsistentOverload]
        self,
        device: MTLDevice,
        result_image: MPSNNImageNode | None = None,
        result_image_is_needed: bool = True,
        *,
        result_images: Sequence[MPSNNImageNode] | None = None,
        results_are_needed: Sequence[bool] | None = None,
    ) -> None:
        super().__init__(device)
        results = Results(self.name, result_image, result_image_is_needed, result_images, results_are_needed)
        with NotingConventions(current()) as noting:
            network = reachable(results.nodes)
            filters, read = required(network.filters, results.wanted())
            if not filters:
                warn_user(f"{self.name}: {_NOTHING_TO_DO}", MPSTrainingWarning)
            self._assemble(network, filters, read, results)
        self._asked_when_made = frozenset(noting.asked)

    @classmethod
    def assembled(cls, device: MTLDevice, network: Network, results: Results) -> Self:
        """A graph that runs all filters of ``network``, in their order; for those who restore graphs from files."""
        check_listed(network)
        graph = cls.__new__(cls)
        MPSKernel.__init__(graph, device)
        read = {*results.wanted(), *(image for node in network.filters for image in node.sources)}
        with NotingConventions(current()) as noting:
            graph._assemble(network, network.filters, read, results)
        graph._asked_when_made = frozenset(noting.asked)
        return graph

    def _assemble(
        self, network: Network, filters: list[MPSNNFilterNode], read: set[MPSNNImageNode], results: Results
    ) -> None:
        check_gradients(filters)
        triton.try_ahead(self._device.torch_device)
        self._plan_for(network, Interface(network, filters, results), make_kernels(filters, read, self._device))

    def _use(self, kernels: dict[MPSNNFilterNode, ImageKernel]) -> None:
        super()._use(kernels)
        self._stale_weights = StaleWeights(kernels.values())
        self._queue: MTLCommandQueue | None = None

    def _unshare(self) -> None:
        """Give a copy kernels of its own, over copies of the data sources if they offer some.

        The kernels' properties, weights and places in the sequence of masks are those of the original's now; queued
        work is not waited for.
        """
        self._use(copy_kernels(self._kernels, self._device))

    # --- properties ---------------------------------------------------------------------------------------------------

    destination_image_allocator = Checked[MPSImageAllocator](
        MPSImage.default_allocator(),
        checked_allocator,
        "Makes the result image, whatever its node says. Default: ordinary images, which the CPU can read.",
    )

    @property
    def source_image_handles(self) -> list[MPSHandle | MaybeNone]:
        """A handle for each source image, in the order in which `encode` takes them.

        That is the order in which a walk from the results, depth first, sources of a filter in argument order, meets
        them: the network's input before the labels of its loss. A node without a handle gets one of the graph's own;
        an image that is a node's handle stands here itself.
        """
        return self._interface.handles(self._interface.inputs)

    @property
    def source_state_handles(self) -> list[MPSHandle | MaybeNone]:
        """A handle for each source state, in the order in which `encode` takes them."""
        return self._interface.handles(self._interface.input_states)

    @property
    def intermediate_image_handles(self) -> list[MPSHandle | MaybeNone]:
        """A handle for each exported image, as they are made: those that encodes append to ``intermediate_images``.

        Further results, which encodes append there, too, are not among them, as on Macs, unless they are exported.
        """
        return self._interface.handles(self._interface.exported)

    @property
    def result_state_handles(self) -> list[MPSHandle | MaybeNone] | None:
        """A handle for each exported state, in the order in which they are made; None if there are none."""
        return self._interface.handles(self._interface.result_states) or None

    @property
    def result_handle(self) -> MPSHandle | MaybeNone:
        """The handle of the result image.

        One of the graph's own where none was set, or None by the convention ``nil_handles``, as a Mac is reported to
        have there.
        """
        return self._interface.handle(self._interface.result)

    result_image_is_needed = Shown[bool]("_interface.result_is_needed", "Whether encodes return the result.")

    def read_count_for_source_image_at_index(self, index: int) -> int:
        """How often filters read source image ``index`` (macOS 10.14.1).

        An encode takes so many reads from a temporary image, or one if it has fewer left: the framework documents both.
        """
        return self._interface.reads(self._input(self._interface.inputs, index))

    def read_count_for_source_state_at_index(self, index: int) -> int:
        """How often filters read source state ``index`` (macOS 10.14.1); see `read_count_for_source_image_at_index`."""
        return self._interface.reads(self._input(self._interface.input_states, index))

    def _input(self, nodes: Sequence[Any], index: int) -> Any:
        rule = f"must be an integer from 0, below {len(nodes)}"
        return nodes[integer(self.name, "index", index, 0, len(nodes) - 1, rule=rule)]

    @property
    def kernels(self) -> dict[MPSNNFilterNode, Any]:
        """The kernel of each filter that runs, in order; for those who look inside, and may set properties.

        The next encode computes with what they are then; sizes and places of results stay the padding policies'.
        """
        return dict(self._kernels)

    @property
    def debug_description(self) -> str:
        """The graph in words: every filter in order, with its kernel, images, states, format and padding."""
        return description(self.name, self._interface, self._kernels, self.format)

    interface = Shown[Interface](
        "_interface", "The image and state nodes that the graph shares with its user; for those who look inside."
    )

    def reload_from_data_sources(self) -> None:
        """Read every data source of this graph again, at once; queued work is not waited for.

        Graphs that share the data sources keep their weights until they are told the same; an `MPSTrainingWarning`
        names them where they are encoded with the old ones.
        """
        done: set[int] = set()
        for node, kernel in self._kernels.items():
            training = None if isinstance(node, MPSNNGradientFilterNode) else training_of(node)
            # Convolutions of one data source share their weights.
            held = id(getattr(kernel, "parameters", kernel))
            if training is not None and held not in done:
                done.add(held)
                for callback in training.callbacks:
                    getattr(kernel, callback.reload_from_data_source)()

    def stale_weights(self) -> list[str]:
        """Names of the kernels with other weights than their data sources give now, or older than another kernel's.

        Reads the data sources, and the weights as they are in memory: call it when the command buffers are done. A data
        source that was trained on the device and does not bring the weights back is named too, whichever graph was made
        first. Kernels that share their weights, as a layer and its gradient do, are named once. Our addition.
        """
        return self._stale_weights.names()

    # --- encode -------------------------------------------------------------------------------------------------------

    def encode(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[MPSImage],
        source_states: Sequence[MPSState] | None = None,
        intermediate_images: list[MPSImage] | None = None,
        destination_states: list[MPSState] | None = None,
    ) -> MPSImage | MaybeNone:
        """Record the graph for one image object of each source; returns the result, or None if it is not needed.

        ``source_images`` and ``source_states`` go by `source_image_handles` and `source_state_handles`. Exported images
        and further results are appended to ``intermediate_images``, exported states to ``destination_states``.
        Temporary ones have a read count of 1; an exported result stands there too, with a read count of 2.
        """
        if type(command_buffer) not in COMMAND_BUFFERS:
            check_is_open(self.name, command_buffer)
        who = self._name or self.name
        states = state_list(who, source_states)
        receivers = (intermediate_images, destination_states)
        outputs, made = self._encode(command_buffer, image_list(who, source_images), states, receivers)
        if intermediate_images is not None:
            intermediate_images.extend(as_image(outputs[node]) for node in self._interface.intermediates)
        if destination_states is not None:
            destination_states.extend(batch[0] for batch in made)
        return as_image(outputs[self._interface.result]) if self.result_image_is_needed else None

    def encode_batch(
        self,
        command_buffer: CommandBuffer,
        source_images: Sequence[Sequence[MPSImage]],
        source_states: Sequence[Sequence[MPSState]] | None = None,
        intermediate_images: list[MPSImageBatch] | None = None,
        destination_states: list[MPSStateBatch] | None = None,
    ) -> MPSImageBatch | MaybeNone:
        """Record the graph for a batch of each source: ``source_images[i]`` is a whole batch; otherwise as `encode`."""
        if type(command_buffer) not in COMMAND_BUFFERS:
            check_is_open(self.name, command_buffer)
        who = self._name or self.name
        states = state_batch_list(who, source_states)
        receivers = (intermediate_images, destination_states)
        outputs, made = self._encode(command_buffer, batch_list(who, source_images), states, receivers)
        if intermediate_images is not None:
            intermediate_images.extend(as_images(outputs[node]) for node in self._interface.intermediates)
        if destination_states is not None:
            destination_states.extend(made)
        return as_images(outputs[self._interface.result]) if self.result_image_is_needed else None

    def execute_async(
        self, source_images: Sequence[MPSImage], completion_handler: CompletionHandler | None = None
    ) -> MPSImage | MaybeNone:
        """Run the graph on a queue of its own; ``completion_handler(image, error)`` is called when it is done.

        The handler may run on another thread and before this method returns. The result's contents are there when it
        is called; if the run fails, it gets None and the error. What it raises itself is logged. What is wrong
        with the arguments is raised here.
        """
        if completion_handler is not None and not callable(completion_handler):
            raise MPSTypeError(self.name, "completion_handler", "must be callable", type(completion_handler).__name__)
        if completion_handler is not None:
            accepts(self.name, "completion_handler", completion_handler, "image error")
        command_buffer = self._own_queue().command_buffer()
        result = self.encode(command_buffer, source_images)

        def finished(buffer: CommandBuffer) -> None:
            if completion_handler is not None:
                tell(self.name, completion_handler, None if buffer.error is not None else result, buffer.error)

        command_buffer.add_completed_handler(finished)
        command_buffer.commit()
        return result

    def trace(
        self, source_images: Sequence[object], source_states: Sequence[object] | None = None, *, fused: bool = False
    ) -> Trace:
        """Everything that an encode of these sources computes, by label. Our addition.

        ``source_images[i]`` is an image, a batch or an array ``[images, height, width, channels]``, as
        `MPSImageBatch.from_numpy` takes it; ``source_states[i]`` the labels of its images. All filters run one behind
        the other, so that results are there that fusions hide; ``fused`` True runs what an encode runs, and leaves them
        out. Nothing is updated, and masks are those of the next encode. Raises what an encode would.
        """
        who, fused = self.name, flag(self.name, "fused", fused)
        sources = traced_sources(who, self._device, source_images)
        states = traced_states(who, source_states)
        command_buffer = self._own_queue().command_buffer()
        check_sources(who, self._interface, command_buffer, sources, states)
        given = dict(zip(self._interface.input_states, states, strict=True))
        shapes = tuple([images.whole().shape for images in sources])
        program = self._program(shapes, {}, given, allow_fusion=fused)
        working, tracer = StagesStates(program, given), Tracer()
        if not fused:
            tracer.note_apart(self._program(shapes, {}, given).function.fused)
        self._stale_weights.warn()
        with without_steps(self._kernels.values()):
            bound = bindings(program, sources, working)
        command_buffer.record(f"{who} trace", lambda: tracer.run_program(program, bound, fused=fused))
        command_buffer.commit()
        command_buffer.wait_until_completed()
        return tracer.trace()

    def _own_queue(self) -> MTLCommandQueue:
        """The queue of runs that have no command buffer of the user's."""
        if self._queue is None:
            self._queue = self._device.new_command_queue()
        return self._queue

    def _encode(
        self,
        command_buffer: CommandBuffer,
        sources: Sequence[Images],
        states: Sequence[MPSStateBatch],
        receivers: tuple[object, object],
    ) -> tuple[dict[MPSNNImageNode, Images], list[MPSStateBatch]]:
        """Check everything, make what comes out, record the work and ask for updates."""
        interface, who = self._interface, self._name or self.name
        check_command_buffer(who, command_buffer, self._device)
        if receivers[0] is not None or receivers[1] is not None:
            for argument, receiver in zip(("intermediate_images", "destination_states"), receivers, strict=True):
                check_receiver(who, argument, receiver)
        counted = check_sources(who, interface, command_buffer, sources, states)
        if not self._kernels:
            count_reads(interface, sources, counted)
            return {}, []
        given = dict(zip(interface.input_states, states, strict=True))
        shapes: tuple[Shape, ...] = ()
        for images in sources:
            shapes += (images.whole().shape,)
        program = self._program(shapes, {}, given)
        allocators = interface.observed if receivers[0] is None else interface.allocators
        if interface.result_is_needed:
            allocators = {**allocators, interface.result: self.destination_image_allocator}
        outputs: dict[MPSNNImageNode, Images] = {}
        if allocators:
            single = isinstance(sources[0], MPSImage)
            outputs = make_outputs(self, command_buffer, program, allocators, single=single)
            formats = other_formats(program, outputs)
            program = self._program(shapes, formats, given) if formats else program
        made = self._record(command_buffer, program, sources, given, counted, outputs)
        return outputs, made

    def _record(
        self,
        command_buffer: CommandBuffer,
        program: Program,
        sources: Sequence[Images],
        given: dict[MPSNNStateNode, MPSStateBatch],
        counted: Sequence[Sequence[MPSState]],
        outputs: dict[MPSNNImageNode, Images],
    ) -> list[MPSStateBatch]:
        """Record the work with its updates; the states that come out."""
        interface, who = self._interface, self._name or self.name
        if type(command_buffer) not in COMMAND_BUFFERS:
            has_states = bool(given or interface.result_states)
            self._updates.check(command_buffer, who, program, has_states=has_states)
        self._stale_weights.warn()
        step = update = None
        treatment = self._updates.treatment(self.gradient_norm_limit, keeps=self.keeps_gradients)
        if not interface.result_states:
            step = self._updates.step(program, self._own_queue, self._sharing, given, treatment)
        if step is None and treatment != PLAIN:
            keeps = treatment.adds or not treatment.updates
            raise self._undeclared("keeps_gradients" if keeps else "gradient_norm_limit")
        working = StagesStates(program, given)
        made: list[MPSStateBatch] = []
        if step is not None:
            self._updates.encode_step(
                step, command_buffer, who, program, sources, working, outputs, self.stop_on_non_finite, treatment
            )
        else:
            temporary = self.output_state_is_temporary
            made = make_states(command_buffer, program, working, interface.result_states, temporary=temporary)
            update = self._updates.begin(program, working)
            bound = bindings(program, sources, working)
            ends = output_bindings(program, program.handed_out, outputs, working)
            command_buffer.record(who, encoding_of(program, bound, tuple(ends), checked=self.stop_on_non_finite))
        if interface.result in interface.allocators and interface.result_is_needed:
            outputs[interface.result].add_reads(1)
        count_reads(interface, sources, counted)
        if update is not None:
            update.encode(command_buffer, self._sharing)
        return made

    def _undeclared(self, argument: str) -> MPSArgumentError:
        """What to raise where something is to be done to gradients that data sources are asked about in each step."""
        rule = "must be left alone where data sources have updates of their own, or where states are exported"
        remedy = "Train with the package's data sources, as they are, on the device, and without exported states"
        return MPSArgumentError(self._name or self.name, argument, rule, getattr(self, argument), remedy)

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self._kernels)} kernels, {len(self._interface.inputs)} source image(s)>"

    def _repr_html_(self) -> str:
        return table(self._kernels, self._interface)
