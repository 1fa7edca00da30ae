"""The programs of a graph: planned once for each set of source shapes, and again where kernels change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from openmps.checks import Checked, NamedAttributes, Shown, of_kind
from openmps.convention import Conventions, NotingConventions
from openmps.core.image.batch import MOST_IMAGES
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.storage import Extent, Shape
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.encode import ImageKernel
from openmps.core.numbers import integer
from openmps.core.padding.policy import preset_choice
from openmps.core.state.batch import MPSStateBatch
from openmps.errors import MPSArgumentError
from openmps.graph.compile.compiler import Compiler
from openmps.graph.compile.interface import Interface
from openmps.graph.compile.passes import Network
from openmps.graph.compile.program import Program
from openmps.graph.compile.sharing import Sharing
from openmps.graph.nodes.node import MPSNNFilterNode, MPSNNStateNode, checked_format
from openmps.graph.run.encoding import Formats
from openmps.graph.run.update import Updates
from openmps.metal.version import Version
from openmps.types import MPSImageFeatureChannelFormat

_PROPERTIES = attrgetter("_configuration", "_padding", "_bound_to")
"""What the programs of a graph depend on of its kernels."""

_FLOAT16 = MPSImageFeatureChannelFormat.FLOAT16
_OVERRULED = frozenset({"result_format", "secondary_offset"})
"""Conventions that kernels ask and graphs decide: how images are stored, and where gradients' windows lie."""


