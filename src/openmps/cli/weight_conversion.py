"""``openmps weights convert``: what is read, mapped and written."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openmps.cli.options import require_new
from openmps.cli.weight_files import KnownNetwork, found, is_tensors, is_written, named_network, run_or_archive
from openmps.cli.weight_names import named_pairs
from openmps.errors import MPSArgumentError, MPSFileError, MPSWeightsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from openmps.formats.archive import Registry
    from openmps.formats.exchange.layers import WeightLayer
    from openmps.formats.exchange.rows import WeightMapping
    from openmps.training.run_folder import RunFolder

_WHO = "openmps weights convert"
_REMEDY = (
    "--map LAYER=NAME sets what names do not tell, --prefix TEXT what stands before all of\n"
    "them, --fold LAYER=NAME folds a batch normalization of SOURCE into the convolution\n"
    "before it, --leave PATTERN leaves tensors out, --from says whose layout SOURCE has."
)
_WRITTEN = "Give DEST the suffix .npz, .safetensors, .pt or .pth, or a folder for raw files."
_ROUNDING = "--allow-rounding rounds them; numbers that are too large cannot be written."


class Layout(StrEnum):
    """Whose names and order of axes a file has."""

    OPENMPS = "openmps"
    PYTORCH = "pytorch"
    KERAS = "keras"
    MLX = "mlx"


@dataclass(frozen=True)
class Conversion:
    """What the options say."""

    from_layout: Layout | None
    to_layout: Layout | None
    network: Path | None
    names: tuple[str, ...]
    """Each ``LAYER=NAME``; see `openmps.cli.weight_names`."""
    prefix: str
    leave: tuple[str, ...]
    flatten: tuple[str, ...]
    fold: tuple[str, ...]
    epsilon: float | None
    half: bool
    allow_rounding: bool
    one_file: bool
    force: bool
    mean: str | None = None
    scale: str | None = None
    channels: str | None = None
    registry: Registry | None = None

    @property
    def prepares(self) -> bool:
        """Whether anything is said of what is done to pixels."""
        return any(each is not None for each in (self.mean, self.scale, self.channels))


@dataclass(frozen=True)
class Converted:
    """What was done: the tables of what took what, and how many arrays were written."""

    tables: tuple[WeightMapping, ...]
    count: int


def convert_weights(source: Path, destination: Path, options: Conversion) -> Converted:
    """Read ``source``, map its weights onto the network, and write ``destination``."""
    source = found(source)
    own = run_or_archive(source, options.registry)
    target = run_or_archive(destination, options.registry)
    _check_destination(destination, target, options)
    options = replace(options, from_layout=options.from_layout or _layout_said(source, own, target, options))
    layers = _network(source, own, target, options)
    _check_used(source, own, layers, options)
    prepared = preprocessing_entry(
        None if target is None else target.run, options.mean, options.scale, options.channels
    )
    options = replace(options, to_layout=options.to_layout or Layout.OPENMPS)
    try:
        incoming = _read(source, own, layers, options)
        outgoing = _laid_out(incoming.arrays, layers, own is not None or options.from_layout is Layout.OPENMPS, options)
    except MPSWeightsError as error:
        if error.who == _WHO:
            raise
        raise MPSWeightsError(_WHO, str(source), error.rule, error.problems, _REMEDY) from error
    _write(destination, target, outgoing, options, prepared)
    is_raw = target is None and not is_tensors(destination)
    if is_raw:
        outgoing = _in_files(outgoing, one_file=options.one_file)
    is_told = is_raw or options.to_layout is not Layout.OPENMPS
    tables = (*(() if own is not None else (incoming,)), *((outgoing,) if is_told else ()))
    return Converted(tables or (outgoing,), len(outgoing.arrays))


def _check_destination(destination: Path, target: KnownNetwork | None, options: Conversion) -> None:
    """Refuse what cannot be written before anything is read."""
    from openmps.formats.paths import is_folder

    who_has = os.path.lexists(destination)
    is_file = is_tensors(destination)
    if is_file and not is_written(destination):
        raise MPSFileError(_WHO, str(destination), "must be of a format that is written", destination.suffix, _WRITTEN)
    if not is_file and target is None and destination.suffix and not is_folder(destination, _WHO):
        rule = "must be a folder, an archive that is there, or end in .npz, .safetensors, .pt or .pth"
        raise MPSFileError(_WHO, str(destination), rule)
    if not is_file and options.to_layout not in (None, Layout.OPENMPS):
        rule = "must be openmps for raw files, runs and archives, which are OHWI"
        raise MPSArgumentError(_WHO, "--to", rule, options.to_layout.value, "Give DEST the suffix .npz or .safetensors")
    if who_has and not options.force and (is_file or target is not None):
        raise MPSFileError(_WHO, str(destination), "must be new", "one that is there", "--force replaces it.")
    if target is None and not is_folder(destination, _WHO):
        require_new(destination, force=True)
    if options.one_file and (is_file or target is not None):
        raise MPSArgumentError(_WHO, "--one-file", "must be left out but for raw files", str(destination))
    if options.half and target is not None:
        raise MPSArgumentError(_WHO, "--half", "must be left out: runs and archives are float32", str(destination))


def _layout_said(
    source: Path, own: KnownNetwork | None, target: KnownNetwork | None, options: Conversion
) -> Layout | None:
    """The layout of a SOURCE that shows it: raw files, Keras' files, and arrays with names of the network's own."""
    from openmps.formats.exchange.keras import SUFFIXES
    from openmps.formats.exchange.tensors import load_tensors
    from openmps.formats.paths import is_folder

    if own is not None:
        return None
    if is_folder(source, _WHO):
        return Layout.OPENMPS
    if source.suffix.lower() in SUFFIXES:
        return Layout.KERAS
    known = target if options.network is None else named_network(options.network, options.registry)
    if known is None or not is_tensors(source):
        return None
    names = {f"{layer.label}.{part}" for layer in known.layers.values() for part in layer.parts}
    return None if names.isdisjoint(load_tensors(source)) else Layout.OPENMPS


def _network(
    source: Path, own: KnownNetwork | None, target: KnownNetwork | None, options: Conversion
) -> Mapping[str, WeightLayer]:
    """Whose weights they are: what SOURCE says, or ``--network``, or the run or archive that DEST is."""
    if own is not None:
        for option, value in (("--network", options.network), ("--from", options.from_layout)):
            if value is not None:
                raise MPSArgumentError(_WHO, option, f"must be left out: {source} says itself what it is", value)
        return own.layers
    if options.from_layout is None:
        rule = f"must be one of {', '.join(Layout)}"
        raise MPSArgumentError(_WHO, "--from", rule, None, f"{source} does not say whose layout it has")
    if options.network is not None:
        return named_network(options.network, options.registry).layers
    if target is None:
        rule = "must be given: files of weights do not say what their layers are"
        remedy = "Give a run folder, or an archive of the graph (MPSKeyedArchiver.archive)"
        raise MPSArgumentError(_WHO, "--network", rule, None, remedy)
    return target.layers


def _check_used(source: Path, own: KnownNetwork | None, layers: Mapping[str, WeightLayer], options: Conversion) -> None:
    """Refuse options that nothing would be done with."""
    from openmps.formats.exchange.layers import LayerKind
    from openmps.formats.paths import is_folder

    is_named = own is None and not is_folder(source, _WHO)
    is_foreign = {options.from_layout, options.to_layout} - {None, Layout.OPENMPS} != set()
    is_flattened = any(layer.kind is LayerKind.FULLY_CONNECTED for layer in layers.values())
    named, ours = f"{source} is no file of named arrays", "SOURCE and DEST are openmps' own"
    for option, is_given, is_used, why in (
        ("--prefix", options.prefix, is_named, named),
        ("--leave", options.leave, is_named, named),
        ("--fold", options.fold, is_named, named),
        ("--epsilon", options.epsilon is not None, options.fold, "it is that of --fold"),
        ("--map", options.names, is_foreign or own is None, ours),
        ("--flatten", options.flatten, is_foreign, ours),
        ("--flatten", options.flatten, is_flattened, "the network has no fully connected layer"),
    ):
        if is_given and not is_used:
            raise MPSArgumentError(_WHO, option, f"must be left out: {why}")


def _named(
    option: str,
    given: tuple[str, ...],
    layers: Mapping[str, WeightLayer],
    options: Conversion,
    tensors: Mapping[str, NDArray[Any]] | None = None,
) -> Mapping[str, str]:
    """Names by layer or array, of SOURCE's tensors where these are given."""
    own = [name for layer in layers.values() for name in (layer.label, *(f"{layer.label}.{p}" for p in layer.parts))]
    return named_pairs(option, given, own, tensors, options.prefix)


