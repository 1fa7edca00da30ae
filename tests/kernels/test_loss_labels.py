"""Labels of a whole batch: three blocks, and objects that are made when they are asked for."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch

from encoding import Bench, finish, numbers
from helpers import assert_close
from openmps.core.image.image import MPSImage
from openmps.core.state.batch import (
    MPSStateBatch,
    MPSStateBatchIncrementReadCount,
    MPSStateBatchResourceSize,
    MPSStateBatchSynchronize,
)
from openmps.errors import MPSArgumentError, MPSDeviceError, MPSError, MPSLifetimeError, MPSTypeError
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.loss import MPSCNNLossNode
from openmps.graph.nodes.node import MPSNNImageNode
from openmps.kernels.loss import MPSCNNLoss, MPSCNNLossDataDescriptor, MPSCNNLossDescriptor, MPSCNNLossLabels
from openmps.kernels.loss.labels import LabelBlocks, given_labels
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import mtl_device
from openmps.types import MPSCNNLossType, MPSCNNReductionType, MTLSize

CPU = mtl_device("cpu")
IMAGES = 5
SHAPE = (IMAGES, 3, 2, 2)
TOLERANCE = 1e-6


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which members were asked for."""
    asked: list[int] = []
    member = LabelBlocks.member

    def counted(self: LabelBlocks, index: int) -> MPSCNNLossLabels:
        asked.append(index)
        return member(self, index)

    monkeypatch.setattr(LabelBlocks, "member", counted)
    return asked


def _pixels(values: np.ndarray) -> np.ndarray:
    return values.transpose(0, 2, 3, 1)


def _kernel(
    device: MTLDevice,
    reduction: MPSCNNReductionType = MPSCNNReductionType.SUM,
    kind: MPSCNNLossType = MPSCNNLossType.MEAN_SQUARED_ERROR,
) -> MPSCNNLoss:
    return MPSCNNLoss(device, MPSCNNLossDescriptor(kind, reduction))


def _encode(bench: Bench, y: np.ndarray, labels: Any, kernel: MPSCNNLoss | None = None) -> None:
    command_buffer = bench.command_buffer()
    (kernel or _kernel(bench.device)).encode_batch(command_buffer, bench.batch(y), labels)
    finish(command_buffer)


def _losses(labels: Any) -> np.ndarray:
    return np.array([numbers(label.loss_image()).item() for label in labels])


def _squares(y: np.ndarray, t: np.ndarray, weights: np.ndarray | float = 1.0) -> np.ndarray:
    return (weights * (y - t) ** 2).sum((1, 2, 3))


# --- what the objects are ---------------------------------------------------------------------------------------------


def test_each_image_has_one_object() -> None:
    batch = MPSCNNLossLabels.batch(CPU, np.eye(4))
    assert len(batch) == 4
    first = batch[0]
    assert type(first) is MPSCNNLossLabels
    assert batch[0] is first
    assert batch[-4] is first
    assert batch[-1] is batch[3]
    assert [each is batch[index] for index, each in enumerate(batch)] == [True] * 4
    assert len({id(each) for each in batch}) == 4
    assert [each is other for each, other in zip(batch.unique(), batch, strict=True)] == [True] * 4
    assert batch.count_unique() == 4
    assert (first.device, first.label, first.lives_on, first.read_count, first.resource_count) == (
        CPU,
        None,
        None,
        0,
        0,
    )
    assert first.labels_image() is first.labels_image()
    assert first.loss_image() is first.loss_image()
    assert first.weights_image() is None
    assert first.resource_size() == 4 * 4 + 4
    assert MPSStateBatchResourceSize(batch) == sum(each.resource_size() for each in batch)
    with pytest.raises(IndexError, match="^MPSStateBatch: index 4 outside 4 element"):
        batch[4]


def test_slices_hold_the_same_objects() -> None:
    batch = MPSCNNLossLabels.batch(CPU, np.eye(4))
    part = batch[1:3]
    assert isinstance(part, MPSStateBatch)
    assert [part[0] is batch[1], part[1] is batch[2]] == [True, True]
    assert [each is batch[3 - index] for index, each in enumerate(batch[::-1])] == [True] * 4
    assert len(batch[4:]) == 0


