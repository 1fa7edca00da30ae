"""``openmps weights``: what is in files of weights, and weights of one framework as those of another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmps.cli.registry import Modules, registry_of
from openmps.cli.weight_conversion import Conversion, Layout, convert_weights
from openmps.cli.weight_files import RawFormat, shown_arrays
from openmps.cli.weight_names import check_pairs
from openmps.errors import lengths_text, printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

weights_app = typer.Typer(
    name="weights",
    help="Look at and convert files of weights.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Source = Annotated[
    Path,
    typer.Argument(
        help="A run folder, an archive, a folder of raw .dat or .bin files, or an .npz, .safetensors, .pt, .h5 or "
        ".keras file.",
        show_default=False,
    ),
]
_HEADINGS = ("shape", "type", "smallest", "largest", "bytes")


@weights_app.command()
def show(
    source: Source,
    network: Annotated[
        Path | None,
        typer.Option(metavar="RUN|ARCHIVE", help="The network whose raw files they are.", show_default=False),
    ] = None,
    raw: Annotated[
        RawFormat | None,
        typer.Option("--as", help="What raw files hold, where no network says it.", show_default=False),
    ] = None,
    registry: Modules = None,
) -> None:
    """List the arrays of a file, folder, run or archive: shape, type, smallest and largest number, bytes.

    Raw files do not say what they hold: --network gives their shapes, and so their types; --as shows them as rows of
    numbers. Numbers that are not finite are counted below their array.
    """
    from openmps.formats.exchange.rows import in_columns

    arrays = shown_arrays(source, network, raw, registry_of(registry, source, network))
    rows = [_cells(array) for array in arrays.values()]
    widths = [max(len(row[place]) for row in [_HEADINGS, *rows]) for place in range(len(_HEADINGS))]
    print("\n".join(in_columns("array", _aligned(_HEADINGS, widths))))
    for (name, array), row in zip(arrays.items(), rows, strict=True):
        print("\n".join(in_columns(printable(name), _aligned(row, widths))))
        for line in _non_finite(array):
            print(f"  {line}")
    count = sum(array.size for array in arrays.values())
    total = sum(array.nbytes for array in arrays.values())
    print(f"{len(arrays):,} arrays, {count:,} numbers, {total:,} bytes")


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _cells(array: NDArray[Any]) -> tuple[str, ...]:
    import numpy as np

    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    ends = (f"{float(finite.min()):.4g}", f"{float(finite.max()):.4g}") if finite.size else ("-", "-")
    return (lengths_text(array.shape) or "1", str(array.dtype.newbyteorder("=")), *ends, f"{array.nbytes:,}")


def _non_finite(array: NDArray[Any]) -> list[str]:
    import numpy as np

    if array.dtype.kind != "f":
        return []
    counts = {"NaN": int(np.isnan(array).sum()), "infinite": int(np.isinf(array).sum())}
    return [f"{count:,} of {array.size:,} are {kind}" for kind, count in counts.items() if count]


Destination = Annotated[
    Path,
    typer.Argument(
        metavar="DEST",
        help="An .npz, .safetensors, .pt or .pth file, a folder for raw files, or a run folder or an archive that "
        "takes the weights (with --force).",
        show_default=False,
    ),
]
FromLayout = Annotated[
    Layout | None,
    typer.Option(
        "--from",
        help="Whose names and orders SOURCE has, where it does not say: runs, archives, raw files, Keras' "
        "files and those with openmps' own names do.",
    ),
]
ToLayout = Annotated[Layout | None, typer.Option("--to", help="Whose names and orders DEST gets.  [default: openmps]")]
Network = Annotated[
    Path | None,
    typer.Option(metavar="RUN|ARCHIVE", help="The network whose weights they are.", show_default=False),
]
Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="LAYER=NAME",
        help="What names do not tell: a layer, or an array such as fc1.weights, and its name in the other file. "
        "conv1.biases= stands for biases of 0. May be repeated.",
        show_default=False,
    ),
]
Prefix = Annotated[
    str, typer.Option(metavar="TEXT", help="What stands before all names in SOURCE.", show_default=False)
]
Leave = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN", help="Tensors that no layer is to take, head.*. May be repeated.", show_default=False
    ),
]
Flatten = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[LAYER=]ORDER",
        help="In what order the other framework flattens an image before a fully connected layer, the last letter "
        "fastest.  [default: CHW for pytorch, HWC for keras and mlx]",
        show_default=False,
    ),
]
Fold = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LAYER=NAME",
        help="Fold the batch normalization NAME of SOURCE into a convolution. May be repeated.",
        show_default=False,
    ),
]
Half = Annotated[
    bool,
    typer.Option(
        "--half",
        help="Write float16. Numbers that it does not hold are an error, and most of a trained network are such.",
    ),
]
AllowRounding = Annotated[
    bool,
    typer.Option(
        "--allow-rounding", help="Round numbers, as --half mostly needs; those too large for float16 stay an error."
    ),
]
OneFile = Annotated[
    bool, typer.Option("--one-file", help="Raw files: one a layer, weights then biases, in the place of two.")
]
Mean = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBERS",
        help="DEST is a run: what is taken off pixels, 0 to 255, before its network: 104,117,123.",
        show_default=False,
    ),
]
Scale = Annotated[
    str | None,
    typer.Option(metavar="NUMBERS", help="And what they are multiplied by then: 1/255.", show_default=False),
]
Channels = Annotated[
    str | None, typer.Option(metavar="ORDER", help="The order of channels: grey, RGB or BGR.", show_default=False)
]


@weights_app.command()
def convert(
    source: Source,
    destination: Destination,
    from_layout: FromLayout = None,
    to_layout: ToLayout = None,
    network: Network = None,
    map: Map = None,
    prefix: Prefix = "",
    leave: Leave = None,
    flatten: Flatten = None,
    fold: Fold = None,
    epsilon: Annotated[float | None, typer.Option(help="Of the folded normalizations.", show_default=False)] = None,
    half: Half = False,
    allow_rounding: AllowRounding = False,
    one_file: OneFile = False,
    mean: Mean = None,
    scale: Scale = None,
    channels: Channels = None,
    registry: Modules = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing when all fits.")] = False,
) -> None:
    """Convert the weights of a network from one framework's names and order of axes to another's.

    Prints which array of the network took which tensor, with shapes and orders of axes. Nothing is guessed: what does
    not fit is listed, all at once, and then nothing is written. Numbers keep their bits unless --half says otherwise.
    """
    for option, given in (("--map", map), ("--fold", fold)):
        check_pairs(option, given or ())
    options = Conversion(
        from_layout, to_layout, network, tuple(map or ()), prefix, tuple(leave or ()), tuple(flatten or ()),
        tuple(fold or ()), epsilon, half, allow_rounding, one_file, force, mean, scale, channels,
        registry_of(registry, source, destination, network),
    )  # fmt: skip
    done = convert_weights(source, destination, options)
    if not quiet:
        print("\n".join(str(table) for table in done.tables))
        print(f"{destination}: {done.count:,} arrays")
        if options.prepares:
            from openmps.training.inference import described_preprocessing
            from openmps.training.run_folder import RunFolder

            print(f"the network sees {described_preprocessing(RunFolder.open(destination))}")
