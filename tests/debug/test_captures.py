"""Captures of a device, played by networks with mistakes: each is found, and rounding explains a right device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openmps as mps
from fake_device import FLOAT32, App, Array, play
from fake_device import photo as photograph
from networks import NETWORKS

OHWI = "OHWI"
Change = Callable[[Array], Array]


def stored(order: str, label: str) -> Callable[[str, Array], Array]:
    """Weights of one layer that a file has in another order, and that are read as they lie there."""
    axes = [OHWI.index(letter) for letter in order]
    return lambda name, array: array.transpose(axes).reshape(array.shape).copy() if name == label else array


def turned(name: str, array: Array) -> Array:
    return array[:, ::-1, ::-1].copy() if name == "second" else array


def without_biases(name: str, array: Array) -> Array | None:
    return None if name == "third" else array


PLANTED: dict[str, tuple[App, str, str]] = {
    **{f"padding, {side}": (App(shift={"second": move}), "second", f"its windows lie one pixel further {side}")
       for side, move in {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), "up and left": (-1, -1),
                          "up and right": (1, -1), "down and left": (-1, 1), "down and right": (1, 1)}.items()},
    **{f"weights in {order}": (App(weights=stored(order, "fourth")), "fourth",
                               f"its weights lie in the order {order} and are read as OHWI")
       for order in ("HWIO", "OIHW", "IHWO", "IOHW", "HWOI")},
    "connected layer of a picture in CHW": (App(weights=stored("OIHW", "connected")), "connected", "the order OIHW"),
    "turned weights": (App(weights=turned), "second", "its weights are turned by 180 degrees"),
    "biases": (App(biases=without_biases), "third", "its biases are left out"),
    "doubled biases": (App(biases=lambda name, array: 2 * array if name == "first" else array), "first",
                       "its biases are added twice"),
    "epsilon": (App(epsilon=1e-3), "norm", "its epsilon is 0.001, here 1e-05"),
    "beta": (App(rows=lambda rows: {**rows, "beta": 0 * rows["beta"]}), "norm", "its beta is left out"),
    "gamma and beta": (App(rows=lambda rows: {**rows, "beta": 0 * rows["beta"], "gamma": np.ones(6)}), "norm",
                       "its gamma and beta are left out"),
    "standard deviation": (App(rows=lambda rows: {**rows, "variance": rows["variance"] ** 0.5}), "norm",
                           "its standard deviation is taken for a variance"),
    "no neuron": (App(neuron=None), "pool", "its neuron is left out"),
    "another neuron": (App(neuron=mps.MPSCNNNeuronSigmoidNode), "relu", "its neuron is sigmoid, here ReLU"),
    "slope": (App(neuron=lambda image: mps.MPSCNNNeuronReLUNode(image, 0.1)), "relu", "leaky ReLU of slope 0.1"),
    "edge mode": (App(edge_mode=mps.MPSImageEdgeMode.CLAMP), "second", "it reads as edge mode CLAMP, here as ZERO"),
    "dilation": (App(dilation=1), "fourth", "its windows are not dilated"),
    "filler": (App(conventions={"concatenation_filler": "zeros"}), "joined",
               "it follows the convention concatenation_filler='zeros', here 'texture'"),
    "scale": (App(conventions={"graph_primary_scale": "dropped"}), "added", "its primary_scale is left out"),
    "operands": (App(is_exchanged=True), "joined", "its first two sources are exchanged"),
    "logarithm": (App(softmax=mps.MPSCNNLogSoftMaxNode), "probabilities", "it gives logarithms of the softmax"),
}  # fmt: skip
"""Networks with a mistake in them, the first layer that departs, and what is said of it."""


@pytest.fixture(scope="module")
def right() -> mps.MPSNNGraph:
    return App().graph(FLOAT32)


@pytest.fixture(scope="module")
def photo() -> Array:
    return photograph()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name: str, right: mps.MPSNNGraph, photo: Array, tmp_path: Path) -> None:
    app, layer, says = PLANTED[name]
    capture = mps.debug.load_capture(play(tmp_path / "capture", app, photo))
    verdict = mps.debug.compare_capture(right, capture, [photo])
    assert verdict.first is not None
    assert verdict.first.label == layer
    assert any(says in each for each in verdict.first.mistakes), verdict
    assert [each.label for each in verdict.layers if each.departs] == [layer], "later layers run from its own images"
    assert f"the first true difference: {layer}: " in str(verdict)


@pytest.mark.parametrize("seed", range(4))
def test_a_right_device_is_explained_by_rounding(seed: int, right: mps.MPSNNGraph, tmp_path: Path) -> None:
    """Weights rounded up, down or to the nearest, in images of float16."""
    rng = np.random.default_rng(seed)

    def rounded(name: str, array: Array) -> Array:
        near = array.astype(np.float16)
        other = np.nextafter(near, np.where(rng.random(array.shape) < 0.5, np.float16(np.inf), np.float16(-np.inf)))
        between = np.where((near < array) == (other > near), other, near)
        return (between if seed else near).astype(np.float32)

    given = photograph(2)
    verdict = mps.debug.compare_capture(
        right, mps.debug.load_capture(play(tmp_path / "capture", App(weights=rounded), given)), [given]
    )
    assert verdict.ok, verdict
    assert verdict.first is None
    assert str(verdict).endswith("explained by rounding: 13 images, in float16")
    assert len(verdict.layers) == 12
    assert max(each.share for each in verdict.layers) > 0.1, "the bound is no wider than it must be"


@pytest.mark.parametrize("name", ["digits", "residual", "concatenated"])
def test_networks_in_float16_are_explained(name: str) -> None:
    network = NETWORKS[name](np.random.default_rng(0))
    network.image.handle = mps.Handle("image")
    graph = mps.MPSNNGraph(mps.mtl_device("cpu"), network.loss.sources[0])
    given = network.batch(np.random.default_rng(1), 2)[0].transpose(0, 2, 3, 1).astype(np.float16)
    trace = graph.trace([given])
    images = [mps.debug.CapturedImage("image", mps.MPSImageFeatureChannelFormat.FLOAT16, given)]
    images += [mps.debug.CapturedImage(each.label, each.channel_format, each.array)
               for each in trace.of(mps.debug.TracedKind.IMAGE) if each.channel_format is not None]  # fmt: skip
    verdict = mps.debug.compare_capture(graph, mps.debug.Capture(tuple(images)))
    assert verdict.ok, verdict


PICTURES: dict[str, tuple[Callable[[Array], Array], str]] = {
    "scale": (lambda x: x * 255, "times 255"),
    "inverse scale": (lambda x: x / 255, "times 1/255"),
    "mean": (lambda x: x - np.float16([0.5, 0.25, 0.125]), "with -0.5, -0.25, -0.125 added: another mean"),
    "scale and mean": (lambda x: 2 * x - 1, "times 2, with -1, -1, -1 added: another scale and mean"),
    "BGR": (lambda x: x[..., ::-1], "with its channels in reverse order (BGR for RGB)"),
    "upside down": (lambda x: x[:, ::-1], "upside down"),
    "mirrored": (lambda x: x[:, :, ::-1], "mirrored from left to right"),
    "columns": (lambda x: x.transpose(0, 2, 1, 3), "with rows and columns exchanged"),
    "BGR upside down": (lambda x: x[:, ::-1, :, ::-1], "upside down, with its channels in reverse order"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_what_was_done_to_the_picture_is_found(name: str, right: mps.MPSNNGraph, photo: Array, tmp_path: Path) -> None:
    change, says = PICTURES[name]
    given = np.ascontiguousarray(change(photo), np.float16)
    verdict = mps.debug.compare_capture(
        right, mps.debug.load_capture(play(tmp_path / "capture", App(), given)), [photo]
    )
    assert verdict.first is verdict.sources[0]
    assert says in verdict.sources[0].mistakes[0], verdict
    assert not any(each.departs for each in verdict.layers), "the network did with it what it should"


def test_a_picture_that_is_read_otherwise_than_it_was_dumped(
    right: mps.MPSNNGraph, photo: Array, tmp_path: Path
) -> None:
    folder = play(tmp_path / "capture", App(), np.ascontiguousarray(photo[:, ::-1]))
    data = (folder / "images.dat").read_bytes()
    (folder / "images.dat").write_bytes(photo.tobytes() + data[photo.nbytes :])
    verdict = mps.debug.compare_capture(right, mps.debug.load_capture(folder), [photo])
    assert verdict.first is verdict.layers[0]
    assert verdict.layers[0].mistakes == ("it reads 'image' upside down",)


def test_numbers_beyond_float16(photo: Array, tmp_path: Path) -> None:
    for loud, says in ((1e5, "its numbers are beyond"), (1e6, "its weights are beyond")):
        app = App(loud=loud)
        capture = mps.debug.load_capture(play(tmp_path / says, app, photo))
        verdict = mps.debug.compare_capture(app.graph(FLOAT32), capture)
        assert verdict.first is not None
        assert says in verdict.first.mistakes[0]


def test_layers_that_a_device_does_not_show(right: mps.MPSNNGraph, photo: Array, tmp_path: Path) -> None:
    """The ones between run here, with what rounding on the way explains; mistakes of theirs are found, too."""
    hidden = ("first", "norm", "relu", "added", "average")
    verdict = mps.debug.compare_capture(
        right, mps.debug.load_capture(play(tmp_path / "right", App(), photo, left_out=hidden))
    )
    assert verdict.ok, verdict
    assert verdict.layers[0].within == ("first", "norm", "relu", "pool")
    assert any("not in the capture: 'first'" in note for note in verdict.notes)
    app = App(epsilon=1e-2)
    found = mps.debug.compare_capture(
        right, mps.debug.load_capture(play(tmp_path / "wrong", app, photo, left_out=hidden))
    )
    assert found.first is not None
    assert found.first.label == "pool"
    assert "its epsilon is 0.01, here 1e-05" in found.first.mistakes[0]


def test_names_of_an_apps_own_are_paired_in_order(right: mps.MPSNNGraph, photo: Array, tmp_path: Path) -> None:
    names = {label: f"layer {place}" for place, label in enumerate(
        ("first", "norm", "relu", "pool", "second", "added", "third", "joined", "fourth", "average"))}  # fmt: skip
    app = App(biases=without_biases)
    verdict = mps.debug.compare_capture(
        right, mps.debug.load_capture(play(tmp_path / "capture", app, photo, names=names))
    )
    assert any(note == "'layer 4' is taken for 'second'" for note in verdict.notes), verdict.notes
    assert verdict.first is not None
    assert (verdict.first.label, verdict.first.mistakes) == ("third", ("its biases are left out",))


def _of_two_convolutions(slope: float | None = None, *, weights: Change = lambda array: array) -> mps.MPSNNGraph:
    """A neuron between two convolutions: a part of the first one, or a leaky one of its own."""
    device, rng = mps.mtl_device("cpu"), np.random.default_rng(3)
    image = mps.MPSNNImageNode(mps.Handle("image"))
    for place, label in enumerate(("conv1", "conv2")):
        array = rng.normal(size=(3, 3, 3, 3)).astype(np.float32)
        descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, 3, 3)
        if slope is None and not place:
            descriptor.fused_neuron_descriptor = mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.RELU, 0.0)
        given = array if place else weights(array)
        node = mps.MPSCNNConvolutionNode(image, mps.ArrayConvolutionDataSource(descriptor, given, label=label))
        node.label, image = label, node.result_image
        if slope is not None and not place:
            neuron = mps.MPSCNNNeuronReLUNode(image, slope)
            neuron.label, image = "relu1", neuron.result_image
    graph = mps.MPSNNGraph(device, image)
    graph.format = FLOAT32
    return graph


def _turned(array: Array) -> Array:
    return array[:, ::-1, ::-1].copy()


@pytest.mark.parametrize(("here", "there", "layer", "mistakes"), [
    (_of_two_convolutions(), _of_two_convolutions(0.0), None, ()),
    (_of_two_convolutions(0.0), _of_two_convolutions(), None, ()),
    (_of_two_convolutions(), _of_two_convolutions(0.2), "conv1", ("its neuron is leaky ReLU of slope 0.2, here ReLU",)),
    (_of_two_convolutions(0.2), _of_two_convolutions(), "relu1", ("its neuron is ReLU, here leaky ReLU of slope 0.2",)),
    (_of_two_convolutions(), _of_two_convolutions(0.0, weights=_turned), "conv1",
     ("its weights are turned by 180 degrees",)),
])  # fmt: skip
def test_a_neuron_within_a_convolution_is_held_against_one_apart(
    here: mps.MPSNNGraph, there: mps.MPSNNGraph, layer: str | None, mistakes: tuple[str, ...]
) -> None:
    given = np.random.default_rng(4).normal(size=(2, 6, 6, 3)).astype(np.float32)
    trace = there.trace([given])
    kinds = mps.debug.TracedKind.SOURCE, mps.debug.TracedKind.IMAGE
    images = [mps.debug.CapturedImage(each.label, FLOAT32, each.array) for kind in kinds for each in trace.of(kind)]
    verdict = mps.debug.compare_capture(here, mps.debug.Capture(tuple(images), precise_weights=True))
    assert [each.label for each in verdict.layers if each.departs] == ([layer] if layer else []), verdict
    assert (verdict.first.mistakes if verdict.first else ()) == mistakes
    assert len(verdict.layers) == 2, "each result is judged once"


def test_a_device_that_goes_on_or_ends_before_is_not_explained() -> None:
    """Every image may be what it should be, and the networks come to others."""
    given = np.random.default_rng(4).normal(size=(2, 6, 6, 3)).astype(np.float32)
    here = _of_two_convolutions()
    trace = here.trace([given])
    kinds = mps.debug.TracedKind.SOURCE, mps.debug.TracedKind.IMAGE
    images = [mps.debug.CapturedImage(each.label, FLOAT32, each.array) for kind in kinds for each in trace.of(kind)]
    more = mps.debug.CapturedImage("relu2", FLOAT32, np.maximum(images[-1].array, 0.0))
    for shown, end in ((images[:-1], "conv2"), ([*images, more], "relu2"), (images, None)):
        verdict = mps.debug.compare_capture(here, mps.debug.Capture(tuple(shown), precise_weights=True))
        assert (verdict.first, verdict.ok) == (None, end is None), verdict
        assert verdict.unpaired_ends == (() if end is None else (end,))
        assert ("what comes last was not judged" in str(verdict)) is (end is not None)


def test_another_size_departs(right: mps.MPSNNGraph, photo: Array, tmp_path: Path) -> None:
    app = App(pooling=lambda image, size, stride: mps.MPSCNNPoolingMaxNode(image, size, 1))
    verdict = mps.debug.compare_capture(right, mps.debug.load_capture(play(tmp_path / "capture", app, photo)))
    assert verdict.first is not None
    assert (verdict.first.label, verdict.first.shapes) == ("pool", ((1, 12, 12, 6), (1, 6, 6, 6)))
    assert "1x12x12x6 there, 1x6x6x6 here" in str(verdict)


def test_what_no_mistake_gives_is_said(right: mps.MPSNNGraph, photo: Array, tmp_path: Path) -> None:
    noise = np.random.default_rng(8)
    app = App(weights=lambda name, array: array + noise.normal(0, 0.1, array.shape).astype(np.float32)
              if name == "second" else array)  # fmt: skip
    verdict = mps.debug.compare_capture(right, mps.debug.load_capture(play(tmp_path / "capture", app, photo)))
    assert verdict.first is not None
    assert (verdict.first.label, verdict.first.mistakes) == ("second", ())
    assert "none of the usual mistakes gives these numbers" in str(verdict)


def test_what_cannot_be_compared_is_refused(right: mps.MPSNNGraph, photo: Array, tmp_path: Path) -> None:
    capture = mps.debug.load_capture(play(tmp_path / "capture", App(), photo))
    other = mps.debug.Capture(capture.images[1:])
    with pytest.raises(mps.MPSArgumentError, match="capture must have the source image 'image', got 'first'"):
        mps.debug.compare_capture(right, other)
    with pytest.raises(mps.MPSArgumentError, match="capture must have a result of the network: 'first', .*, got none"):
        mps.debug.compare_capture(right, mps.debug.Capture(capture.images[:1]))
    wrong: Any = capture.images
    with pytest.raises(mps.MPSTypeError, match="capture must be a Capture"):
        mps.debug.compare_capture(right, wrong)
    with pytest.raises(
        mps.MPSArgumentError, match="source_images must have 1 entry, one for each input: 'image', got 2"
    ):
        mps.debug.compare_capture(right, capture, [photo, photo])
    wrong = photo
    with pytest.raises(mps.MPSTypeError, match="capture.images must be a sequence of images, got ndarray among them"):
        mps.debug.compare_capture(right, mps.debug.Capture(wrong))