def _flattened(options: Conversion) -> Mapping[str, str] | str | None:
    """``CHW`` for all, or ``fc1=WHC``."""
    orders: dict[str, str] = {}
    for text in options.flatten:
        layer, sign, order = text.rpartition("=")
        if not sign:
            if len(options.flatten) > 1:
                raise MPSArgumentError(_WHO, "--flatten", "must be one order for all, or LAYER=ORDER for each", text)
            return text
        orders[layer] = order
    return orders or None


def _read(
    source: Path, own: KnownNetwork | None, layers: Mapping[str, WeightLayer], options: Conversion
) -> WeightMapping:
    """The arrays of the network, from whatever SOURCE is."""
    from openmps.formats.exchange.mapping import export_weights, import_weights
    from openmps.formats.exchange.raw import load_raw
    from openmps.formats.exchange.tensors import load_tensors
    from openmps.formats.paths import is_folder

    if own is not None:
        if own.arrays is None:
            raise MPSFileError(_WHO, str(source), "must hold weights", "a run that has saved none", "Train it again.")
        return export_weights(own.arrays, layers, Layout.OPENMPS.value)
    assert options.from_layout is not None
    is_from_own = options.from_layout is Layout.OPENMPS
    is_to_own = options.to_layout in (None, Layout.OPENMPS)
    if is_folder(source, _WHO):
        if not is_from_own:
            rule = "must be openmps for raw files, which are OHWI"
            raise MPSArgumentError(_WHO, "--from", rule, options.from_layout.value)
        return load_raw(source, layers, names=_named("--map", options.names, layers, options) if is_to_own else None)
    tensors = load_tensors(source)
    return import_weights(
        tensors,
        layers,
        options.from_layout.value,
        names=_named("--map", options.names, layers, options, tensors) if is_to_own or not is_from_own else None,
        prefix=options.prefix,
        leave=options.leave,
        flatten=None if is_from_own else _flattened(options),
        fold=_named("--fold", options.fold, layers, options, tensors),
        epsilon=options.epsilon,
    )


