"""The network of a PyTorch module, and the way back: its numbers under the module's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from openmps.errors import MPSOperatorError
from openmps.formats.onnx.learning import Learnt
from openmps.formats.onnx.network import OnnxModel, OnnxNetwork
from openmps.graph.graph import MPSNNGraph
from openmps.metal.device import MTLDevice
from openmps.types import MPSImageFeatureChannelFormat

_WHO = "openmps.formats.onnx.from_torch"
_FLOAT32 = MPSImageFeatureChannelFormat.FLOAT32


@dataclass(frozen=True)
class TorchNetwork(OnnxNetwork):
    """The nodes of a PyTorch module, of which graphs are made; `state_dict` gives what they have learnt."""

    _state: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    _learnt: Sequence[tuple[Sequence[str], Learnt]] = field(default=(), repr=False)
    """What is trained, each with the module's names of it."""
    _inference: OnnxNetwork | None = field(default=None, repr=False)

    @property
    def inference(self) -> OnnxNetwork:
        """The same layers over the same data sources without dropout; the network itself where nothing drops out."""
        return self if self._inference is None else self._inference

    def graph(
        self, device: MTLDevice | None = None, channel_format: MPSImageFeatureChannelFormat = _FLOAT32
    ) -> MPSNNGraph:
        """A graph for inference, without dropout; see `OnnxNetwork.graph`."""
        return (
            super().graph(device, channel_format)
            if self._inference is None
            else self._inference.graph(device, channel_format)
        )

    def model(
        self, device: MTLDevice | None = None, channel_format: MPSImageFeatureChannelFormat = _FLOAT32
    ) -> OnnxModel:
        """The network for inference, without dropout, ready to run on arrays; see `OnnxNetwork.model`."""
        return (
            super().model(device, channel_format)
            if self._inference is None
            else self._inference.model(device, channel_format)
        )

    def state_dict(self) -> dict[str, Any]:
        """The module's numbers as they are now, for its ``load_state_dict``: its names, shapes and types, on the CPU.

        What data sources train is theirs; all else is as it was when the module was traced, the count of batches of a
        batch normalization with it. Call it when the command buffers are done.
        """
        found = {name: value.clone() if isinstance(value, Tensor) else value for name, value in self._state.items()}
        for names, learnt in self._learnt:
            array = torch.from_numpy(learnt.array())
            found |= {name: array.to(self._state[name].dtype, copy=True) for name in names}
        return found


def torch_network(
    network: OnnxNetwork,
    module: torch.nn.Module,
    targets: Mapping[str, str],
    learnt: Sequence[Learnt],
    trained: frozenset[str] | None,
    inference: OnnxNetwork | None = None,
) -> TorchNetwork:
    """The network of a module; ``targets`` are its names of the constants, ``trained`` those that have to be learnt.

    ``inference`` is the one that infers, where it is another.

    Raises:
        MPSOperatorError: No layer trains a parameter, or several do, each for itself.
    """
    _check_trained(targets, learnt, trained or frozenset())
    state = {
        name: value.detach().cpu().clone() if isinstance(value, Tensor) else value
        for name, value in module.state_dict().items()
    }
    same = _same_tensors(module)
    named = [([name for name in same[targets[each.name]] if name in state], each) for each in learnt]
    parts = (network.inputs, network.outputs, network.input_ports, network.output_ports)
    return TorchNetwork(*parts, _state=state, _learnt=tuple(named), _inference=inference)


def _same_tensors(module: torch.nn.Module) -> dict[str, list[str]]:
    """All names of the parameter or buffer that has a name."""
    own = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    names: dict[int, list[str]] = {}
    for name, value in own:
        names.setdefault(id(value), []).append(name)
    return {name: names[id(value)] for name, value in own}


def _check_trained(targets: Mapping[str, str], learnt: Sequence[Learnt], trained: frozenset[str]) -> None:
    """Raise unless each parameter is what one data source trains."""
    problems: list[dict[str, str]] = []
    for name in sorted(trained | {each.name for each in learnt}):
        count = len({id(each.source) for each in learnt if each.name == name})
        if count != 1:
            why = "no layer of the framework trains it" if count == 0 else f"{count} layers train it, each for itself"
            remedy = "Freeze it, or leave it out of the module" if count == 0 else "Give each layer numbers of its own"
            problems.append({"node": targets.get(name, name), "operator": "parameter", "why": why, "remedy": remedy})
    if problems:
        raise MPSOperatorError(_WHO, "module", problems)
