"""States of gamma and beta, and of mean and variance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openmps.core.state.rows import (
    MPSCNNNormalizationGammaAndBetaState,
    MPSCNNNormalizationMeanAndVarianceState,
)
from openmps.core.state.state import MPSState
from openmps.errors import MPSArgumentError, MPSLifetimeError, MPSTypeError, MTLCommandBufferError
from openmps.metal.device import MTLCommandQueue, MTLDevice
from openmps.metal.mps_command_buffer import MPSCommandBuffer
from openmps.types import MPSStateResourceType, MTLStorageMode

KINDS: list[tuple[Any, tuple[str, str]]] = [
    (MPSCNNNormalizationGammaAndBetaState, ("gamma", "beta")),
    (MPSCNNNormalizationMeanAndVarianceState, ("mean", "variance")),
]


@pytest.mark.parametrize(("kind", "names"), KINDS)
def test_from_buffers(kind: Any, names: tuple[str, str], mtl: MTLDevice) -> None:
    buffers = [mtl.new_buffer(data=np.arange(3, dtype=np.float32)), mtl.new_buffer(length=16)]
    for state in (kind(*buffers), kind(**dict(zip(names, buffers, strict=True)))):
        assert isinstance(state, MPSState)
        assert [getattr(state, name) for name in names] == buffers
        assert (state.device, state.is_temporary, state.read_count, state.resource_count) == (mtl, False, 0, 2)
        assert state.resource_size() == 28
        assert state.resource_type_at_index(1) is MPSStateResourceType.BUFFER
        assert state.resource_at_index(0) is buffers[0]


@pytest.mark.parametrize(("kind", "names"), KINDS)
def test_temporary(kind: Any, names: tuple[str, str], queue: MTLCommandQueue) -> None:
    command_buffer = queue.command_buffer()
    state = kind.temporary_state(command_buffer, number_of_feature_channels=5)
    assert type(state) is kind
    assert (state.is_temporary, state.read_count, state.lives_on) == (True, 1, command_buffer)
    for name in names:
        buffer = getattr(state, name)
        assert (buffer.length, buffer.storage_mode) == (20, MTLStorageMode.PRIVATE)
        assert getattr(state, name) is buffer
    state.read_count = 2
    state.count_read()
    assert getattr(state, names[0]).length == 20
    state.count_read()
    with pytest.raises(MPSLifetimeError, match=f"^{kind.__name__}: resource 1 must have reads left"):
        getattr(state, names[1])
    command_buffer.commit()
    command_buffer.wait_until_completed()
    with pytest.raises(MPSLifetimeError, match=f"^{kind.__name__}: resource 0 is gone"):
        getattr(state, names[0])


@pytest.mark.parametrize(("kind", "names"), KINDS)
def test_temporary_states_go_on_with_their_command_buffer(
    kind: Any, names: tuple[str, str], queue: MTLCommandQueue
) -> None:
    command_buffer = MPSCommandBuffer(queue)
    state = kind.temporary_state(command_buffer, 3)
    command_buffer.commit_and_continue()
    assert getattr(state, names[0]).length == 12
    command_buffer.commit()
    command_buffer.wait_until_completed()


@pytest.mark.parametrize(("kind", "names"), KINDS)
def test_errors(kind: Any, names: tuple[str, str], mtl: MTLDevice, queue: MTLCommandQueue) -> None:
    buffer, odd = mtl.new_buffer(length=12), mtl.new_buffer(length=6)
    for arguments, argument in (((None, buffer), names[0]), ((buffer, np.ones(3)), names[1])):
        with pytest.raises(MPSTypeError, match=f"^{kind.__name__}: {argument} must be an MTLBuffer, got"):
            kind(*arguments)
    with pytest.raises(
        MPSArgumentError, match=f"^{kind.__name__}: {names[1]} must hold float32 numbers, .*got 6 bytes"
    ):
        kind(buffer, odd)
    for channels in (0, -1, True, 2.0, None):
        rule = "number_of_feature_channels must be a positive integer"
        with pytest.raises(MPSArgumentError, match=rf"^{kind.__name__}\.temporary_state: {rule}"):
            kind.temporary_state(queue.command_buffer(), channels)
    with pytest.raises(MPSArgumentError, match="number_of_feature_channels must be 1 to"):
        kind.temporary_state(queue.command_buffer(), 2**62)
    with pytest.raises(MPSTypeError, match=rf"^{kind.__name__}\.temporary_state: command_buffer must be a command buf"):
        kind.temporary_state(None, 3)
    done = queue.command_buffer()
    done.commit()
    with pytest.raises(MTLCommandBufferError, match="command_buffer must not be committed yet"):
        kind.temporary_state(done, 3)


@pytest.mark.parametrize(("kind", "names"), KINDS)
def test_check_holds(kind: Any, names: tuple[str, str], mtl: MTLDevice) -> None:
    state = kind(mtl.new_buffer(length=12), mtl.new_buffer(length=8))
    state.check_holds("someone", "state", 2)
    rule = r"must hold 12 bytes, a float32 for each of 3 feature channel\(s\), got 8 bytes"
    with pytest.raises(MPSArgumentError, match=rf"^someone: state\.{names[1]} {rule}"):
        state.check_holds("someone", "state", 3)
