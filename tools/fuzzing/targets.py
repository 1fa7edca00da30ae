"""The table of what is fuzzed: a row a target."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuzzing import seeds
from fuzzing.models import MODELS
from fuzzing.mutations import (
    BLIND,
    INTEGERS,
    SAFETENSORS,
    Mutation,
    Random,
    changed_json,
    changed_offsets,
    changed_tree,
    join_safetensors,
    split_safetensors,
    text_of,
)
from fuzzing.pictures import PICTURES
from fuzzing.target import Target
from openmps.core.image.batch import MPSImageBatch
from openmps.core.image.image import MPSImage
from openmps.errors import MPSError
from openmps.formats.archive import MPSKeyedArchiver, MPSKeyedUnarchiver
from openmps.formats.archive.container import seal, unpack
from openmps.formats.archive.forms import classes
from openmps.formats.exchange.raw import load_raw
from openmps.formats.exchange.tensors import load_tensors, save_tensors
from openmps.formats.weights import load_dat_files, load_safetensors, save_dat_files, save_safetensors
from openmps.graph.graph import MPSNNGraph
from openmps.graph.nodes.catalog import rows
from openmps.kernels.convolution import MPSCNNConvolutionDescriptor
from openmps.kernels.loss import MPSCNNLossLabels
from openmps.runtime.devices import mtl_device
from openmps.training.checkpoint import Checkpoint, CheckpointFolder
from openmps.training.idx import load_idx
from openmps.training.json_lines import JsonLines
from openmps.training.run_folder import RunFolder
from openmps.types import MTLSize

# --- archives ---------------------------------------------------------------------------------------------------------

_CPU = mtl_device("cpu")
_FILE = "archive.mps"


def _unarchived(data: Any) -> Any:
    return MPSKeyedUnarchiver(data, _CPU, registry=seeds.REGISTRY).decode_root_object()


def _is_stable(folder: Path, found: Any) -> bool:
    """Archived again it is the same from then on. (A document may spell one object in several ways.)"""
    once = MPSKeyedArchiver.archived_data(found)
    return MPSKeyedArchiver.archived_data(_unarchived(once)) == once


_WORDS = (
    *(name for name in classes()), *(row.node.__name__ for row in rows()),
    "label", "options", "weights", "weight_array", "padding", "descriptor", "source", "gradient_state", "handle",
    "format",
)  # fmt: skip


def resealed_document(data: bytes, random: Random) -> bytes:
    """The document changed, under a checksum that fits."""
    document, arrays = unpack(data, "fuzz")
    (changed,) = changed_tree([document], random, _WORDS) or [{}]
    try:
        return seal(text_of(changed), arrays)
    except UnicodeEncodeError:  # a lone surrogate that safetensors cannot take as metadata
        return seal(json.dumps({"version": 1}), arrays)


def resealed_arrays(data: bytes, random: Random) -> bytes:
    """Arrays of other types, shapes and names, under a checksum that fits."""
    document, arrays = unpack(data, "fuzz")
    names = sorted(arrays) or ["0"]
    name = names[int(random.integers(len(names)))]
    now = arrays.get(name, np.zeros(3, np.float32))
    changes: list[Any] = [
        now.astype(np.float64), now.astype(np.float16), now.astype(np.int8), now.astype(bool), now.astype(np.uint64),
        now.reshape(-1), now.reshape(-1)[:-1], now[..., None], now[None], now[:0], np.full_like(now, np.nan),
        np.full_like(now, np.inf), np.zeros((0, 4), np.float32), np.zeros((), np.float32), np.concatenate([now, now]),
        now.view(np.uint32) if now.dtype == np.float32 else now,
    ]  # fmt: skip
    kind = int(random.integers(len(changes) + 3))
    if kind < len(changes):
        arrays[name] = np.ascontiguousarray(changes[kind])
    elif kind == len(changes):
        arrays.pop(name, None)
    else:
        other = ["../escaped", "a\0b", "", names[int(random.integers(len(names)))]][int(random.integers(4))]
        arrays[other] = now
    return seal(json.dumps(document), arrays)


def _encode(graph: Any) -> None:
    """One encode of two images of ones."""
    if not isinstance(graph, MPSNNGraph):
        return
    channels = 4 if len(graph.source_image_handles) > 1 else 1
    ones = np.ones((2, 8, 8, channels), np.float32)
    labels = MPSImage.from_numpy(_CPU, np.ones((1, 1, 10), np.float32))
    states = [
        [MPSCNNLossLabels(_CPU, labels_image=labels, loss_image_size=MTLSize(1, 1, 10)) for _ in ones]
        for _ in graph.source_state_handles or ()
    ]
    command_buffer = _CPU.new_command_queue().command_buffer()
    images = [MPSImageBatch.from_numpy(_CPU, ones) for _ in graph.source_image_handles]
    graph.encode_batch(command_buffer, images, states)
    command_buffer.commit()
    command_buffer.wait_until_completed()


def _archive(name: str, make: Callable[[Any], Any], use: Callable[[Any], object] = lambda loaded: None) -> Target:
    return Target(
        name=name,
        write=lambda folder: MPSKeyedArchiver.archive(make(_CPU), folder / _FILE),
        load=lambda folder: _unarchived(folder / _FILE),
        says=MPSKeyedArchiver.archived_data,
        is_as_written=_is_stable,
        knowing=(resealed_document, resealed_document, resealed_document, resealed_arrays, *SAFETENSORS),
        use=use,
    )


# --- weights ----------------------------------------------------------------------------------------------------------

_WEIGHTS = "weights.safetensors"
_SHAPES = {name: array.shape for name, array in seeds.weights().items()}


def _arrays_say(arrays: dict[str, np.ndarray]) -> bytes:
    """Names, shapes and numbers; the order counts."""
    file = io.BytesIO()
    for name, array in arrays.items():
        file.write(f"{name!r} {array.dtype} {array.shape}\n".encode("utf-8", "backslashreplace") + array.tobytes())
    return file.getvalue()


def _goes_round(folder: Path, arrays: dict[str, np.ndarray]) -> bool:
    """Saved again it is the same; as raw files it is too, or its names are refused: none leads out of the folder."""
    save_safetensors(folder / "again", arrays)
    try:
        save_dat_files(folder, arrays)
    except MPSError:
        return _arrays_say(load_safetensors(folder / "again")) == _arrays_say(arrays)
    raw = load_dat_files(folder, {name: array.shape for name, array in arrays.items()})
    return _arrays_say(raw) == _arrays_say(load_safetensors(folder / "again")) == _arrays_say(arrays)


def without_checksum(data: bytes, random: Random) -> bytes:
    """The facts in the metadata changed, or the numbers, in a file that has no checksum."""
    header, body = split_safetensors(data)
    facts = json.loads(header["__metadata__"]["openmps.weights"])
    del facts["sha256"]
    kind = int(random.integers(4))
    if kind == 0:
        header["__metadata__"]["openmps.weights"] = text_of((changed_tree([facts], random) or [None])[0])
        return join_safetensors(header, body)
    header["__metadata__"]["openmps.weights"] = json.dumps(facts)
    if kind == 1:
        return join_safetensors(header, random.bytes(len(body)))
    if kind == 2:
        return changed_offsets(join_safetensors(header, body), random)
    return join_safetensors(*_renamed(header, facts, body, random))


def _renamed(header: dict[str, Any], facts: Any, body: bytes, random: Random) -> tuple[Any, bytes]:
    """A layer whose name is no name for a file."""
    label = ["../escaped", "/escaped", "..", "a/b", "a\0b", "", "con", "x" * 300, "..\\x", "\u202e", ".hidden", "a.b"]
    new = label[int(random.integers(len(label)))]
    old = facts["layers"][0]
    facts["layers"] = [new if each == old else each for each in facts["layers"]]
    header["__metadata__"]["openmps.weights"] = json.dumps(facts)
    return {
        f"{new}.{key[len(old) + 1 :]}" if key.startswith(f"{old}.") else key: each for key, each in header.items()
    }, body


def _weights(name: str, shapes: Any) -> Target:
    return Target(
        name=name,
        write=lambda folder: save_safetensors(folder / _WEIGHTS, seeds.weights()),
        load=lambda folder: load_safetensors(folder / _WEIGHTS, shapes),
        says=_arrays_say,
        is_as_written=_goes_round,
        knowing=(*SAFETENSORS, without_checksum, without_checksum),
    )


def _raw_is_as_written(folder: Path, arrays: dict[str, np.ndarray]) -> bool:
    """A raw file has no checksum: its numbers are what it says."""
    files = {name: folder / f"{name.replace('.', '_')}.dat" for name in arrays}
    return all(files[name].read_bytes() == array.tobytes() for name, array in arrays.items())


def _write_raw(folder: Path) -> None:
    save_dat_files(folder, {name: array for name, array in seeds.weights().items() if not name.startswith("fc")})


_RAW_LAYERS = {
    label: MPSCNNConvolutionDescriptor(width, height, inputs, outputs)
    for label, (outputs, height, width, inputs) in (("conv1", (16, 5, 5, 1)), ("conv2", (32, 5, 5, 16)))
}
_RAW_SHAPES = {name: shape for name, shape in _SHAPES.items() if not name.startswith("fc")}


# --- weights of other frameworks --------------------------------------------------------------------------------------


def _numbers_are_there(folder: Path, arrays: dict[str, np.ndarray]) -> bool:
    """The numbers of each array are bytes of the file, or of one of its members."""
    (file,) = (path for path in folder.iterdir() if path.is_file())
    contents = [file.read_bytes()]
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            contents += [archive.read(member) for member in archive.infolist()]
    return all(any(_has(each, array) for each in contents) for array in arrays.values())


def _has(content: bytes, array: np.ndarray) -> bool:
    if any(array.tobytes(order) in content for order in "CF"):
        return True
    return all(number.tobytes() in content for number in np.sort(array, axis=None)[-50:])  # other strides


def _rezipped(data: bytes, change: Callable[[str, bytes], Any], method: int) -> bytes:
    """An archive of the same members, one of them changed, with checksums that fit."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as honest, zipfile.ZipFile(file, "w", method) as archive:
        for member in honest.infolist():
            name, content = change(member.filename, honest.read(member))
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return file.getvalue()


