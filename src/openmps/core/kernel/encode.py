"""The encode path of kernels with source images: check, plan, allocate, record, count down.

A kernel file says what it computes (`_lower`), which channels it makes and which state it leaves; this file owns
offsets, clip rectangles, channel slices, batches, formats, allocation, read counts and the command buffer. What an
encode computes is planned from the kernel's configuration and from shapes, once; an encode looks the plan up, binds
its inputs and outputs, and records. (MPSKernel.h, MPSCNNKernel.h, macOS 10.13.)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

from openmps.checks import flag, store
from openmps.core.image.allocator import ORDINARY, TEMPORARY
from openmps.core.image.batch import MPSImageBatch, TemporaryTemplate, as_batch
from openmps.core.image.descriptor import MPSImageDescriptor
from openmps.core.image.image import MPSImage
from openmps.core.image.pixels import Pixels
from openmps.core.image.storage import Shape, Stack
from openmps.core.kernel.arguments import single, states_of
from openmps.core.kernel.checks import (
    Images,
    check_apart,
    check_command_buffer,
    check_destination,
    check_result_states,
    check_sources,
    check_states,
)
from openmps.core.kernel.lowering_context import RESULT, SAVED
from openmps.core.kernel.plan import Plan, Sized
from openmps.core.kernel.planning import PlannedKernel, descriptor_of
from openmps.core.lifetime import COMMAND_BUFFERS, check_is_open
from openmps.core.state.batch import MPSStateBatch
from openmps.core.state.gradient import MPSNNGradientState, attach
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.metal.device import CommandBuffer
from openmps.metal.pending import unwritten
from openmps.metal.version import Version
from openmps.ops.op import Role
from openmps.runtime.binding import Binding, new_number
from openmps.runtime.step_trace import check_numbers, check_reusable, depends_on

_NUMBER, _BUFFER = Role.NUMBER, Role.BUFFER  # attributes of an enumeration cost a call, and each encode compares
_RESULT_ALONE = (RESULT,)
_SUGGESTED = MPSState.destination_image_descriptor


class ImageKernel(PlannedKernel):
    """What kernels with one, two or many source images have in common: how they are encoded.

    Its hooks, those under "encoding", run at each encode; those of `PlannedKernel` run on a draft.
    """

    _gradient_state_class: type[MPSNNGradientState] | None = None

    def __init_subclass__(cls, *, leaves: type[MPSNNGradientState] | None = None) -> None:
        super().__init_subclass__()
        if leaves is not None:
            cls._gradient_state_class = leaves

    _in_place = False
    _bound_to: object = None
    """What the buffers of its functions stay bound to until this is another object; None where encodes differ."""

    def buffer_versions(self) -> Sequence[Version] | None:
        """Of what decides on the memory of its functions' buffers; None where that is another one in each encode.

        For those who schedule kernels. Where `_bound_to` is something, it decides.
        """
        return None if self._bound_to is None else ()

    def _remedy_apart(self) -> str:
        """What to do where the destination is a source."""
        return "Encode into another image"

    def parameter_versions(self) -> Sequence[Version]:
        """Of parameters that get other memory where they are replaced, so that recorded work keeps those before."""
        return ()

    fills_states: ClassVar[bool] = False
    """Whether states are to take note of what a graph has this kernel put into them; see `fill`."""

    # --- encoding: hooks that a kernel file fills in ------------------------------------------------------------------

    def _begin(self, plan: Plan, source_states: MPSStateBatch | None, destination_states: MPSStateBatch | None) -> None:
        """Called when everything was checked, before the encode is recorded: states may take note of it."""

    def _output_binding(self, name: str, states: MPSStateBatch | None) -> Binding:
        """Where the output that the function calls ``name`` goes."""
        raise MPSTypeError(self.name, name, "is taken by no kernel", None, "This is a defect of the kernel")

    # --- the forms of encode: what kernels with so many sources share ------------------------------------------------

    def _single(
        self,
        command_buffer: CommandBuffer,
        sources: Sequence[object],
        destination: object = None,
        states: object = None,
        make_state: bool | None = None,
        source_states: MPSStateBatch | None = None,
        asked: Hashable = None,
    ) -> Any:
        """Encode one image object of each source; with ``make_state`` the result and its state, else the result.

        ``asked`` is what the encode's own arguments say about the result, for plans that are given no states.
        """
        who = self._name or self.name
        if type(command_buffer) not in COMMAND_BUFFERS:
            check_is_open(who, command_buffer)
        given = None if destination is None else single(who, self._destination_argument, destination)
        made, left = self._run(
            command_buffer,
            tuple(
                [
                    image if isinstance(image, MPSImage) else single(who, name, image)
                    for name, image in zip(self._source_arguments, sources, strict=True)
                ]
            ),
            given,
            source_states=source_states,
            destination_states=None if states is None else states_of(who, "destination_state", states),
            make_state=make_state,
            asked=asked,
        )
        if make_state is None:
            return made
        return made, left[0] if left is not None else None

    def _batched(
        self,
        command_buffer: CommandBuffer,
        sources: Sequence[object],
        destinations: object = None,
        states: object = None,
        make_state: bool | None = None,
        source_states: MPSStateBatch | None = None,
        asked: Hashable = None,
    ) -> Any:
        """Encode one batch of each source, as one operation; otherwise as `_single`."""
        if type(command_buffer) not in COMMAND_BUFFERS:
            check_is_open(self.name, command_buffer)
        given = destinations
        if given is not None and not isinstance(given, MPSImageBatch):
            given = self._as_batch(self._destination_argument, given)
        made, left = self._run(
            command_buffer,
            tuple(
                [
                    images if isinstance(images, MPSImageBatch) else self._as_batch(name, images)
                    for name, images in zip(self._source_arguments, sources, strict=True)
                ]
            ),
            given,
            source_states=source_states,
            destination_states=None if states is None else states_of(self.name, "destination_states", states),
            make_state=make_state,
            asked=asked,
        )
        return made if make_state is None else (made, left)

    def _as_batch(self, name: str, images: object) -> MPSImageBatch:
        return as_batch(self.name, name if name.endswith("]") else f"{name}s", images)

    def _single_states(
        self,
        command_buffer: CommandBuffer | None,
        sources: Sequence[object],
        source_states: object,
        destination: object,
    ) -> MPSState | None:
        """The state for an encode of one image object of each source."""
        who = self.name
        states = self._result_states(
            command_buffer,
            tuple(single(who, name, image) for name, image in zip(self._source_arguments, sources, strict=True)),
            states_of(who, "source_states", source_states),
            None if destination is None else single(who, self._destination_argument, destination),
        )
        return states[0] if states is not None else None

    def _batch_states(
        self, command_buffer: CommandBuffer | None, sources: Sequence[object], destination: object
    ) -> MPSStateBatch | None:
        """The states for an encode of one batch of each source."""
        who = self.name
        batches = tuple(as_batch(who, name, each) for name, each in zip(self._source_arguments, sources, strict=True))
        given = None if destination is None else as_batch(who, self._destination_argument, destination)
        return self._result_states(command_buffer, batches, None, given)

    # --- step 3 to 5: allocate, record, count down -------------------------------------------------------------------

    def _run(
        self,
        command_buffer: CommandBuffer,
        sources: tuple[Images, ...],
        destination: Images | None,
        *,
        source_states: MPSStateBatch | None = None,
        destination_states: MPSStateBatch | None = None,
        make_state: bool | None = None,
        asked: Hashable = None,
        is_in_place: bool = False,
    ) -> tuple[Images, MPSStateBatch | None]:
        """The encode path. ``make_state`` True or False asks for a temporary or a permanent result state.

        ``is_in_place`` says that the destination is a source, on purpose: it keeps its reads.
        """
        if make_state is not None and make_state is not True and make_state is not False:
            make_state = flag(self.name, "destination_state_is_temporary", make_state)
        if make_state is not None and destination_states is not None:
            rule = "asks for a new state, but destination states were given"
            raise MPSTypeError(self.name, "destination_state_is_temporary", rule, make_state, "Give one of the two")
        self._check_operands(command_buffer, sources, destination, source_states, destination_states)
        given = asked if source_states is None else self._given(source_states)
        inputs = tuple([images.whole() for images in sources])
        shapes = tuple([stack.shape for stack in inputs])
        is_batch = not isinstance(sources[0], MPSImage)
        if destination is None:
            destination, plan = self._allocate(command_buffer, sources, shapes, given, source_states)
            output = destination.whole()
        else:
            output = destination.whole()
            configuration = self._configuration if self._configuration.is_interned else self._interned_configuration()
            plan = self._plan_with(configuration, shapes, output.shape, given, is_batch=is_batch)
        if not plan.reads_all_images and not is_batch:
            inputs = tuple(
                _part(each, first, plan.images) for each, first in zip(sources, plan.first_images, strict=True)
            )
            output = _part(destination, plan.first_destination_image, plan.images * self._results_per_image)
        if len(output.parts) != 1:
            check_apart(self.name, self._destination_argument, output)
        for stack in () if self._in_place or is_in_place else inputs:
            if output.overlaps(stack):
                rule, got = "must not share memory with a source", "an image that is both"
                raise MPSArgumentError(self.name, self._destination_argument, rule, got, self._remedy_apart())
        if make_state is not None:
            # The states take their record from this plan, when they are attached to it.
            destination_states = self._new_states(command_buffer if make_state else None, sources[0], shapes[0])
        self._record(command_buffer, plan, inputs, output, source_states, destination_states)
        for images in sources:
            if not is_in_place or images is not destination:
                images.count_read()
        if source_states is not None:
            for state in source_states.counted():
                state.count_read()
        return destination, destination_states

    def _record(
        self,
        command_buffer: CommandBuffer,
        plan: Plan,
        inputs: tuple[Stack, ...],
        output: Stack | None,
        source_states: MPSStateBatch | None,
        destination_states: MPSStateBatch | None,
    ) -> None:
        """Bind the plan's function and record it."""
        if unwritten:
            self._require_written(plan, inputs, source_states)
        if type(command_buffer) not in COMMAND_BUFFERS:
            check_numbers(command_buffer, self.name, plan.function)
            if source_states is not None or destination_states is not None:
                check_reusable(command_buffer, self.name, "an encode with states, each of which belongs to one encode")
            for version in self.parameter_versions():
                depends_on(command_buffer, version)
        self._begin(plan, source_states, destination_states)
        saved = None
        if destination_states is not None and len(destination_states):
            saved = attach(destination_states, plan.record)
        function = plan.bare if saved is None else plan.function
        output_bindings: tuple[Binding, ...]
        if function.outputs == _RESULT_ALONE and output is not None:  # as of most kernels
            output_bindings = (Pixels(output, plan.target),)
        else:
            others = iter(self.output_bindings(plan.others, source_states) if plan.others else ())
            output_bindings = tuple([
                Pixels(output, plan.target) if name == RESULT and output is not None
                else saved if name == SAVED and saved is not None
                else next(others)
                for name in function.outputs
            ])  # fmt: skip
        self._dispatch(command_buffer, plan, function, inputs, output_bindings, source_states)

    def given(self, states: MPSStateBatch | None) -> Hashable:
        """What a plan depends on of states; for those who schedule kernels."""
        return None if states is None else self._given(states)

    def bound(self, role: Role, name: str, plan: Plan, states: MPSStateBatch | None) -> Binding:
        """What a number, a buffer or a constant of a plan's function is bound to; for those who schedule kernels."""
        if role is _NUMBER:
            return new_number((self._number(name, states),))
        if role is _BUFFER:
            return self._memory(name, states)
        return plan.constants[int(name)].on(self._device.torch_device)

    def output_bindings(self, names: Sequence[str], states: MPSStateBatch | None) -> Sequence[Binding]:
        """Where outputs of a plan's function go that are neither image nor saved; for those who schedule kernels."""
        return [self._output_binding(name, states) for name in names]

    def fill(self, plan: Plan, states: MPSStateBatch) -> None:
        """Have states take note that a graph fills them in as this kernel would; for those who schedule kernels."""

    def _check_operands(
        self,
        command_buffer: CommandBuffer,
        sources: tuple[Images, ...],
        destination: Images | None,
        source_states: MPSStateBatch | None,
        destination_states: MPSStateBatch | None,
    ) -> None:
        """Everything that can be wrong with the objects of an encode, whatever the kernel computes."""
        who = self._name or self.name
        check_command_buffer(who, command_buffer, self._device)
        check_sources(who, self._source_arguments, sources, command_buffer)
        if destination is not None:
            count = self._results_per_image
            check_destination(who, self._destination_argument, destination, sources[0], command_buffer, count)
        if source_states is not None:
            self._check_source_states(source_states, sources[0], command_buffer)
        if destination_states is not None:
            check_result_states(who, destination_states, self._gradient_state_class, sources[0], command_buffer)

    def _check_source_states(self, states: MPSStateBatch, images: Images, command_buffer: CommandBuffer) -> None:
        check_states(self.name, "source_states", states, images, command_buffer)

    def _allocate(
        self,
        command_buffer: CommandBuffer,
        sources: tuple[Images, ...],
        shapes: tuple[Shape, ...],
        given: Hashable,
        states: MPSStateBatch | None,
    ) -> tuple[Images, Plan]:
        """The result of an encode without a destination, and the plan that the encode goes on with."""
        first = sources[0]
        is_batch = isinstance(first, MPSImageBatch)
        if type(self).destination_image_descriptor is not _SIZES:
            specimens = _specimens(sources)
            descriptor = self.destination_image_descriptor(specimens, states.counted() if states is not None else [])
            if is_batch:
                descriptor.number_of_images //= self._results_per_image
            destination = self._by_allocator(command_buffer, first, descriptor)
            shape = destination.whole().shape
            return destination, self._plan_with(self._interned_configuration(), shapes, shape, given, is_batch=is_batch)
        sized = self._sized_for(shapes, given, is_batch=is_batch)
        are_states_asked = states is not None and _size_results(states)
        if sized.is_custom and not are_states_asked and not self.asks_a_policy:
            sized = self._placed_for(sized, sources, (shapes, given, self._padding, is_batch))
        is_custom = sized.is_custom or are_states_asked
        if sized.images_each == 1 and self._allocator is TEMPORARY and not is_custom:
            template = sized.template
            if template is None or template.device is not self._device:
                count = sized.shape.extent.images
                template = sized.template = TemporaryTemplate(self._device, descriptor_of(sized), count)
            plan = sized.plan
            if plan is None:
                plan = self._plan_with(sized.configuration, shapes, template.shape, given, is_batch=is_batch)
                sized.plan = plan
            return template.on(command_buffer) if is_batch else template.image_on(command_buffer), plan
        descriptor, configuration = descriptor_of(sized), sized.configuration
        if is_custom:
            descriptor = self._custom(descriptor, _specimens(sources), states.counted() if states is not None else [])
            configuration = self._interned_configuration()
        before = self._configuration
        destination = self._by_allocator(command_buffer, first, descriptor)
        if self._allocator not in (ORDINARY, TEMPORARY) and self._configuration is not before:
            configuration = self._interned_configuration()  # it was given the kernel, and has changed it
        return destination, self._plan_with(configuration, shapes, destination.whole().shape, given, is_batch=is_batch)

    def _placed_for(self, sized: Sized, sources: tuple[Images, ...], key: Hashable) -> Sized:
        """The result as a custom policy of the package says, which says the same each time: it is asked once."""
        found: Sized | None = sized.configuration.plans.get(key)
        if found is None:
            descriptor = self._custom(descriptor_of(sized), _specimens(sources), [])
            extent = sized.shape.extent._replace(width=descriptor.width, height=descriptor.height)
            shape, placed = sized.shape._replace(extent=extent), self._interned_configuration()
            found = sized.configuration.keep(key, Sized(shape, sized.images_each, placed, is_custom=False))
        store(self, "_configuration", found.configuration)
        return found

    def _by_allocator(self, command_buffer: CommandBuffer, first: Images, descriptor: MPSImageDescriptor) -> Images:
        argument = "destination_image_allocator"
        if isinstance(first, MPSImage):
            return single(self.name, argument, self._allocator.image(command_buffer, descriptor, self))
        count = len(first) * self._results_per_image
        make_batch = getattr(self._allocator, "image_batch", None)
        if make_batch is not None:
            made = make_batch(command_buffer, descriptor, self, count)
        else:
            made = [self._allocator.image(command_buffer, descriptor, self) for _ in range(count)]
        batch = as_batch(self.name, argument, made)
        if len(batch) != count:
            raise MPSArgumentError(self.name, argument, f"must make {count} image(s)", f"{len(batch)} image(s)")
        return batch

    # --- result states -----------------------------------------------------------------------------------------------

    def _result_states(
        self,
        command_buffer: CommandBuffer | None,
        sources: tuple[Images, ...],
        source_states: MPSStateBatch | None,
        destination: Images | None,
    ) -> MPSStateBatch | None:
        """The states of one encode: temporary if a command buffer is given; None if the kernel leaves none."""
        if command_buffer is not None:
            check_command_buffer(self.name, command_buffer, self._device)
        shapes = tuple(images.whole().shape for images in sources)
        states = self._new_states(command_buffer, sources[0], shapes[0])
        if states is None or destination is None:
            return states
        given = None if source_states is None else self._given(source_states)
        is_batch = isinstance(sources[0], MPSImageBatch)
        plan = self.plan(shapes, destination.whole().shape, given, is_batch=is_batch)
        attach(states, plan.record)
        return states

    def _new_states(self, command_buffer: CommandBuffer | None, first: Images, shape: Shape) -> MPSStateBatch | None:
        """States without a record, for sources like ``first``."""
        state = self.make_state()
        if state is None:
            return None
        store(state, "source_extent", shape.extent)
        count = shape.extent.images if isinstance(first, MPSImageBatch) else None
        if count is not None and not self.is_result_state_reused_across_batch():
            return MPSStateBatch.of_images(state, count, command_buffer)
        if command_buffer is not None:
            state.make_temporary(command_buffer)
        return MPSStateBatch([state]) if count is None else MPSStateBatch.repeated(state, count)

    def make_state(self) -> MPSNNGradientState | None:
        """A new gradient state of this kernel; None if it leaves none."""
        return None if self._gradient_state_class is None else self._gradient_state_class(self._device)


_SIZES = ImageKernel.destination_image_descriptor
"""A subclass that has its own is asked at each encode."""


def _specimens(sources: tuple[Images, ...]) -> list[MPSImage]:
    return [images if isinstance(images, MPSImage) else images.representative() for images in sources]


def _size_results(states: MPSStateBatch) -> bool:
    """Whether one of the states has a say of its own on the size of results."""
    if states.shared is not None:
        return type(states.shared).destination_image_descriptor is not _SUGGESTED
    return any(type(state).destination_image_descriptor is not _SUGGESTED for state in states.counted())


def _part(images: Images, first: int, count: int) -> Stack:
    return images.stack(first, count) if isinstance(images, MPSImage) else images.stack()
