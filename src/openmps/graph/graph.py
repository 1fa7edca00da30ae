"""MPSNNGraph: a network compiled from nodes (MPSNNGraph.h, macOS 10.13)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Self, overload

from openmps.checks import MaybeNone, NamedAttributes, Shown, accepts, flag, of_kind
from openmps.core.image.batch import MOST_IMAGES, MPSImageBatch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage, MPSImageAllocator
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.checks import check_command_buffer
from openmps.core.kernel.configuration import changes
from openmps.core.kernel.encode import ImageKernel
from openmps.core.lifetime import COMMAND_BUFFERS, check_is_open
from openmps.core.numbers import integer
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTrainingWarning, MPSTypeError
from openmps.graph.compile.compiler import Compiler, copy_kernels, make_kernels
from openmps.graph.compile.interface import Interface, Results
from openmps.graph.compile.passes import Network, check_gradients, check_listed, reachable, required
from openmps.graph.compile.program import Program
from openmps.graph.compile.sharing import Sharing
from openmps.graph.description import description, table
from openmps.graph.nodes.node import (
    MPSHandle,
    MPSNNFilterNode,
    MPSNNGradientFilterNode,
    MPSNNImageNode,
    MPSNNStateNode,
    checked_allocator,
    checked_format,
)
from openmps.graph.nodes.trainable import training_of
from openmps.graph.run.again import Again
from openmps.graph.run.encoding import (
    Formats,
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
    sinks,
    state_batch_list,
    state_list,
    tell,
    traced_sources,
    traced_states,
)
from openmps.graph.run.non_finite import encoding_of
from openmps.graph.run.stale_weights import StaleWeights
from openmps.graph.run.trace import Trace, Tracer, without_steps
from openmps.graph.run.update import Updates
from openmps.graph.run.working_set import working_set
from openmps.metal.device import CommandBuffer, MTLCommandQueue, MTLDevice
from openmps.metal.pending import unwritten
from openmps.ops import triton
from openmps.selectors import Factory, takes
from openmps.types import MPSImageFeatureChannelFormat

_NOTHING_TO_DO = (
    "there is nothing to do, so encodes return None: no result is needed, no image or state is exported, and no "
    "gradient node has a data source with an update(); set result_image_is_needed, or give it what it is to train"
)
_PROPERTIES = attrgetter("_configuration", "_padding", "_bound_to")
"""What the programs of a graph depend on of its kernels."""

CompletionHandler = Callable[[MPSImage | None, Exception | None], object]


class MPSNNGraph(MPSKernel, NamedAttributes):
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
    allow_fusion: bool = True
    """Let neighbouring filters run as one where numbers change by rounding at most; may be changed at any time.

    Default True. A batch normalization that is folded into the weights of a convolution takes new numbers as they take
    them: by its data source or by a reload, not by a write to its buffers.
    """
    allow_second_moments: bool = False
    """Let ends of residual blocks be computed from second moments where they are trained on a GPU. Our addition.

    A convolution of one pixel, ``z = W a + b``, normalized by its batch, with an image added and a rectifier behind:
    with the mean m and the covariance C of a, the mean of z is ``W m + b``, its variance ``diag(W C W^T)``. So
    normalization, addition and rectifier are done as z is computed, and neither z nor its gradient is ever stored.
    Numbers change by rounding: z is not rounded to the images' format, and the weights are once more, multiplied by
    what normalizes. A sum that is exactly 0 before the rectifier may pass no gradient, and the biases' gradient is 0
    instead of nearly so. Where the mean of a is k deviations, variances have about ``log2(1 + k^2)`` bits less.

    It is left as it is where z or its gradient is exported or read by another filter, where the statistics are those
    of several processes or are given, where weights have groups or read more than half as many channels as they make,
    where a batch has fewer than 128 pixels for each channel that is read, and where ``allow_fusion`` is False. May be
    changed at any time. Default False. A command buffer's ``explain`` names what is fused.
    """
    stop_on_non_finite: bool = False
    """Fail a run in which a loss, a gradient of weights or a result is NaN or infinite, before anything is updated.

    The error is an `MPSNonFiniteError` that names the first kernel, image and channel at fault. Default False.
    """

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
        network = reachable(results.nodes)
        filters, read = required(network.filters, results.wanted())
        if not filters:
            warnings.warn(f"{self.name}: {_NOTHING_TO_DO}", MPSTrainingWarning, stacklevel=2)
        self._assemble(network, filters, read, results)

    @classmethod
    def assembled(cls, device: MTLDevice, network: Network, results: Results) -> Self:
        """A graph that runs all filters of ``network``, in their order; for those who restore graphs from files."""
        check_listed(network)
        graph = cls.__new__(cls)
        MPSKernel.__init__(graph, device)
        read = {*results.wanted(), *(image for node in network.filters for image in node.sources)}
        graph._assemble(network, network.filters, read, results)
        return graph

    def _assemble(
        self, network: Network, filters: list[MPSNNFilterNode], read: set[MPSNNImageNode], results: Results
    ) -> None:
        check_gradients(filters)
        triton.try_ahead(self._device.torch_device)
        self._network = network
        self._sharing: Sharing | None = None
        self._interface = Interface(network, filters, results)
        self._use(make_kernels(filters, read, self._device))
        self._check_shapes: Callable[[Sequence[Shape]], None] = lambda shapes: None
        self._check_program: Callable[[Program], None] = lambda program: None
        self._format = MPSImageFeatureChannelFormat.FLOAT16
        self._allocator: MPSImageAllocator = MPSImage.default_allocator()

    def _use(self, kernels: dict[MPSNNFilterNode, ImageKernel]) -> None:
        self._kernels = kernels
        if self._sharing is not None:
            self._sharing.settle(kernels.values())
        self._updates = Updates(self._network.filters, kernels)
        self._stale_weights = StaleWeights(kernels.values())
        self._programs: dict[Any, Program] = {}
        self._changes = -1
        """How far the changes of kernels had come when these were looked at; see `core.kernel.configuration`."""
        self._properties: list[Any] = []
        self._again: Again | None = None
        """What the next encode may be like; none after one that must be checked each time."""
        self._last: tuple[Any, Program] | None = None
        """The program of the last encode and what it was found by; none while programs ask their user first."""
        self._settled: list[Any] = []
        taken = set(self._interface.input_states)
        self._state_readers = [
            (state, kernel) for node, kernel in kernels.items() for state in node.source_states if state in taken
        ]
        self._queue: MTLCommandQueue | None = None

    def _unshare(self) -> None:
        """Give a copy kernels of its own, over copies of the data sources if they offer some.

        The kernels' properties, weights and places in the sequence of masks are those of the original's now; queued
        work is not waited for.
        """
        self._use(copy_kernels(self._kernels, self._device))

    # --- properties ---------------------------------------------------------------------------------------------------

    @property
    def format(self) -> MPSImageFeatureChannelFormat:
        """How images are stored whose node does not say; may be changed at any time. Default: FLOAT16."""
        return self._format

    @format.setter
    def format(self, value: MPSImageFeatureChannelFormat) -> None:
        self._format = checked_format(self.name, value)

    @property
    def destination_image_allocator(self) -> MPSImageAllocator:
        """Makes the result image, whatever its node says. Default: ordinary images, which the CPU can read."""
        return self._allocator

    @destination_image_allocator.setter
    def destination_image_allocator(self, value: MPSImageAllocator) -> None:
        self._allocator = checked_allocator(self.name, "destination_image_allocator", value)

    @property
    def source_image_handles(self) -> list[MPSHandle]:
        """A handle for each source image, in the order in which `encode` takes them.

        That is the order in which a walk from the results, depth first, sources of a filter in argument order, meets
        them: the network's input before the labels of its loss. A node without a handle gets one of the graph's own.
        """
        return self._interface.handles(self._interface.inputs)

    @property
    def source_state_handles(self) -> list[MPSHandle] | None:
        """A handle for each source state, in the order in which `encode` takes them; None if there are none."""
        return self._interface.handles(self._interface.input_states) or None

    @property
    def intermediate_image_handles(self) -> list[MPSHandle]:
        """A handle for each image that an encode appends to ``intermediate_images``, in the same order.

        These are the exported images as they are made, then the results but the first.
        """
        return self._interface.handles(self._interface.intermediates)

    @property
    def result_state_handles(self) -> list[MPSHandle] | None:
        """A handle for each exported state, in the order in which they are made; None if there are none."""
        return self._interface.handles(self._interface.result_states) or None

    @property
    def result_handle(self) -> MPSHandle:
        """The handle of the result image."""
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
        return description(self.name, self._interface, self._kernels, self._format)

    interface = Shown[Interface](
        "_interface", "The image and state nodes that the graph shares with its user; for those who look inside."
    )

    sharing = Shown[Sharing | None](
        "_sharing", "How other processes share the batches, if they do; see `openmps.distributed`. Our addition."
    )

    def share_among(self, sharing: Sharing) -> None:
        """Encode a share of each batch from now on: gradients of parameters become the sums of all processes.

        `openmps.distributed.Group.share` calls it. Our addition.
        """
        self._updates.share_among(self.name, of_kind(self.name, "sharing", sharing, Sharing).shards)
        self._sharing = sharing
        sharing.settle(self._kernels.values())
        self._programs.clear()
        self._last = self._again = None

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
        states = state_list(self.name, source_states)
        receivers = (intermediate_images, destination_states)
        outputs, made = self._encode(command_buffer, image_list(self.name, source_images), states, receivers)
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
        out. Nothing is updated, and masks are those of the next encode.

        Raises what an encode would.
        """
        who, fused = self.name, flag(self.name, "fused", fused)
        sources = traced_sources(who, self._device, source_images)
        states = traced_states(who, source_states)
        command_buffer = self._own_queue().command_buffer()
        check_sources(who, self._interface, command_buffer, sources, states)
        given = dict(zip(self._interface.input_states, states, strict=True))
        shapes = tuple([images.whole().shape for images in sources])
        program = self._program(shapes, {}, given, allow_fusion=fused)
        working, tracer = StagesStates(program), Tracer()
        if not fused:
            tracer.note_apart(self._program(shapes, {}, given).function.fused)
        working.give(program, given)
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
        settings = (changes.number, self._format, self.allow_fusion, self.allow_second_moments)
        again = self._again
        is_asked_for_nothing = receivers[0] is None and receivers[1] is None
        if (
            again is not None
            and is_asked_for_nothing
            and not unwritten
            and again.is_like(settings, self._device, sources, states)
        ):
            return {}, self._record(command_buffer, again.program, sources, states, {}, are_counted=False)
        for argument, receiver in zip(("intermediate_images", "destination_states"), receivers, strict=True):
            if receiver is not None:
                check_receiver(who, argument, receiver)
        check_sources(who, interface, command_buffer, sources, states)
        if not self._kernels:
            count_reads(interface, sources, states)
            return {}, []
        given = dict(zip(interface.input_states, states, strict=True))
        shapes = tuple([images.whole().shape for images in sources])
        program = self._program(shapes, {}, given)
        allocators = {
            **(interface.observed if receivers[0] is None else interface.allocators),
            **({interface.result: self._allocator} if interface.result_is_needed else {}),
        }
        single = isinstance(sources[0], MPSImage)
        outputs = make_outputs(self, command_buffer, program, allocators, single=single)
        formats = other_formats(program, outputs) if outputs else {}
        program = self._program(shapes, formats, given) if formats else program
        self._again = None if outputs else Again.of(program, settings, self._device, sources, states)
        return outputs, self._record(command_buffer, program, sources, states, outputs)

    def _record(
        self,
        command_buffer: CommandBuffer,
        program: Program,
        sources: Sequence[Images],
        states: Sequence[MPSStateBatch],
        outputs: dict[MPSNNImageNode, Images],
        *,
        are_counted: bool = True,
    ) -> list[MPSStateBatch]:
        """Record the work and ask for updates; the states that come out."""
        interface, who = self._interface, self._name or self.name
        given = dict(zip(interface.input_states, states, strict=True))
        exported = interface.result_states
        self._stale_weights.warn()
        is_alone = exported or self.stop_on_non_finite or command_buffer.recording.executor.player is None
        lent = None if is_alone else working_set(program, command_buffer, self._updates, given)
        if lent is None:
            working = StagesStates(program)
            working.give(program, given)
            temporary = self.output_state_is_temporary
            made = make_states(command_buffer, program, working, exported, temporary=temporary) if exported else []
            update = self._updates.begin(program, working)
            bound = bindings(program, sources, working)
            ends = sinks(program, program.handed_out, outputs, working)
            encoding = encoding_of(program, bound, tuple(ends), checked=self.stop_on_non_finite)
        else:
            made, update, encoding = [], lent.update, lent.dispatch(program, sources, outputs)
        command_buffer.record(who, encoding)
        if interface.result in interface.allocators and interface.result_is_needed:
            outputs[interface.result].add_reads(1)
        if are_counted:
            count_reads(interface, sources, states)
        update.encode(command_buffer, self._sharing)
        if lent is not None:
            lent.end()
        return made

    # --- programs -----------------------------------------------------------------------------------------------------

    def program_for(
        self, image_descriptors: Sequence[MPSImageDescriptor], count: int = 1, *, allow_fusion: bool = True
    ) -> Program:
        """The plan for batches of ``count`` source images like these, a descriptor a source; for those who look inside.

        ``allow_fusion`` False gives a step to every filter, True fuses where the graph does. Raises what an encode of
        such images would; nothing is computed.
        """
        inputs = self._interface.inputs
        if len(image_descriptors) != len(inputs):
            rule = self._interface.count_rule(inputs)
            raise MPSArgumentError(self.name, "image_descriptors", rule, len(image_descriptors))
        integer(self.name, "count", count, 1, MOST_IMAGES)
        shapes: list[Shape] = []
        for descriptor in image_descriptors:
            of_kind(self.name, "image_descriptors", descriptor, MPSImageDescriptor).validate(self.name)
            extent = Extent(descriptor.width, descriptor.height, descriptor.feature_channels, count)
            shapes.append(Shape(extent, descriptor.channel_format))
        return self._program(tuple(shapes), {}, {}, allow_fusion=allow_fusion)

    def _program(
        self,
        shapes: tuple[Shape, ...],
        formats: Formats,
        states: Mapping[MPSNNStateNode, MPSStateBatch],
        *,
        allow_fusion: bool = True,
    ) -> Program:
        """The program for these source shapes and states; ``formats`` overrules what graph and nodes say on images."""
        fusing = allow_fusion and self.allow_fusion
        by_moments = fusing and self.allow_second_moments
        given = tuple([kernel.given(states[node]) for node, kernel in self._state_readers if node in states])
        key = (shapes, given, self._format, fusing, by_moments, tuple(formats.items()))
        if self._changes != changes.number:
            self._look_at_kernels()
        last = self._last
        if last is not None and last[0] == key:
            return last[1]
        program = self._programs.get(key)
        answers: dict[MPSNNFilterNode, Any] = {}
        if program is not None and program.questions:
            answers = {question.node: question.answer() for question in program.questions}
            key = (*key, tuple(answers.values()))
            program = self._programs.get(key)
        if program is not None and not all(each.holds() for each in program.policies):
            program = None
        if program is None:
            self._check_shapes(shapes)
            interface = self._interface
            chosen = {**interface.formats, **formats}
            compiler = Compiler(
                self._kernels,
                interface.inputs,
                shapes,
                self._format,
                self._device,
                chosen,
                states,
                answers,
                self._sharing,
            )
            wanted = interface.outputs(), interface.result_states
            program = compiler.compile(*wanted, allow_fusion=fusing, by_moments=by_moments)
            self._check_program(program)
            self._programs[key] = program
            self._look_at_kernels(planned=True)
        self._last = None if program.questions or program.policies else (key, program)
        return program

    def _look_at_kernels(self, *, planned: bool = False) -> None:
        """Forget the programs if a kernel has other properties than they were made with.

        To plan a program sets some: ``planned`` says that nothing else has.
        """
        self._changes, before = changes.number, self._properties
        self._properties = [*map(_PROPERTIES, self._kernels.values())]
        if self._properties == before:
            return
        settled = [(configuration.settled(), *others) for configuration, *others in self._properties]
        if not planned and settled != self._settled:
            self._programs.clear()
            self._last = self._again = None
        self._settled = settled

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self._kernels)} kernels, {len(self._interface.inputs)} source image(s)>"

    def _repr_html_(self) -> str:
        return table(self._kernels, self._interface)