_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_MEMBERS = ("../escaped.npy", "/escaped.npy", "a\\b.npy", "", "x.pkl", "archive/data.pkl", "archive/data/0", "x" * 3000)


def changed_member(data: bytes, random: Random) -> bytes:
    """What is in one member changed, or what it is called, or how it is packed, under checksums that fit."""
    with zipfile.ZipFile(io.BytesIO(data)) as honest:
        names = [member.filename for member in honest.infolist()]
        method = honest.infolist()[0].compress_type
    chosen = names[int(random.integers(len(names)))]
    if chosen.endswith("0") or random.random() < 0.4:
        chosen = next((name for name in names if name.endswith("data.pkl")), chosen)
    kind = int(random.integers(8))

    def change(name: str, content: bytes) -> tuple[str, Any]:
        if name != chosen:
            return name, content
        if kind == 0:
            return _MEMBERS[int(random.integers(len(_MEMBERS)))], content
        if kind == 1:
            return name, bytes(int(random.choice([1, 1000, 10_000_000])))
        return name, BLIND[int(random.integers(7))](content, random)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _rezipped(data, change, _METHODS[int(random.integers(4))] if kind == 2 else method)


_SHAPES_OF_OLD = (
    b"(4294967296, 4294967296)", b"(9223372036854775807,)", b"(-1,)", b"()", b"(0,)", b"(1,) * 9", b"(2, 2, 2)",
    b"((((((1,),),),),),)", b"(1" + b", 1" * 40 + b")", b"(1000000000,)",
)  # fmt: skip
_TYPES_OF_OLD = (b"|O", b"<f2", b">f4", b"<f8", b"<c8", b"<U9", b"<M8[s]", b"|V4", b"<i4", b"<f16", b"<f4, <f4")


