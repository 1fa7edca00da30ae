"""A trained network at work: probabilities of images, and how often it is right."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from openmps.checks import NamedAttributes, Shown, described, of_kind
from openmps.core.image.batch import MPSImageBatch
from openmps.core.kinds import listed
from openmps.errors import MPSArgumentError, MPSFileError, MPSNonFiniteError, MPSTypeError, shown
from openmps.graph.graph import MPSNNGraph
from openmps.graph.summary import GraphSummary, graph_summary
from openmps.metal.device import MTLDevice
from openmps.runtime.devices import MTLCreateSystemDefaultDevice
from openmps.selectors import name_arguments
from openmps.training.augmentation import Augmentation
from openmps.training.dataset import Dataset
from openmps.training.imported import KEPT, fingerprint, is_imported
from openmps.training.metrics import ConfusionCounts
from openmps.training.network import DEFAULT_NETWORK, Network, NetworkShape
from openmps.training.preprocessing import Preprocessing
from openmps.training.processes import TrainingProcesses, shared_probabilities
from openmps.training.run_folder import RunFolder
from openmps.types import MPSImageFeatureChannelFormat

_BATCH = 200
_IN_FLIGHT = 2
# Probabilities are float32: one that rounds to 0 must not make the loss infinite.
_LEAST_PROBABILITY = float(np.finfo(np.float32).tiny)


@name_arguments
@dataclass(frozen=True)
class Evaluation:
    """What a test of a network gave: ``loss`` is the mean cross-entropy of an image, ``predictions`` are classes.

    ``confidence`` is the probability of each prediction.
    """

    loss: float
    predictions: NDArray[np.int64]
    confusion: ConfusionCounts
    confidence: NDArray[np.float32]

    accuracy = Shown[float]("confusion.accuracy", "Fraction of the images that were classified correctly.")


@name_arguments
class Classifier(NamedAttributes):
    """A network on a device, without dropout, ready to classify."""

    shape: NetworkShape
    class_names: tuple[str, ...]
    preprocessing: Preprocessing | None
    """What is done to pixels before the network sees them; None for images that are neither grey nor coloured."""

    def __init__(
        self,
        network: Network,
        device: MTLDevice,
        class_names: tuple[str, ...],
        channel_format: MPSImageFeatureChannelFormat = MPSImageFeatureChannelFormat.FLOAT32,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        who = type(self).__name__
        of_kind(who, "network", network, Network)
        listed(who, "class_names", class_names, str, "the classes' names")
        of_kind(who, "device", device, MTLDevice)
        if len(class_names) != network.shape.classes:
            rule = f"must be one for each of {network.shape.classes} classes"
            raise MPSArgumentError(who, "class_names", rule, len(class_names))
        self.shape = network.shape
        self.class_names = class_names
        self.preprocessing = preprocessing or Preprocessing.plain(network.shape.channels)
        self._device = device
        self._graph = network.inference_graph(device, channel_format)
        self._queue = device.new_command_queue()
        self._queue.measures_times = False

    def __repr__(self) -> str:
        return described(self, self.shape, ", ".join(self.class_names), self.preprocessing)

    @classmethod
    def open(
        cls,
        run: RunFolder | str | os.PathLike[str],
        device: MTLDevice | None = None,
        channel_format: MPSImageFeatureChannelFormat | None = None,
    ) -> Classifier:
        """The network that a run has trained, with the weights that it saved last.

        On a device: the system's default unless said.

        ``channel_format`` is the run's unless given. Raises ``MPSFileError`` naming the file where the run's
        description or weights are missing, damaged or do not belong together.
        """
        folder = run if isinstance(run, RunFolder) else RunFolder.open(run)
        shape, class_names = described_network(folder)
        arrays = folder.load_weights(shape.arrays())
        chosen = channel_format or described_format(folder)
        preprocessing = described_preprocessing(folder)
        network = Network.from_arrays(shape, arrays)
        where = MTLCreateSystemDefaultDevice() if device is None else device
        return cls(network, where, class_names, chosen, preprocessing)

    def with_graph(self, graph: MPSNNGraph) -> Classifier:
        """The same classifier over another graph, on its device, from the same images to the same classes."""
        twin = copy(self)
        twin._graph, twin._device = of_kind(type(self).__name__, "graph", graph, MPSNNGraph), graph.device
        twin._queue = graph.device.new_command_queue()
        twin._queue.measures_times = False
        return twin

    def reload(self) -> None:
        """Take over the weights that training has changed since; no work that trains them may be under way."""
        self._graph.reload_from_data_sources()

    def probabilities(
        self, images: NDArray[np.uint8], *, between_batches: Callable[[], object] | None = None
    ) -> NDArray[np.float32]:
        """The probability of each class, ``[N, classes]``, for images ``[N, H, W, C]``, 0 to 255.

        ``between_batches`` is called while batches are computed; what it raises ends the work. Raises
        ``MPSNonFiniteError`` where the network gives NaN.
        """
        self._check(images)
        found: list[NDArray[np.float32]] = []
        in_flight: deque[tuple[MPSImageBatch, Callable[[], None]]] = deque()

        def collect() -> None:
            result, wait = in_flight.popleft()
            wait()
            found.append(result.numpy().reshape(len(result), -1))

        for start in range(0, len(images), _BATCH):
            if between_batches is not None:
                between_batches()
            if len(in_flight) == _IN_FLIGHT:
                collect()
            command_buffer = self._queue.command_buffer()
            batch = MPSImageBatch.from_numpy(self._device, self._preprocessed(images[start : start + _BATCH]))
            result = self._graph.encode_batch(command_buffer, [batch])
            assert result is not None
            command_buffer.commit()
            in_flight.append((result, command_buffer.wait_until_completed))
        while in_flight:
            collect()
        return self._finite(np.concatenate(found))

    def _finite(self, probabilities: NDArray[np.float32]) -> NDArray[np.float32]:
        """What a network gives, which tells no class where it is NaN."""
        wrong = np.flatnonzero(~np.isfinite(probabilities).all(1))
        if wrong.size:
            rule, got = "must be finite", f"NaN for {wrong.size:,} of {len(probabilities):,} images"
            remedy = "Look for weights that are not: openmps weights show, or openmps trace"
            raise MPSNonFiniteError(type(self).__name__, "probabilities", rule, got, remedy)
        return probabilities

    def _preprocessed(self, images: NDArray[np.uint8]) -> NDArray[np.uint8] | NDArray[np.float32]:
        """What the network sees; 8-bit images are read from 0 to 1 as they are."""
        done = self.preprocessing
        return images if done is None or done.is_plain else done.applied(images)

    def evaluate(
        self,
        dataset: Dataset,
        *,
        between_batches: Callable[[], object] | None = None,
        processes: TrainingProcesses | None = None,
    ) -> Evaluation:
        """Classify all images of ``dataset`` and compare with its labels.

        With ``processes`` each of them classifies a part, and all get what came out.
        """
        self._check_classes(of_kind(type(self).__name__, "dataset", dataset, Dataset))
        if processes is None:
            probabilities = self.probabilities(dataset.images, between_batches=between_batches)
        else:
            probabilities = shared_probabilities(self.probabilities, dataset.images, _BATCH, processes)
        predictions = probabilities.argmax(axis=1).astype(np.int64)
        confusion = ConfusionCounts(self.class_names)
        confusion.update(dataset.labels, predictions)
        right = probabilities[np.arange(len(dataset)), dataset.labels].astype(np.float64)
        loss = float(-np.log(np.maximum(right, _LEAST_PROBABILITY)).mean())
        return Evaluation(loss, predictions, confusion, probabilities.max(axis=1).clip(0, 1))

    def summary(self) -> GraphSummary:
        """The layers of the network for one image."""
        return graph_summary(self._graph, self.shape.image_descriptor())

    def _check(self, images: NDArray[np.uint8]) -> None:
        name = type(self).__name__
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
            got = getattr(images, "dtype", type(images).__name__)
            raise MPSTypeError(name, "images", "must be a NumPy array of uint8, 0 to 255", got)
        wanted = (self.shape.height, self.shape.width, self.shape.channels)
        if images.ndim != 4 or images.shape[1:] != wanted or not len(images):
            rule = f"must be [N, height, width, channels] of (N, {wanted[0]}, {wanted[1]}, {wanted[2]}), N at least 1"
            raise MPSArgumentError(name, "images", rule, f"shape {images.shape}", "Resize them, or train a new network")

    def _check_classes(self, dataset: Dataset) -> None:
        if dataset.class_names != self.class_names[: len(dataset.class_names)]:
            rule = f"must be those of the network, {_listed(self.class_names)}"
            raise MPSArgumentError(f"Dataset {dataset.name!r}", "class_names", rule, _listed(dataset.class_names))


def describe_network(
    shape: NetworkShape, class_names: tuple[str, ...], preprocessing: Preprocessing | None = None
) -> dict[str, object]:
    """What a run's description must hold for `Classifier.open` to build the network again.

    Without ``preprocessing`` it sees pixels from 0 to 1.
    """
    imported = is_imported(shape.network)
    name = {"name": KEPT, "sha256": fingerprint(shape.network)} if imported else {"name": shape.network}
    network = {**name, "height": shape.height, "width": shape.width, "channels": shape.channels}
    seen = preprocessing or Preprocessing.plain(shape.channels)
    return {"network": network, "class_names": list(class_names), **({} if seen is None else seen.describe())}


def described_network(run: RunFolder) -> tuple[NetworkShape, tuple[str, ...]]:
    """The network and the class names that a run's description gives; ``MPSFileError`` where it gives none.

    Without a name it is the sample network.
    """
    config = run.config
    network, names = config.get("network"), config.get("class_names")
    lengths = cast("Mapping[str, object]", network) if isinstance(network, Mapping) else {}
    listed = cast("list[object]", names) if isinstance(names, list) else []
    height, width, channels = (cast("int", lengths.get(key)) for key in ("height", "width", "channels"))
    name = cast("str", lengths.get("name", DEFAULT_NETWORK))
    if name == KEPT:
        name = _kept_network(run, lengths.get("sha256"))
    try:
        shape = NetworkShape(height, width, channels, len(listed), name)
    except (MPSArgumentError, MPSTypeError) as error:
        file = str(run.path / "run.json")
        raise MPSFileError("Classifier.open", file, "must describe a network and its classes", error) from error
    if not all(isinstance(each, str) for each in listed) or len(set(map(str, listed))) < len(listed):
        rule = "must describe a network and its classes, whose names are text, all different"
        raise MPSFileError("Classifier.open", str(run.path / "run.json"), rule, shown(listed))
    return shape, tuple(cast("list[str]", listed))


def _kept_network(run: RunFolder, known: object) -> str:
    """The path of the ONNX file that a run keeps."""
    file = str(run.network_path)
    if fingerprint(file) != known:
        rule, remedy = "must be the file that the run was trained with", "Put back that file, or train again"
        raise MPSFileError("Classifier.open", file, rule, "another one", remedy)
    return file


def described_preprocessing(run: RunFolder) -> Preprocessing | None:
    """What a run's network wants done to pixels; None where their channels are neither grey nor coloured."""
    shape, _ = described_network(run)
    return Preprocessing.described(run.config, shape.channels, str(run.path / "run.json"))


def check_preprocessing(run: RunFolder, who: str, augmentation: Augmentation) -> None:
    """Raise unless the network of a run sees pixels as training shows them."""
    if "preprocessing" not in run.config and augmentation.normalization is None:
        return
    shape, _ = described_network(run)
    wanted, found = augmentation.preprocessing(shape.channels), described_preprocessing(run)
    if found != wanted:
        rule = f"must have the preprocessing that networks are trained with, {wanted}"
        remedy = "Train with nodes of your own, on images that are preprocessed so."
        raise MPSFileError(who, str(run.path / "run.json"), rule, str(found), remedy)


def described_format(run: RunFolder) -> MPSImageFeatureChannelFormat:
    """How a run's description says that intermediate images are stored."""
    options = run.config.get("options")
    name = cast("Mapping[str, object]", options).get("format") if isinstance(options, Mapping) else None
    half = MPSImageFeatureChannelFormat.FLOAT16
    return half if name == half.name.lower() else MPSImageFeatureChannelFormat.FLOAT32


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown}, … ({len(names)} in all)" if len(names) > 5 else shown
