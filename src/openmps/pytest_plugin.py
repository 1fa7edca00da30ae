"""What pytest loads where openmps is installed: options, and fixtures for tests of networks.

The engine is imported by the first test that asks for a fixture: a run that asks for none takes no longer.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import numpy as np

    from openmps.metal.device import MTLDevice

_DEVICE, _SEED = "--openmps-device", "--openmps-seed"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    group = parser.getgroup("openmps", "networks of openmps")
    group.addoption(
        _DEVICE, default="cpu", metavar="DEVICE", help="device of mps_device: cpu, cuda, cuda:N, or auto (default: cpu)"
    )
    group.addoption(
        _SEED, type=int, default=0, metavar="N", help="what mps_seed and mps_rng follow from, beside a test's name"
    )


@pytest.fixture(scope="session")
def mps_device(pytestconfig: pytest.Config) -> MTLDevice:
    """The device of ``--openmps-device``, the CPU unless given."""
    from openmps.runtime.devices import mtl_device

    return mtl_device(str(pytestconfig.getoption(_DEVICE)))


@pytest.fixture
def mps_seed(request: pytest.FixtureRequest) -> int:
    """A seed of 32 bits that follows from ``--openmps-seed`` and from the test's name: the same in every run."""
    return zlib.crc32(f"{request.config.getoption(_SEED)} {request.node.nodeid}".encode())


@pytest.fixture
def mps_rng(mps_seed: int) -> np.random.Generator:
    """Random numbers of `mps_seed`: the same in every run of a test, others in another test."""
    import numpy as np

    return np.random.default_rng(mps_seed)