def changed_npy_header(data: bytes, random: Random) -> bytes:
    """Another shape or type in the header of one array."""
    with zipfile.ZipFile(io.BytesIO(data)) as honest:
        members = honest.infolist()
    chosen = members[int(random.integers(len(members)))]
    shape = _SHAPES_OF_OLD[int(random.integers(len(_SHAPES_OF_OLD)))]
    kind = _TYPES_OF_OLD[int(random.integers(len(_TYPES_OF_OLD)))]

    def change(name: str, content: bytes) -> tuple[str, bytes]:
        if name != chosen.filename:
            return name, content
        length = int.from_bytes(content[8:10], "little")
        header = content[10 : 10 + length].rstrip()
        at = header.index(b"'shape': ") + 9
        if random.random() < 0.6:
            header = header[:at] + shape + b", }"
        if random.random() < 0.6:
            header = header.replace(b"<f4", kind)
        header = header.ljust(length - 1)[: length - 1] + b"\n"
        return name, content[:10] + header + content[10 + length :]

    return _rezipped(data, change, chosen.compress_type)


def changed_pickle(data: bytes, random: Random) -> bytes:
    """Numbers, names and instructions of the pickle changed."""

    def changed(content: bytes) -> bytes:
        found = bytearray(content)
        for _ in range(int(random.integers(1, 4))):
            at = int(random.integers(len(found)))
            kind = int(random.integers(5))
            if kind == 0:
                found[at] = int(random.choice(list(b"(}])NKMJ\x8aGX\x8cUc\x93Qt\x85\x86\x87qr\x94hjsuaeRb.\x810")))
            elif kind == 1:
                number = int(INTEGERS[int(random.integers(len(INTEGERS)))])
                found[at : at + 5] = b"J" + struct.pack("<i", number)
            elif kind == 2:
                found[at:at] = bytes(found[at : at + 40]) * int(random.integers(1, 200))
            elif kind == 3:
                words = (b"FloatStorage", b"_rebuild_tensor_v2", b"OrderedDict", b"torch._utils")
                word = words[int(random.integers(len(words)))]
                found = bytearray(bytes(found).replace(word, [b"system", b"DoubleStorage", b"eval"][at % 3]))
            else:
                found[at:at] = [b"cos\nsystem\n(X\x04\0\0\0truetR", b"\x8a\xff", b"j\xff\xff\xff\x7f"][at % 3]
        return bytes(found)

    if data[:2] != b"PK":
        return changed(data[:600]) + data[600:]
    return _rezipped(
        data,
        lambda name, content: (name, changed(content) if name.endswith("data.pkl") else content),
        zipfile.ZIP_STORED,
    )


