"""The stress of tests/stress.py for as long as one likes: rounds of 1,000 buffers, each with other random choices.

Prints the buffers a second, the memory that the process holds and the tensors that are alive after each tenth of the
run. The first fault ends it.

Usage: python bench/stress.py [--rounds N] [--device cpu|cuda]
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import sys
import time
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from encoding import Bench
from stress import hasty_threads, one_queue, two_queues

BUFFERS = 1000
PATIENCE = 300
"""Seconds that a round may take before every thread's place is printed and the run ends."""
FORMS = {
    "two queues, a thread each": two_queues,
    "one queue, two threads": partial(one_queue, enqueued=False),
    "one queue, two threads, enqueued": partial(one_queue, enqueued=True),
}


def resident() -> float:
    """Megabytes of memory that the process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> int:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of 1,000 buffers of each form")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("stress: skipped, no CUDA device here")
        return 0
    bench = Bench.on(torch.device(options.device))
    for form, run in FORMS.items():
        began = time.perf_counter()
        for number in range(options.rounds):
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            with hasty_threads():
                run(bench, BUFFERS, seed=number, sleep=1e-3 if number % 2 else 0.0)
            faulthandler.cancel_dump_traceback_later()
            if (number + 1) % max(1, options.rounds // 10) == 0:
                alive = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
                done, seconds = (number + 1) * BUFFERS, time.perf_counter() - began
                print(
                    f"{form}: {done} buffers, {done / seconds:.0f}/s, {resident():.0f} MB, {alive} tensors", flush=True
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
