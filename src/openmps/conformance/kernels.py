"""Cases of one kernel: a forward encode, and the gradient kernels behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import openmps.names as names
from openmps.conformance.arrays import array_of, written, written_number
from openmps.conformance.objects import Maker, attribute

PARAMETER_GRADIENTS = {
    "gradientForWeights": "gradient_for_weights",
    "gradientForBiases": "gradient_for_biases",
    "gradientForGamma": "gradient_for_gamma",
    "gradientForBeta": "gradient_for_beta",
}
"""Buffers of gradient states that cases read."""


class KernelRun:
    """One case's work, encoded, committed and waited for."""

    def __init__(self, maker: Maker, entry: Mapping[str, Any]) -> None:
        self._maker, self._entry = maker, entry
        self._command_buffer = maker.device.new_command_queue().command_buffer()
        self.kernel = maker.kernel(entry["kernel"])
        self.kernels = [self.kernel]
        self._labels: Any = None

    def answer(self) -> dict[str, Any]:
        """What the case reads, by name."""
        sources = [image(self._maker.device, each) for each in self._entry["sources"]]
        result, state = self._forward(sources)
        gradients = [self._gradient(each, sources, result, state) for each in self._entry.get("gradients", ())]
        self._command_buffer.commit()
        self._command_buffer.wait_until_completed()
        return dict(self._read(result, state, gradients))

    def _forward(self, sources: Sequence[Any]) -> tuple[Any, Any]:
        """The result, and the state where gradients follow."""
        options: dict[str, Any] = {}
        needs_state = bool(self._entry.get("gradients"))
        if "destination" in self._entry:
            given = empty(self._maker.device, self._entry["destination"])
            options["destination_image"] = given
            if needs_state:
                options["destination_state"] = self.kernel.result_state(*sources, destination_image=given)
        elif needs_state:
            options["destination_state_is_temporary"] = False
        made = self.kernel.encode(self._command_buffer, *sources, *self._operands(), **options)
        if "destination_state" in options:
            return options["destination_image"], options["destination_state"]
        return made if needs_state else (made, None)

    def _operands(self) -> tuple[Any, ...]:
        """Labels and their weights, which losses take behind their sources."""
        entry, device = self._entry, self._maker.device
        if "labels" not in entry:
            return ()
        parts = [None if given is None else array_of(given) for given in (entry["labels"], entry.get("labelWeights"))]
        if "lossImageSize" not in entry:
            return tuple(None if each is None else names.MPSImage.from_numpy(device, each) for each in parts)
        described = [None if each is None else loss_data(each) for each in parts]
        size = names.MTLSize(*entry["lossImageSize"])
        self._labels = names.MPSCNNLossLabels(
            device, described[0], loss_image_size=size, weights_descriptor=described[1]
        )
        return (self._labels,)

    def _gradient(self, given: Mapping[str, Any], sources: Sequence[Any], result: Any, state: Any) -> Any:
        kernel = self._maker.kernel(given["kernel"])
        self.kernels.append(kernel)
        shape = [result.height, result.width, result.feature_channels]
        incoming = image(self._maker.device, {"shape": shape, **given["incoming"]})
        secondary = result if given["secondary"] == "result" else sources[given["secondary"]]
        return kernel.encode(self._command_buffer, incoming, secondary, state)

    def _read(self, result: Any, state: Any, gradients: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        for name in self._entry["read"]:
            if name == "result":
                yield name, written(pixels(result))
            elif name == "gradients":
                yield name, [written(pixels(each)) for each in gradients]
            elif name == "loss":
                yield name, written(pixels(self._labels.loss_image()))
            elif name == "size":
                yield name, [result.width, result.height, result.feature_channels]
            elif name == "pixelFormat":
                yield name, int(result.pixel_format)
            else:
                buffer = getattr(state, PARAMETER_GRADIENTS[name])
                yield name, written(np.frombuffer(buffer.contents(), np.float32))
        for name in self._entry.get("shows", ()):
            yield name, shown(getattr(self.kernel, attribute(self.kernel, name)))


def image(device: names.MTLDevice, given: Mapping[str, Any]) -> names.MPSImage:
    """A source image; Float32 unless the entry names another format."""
    form = names.MPSImageFeatureChannelFormat(given.get("format", names.MPSImageFeatureChannelFormat.FLOAT32))
    return names.MPSImage.from_numpy(device, array_of(given), form)


def pixels(image: Any) -> Any:
    """``[height, width, channels]`` of an image, ``[images, …]`` of a batch."""
    return image.numpy() if isinstance(image, names.MPSImage) else np.stack([each.numpy() for each in image])


def shown(value: Any) -> Any:
    """A property as an answer holds it: numbers, and lists of numbers."""
    if isinstance(value, names.MPSNNDefaultPadding):
        return int(value.padding_method())
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, float):
        return written_number(value)
    if isinstance(value, names.MPSOffset):
        return [value.x, value.y, value.z]
    if isinstance(value, names.MPSImageCoordinate):
        return [value.x, value.y, value.channel]
    if isinstance(value, names.MTLRegion):
        corner, size = value.origin, value.size
        return [corner.x, corner.y, corner.z, *(each - 2**64 if each >= 2**63 else each
                                                for each in (size.width, size.height, size.depth))]  # fmt: skip
    return int(value)


def empty(device: names.MTLDevice, size: Sequence[int]) -> names.MPSImage:
    """An image of Float32 zeros, [width, height, channels]."""
    width, height, channels = size
    form = names.MPSImageFeatureChannelFormat.FLOAT32
    return names.MPSImage(device, names.MPSImageDescriptor(form, width, height, channels))


def loss_data(array: Any) -> names.MPSCNNLossDataDescriptor:
    """Labels, or weights of labels, ``[height, width, channels]``."""
    height, width, channels = array.shape
    return names.MPSCNNLossDataDescriptor(array, size=names.MTLSize(width, height, channels))
