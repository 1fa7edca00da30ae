"""Data sets: their checks, the held-out part, and the order of an epoch."""

from collections import Counter

import numpy as np
import pytest

from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.training.dataset import Dataset, batches_per_epoch, epoch_order, iterate_batches


def make(counts=(10, 5, 1, 0), name="toy"):
    """A data set whose image k has the pixel value k."""
    labels = np.concatenate([np.full(count, label) for label, count in enumerate(counts)]).astype(np.int64)
    np.random.default_rng(5).shuffle(labels)
    images = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1) * np.ones((1, 2, 3, 1), dtype=np.uint8)
    return Dataset(images, labels, tuple("abcd"[: len(counts)]), name)


def philox_order(count, seed, key):
    """Positions sorted by the first ``count`` words of Philox 4x64-10 (Salmon et al., 2011), in Python integers."""
    mask = (1 << 64) - 1
    words: list[int] = []
    start = np.random.SeedSequence(seed, spawn_key=key).generate_state(2, np.uint64).tolist()
    for block in range(1, -(-count // 4) + 1):
        x, (k0, k1) = [block, 0, 0, 0], start
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
            x = [(b >> 64) ^ x[1] ^ k0, b & mask, (a >> 64) ^ x[3] ^ k1, a & mask]
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
        words += x
    return sorted(range(count), key=words.__getitem__)


def numbers(dataset):
    return dataset.images[:, 0, 0, 0].tolist()


def test_split_is_stratified_disjoint_and_complete():
    dataset = make((10, 5, 1, 0, 2)[:4])
    training, test = dataset.split(seed=3)
    assert Counter(test.labels.tolist()) == {0: 2, 1: 1}
    assert Counter(training.labels.tolist()) == {0: 8, 1: 4, 2: 1}
    assert sorted(numbers(training) + numbers(test)) == list(range(16))
    assert numbers(training) == sorted(numbers(training))
    for part in (training, test):
        np.testing.assert_array_equal(part.labels, dataset.labels[numbers(part)])
        assert part.class_names == dataset.class_names


def test_split_depends_on_the_seed_and_nothing_else():
    parts = {seed: numbers(make((40, 40)).split(seed=seed).test) for seed in range(4)}
    assert parts[1] == numbers(make((40, 40)).split(seed=1).test)
    assert len({tuple(part) for part in parts.values()}) == 4
    labels = make((40, 40)).labels
    expected = [np.flatnonzero(labels == k)[philox_order(40, 2, (0, k))[:8]].tolist() for k in (0, 1)]
    assert parts[2] == sorted(expected[0] + expected[1])


@pytest.mark.parametrize(
    ("names", "kind", "message"),
    [
        (("a", "b", "a"), MPSArgumentError, "must all be different"),
        ("abc", MPSTypeError, "must be a sequence of str, got str"),
        (("a", 1, 2), MPSTypeError, "must be a sequence of str, got int among them"),
    ],
)
def test_class_names_that_nobody_could_tell_apart(names, kind, message):
    with pytest.raises(kind, match=f"^Dataset 'toy': class_names {message}"):
        Dataset(np.zeros((3, 1, 1, 1), np.uint8), np.arange(3), names, "toy")


@pytest.mark.parametrize(("count", "fraction", "held_out"), [(2, 0.01, 1), (2, 0.99, 1), (10, 0.5, 5), (5, 0.99, 4)])
def test_both_parts_of_a_class_keep_an_image(count, fraction, held_out):
    training, test = make((count,)).split(fraction=fraction)
    assert (len(training), len(test)) == (count - held_out, held_out)


def test_split_refuses_what_cannot_be_split():
    with pytest.raises(
        MPSArgumentError, match="two images or more of one class to be split, got 2 images of 2 classes"
    ):
        make((1, 1)).split()
    for fraction in (0, 1, -0.5, float("nan")):
        with pytest.raises(MPSArgumentError, match="fraction must lie between 0 and 1"):
            make().split(fraction=fraction)
    with pytest.raises(MPSTypeError, match="fraction must be a number, got '0.2'"):
        make().split(fraction="0.2")
    with pytest.raises(MPSArgumentError, match="seed must be 0 or more, got -1"):
        make().split(seed=-1)
    with pytest.raises(MPSTypeError, match="seed must be a whole number, got float"):
        make().split(seed=1.5)


def test_dataset_checks_its_arrays():
    images, labels = np.zeros((2, 3, 3, 1), dtype=np.uint8), np.array([0, 1])
    bad = [
        (images[..., 0], labels, ("a", "b"), MPSArgumentError, r"images must be \[N, H, W, C\], got shape \(2, 3, 3\)"),
        (images.astype(float), labels, ("a", "b"), MPSTypeError, "images must be uint8, got float64"),
        (images, labels.astype(np.int32), ("a", "b"), MPSTypeError, "labels must be int64, got int32"),
        (images, labels[:1], ("a", "b"), MPSArgumentError, "one for each of 2 images, got 1"),
        (images, labels, ("a",), MPSArgumentError, "labels must be 0 to 0, got 1"),
        (images, labels - 1, ("a", "b"), MPSArgumentError, "labels must be 0 to 1, got -1"),
        (images[:0], labels[:0], ("a", "b"), MPSArgumentError, "at least one pixel"),
        (images.tolist(), labels, ("a", "b"), MPSTypeError, "images must be a NumPy array, got list"),
    ]
    for array, indices, names, kind, message in bad:
        with pytest.raises(kind, match=message):
            Dataset(array, indices, names, "toy")


def test_epoch_order_is_a_permutation_of_seed_and_epoch():
    orders = {(seed, epoch): epoch_order(100, seed=seed, epoch=epoch) for seed in range(3) for epoch in range(3)}
    for order in orders.values():
        assert sorted(order.tolist()) == list(range(100))
    assert len({tuple(order.tolist()) for order in orders.values()}) == 9
    np.testing.assert_array_equal(orders[1, 2], epoch_order(100, seed=1, epoch=2))
    for seed, epoch in ((0, 0), (2, 1), (2**70, 1)):
        assert epoch_order(99, seed=seed, epoch=epoch).tolist() == philox_order(99, seed, (1, epoch))
    # In numbers, so that a change of the generator's seeding shows as well.
    assert epoch_order(8, seed=0, epoch=0).tolist() == [4, 6, 3, 5, 2, 1, 0, 7]
    assert epoch_order(0, seed=0, epoch=0).tolist() == []


def test_every_position_is_equally_likely():
    first = Counter(int(epoch_order(5, seed=seed, epoch=0)[0]) for seed in range(2000))
    assert min(first.values()) > 330  # 400 expected, standard deviation 18


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_cover_an_epoch_once_and_match_their_indices(shuffle):
    dataset = make((10, 7))
    batches = list(iterate_batches(dataset, 5, seed=1, epoch=2, last_batch="keep", shuffle=shuffle))
    assert [len(batch.labels) for batch in batches] == [5, 5, 5, 2]
    seen = np.concatenate([batch.indices for batch in batches])
    np.testing.assert_array_equal(seen, epoch_order(17, seed=1, epoch=2) if shuffle else np.arange(17))
    for batch in batches:
        np.testing.assert_array_equal(batch.images, dataset.images[batch.indices])
        np.testing.assert_array_equal(batch.labels, dataset.labels[batch.indices])


def test_last_batch_policy():
    dataset = make((10, 7))
    drop = [len(batch.labels) for batch in iterate_batches(dataset, 5, seed=1, epoch=0, last_batch="drop")]
    assert drop == [5, 5, 5]
    for size, keep, dropped in ((5, 4, 3), (17, 1, 1), (1, 17, 17), (6, 3, 2)):
        assert batches_per_epoch(17, size, last_batch="keep") == keep
        assert batches_per_epoch(17, size, last_batch="drop") == dropped


def test_starting_in_the_middle_continues_the_same_epoch():
    dataset = make((10, 7))
    whole = list(iterate_batches(dataset, 3, seed=1, epoch=4, last_batch="keep"))
    rest = list(iterate_batches(dataset, 3, seed=1, epoch=4, last_batch="keep", first_batch=2))
    assert [batch.indices.tolist() for batch in rest] == [batch.indices.tolist() for batch in whole[2:]]


def test_batch_arguments_are_checked_by_the_call():
    dataset = make((10, 7))
    with pytest.raises(MPSArgumentError, match="batch_size must be 1 or more, got 0"):
        iterate_batches(dataset, 0, seed=0, epoch=0, last_batch="keep")
    with pytest.raises(MPSArgumentError, match=r"at most the 17 images .* got 18\. Use a smaller batch"):
        iterate_batches(dataset, 18, seed=0, epoch=0, last_batch="drop")
    with pytest.raises(MPSArgumentError, match="must be 'keep' or 'drop', got 'pad'"):
        iterate_batches(dataset, 2, seed=0, epoch=0, last_batch="pad")
    with pytest.raises(MPSArgumentError, match="epoch must be 0 or more, got -1"):
        iterate_batches(dataset, 2, seed=0, epoch=-1, last_batch="keep")
    with pytest.raises(MPSTypeError, match="batch_size must be a whole number, got bool"):
        iterate_batches(dataset, True, seed=0, epoch=0, last_batch="keep")
