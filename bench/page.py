"""Writes docs/performance.md from the results: the latest line of each work on each kind of device.

Usage: python -m bench.page
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from typing import Any

from bench.harness import COPIES, OURS, RESULTS, ROOT

PAGE = ROOT / "docs" / "performance.md"
Row = dict[str, Any]

HEAD = """# Performance

Written by `python -m bench.page` from `bench/results`. Each row is one run: openmps and its peers on the same work, by
turns, so that a ratio holds on a busy machine too. A time is the median of the turns, with the quartiles behind it;
"faster" is the best peer's time over ours, the median of the ratios turn by turn, so more than 1 means that openmps is
faster. The first step counts from the making of the network; peak memory is that of the process on the CPU, and that of
PyTorch's allocator on a GPU. Numbers of float32 are multiplied as they are on both sides: PyTorch is told not to round
those of convolutions to TF32.

```sh
pip install -e '.[bench]'
python -m bench.training --device cpu      # or cuda; --list names every work
python -m bench.kernels --device cpu
python -m bench.growth --device cpu
python -m bench.image_filters --device cpu
pip install --no-deps --ignore-requires-python -r tests/networks.txt && python -m bench.trained
python -m bench.page
```
"""
_DEVICES = {"cpu": "CPU", "cuda": "GPU"}
_BY_THREADS = ("training", "trained", "kernels")
"""Benchmarks that are measured by the clock, too, with so many threads."""


def rows(bench: str) -> list[Row]:
    """The latest line of each work on each kind of device, in the order of their first lines.

    Networks are told apart by GPU, and where the CPU's clock counts, by threads.
    """
    path = RESULTS / f"{bench}.jsonl"
    found: dict[tuple[object, ...], Row] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        row = json.loads(line)
        machine = row["device"] == "cuda" and bench == "training" and row["machine"]
        found[row["device"], row["work"], machine, _is_of_threads(row) and row["threads"]] = row
    return list(found.values())


def _is_of_threads(row: Row) -> bool:
    """Whether it is for the tables of threads: on the CPU, by the clock."""
    return (row["device"], row.get("clock")) == ("cpu", "wall") and row["bench"] in _BY_THREADS


def page() -> str:
    """The page."""
    parts = [HEAD]
    for device, name in _DEVICES.items():
        for section in _SECTIONS:
            parts.extend(section(device, name))
    return "\n".join(parts)


def _of(bench: str, device: str) -> list[Row]:
    return [row for row in rows(bench) if row["device"] == device and not _is_of_threads(row)]


def _by_threads(bench: str, device: str) -> list[Row]:
    return [row for row in rows(bench) if row["device"] == device and _is_of_threads(row)]


def _training(device: str, name: str) -> Iterable[str]:
    found = _of("training", device)
    machines = dict.fromkeys(row["machine"] for row in found)
    for machine in machines if device == "cuda" else [""] * bool(found):
        yield f"## Networks, {machine or name}\n"
        yield from _networks([row for row in found if machine in ("", row["machine"])])


def _networks(found: list[Row]) -> Iterable[str]:
    yield "| work | contender | ms a step | quartiles | first step, s | peak, MiB | openmps is faster |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for row in found:
        title = row["title"]
        for contender, figures in row["contenders"].items():
            if "skipped" in figures:
                yield f"| {title} | {contender} | skipped: {_cell(figures['skipped'])} | | | | |"
            else:
                ratio = row.get("ratio") if contender == row.get("best_peer") else None
                yield f"| {title} | {contender} | {_timed(figures)} | {_more(figures)} | {_times(ratio)} |"
            title = ""
    yield f"\n{_seen(found)}\n"


def _threads(device: str, name: str) -> Iterable[str]:
    found = [row for bench in ("training", "trained") for row in _by_threads(bench, device)]
    if not found:
        return
    peers = list(dict.fromkeys(peer for row in found for peer, each in row["contenders"].items() if "ratio" in each))
    yield f"## Threads, {name}\n"
    yield "By the clock; milliseconds, and behind a peer's its time over ours. A row of fewer threads than the machine"
    yield "has cores was pinned to cores of its own, while other rows were measured on some of the others.\n"
    yield f"| work | threads | {OURS} | {' | '.join(peers)} |"
    yield f"| --- | ---: | ---: |{' ---: |' * len(peers)}"
    for row in sorted(found, key=lambda row: (row["title"], row["threads"])):
        others = (_beside(row, peer) for peer in peers)
        yield f"| {row['title']} | {row['threads']} | {_middle(row, OURS):.4g} | {' | '.join(others)} |"
    yield f"\n{_seen(found)}\n"


def _kernels_by_threads(device: str, name: str) -> Iterable[str]:
    found = _by_threads("kernels", device)
    if not found:
        return
    columns: dict[tuple[int, str], dict[str, float]] = {}
    for row in found:
        for size, case in zip(("largest", "middle"), reversed(row["sizes"]), strict=False):
            columns.setdefault((row["threads"], size), {})[row["work"]] = case["ratio"]
    ordered = sorted(columns, key=lambda column: (column[0], column[1] == "largest"))
    yield f"## Kernels with several threads, {name}\n"
    yield "By the clock, beside the bare PyTorch call with as many threads: its time over ours at the middle and the"
    yield f"largest size, {_sizes(sorted(found, key=lambda row: -len(row['sizes'])))}.\n"
    for column in ordered:
        of = columns[column].values()
        yield f"With {column[0]} threads at the {column[1]} size the median of {len(of)} rows is"
        yield f"{statistics.median(of):.2f}, the least {min(of):.2f}; {sum(ratio < 0.9 for ratio in of)} are under 0.9."
    yield f"\n| kernel | {' | '.join(f'{threads} threads, {size}' for threads, size in ordered)} |"
    yield f"| --- |{' ---: |' * len(ordered)}"
    for work in dict.fromkeys(row["work"] for row in found):
        cells = (f"{columns[column][work]:.2f}" if work in columns[column] else "" for column in ordered)
        yield f"| {work} | {' | '.join(cells)} |"
    yield f"\n{_seen(found)}\n"


def _beside(row: Row, peer: str) -> str:
    is_there = "ratio" in row["contenders"].get(peer, {})
    return f"{_middle(row, peer):.4g} ({_against(row, peer):.2f} ×)" if is_there else ""


def _trained(device: str, name: str) -> Iterable[str]:
    found = _of("trained", device)
    if not found:
        return
    peers = [peer for peer in found[0]["contenders"] if peer != OURS]
    yield f"## Trained networks out of ONNX files, {name}\n"
    yield "`OnnxModel.run` beside ONNX Runtime and PyTorch (the module itself for MTCNN's networks, else the model's"
    yield "operators one by one), arrays in and arrays out. Behind a peer's milliseconds: its time over ours.\n"
    medians = (f"{statistics.median(_against(row, peer) for row in found):.2f} for {peer}" for peer in peers)
    yield f"The median of the {len(found)} ratios is {', '.join(medians)}.\n"
    yield f"| network | {OURS} | {' | '.join(peers)} |"
    yield f"| --- | ---: |{' ---: |' * len(peers)}"
    for row in found:
        others = (f"{_middle(row, peer):.4g} ({_against(row, peer):.2f} ×)" for peer in peers)
        yield f"| {row['title']} | {_middle(row, OURS):.4g} | {' | '.join(others)} |"
    yield f"\n{_seen(found)}\n"


def _middle(row: Row, contender: str) -> float:
    return row["contenders"][contender]["median_ms"]


def _against(row: Row, peer: str) -> float:
    """How many times as long as ours a peer takes, in the median over the turns."""
    return row["contenders"][peer]["ratio"]


_OF_A_TRAINING = {
    "loss": "loss of the last 20 steps",
    "accuracy": "accuracy",
    "first_error": "error of gradients at first",
    "last_error": "at last",
}
_MOMENTS = """`python -m bench.second_moments`: networks of {width} channels in their first stage, {steps} steps of
{batch} images of {side} pixels, from {seeds} seeds. Operations of block ends run one by one, or by second moments as
`MPSNNGraph.allow_second_moments` says: the mean, the least and the most. How many of all ends are by moments stands
beside; they have {pixels} or more pixels for each channel read, where a graph asks for 128. ResNet-18 has none: its
blocks end with convolutions of 3x3 pixels, so that its graphs are the same either way. The error of gradients is the
norm of what they differ by from PyTorch's in float64, as a share of these; accuracy is that of images which training
has not seen.
"""


def _second_moments(device: str, name: str) -> Iterable[str]:
    found = _of("second_moments", device)
    if not found:
        return
    seeds = len(next(iter(found[0]["ways"].values())))
    yield f"## Block ends by second moments, {name}\n"
    yield _MOMENTS.format(**found[0], seeds=seeds)
    yield f"| network, data, images | block ends | by moments | {' | '.join(_OF_A_TRAINING.values())} |"
    yield f"| --- | --- | ---: |{' --- |' * len(_OF_A_TRAINING)}"
    for row in found:
        title = row["title"]
        for way, ended in row["ways"].items():
            cells = (_spread([each[what] for each in ended]) for what in _OF_A_TRAINING)
            yield f"| {title} | {way} | {ended[0]['ends']} of {row['blocks']} | {' | '.join(cells)} |"
            title = ""
    lines = {f"{_where(row)}; {row['threads']} thread(s)" for row in found}
    yield f"\nMeasured on {', and on '.join(sorted(lines))}.\n"


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3g} ({min(values):.3g} – {max(values):.3g})"


def _kernels(device: str, name: str) -> Iterable[str]:
    found = _of("kernels", device)
    if not found:
        return
    largest = [case["ratio"] for row in found for case in row["sizes"][-1:]]
    yield f"## Kernels, {name}\n"
    yield "Encodes, ten to a command buffer and as many as take the call 50 ms, committed and waited for, beside the"
    yield "bare PyTorch call that computes the same numbers. Ratios are the call's time over ours at three sizes, with"
    yield f"our milliseconds at the largest behind them; sizes, [N, C, H, W], are {_sizes(found)}."
    yield "A gradient kernel has the gradient, the source and the state, as in the framework; torch's gradient has what"
    yield "autograd kept, such as the results of a sigmoid.\n"
    yield f"Of {len(largest)} rows the median at the largest size is {statistics.median(largest):.2f}, the least"
    yield f"{min(largest):.2f}; {sum(ratio < 0.9 for ratio in largest)} are under 0.9.\n"
    yield "| kernel | small | middle | large | ms, large |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for row in found:
        ratios = " | ".join(f"{case['ratio']:.2f}" for case in row["sizes"])
        yield f"| {row['work']} | {ratios} | {row['sizes'][-1]['contenders'][OURS]['median_ms']:.3g} |"
    yield f"\n{_seen(found)}\n"


def _filters(device: str, name: str) -> Iterable[str]:
    found = _of("image_filters", device)
    if not found:
        return
    yield f"## Image filters, {name}\n"
    yield "A filter from an image into another, encoded, committed and waited for, beside a peer's call that makes the"
    yield "same picture: OpenCV's function on the CPU, where it computes most of ours, too, PyTorch's operations on a"
    yield "GPU. Bytes of four channels, of one for thresholds, medians, equalization, extremes, distances and edges;"
    yield "milliseconds of ours, and the peer's time over ours, of pictures of"
    yield f"{_sizes(found)}.\n"
    for place, size in enumerate(each["size"] for each in found[0]["sizes"]):
        filters = (row["sizes"][place] for row in found)
        ratios = [each["ratio"] for each in filters if each["best_peer"] != COPIES]
        middle, least, few = statistics.median(ratios), min(ratios), sum(each < 0.6 for each in ratios)
        yield f"At {size[0]}x{size[1]} the median is {middle:.2f}, the least {least:.2f}, {few} are below 0.6."
    yield ""
    yield f"| filter |{' ms | faster |' * len(found[0]['sizes'])}"
    yield f"| --- |{' ---: | ---: |' * len(found[0]['sizes'])}"
    for row in found:
        cells = (f"{each['contenders'][OURS]['median_ms']:.3g} | {_times(each['ratio'])}" for each in row["sizes"])
        yield f"| {row['work']} | {' | '.join(cells)} |"
    yield f"\n{_seen(found)}\n"


def _sizes(found: list[Row]) -> str:
    return ", ".join("x".join(map(str, case["size"])) for case in found[0]["sizes"])


def _growth(device: str, name: str) -> Iterable[str]:
    found = _of("growth", device)
    if not found:
        return
    yield f"## How the cost grows, {name}\n"
    yield "| along | at | openmps, ms | PyTorch, ms | openmps is faster |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for row in found:
        ours, peer = (row["contenders"][each]["median_ms"] for each in (OURS, row["best_peer"]))
        yield f"| {row['along']} | {row['at']} | {ours:.3g} | {peer:.3g} | {_times(row['ratio'])} |"
    yield f"\n{_seen(found)}\n"


def _timed(figures: Row) -> str:
    return f"{figures['median_ms']:.4g} | {figures['low_ms']:.4g} – {figures['high_ms']:.4g}"


def _more(figures: Row) -> str:
    return f"{figures.get('first_step_s', '')} | {figures.get('peak_MiB', '')}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f} ×"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


def _seen(found: Iterable[Row]) -> str:
    """What the rows were measured with."""
    return "Measured on " + ", and on ".join(sorted({f"{_where(row)}; {_clock(row)}" for row in found})) + "."


def _where(row: Row) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
    return f"{row['machine']}; {versions}; commit {row['commit']}"


def _clock(row: Row) -> str:
    threads = f", {row['threads']} thread(s) each" if row.get("threads") else ""
    if row.get("clock") == "cpu":
        return f"milliseconds that the processes computed, since others used the machine too{threads}"
    return f"milliseconds that passed{threads}"


_SECTIONS = (
    _training, _threads, _second_moments, _trained, _kernels, _kernels_by_threads, _filters, _growth,
)  # fmt: skip


def main() -> None:
    """Write it."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