def _tensors(name: str, suffix: str, write: Callable[[Path], object], *knowing: Mutation) -> Target:
    return Target(
        name=name,
        write=lambda folder: write(folder / f"weights{suffix}"),
        load=lambda folder: load_tensors(folder / f"weights{suffix}"),
        says=_arrays_say,
        is_as_written=_numbers_are_there,
        knowing=knowing,
        has_checksum=False,
    )


def _write_legacy(path: Path) -> None:
    tensors = {name: torch.from_numpy(array) for name, array in seeds.sparse_weights().items()}
    torch.save(tensors, path, _use_new_zipfile_serialization=False)


def changed_hdf5(data: bytes, random: Random) -> bytes:
    """Addresses, lengths and counts of the structure changed: what begins a list or a message, or leads somewhere."""
    changed = bytearray(data)
    words = [at for at in range(8, len(data) - 8, 8) if data[at + 5 : at + 8] == b"\0\0\0" and any(data[at : at + 5])]
    heads = [found.end() for found in re.finditer(b"TREE|SNOD|HEAP", data)]
    for _ in range(int(random.integers(1, 4))):
        at = words[int(random.integers(len(words)))]
        kind = int(random.integers(6))
        if kind == 0:  # a circle, or something of another kind
            goal = words[int(random.integers(len(words)))]
            changed[at : at + 8] = [data[goal : goal + 8], struct.pack("<Q", goal), struct.pack("<Q", at)][
                goal // 8 % 3
            ]
        elif kind == 1:
            number = int(_WORDS_OF_HDF5[int(random.integers(len(_WORDS_OF_HDF5)))])
            changed[at : at + 8] = struct.pack("<Q", number)
        elif kind == 2:
            place = heads[int(random.integers(len(heads)))] + int(random.integers(4))
            changed[place] = int(random.choice([0, 1, 2, 127, 255]))
        elif kind == 3:  # a message's kind, length or version
            changed[at + int(random.integers(8))] = int(random.choice([0, 1, 2, 3, 4, 6, 7, 8, 16, 17, 255]))
        elif kind == 4:
            changed[at : at + 8] = struct.pack("<HHI", int(random.integers(20)), int(random.integers(1 << 16)), 0)
        else:
            goal = words[int(random.integers(len(words)))]
            changed[at : at + 40] = data[goal : goal + 40]
    return bytes(changed)[: len(data)]


