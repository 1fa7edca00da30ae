"""A few of the forty networks of `python -m bench.forty_networks`, out to every format and back."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

import openmps as mps
import ways_out
from moved_networks import CPU, NETWORKS, Layers, Moved
from openmps.formats.coreml.network import read as read_package

if any(find_spec(name) is None for name in ("coreai_onnx", "coremltools", "mlx", "onnxruntime")):
    pytest.skip("needs the runtimes of all formats", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")


@pytest.mark.parametrize("name", ["inverted residual", "two in, two out", "uneven pads", "reductions"])
def test_networks_are_the_same_in_every_format(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path) -> list[ways_out.Array]:
        """What openmps reads: to import coremltools takes seconds, and test_coreml_saving does."""
        kind = "float16" if "half" in str(path) else "float32"
        return [each.astype(kind) for each in read_package(path, str(path))[0].constants.values()]

    monkeypatch.setattr(ways_out, "coreml_arrays", read)
    case = ways_out.Case(NETWORKS[name]())
    for place, (way, take) in enumerate(ways_out.WAYS.items()):
        folder = tmp_path / f"{place}{'half' if '16' in way else ''}"
        folder.mkdir()
        outcome = take(case, folder)
        assert outcome.is_good(way), (way, outcome)


@pytest.mark.parametrize("way", ways_out.WAYS)
def test_a_source_that_ends_before_its_result_is_not_written(way: str, tmp_path: Path) -> None:
    """Of strides 1 nothing is repeated: what is beyond the end is 0."""
    net = Layers(4)
    wide = net.x
    small = net.put(mps.MPSNNReductionSpatialMeanNode(wide))
    graph = mps.MPSNNGraph(CPU, mps.MPSNNMultiplicationNode(wide, small).result_image)
    with pytest.raises(mps.MPSError, match=r"secondary\s+source\s+ends\s+before\s+its\s+result"):
        ways_out.WAYS[way](ways_out.Case(Moved(graph, [(3, 3, 4)])), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_there_are_forty_and_the_page_is_that_of_the_results() -> None:
    from bench import forty_networks

    assert len(NETWORKS) == 40
    assert forty_networks.PAGE.read_text() == forty_networks.page(forty_networks.rows())
