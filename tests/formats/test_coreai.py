"""Graphs as assets of Core AI: its runtime gives the graph's numbers."""

from __future__ import annotations

import asyncio
import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coreml_packages
import openmps as mps
from coreml_models import CPU, ours
from openmps.formats import coreai

if any(find_spec(name) is None for name in ("coreai_onnx", "coreai", "coremltools")):
    pytest.skip("needs coreai-onnx and coremltools", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore:.*Apple devices need multiples of 4")

FLOAT32 = mps.MPSImageFeatureChannelFormat.FLOAT32


async def _run(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    from coreai.authoring import AIModelAsset
    from coreai.runtime import NDArray

    async with AIModelAsset.load(path).executable() as model:
        found: Any = await model.load_function("main")({name: NDArray(x) for name, x in feeds.items()})
        return {name: np.array(array.numpy()) for name, array in found.items()}


@pytest.mark.parametrize("name", ["plain", "mobile", "unet"])
def test_the_runtime_gives_the_numbers_of_the_graph(name: str, tmp_path: Path) -> None:
    known, model = np.load(coreml_packages.RESULTS), ours(coreml_packages.packed(name, tmp_path))
    (port,) = model.inputs
    size = mps.MPSImageDescriptor(
        FLOAT32, *(port.length(each) or 1 for each in (port.columns, port.rows, port.channels))
    )
    coreai.save(model.graph, tmp_path / "net.aimodel", size, batch=2, metadata={"run": "first"})
    x, wanted = known[f"{name}_x"].astype(np.float32), known[f"{name}_y"]
    (found,) = asyncio.run(_run(tmp_path / "net.aimodel", {"x": np.concatenate([x, x])})).values()
    both = np.concatenate([wanted, wanted])
    np.testing.assert_allclose(found.reshape(both.shape), both, rtol=0, atol=1e-5 * np.abs(both).max())


def test_metadata_and_nothing_beside_it(tmp_path: Path) -> None:
    from coreai.authoring import AIModelAsset

    node = mps.MPSCNNNeuronPReLUNode(mps.MPSNNImageNode(mps.Handle("x")), [0.5, 0.25, 2.0, 3.0])
    graph = mps.MPSNNGraph(CPU, node.result_image)
    coreai.save(graph, tmp_path / "net.aimodel", mps.MPSImageDescriptor(FLOAT32, 3, 3, 4), metadata={"run": "first"})
    assert [each.name for each in tmp_path.iterdir()] == ["net.aimodel"]
    numbers = np.array([0.5, 0.25, 2.0, 3.0], np.float32)
    digest = hashlib.sha256(b"constant\0(4, 1, 1)\0" + numbers.tobytes()).hexdigest()
    said = AIModelAsset.load(tmp_path / "net.aimodel").metadata.creator_defined_metadata
    assert dict(said) == {"run": "first", "openmps.weights.sha256": digest}


def test_what_cannot_be_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    image = mps.MPSNNImageNode(mps.Handle("x"))
    gram = mps.MPSNNGramMatrixCalculationNode(image, 1.0)
    size = mps.MPSImageDescriptor(FLOAT32, 4, 4, 4)
    with pytest.raises(mps.MPSOperatorError) as caught:
        coreai.save(mps.MPSNNGraph(CPU, gram.result_image), tmp_path / "net.aimodel", size)
    assert [each["operator"] for each in caught.value.nodes] == ["MPSNNGramMatrixCalculationNode"]
    plain = mps.MPSNNGraph(CPU, mps.MPSCNNNeuronAbsoluteNode(image).result_image)
    for path, options, rule in (
        ("net.mlpackage", {}, "must end in .aimodel"), ("net.aimodel", {"batch": 0}, "batch must be an integer"),
        ("net.aimodel", {"metadata": {"a": 1}}, "metadata"),
    ):  # fmt: skip
        with pytest.raises(mps.MPSError, match=rule):
            coreai.save(plain, tmp_path / path, size, **options)
    assert list(tmp_path.iterdir()) == []
