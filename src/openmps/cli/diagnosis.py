"""What ``openmps doctor`` finds out. Nothing here needs a library to be whole: what is broken is a finding."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from openmps import __version__
from openmps.errors import printable

OK, MISSING, BROKEN, UNTRIED = "ok", "not installed", "broken", "not tried"
UNKNOWN = "not imported yet"
_LONGEST_FAULT = 300
_LIBRARIES = (
    *(("torch", "torch", ""), ("numpy", "numpy", ""), ("safetensors", "safetensors", "")),
    *(("rich", "rich", ""), ("typer", "typer", "")),
    *(("pillow", "PIL.Image", "train"), ("matplotlib", "matplotlib", "train"), ("scikit-learn", "sklearn", "train")),
    *(("onnx", "onnx", "onnx"), ("tensorboard", "tensorboard", "tensorboard"), ("triton", "triton", "CUDA")),
    *(("opencv-python-headless", "cv2", "filters"), ("numba", "numba", "filters")),
    *(("coremltools", "coremltools", "coreml"),),
    *(("coreai-onnx", "coreai_onnx", "coreai"), ("coreai-core", "coreai.authoring.asset", "coreai")),
    *(("mlx", "mlx.core", "mlx"),),
)
"""Packages: their name, what is imported, and the extra that brings them; without one openmps needs them."""
_ONLY_IN_PART = frozenset({"coremltools"})
"""Packages of which openmps never imports the whole, which takes seconds and logs what else is not installed."""
_VARIABLES = tuple("ATEN_ CUDA_ KMP_ MKL_ MPLCONFIGDIR NUMBA_ OMP_ ONEDNN_ OPENMPS_ PYTORCH_ TORCH_ TRITON_".split())
"""How the environment variables begin that change what is computed, how fast, or where caches lie."""
_TRIES = 3
"""Encodes of a check: of equal ones a GPU captures the second and replays the third."""


@dataclass(frozen=True)
class Library:
    """A package that openmps imports; ``extra`` is empty where it always does."""

    name: str
    extra: str
    state: str
    version: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Cache:
    """A folder in which a library keeps files."""

    of: str
    folder: str
    bytes: int


@dataclass(frozen=True)
class CheckedDevice:
    """A device, and what a convolution on it gave; ``fault`` is empty where that was right."""

    device: str
    name: str = ""
    memory: int = 0
    features: str = ""
    seconds: float = 0.0
    fault: str = ""


@dataclass
class Diagnosis:
    """All of it. It grows while the machine is looked at: ``threads`` are known last."""

    openmps: str
    folder: str
    python: str
    system: str
    engine: str
    """How PyTorch was built."""
    filters: tuple[str, ...]
    """What computes image filters on the CPU, in the order in which it is asked."""
    threads: dict[str, int]
    environment: dict[str, str]
    caches: tuple[Cache, ...]
    libraries: list[Library]
    devices: list[CheckedDevice] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """What is wrong, a sentence each."""
        broken = [f"{each.name} is broken" for each in self.libraries if each.state == BROKEN]
        missing = [f"{each.name} is missing" for each in self.libraries if each.state == MISSING and not each.extra]
        wrong = [f"{each.device} does not compute as it should" for each in self.devices if each.fault]
        return [*missing, *broken, *wrong]

    def facts(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        return {**asdict(self), "faults": self.faults}


def diagnosis() -> Diagnosis:
    """Look at this machine; a second for each device, and the time that imports take."""
    found = begun_diagnosis()
    for _ in growth(found):
        pass
    return found


def begun_diagnosis() -> Diagnosis:
    """What is known without an import."""
    return Diagnosis(
        openmps=__version__,
        folder=_without_home(Path(__file__).parents[1]),
        python=f"{platform.python_version()} ({platform.python_implementation()}), {_without_home(sys.executable)}",
        system=f"{platform.platform()}, {platform.machine()}",
        engine="",
        filters=(),
        threads={},
        environment=_environment(),  # before imports, which change it
        caches=(),
        libraries=[_installed(*each) for each in _LIBRARIES],
    )


def growth(found: Diagnosis) -> Iterator[None]:
    """Find out the rest, with a stop before each thing that takes time, and one behind the last."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        found.caches = _caches()  # matplotlib is told where its cache lies before it is imported
        for place, (_, module, _) in enumerate(_LIBRARIES):
            yield
            found.libraries[place] = _imported(found.libraries[place], module)
        engine = found.libraries[0].state == OK
        found.engine = _engine() if engine else ""
        usable = {module for (_, module, _), each in zip(_LIBRARIES, found.libraries, strict=True) if each.state == OK}
        found.filters = _filters(usable) if engine else ()
        found.caches += _caches_of({"numba": _loops_folder()} if "Numba" in found.filters else {}, "*.nb[ci]")
        for which in _devices() if engine else ():
            yield
            found.devices.append(_checked(which))
        found.threads = _threads(with_engine=engine)
        yield