_WORDS_OF_HDF5 = (
    0,
    1,
    7,
    8,
    96,
    1 << 16,
    1 << 20,
    1 << 31,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 8,
    (1 << 64) - 1,
)


def changed_keras(data: bytes, random: Random) -> bytes:
    """The same in the weights of a .keras file, under a checksum that fits."""
    return _rezipped(
        data,
        lambda name, content: (name, changed_hdf5(content, random) if name.endswith(".h5") else content),
        zipfile.ZIP_STORED,
    )


def _write_keras(path: Path) -> None:
    data = seeds.hdf5_bytes()
    if path.suffix == ".keras":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", '{"class_name": "Functional"}')
            archive.writestr("model.weights.h5", data)
    else:
        path.write_bytes(data)


def _of_keras() -> tuple[Target, ...]:
    """Where h5py is installed, which writes the honest files."""
    if importlib.util.find_spec("h5py") is None:
        return ()
    return (
        _tensors("HDF5 of Keras", ".h5", _write_keras, changed_hdf5, changed_hdf5),
        _tensors(".keras", ".keras", _write_keras, changed_keras, changed_member),
    )


# --- training's files -------------------------------------------------------------------------------------------------


def _idx(pixels: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, pixels.ndim)) + b"".join(length.to_bytes(4, "big") for length in pixels.shape)
    return header + pixels.tobytes()


