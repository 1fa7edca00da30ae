"""A graph whose batches are shared among processes: where the gradients of parameters are added up.

The pass works on the function behind all fusions. Gradients of parameters come out of it as the sums of all processes:
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
from openmps.ops.op import Equation, Function
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

    def prepare(self, kernels: Iterable[object]) -> None:
        """Have kernels know it whose numbers depend on the other images of a batch, or on an image's place in it."""
        for kernel in kernels:
            if isinstance(kernel, MPSCNNDropout):
                kernel.batch_share = self.processes.rank
            elif isinstance(kernel, WholeBatchNormalization | WholeBatchNormalizationGradient):
                kernel.processes = self.processes if self.synchronizes_statistics else None


class _Shared(NamedTuple):
    """An output that becomes a sum: its place among the outputs, its value, and a factor."""

    output: int
    value: int
    scale: float


def share_gradients(function: Function, program: Program, sharing: Sharing) -> Function:
    """The function with sums over the processes in the place of gradients of parameters."""
    shared = _shared(function, program, sharing)
    made = {value: place for place, equation in enumerate(function.equations) for value in equation.writes}
    values = sorted({each.value: each for each in shared}.values(), key=lambda each: (made[each.value], each.value))
    buckets = _buckets(values, program, function, sharing.bucket_bytes)
    starts: dict[int, list[Equation]] = {}
    ends: list[Equation] = []
    place_of: dict[int, int] = {}
    count = function.value_count
    for bucket in buckets:
        room, parts = count, tuple(range(count + 1, count + 1 + len(bucket)))
        count += 1 + len(bucket)
        starts.setdefault(made[bucket[-1].value], []).append(
            Equation(StartSum(sharing.processes), tuple(each.value for each in bucket), (room,))
        )
        scales = tuple(each.scale for each in bucket)
        ends.append(Equation(FinishSum(sharing.processes, len(bucket), scales), (room,), parts))
        place_of.update(zip((each.value for each in bucket), parts, strict=True))
    equations: list[Equation] = []
    for place, equation in enumerate(function.equations):
        equations += [equation, *starts.get(place, ())]
    outputs = list(function.output_values)
    for each in shared:
        outputs[each.output] = place_of[each.value]
    return Function(
        function.inputs, [*equations, *ends], function.outputs, tuple(outputs), count, function.input_values
    )


def _shared(function: Function, program: Program, sharing: Sharing) -> list[_Shared]:
    """Gradients of parameters, and the statistics of shares, which are averaged."""
    found: list[_Shared] = []
    average = 1.0 / sharing.processes.count
    inputs = set(function.input_values)
    for output, (name, value) in enumerate(zip(function.outputs, function.output_values, strict=True)):
        place, _, what = name.partition(":")
        stage = program.stages[int(place)]
        if getattr(stage.kernel, "processes", None) is not None:
            continue  # Its sums are those of the whole batch already.
        if isinstance(stage.node, MPSNNGradientFilterNode) and what in _GRADIENTS:
            found.append(_Shared(output, value, 1.0))
        elif what in _STATISTICS and value not in inputs and isinstance(stage.kernel, WholeBatchNormalization):
            found.append(_Shared(output, value, average))
    return found


def _buckets(values: Sequence[_Shared], program: Program, function: Function, limit: int) -> list[list[_Shared]]:
    """Neighbours in the order in which they are computed, together as long as they fit a bucket."""
    sizes = {value: _bytes(program, name) for name, value in zip(function.outputs, function.output_values, strict=True)}
    buckets: list[list[_Shared]] = []
    filled = 0
    for each in values:
        size = sizes[each.value]
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
