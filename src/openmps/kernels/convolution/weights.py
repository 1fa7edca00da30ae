"""The weights of a convolution on its device: one owner, converted once, updated in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakMethod

import torch
from torch import Tensor

from openmps.core.weight_versions import Fingerprint, Lineage, Part, fingerprint
from openmps.core.weight_versions import Held as HeldVersion
from openmps.errors import MPSArgumentError
from openmps.kernels.convolution.data_source import (
    WEIGHT_TYPES,
    LoadedWeights,
    MPSCNNConvolutionDataSource,
    load_weights,
)
from openmps.kernels.convolution.descriptor import MPSCNNConvolutionDescriptor
from openmps.kernels.convolution.state import MPSCNNConvolutionWeightsAndBiasesState
from openmps.metal.device import CommandBuffer, MTLBuffer, MTLDevice
from openmps.metal.pending import Region
from openmps.metal.version import Version
from openmps.ops.convolution.convolution import CopyNumbers, TakeWeights
from openmps.ops.convolution.fused_convolution import UNROUNDED, Unrounded
from openmps.runtime.binding import Binding, HeldTensor, Numbers, PersistentBinding
from openmps.runtime.derived import Dependents
from openmps.runtime.dispatch import bound_last, record_op
from openmps.runtime.step_trace import at_each_step, depends_on
from openmps.types import MPSDataType


class Use(NamedTuple):
    """Which numbers a function multiplies with, and as what they come."""

    rounded_unless: tuple[MPSDataType | None, ...]
    """The weights are rounded to float16 unless the data source calls for one of these precisions."""
    dtype: torch.dtype
    """Of rounded weights; others are float32."""


_OPEN_OR_FLOAT32 = (None, MPSDataType.FLOAT32)
USES = {
    "weights": Use(_OPEN_OR_FLOAT32, torch.float32),
    "weights as float16": Use(_OPEN_OR_FLOAT32, torch.float16),
    "rounded weights": Use((), torch.float32),
    "rounded weights as float16": Use((), torch.float16),
    "weights for float16": Use((MPSDataType.FLOAT32,), torch.float32),
    "weights for float16 as float16": Use((MPSDataType.FLOAT32,), torch.float16),
}
"""What functions call the weights that they multiply with."""
_AS_GIVEN = ("biases", "weights")
"""Inputs for which nothing is made from the weights, unless the data source calls for float16."""
_FLOAT16 = MPSDataType.FLOAT16
PART = Part.reloaded_by("the weights", "reload_weights_and_biases", "state")


def _fingerprint(loaded: LoadedWeights) -> Fingerprint:
    fold = loaded.descriptor.batch_normalization
    rows = () if fold is None else (fold.scale, fold.shift)
    return fingerprint(loaded.weights, loaded.biases, *rows)


def weights_name(weights_fp16: bool | None, *, of_float16_image: bool, as_float16: bool) -> str:
    """The name in `USES` for a kernel's switch, the format of the forward source, and the wish for float16 operands."""
    name = "rounded weights" if weights_fp16 else "weights"
    if weights_fp16 is None and of_float16_image:
        name = "weights for float16"
    return f"{name} as float16" if as_float16 else name


class Used(PersistentBinding):
    """What a function multiplies with or adds, as it is found when the function runs."""

    __slots__ = ("_versions", "find")

    value_stays = True

    def __init__(self, find: Callable[[], Any], versions: tuple[Version, ...]) -> None:
        super().__init__()
        self.find = find
        self._versions = versions

    def versions(self) -> tuple[Version, ...]:
        """See `PersistentBinding`."""
        return self._versions

    def value(self) -> Tensor | tuple[Tensor, ...] | None:
        """The weights, OHWI, or the biases, float32; or all that is rounded by now."""
        return self.find()

    def held(self) -> tuple[Tensor | None, ...]:
        """The tensors that are found; they stay the same while the data source's precision does."""
        found = self.find()
        return found if isinstance(found, tuple) else (found,)

    def regions(self) -> list[Region]:
        """The memory of what is found now."""
        found = self.find()
        return [Region(None, (), each) for each in ((found,) if isinstance(found, Tensor) else found or ())]