def _laid_out(
    arrays: Mapping[str, NDArray[Any]], layers: Mapping[str, WeightLayer], is_from_own: bool, options: Conversion
) -> WeightMapping:
    """The tensors that are written: names and flattening are those of the file that is not ours."""
    from openmps.formats.exchange.mapping import export_weights
    from openmps.formats.exchange.precision import stored

    is_abroad = is_from_own and options.to_layout is not Layout.OPENMPS
    assert options.to_layout is not None
    mapping = export_weights(
        arrays,
        layers,
        options.to_layout.value,
        names=_named("--map", options.names, layers, options) if is_abroad else None,
        flatten=_flattened(options) if is_abroad else None,
    )
    half = True if options.half else None
    try:
        numbers = stored(mapping.arrays, _WHO, half=half, allow_rounding=options.allow_rounding)
    except MPSWeightsError as error:
        what = "--half" if options.half else "float32"
        raise MPSWeightsError(_WHO, what, error.rule, error.problems, _ROUNDING) from error
    return replace(mapping, arrays=numbers)


def _in_files(mapping: WeightMapping, *, one_file: bool) -> WeightMapping:
    """The table with the raw files in the place of tensors' names."""
    from openmps.formats.exchange.raw import raw_file_names

    files = raw_file_names(mapping.arrays, one_file=one_file)
    return replace(mapping, rows=tuple(replace(row, tensor=files[row.tensor]) for row in mapping.rows))


