"""``--network package.module:function``: PyTorch modules of the user's own, to be trained."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from openmps.cli.own_code import has_form, imported, member, parted, told
from openmps.cli.together import is_first
from openmps.errors import MPSArgumentError

if TYPE_CHECKING:
    from openmps.distributed import Group
    from openmps.training.dataset import DataSplit

_OPTION = "--network"
_RULE = "must give a torch.nn.Module without arguments"


@contextmanager
def network_file(group: Group | None, network: str, split: DataSplit, seed: int) -> Generator[str]:
    """The network's name or file; of ``package.module:function`` an ONNX file that lasts as long as the block.

    The first process calls the function, with PyTorch's generator at ``seed``; the others get the file.
    """
    if not has_form(network):
        yield network
        return
    from openmps.training.imported import KEPT
    from openmps.training.processes import copies, together

    content = together(group, lambda: _exported(network, split, seed) if is_first(group) else b"")
    content = content if group is None else group.broadcast(content)
    with together(group, lambda: copies({KEPT: content})) as folder:
        yield str(Path(folder, KEPT))


def _exported(text: str, split: DataSplit, seed: int) -> bytes:
    import torch

    from openmps.training.torch_modules import torch_module_bytes

    where, name = parted(_OPTION, text, "must be package.module:function")
    module = imported(_OPTION, where, "openmps.formats.onnx")
    with told(_OPTION, text, _RULE), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = member(module, name, f"{_OPTION} {text}", "Name a function that gives a torch.nn.Module")
        if callable(found) and not isinstance(found, torch.nn.Module):
            found = found()
    if not isinstance(found, torch.nn.Module):
        raise MPSArgumentError("openmps", f"{_OPTION} {text}", _RULE, type(found).__name__)
    height, width, channels = split.training.images.shape[1:]
    return torch_module_bytes(found, height=height, width=width, channels=channels)
