"""Normalizations of inference before a convolution, with the neuron behind them; see `graph.compile.fusions.fusion`.

The slow steps are a batch normalization with stored statistics and a neuron (`ACTIVATIONS`) that alone reads its
result. What follows from the statistics is prepared, and made again only when they change.
"""

from __future__ import annotations

from openmps.graph.compile.fusions.convolution import FusedBody, is_memory
from openmps.graph.compile.preparations import Recipe
from openmps.graph.compile.readers import Readers
from openmps.ops.convolution.convolution import ContractionGradient
from openmps.ops.convolution.fused_convolution import ACTIVATIONS, Activation
from openmps.ops.normalization.batch_normalization import Normalize
from openmps.ops.normalization.stored_normalization import PrepareNormalization, StoredNormalization
from openmps.ops.op import Body, Input, Role, Step
from openmps.ops.pointwise.neuron import Neuron


def fuse_stored_normalizations(body: Body) -> FusedBody:
    """The body with its normalizations fused; itself where gradients are computed."""
    if any(isinstance(step.op, ContractionGradient) for step in body.steps):
        return FusedBody(body, set(), {})
    readers, inputs = Readers(body), dict(zip(body.input_slots, body.inputs, strict=True))
    recipes, places = dict[Input, Recipe](), dict[Input, int]()
    steps, slots, gone = list[Step](), body.slots, set[int]()
    for step in body.steps:
        if gone.intersection(step.reads):
            continue  # The neuron of one that was fused.
        op, rows = step.op, step.reads[1:]
        if not isinstance(op, Normalize) or not all(is_memory(inputs, slot) for slot in rows):
            steps.append(step)
            continue
        prepared = Input(Role.PREPARED, inputs[rows[0]].name)
        recipes[prepared] = Recipe(PrepareNormalization(op.epsilon), tuple(map(inputs.get, rows)))
        places[prepared], end, activation = slots, step.writes[0], None
        neuron = readers.only(end)
        if neuron is not None and isinstance(neuron.op, Neuron) and neuron.op.function in ACTIVATIONS:
            activation = Activation(neuron.op.function, neuron.op.a, neuron.op.b)
            gone.add(end)
            end = neuron.writes[0]
        steps.append(Step(StoredNormalization(activation, op.is_rounded), (step.reads[0], slots), (end,)))
        slots += 1
    if not recipes:
        return FusedBody(body, set(), {})
    read = set(body.output_slots).union(*(step.reads for step in steps))
    before = set().union(*(step.reads for step in body.steps))
    kept = {each: slot for slot, each in inputs.items() if slot in read or slot not in before}
    return FusedBody(body.with_steps(steps, slots, kept | places), gone, recipes)
