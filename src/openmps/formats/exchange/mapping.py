"""Weights of a framework mapped onto the layers of a network, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openmps.checks import finite
from openmps.core.kinds import listed, optional_mapping, text
from openmps.errors import MPSArgumentError, MPSTypeError, MPSWeightsError, lengths_text, shown
from openmps.formats.arrays import Array, to_numpy
from openmps.formats.exchange.conventions import COUNTERS, SEPARATORS, WeightLayout, orders, suffixes
from openmps.formats.exchange.layers import LayerKind, Network, WeightLayer, network_layers
from openmps.formats.exchange.order import Order, fitting, rearranged
from openmps.formats.exchange.rows import WeightMapping, WeightRow
from openmps.formats.weights import split_name

_WHO = "import_weights"
_FLATTENS = tuple("".join(letters) for letters in permutations("CHW"))


def import_weights(
    tensors: Mapping[str, Array],
    network: Network,
    layout: WeightLayout | str,
    *,
    names: Mapping[str, str] | None = None,
    prefix: str = "",
    leave: Sequence[str] = (),
    flatten: Mapping[str, str] | str | None = None,
    fold: Mapping[str, str] | None = None,
    epsilon: float | None = None,
) -> WeightMapping:
    """The arrays of a network from the tensors of a framework, by layer and part: ``conv1.weights`` (OHWI), ….

    A layer takes the tensors that are called as it is, with the framework's names behind: ``conv1.weight`` and
    ``conv1.bias`` in PyTorch and MLX, ``conv1/kernel`` and ``conv1/bias`` in Keras; ``.`` and ``/`` are the same, and
    ``:0`` at the end is not looked at. Numbers keep their format, but for bfloat16, which widens to float32.

    Args:
        tensors: The framework's arrays by name.
        network: What they are for; see `network_layers`.
        layout: Whose names and orders they have, one of `WeightLayout`.
        names: What names do not tell: a layer's label, or label and part, ``fc1.weights``, to the layer's name or the
            tensor's. An empty name gives biases of 0.
        prefix: What stands before all names, ``module.``; other tensors are left over.
        leave: Patterns of the tensors that no layer is to take, ``head.*``.
        flatten: In what order an image was flattened before a fully connected layer, the last letter fastest, for all
            or by label: ``CHW`` in PyTorch, ``HWC`` in Keras and MLX unless given.
        fold: Labels of convolutions to the names of batch normalizations behind them, which are folded in::

                W' = W gamma / sqrt(variance + epsilon)     b' = (b - mean) gamma / sqrt(variance + epsilon) + beta

        epsilon: Added to the variances of these; no file has it: 1e-5 in PyTorch and MLX, 1e-3 in Keras, by default.

    Raises:
        MPSWeightsError: All that does not fit: layers without a tensor, tensors without a layer, shapes, and under
            which layout they would fit.
        MPSArgumentError: An argument names what is not there, or would change nothing; ``epsilon`` is missing.
    """
    called, behind_of = optional_mapping(_WHO, "names", names), optional_mapping(_WHO, "fold", fold)
    prefix, leave = text(_WHO, "prefix", prefix), listed(_WHO, "leave", leave, str, "patterns")
    taking = _Taking(_tensors(tensors), network_layers(network), _layout(_WHO, layout), prefix)
    taking.names = _checked_names(_WHO, called, taking.layers)
    taking.flatten = _checked_flatten(_WHO, flatten, taking.layers)
    _check_fold(behind_of, epsilon, taking)
    if prefix and not taking.index:
        remedy = f"There are: {_listed(list(taking.tensors))}"
        raise MPSArgumentError(_WHO, "prefix", "must stand before names of tensors", shown(prefix), remedy)
    rows, arrays = _all_taken(taking, behind_of, epsilon or 0.0)
    left = _left(taking, leave)
    if taking.problems:
        rule = f"must fit the network, in the layout {taking.layout}"
        remedy = "Names that differ can be given, and tensors that no layer needs can be left out."
        raise MPSWeightsError(_WHO, "tensors", rule, taking.problems, remedy)
    return WeightMapping(tuple(rows), arrays, left)


def _all_taken(
    taking: _Taking, behind_of: Mapping[str, str], epsilon: float
) -> tuple[list[WeightRow], dict[str, NDArray[Any]]]:
    rows: list[WeightRow] = []
    arrays: dict[str, NDArray[Any]] = {}
    for layer in taking.layers.values():
        behind = behind_of.get(layer.label)
        if behind is not None:
            layer = replace(layer, optional=layer.optional | {"biases"})
        found = {part: each for part in layer.parts if (each := _taken(taking, layer, part)) is not None}
        own = {part: array for part, (_, array) in found.items()}
        rows += [row for row, _ in found.values()]
        if behind is not None:
            more, own = _folded(taking, layer, own, behind, epsilon)
            rows += more
        arrays |= {f"{layer.label}.{part}": array for part, array in own.items()}
    return rows, arrays


def export_weights(
    arrays: Mapping[str, Array],
    network: Network,
    layout: WeightLayout | str,
    *,
    names: Mapping[str, str] | None = None,
    flatten: Mapping[str, str] | str | None = None,
) -> WeightMapping:
    """The tensors of a framework from the arrays of a network: the inverse of `import_weights`, number by number.

    ``arrays`` are named by layer and part as in `network_arrays`, and have to be those of the network. ``names`` gives
    layers, or parts, other names in the file.

    Raises:
        MPSWeightsError: All that does not fit: arrays that are missing, of no layer, or of another shape; two arrays
            for one name.
        MPSArgumentError: ``names`` names no layer, or gives an empty name.
    """
    who = "export_weights"
    chosen, layers, given = _layout(who, layout), network_layers(network), _tensors(arrays, who, "arrays")
    orders_of = _checked_flatten(who, flatten, layers)
    called = _checked_names(who, optional_mapping(who, "names", names), layers)
    problems: list[str] = []
    rows: list[WeightRow] = []
    found: dict[str, NDArray[Any]] = {}
    for layer, part in ((each, part) for each in layers.values() for part in each.parts):
        name = f"{layer.label}.{part}"
        array = given.pop(name, None)
        own, theirs = _own_order(layer, part), orders(chosen, layer, part, orders_of.get(layer.label))[0]
        if array is None or array.shape != own.shape:
            if array is not None or part not in layer.optional:
                has = "is missing" if array is None else f"is {lengths_text(array.shape)}"
                problems.append(f"{name} {has}, must be {lengths_text(own.shape)}")
            continue
        tensor = _written_name(chosen, layer, part, called)
        if tensor in found:
            problems.append(f"{name} would have the name {tensor}, which is taken")
        found[tensor] = rearranged(array, own, theirs)
        rows.append(WeightRow(name, own.shape, str(own), tensor, theirs.shape, str(theirs)))
    problems += [f"{name} is of no layer" for name in given]
    if problems:
        raise MPSWeightsError(who, "arrays", "must be those of the network", problems)
    return WeightMapping(tuple(rows), found)


# --- arguments --------------------------------------------------------------------------------------------------------


@dataclass
class _Taking:
    """What one import knows: the tensors, which of them were taken, and all that did not fit."""

    tensors: dict[str, NDArray[Any]]
    layers: dict[str, WeightLayer]
    layout: WeightLayout
    prefix: str

    def __post_init__(self) -> None:
        self.problems: list[str] = []
        self.used: set[str] = set()
        self.names: dict[str, str] = {}
        self.flatten: dict[str, str] = {}
        self.index: dict[str, str] = {}
        for name in self.tensors:
            if name.startswith(self.prefix):
                plain = _plain(name.removeprefix(self.prefix))
                other = self.index.setdefault(plain, name)
                if other != name:
                    self.problems.append(f"tensors {other} and {name} are one name, but for . and /")

    def find(self, name: str) -> str | None:
        """The tensor of a name, spelt in any way, with or without what stands before all of them."""
        return name if name in self.tensors else self.index.get(_plain(name))


def _plain(name: str) -> str:
    return name.removesuffix(":0").replace("/", ".")


def _tensors(given: object, who: str = _WHO, argument: str = "tensors") -> dict[str, NDArray[Any]]:
    if not isinstance(given, Mapping):
        raise MPSTypeError(who, argument, "must be a mapping from names to arrays", type(given).__name__)
    return {str(name): to_numpy(array, who, str(name)) for name, array in given.items()}


def _layout(who: str, layout: WeightLayout | str) -> WeightLayout:
    try:
        return WeightLayout(layout)
    except ValueError:
        raise MPSArgumentError(who, "layout", f"must be one of {', '.join(WeightLayout)}", shown(layout)) from None


def _checked_names(who: str, names: Mapping[str, str], layers: Mapping[str, WeightLayer]) -> dict[str, str]:
    known = {*layers, *(f"{layer.label}.{part}" for layer in layers.values() for part in layer.parts)}
    for name, other in names.items():
        if name not in known:
            rule = f"must name a layer of the network or one of its arrays: {_listed(list(layers))}"
            raise MPSArgumentError(who, "names", rule, shown(name))
        if not other and (who != _WHO or not name.endswith(".biases")):
            rule = f"must name a tensor{': only biases may be left at 0' if who == _WHO else ''}"
            raise MPSArgumentError(who, "names", rule, shown(name))
    return dict(names)


def _checked_flatten(
    who: str, flatten: Mapping[str, str] | str | None, layers: Mapping[str, WeightLayer]
) -> dict[str, str]:
    """The order of each fully connected layer for which one was given."""
    connected = [layer.label for layer in layers.values() if layer.kind is LayerKind.FULLY_CONNECTED]
    given = dict.fromkeys(connected, flatten) if isinstance(flatten, str) else optional_mapping(who, "flatten", flatten)
    for label, order in given.items():
        if label not in connected:
            rule = f"must name fully connected layers: {_listed(connected) or 'the network has none'}"
            raise MPSArgumentError(who, "flatten", rule, shown(label))
        if order not in _FLATTENS:
            raise MPSArgumentError(who, "flatten", f"must be one of {', '.join(_FLATTENS)}", shown(order))
    return given


def _check_fold(fold: Mapping[str, str], epsilon: float | None, taking: _Taking) -> None:
    if fold and epsilon is None:
        rule = "must be given with fold: no file has the epsilon of a batch normalization"
        raise MPSArgumentError(_WHO, "epsilon", rule, None, "PyTorch and MLX have 1e-5 by default, Keras 1e-3")
    if epsilon is not None and not fold:
        raise MPSArgumentError(_WHO, "epsilon", "must be left out without fold, which it belongs to", epsilon)
    if epsilon is not None and finite(_WHO, "epsilon", epsilon) < 0:
        raise MPSArgumentError(_WHO, "epsilon", "must be 0 or more", epsilon)
    for label in fold:
        layer = taking.layers.get(label)
        if layer is None or "biases" not in layer.parts or layer.kind is LayerKind.SUB_PIXEL:
            rule = "must name convolutions with biases, which take up the shift"
            raise MPSArgumentError(_WHO, "fold", rule, shown(label))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


# --- one array --------------------------------------------------------------------------------------------------------


def _own_order(layer: WeightLayer, part: str) -> Order:
    return orders(WeightLayout.OPENMPS, layer, part)[0]


def _written_name(layout: WeightLayout, layer: WeightLayer, part: str, names: Mapping[str, str]) -> str:
    whole = names.get(f"{layer.label}.{part}")
    if whole is not None:
        return whole
    return f"{names.get(layer.label, layer.label)}{SEPARATORS[layout]}{suffixes(layout, layer.kind, part)[0]}"


def _taken(taking: _Taking, layer: WeightLayer, part: str) -> tuple[WeightRow, NDArray[Any]] | None:
    """A row and the array in the network's order; None, and what is wrong noted down, where there is none."""
    name, own = f"{layer.label}.{part}", _own_order(layer, part)
    accepted = orders(taking.layout, layer, part, taking.flatten.get(layer.label))
    if taking.names.get(name) == "":
        zeros = np.zeros(own.shape, np.float32)
        return WeightRow(name, own.shape, str(own), "none", (), "", "0, as asked for"), zeros
    tensor = _tensor_of(taking, layer, part)
    if tensor is None:
        if part not in layer.optional:
            taking.problems.append(_missing(taking, layer, name, accepted))
        return None
    taking.used.add(tensor)
    array = taking.tensors[tensor]
    if array.dtype.kind != "f":
        taking.problems.append(f"{name} takes {tensor}, of {array.dtype}, must be of floating-point numbers")
        return None
    if part == "slopes" and array.size == 1 and own.shape != (1,):
        row = WeightRow(name, own.shape, str(own), tensor, array.shape, "", "one number, the slope of all channels")
        return row, np.full(own.shape, array.reshape(())[()], array.dtype)
    theirs = next((order for order in accepted if order.shape == array.shape), None)
    if theirs is None:
        taking.problems.append(_misfit(taking, layer, part, tensor, accepted))
        return None
    return WeightRow(name, own.shape, str(own), tensor, array.shape, str(theirs)), rearranged(array, theirs, own)


