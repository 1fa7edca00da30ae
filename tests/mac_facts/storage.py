"""States, storage and random numbers (C, macOS 26.5 for all but `MPSRectNoClip`)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import openmps as mps
from encoding import Bench, finish
from mac_facts.fact import DEVICE, Fact, or_none, row
from oracles.random import philox_word

Descriptor = mps.MPSMatrixRandomDistributionDescriptor
FLOAT32, UINT32 = mps.MPSDataType.FLOAT32, mps.MPSDataType.UINT32
WORDS = {
    0: "6627e8d5 e169c58d bc57ac4c 9b00dbd8 2dce73e5 1348e23f fcf8e0ec a287aadb",
    1: "e3e80670 e50a0ebc 95f222c0 b615aa27 127bee41 1e047488 48842b20 0a393496",
    2: "6cea1ec5 7f4dbfff f99450e5 664593ce 5011f2a6 9a57606d 9a606749 5d52b774",
}
ELEMENTS = {
    mps.MPSDataType.FLOAT32: 4, mps.MPSDataType.FLOAT16: 2, mps.MPSDataType.INT8: 1, mps.MPSDataType.UINT8: 1,
    mps.MPSDataType.INT16: 2, mps.MPSDataType.UINT16: 2, mps.MPSDataType.INT32: 4, mps.MPSDataType.UINT32: 4,
}  # fmt: skip
COLUMNS = range(1, 70)


def _drawn(seed: int, count: int, data_type: mps.MPSDataType = UINT32, descriptor: Descriptor | None = None) -> Any:
    kernel = mps.MPSMatrixRandomPhilox(DEVICE, data_type, seed, descriptor)
    matrix = mps.MPSMatrix(device=DEVICE, descriptor=mps.MPSMatrixDescriptor(4, count // 4, data_type=data_type))
    command_buffer = Bench(DEVICE).command_buffer()
    kernel.encode(command_buffer, destination_matrix=matrix)
    finish(command_buffer)
    return matrix.numpy().reshape(-1)


def _words(seed: int) -> np.ndarray:
    return np.array([int(word, 16) for word in WORDS[seed].split()], np.uint32)


def _spacing(columns: int, data_type: mps.MPSDataType) -> int:
    """The rule that all 552 measured numbers follow."""
    size = ELEMENTS[data_type]
    if columns == 1:
        return size
    unit = 16 if data_type in (mps.MPSDataType.FLOAT32, mps.MPSDataType.FLOAT16) else 4 * size
    return -(-columns * size // unit) * unit


def _spacings(advise: Any) -> list[int]:
    return [advise(columns, data_type) for data_type in ELEMENTS for columns in COLUMNS]


def _shown(descriptor: Descriptor) -> np.ndarray:
    found = descriptor.minimum, descriptor.maximum, descriptor.mean, descriptor.standard_deviation
    return np.array(found, np.float32)


def _kept_matrix_bytes() -> int:
    descriptor = mps.MPSMatrixDescriptor(2, 3, 16)
    descriptor.rows = 5
    descriptor.row_bytes = 32
    return descriptor.matrix_bytes


def _incremented() -> tuple[list[int], list[int]]:
    """What the helper returns for batches of 1, 2 and 3, and a count of 1 after + 2 and - 1."""
    command_buffer = Bench(DEVICE).command_buffer()
    returned: list[int] = []
    for size in (1, 2, 3):
        states = [mps.MPSState.temporary_state(command_buffer, buffer_size=16) for _ in range(size)]
        returned.append(mps.MPSStateBatchIncrementReadCount(states, 2))
    state = mps.MPSState.temporary_state(command_buffer, buffer_size=16)
    counts = [state.read_count]
    for amount in (2, -1):
        mps.MPSStateBatchIncrementReadCount([state], amount)
        counts.append(state.read_count)
    state.read_count = 0
    command_buffer.commit()
    command_buffer.wait_until_completed()
    return returned, counts


def _listed() -> tuple[int, list[int]]:
    state = mps.MPSState(DEVICE, resource_list=mps.MPSStateResourceList([32, 64, 128]))
    return state.resource_count, [state.buffer_size_at_index(index) for index in range(3)]


def _of_buffer() -> tuple[int, int, bool]:
    state = mps.MPSState(resource=DEVICE.new_buffer(length=64))
    return state.resource_count, state.buffer_size_at_index(0), state.is_temporary


def _lazily() -> tuple[bool, bool]:
    state = mps.MPSState(DEVICE, buffer_size=16)
    return state.resource_at_index(0, allocate_memory=False) is None, state.resource_at_index(0) is None


def _no_clip() -> tuple[int, ...]:
    clip = mps.MPSRectNoClip
    return clip.origin.x, clip.origin.y, clip.origin.z, clip.size.width, clip.size.height, clip.size.depth


FACTS = [
    Fact("no-clip", "origin 0, sizes all bits of 64", "A", (0, 0, 0, *[2**64 - 1] * 3), _no_clip),
    Fact(
        "read-counts-of-batches",
        "the batch's size comes back; counts move by the amount",
        "A",
        ([1, 2, 3], [1, 3, 2]),
        _incremented,
    ),
    Fact("state-of-a-buffer", "one resource of 64 bytes, not temporary", "B", (1, 64, False), _of_buffer),
    Fact("state-with-a-size", "nil until it is asked for with allocateMemory", "B", (True, False), _lazily),
    Fact("state-of-a-list", "three resources of the sizes given", "B", (3, [32, 64, 128]), _listed),
    Fact(
        "row-bytes",
        "one column is one element, floats to 16 bytes, integers to 4 elements",
        "A",
        [_spacing(columns, data_type) for data_type in ELEMENTS for columns in COLUMNS],
        lambda: _spacings(mps.MPSMatrixDescriptor.row_bytes),
    ),
    Fact(
        "row-bytes-of-none",
        "no column takes no byte",
        "A",
        [0] * len(ELEMENTS),
        lambda: [mps.MPSMatrixDescriptor.row_bytes(0, data_type) for data_type in ELEMENTS],
    ),
    Fact(
        "vector-bytes",
        "as row bytes",
        "A",
        [_spacing(columns, data_type) for data_type in ELEMENTS for columns in COLUMNS],
        lambda: _spacings(mps.MPSVectorDescriptor.vector_bytes),
    ),
    Fact("matrix-bytes", "as the descriptor was made, whatever is set later", "A", 32, _kept_matrix_bytes),
    *(
        Fact(
            f"philox-words-{seed}",
            "Philox4x32-10 with the number of the block in the last counter word",
            "A",
            _words(seed),
            lambda seed=seed: _drawn(seed, 8),
        )
        for seed in WORDS
    ),
    Fact(
        "philox-uniform",
        "the 23 highest bits of a word times 2^-23",
        "A",
        (_words(0) >> np.uint32(9)).astype(np.float32) * np.float32(2.0**-23),
        lambda: _drawn(0, 8, FLOAT32),
    ),
    Fact(
        "philox-uniform-printed",
        "the first four numbers of seed 0",
        "A",
        [0.39904642, 0.88052011, 0.73571277, 0.60548174],
        lambda: _drawn(0, 8, FLOAT32),
        3e-8,
    ),
    Fact(
        "philox-uniform-bounds",
        "one rounding of minimum + 5 t",
        "A",
        [-0.00476789, 2.40260053, 1.67856383, 1.02740872],
        lambda: _drawn(0, 8, FLOAT32, Descriptor.uniform_distribution_descriptor(-2, 3)),
        1.1e-6,
    ),
    Fact(
        "philox-normal",
        "the inverse distribution function of the same share",
        "A",
        [-0.2558161, 1.17759078, 0.6301836, 0.26756196],
        lambda: _drawn(0, 8, FLOAT32, Descriptor.normal_distribution_descriptor(0, 1)),
        4e-6,
    ),
    Fact(
        "descriptor-uniform",
        "mean and deviation of [-2, 3]",
        "A",
        row(-2, 3, 0.5, 1.44337571),
        lambda: _shown(Descriptor.uniform_distribution_descriptor(-2, 3)),
    ),
    Fact(
        "descriptor-default",
        "all numbers are 0",
        "A",
        row(0, 0, 0, 0),
        lambda: _shown(Descriptor.default_distribution_descriptor()),
    ),
    Fact(
        "descriptor-normal",
        "the bounds are infinite",
        "A",
        row(-math.inf, math.inf, 2, 3),
        lambda: _shown(Descriptor.normal_distribution_descriptor(2, 3)),
    ),
    Fact(
        "philox-small-matrix",
        "a matrix of 4x4 is filled in the order of its elements",
        "A",
        np.array([philox_word(0, index) for index in range(16)], np.uint32),
        lambda: _drawn(0, 16),
    ),
]
SWITCHED = [
    Fact(
        "state-resource-size",
        "resourceSize of a state of 64 bytes is a page",
        "A",
        16384,
        lambda: mps.MPSState(resource=DEVICE.new_buffer(length=64)).resource_size(),
        switch={"state_resource_size": "pages"},
    ),
    Fact(
        "short-row-bytes",
        "a descriptor with row_bytes 8 for 2x3 floats is taken, with matrix_bytes 16",
        "B",
        16,
        lambda: or_none(lambda: mps.MPSMatrixDescriptor(2, 3, 8).matrix_bytes),
        switch={"short_row_bytes": "taken"},
    ),
]
"""Facts that conventions make hold, where the default keeps to the documentation."""
DECLINED = {
    "mtgp32-words": "words of seed 0 (A: 292b9f95 5e64b688 90d5d94d 1282ba5c): the framework's constants are private, "
    "and four words say too little of them to be a choice",
    "philox-large-matrix": "a matrix of 400x400 is filled in blocks there (A): neither their shape nor their order is "
    "known, so no choice can compute it",
}
"""Facts that are not followed, and why."""
