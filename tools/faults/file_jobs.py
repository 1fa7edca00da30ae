"""Files that are written and read while the system fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from fuzzing import seeds

from faults.job import Job
from openmps.formats.archive import MPSKeyedArchiver, MPSKeyedUnarchiver
from openmps.formats.atomic import write_atomic
from openmps.formats.exchange.raw import load_raw, save_raw
from openmps.formats.exchange.tensors import load_tensors, save_tensors
from openmps.formats.weights import load_dat_files, load_safetensors, save_dat_files, save_safetensors
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.runtime.devices import mtl_device
from openmps.training.checkpoint import Checkpoint, CheckpointFolder
from openmps.training.dataset import Dataset
from openmps.training.loop import TrainingOptions, describe_run, resume
from openmps.training.run_folder import RunFolder

_CPU = mtl_device("cpu")
_OPTIONS = TrainingOptions(epochs=2, batch_size=8, network="tiny", checkpoint_every=1)
_IMAGES = np.random.default_rng(0).integers(0, 256, (24, 4, 4, 1), np.uint8)
_DATA = Dataset(_IMAGES, np.arange(24) % 2, ("a", "b"), "noise").split()
_SHAPES = {"conv.weights": (2, 3, 3, 1), "conv.biases": (2,)}


def _arrays(value: float) -> dict[str, np.ndarray]:
    return {name: np.full(shape, value, np.float32) for name, shape in _SHAPES.items()}


def _text(arrays: Any) -> str:
    return repr({name: array.tolist() for name, array in arrays.items()})


# --- checkpoints ------------------------------------------------------------------------------------------------------


class _Part:
    """Something that a checkpoint keeps."""

    def __init__(self, value: float) -> None:
        self.values = np.full(2000, value, np.float32)

    def training_state(self) -> dict[str, Any]:
        return {"values": self.values, "step": 3}

    def restore_training_state(self, state: Any) -> None:
        self.values = np.array(state["values"])


def _checkpoint(step: int) -> Checkpoint:
    return Checkpoint.of(step, {"part": _Part(step)}, {"epoch": step})


def _checkpoints(folder: Path) -> CheckpointFolder:
    found = CheckpointFolder(folder / "checkpoints")
    for step in (1, 2):
        found.save(_checkpoint(step))
    return found


def _newest(folder: CheckpointFolder) -> bytes:
    found = folder.newest()
    assert found is not None
    return found.to_bytes()


def _restored(folder: CheckpointFolder) -> str:
    part = _Part(9)
    folder.load(2).restore({"part": part})
    return repr(part.values.tolist())


# --- the others -------------------------------------------------------------------------------------------------------


def _archived(folder: Path) -> Path:
    path = folder / "archive.mps"
    MPSKeyedArchiver.archive(seeds.policies(_CPU), path)
    return path


def _unarchived(path: Path) -> bytes:
    found = MPSKeyedUnarchiver(path, _CPU, registry=seeds.REGISTRY).decode_root_object()
    return MPSKeyedArchiver.archived_data(found)


def _weights(folder: Path) -> Path:
    path = folder / "weights.safetensors"
    save_safetensors(path, _arrays(1))
    return path


def _raw_weights(folder: Path) -> Path:
    save_dat_files(folder, _arrays(1))
    return folder


def _raw_parts(folder: Path) -> str:
    """Each file is whole; of several, some may be of the save before."""
    values = load_dat_files(folder, _SHAPES)
    assert all(len(set(array.ravel().tolist())) == 1 for array in values.values())
    return "whole"


def _raw_layers(folder: Path) -> str:
    return _text(load_raw(folder, {"conv": MPSCNNConvolutionDescriptor(3, 3, 1, 2)}).arrays)


def _tensors(folder: Path) -> Path:
    path = folder / "weights.npz"
    save_tensors(path, _arrays(1))
    return path


def _state_dict(folder: Path) -> Path:
    path = folder / "weights.pt"
    save_tensors(path, _arrays(1))
    return path


def _tensors_of(path: Path) -> str:
    return _text(load_tensors(path))


def _plain(folder: Path) -> Path:
    path = folder / "plain"
    path.write_bytes(b"old" * 5000)
    path.chmod(0o640)
    return path


def _run(folder: Path) -> RunFolder:
    run = RunFolder.create(folder, {"network": "digits"}, name="run")
    run.log({"epoch": 1, "loss": 0.5})
    run.save_weights(_arrays(1))
    run.checkpoints.save(_checkpoint(1))
    return run


def _facts(run: RunFolder) -> str:
    """What a run has, but for what is replaced."""
    return repr(run.read_metrics()[:1]) + str(run.checkpoints.load(1).to_bytes())


def _train(run: RunFolder) -> None:
    with run.in_training():
        run.log({"epoch": 2, "loss": 0.25})
        run.flush_metrics()


def _another(run: RunFolder) -> str:
    return repr(RunFolder.create(run.path.parent / "more", {"a": 1}).config)


def _facts_of_another(run: RunFolder) -> None:
    """Whatever is a run of the other folder can be opened; a folder without its description is none."""
    more = run.path.parent / "more"
    for path in more.iterdir() if more.is_dir() else ():
        assert RunFolder.open(path).config == {"a": 1}


def _untrained(folder: Path) -> RunFolder:
    return RunFolder.create(folder, describe_run(_DATA, _OPTIONS), name="run")


def _trained(run: RunFolder) -> str:
    """The run to its end, from wherever it is; what it then holds, but for what the clock says."""
    run = RunFolder.open(run.path)
    resume(_DATA, run, _CPU)
    lines = [{**line, "seconds": 0, "images_per_second": 0} for line in run.read_metrics()]
    return repr(lines) + _text(run.load_weights())


JOBS: tuple[Job, ...] = (
    Job("checkpoint saved", _checkpoints, lambda folder: folder.save(_checkpoint(3)).name,
        lambda folder: folder.load(2).to_bytes(), _newest),
    Job("first checkpoint saved", lambda folder: CheckpointFolder(folder / "new"),
        lambda folder: folder.save(_checkpoint(1)).name, lambda folder: None,
        lambda folder: folder.newest() and _newest(folder)),
    Job("checkpoint read", _checkpoints, _restored, _newest),
    Job("newest checkpoint read", _checkpoints, _newest, _restored),
    Job("archive written", _archived, lambda path: MPSKeyedArchiver.archive([1.5, "text"], path), lambda path: None,
        _unarchived),
    Job("archive read", _archived, _unarchived, lambda path: path.read_bytes()),
    Job("tensors written", _tensors, lambda path: save_tensors(path, _arrays(2)), lambda path: None, _tensors_of),
    Job("tensors read", _tensors, _tensors_of, lambda path: path.read_bytes()),
    Job("state dict written", _state_dict, lambda path: save_tensors(path, _arrays(2)), lambda path: None, _tensors_of),
    Job("state dict read", _state_dict, _tensors_of, lambda path: path.read_bytes()),
    Job("raw files of layers read", _raw_weights, _raw_layers, _raw_parts),
    Job("raw files of layers written", _raw_weights, lambda folder: save_raw(folder, _arrays(2)) and None, _raw_parts),
    Job("weights written", _weights, lambda path: save_safetensors(path, _arrays(2)), lambda path: None,
        lambda path: _text(load_safetensors(path, _SHAPES))),
    Job("weights read", _weights, lambda path: _text(load_safetensors(path, _SHAPES)),
        lambda path: path.read_bytes()),
    Job("raw weights written", _raw_weights, lambda folder: save_dat_files(folder, _arrays(2)), _raw_parts),
    Job("raw weights read", _raw_weights, lambda folder: _text(load_dat_files(folder, _SHAPES)), _raw_parts),
    Job("file replaced", _plain, lambda path: write_atomic(path, b"new" * 9000), lambda path: None,
        lambda path: path.read_bytes()),
    Job("run made", _run, _another, _facts_of_another),
    Job("run opened", _run, lambda run: repr(RunFolder.open(run.path).config), _facts),
    Job("run amended", _run, lambda run: run.amend({"classes": 10}), _facts,
        lambda run: repr(RunFolder.open(run.path).config)),
    Job("weights of a run saved", _run, lambda run: run.save_weights(_arrays(2)), _facts,
        lambda run: _text(run.load_weights(_SHAPES))),
    Job("run in training", _run, _train, _facts),
    Job("run trained", _untrained, _trained, lambda run: repr(run.config)),
    Job("metrics read", _run, lambda run: repr(run.read_metrics()), _facts),
    Job("metrics cut", _run, lambda run: run.cut_metrics(0), lambda run: run.checkpoints.load(1).to_bytes(),
        lambda run: repr(run.read_metrics())),
)  # fmt: skip