def test_the_repr_is_that_of_objects_made_one_by_one() -> None:
    batch = MPSCNNLossLabels.batch(CPU, np.eye(2))
    singles = [MPSCNNLossLabels(CPU, MPSCNNLossDataDescriptor(row)) for row in np.eye(2)]
    assert repr(batch) == repr(MPSStateBatch(singles)) == "<MPSStateBatch of 2: <MPSCNNLossLabels, 0 resources>>"
    batch[0].label = singles[0].label = "left"
    assert repr(batch) == repr(MPSStateBatch(singles))
    assert repr(batch[1]) == "<MPSCNNLossLabels, 0 resources>"


def test_labels_losses_and_weights_lie_in_blocks() -> None:
    batch = MPSCNNLossLabels.batch(CPU, np.zeros((3, 2, 2, 4)), weights=np.ones((3, 2, 2, 4)))
    for images in (
        [each.labels_image() for each in batch],  # type: ignore[attr-defined]
        [each.weights_image() for each in batch],  # type: ignore[attr-defined]
        [each.loss_image() for each in batch],  # type: ignore[attr-defined]
    ):
        assert len({id(image.storage.block) for image in images}) == 1
        assert [image.storage.first for image in images] == [0, 1, 2]


def test_labels_of_plain_arrays_are_what_constructors_make() -> None:
    plain: Any = MPSCNNLossLabels.batch(CPU, np.ones((IMAGES, 3), np.float32))
    made: Any = MPSCNNLossLabels.batch(CPU, torch.ones(IMAGES, 3))
    assert type(plain) is type(made)
    assert vars(plain).keys() == vars(made).keys()
    assert len(plain) == len(made) == IMAGES
    mine, theirs = plain.shared, made.shared
    assert vars(mine).keys() - {"_given"} == vars(theirs).keys() - {"_given"}
    assert (mine.device, mine.weights, mine.given, mine.is_temporary) == (CPU, None, theirs.given, False)
    own = {id(each) for each in (mine.saved, mine.labels, mine.losses, mine.members, mine._slots, plain._states)}
    other = MPSCNNLossLabels.batch(CPU, np.ones((IMAGES, 3), np.float32))
    again: Any = other.shared
    states: Any = other
    both = own | {id(x) for x in (again.saved, again.labels, again.losses, again.members, again._slots, states._states)}
    assert (len(own), len(both)) == (6, 12)


def test_the_numbers_are_copied() -> None:
    for dtype in (np.float32, np.float64, np.uint8):
        rows = np.ones((2, 3), dtype)
        batch = MPSCNNLossLabels.batch(CPU, rows)
        rows[:] = 5
        assert numbers(batch[1].labels_image()).ravel().tolist() == [1, 1, 1]  # type: ignore[attr-defined]


