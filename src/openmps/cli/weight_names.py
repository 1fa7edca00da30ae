"""``LAYER=NAME`` of ``openmps weights convert``, where names may hold ``=`` themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import typer

_Reading = tuple[str, str]


def check_pairs(option: str, given: Sequence[str]) -> None:
    """Refuse what is no ``LAYER=NAME``, whatever the layers are."""
    for text in given:
        if not _readings(text):
            raise typer.BadParameter(f"{text!r} is no LAYER=NAME", param_hint=option)


def named_pairs(
    option: str, given: Sequence[str], layers: Collection[str], tensors: Collection[str] | None, prefix: str = ""
) -> dict[str, str]:
    """The names by layer or array of a network.

    A text with several ``=`` is read as what is there: a layer on its left, and on its right a tensor, or what stands
    before some, behind ``prefix`` or with it. ``tensors`` is None where names on the right are free.
    """
    stems = None if tensors is None else _stems(tensors)
    found: dict[str, str] = {}
    for text in given:
        layer, name = _chosen(option, text, _readings(text), layers, stems, prefix)
        if layer in found:
            raise typer.BadParameter(f"{layer!r} is named twice", param_hint=option)
        found[layer] = name
    return found


def _readings(text: str) -> list[_Reading]:
    """Every layer and name that a text can stand for."""
    places = [place for place, letter in enumerate(text) if letter == "=" and place]
    return [(text[:place], text[place + 1 :]) for place in places]


def _chosen(
    option: str,
    text: str,
    readings: Sequence[_Reading],
    layers: Collection[str],
    stems: Collection[str] | None,
    prefix: str,
) -> _Reading:
    if len(readings) == 1:
        return readings[0]
    possible = [
        (layer, name)
        for layer, name in readings
        if layer in layers and (stems is None or not name or {_plain(name), _plain(prefix + name)} & set(stems))
    ]
    if len(possible) != 1:
        shown = " or ".join(f"{layer!r} and {name!r}" for layer, name in (possible or readings)[:8])
        what = "can be read in more than one way" if possible else "names no layer of the network and tensor of SOURCE"
        remedy = "Give one of the files other names" if possible else "See openmps weights show"
        raise typer.BadParameter(f"{text!r} {what}: {shown}. {remedy}", param_hint=option)
    return possible[0]


def _plain(name: str) -> str:
    """A name as names are compared: ``/`` is ``.``, and ``:0`` at the end is not looked at."""
    return name.removesuffix(":0").replace("/", ".")


def _stems(tensors: Collection[str]) -> set[str]:
    """The names of tensors, and what stands before a separator in them."""
    found: set[str] = set()
    for name in map(_plain, tensors):
        parts = name.split(".")
        found.update(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return found