def _write(
    destination: Path,
    target: KnownNetwork | None,
    mapping: WeightMapping,
    options: Conversion,
    prepared: Mapping[str, object],
) -> None:
    from openmps.formats.atomic import make_folder, write_all_atomic, write_atomic
    from openmps.formats.exchange.archives import archive_with_arrays
    from openmps.formats.exchange.raw import raw_files
    from openmps.formats.exchange.tensors import save_tensors
    from openmps.formats.weights import save_safetensors

    if target is not None and target.run is not None:
        with target.run.in_training():
            target.run.save_weights(mapping.arrays)
            if prepared:
                target.run.amend(prepared)
    elif target is not None and target.archive is not None:
        write_atomic(target.archive, archive_with_arrays(target.archive, mapping.arrays, registry=options.registry))
    elif is_tensors(destination):
        is_own = options.to_layout is Layout.OPENMPS and destination.suffix.lower() == ".safetensors"
        (save_safetensors if is_own and not options.half else save_tensors)(destination, mapping.arrays)
    else:
        files = raw_files(mapping.arrays, one_file=options.one_file)
        there = [name for name in files if os.path.lexists(destination / name)]
        if there and not options.force:
            rule = f"must have none of the {len(files)} files"
            raise MPSFileError(_WHO, str(destination), rule, ", ".join(there[:8]), "--force replaces them.")
        make_folder(destination, parents=True)
        write_all_atomic({destination / name: data for name, data in files.items()})


_ALL = "--mean, --scale and --channels"


def preprocessing_entry(
    run: RunFolder | None, mean: str | None, scale: str | None, channels: str | None
) -> Mapping[str, object]:
    """The entry of the run's description; what is not said stays as it is there. Nothing where nothing is said."""
    if mean is None and scale is None and channels is None:
        return {}
    if run is None:
        raise MPSArgumentError(_WHO, _ALL, "must be left out: a run alone says what is done to pixels")
    from openmps.training.inference import described_preprocessing
    from openmps.training.preprocessing import Preprocessing

    now = described_preprocessing(run)
    if now is None:
        raise MPSArgumentError(_WHO, _ALL, "must be left out: the network's images are neither grey nor coloured")
    count, order = len(now.mean), channels or now.order
    if order not in (("grey",) if count == 1 else ("RGB", "BGR")):
        rule = f"must be {'grey' if count == 1 else 'RGB or BGR'}: the network has {count} channel(s)"
        raise MPSArgumentError(_WHO, "--channels", rule, order)
    return Preprocessing(order, _row("--mean", mean, now.mean), _row("--scale", scale, now.scale)).describe()


def _row(option: str, text: str | None, now: tuple[float, ...]) -> tuple[float, ...]:
    """``104,117,123``, or one number for all channels; ``1/255`` is one, too."""
    if text is None:
        return now
    numbers = [_number(each) for each in text.split(",")]
    numbers = numbers * len(now) if len(numbers) == 1 else numbers
    is_scale = option == "--scale"
    if len(numbers) != len(now) or not all(map(math.isfinite, numbers)) or (is_scale and 0.0 in numbers):
        rule = f"must be a number, or {len(now)} with commas between, finite{', and not 0' * is_scale}"
        raise MPSArgumentError(_WHO, option, rule, repr(text))
    return tuple(numbers)


def _number(text: str) -> float:
    """NaN for what is none."""
    top, _, below = text.partition("/")
    try:
        return float(top) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        return math.nan