def fault_of(error: BaseException) -> str:
    """An error in a line: what broken libraries raise may be pages."""
    first = next(iter(str(error).strip().splitlines()), "")
    return printable(f"{type(error).__name__}: {first}")[:_LONGEST_FAULT]


def _without_home(path: object) -> str:
    """A path without the user's name: it is for others to read."""
    home = os.path.expanduser("~")
    return printable(str(path)) if home in ("", "/", "~") else printable(str(path).replace(home, "~"))


def _installed(name: str, module: str, extra: str) -> Library:
    """A package by its name, or by that of another with the same modules, as there are of OpenCV."""
    try:
        return Library(name, extra, UNKNOWN, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        others = _providers().get(module.partition(".")[0])
        return _installed(others[0], module, extra) if others else Library(name, extra, MISSING)


@cache
def _providers() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _imported(library: Library, module: str) -> Library:
    if library.state == MISSING:
        return library
    if module in _ONLY_IN_PART:
        return replace(library, state=UNTRIED)
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        return replace(library, state=BROKEN, fault=fault_of(error))
    return replace(library, state=OK)


def _environment() -> dict[str, str]:
    return {name: _without_home(value) for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)}


# --- caches -----------------------------------------------------------------------------------------------------------


def _caches() -> tuple[Cache, ...]:
    return _caches_of({"matplotlib": _matplotlib_folder(), "triton": _triton_folder()})


def _caches_of(folders: Mapping[str, Path | None], files: str = "*") -> tuple[Cache, ...]:
    return tuple(
        Cache(of, _without_home(folder), sum(each.stat().st_size for each in folder.rglob(files) if each.is_file()))
        for of, folder in folders.items()
        if folder is not None and folder.is_dir()
    )


def _matplotlib_folder() -> Path | None:
    try:
        from openmps.training.pictures import cache_out_of_home

        with cache_out_of_home():
            return Path(importlib.import_module("matplotlib").get_cachedir())
    except (Exception, SystemExit):  # the table of libraries says what is wrong
        return None


def _triton_folder() -> Path:
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path("~").expanduser() / ".triton" / "cache")


def _loops_folder() -> Path | None:
    """Where Numba keeps the compiled loops of filters; None where it keeps none, so that each process compiles."""
    try:
        import numba

        from openmps.ops.numba import windows

        # It chooses a folder for each module, when a function of it is to be compiled; all loops are in one package.
        kept = numba.njit(cache=True)(windows.correlate).stats.cache_path
        return None if kept is None else Path(kept)
    except Exception:  # it says so by an error
        return None


# --- the engine and its devices ---------------------------------------------------------------------------------------


def _engine() -> str:
    import torch

    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"


def _filters(usable: Collection[str]) -> tuple[str, ...]:
    from openmps.ops import numba, opencv

    packages = (("Numba", "numba", numba), ("OpenCV", "cv2", opencv))
    found = [name for name, module, package in packages if module in usable and package.library() is not None]
    return (*found, "PyTorch")


def _threads(*, with_engine: bool) -> dict[str, int]:
    # Of the cores of the machine a container or a launcher may allow this process some only.
    affinity = getattr(os, "sched_getaffinity", None)
    usable = {"cores": os.cpu_count() or 0, "usable": len(affinity(0)) if affinity else os.cpu_count() or 0}
    if not with_engine:
        return usable
    import torch

    return {**usable, "engine": torch.get_num_threads(), "between operations": torch.get_num_interop_threads()}


def _devices() -> list[str]:
    import torch

    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


def _checked(which: str) -> CheckedDevice:
    try:
        from openmps.cpu import cpu_features
        from openmps.runtime.devices import mtl_device

        device = mtl_device(which)
        began = time.perf_counter()
        fault = _computed(device)
        seconds = time.perf_counter() - began
    except Exception as error:
        return CheckedDevice(which, fault=fault_of(error))
    features = "" if device.is_cuda else str(cpu_features())
    memory = device.recommended_max_working_set_size
    return CheckedDevice(which, printable(device.name), memory, features, seconds, fault)


def _computed(device: Any) -> str:
    """A convolution of whole numbers, which every device computes without rounding; says what is wrong."""
    import numpy as np

    from openmps import names as mps

    numbers = np.random.default_rng(0)
    pixels = numbers.integers(-4, 5, (2, 16, 16, 4)).astype(np.float32)
    weights = numbers.integers(-4, 5, (8, 3, 3, 4)).astype(np.float32)
    source = mps.ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(3, 3, 4, 8), weights)
    node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source)
    graph = mps.MPSNNGraph(device, mps.MPSCNNNeuronReLUNode(node.result_image).result_image)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(pixels, ((0, 0), (1, 1), (1, 1), (0, 0))), (3, 3), (1, 2))
    expected = np.maximum(np.einsum("nyxcij,oijc->nyxo", windows, weights), 0)
    queue = device.new_command_queue()
    for _ in range(_TRIES):
        command_buffer = queue.command_buffer()
        result = graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(device, pixels)])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        wrong = int((result.numpy() != expected).sum())
        if wrong:
            return f"{wrong} of {expected.size} results of a convolution are wrong"
    return ""
