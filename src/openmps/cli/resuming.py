"""``openmps train --resume``: what the command line may say about a run that has its options already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from openmps.cli.options import is_given, parse_size
from openmps.errors import MPSArgumentError

if TYPE_CHECKING:
    from openmps.training.run_folder import RunFolder

_WHO = "openmps train --resume"
_FREE = (
    *("resume", "epochs", "checkpoint_every", "keep_checkpoints"),
    *("device", "data", "shard_optimizer", "tensorboard", "quiet"),
)
"""Options that may be given with ``--resume``; a lower number of epochs and other data are refused later."""


def given_options(context: typer.Context) -> dict[str, Any]:
    """What stands on the command line, by the name of the parameter."""
    names = [name for name in context.params if is_given(context, name)]
    return {name: context.params[name] for name in names}


def check_options(run: RunFolder, given: Mapping[str, Any]) -> None:
    """Raise where an option contradicts the run's; one that says the same is accepted."""
    from openmps.training.inference import described_network
    from openmps.training.run_description import run_options

    shape, _ = described_network(run)
    source = run.config.get("data")
    skip_broken = isinstance(source, Mapping) and source.get("skip_broken") is True
    size = f"{shape.width}x{shape.height}"
    options = run_options(run)
    own = {"skip_broken": skip_broken, "channels": shape.channels, "network": shape.network}
    has: dict[str, Any] = {**options.describe(), **own, "sync_statistics": options.synchronizes_statistics}
    for name, value in given.items():
        if name == "run":
            raise MPSArgumentError(_WHO, "--run", "must be left out: the run goes on in its own folder", value)
        if name == "image_size":
            if parse_size(value, "--image-size") != (shape.width, shape.height):
                raise _contradiction(name, size, value)
        elif name not in _FREE and has.get(name) != getattr(value, "value", value):
            raise _contradiction(name, has.get(name), getattr(value, "value", value))


def _contradiction(name: str, own: Any, got: Any) -> MPSArgumentError:
    option = f"--{name.replace('_', '-')}"
    return MPSArgumentError(_WHO, option, f"must be {own}, as the run was started with", got, "Leave it out")
