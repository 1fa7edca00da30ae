"""Batch normalization of whole batches: what the graph's nodes run (MPSNNGraphNodes.h, macOS 10.13.4).

A graph has the whole batch at once, so that statistics and normalization are one function, and so are both gradients.
The numbers that the images were normalized with go from the one to the other by the state. The operations are those of
the four kernels that are encoded by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import ClassVar

from openmps.checks import store
from openmps.core.image.storage import Extent
from openmps.core.kernel.base import MPSKernel
from openmps.core.kernel.configuration import Setting
from openmps.core.kernel.lowering_context import GradientLoweringContext, LoweringContext
from openmps.core.kernel.plan import Plan
from openmps.core.neuron import MPSNNNeuronDescriptor
from openmps.core.state.batch import MPSStateBatch
from openmps.core.weight_versions import Held
from openmps.kernels.batch_normalization.data_source import MPSCNNBatchNormalizationDataSource
from openmps.kernels.batch_normalization.forward import MPSCNNBatchNormalization, check_state
from openmps.kernels.batch_normalization.gradient import MPSCNNBatchNormalizationGradient
from openmps.metal.device import MTLDevice
from openmps.metal.version import Version
from openmps.ops.normalization.batch_normalization import (
    BatchMoments,
    DataGradient,
    JoinRows,
    Normalize,
    ParameterSums,
    SplitRows,
)
from openmps.ops.normalization.sample_variance import ScaledRow, sample_factor
from openmps.ops.op import Value
from openmps.ops.update.collectives import Processes, SharedMoments, SharedSums
from openmps.runtime.binding import Numbers, Sum


@cache
def _known_as(kind: type) -> str:
    """The framework's class among a class and its bases."""
    return next(each.__name__ for each in kind.__mro__ if each.__name__.startswith("MPS"))


class _Named(MPSKernel):
    """A kernel that errors call by the name that users know."""

    @property
    def name(self) -> str:
        """The framework's class and the label."""
        name = self._name
        if name is None:  # kept, because every encode asks for it
            known = _known_as(type(self))
            name = f"{known} {self.label!r}" if self.label else known
            store(self, "_name", name)
        return name


class WholeBatchNormalization(_Named, MPSCNNBatchNormalization):
    """`MPSCNNBatchNormalization` with the statistics of the batch that it normalizes, or with the stored ones."""

    fills_states = True
    uses_batch = Setting[bool | None]()
    """Whether mean and variance are those of the batch; None until the graph knows."""

    processes = Setting[Processes | None]()
    """The processes whose shares make the batch; None where it is all here."""

    def __init__(self, device: MTLDevice, data_source: MPSCNNBatchNormalizationDataSource) -> None:
        super().__init__(device, data_source)
        self.uses_batch = self.processes = None

    @property
    def held_weights(self) -> Sequence[Held]:
        """The version of gamma and beta, and that of mean and variance unless they are those of the batch."""
        return super().held_weights[:1] if self.uses_batch else super().held_weights

    def buffer_versions(self) -> Sequence[Version]:
        """See `ImageKernel`."""
        return self.parameter_versions()

    def _lower(self, at: LoweringContext, *images: Value) -> Value:
        gamma, beta = at.buffer("gamma"), at.buffer("beta")
        if self.uses_batch:
            mean, correction, variance = BatchMoments()(images[0])
            if self.processes is not None:
                mean, correction, variance = SharedMoments(self.processes)(mean, correction, variance)
            if self._is_sample:
                variance = ScaledRow(sample_factor(self._pixels(at.shapes[0].extent)))(variance)
            for name, row in (("mean", mean), ("correction", correction), ("variance", variance)):
                at.gives(name, row)
        else:
            mean, correction, variance = at.buffer("mean"), None, at.buffer("variance")
        at.gives("gamma", gamma)
        at.gives("beta", beta)
        at.saves(JoinRows()(mean, correction, variance, gamma, beta))
        return Normalize(self.epsilon, True)(at.read(images[0]), mean, correction, variance, gamma, beta)

    @property
    def _is_sample(self) -> bool:
        return self.conventions["variance"] == "sample"

    def _pixels(self, extent: Extent) -> int:
        """Of the whole batch, of which images like these are the share of one process."""
        shares = 1 if self.processes is None else self.processes.count
        return shares * extent.images * extent.height * extent.width

    def fill(self, plan: Plan, states: MPSStateBatch) -> None:
        """The graph fills the state in."""
        state, extent = check_state(self.name, states), plan.sources[0].extent
        state.record = plan.record
        if self.uses_batch:
            pixels = self._pixels(extent._replace(images=plan.images))
            state.add_statistics(plan.images, pixels, is_sample=self._is_sample)
        state.use_for_normalization(self.epsilon)

    def _memory(self, name: str, states: MPSStateBatch | None) -> Numbers:
        return super()._memory(name, None)


class WholeBatchNormalizationGradient(_Named, MPSCNNBatchNormalizationGradient):
    """`MPSCNNBatchNormalizationStatisticsGradient` and `MPSCNNBatchNormalizationGradient` of a batch."""

    fills_states = True
    _sums: ClassVar[tuple[str, ...]] = ("gradient_for_gamma", "gradient_for_beta")
    processes = Setting[Processes | None]()
    """As the forward kernel's: the sums are those of the whole batch then."""

    def __init__(self, device: MTLDevice, fused_neuron_descriptor: MPSNNNeuronDescriptor | None = None) -> None:
        super().__init__(device, fused_neuron_descriptor)
        self.processes = None

    @property
    def is_state_modified(self) -> bool:
        """True: the gradients of gamma and beta go into the state."""
        return True

    def append_batch_barrier(self) -> bool:
        """True: the sums are complete when the whole batch went through."""
        return True

    def _differentiate(self, at: GradientLoweringContext, gradient: Value, source: Value) -> Value:
        use = at.given.more
        mean, correction, variance, gamma, _ = SplitRows()(at.saved)
        sums = ParameterSums(use.epsilon)(gradient, at.read(source), mean, correction, variance)
        if self.processes is not None and use.has_statistics:
            sums = SharedSums(self.processes)(*sums)
        for name, found in zip(self._sums, sums, strict=True):
            at.gives(name, found)
        batch = self._of_batch(at, *sums) if use.has_statistics else []
        return DataGradient(use.epsilon)(at.back(gradient), source, mean, correction, variance, gamma, *batch)

    def fill(self, plan: Plan, states: MPSStateBatch) -> None:
        """The graph fills the state's gradients in."""
        check_state(self.name, states).add_gradients(plan.images)

    def _output_binding(self, name: str, states: MPSStateBatch | None) -> Numbers:
        state = check_state(self.name, states)
        row = state.own(name)
        # A result that several filters read may have a gradient node for each.
        return row if states is None or state.gradient_images <= len(states) else Sum(row.buffer)