class PlannedGraph(MPSKernel, NamedAttributes):
    """The base of the graph: its kernels, and the programs that were planned of them."""

    allow_fusion: bool = True
    """Let neighbouring filters run as one where numbers change by rounding at most; may be changed at any time.

    Default True. A batch normalization that is folded into the weights of a convolution takes new numbers as they take
    them: by its data source or by a reload, not by a write to its buffers.
    """
    allow_second_moments: bool | None = None
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
    changed at any time. Default None: where images are of float16, whose rounding moves gradients many times as far;
    gradients of float32 images are 1.6 % off instead of 0.9 in the network that was measured, so there it has to be
    asked for. A command buffer's ``explain`` names what is fused.
    """

    _network: Network
    _interface: Interface
    _asked_when_made: frozenset[str] = frozenset()
    """The conventions on which the graph depends, whatever the shapes."""

    def _plan_for(self, network: Network, interface: Interface, kernels: dict[MPSNNFilterNode, ImageKernel]) -> None:
        """Begin with a network's kernels."""
        self._network, self._interface = network, interface
        self._sharing: Sharing | None = None
        self._use(kernels)
        self._check_shapes: Callable[[Sequence[Shape]], None] = lambda shapes: None
        self._check_program: Callable[[Program], None] = lambda program: None

    def _use(self, kernels: dict[MPSNNFilterNode, ImageKernel]) -> None:
        """Plan for these kernels from now on."""
        self._kernels = kernels
        if self._sharing is not None:
            self._sharing.prepare(kernels.values())
        self._updates = Updates(self._network.filters, kernels)
        self._programs: dict[Any, Program] = {}
        self._property_version = Version()
        for kernel in kernels.values():
            kernel.share_property_version(self._property_version)
        self._changes = -1
        """The version of the kernels' properties when these were looked at."""
        self._properties: list[Any] = []
        self._last: tuple[Any, Program] | None = None
        """The program of the last encode and what it was found by; none while programs ask their user first."""
        self._interned: list[Any] = []
        taken = set(self._interface.input_states)
        self._state_readers = [
            (state, kernel) for node, kernel in kernels.items() for state in node.source_states if state in taken
        ]

    format = Checked[MPSImageFeatureChannelFormat](
        MPSImageFeatureChannelFormat.FLOAT16,
        checked_format,
        "How images are stored whose node does not say; may be changed at any time. Default: FLOAT16.",
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
        sharing.prepare(self._kernels.values())
        self._programs.clear()
        self._last = None

    def program_for(
        self, image_descriptors: Sequence[MPSImageDescriptor], count: int = 1, *, allow_fusion: bool = True
    ) -> Program:
        """The plan for batches of ``count`` source images like these, a descriptor a source; for those who look inside.

        ``allow_fusion`` False gives a step to every filter, True fuses where the graph does. Raises what an encode of
        such images would; nothing is computed.
        """
        return self._program(self._shapes_of(image_descriptors, count), {}, {}, allow_fusion=allow_fusion)

    def conventions_asked(self, image_descriptors: Sequence[MPSImageDescriptor], count: int = 1) -> dict[str, str]:
        """What encodes of such images choose of the conventions on which they depend; otherwise as `program_for`.

        Presets of padding policies choose for themselves.
        """
        noting = NotingConventions(self.conventions)
        kernels = {node: kernel.noting(noting) for node, kernel in self._kernels.items()}
        self._compile(kernels, self._shapes_of(image_descriptors, count), {}, {}, {}, fusing=False, by_moments=False)
        asked = {*self._asked_when_made, *noting.asked} - _OVERRULED
        presets = [preset_choice(kernel.padding) for kernel in self._kernels.values()]
        return {**{name: self.conventions[name] for name in sorted(asked)}, **dict(filter(None, presets))}

    def program_in(
        self,
        channel_format: MPSImageFeatureChannelFormat,
        image_descriptors: Sequence[MPSImageDescriptor],
        count: int = 1,
        conventions: Conventions | None = None,
    ) -> Program:
        """The plan with all images in one format and a step for every filter; otherwise as `program_for`.

        ``conventions`` are those that the kernels follow, instead of the graph's own.
        """
        followed = self.conventions if conventions is None else conventions
        kernels = {node: kernel.noting(followed) for node, kernel in self._kernels.items()}
        formats = {node.result_image: channel_format for node in kernels}
        shapes = self._shapes_of(image_descriptors, count)
        return self._compile(kernels, shapes, formats, {}, {}, fusing=False, by_moments=False)

    def _shapes_of(self, image_descriptors: Sequence[MPSImageDescriptor], count: int) -> tuple[Shape, ...]:
        """The shapes of batches of ``count`` images, a descriptor a source."""
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
        return tuple(shapes)

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
        is_asked = self.allow_second_moments
        by_moments = fusing and (self.format is _FLOAT16 if is_asked is None else is_asked)
        given: tuple[Any, ...] = ()
        for node, kernel in self._state_readers:
            if node in states:
                given += (kernel.given(states[node]),)
        key = (shapes, given, self.format, fusing, by_moments, tuple(formats.items()))
        if self._changes != self._property_version.number:
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
            program = self._compile(
                self._kernels, shapes, formats, states, answers, fusing=fusing, by_moments=by_moments
            )
            self._check_program(program)
            self._programs[key] = program
            self._look_at_kernels(planned=True)
        self._last = None if program.questions or program.policies else (key, program)
        return program

    def _compile(
        self,
        kernels: dict[MPSNNFilterNode, ImageKernel],
        shapes: tuple[Shape, ...],
        formats: Formats,
        states: Mapping[MPSNNStateNode, MPSStateBatch],
        answers: dict[MPSNNFilterNode, Any],
        *,
        fusing: bool,
        by_moments: bool,
    ) -> Program:
        """A program of these kernels."""
        interface = self._interface
        compiler = Compiler(
            kernels,
            interface.inputs,
            shapes,
            self.format,
            self._device,
            {**interface.formats, **formats},
            states,
            answers,
            self._sharing,
        )
        wanted = interface.outputs(), interface.result_states
        return compiler.compile(*wanted, allow_fusion=fusing, by_moments=by_moments)

    def _look_at_kernels(self, *, planned: bool = False) -> None:
        """Forget the programs if a kernel has other properties than they were made with.

        To plan a program sets some: ``planned`` says that nothing else has.
        """
        self._changes, before = self._property_version.number, self._properties
        self._properties = [*map(_PROPERTIES, self._kernels.values())]
        if self._properties == before:
            return
        interned = [(configuration.interned(), *others) for configuration, *others in self._properties]
        if not planned and interned != self._interned:
            self._programs.clear()
            self._last = None
        self._interned = interned
