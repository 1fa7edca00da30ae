"""What a run is of: its network, data and options, as ``run.json`` and the checkpoints hold them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from openmps.checks import of_kind
from openmps.errors import MPSArgumentError, MPSFileError, size_text
from openmps.metal.device import MTLDevice
from openmps.training.data import has_class_folders, load_dataset
from openmps.training.dataset import Dataset, DataSplit
from openmps.training.image_folder import Channels
from openmps.training.imported import network_files
from openmps.training.inference import describe_network, described_network
from openmps.training.network import NetworkShape
from openmps.training.options import TrainingOptions
from openmps.training.processes import TrainingProcesses, share_of
from openmps.training.run_folder import RunFolder
from openmps.training.scaling import described_scaling

_FREE = ("epochs", "checkpoint_every", "checkpoints_kept")
"""Options that may change from one part of a run to the next."""


def describe_run(data: DataSplit, options: TrainingOptions, /, **more: object) -> dict[str, object]:
    """The description for `RunFolder.create` of a run that `train` is to fill; refuses what `train` would refuse."""
    of_kind("describe_run", "data", data, DataSplit)
    of_kind("describe_run", "options", options, TrainingOptions)
    check_batch_size(data, options)
    options.learning_rate_at(0, len(data.training) // options.batch_size * options.epochs)  # refuses what cannot be
    _check_test_images(data)
    names = data.training.class_names
    shape = NetworkShape.of(data.training.images, len(names), options.network)
    network = describe_network(shape, names, options.augments.preprocessing(shape.channels))
    return {**network, "options": options.describe(), **more}


def check_described(run: RunFolder, data: DataSplit, options: TrainingOptions) -> None:
    """Raise where a run's description, as far as there is one, is of another training: it could not be gone on with."""
    mine, config = describe_run(data, options), run.config
    for name in ("network", "class_names", "options"):
        for place, now, then in _differences(mine[name], config[name], name) if name in config else ():
            if place not in ("options.checkpoint_every", "options.checkpoints_kept"):
                rule = f"must describe this training, whose {place} is {_shown(now)}"
                remedy = "Create the run with describe_run(data, options)"
                raise MPSFileError("train", str(run.path / "run.json"), rule, _shown(then), remedy)


def _check_test_images(data: DataSplit) -> None:
    """Raise unless the network that is trained can be tested."""
    (size, names), other = ((each.images.shape[1:], each.class_names) for each in data)
    if other[0] != size:
        rule = f"must have images of {size_text(size)}, as the training images are"
        raise MPSArgumentError("DataSplit", "test", rule, size_text(other[0]))
    if other[1] != names:
        raise MPSArgumentError("DataSplit", "test", f"must have the classes {', '.join(names)}", ", ".join(other[1]))


def check_batch_size(data: DataSplit, options: TrainingOptions) -> None:
    """Raise unless there is a whole batch to train with, which has equal parts."""
    count = len(data.training)
    if options.batch_size > count:
        rule = f"must be at most the {count} images that there are to train with"
        raise MPSArgumentError("TrainingOptions", "batch_size", rule, options.batch_size, f"Use {count} or less")
    share_of(options.batch_size, None, options.accumulate)


# --- a run on disk ----------------------------------------------------------------------------------------------------


def run_options(run: RunFolder) -> TrainingOptions:
    """The options that a run was started with; ``MPSFileError`` where its ``run.json`` has none."""
    of_kind("run_options", "run", run, RunFolder)
    options = TrainingOptions.from_description(_mapping(run.config.get("options")), str(run.path / "run.json"))
    shape, _ = described_network(run)
    return replace(options, network=shape.network)


def run_data(run: RunFolder, path: str | os.PathLike[str] | None = None) -> DataSplit:
    """The images of a run, from where its description says (``path`` overrules it), with the same hold-out."""
    config = of_kind("run_data", "run", run, RunFolder).config
    options, source = (_mapping(config.get(key)) for key in ("options", "data"))
    seed, own = options.get("seed"), source.get("path")
    shape, _ = described_network(run)
    place = path if path is not None else own if isinstance(own, str) else None
    return load_dataset(
        place,
        seed=seed if isinstance(seed, int) and seed >= 0 else 0,
        size=(shape.height, shape.width),
        channels=cast("Channels", shape.channels),
        scaling=described_scaling(config, str(run.path / "run.json")) if has_class_folders(place) else None,
        skip_broken=source.get("skip_broken") is True and has_class_folders(place),
    )


def run_files(run: RunFolder) -> dict[str, bytes]:
    """What a process needs of a run's folder to train its network, by name; all else is in the description."""
    shape, _ = described_network(run)
    return network_files(shape.network)


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


# --- what a checkpoint belongs to -------------------------------------------------------------------------------------


def describe_training(
    data: DataSplit, options: TrainingOptions, device: MTLDevice, *, processes: TrainingProcesses | None = None
) -> dict[str, Any]:
    """What a checkpoint says that it belongs to: options, network, data with their fingerprints, and the machine."""
    threads = None if device.is_cuda else torch.get_num_threads()
    together = {} if processes is None or processes.count == 1 else {"processes": processes.count}
    return {
        **describe_run(data, options),
        "data": {"training": _fingerprint(data.training), "test": _fingerprint(data.test)},
        "machine": {"device": device.name, "threads": threads, "torch": str(torch.__version__), **together},
    }


def _fingerprint(dataset: Dataset) -> dict[str, Any]:
    digest = hashlib.sha256(np.ascontiguousarray(dataset.images).data)
    digest.update(np.ascontiguousarray(dataset.labels).data)
    return {"shape": list(dataset.images.shape), "sha256": digest.hexdigest()}


def check_same_training(mine: Mapping[str, Any], theirs: Mapping[str, Any], file: str) -> None:
    """Raise ``MPSFileError``, saying what differs, unless the checkpoint ``file`` is of this training."""
    own, other = (
        {key: each.get(key) for key in ("network", "class_names", "options", "data")} for each in (mine, theirs)
    )
    for place, now, then in _differences(own, other):
        if not place.startswith("options.") or place.partition(".")[2] not in _FREE:
            rule = f"must be of this training: its {place} is {_shown(then)}"
            remedy = "Go on with the data and options that the run was started with."
            raise MPSFileError("resume", file, rule, _shown(now), remedy)


def machine_differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """What of the machine is not as it was, in words: numbers may then differ in their last bits."""
    pairs = _differences(_mapping(mine.get("machine")), _mapping(theirs.get("machine")))
    return [f"{place} {_shown(then)}, now {_shown(now)}" for place, now, then in pairs]


def flat(description: Mapping[str, Any]) -> dict[str, Any]:
    """A description as one mapping from places to values."""
    return {place: mine for place, mine, _ in _differences(description, {})}


def _differences(mine: Any, theirs: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two descriptions differ: the place, mine and theirs."""
    if isinstance(mine, Mapping) and (theirs is None or isinstance(theirs, Mapping)):
        left, right = cast("Mapping[str, Any]", mine), cast("Mapping[str, Any]", theirs or {})
        for key in dict.fromkeys((*left, *right)):
            yield from _differences(left.get(key), right.get(key), f"{place}.{key}" if place else str(key))
    elif mine != theirs:
        yield place, mine, theirs


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
