"""Augmented training: what texts say, what a step's graph sees, and that tests see images as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from encoding import FLOAT32, Bench, finish, numbers
from every_option import AUGMENTATION as EVERYTHING
from in_one_test import in_one_test
from openmps.core.image.batch import MPSImageBatch
from openmps.errors import MPSArgumentError, MPSFileError, MPSTypeError
from openmps.runtime.devices import mtl_device
from openmps.training.augmentation import Augmentation
from openmps.training.augmented_batches import AugmentedBatches, augmented_images
from openmps.training.dataset import Batch, Dataset, DataSplit
from openmps.training.inference import Classifier
from openmps.training.loop import TrainingOptions, describe_run, train
from openmps.training.network import Network, NetworkShape, optimizer_factory
from openmps.training.run_description import run_options
from openmps.training.run_folder import RunFolder
from openmps.training.stepper import TrainingStepper
from openmps.types import MPSImageFeatureChannelFormat as Format
from replay_twin import outcomes, replaying_queue

CPU = mtl_device("cpu")


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fields", "written"),
    [
        ("flip", {"flip": "random"}, "flip:random"),
        (" rotate:10 , flip:alternate", {"flip": "alternate", "rotation": 10.0}, "flip:alternate,rotate:10"),
        ("mixup", {"mix_up": 1.0}, "mixup:1"),
        ("normalize:0/0.1", {"normalization": (0.0, 0.1)}, "normalize:0/0.1"),
        (EVERYTHING, {"rotation": 12.5, "mix_up": 0.3, "padding": "reflect"}, EVERYTHING),
    ],
)
def test_texts(text: str, fields: dict[str, Any], written: str) -> None:
    found = Augmentation.parse(text)
    assert {name: getattr(found, name) for name in fields} == fields
    assert str(found) == written
    assert Augmentation.parse(written) == found


@in_one_test
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"text must have items of flip, crop, .*, mixup, got ''"),
        ("flip,,crop:2", r"text must have items of flip, .*, got ''"),
        ("spin:3", r"text must have items of .*, got 'spin:3'"),
        ("crop", "crop must be a whole number of pixels, 1 or more, got nothing. Say crop:VALUE"),
        ("crop:4:reflect", "crop must be a whole number of pixels.* got '4:reflect'"),
        ("crop:0", "crop must be a whole number of pixels"),
        ("crop:2,crop:3", "crop must stand once, got 'crop:2,crop:3'"),
        ("rotate:nan", "rotate must be degrees above 0 in float32, 180 at most, got 'nan'"),
        ("rotate:181", "rotate must be degrees above 0 in float32, 180 at most"),
        ("rotate:1e-40", "rotate must be degrees above 0 in float32"),
        ("smooth:1e-300", "smooth must be a number above 0 in float32, 1 at most, got '1e-300'"),
        ("flip:", "flip must be random or alternate, got nothing"),
        ("pad:mirror", "pad must be one of zero, edge, reflect, got 'mirror'"),
        ("normalize:0.5", "normalize must be MEAN/DEVIATION, above 0, which leave pixels .* got '0.5'"),
        ("normalize:0.5/0", "normalize must be MEAN/DEVIATION"),
        (
            "normalize:0.5/1e-40",
            "normalize must be .* which leave pixels from 0 to 1 finite and apart in float32, got '0.5/1e-40'",
        ),
        ("normalize:5/1.2e-38", "normalize must be MEAN/DEVIATION"),
        ("normalize:0.5/1e38", "normalize must be MEAN/DEVIATION"),
        ("normalize:1e9/1", "normalize must be MEAN/DEVIATION"),
        ("normalize:1e39/1", "normalize must be MEAN/DEVIATION"),
        ("mixup:inf", "mixup must be a finite number above 0 in float32"),
        ("mixup:1e39", "mixup must be a finite number above 0 in float32"),
    ],
)
def test_texts_that_say_nothing(text: str, message: str) -> None:
    with pytest.raises(MPSArgumentError, match=f"^Augmentation: {message}"):
        Augmentation.parse(text)


def test_arguments() -> None:
    for field, value in {"crop": True, "rotation": "10", "flip": "both", "normalization": [0.5, 0.5]}.items():
        with pytest.raises(MPSArgumentError, match=f"^Augmentation: {field} must be "):
            Augmentation(**{field: value})  # type: ignore[arg-type]
    for field, given in {"crop": np.arange(2), "normalization": np.ones(2), "flip": np.array(["random"])}.items():
        with pytest.raises(MPSArgumentError, match=f"^Augmentation: {field} must be "):
            Augmentation(**{field: given})  # type: ignore[arg-type]
    for pair in ((False, 1.0), (np.arange(2), 1.0), (0.5, np.inf), (10**400, 1)):
        with pytest.raises(MPSArgumentError, match="^Augmentation: normalization must be "):
            Augmentation(normalization=pair)  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="^Augmentation: text must be items between commas"):
        Augmentation.parse(None)  # type: ignore[arg-type]
    with pytest.raises(MPSTypeError, match="^TrainingOptions: augmentation must be an Augmentation, got int"):
        TrainingOptions(epochs=1, augmentation=3)  # type: ignore[arg-type]
    assert TrainingOptions(epochs=1, augmentation="crop:4").augments == Augmentation(crop=4)
    assert TrainingOptions(epochs=1, augmentation=Augmentation()).describe() == TrainingOptions(epochs=1).describe()


def test_numbers_of_numpy_are_kept_as_pythons() -> None:
    """A run's description has the text, from which it goes on."""
    pair = (np.float32(0.5), np.float64(0.25))
    found = Augmentation(crop=np.int64(2), brightness=np.float64(0.1), normalization=pair)  # type: ignore[arg-type]
    assert str(found) == "crop:2,brightness:0.1,normalize:0.5/0.25"
    assert Augmentation.parse(str(found)) == found


