"""The speedrun of examples/cifar_speedrun.py beside the same network in PyTorch, eager and compiled: by turns.

Images are noise, and lie on the device; each step makes its batch there: chosen, mirrored in every second epoch, moved
by up to two pixels, normalized. Half precision on a GPU, float32 on the CPU; gradient descent with Nesterov's momentum,
rates by the step. A turn is ``--steps`` steps, from the first batch to the last update. What augmentation costs is told
by the same steps over batches that are chosen and normalized alone.

Usage: python -m bench.cifar_speedrun [--device cpu|cuda] [--steps N] [--batch N] [--widths A,B,C] [--images N]
       [--turns N]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.harness import OURS, Contender, Turn, add_options, by_processes, compared, record, show

_MEAN, _DEVIATION = 0.45, 0.25
_PLAIN = "openmps, without flips and shifts"


def ours(device: str, batch: int, widths: Sequence[int], images: int, augments: bool = True) -> Turn:
    """The example; batches that are not augmented are normalized all the same."""
    import cifar_speedrun as example
    import openmps as mps

    place, data = mps.mtl_device(device), example.synthetic(images).training
    form = example.FLOAT32 if device == "cpu" else example.FLOAT16
    network = example.Speedrun(place, data, widths, _MEAN, _DEVIATION)
    batches = example.Batches(place, data, batch, _MEAN, _DEVIATION, form, flips=augments)
    if not augments:
        batches.augmentation.crop = 0
    graph = network.training_graph(form)
    return Turn(lambda count: example.train(network, batches, graph, count))


class Network(nn.Module):
    """Layer for layer the example's."""

    def __init__(self, whitening: Tensor, widths: Sequence[int], classes: int) -> None:
        super().__init__()
        self.register_buffer("whitening", whitening)
        channels, self.groups = len(whitening), nn.ModuleList()
        for width in widths:
            for _ in range(2):
                convolution = nn.Conv2d(channels, width, 3, padding=1, bias=False)
                normalization = nn.BatchNorm2d(width, momentum=0.4)
                normalization.weight.requires_grad_(False)
                self.groups.append(nn.ModuleList((convolution, normalization)))
                channels = width
        self.head = nn.Linear(channels, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = functional.gelu(functional.conv2d(x, self.whitening))
        for place, (convolution, normalization) in enumerate(self.groups):
            x = convolution(x)
            x = functional.max_pool2d(x, 2) if place % 2 == 0 else x
            x = functional.gelu(normalization(x))
        return self.head(functional.max_pool2d(x, 3).flatten(1)) / 9


class Peer:
    """The same steps in PyTorch."""

    def __init__(self, device: str, batch: int, widths: Sequence[int], images: int, *, compiles: bool) -> None:
        import cifar_speedrun as example

        self.example, self.batch, self.device = example, batch, torch.device(device)
        data = example.synthetic(images).training
        self.form = torch.float32 if device == "cpu" else torch.float16
        pixels = torch.from_numpy(data.images).permute(0, 3, 1, 2).to(self.device)
        normalized = ((pixels / 255 - _MEAN) / _DEVIATION).to(self.form)
        self.images = normalized.contiguous(memory_format=torch.channels_last)
        self.labels = torch.from_numpy(data.labels).to(self.device)
        self.bits = torch.randint(0, 2, (images,), device=self.device)
        weights = torch.from_numpy(example.whitening(data.images[:5000], _MEAN, _DEVIATION)).permute(0, 3, 1, 2)
        network = Network(weights, widths, len(data.class_names)).to(self.device, self.form)
        for each in network.modules():
            if isinstance(each, nn.BatchNorm2d):
                each.float()
        network = network.to(memory_format=torch.channels_last).train()
        trained = [each for each in network.parameters() if each.requires_grad]
        groups = [
            {"params": [each for each in trained if each.dim() > 1], "speed": 1.0},
            {"params": [each for each in trained if each.dim() == 1], "speed": example.SHIFT_SPEED},
        ]
        fused = {"fused": True} if device != "cpu" else {}
        self.optimizer = torch.optim.SGD(groups, lr=0.1, momentum=example.MOMENTUM, nesterov=True, **fused)
        self.network: Any = torch.compile(network) if compiles else network

    def run(self, steps: int) -> None:
        """So many steps, to the end of the last one."""
        in_epoch = len(self.images) // self.batch
        for step in range(steps):
            if step % in_epoch == 0:
                order = torch.randperm(len(self.images), device=self.device)
            chosen = order[step % in_epoch * self.batch :][: self.batch]
            for group in self.optimizer.param_groups:
                rate = self.example.RATE / self.batch * self.example.schedule(step, steps)
                group["lr"] = rate * group["speed"]
            logits = self.network(self.augmented(chosen, step // in_epoch))
            smoothed = {"label_smoothing": self.example.SMOOTHING, "reduction": "sum"}
            loss = functional.cross_entropy(logits.float(), self.labels[chosen], **smoothed)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def augmented(self, chosen: Tensor, epoch: int) -> Tensor:
        """A batch, mirrored by its numbers in the data and moved by up to two pixels."""
        x = self.images[chosen]
        mirrored = ((self.bits[chosen] + epoch) & 1).bool().view(-1, 1, 1, 1)
        x = functional.pad(torch.where(mirrored, x.flip(3), x), (2, 2, 2, 2), "reflect")
        places = torch.arange(32, device=self.device)
        down, right = (torch.randint(0, 5, (len(x), 1), device=self.device) + places for _ in range(2))
        image = torch.arange(len(x), device=self.device).view(-1, 1, 1)
        return x[image, :, down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2)


def torch_peer(device: str, batch: int, widths: Sequence[int], images: int, compiles: bool) -> Turn:
    """PyTorch, as it comes or compiled."""
    return Turn(Peer(device, batch, widths, images, compiles=compiles).run)


def _ratio(these: Sequence[float], those: Sequence[float]) -> float:
    """The median, turn by turn."""
    return statistics.median(this / that for this, that in zip(these, those, strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=2000)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--widths", default="64,256,256")
    add_options(parser, 5)
    given = parser.parse_args(arguments)
    widths = [int(each) for each in given.widths.split(",")]
    what = {"device": given.device, "batch": given.batch, "widths": widths, "images": given.images}
    contenders = [
        Contender(OURS, "bench.cifar_speedrun", "ours", what),
        Contender(_PLAIN, "bench.cifar_speedrun", "ours", {**what, "augments": False}),
        *(
            Contender(name, "bench.cifar_speedrun", "torch_peer", {**what, "compiles": compiles})
            for name, compiles in (("torch", False), ("torch, compiled", True))
        ),
    ]
    found = by_processes(contenders, given.turns, given.steps, threads=given.threads, clock=given.clock)
    plain = found.pop(_PLAIN)
    cost = _ratio(found[OURS]["turns"], plain.pop("turns"))
    row = {
        "work": "cifar-speedrun",
        **what,
        "steps": given.steps,
        "threads": given.threads,
        "clock": given.clock,
        **compared(found),
        "plain": plain,
        "augmented_over_plain": cost,
    }
    show(f"{given.steps} steps of {given.batch} images, milliseconds a step", row)
    print(f"  {_PLAIN}: {plain['median_ms']:.4g} ms; with them {cost:.3f} times as long")
    if not given.no_record:
        record("cifar_speedrun", given.device, row)


if __name__ == "__main__":
    main()
