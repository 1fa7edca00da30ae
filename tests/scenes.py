"""A kernel with images that suit it, and the claim that it refuses what is wrong with them in the right words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from catalogue import SAMPLES
from encoding import Bench, encode, finish, keep_results, train, trained
from openmps.core.image.image import MPSImage
from openmps.errors import (
    MPSError,
)
from openmps.runtime.devices import mtl_device
from samples.sample import Sample

FIRST = [samples[0] for samples in SAMPLES.values()]
"""One sample of each forward kernel class."""
TRAINED = [sample for sample in FIRST if sample.gradients]
CPU = mtl_device("cpu")


class Scene:
    """A labelled kernel with images that suit it."""

    def __init__(self, sample: Sample, images: int = 2) -> None:
        self.bench = Bench(CPU)
        self.sample = sample
        self.kernel: Any = sample.make(CPU)
        self.kernel.label = "here"
        self.values = sample.sources(images)
        self.single = [self.bench.image(values[:1]) for values in self.values]
        self.batch = [self.bench.batch(values) for values in self.values]
        self.more = sample.more(self.bench, images)
        self.more_single = sample.more(self.bench, 1, single=True)
        self.result = trained(sample, CPU, images).result

    def refused(self, error: type[MPSError], argument: str, action: Callable[[], Any], rule: str = "") -> None:
        """The action raises, naming this kernel with its label, and the argument; nothing is recorded."""
        start = f"{type(self.kernel).__name__} 'here': {argument} {rule}"
        with pytest.raises(error, match=f"^{re.escape(start)}") as caught:
            action()
        assert caught.value.who == f"{type(self.kernel).__name__} 'here'"

    def encode(self, **changes: Any) -> Any:
        """Encode the batch."""
        command_buffer = changes.pop("command_buffer", None) or self.bench.command_buffer()
        sources = changes.pop("sources", self.batch)
        destination = changes.pop("destination", None)
        more = self.more if not isinstance(sources[0], MPSImage) else self.more_single
        given = [] if destination is None else [destination]
        return encode(self.kernel, command_buffer, sources, *more, *given, **changes)

    @property
    def source(self) -> str:
        """The name of the first source argument."""
        return self.kernel._source_arguments[0]

    @property
    def second_source(self) -> str:
        """The name of the second source argument."""
        return self.kernel._source_arguments[1]

    @property
    def destination(self) -> str:
        """The name of the destination argument."""
        return self.kernel._destination_argument


class Backward(Scene):
    """A labelled gradient kernel after a forward encode."""

    def __init__(self, sample: Sample) -> None:
        super().__init__(sample)
        self.forward = train(self.bench, sample, self.values, self.bench.batch)
        self.backward = sample.gradients[0]
        self.kernel = self.backward.make(CPU)
        self.kernel.label = "here"
        keep_results(self.kernel)
        self.flow = self.bench.batch(sample.incoming(self.forward.result.shape))
        result = self.bench.batch(self.forward.result)
        self.image = result if self.backward.reads_result else self.batch[self.backward.secondary]

    @property
    def states(self) -> Any:
        """The states of the forward encode; new ones each time where one is good for one batch alone."""
        if not hasattr(self.forward.states[0], "gradient_for_weights"):
            return self.forward.states
        command_buffer = self.bench.command_buffer()
        kernel = self.sample.make(self.bench.device)
        _, states = encode(kernel, command_buffer, self.batch, destination_state_is_temporary=False)
        finish(command_buffer)
        return states

    def run(
        self,
        flow: Any = None,
        image: Any = None,
        states: Any = "own",
        destination: Any = None,
        command_buffer: Any = None,
    ) -> Any:
        return self.kernel.encode_batch(
            command_buffer or self.bench.command_buffer(),
            self.flow if flow is None else flow,
            self.image if image is None else image,
            self.states if isinstance(states, str) else states,
            destination,
        )
