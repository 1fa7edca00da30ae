"""``openmps explain-padding``: what a padding policy does to a size."""

from __future__ import annotations

from typing import Annotated

import typer

from openmps.cli.options import parse_size

_NAMES = (
    "same, valid, full, tensorflow-same, tensorflow-valid, pytorch:PIXELS, caffe:PIXELS, "
    "onnx:TOP,LEFT,BOTTOM,RIGHT, …, or a method such as 0x1c"
)
Pixels = Annotated[str, typer.Option(metavar="PIXELS", help="One number, or WIDTHxHEIGHT.")]


def explain_padding(
    size: Annotated[str, typer.Argument(help="Source pixels: a length, or WIDTHxHEIGHT.", show_default=False)],
    policy: Annotated[str, typer.Argument(help=f"{_NAMES}.")] = "same",
    kernel: Pixels = "3",
    stride: Pixels = "1",
    dilation: Pixels = "1",
    backwards: Annotated[
        bool, typer.Option("--backwards", help="For reverse filters, such as transposed convolution.")
    ] = False,
) -> None:
    """Show what a padding policy does to a size.

    Prints the result size, the offset, and the source pixels that each result pixel reads.
    """
    from openmps.core.padding import report as padding_report

    two = any("x" in text.lower() for text in (size, kernel, stride, dilation))
    lengths = {
        name: _lengths(text, name, two=two)
        for name, text in (("size", size), ("kernel", kernel), ("stride", stride), ("dilation", dilation))
    }
    print(
        padding_report.explain_padding(
            lengths["size"],
            kernel=lengths["kernel"],
            stride=lengths["stride"],
            dilation=lengths["dilation"],
            policy=policy,
            backwards=backwards,
        )
    )


def _lengths(text: str, name: str, *, two: bool) -> int | tuple[int, int]:
    parsed = parse_size(text, name.upper() if name == "size" else f"--{name}")
    assert parsed is not None
    return parsed if two else parsed[0]
