"""The first NaN: fails a run before anything is updated, and names the kernel, image and channel where it began."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from openmps.core.kernel.lowering_context import RESULT, SAVED
from openmps.errors import MPSNonFiniteError
from openmps.graph.compile.program import Program, Stage
from openmps.ops.op import Role
from openmps.runtime.binding import Binding
from openmps.runtime.dispatch import Dispatch
from openmps.types import MPSImageFeatureChannelFormat

_FLOAT16 = MPSImageFeatureChannelFormat.FLOAT16
_LABELS = {"labels": "labels", "weights": "weights of the labels"}
_GRADIENTS = {"weights_gradient": "gradient of the weights", "biases_gradient": "gradient of the biases"}


class CheckedEncoding(Dispatch):
    """An encode of a graph that raises `MPSNonFiniteError` if a loss, a gradient of weights or a result is not finite.

    The numbers are checked once, at the end. Only if one of them is not finite all is run again, with every image kept,
    to find out where it began.
    """

    __slots__ = ("program",)

    program: Program
    guards = True

    def __call__(self) -> None:
        """Run the function, hand the outputs out, and look at them."""
        values = self.values()
        kept = list(values)
        made = self.function.run(values)
        watched = self._watched(made)
        self.hand_out(made)
        self._check(watched, kept)

    def check(self, made: list[Any]) -> None:
        """Look at outputs that were made otherwise than by running the function."""
        self._check(self._watched(made), self.values())

    def _check(self, watched: list[Any], kept: list[Any]) -> None:
        is_finite, processes = _all_finite(_tensors(watched)), self.program.processes
        if processes is not None:
            # One process alone must not stop: the others would wait for it.
            is_finite = bool(processes.all_agree(torch.tensor(is_finite, device=_device_of(watched))))
        if not is_finite:
            # What nothing read so far may be read now that every image is kept.
            whole = [
                value if used else each.value() for value, each, used in zip(kept, self.inputs, self.used, strict=True)
            ]
            _locate(self.program, self.function.inputs, whole)
            if processes is not None:
                who, remedy = f"process {processes.rank} of {processes.count}", "See what the other processes say"
                raise MPSNonFiniteError(who, "step", "must be finite in every process", "a NaN in another", remedy)

    def sound(self, made: Sequence[object]) -> Tensor | None:
        """Whether everything is finite; a sum that overflows says no, too."""
        tensors = _tensors(self._watched(made))
        if not tensors:
            return None
        found, processes = torch.isfinite(_sums(tensors)).all(), self.program.processes
        return found if processes is None else processes.all_agree(found)

    def _watched(self, made: Sequence[object]) -> list[object]:
        return [value for value, output in zip(made, self.program.outputs, strict=True) if output.name != SAVED]


def encoding_of(
    program: Program, inputs: tuple[Binding, ...], output_bindings: tuple[Binding, ...], *, checked: bool
) -> Dispatch:
    """One encode of a program; ``checked`` says whether it looks at its results."""
    if not checked:
        return Dispatch(program.function, inputs, program.used, output_bindings, program.frame)
    encoding = CheckedEncoding(program.function, inputs, program.used, output_bindings, program.frame)
    encoding.program = program
    return encoding


def _tensors(items: Iterable[Any]) -> list[Tensor]:
    return [item for item in items if isinstance(item, Tensor) and item.is_floating_point()]


def _all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no number is NaN or infinite, with one look at the device. A sum may overflow, so only a yes is final."""
    if not tensors:
        return True
    return bool(torch.isfinite(_sums(tensors)).all()) or all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _device_of(watched: Iterable[Any]) -> torch.device | None:
    return next((each.device for each in _tensors(watched)), None)


def _sums(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.sum(dtype=torch.float32) for tensor in tensors])


def _locate(program: Program, inputs: Sequence[Any], values: Sequence[Any]) -> None:
    """Run every kernel again, one behind the other, with all images kept; raise at the first number at fault."""
    found = dict(zip(inputs, values, strict=True))
    # Before anything is looked at: normalizations may need the other processes, which do the same.
    _, made = program.run_apart(found)
    for each, value in zip(inputs, values, strict=True):
        if each.role is Role.SOURCE and value is not None:
            _check_image(f"source image {each.name} of the graph", value, "The image was passed like this")
    for place, stage in enumerate(program.stages):
        for name, what in _LABELS.items():
            _check_labels(stage, what, next((v for k, v in found.items() if k.name == f"{place}:{name}"), None))
        result = made.get(f"{place}:{RESULT}")
        if result is not None:
            _check_image(stage.kernel.name, result, _remedy(stage, result))
        for name, what in _GRADIENTS.items():
            _check_gradient(stage, what, made.get(f"{place}:{name}"))


def _check_image(who: str, stored: Tensor, remedy: str) -> None:
    if not stored.is_floating_point() or bool(torch.isfinite(stored).all()):
        return
    image, channel, y, x = (~torch.isfinite(stored)).nonzero()[0].tolist()
    value = stored[image, channel, y, x].item()
    where = f"{value} in image {image}, channel {channel}, pixel ({x}, {y})"
    raise MPSNonFiniteError(who, "result", "must be finite", where, remedy)


def _check_labels(stage: Stage, what: str, values: Tensor | None) -> None:
    is_layer = hasattr(stage.kernel, "parameters")
    if values is None or is_layer or bool(torch.isfinite(values).all()):
        return
    image, channel = (~torch.isfinite(values)).nonzero()[0].tolist()[:2]
    where = f"{values[image, channel].flatten()[0].item()} in image {image}, channel {channel}"
    raise MPSNonFiniteError(stage.kernel.name, what, "must be finite", where, "The labels were passed like this")


def _check_gradient(stage: Stage, what: str, values: Tensor | None) -> None:
    if values is None or bool(torch.isfinite(values).all()):
        return
    output = int((~torch.isfinite(values)).nonzero()[0][0])
    where = f"{values[output].flatten()[0].item()} for output channel {output}"
    remedy = "The images that it is summed from are finite: lower the loss's weight or the learning rate"
    raise MPSNonFiniteError(stage.kernel.name, what, "must be finite", where, remedy)


def _remedy(stage: Stage, result: Tensor) -> str:
    weights = getattr(getattr(stage.kernel, "parameters", None), "weights", None)
    if isinstance(weights, Tensor) and not bool(torch.isfinite(weights).all()):
        return "Its weights are not finite: an update before this encode, or the data source, made them so"
    if stage.shape.channel_format is _FLOAT16 and not bool(torch.isnan(result).any()):
        return "FLOAT16 holds numbers up to 65504: store its result image in FLOAT32, or lower the weight of the loss"
    return "Its sources are finite: lower the learning rate, or store images in FLOAT32"