def _tensor_of(taking: _Taking, layer: WeightLayer, part: str) -> str | None:
    whole = taking.names.get(f"{layer.label}.{part}")
    if whole is not None:
        found = taking.find(whole)
        if found is None:
            rule = f"must name tensors of the file, for {layer.label}.{part}"
            raise MPSArgumentError(_WHO, "names", rule, shown(whole), f"There are: {_listed(list(taking.tensors))}")
        return found
    stem = taking.names.get(layer.label, layer.label)
    # In Keras 2 a layer is a group, and its weights have the layer's name, too: conv1/conv1/kernel:0.
    stems = (stem, f"{stem}.{stem}") if taking.layout is WeightLayout.KERAS else (stem,)
    for name in (f"{each}.{suffix}" for each in stems for suffix in suffixes(taking.layout, layer.kind, part)):
        if (found := taking.find(name)) is not None:
            return found
    return None


def _missing(taking: _Taking, layer: WeightLayer, name: str, accepted: Sequence[Order]) -> str:
    part = split_name(name)[1]
    stem = taking.names.get(layer.label, layer.label)
    wanted = f"{taking.prefix}{stem}{SEPARATORS[taking.layout]}{suffixes(taking.layout, layer.kind, part)[0]}"
    shapes = {order.shape for order in accepted}
    like = [other for other, array in taking.tensors.items() if array.shape in shapes and other not in taking.used]
    hint = f"; of this shape: {_listed(like)}" if like else ""
    for layout in WeightLayout:
        found = (taking.find(f"{stem}.{suffix}") for suffix in suffixes(layout, layer.kind, part))
        if other := next(filter(None, found), None):
            hint = f"; {other} is its name in the layout {layout}"
            break
    return f"{name} ({_shapes(accepted)}) finds no tensor {wanted}{hint}"