def test_threads_get_the_same_object() -> None:
    batches = [MPSCNNLossLabels.batch(CPU, np.eye(2)) for _ in range(50)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(itemgetter(1), [batch for batch in batches for _ in range(4)]))
    assert all(each is batches[index // 4][1] for index, each in enumerate(found))


def test_nothing_is_kept_in_a_cycle() -> None:
    """The memory goes with the last reference, not when the collector comes."""
    gc.disable()
    try:
        batch = MPSCNNLossLabels.batch(CPU, np.eye(2))
        kept = batch[0]
        block = weakref.ref(kept.loss_image().storage.block)  # type: ignore[attr-defined]
        del batch
        assert block() is not None
        del kept
        assert block() is None
    finally:
        gc.enable()


# --- encodes ----------------------------------------------------------------------------------------------------------


def test_an_encode_makes_no_objects(device: torch.device, rng: np.random.Generator, made: list[int]) -> None:
    bench = Bench.on(device)
    y, t = rng.normal(size=SHAPE), rng.normal(size=SHAPE)
    batch = MPSCNNLossLabels.batch(bench.device, _pixels(t))
    _encode(bench, y, batch)
    assert made == []
    assert_close(_losses(batch), _squares(y, t), TOLERANCE)
    assert sorted(set(made)) == list(range(IMAGES))


def test_a_graph_makes_no_objects(device: torch.device, rng: np.random.Generator, made: list[int]) -> None:
    bench = Bench.on(device)
    y, t = rng.normal(size=SHAPE), rng.normal(size=SHAPE)
    descriptor = MPSCNNLossDescriptor(MPSCNNLossType.MEAN_SQUARED_ERROR, MPSCNNReductionType.SUM)
    node = MPSCNNLossNode(MPSNNImageNode(), descriptor)
    graph = MPSNNGraph(bench.device, node.result_image)
    batch = MPSCNNLossLabels.batch(bench.device, _pixels(t))
    command_buffer = bench.command_buffer()
    graph.encode_batch(command_buffer, [bench.batch(y)], [batch])
    finish(command_buffer)
    assert made == []
    assert_close(_losses(batch), _squares(y, t), TOLERANCE)


def test_losses_are_written_again(device: torch.device, rng: np.random.Generator) -> None:
    """Loss images that were read keep their place: a second run shows in the same objects."""
    bench = Bench.on(device)
    t = rng.normal(size=SHAPE)
    batch = MPSCNNLossLabels.batch(bench.device, _pixels(t))
    images = [each.loss_image() for each in batch]  # type: ignore[attr-defined]
    assert [numbers(image).item() for image in images] == [0.0] * IMAGES
    for _ in range(2):
        y = rng.normal(size=SHAPE)
        _encode(bench, y, batch)
        assert_close(np.array([numbers(image).item() for image in images]), _squares(y, t), TOLERANCE)


def test_written_labels_are_read(device: torch.device, rng: np.random.Generator) -> None:
    """A member's image is a view of what the encode reads."""
    bench = Bench.on(device)
    y, t = rng.normal(size=SHAPE), rng.normal(size=SHAPE)
    batch = MPSCNNLossLabels.batch(bench.device, _pixels(np.zeros(SHAPE)))
    for each, values in zip(batch, _pixels(t), strict=True):
        each.labels_image().write_bytes(np.ascontiguousarray(values, np.float32))  # type: ignore[attr-defined]
    _encode(bench, y, batch)
    assert_close(_losses(batch), _squares(y, t), TOLERANCE)


def test_weights(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    y, t, weights = rng.normal(size=SHAPE), rng.normal(size=SHAPE), rng.uniform(size=SHAPE)
    batch = MPSCNNLossLabels.batch(bench.device, _pixels(t), weights=_pixels(weights))
    _encode(bench, y, batch)
    assert_close(_losses(batch), _squares(y, t, weights), TOLERANCE)
    assert isinstance(batch[0].weights_image(), MPSImage)  # type: ignore[attr-defined]
    assert_close(numbers(batch[2].weights_image())[0], weights[2], TOLERANCE)  # type: ignore[attr-defined]


def test_loss_images_of_the_predictions_size(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    y, t = rng.normal(size=SHAPE), rng.normal(size=SHAPE)
    batch = MPSCNNLossLabels.batch(bench.device, _pixels(t), loss_image_size=MTLSize(2, 2, 3))
    _encode(bench, y, batch, _kernel(bench.device, MPSCNNReductionType.NONE))
    found = np.concatenate([numbers(each.loss_image()) for each in batch])  # type: ignore[attr-defined]
    assert_close(found, (y - t) ** 2, TOLERANCE)


def test_slices_and_batches_put_together_by_hand(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    y, t = rng.normal(size=SHAPE), rng.normal(size=SHAPE)
    batch = MPSCNNLossLabels.batch(bench.device, _pixels(t))
    apart = MPSCNNLossLabels(
        bench.device, MPSCNNLossDataDescriptor(_pixels(t)[0].astype(np.float32), size=MTLSize(2, 2, 3))
    )
    other = MPSCNNLossLabels.batch(bench.device, _pixels(t[:2]))
    for labels, rows in (
        (batch[1:4], [1, 2, 3]),
        (batch[::-2], [4, 2, 0]),
        ([*batch], [0, 1, 2, 3, 4]),
        ([batch[3], apart, *other], [3, 0, 0, 1]),
        (MPSStateBatch([batch[4], other[1]]), [4, 1]),
    ):
        _encode(bench, y[rows], labels)
        assert_close(_losses(labels), _squares(y, t)[rows], TOLERANCE)


def test_labels_of_one_image(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    y, t = rng.normal(size=(1, 3, 2, 2)), rng.normal(size=(1, 3, 2, 2))
    batch = MPSCNNLossLabels.batch(bench.device, _pixels(t))
    command_buffer = bench.command_buffer()
    _kernel(bench.device).encode(command_buffer, bench.image(y), batch[0])  # type: ignore[arg-type]
    finish(command_buffer)
    assert_close(_losses(batch), _squares(y, t), TOLERANCE)
    _encode(bench, 2 * y, batch)
    assert_close(_losses(batch), _squares(2 * y, t), TOLERANCE)


# --- subclasses -------------------------------------------------------------------------------------------------------


class Doubled(MPSCNNLossLabels):
    """Labels with a constructor and numbers of their own."""

    def __init__(self, device: MTLDevice, *arguments: Any, **options: Any) -> None:
        super().__init__(device, *arguments, **options)
        self.twice = MPSImage.from_numpy(device, super().labels_image().numpy() * 2)

    def labels_image(self) -> MPSImage:
        """Twice the labels."""
        return self.twice


def test_a_subclass_has_its_say(device: torch.device, rng: np.random.Generator) -> None:
    bench = Bench.on(device)
    y, t = rng.normal(size=SHAPE), rng.normal(size=SHAPE)
    batch = Doubled.batch(bench.device, _pixels(t))
    assert [type(each) for each in batch] == [Doubled] * IMAGES
    assert batch[1] is batch[1]
    assert len({id(each.loss_image().storage.block) for each in batch}) == 1  # type: ignore[attr-defined]
    _encode(bench, y, batch)
    assert_close(_losses(batch), _squares(y, 2 * t), TOLERANCE)
    with pytest.raises(MPSArgumentError, match="^Doubled: weights must be of 2 images, got 3"):
        Doubled.batch(bench.device, np.eye(2), weights=np.eye(3))


# --- read counts ------------------------------------------------------------------------------------------------------


def test_permanent_labels_have_no_count() -> None:
    bench = Bench(CPU)
    batch = MPSCNNLossLabels.batch(CPU, _pixels(np.zeros(SHAPE)))
    assert MPSStateBatchIncrementReadCount(batch, 3) == IMAGES
    assert [each.read_count for each in batch] == [0] * IMAGES
    assert [each.lives_on for each in batch.counted()] == [None]
    command_buffer = bench.command_buffer()
    MPSStateBatchSynchronize(batch, command_buffer)
    with pytest.raises(MPSLifetimeError, match="^MPSCNNLossLabels: read_count is kept by temporary states only"):
        batch[0].read_count = 2


def test_a_member_that_was_made_temporary_is_counted() -> None:
    bench = Bench(CPU)
    batch = MPSCNNLossLabels.batch(CPU, _pixels(np.zeros(SHAPE)))
    command_buffer = bench.command_buffer()
    batch[2].make_temporary(command_buffer)
    kernel, images = _kernel(CPU), bench.batch(np.zeros(SHAPE))
    kernel.encode_batch(command_buffer, images, batch)  # type: ignore[arg-type]
    assert batch[2].read_count == 0
    with pytest.raises(MPSLifetimeError, match="^MPSCNNLoss: labels must have reads left"):
        kernel.encode_batch(command_buffer, images, batch)  # type: ignore[arg-type]
    finish(command_buffer)


# --- what is refused --------------------------------------------------------------------------------------------------


def _refused(batch: Any, message: str, kernel: MPSCNNLoss | None = None, error: Any = MPSArgumentError) -> None:
    bench = Bench(CPU)
    with pytest.raises(error, match=f"^MPSCNNLoss: {message}"):
        (kernel or _kernel(CPU)).encode_batch(bench.command_buffer(), bench.batch(np.zeros(SHAPE)), batch)


def test_batches_that_do_not_fit(made: list[int]) -> None:
    batch = MPSCNNLossLabels.batch
    _refused(batch(CPU, np.zeros((2, 2, 2, 3))), "labels must be one MPSCNNLossLabels an image, 5, got 2")
    _refused(batch(CPU, np.zeros((5, 1, 2, 3))), r"labels\[0\] must be 2x2 with at least 3 channels.*got 2x1x3")
    _refused(batch(CPU, np.zeros((5, 2, 2, 2))), r"labels\[0\] must be 2x2 with at least 3 channels.*got 2x2x2")
    good = batch(CPU, np.zeros((5, 2, 2, 3)))
    unreduced = _kernel(CPU, MPSCNNReductionType.NONE)
    _refused(good, r"labels\[0\].loss_image\(\) must be \(2, 2, 3\).*got \(1, 1, 1\)", unreduced)
    weighted = batch(CPU, np.zeros((5, 2, 2, 3)), weights=np.ones((5, 2, 2, 3)))
    cosine = _kernel(CPU, kind=MPSCNNLossType.COSINE_DISTANCE)
    _refused(weighted, r"labels\[0\] must have no weights", cosine)
    assert made == []
    mixed = MPSStateBatch([weighted[0], *good[1:]])
    _refused(mixed, "labels must all have weights, or none, got 1 of 5")


def test_batches_of_another_device() -> None:
    other = MTLDevice(torch.device("cpu"))
    _refused(MPSCNNLossLabels.batch(other, np.zeros((5, 2, 2, 3))), "labels must belong", error=MPSDeviceError)


def test_arrays_that_cannot_be_labels() -> None:
    labels = np.zeros((2, 3))
    with pytest.raises(MPSArgumentError, match="^MPSCNNLossLabels: weights must be of 2 images, got 1"):
        MPSCNNLossLabels.batch(CPU, labels, weights=labels[:1])
    rule = "^MPSCNNLossLabels: weights must have the labels' size, <MPSImage 1x1x3 FLOAT32 on .*>, got <MPSImage 1x1x2"
    with pytest.raises(MPSArgumentError, match=rule):
        MPSCNNLossLabels.batch(CPU, labels, weights=labels[:, :2])
    with pytest.raises(MPSTypeError, match="^MPSCNNLossLabels: loss_image_size must be an MTLSize"):
        MPSCNNLossLabels.batch(CPU, labels, loss_image_size=(1, 1, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(3, 5), (3, 2, 4, 5), (1, 1)])
def test_labels_of_plain_arrays_are_those_of_any_others(device: torch.device, sizes: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(1).random(sizes, np.float32)
    # Numbers of float64 are looked through, those of float32 are not.
    plain, other = (
        MPSCNNLossLabels.batch(mtl_device(device), given) for given in (numbers, numbers.astype(np.float64))
    )
    numbers_before = numbers.copy()
    numbers[:] = 7
    assert type(plain) is type(other)
    assert len(plain) == len(other) == sizes[0]
    for mine, theirs, expected in zip(plain, other, numbers_before, strict=True):
        found = mine.labels_image().numpy()
        np.testing.assert_array_equal(found.ravel(), expected.ravel())
        np.testing.assert_array_equal(found, theirs.labels_image().numpy())
        np.testing.assert_array_equal(mine.loss_image().numpy(), theirs.loss_image().numpy())
        assert mine.weights_image() is theirs.weights_image() is None
    assert given_labels(plain) == given_labels(other)


@pytest.mark.parametrize("sizes", [(3,), (3, 2, 5), (0, 5), (3, 0)])
def test_wrong_plain_arrays_are_refused_as_any_others(device: torch.device, sizes: tuple[int, ...]) -> None:
    told: list[str] = []
    for dtype in (np.float32, np.float64):
        with pytest.raises(MPSError) as raised:
            MPSCNNLossLabels.batch(mtl_device(device), np.zeros(sizes, dtype))
        told.append(str(raised.value))
    assert told[0] == told[1]
