"""A graph whose batches are shared among processes: where the gradients of parameters are added up.

The pass works on the body behind all fusions. Gradients of parameters come out of it as the sums of all processes:
they are collected in buckets in the order in which they are computed, the sum of a bucket starts when its last gradient
is there, and all are awaited at the end, so that sums travel while the rest of the gradient pass runs. Whoever takes
them, states and through them data sources, sees nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from openmps.graph.compile.program import Program
from openmps.graph.compile.shards import Shards
from openmps.graph.nodes.node import MPSNNGradientFilterNode
from openmps.kernels.batch_normalization.whole_batch import WholeBatchNormalization, WholeBatchNormalizationGradient
from openmps.kernels.dropout import MPSCNNDropout
from openmps.ops.op import Body, Step
from openmps.ops.update.collectives import FinishSum, Processes, StartSum

BUCKET_BYTES = 25 << 20
"""Of one sum, unless said otherwise: large enough to use the links, small enough to begin early."""
_GRADIENTS = frozenset(
    {"weights_gradient", "biases_gradient", "gradient_for_gamma", "gradient_for_beta", "gamma", "beta"}
)
"""What gradient kernels give besides images."""
_STATISTICS = frozenset({"mean", "variance"})
"""What normalizations of batches give to be averaged over time."""


class Sharing(NamedTuple):
    """How a graph shares its batches with other processes."""

    processes: Processes
    synchronizes_statistics: bool = False
    """Whether batch normalizations take the statistics of the whole batch; else of each process's share."""
    bucket_bytes: int = BUCKET_BYTES
    shards: Shards | None = None
    """Who gathers the parameters that each process updates a share of; None where each updates all."""

    def settle(self, kernels: Iterable[object]) -> None:
        """Have kernels know it whose numbers depend on the other images of a batch, or on an image's place in it."""
        for kernel in kernels:
            if isinstance(kernel, MPSCNNDropout):
                kernel.batch_share = self.processes.rank
            elif isinstance(kernel, WholeBatchNormalization | WholeBatchNormalizationGradient):
                kernel.processes = self.processes if self.synchronizes_statistics else None


class _Shared(NamedTuple):
    """An output that becomes a sum: its place among the outputs, its slot, and a factor."""

    output: int
    slot: int
    scale: float


def share_gradients(body: Body, program: Program, sharing: Sharing) -> Body:
    """The body with sums over the processes in the place of gradients of parameters."""
    shared = _shared(body, program, sharing)
    made = {slot: place for place, step in enumerate(body.steps) for slot in step.writes}
    slots = sorted({each.slot: each for each in shared}.values(), key=lambda each: (made[each.slot], each.slot))
    buckets = _buckets(slots, program, body, sharing.bucket_bytes)
    starts: dict[int, list[Step]] = {}
    ends: list[Step] = []
    place_of: dict[int, int] = {}
    count = body.slots
    for bucket in buckets:
        room, parts = count, tuple(range(count + 1, count + 1 + len(bucket)))
        count += 1 + len(bucket)
        starts.setdefault(made[bucket[-1].slot], []).append(
            Step(StartSum(sharing.processes), tuple(each.slot for each in bucket), (room,))
        )
        scales = tuple(each.scale for each in bucket)
        ends.append(Step(FinishSum(sharing.processes, len(bucket), scales), (room,), parts))
        place_of.update(zip((each.slot for each in bucket), parts, strict=True))
    steps: list[Step] = []
    for place, step in enumerate(body.steps):
        steps += [step, *starts.get(place, ())]
    outputs = list(body.output_slots)
    for each in shared:
        outputs[each.output] = place_of[each.slot]
    return Body(body.inputs, [*steps, *ends], body.outputs, tuple(outputs), count, body.input_slots)


def _shared(body: Body, program: Program, sharing: Sharing) -> list[_Shared]:
    """Gradients of parameters, and the statistics of shares, which are averaged."""
    found: list[_Shared] = []
    average = 1.0 / sharing.processes.count
    inputs = set(body.input_slots)
    for output, (name, slot) in enumerate(zip(body.outputs, body.output_slots, strict=True)):
        place, _, what = name.partition(":")
        stage = program.stages[int(place)]
        if getattr(stage.kernel, "processes", None) is not None:
            continue  # Its sums are those of the whole batch already.
        if isinstance(stage.node, MPSNNGradientFilterNode) and what in _GRADIENTS:
            found.append(_Shared(output, slot, 1.0))
        elif what in _STATISTICS and slot not in inputs and isinstance(stage.kernel, WholeBatchNormalization):
            found.append(_Shared(output, slot, average))
    return found


def _buckets(slots: Sequence[_Shared], program: Program, body: Body, limit: int) -> list[list[_Shared]]:
    """Neighbours in the order in which they are computed, together as long as they fit a bucket."""
    sizes = {slot: _bytes(program, name) for name, slot in zip(body.outputs, body.output_slots, strict=True)}
    buckets: list[list[_Shared]] = []
    filled = 0
    for each in slots:
        size = sizes[each.slot]
        if not buckets or filled + size > limit:
            buckets.append([])
            filled = 0
        buckets[-1].append(each)
        filled += size
    return buckets


def _bytes(program: Program, output: str) -> int:
    """About how many bytes come out under a name."""
    place, _, what = output.partition(":")
    kernel = program.stages[int(place)].kernel
    parameters = getattr(kernel, "parameters", None)
    if parameters is None:
        return 4 * program.stages[int(place)].shape.extent.channels
    weights, biases = parameters.counts
    return 4 * (weights if what == "weights_gradient" else biases)
