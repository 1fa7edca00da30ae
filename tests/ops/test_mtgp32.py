"""MTGP32 against word-by-word loops, the published program's numbers, and the polynomials that identify it."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
import torch

from in_one_test import in_one_test
from openmps.ops.random.mtgp32 import GENERATORS, STATE_WORDS, STEP_WORDS, constants, initial_state, mtgp32
from openmps.ops.random.mtgp32_parameters import PARAMETERS
from oracles import mtgp32 as oracle

ROWS = [oracle.parse(line) for line in PARAMETERS.split("\n") if line]
KEY = (1, 2, 3, 4)
# What the authors' program prints for that key: the first words of three generators, the 1000th word of each.
FIRST = {
    0: [3019316817, 2177365770, 2928921399, 3679139331, 1957763862],
    17: [2572008258, 2329750900, 858333928, 1238643609, 3454916256],
    63: [1341319890, 2589145956, 2324743697, 320423504, 3272699678],
}
THOUSANDTH = """
3565363323 2880210918 3361559465 339735807 365352663 3993576181 2668662133 3962938506 124558842 2557362173
2687269449 813400271 173926428 3582304483 3135869440 534935455 2738046029 2708222285 180132087 2491114170
924516874 919171944 325595458 1361255779 3627775284 1196854730 576341715 2434963626 1241389832 1088408133
2945027326 3700390163 137347278 2542736241 2300170345 1307144116 3566169687 545291967 1911779486 3257024482
801726051 3913144152 643237125 300038585 3108025804 3177857870 3854085618 4293241079 3312576583 2557707762
243222385 1290729220 1048958986 2744427753 2201400688 1603513439 818168488 2284071112 3478554743 1502043402
3278038783 650108402 3226642965 615292998
"""
# How the authors identify their generators: SHA-1 of the characteristic polynomial of the state's transition.
POLYNOMIALS = """
eca55ad2 b40c0e40 2adadd51 84af0a59 6c3986b7 904ccf8e 1df2d909 5f919d52 ea05ed4c ef3d4a07 486117d1 dd650e8a
c5eb4f27 c8a221df 0c7cad04 965e341a a304afd5 634a6000 c0966d99 27b38544 08bc9d8d 61918a4c d0237654 b3072a75
369ae598 1adbc58f 820a4a42 19758ed3 dab10a8b 2ea623d8 a3a103cb fdc84f26 674e8346 3f9bfcb4 a697d45d fe5aa754
6bb0ffa4 4babe891 fb4cfddd 6b7774db 6bb539b0 eba3acd4 ab68ee90 a60a4ba2 6dac27f2 8dafa737 94dc7e62 87305978
06cd3661 1320262f 6583b0e5 59e59e1f 260b375d 7b595198 14d0de78 08164bc2 f5e7ee7c dd85a4bb 32875eae 1967527d
5b9cf521 7945ce4d 070824ce b704827f
"""


def _words(key: tuple[int, ...], rounds: int, device: torch.device | str = "cpu") -> np.ndarray:
    """The words of every generator, [64, rounds * 256]."""
    words, _ = mtgp32(initial_state(key).to(device), rounds)
    assert words.shape == (rounds, GENERATORS, STEP_WORDS)
    return words.cpu().numpy().transpose(1, 0, 2).reshape(GENERATORS, -1)


def test_published_words(device: torch.device) -> None:
    found = _words(KEY, 4, device)
    for generator, expected in FIRST.items():
        assert found[generator, :5].tolist() == expected
    assert found[:, 999].tolist() == [int(word) for word in THOUSANDTH.split()]


def test_published_words_of_the_oracle() -> None:
    for generator, expected in FIRST.items():
        row = ROWS[generator]
        assert list(itertools.islice(oracle.words(row, oracle.initialize(row, KEY)), 5)) == expected


@pytest.mark.parametrize("key", [(), (0,), (7, 2**32 - 1), tuple(range(360)), (2**31,) * 350, (5,) * 351], ids=len)
def test_initial_states(key: tuple[int, ...]) -> None:
    found = initial_state(key)
    assert found.shape == (GENERATORS, STATE_WORDS)
    assert found.dtype == torch.int64
    for generator in (0, 31, 63):
        assert found[generator].tolist() == oracle.initialize(ROWS[generator], key)


@in_one_test
@pytest.mark.parametrize("generator", range(0, GENERATORS, 9))
def test_words_equal_the_loops(generator: int, device: torch.device) -> None:
    row = ROWS[generator]
    expected = list(itertools.islice(oracle.words(row, oracle.initialize(row, (3, 9))), 3 * STEP_WORDS))
    assert _words((3, 9), 3, device)[generator].tolist() == expected


def test_going_on_is_as_one_go(device: torch.device) -> None:
    state = initial_state(KEY).to(device)
    before = state.clone()
    whole, end = mtgp32(state, 5)
    first, middle = mtgp32(state, 2)
    second, last = mtgp32(middle, 3)
    assert torch.equal(torch.cat((first, second)), whole)
    assert torch.equal(last, end)
    assert torch.equal(state, before)
    assert whole.min() >= 0
    assert whole.max() < 2**32


@pytest.mark.parametrize("generator", range(GENERATORS))
def test_each_generator_has_its_published_polynomial(generator: int, long_run: np.ndarray) -> None:
    """Of degree 11213, hence of full period if it is irreducible; the digest says that it is the authors' one."""
    found = oracle.minimal_polynomial((long_run[generator] >> 31 & 1).tolist())
    assert len(found) - 1 == 11213
    assert hashlib.sha1(found.encode()).hexdigest()[:8] == POLYNOMIALS.split()[generator]


@pytest.fixture(scope="module")
def long_run() -> np.ndarray:
    """More than twice 11213 words of every generator."""
    return _words((1,), 88)


def test_more_generators_than_constants(device: torch.device) -> None:
    """Beyond 64 the constants begin again."""
    keys = ((1, 2), (3, 4), (5, 6))
    states = torch.cat([initial_state(key) for key in keys]).to(device)
    words, last = mtgp32(states, 2)
    for number, key in enumerate(keys):
        rows = slice(64 * number, 64 * (number + 1))
        expected, end = mtgp32(initial_state(key).to(device), 2)
        assert torch.equal(words[:, rows], expected)
        assert torch.equal(last[rows], end)


def test_constants() -> None:
    assert len(ROWS) == GENERATORS == len(set(ROWS))
    # Words that follow at once may only read words that are there.
    assert max(row.position for row in ROWS) + STEP_WORDS <= STATE_WORDS
    found = constants(torch.device("cpu"))
    for generator, row in enumerate(ROWS):
        for bits in range(16):
            assert found.recursion[generator, bits] == oracle.product(row.recursion, bits)
            assert found.tempering[generator, bits] == oracle.product(row.tempering, bits)
