"""The pages that are written by the suite say what it sees: none is old, none leaves a kernel out."""

from __future__ import annotations

import kernel_page
from catalogue import GRADIENTS, OTHERS, OURS, SAMPLES

LIMIT = 1e-5


def test_every_kernel_was_measured_and_is_within_the_limit() -> None:
    kernels = kernel_page.recorded()["cpu"]["kernels"]
    named = {kernel.__name__: "forward" for kernel in (*SAMPLES, *OURS, *OTHERS)}
    named |= {kernel.__name__: "gradient" for kernel in GRADIENTS}
    assert {name for name, what in named.items() if what not in kernels.get(name, {})} == set(), "make pages"
    assert {name for name, what in named.items() if kernels[name][what] > LIMIT} == set()
    assert {name for name in kernels if name not in named} == set()


def test_the_page_of_kernels_is_that_of_the_record() -> None:
    assert kernel_page.PAGE.read_text() == kernel_page.page(), "make pages"


def test_every_kernel_names_its_header() -> None:
    assert [kernel.__name__ for kernel in (*SAMPLES, *GRADIENTS, *OTHERS) if not kernel_page.since(kernel)] == []