def _misfit(taking: _Taking, layer: WeightLayer, part: str, tensor: str, accepted: Sequence[Order]) -> str:
    shape = taking.tensors[tensor].shape
    others = {
        str(layout): orders(layout, layer, part, taking.flatten.get(layer.label))
        for layout in WeightLayout
        if layout is not taking.layout and not _is_unknown(layout, layer)
    }
    where = list(fitting(shape, others))
    hint = f"; it would fit transposed, in the layout {' or '.join(where)}" if where else ""
    got = lengths_text(shape) or "one number"
    return f"{layer.label}.{part} takes {tensor}, {got}, must be {_shapes(accepted)}{hint}"


def _is_unknown(layout: WeightLayout, layer: WeightLayer) -> bool:
    return layout is WeightLayout.KERAS and layer.kind is LayerKind.TRANSPOSED and layer.sizes["g"] > 1


def _shapes(accepted: Sequence[Order]) -> str:
    return " or ".join(f"{lengths_text(order.shape)} {order}" for order in accepted)


def _folded(
    taking: _Taking, layer: WeightLayer, own: dict[str, NDArray[Any]], normalization: str, epsilon: float
) -> tuple[list[WeightRow], dict[str, NDArray[Any]]]:
    """The arrays of a convolution with the batch normalization behind it folded in, and rows of its tensors."""
    stand_in = WeightLayer.batch_normalization(normalization, layer.sizes["O"])
    found = {part: each for part in stand_in.parts if (each := _taken(taking, stand_in, part)) is not None}
    if len(found) < len(stand_in.parts) or "weights" not in own:
        return [], own
    rows = [replace(row, array=f"{layer.label}, folded in") for row, _ in found.values()]
    return rows, {**own, **folded(own, {part: array for part, (_, array) in found.items()}, epsilon)}