class _View:
    """Gives a buffer's float32 numbers in a shape, in the memory that it has now: a program may bind another."""

    __slots__ = ("_buffer", "_memory", "_shape", "_tensor")

    def __init__(self, buffer: MTLBuffer, shape: Sequence[int]) -> None:
        self._buffer, self._shape = buffer, tuple(shape)
        self._tensor = buffer.memory(torch.float32).view(self._shape)
        self._memory = buffer.present

    def __call__(self) -> Tensor:
        memory = self._buffer.present
        if memory is not self._memory:
            self._tensor, self._memory = self._buffer.memory(torch.float32).view(self._shape), memory
        return self._tensor


class ConvolutionWeights:
    """Float32 weights in OHWI and biases, in two buffers that stay the same objects for the kernel's life.

    The kernels of one graph that use one data source share one of these. What is multiplied with follows from them:
    batch normalization is folded in, then they are rounded to float16 where that is asked for. It is made again, in the
    same memory, when the weights change.
    """

    def __init__(self, device: MTLDevice, loaded: LoadedWeights, source: object = None) -> None:
        self.device = device
        self.held = HeldVersion(Lineage.of(source, PART), _fingerprint(loaded))
        """Which version of the data source's weights these are."""
        self.held.memory = WeakMethod(self.numbers)
        self.descriptor: MPSCNNConvolutionDescriptor = loaded.descriptor
        self.shape = loaded.descriptor.weight_shape()
        outputs, rows, columns, inputs = self.shape
        self.counts = (outputs * rows * columns * inputs, outputs)
        """How many weights there are, and how many biases, there or not."""
        self.precision = loaded.precision
        """FLOAT16 or FLOAT32 where the data source says what to multiply with, else None."""
        self.weights_buffer = device.new_buffer(data=loaded.weights)
        self.biases_buffer: MTLBuffer | None = None if loaded.biases is None else device.new_buffer(data=loaded.biases)
        self._raw_weights = _View(self.weights_buffer, self.shape)
        self._raw_biases = None if self.biases_buffer is None else _View(self.biases_buffer, (-1,))
        self._rounded: dict[torch.dtype, Tensor] = {}
        self._is_derived = loaded.descriptor.batch_normalization is not None or loaded.precision is _FLOAT16
        """Whether numbers that follow from the weights may be held, here or by the time that queued work has run."""
        self._version = Version()
        """Another one where reloads record other work from now on."""
        self._state: MPSCNNConvolutionWeightsAndBiasesState | None = None
        self.dependents = Dependents()
        """What follows from the weights besides."""
        self._fold: tuple[Tensor, Tensor] | None = None
        self._folded: tuple[Tensor, Tensor] | None = None
        """The weights and biases with the batch normalization in them, if there is one."""
        fold = loaded.descriptor.batch_normalization
        if fold is not None:
            scale, shift = (torch.from_numpy(row.copy()).to(device.torch_device) for row in (fold.scale, fold.shift))
            self._fold = scale, shift
            self._folded = torch.empty_like(self._raw_weights()), torch.empty_like(shift)
        self._choice = Version()
        """Another one where functions multiply with other numbers in memory: of another precision, or rounded ones."""
        buffers = [each for each in (self.weights_buffer, self.biases_buffer) if each is not None]
        self._versions = (self._choice, *[version for each in buffers for version in each.versions()])
        self._roundings = Used(partial(tuple, self._rounded.values()), self._versions)
        views = self._raw_weights, self._raw_biases
        raw = [HeldTensor(None) if view is None else Used(view, self._versions) for view in views]
        derived = (*(self._fold or (None, None)), *(self._folded or (None, None)))
        self._parts: list[Binding] = [*raw, *map(HeldTensor, derived), self._roundings]
        self._prepare()

    @classmethod
    def load(
        cls,
        who: str,
        device: MTLDevice,
        source: MPSCNNConvolutionDataSource,
        kinds: tuple[MPSDataType, ...] = WEIGHT_TYPES,
    ) -> ConvolutionWeights:
        """Read a data source, whose weights must be of one of some types."""
        return cls(device, load_weights(who, source, kinds), source)

    def copy(self, device: MTLDevice, source: object) -> ConvolutionWeights:
        """The numbers as they are now, in buffers of their own on ``device``; queued work is not waited for.

        ``source`` is the data source of the copy.
        """
        biases = None if self._raw_biases is None else self._raw_biases().cpu().numpy()
        weights = self._raw_weights().cpu().numpy()
        twin = ConvolutionWeights(device, LoadedWeights(self.descriptor.copy(), weights, biases, self.precision))
        twin.held = self.held.copied(source)
        twin.held.memory = WeakMethod(twin.numbers)
        return twin

    def reload(
        self, who: str, source: MPSCNNConvolutionDataSource, kinds: tuple[MPSDataType, ...] = WEIGHT_TYPES
    ) -> None:
        """Read the data source again, at once and in place, with what is folded in; shapes must not have changed."""
        loaded = load_weights(who, source, kinds)
        fold = loaded.descriptor.batch_normalization
        if (fold is None) != (self._fold is None):
            rule = "must fold a batch normalization, as before" if fold is None else "must fold no batch normalization"
            remedy = "Make a new kernel of the data source"
            raise MPSArgumentError(who, "data source", rule, "a descriptor of the other kind", remedy)
        if loaded.descriptor.weight_shape() != self.shape or (loaded.biases is None) != (self._raw_biases is None):
            rule = f"must keep the weights' shape {self.shape} and its biases"
            got = f"{loaded.descriptor.weight_shape()}"
            raise MPSArgumentError(who, "data source", rule, got, "Make a new kernel for new shapes")
        self.held.read(_fingerprint(loaded), lambda: not self.equal(loaded))
        self.precision = loaded.precision
        self._choice.advance()
        if loaded.precision is _FLOAT16:
            self._note_derived()
        self.descriptor = loaded.descriptor
        if self._fold is not None and fold is not None:
            for mine, given in zip(self._fold, (fold.scale, fold.shift), strict=True):
                mine.copy_(torch.from_numpy(given.copy()))
        biases = None if loaded.biases is None else torch.from_numpy(loaded.biases)
        self._prepare(torch.from_numpy(loaded.weights).view(-1), biases)
        self.dependents.contents.advance()

    def numbers(self) -> list[Binding]:
        """Where the numbers that the data source gave are in memory."""
        buffers = [each for each in (self.weights_buffer, self.biases_buffer) if each is not None]
        return [*map(Numbers, buffers), *map(HeldTensor, self._fold or ())]

    def equal(self, loaded: LoadedWeights) -> bool:
        """Whether these are the numbers that a data source gave. Reads them; queued work is not waited for."""
        fold = loaded.descriptor.batch_normalization
        biases = None if self._raw_biases is None else self._raw_biases()
        mine = (self._raw_weights(), biases, *(self._fold or (None, None)))
        given = (
            loaded.weights,
            loaded.biases,
            *((None, None) if fold is None else (fold.scale.copy(), fold.shift.copy())),
        )
        return all(
            values is array is None
            or (values is not None and array is not None and torch.equal(values.cpu(), torch.from_numpy(array)))
            for values, array in zip(mine, given, strict=True)
        )

    def state(self) -> MPSCNNConvolutionWeightsAndBiasesState:
        """The state over the kernel's own buffers: no copy, so it changes with them; the same object each time."""
        if self._state is None:
            own = MPSCNNConvolutionWeightsAndBiasesState(weights=self.weights_buffer, biases=self.biases_buffer)
            if self._folded is None:
                own.rounded_weights = self._roundings
            self._state = own
        return self._state

    def empty_state(self, command_buffer: CommandBuffer | None) -> MPSCNNConvolutionWeightsAndBiasesState:
        """A state over new buffers for as many numbers; it lives on ``command_buffer`` if one is given."""

        def like(buffer: MTLBuffer) -> MTLBuffer:
            if command_buffer is not None:
                return command_buffer.temporary_buffer(buffer.length)
            return self.device.new_buffer(length=buffer.length)

        biases = None if self.biases_buffer is None else like(self.biases_buffer)
        state = MPSCNNConvolutionWeightsAndBiasesState(weights=like(self.weights_buffer), biases=biases)
        if command_buffer is not None:
            state.make_temporary(command_buffer)
        return state

    def reload_from(
        self, who: str, command_buffer: CommandBuffer, state: MPSCNNConvolutionWeightsAndBiasesState
    ) -> None:
        """Record that the numbers of a state are taken, unless they are held already and nothing follows from them.

        Nor is it made again where what was recorded last writes it, as an update of the kernel's own state does. Raises
        if the state holds too few.
        """
        depends_on(command_buffer, self._version)
        given = state.weights
        at_each_step(command_buffer, self.held.take, given)
        if state is self._state:
            if self._is_derived and self._roundings not in bound_last(command_buffer):
                record_op(
                    command_buffer, f"{who} reload", TakeWeights(), [HeldTensor(None), HeldTensor(None), *self._parts]
                )
            self.dependents.record(command_buffer, f"{who} derived")
            return
        weights, biases = self.counts
        state.check_holds(who, "state.", 4 * weights, 4 * biases if self.biases_buffer is not None else 0)
        operands: list[Binding] = [HeldTensor(None), HeldTensor(None)]
        if given is not self.weights_buffer:
            operands[0] = Numbers(given, state.weights_offset, weights)
        added = state.biases
        if self.biases_buffer is not None and added is not None and added is not self.biases_buffer:
            operands[1] = Numbers(added, state.biases_offset, biases)
        record_op(command_buffer, f"{who} reload", TakeWeights(), operands + self._parts)
        self.dependents.record(command_buffer, f"{who} derived")

    def export_to(self, who: str, command_buffer: CommandBuffer, state: MPSCNNConvolutionWeightsAndBiasesState) -> None:
        """Record that the numbers are copied into a state made by `empty_state`."""
        operands: list[Binding] = [Numbers(state.weights), Numbers(self.weights_buffer)]
        if self.biases_buffer is not None and state.biases is not None:
            operands += [Numbers(state.biases), Numbers(self.biases_buffer)]
        record_op(command_buffer, f"{who} export", CopyNumbers(), operands)

    def bound(self, name: str) -> Used:
        """What an input of a function is bound to: one of `USES`, `UNROUNDED` too, or ``biases``."""
        if name.endswith(UNROUNDED):
            return Used(partial(self._unrounded, name.removesuffix(UNROUNDED)), self._versions)
        # Not kept: what holds itself goes only when the collector comes, and its version of the weights with it.
        if name not in _AS_GIVEN:
            self._note_derived()
        return Used((lambda: self.biases) if name == "biases" else partial(self.used, name), self._versions)

    def _note_derived(self) -> None:
        """Numbers that follow from the weights are held from now on."""
        if not self._is_derived:
            self._is_derived = True
            self._version.advance()

    @property
    def weights(self) -> Tensor:
        """What is multiplied with, OHWI: float32 in memory, whatever the precision that the data source calls for."""
        return self.used("weights")

    @property
    def biases(self) -> Tensor | None:
        """What is added, float32."""
        if self._folded is not None:
            return self._folded[1]
        return None if self._raw_biases is None else self._raw_biases()

    @property
    def _single(self) -> Tensor:
        """What is multiplied with before rounding."""
        return self._raw_weights() if self._folded is None else self._folded[0]

    @property
    def has_biases(self) -> bool:
        """Whether anything is added."""
        return self.biases is not None

    def used(self, name: str) -> Tensor:
        """What is multiplied with by a function that calls it so; see `USES`."""
        use = USES[name]
        if self.precision in use.rounded_unless:
            return self._single
        made = self._rounded.get(use.dtype)
        if made is None:
            self._note_derived()
            made = self._rounded[use.dtype] = self._single.to(torch.float16).to(use.dtype)
            self._choice.advance()
        return made

    def _unrounded(self, name: str) -> Unrounded:
        use = USES[name]
        if use.dtype == torch.float16 and self.precision not in use.rounded_unless:
            return Unrounded(self._single, torch.float16)
        return Unrounded(self.used(name), torch.float32)

    def _prepare(self, weights: Tensor | None = None, biases: Tensor | None = None) -> None:
        """Take numbers and make again what follows from them, at once."""
        TakeWeights().run((), weights, biases, *(part.value() for part in self._parts))
