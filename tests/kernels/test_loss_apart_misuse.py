"""What a user can get wrong with MPSNNForwardLoss and MPSNNLossGradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from encoding import Bench
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.kernels.loss import MPSCNNLoss, MPSCNNLossDescriptor, MPSNNForwardLoss, MPSNNLossGradient
from openmps.kernels.pooling import MPSCNNPoolingMax
from openmps.runtime.devices import mtl_device
from openmps.types import MPSCNNLossType, MPSCNNReductionType, MPSOffset, MTLOrigin, MTLRegion, MTLSize
from samples.sample import configured

CPU = mtl_device("cpu")
Type, Reduction = MPSCNNLossType, MPSCNNReductionType


def _descriptor(kind: Type, reduction: Reduction, **parameters: Any) -> MPSCNNLossDescriptor:
    return configured(MPSCNNLossDescriptor(kind, reduction), parameters)


class _Scene:
    """A pass of both kernels on three channels of 2x2, with wrong parts."""

    def __init__(self, **parameters: Any) -> None:
        self.bench = Bench(CPU)
        kind, reduction = parameters.pop("kind", Type.MEAN_SQUARED_ERROR), parameters.pop("reduction", Reduction.SUM)
        descriptor = _descriptor(kind, reduction, **parameters)
        self.forward, self.gradient = MPSNNForwardLoss(CPU, descriptor), MPSNNLossGradient(CPU, descriptor)
        self.forward.label = self.gradient.label = "here"

    def zeros(self, *shape: int) -> Any:
        return self.bench.batch(np.zeros(shape))

    def refused(self, error: type[Exception], message: str, **changes: Any) -> None:
        """Both kernels refuse it."""
        given = {"labels": self.zeros(2, 3, 2, 2), "weights": None, **changes}
        images, flow = self.zeros(2, 3, 2, 2), self.zeros(2, 1, 1, 1)
        with pytest.raises(error, match=f"^MPSNNForwardLoss 'here': {message}"):
            self.forward.encode_batch(self.bench.command_buffer(), images, **given)
        with pytest.raises(error, match=f"^MPSNNLossGradient 'here': {message}"):
            self.gradient.encode_batch(self.bench.command_buffer(), flow, images, **given)


@pytest.mark.parametrize("argument", ["labels", "weights"])
def test_wrong_labels_and_weights(argument: str) -> None:
    scene = _Scene()
    scene.refused(MPSTypeError, f"{argument} must be a sequence of MPSImage, got int", **{argument: 7})
    scene.refused(MPSTypeError, rf"{argument}\[0\] must be an MPSImage, got int", **{argument: [7, 8]})
    size = "must be 2x2 with at least 3 channels, 2 image\\(s\\), like the predictions, got"
    scene.refused(MPSArgumentError, f"{argument} {size} 1x2x3", **{argument: scene.zeros(2, 3, 2, 1)})
    scene.refused(MPSArgumentError, f"{argument} {size} 2x2x2", **{argument: scene.zeros(2, 2, 2, 2)})
    count = f"{argument} must be 2 image\\(s\\), as many as source_(image|gradient), got 3"
    scene.refused(MPSArgumentError, count, **{argument: scene.zeros(3, 3, 2, 2)})
    unlike = [scene.zeros(1, 3, 2, 2)[0], scene.zeros(1, 4, 2, 2)[0]]
    scene.refused(MPSArgumentError, f"{argument}: image 1 must have the size", **{argument: unlike})
    if argument == "labels":
        scene.refused(MPSTypeError, "labels must be a sequence of MPSImage, got NoneType", labels=None)
    else:
        cosine = _Scene(kind=Type.COSINE_DISTANCE)
        cosine.refused(MPSArgumentError, "weights must not be given", weights=scene.zeros(2, 3, 2, 2))


def test_nothing_may_be_placed() -> None:
    """The framework leaves the results undefined."""
    scene = _Scene()
    scene.forward.offset = MPSOffset(1, 0, 0)
    scene.gradient.secondary_offset = MPSOffset(0, 1, 0)
    bench, images, flow = scene.bench, scene.zeros(2, 3, 2, 2), scene.zeros(2, 1, 1, 1)
    rule = "'here': offset and clip_rect must be left at their defaults"
    into = [scene.zeros(2, 1, 1, 1), scene.zeros(2, 3, 2, 2)]

    def both() -> None:
        with pytest.raises(MPSArgumentError, match=rule):
            scene.forward.encode_batch(bench.command_buffer(), images, images, destination_images=into[0])
        with pytest.raises(MPSArgumentError, match=rule):
            scene.gradient.encode_batch(bench.command_buffer(), flow, images, images, destination_gradients=into[1])

    both()
    scene = _Scene()
    scene.forward.clip_rect = scene.gradient.clip_rect = MTLRegion(MTLOrigin(1, 0, 0), MTLSize(1, 1, 1))
    into = [scene.zeros(2, 1, 1, 2), scene.zeros(2, 3, 2, 3)]
    both()
    rule = (
        "'here': destination_(image|gradient) must have at least 2x2 pixels, and the clip rectangle must not cut them"
    )
    scene = _Scene(reduction=Reduction.NONE)
    scene.forward.clip_rect = scene.gradient.clip_rect = MTLRegion(MTLOrigin(0, 0, 0), MTLSize(1, 2, 1))
    into = [scene.zeros(2, 3, 2, 2)] * 2
    both()
    scene = _Scene(reduction=Reduction.NONE)
    into = [scene.zeros(2, 3, 1, 2)] * 2
    both()


def test_wrong_incoming_gradients() -> None:
    scene = _Scene()
    images = scene.zeros(2, 3, 2, 2)
    for shape in [(2, 3, 1, 1), (2, 1, 2, 2), (2, 3, 2, 1), (2, 4, 2, 2)]:
        rule = r"^MPSNNLossGradient 'here': source_gradient must be 1x1x1 or 2x2x3 \(width x height x channels\)"
        with pytest.raises(MPSArgumentError, match=rule):
            scene.gradient.encode_batch(scene.bench.command_buffer(), scene.zeros(*shape), images, images)


def test_destinations_that_are_labels() -> None:
    scene = _Scene(reduction=Reduction.NONE)
    images, labels, weights = (scene.zeros(2, 3, 2, 2) for _ in range(3))
    for number, argument in enumerate(("labels", "weights")):
        given = (labels, weights)[number]
        rule = f"must not share memory with {argument}"
        with pytest.raises(MPSArgumentError, match=f"^MPSNNForwardLoss 'here': destination_image {rule}"):
            scene.forward.encode_batch(scene.bench.command_buffer(), images, labels, weights, None, given)
        with pytest.raises(MPSArgumentError, match=f"^MPSNNLossGradient 'here': destination_gradient {rule}"):
            scene.gradient.encode_batch(scene.bench.command_buffer(), images, images, labels, weights, None, given)


def test_wrong_states() -> None:
    scene = _Scene()
    images, flow = scene.zeros(2, 3, 2, 2), scene.zeros(2, 1, 1, 1)

    def refused(error: type[Exception], rule: str, states: Any) -> None:
        with pytest.raises(error, match=f"^MPSNNLossGradient 'here': {rule}"):
            scene.gradient.encode_batch(scene.bench.command_buffer(), flow, images, images, None, states)

    def left_by(kernel: MPSNNForwardLoss, count: int = 2) -> list[MPSState]:
        made = kernel.encode_batch(
            scene.bench.command_buffer(), images[:count], images[:count], destination_state_is_temporary=False
        )[1]
        assert made is not None
        return list(made)

    refused(MPSTypeError, "source_states must be a sequence of MPSState, got int", 7)
    refused(MPSTypeError, "source_states must be an MPSNNGradientState, got MPSState", [MPSState(CPU)] * 2)
    refused(
        MPSArgumentError,
        "source_states must come from an encode of MPSNNForwardLoss with the loss type MEAN_SQUARED_ERROR, got an",
        scene.forward.result_state_batch(images),
    )
    other = MPSNNForwardLoss(CPU, _descriptor(Type.HUBER, Reduction.SUM))
    refused(MPSArgumentError, "source_states must come from .* got one from MPSNNForwardLoss", left_by(other))
    pool = MPSCNNPoolingMax(CPU, 1, 1)
    pooled = pool.encode_batch(scene.bench.command_buffer(), images, destination_state_is_temporary=False)[1]
    refused(MPSArgumentError, "source_states must come from .* got one from MPSCNNPoolingMax", pooled)
    refused(MPSArgumentError, "source_states must be one state an image, 2, got 1", left_by(scene.forward, 1))
    first = left_by(scene.forward)
    scene.forward.weight = 2.0
    mixed = [first[0], left_by(scene.forward)[1]]
    refused(MPSArgumentError, "source_states must come from forward encodes with the same weight", mixed)
    with pytest.raises(MPSTypeError, match="^MPSNNForwardLoss 'here': destination_state must be MPSNNGradientState"):
        scene.forward.encode(scene.bench.command_buffer(), images[0], images[0], None, MPSState(CPU))


def test_wrong_descriptors() -> None:
    for kind in (MPSNNForwardLoss, MPSNNLossGradient, MPSCNNLoss):
        with pytest.raises(
            MPSTypeError, match=f"^{kind.__name__}: loss_descriptor must be an MPSCNNLossDescriptor, got"
        ):
            kind(CPU, Type.HUBER)  # type: ignore[arg-type]
        for name in ("weight", "label_smoothing", "epsilon", "delta"):
            with pytest.raises(MPSTypeError, match=f"^MPSCNNLossDescriptor: {name} must be a number, got 'much'"):
                _descriptor(Type.HUBER, Reduction.SUM, **{name: "much"})
        for name, value in {"label_smoothing": 5.0, "epsilon": -1.0, "delta": -0.5}.items():
            with pytest.raises(MPSArgumentError, match=f"{name} must be .*, got {value}"):
                kind(CPU, _descriptor(Type.HUBER, Reduction.SUM, **{name: value}))
            with pytest.raises(MPSArgumentError, match=f"{name} must be .*, got {value}"):
                setattr(MPSNNForwardLoss(CPU, _descriptor(Type.HUBER, Reduction.SUM)), name, value)
        descriptor = _descriptor(Type.HUBER, Reduction.SUM, number_of_classes=2.5)
        with pytest.raises(MPSTypeError, match="^MPSCNNLossDescriptor: number_of_classes must be an integer, got 2.5"):
            kind(CPU, descriptor)
        with pytest.raises(MPSArgumentError, match="^MPSCNNLossDescriptor: loss_type must be one of MEAN_ABSOLUTE"):
            kind(CPU, _descriptor(Type.HUBER, Reduction.SUM, loss_type=77))
    cosine = MPSCNNLossDescriptor(Type.COSINE_DISTANCE)
    with pytest.raises(MPSArgumentError, match="reduction_type must be SUM"):
        MPSNNForwardLoss(CPU, cosine)
    kernel = MPSNNLossGradient(CPU, cosine)
    assert kernel.reduction_type is Reduction.NONE, "the gradient does not look at it"