def _left(taking: _Taking, leave: Sequence[str]) -> tuple[str, ...]:
    """The tensors that are left out as asked for; all others that no layer took are problems."""
    over = [name for name in taking.tensors if name not in taking.used]
    left = [name for name in over if name.endswith(COUNTERS) or any(fnmatchcase(name, each) for each in leave)]
    rest = [name for name in over if name not in left]
    taking.problems += [f"tensor {name} ({lengths_text(taking.tensors[name].shape)}) is of no layer" for name in rest]
    for pattern in leave:
        if not any(fnmatchcase(name, pattern) for name in left):
            raise MPSArgumentError(_WHO, "leave", "must match names of tensors that no layer takes", shown(pattern))
    return tuple(left)


def folded(
    own: Mapping[str, NDArray[Any]], normalization: Mapping[str, NDArray[Any]], epsilon: float
) -> dict[str, NDArray[np.float32]]:
    """Weights (OHWI) and biases of a convolution that normalizes its result; float32, computed in float64.

    With biases of 0 where there are none::

        W' = W gamma / sqrt(variance + epsilon)     b' = (b - mean) gamma / sqrt(variance + epsilon) + beta
    """
    gamma, beta, mean, variance = (
        normalization[part].astype(np.float64) for part in ("gamma", "beta", "mean", "variance")
    )
    if not np.all(variance + epsilon > 0):
        rule = "plus epsilon must be above 0"
        raise MPSArgumentError("import_weights", "variance", rule, float(np.min(variance)))
    scale = gamma / np.sqrt(variance + epsilon)
    biases = own["biases"].astype(np.float64) if "biases" in own else np.zeros_like(scale)
    with np.errstate(over="ignore"):
        weights = (own["weights"].astype(np.float64) * scale[:, None, None, None]).astype(np.float32)
        shifted = ((biases - mean) * scale + beta).astype(np.float32)
    if not (np.isfinite(weights).all() and np.isfinite(shifted).all()):
        rule = "must fold into finite numbers of float32"
        raise MPSArgumentError("import_weights", "fold", rule, "NaN or infinity", "Look at them: openmps weights show")
    return {"weights": weights, "biases": shifted}