# --- batches ----------------------------------------------------------------------------------------------------------


IMAGES = np.random.default_rng(8).integers(0, 256, (8, 6, 5, 2), dtype=np.uint8)
LABELS = np.eye(4, dtype=np.float32)[[0, 3, 1, 2, 2, 0, 1, 3]]


def _step(how: str, share: int = 0, shares: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a first step, of one share of the batch."""
    own = slice(share * 8 // shares, (share + 1) * 8 // shares)
    made = AugmentedBatches(Augmentation.parse(how), CPU, FLOAT32, channels=2, seed=5, share=share, keeps_images=True)
    made.begin_epoch(1, np.arange(100, 111))
    bench, mixed = Bench(CPU), MPSImageBatch.from_numpy(CPU, LABELS[own, None, None])
    command_buffer = bench.command_buffer()
    changed = made.encode(command_buffer, MPSImageBatch.from_numpy(CPU, IMAGES[own]), own.start)
    made.encode_labels(command_buffer, made.unmixed(LABELS[own]), mixed)
    finish(command_buffer)
    return numbers(changed), numbers(mixed)[..., 0, 0]


def test_every_split_of_a_batch_has_the_same_images_and_labels() -> None:
    images, labels = _step(EVERYTHING)
    assert (labels != LABELS).any()
    np.testing.assert_allclose(labels.sum(1), 1.0, rtol=1e-6)
    for shares in (2, 4):
        parts = [_step(EVERYTHING, share, shares) for share in range(shares)]
        np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), images)
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), labels)


@in_one_test
@pytest.mark.parametrize("item", [*EVERYTHING.split(",")[:-2], "mixup:0.3", "flip"])
def test_every_item_changes_images_in_its_way(item: str) -> None:
    """Alone; padding needs a move to show."""
    plain = np.transpose(IMAGES / np.float32(255), (0, 3, 1, 2))
    found, labels = _step(f"{item},crop:2" if item.startswith("pad") else item)
    assert (found != (_step("crop:2")[0] if item.startswith("pad") else plain)).any()
    assert ((labels != LABELS).any()) == item.startswith("mixup")


def test_smoothing_changes_no_image() -> None:
    made = AugmentedBatches(Augmentation(label_smoothing=0.1), CPU, FLOAT32, channels=2, seed=5)
    source = MPSImageBatch.from_numpy(CPU, IMAGES)
    command_buffer = Bench(CPU).command_buffer()
    assert made.encode(command_buffer, source, 0) is source
    assert made.unmixed(LABELS) is None
    assert not made.parts()


def test_images_of_a_few_steps() -> None:
    found = augmented_images("flip:alternate", IMAGES, steps=3)
    assert found.shape == (3, *IMAGES.shape)
    np.testing.assert_array_equal(found[1], found[0][:, :, ::-1])
    np.testing.assert_array_equal(found[2], found[0])
    for wrong, error, message in (
        (IMAGES[0], MPSArgumentError, "images must be .images, height"),
        (IMAGES / 255, MPSTypeError, "images must be uint8, 0 to 255, got float64"),
    ):
        with pytest.raises(error, match=f"^augmented_images: {message}"):
            augmented_images("flip", wrong)


# --- training ---------------------------------------------------------------------------------------------------------


def _dataset(count: int) -> Dataset:
    """Horizontal and vertical stripes with noise."""
    generator = np.random.default_rng(count)
    labels = np.arange(count) % 2
    stripes = np.zeros((2, 6, 6, 1))
    stripes[0, ::2], stripes[1, :, ::2] = 200, 200
    return Dataset(
        (stripes[labels] + generator.integers(0, 55, (count, 6, 6, 1))).astype(np.uint8),
        labels,
        ("rows", "columns"),
        "stripes",
    )


DATA = DataSplit(_dataset(33), _dataset(12))


@pytest.mark.usefixtures("undrawn")
def test_tests_see_images_as_they_are(tmp_path: Any) -> None:
    """The run says how it was augmented, and predicts as its last test did: normalized, and nothing else."""
    options = TrainingOptions(epochs=2, batch_size=8, network="tiny", augmentation=EVERYTHING)
    run = RunFolder.create(tmp_path, describe_run(DATA, options), name="run")
    result = train(DATA, run, options, CPU)
    assert result.evaluation is not None
    assert run_options(RunFolder.open(run.path)).augmentation == options.augmentation == Augmentation.parse(EVERYTHING)
    opened = Classifier.open(run.path, CPU)
    assert opened.preprocessing is not None
    assert (opened.preprocessing.mean, opened.preprocessing.scale) == ((102.0,), (1 / (255 * 0.25),))
    found = opened.evaluate(DATA.test)
    assert (found.loss, found.confidence.tolist()) == (result.evaluation.loss, result.evaluation.confidence.tolist())
    assert opened.evaluate(DATA.test).loss == found.loss


@pytest.mark.usefixtures("undrawn")
def test_images_are_mirrored_by_their_numbers_in_the_data(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every batch of every epoch, whose orders differ."""
    options = TrainingOptions(epochs=2, batch_size=8, network="tiny", augmentation="flip:alternate")
    prepare, seen = TrainingStepper.prepare, list[tuple[list[int], list[int]]]()

    def noting(stepper: TrainingStepper, batch: Batch, place: int = 0) -> Any:
        order: Any = stepper._augmented and stepper._augmented._order
        seen.append((order.numpy()[place : place + 8].tolist(), batch.indices.tolist()))
        return prepare(stepper, batch, place)

    monkeypatch.setattr(TrainingStepper, "prepare", noting)
    train(DATA, RunFolder.create(tmp_path, describe_run(DATA, options), name="run"), options, CPU)
    assert len(seen) == 8
    assert len({tuple(numbers) for numbers, _ in seen}) == 8
    assert [numbers for numbers, _ in seen] == [indices for _, indices in seen]


@pytest.mark.usefixtures("undrawn")
def test_refusals_of_runs(tmp_path: Any) -> None:
    options = TrainingOptions(epochs=1, batch_size=9, augmentation="mixup")
    with pytest.raises(
        MPSArgumentError, match="batch_size must give each process pairs of images, .*: 9 are none, got 9"
    ):
        train(DATA, RunFolder.create(tmp_path, describe_run(DATA, options), name="odd"), options, CPU)
    # Described without the normalization that it is trained with: predictions would see other pixels.
    plain = describe_run(DATA, TrainingOptions(epochs=1, batch_size=8))
    normalized = TrainingOptions(epochs=1, batch_size=8, augmentation="normalize:0.5/0.5")
    with pytest.raises(
        MPSFileError, match="must have the preprocessing that networks are trained with, grey, .pixels - 127"
    ):
        train(DATA, RunFolder.create(tmp_path, plain, name="plain"), normalized, CPU)
    two = Dataset(np.zeros((4, 4, 4, 2), np.uint8), np.arange(4) % 2, ("a", "b"), "two channels")
    with pytest.raises(MPSArgumentError, match="normalization must be left out for images of 2 channels"):
        describe_run(DataSplit(two, two), TrainingOptions(epochs=1, batch_size=2, augmentation="normalize:0.5/0.5"))


def _stepper(how: str, channel_format: Format = Format.FLOAT32) -> TrainingStepper:
    network = Network.create(NetworkShape(6, 6, 1, 2, "lenet"), seed=0, optimizer=optimizer_factory("sgd", 0.01))
    return TrainingStepper(
        network, CPU, channel_format, batch_size=8, dropout_seed=1, augmentation=Augmentation.parse(how)
    )


def _losses(stepper: TrainingStepper, queue: Any = None) -> tuple[list[float], list[str]]:
    """Those of five steps over two epochs, and what became of the works of the last one."""
    stepper._queue, became = queue or stepper._queue, list[str]()
    for step in range(5):
        if step in (0, 3):
            stepper.begin_epoch(1 + step // 3, np.random.default_rng(step).permutation(33))
        chosen = np.arange(8 * step, 8 * step + 8) % 33
        batch = Batch(DATA.training.images[chosen], DATA.training.labels[chosen], chosen)
        stepper.step(stepper.prepare(batch, 8 * (step % 3)))
        command_buffer = stepper._started[-1].command_buffer
        stepper.wait()
        became = outcomes(command_buffer)
    return [loss for loss, _ in stepper.collect()], became


@pytest.mark.parametrize("channel_format", [Format.FLOAT32, Format.FLOAT16], ids=str)
def test_a_step_is_replayed_with_its_augmentation(channel_format: Format) -> None:
    """Whole, as it is without, and with new random numbers each time."""
    plain, _ = _losses(_stepper(EVERYTHING, channel_format))
    assert len(set(plain)) == 5
    found, became = _losses(_stepper(EVERYTHING, channel_format), replaying_queue(CPU))
    assert found == plain
    assert {*became} == {"replayed"}


def test_labels_are_smoothed_in_the_loss() -> None:
    """The loss of smoothed labels differs, that of the first step by what cross-entropy says."""
    (plain, *_), _ = _losses(_stepper("crop:1"))
    (smoothed, *_), _ = _losses(_stepper("crop:1,smooth:0.5"))
    assert plain != smoothed
