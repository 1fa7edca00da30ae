"""Networks trained and run: openmps beside its peers, each in a process of its own, by turns.

Usage: python -m bench.training [--device cpu|cuda] [--work NAME ...] [--turns N] [--threads N] [--clock wall|cpu]
       [--without PEER ...]

Without ``--work``: every work of the device. ``--list`` names them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from bench.harness import OURS, Contender, add_options, by_processes, compared, record, show
from bench.work import Work

_EAGER: dict[str, Any] = {"how": "eager"}
_COMPILED: dict[str, Any] = {"how": "default"}
_LEFT_OUT = {"skipped": "not measured in this run"}


class Task(NamedTuple):
    """One row of the table."""

    title: str
    does: str
    """``training``, ``detector_training`` or ``inference``."""
    work: Work
    steps: int
    """Steps a turn: enough that what a turn begins and ends with, when nothing is under way, counts little.

    A turn of the digit network's is as long as the rest before it: the first steps behind that take longer.
    """
    devices: tuple[str, ...] = ("cpu", "cuda")
    unit: str = "images"


_DIGITS: dict[str, Any] = {"network": "sample", "batch": 40, "side": 28, "channels": 1, "classes": 10}
_DIGITS |= {"optimizer": "adam", "images": 2000}
_YOLO: dict[str, Any] = {"network": "tiny-yolo", "classes": 20, "optimizer": "adam"}
_CPU, _CUDA = ("cpu",), ("cuda",)

TASKS: dict[str, Task] = {
    "digits": Task("digit network, training, batch 40", "training", Work(**_DIGITS), 20, _CPU),
    "digits-float32": Task("digit network, training, batch 40", "training", Work(**_DIGITS), 500, _CUDA),
    "digits-float16": Task(
        "digit network, training, batch 40, float16 images",
        "training",
        Work(**_DIGITS, half=True, reads_bytes=True),
        500,
        _CUDA,
    ),
    "resnet50-training": Task(
        "ResNet-50, training, 224 pixels, batch 256, float16 images, operations of block ends one by one",
        "training",
        Work("resnet50", 256, 224, half=True, moments=False),
        20,
        _CUDA,
    ),
    "resnet50-moments": Task(
        "ResNet-50, training, 224 pixels, batch 256, float16 images, block ends by second moments",
        "training",
        Work("resnet50", 256, 224, half=True),
        20,
        _CUDA,
    ),
    "resnet50-small-training": Task(
        "ResNet-50, training, 64 pixels, batch 8", "training", Work("resnet50", 8, 64), 4, _CPU
    ),
    "resnet50-1": Task("ResNet-50, inference, 224 pixels, batch 1", "inference", Work("resnet50", 1, 224), 8, _CPU),
    "resnet50-8": Task("ResNet-50, inference, 224 pixels, batch 8", "inference", Work("resnet50", 8, 224), 2, _CPU),
    "resnet50-1-float16": Task(
        "ResNet-50, inference, 224 pixels, batch 1, float16",
        "inference",
        Work("resnet50", 1, 224, half=True),
        50,
        _CUDA,
    ),
    "resnet50-128-float16": Task(
        "ResNet-50, inference, 224 pixels, batch 128, float16",
        "inference",
        Work("resnet50", 128, 224, half=True),
        10,
        _CUDA,
    ),
    "tiny-yolo-small": Task(
        "Tiny-YOLO, training, 160 pixels, batch 4", "detector_training", Work(batch=4, side=160, **_YOLO), 4, _CPU
    ),
    "tiny-yolo": Task(
        "Tiny-YOLO, training, 416 pixels, batch 32, float16 images",
        "detector_training",
        Work(batch=32, side=416, half=True, **_YOLO),
        20,
        _CUDA,
    ),
    "tiny-yolo-1": Task(
        "Tiny-YOLO, inference, 416 pixels, batch 1", "detector_inference", Work(batch=1, side=416, **_YOLO), 8
    ),
    "tiny-yolo-32-float16": Task(
        "Tiny-YOLO, inference, 416 pixels, batch 32, float16",
        "detector_inference",
        Work(batch=32, side=416, half=True, **_YOLO),
        20,
        _CUDA,
    ),
    "mobilenet-1": Task("MobileNet v1, inference, 224 pixels, batch 1", "inference", Work("mobilenet", 1, 224), 20),
    "mobilenet-small-training": Task(
        "MobileNet v1, training, 96 pixels, batch 8", "training", Work("mobilenet", 8, 96), 8, _CPU
    ),
    "mobilenet-training": Task(
        "MobileNet v1, training, 224 pixels, batch 128, float16 images",
        "training",
        Work("mobilenet", 128, 224, half=True),
        20,
        _CUDA,
    ),
}


def contenders(task: Task, device: str) -> list[Contender]:
    """Ours, and every peer of the work."""
    said = {"device": device, **asdict(task.work)}
    peer = "inference" if task.does.endswith("inference") else "training"

    def of_torch(name: str, more: Mapping[str, Any]) -> Contender:
        return Contender(name, "bench.torch_peers", peer, {**said, **more})

    found = [Contender(OURS, "bench.ours", task.does, said), of_torch("torch eager", _EAGER)]
    if device != "cpu":
        found.append(of_torch("torch, one CUDA graph", {"how": "graph"}))
    found.append(of_torch("torch.compile", _COMPILED))
    if device != "cpu":
        found.append(of_torch("torch.compile, reduce-overhead", {"how": "reduce-overhead"}))
    elif task.work.network == "sample":
        found.append(Contender("JAX jit", "bench.jax_peers", "digits_training", said))
    if device == "cpu" and peer == "inference":
        found.append(Contender("ONNX Runtime", "bench.torch_peers", "onnx_inference", said))
        found.append(Contender("OpenVINO", "bench.torch_peers", "openvino_inference", said))
        found += [Contender(name, "bench.mobile_peers", f"{name.lower()}_inference", said) for name in ("MNN", "ncnn")]
    return found


def measure(
    name: str,
    device: str,
    turns: int,
    threads: int | None = None,
    clock: str = "wall",
    without: Sequence[str] = (),
    times: int = 1,
) -> dict[str, Any]:
    """One row: a work on a device."""
    task = TASKS[name]
    every = contenders(task, device)
    asked = [each for each in every if each.name not in without]
    measured = by_processes(asked, turns, times * task.steps, threads=threads, clock=clock)
    found = compared({each.name: measured.get(each.name, dict(_LEFT_OUT)) for each in every})
    return {"work": name, "title": task.title, "batch": task.work.batch, "threads": threads, "clock": clock, **found}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", choices=sorted(TASKS), metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name every work")
    parser.add_argument("--without", nargs="+", default=(), metavar="PEER", help="leave peers out, by their names")
    parser.add_argument("--times", type=int, default=1, help="make turns so many times as long")
    add_options(parser, 12)
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(f"{name:24} {', '.join(task.devices):10} {task.title}" for name, task in TASKS.items()))
        return
    for name in options.work or [name for name, task in TASKS.items() if options.device in task.devices]:
        row = measure(
            name, options.device, options.turns, options.threads, options.clock, options.without, options.times
        )
        show(row["title"], row)
        if not options.no_record:
            record("training", options.device, row)


if __name__ == "__main__":
    main()