def _write_idx(pack: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        random = np.random.default_rng(3)
        (folder / "train-images-idx3-ubyte").write_bytes(pack(_idx(random.integers(0, 256, (60, 12, 12), np.uint8))))
        (folder / "train-labels-idx1-ubyte").write_bytes(pack(_idx(np.arange(60, dtype=np.uint8) % 10)))

    return write


def _gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _idx_says(split: Any) -> bytes:
    parts = (split.training, split.test)
    return repr([(part.class_names, part.images.shape) for part in parts]).encode() + b"".join(
        part.images.tobytes() + part.labels.tobytes() for part in parts
    )


def _idx_is_as_written(folder: Path, split: Any) -> bool:
    """IDX has no checksum: what was loaded are the bytes of the files, in another order."""
    contents = []
    for kind in ("images-idx3", "labels-idx1"):
        data = (folder / f"train-{kind}-ubyte").read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        contents.append(np.frombuffer(data[4 + 4 * data[3] :], np.uint8))
    parts = (split.training, split.test)
    images = np.concatenate([part.images.reshape(-1) for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    return all(np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(contents, (images, labels), strict=True))


def idx_lengths(data: bytes, random: Random) -> bytes:
    """Another length, type or number of axes in the header."""
    data, is_packed = (gzip.decompress(data), True) if data[:2] == b"\x1f\x8b" else (data, False)
    field = int(random.integers(data[3] + 1))
    lengths = [0, 1, 59, 61, 2**16, 2**31 - 1, 2**31, 2**32 - 1]
    value = lengths[int(random.integers(len(lengths)))].to_bytes(4, "big")
    changed = data[: 4 * field] + value + data[4 * field + 4 :]
    return _gzipped(changed) if is_packed else changed


def repacked(data: bytes, random: Random) -> bytes:
    """What is in a gzip file changed, under a checksum that fits."""
    content = BLIND[int(random.integers(7))](gzip.decompress(data), random)
    return _gzipped(content) if isinstance(content, bytes) else data


def _write_run(folder: Path) -> None:
    config = {
        "network": "digits",
        "shape": [28, 28, 1],
        "classes": list("0123456789"),
        "options": {"rate": 1e-3, "n": None},
    }
    RunFolder.create(folder, config, name="run")


def _run_is_as_written(folder: Path, run: RunFolder) -> bool:
    found = json.loads((folder / "run" / "run.json").read_bytes())
    kept = {key: value for key, value in found.items() if key not in ("format", "version", "created")}
    return json.dumps(run.config) == json.dumps(kept)


def _write_metrics(folder: Path) -> None:
    lines = JsonLines(folder / "metrics.jsonl")
    for epoch in range(20):
        lines.append({"epoch": epoch, "loss": 1.0 / (epoch + 1), "accuracy": np.nan, "by class": list(range(10))})


def _lines_are_as_written(folder: Path, records: list[Any]) -> bool:
    """Written again they are the same, and there are as many as whole lines, or one more; none without a file."""
    if not (folder / "metrics.jsonl").exists():
        return records == []
    again = JsonLines(folder / "again.jsonl")
    for record in records:
        again.append(record)
    whole = (folder / "metrics.jsonl").read_bytes().count(b"\n")
    return len(records) - whole in (0, 1) and repr(again.read()) == repr(records)


# --- checkpoints ------------------------------------------------------------------------------------------------------

_CHECKPOINT = "step-00000007.safetensors"


def _write_checkpoint(folder: Path) -> None:
    (folder / _CHECKPOINT).write_bytes(Checkpoint.of(7, seeds.trained(_CPU), {"epoch": 2, "rate": 1e-3}).to_bytes())


def _checkpoint_goes_round(folder: Path, found: Checkpoint) -> bool:
    return Checkpoint.from_bytes(found.to_bytes()).to_bytes() == found.to_bytes()


TARGETS: tuple[Target, ...] = (
    _archive("archive of kernels", seeds.kernels),
    _archive("archive of convolutions", seeds.convolutions),
    _archive("archive of policies", seeds.policies),
    _archive("archive of an inference graph", seeds.inference_graph, _encode),
    _archive("archive of a training graph", seeds.training_graph, _encode),
    Target(
        "checkpoint", _write_checkpoint, lambda folder: CheckpointFolder(folder).load(7),
        lambda found: found.to_bytes(), _checkpoint_goes_round,
        knowing=(resealed_document, resealed_document, resealed_arrays, *SAFETENSORS),
        use=lambda found: found.restore(seeds.trained(_CPU)),
    ),
    _weights("weights, any network", None),
    _weights("weights of one network", _SHAPES),
    Target(
        "raw weights", _write_raw, lambda folder: load_dat_files(folder, _RAW_SHAPES), _arrays_say, _raw_is_as_written,
        knowing=(), has_checksum=False,
    ),
    _tensors(
        "npz", ".npz", lambda path: save_tensors(path, seeds.sparse_weights()), changed_member, changed_npy_header
    ),
    _tensors(
        "npz, compressed", ".npz", lambda path: np.savez_compressed(path, **seeds.sparse_weights()),
        changed_member, changed_npy_header,
    ),
    _tensors(
        "state dict", ".pt", lambda path: save_tensors(path, seeds.sparse_weights()), changed_member, changed_pickle,
        changed_pickle,
    ),
    _tensors("state dict before PyTorch 1.6", ".pt", _write_legacy, changed_pickle),
    _tensors(
        "safetensors of others", ".safetensors", lambda path: save_tensors(path, seeds.sparse_weights()), *SAFETENSORS
    ),
    *_of_keras(),
    Target(
        "raw weights by layers", _write_raw, lambda folder: dict(load_raw(folder, _RAW_LAYERS).arrays), _arrays_say,
        _raw_is_as_written, knowing=(), has_checksum=False,
    ),
    Target(
        "IDX", _write_idx(bytes), load_idx, _idx_says, _idx_is_as_written, knowing=(idx_lengths,), has_checksum=False
    ),
    Target(
        "IDX, gzipped", _write_idx(_gzipped), load_idx, _idx_says, _idx_is_as_written,
        knowing=(idx_lengths, repacked), has_checksum=False,
    ),
    Target(
        "run.json", _write_run, lambda folder: RunFolder.open(folder / "run"),
        lambda run: json.dumps([run.config, run.created]).encode(), _run_is_as_written,
        knowing=(changed_json,), has_checksum=False,
    ),
    Target(
        "metrics.jsonl", _write_metrics, lambda folder: JsonLines(folder / "metrics.jsonl").read(),
        lambda records: repr(records).encode(), _lines_are_as_written, knowing=(changed_json,), has_checksum=False,
    ),
    *MODELS,
    *PICTURES,
)  # fmt: skip
