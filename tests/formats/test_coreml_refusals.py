"""What of Core ML's packages is refused, and how images and labels are read."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coreml_packages
from coreml_models import CPU, fill, neural, op, ours, packaged, program, results, saved
from in_one_test import in_one_test
from openmps.cli import main
from openmps.errors import MPSArgumentError, MPSError, MPSFileError, MPSOperatorError
from openmps.formats import coreml
from openmps.formats.coreml import protos

if find_spec("coremltools") is None:  # to import it takes seconds
    pytest.skip("needs coremltools", allow_module_level=True)

SHAPE = (1, 4, 6, 6)


def test_every_operation_that_cannot_be_expressed_is_listed(tmp_path: Path) -> None:
    made = program(
        [
            op("relu", "a", SHAPE), op("cumsum", "b", SHAPE, x="%a"), op("band_part", "c", SHAPE, x="%b"),
            op("conv", "d", SHAPE, x="%a", weight="%a"), op("conv", "e", SHAPE, x="%c", weight=np.ones((1, 1, 1, 1))),
            op("upsample_bilinear", "f", SHAPE, x="%a", align_corners=True, half_pixel_centers=True),
            op("lstm", "g", SHAPE, x="%a"), op("matmul", "h", SHAPE, x="%a", y="%a", transpose_x=True),
        ],
        ["d", "e", "f", "g", "h"],
    )  # fmt: skip
    with pytest.raises(MPSOperatorError) as caught:
        ours(saved(made, tmp_path))
    assert [(each["node"], each["operator"]) for each in caught.value.nodes] == [
        ("b", "cumsum"), ("c", "band_part"), ("d", "conv"), ("f", "upsample_bilinear"), ("g", "lstm"), ("h", "matmul"),
    ]  # fmt: skip
    assert caught.value.who == "openmps.formats.coreml"
    why = {each["node"]: each["why"] for each in caught.value.nodes}
    assert "computes its weights" in why["d"] and "its weight_ih is missing" in why["g"] and "transposed" in why["h"]


def test_layers_that_cannot_be_expressed_are_listed(tmp_path: Path) -> None:
    made = neural([("sin", "s", {}), ("activation", "t", {"thresholdedReLU__alpha": 1.0}), ("copy", "u", {})])
    with pytest.raises(MPSOperatorError) as caught:
        ours(saved(made, tmp_path))
    assert [(each["node"], each["operator"]) for each in caught.value.nodes] == [("s", "sin"), ("t", "activation")]


# --- images and labels ------------------------------------------------------------------------------------------------


def test_an_image_is_pixels_and_a_classifier_has_labels(tmp_path: Path) -> None:
    network = coreml.network(coreml_packages.packed("image", tmp_path))
    assert network.image_inputs == (("x", "BGR"),)
    assert network.class_labels == tuple(f"class {number}" for number in range(10))
    assert list(network.outputs) == ["classLabel_probs"]
    known, model = np.load(coreml_packages.RESULTS), network.model(CPU)
    bytes_ = known["image_x"].astype(np.uint8)
    (found,) = model.run({"x": bytes_}).values()  # 0 to 255, not 0 to 1
    np.testing.assert_allclose(found, known["image_y"], rtol=0, atol=1e-5)


def test_what_a_neural_network_does_to_pixels_is_a_part_of_it(tmp_path: Path) -> None:
    made = neural([])
    del made.description.output[:]
    image = made.description.input[0].type.imageType
    image.width, image.height, image.colorSpace = 3, 2, 20  # RGB
    step = made.neuralNetworkClassifier.preprocessing.add(featureName="x").scaler
    step.channelScale, step.redBias, step.greenBias, step.blueBias = 0.5, 1.0, 2.0, 3.0
    made.neuralNetworkClassifier.layers.add(name="y", input=["x"], output=["y"]).copy.SetInParent()
    made.neuralNetworkClassifier.int64ClassLabels.vector.extend([7, 9, 11])
    made.description.predictedFeatureName = "label"
    pixels = np.arange(18, dtype=np.uint8).reshape(1, 3, 2, 3)
    network = coreml.network(saved(made, tmp_path))
    assert network.class_labels == ("7", "9", "11") and network.image_inputs == (("x", "RGB"),)
    (found,) = network.model(CPU).run({"x": pixels}).values()
    np.testing.assert_array_equal(found, pixels * 0.5 + np.array([1, 2, 3]).reshape(1, 3, 1, 1))


# --- files ------------------------------------------------------------------------------------------------------------


def _with_blob(offset: int = 64, name: str = "@model_path/weights/weight.bin") -> Any:
    made = program([op("conv", "y", SHAPE, weight="%w")], ["y"])
    block = made.mlProgram.functions["main"].block_specializations["CoreML6"]
    constant = block.operations.add(type="const")
    fill(constant.attributes["val"], np.zeros((4, 4, 1, 1)))
    constant.attributes["val"].ClearField("immediateValue")
    constant.attributes["val"].blobFileValue.fileName = name
    constant.attributes["val"].blobFileValue.offset = offset
    constant.outputs.add(name="w").type.CopyFrom(constant.attributes["val"].type)
    operations = list(block.operations)
    del block.operations[:]
    block.operations.extend(reversed(operations))
    return made


def _blob(kind: int = 2, size: int = 64, start: int = 128, version: int = 2) -> bytes:
    head = np.array([1, version, *[0] * 14], "<u4").tobytes()
    numbers = np.array([size, start, 0, 0, 0, 0, 0], "<u8").tobytes()
    return head + np.array([0xDEADBEEF, kind], "<u4").tobytes() + numbers + np.eye(4, dtype="<f4").tobytes()


def test_weights_beside_a_model(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    (found,) = ours(packaged(_with_blob(), tmp_path, _blob())).run({"x": x}).values()
    np.testing.assert_array_equal(found, x)


@in_one_test
@pytest.mark.parametrize(("message", "weights", "rule"), [
    (_with_blob(), _blob(kind=1), "must hold a blob of FLOAT32"),
    (_with_blob(), _blob(size=63), "must hold 64 bytes"),
    (_with_blob(), _blob(start=129), "that are no other blob's"),
    (_with_blob(), _blob(version=3), "file of weights of version 2"),
    (_with_blob(offset=65), _blob(), "must hold a blob at byte 65"),
    (_with_blob(offset=1 << 62), _blob(), "must hold a blob at byte"),
    (_with_blob(name="@model_path/../../Manifest.json"), _blob(), "must be a file of the package"),
    (_with_blob(name="/etc/passwd"), _blob(), "must be a file of the package"),
    (_with_blob(name="@model_path/weights/other.bin"), _blob(), "must be a file"),
    (program([op("relu", "y", SHAPE, x="%z")], ["y"]), b"", "which nothing before it makes"),
    (program([op("relu", "y", SHAPE), op("abs", "y", SHAPE)], ["y"]), b"", "two values are called 'y'"),
    (program([op("relu", "y", SHAPE)], ["y"], opset="CoreML99"), None, ""),
])  # fmt: skip
def test_damaged_packages_say_what_is_wrong(message: Any, weights: bytes | None, rule: str, tmp_path: Path) -> None:
    if weights is None:
        message.mlProgram.functions["main"].opset, rule = "CoreML5", "no block for 'CoreML5'"
    with pytest.raises(MPSFileError, match=rule):
        ours(packaged(message, tmp_path, weights or b""))


@pytest.mark.parametrize(("manifest", "rule"), [
    ("{", "names no model"), ("[]", "names no model"),
    ('{"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "../../out.mlmodel"}}}', "outside of Data"),
    ('{"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": 7}}}', "outside of Data"),
    (r'{"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "\ud800"}}}', "outside of Data"),
    ('{"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "none"}}}', "must be a file, got nothing there"),
])  # fmt: skip
def test_a_manifest_that_names_no_model(manifest: str, rule: str, tmp_path: Path) -> None:
    package = packaged(program([op("relu", "y", SHAPE)], ["y"]), tmp_path, b"")
    (package / "Manifest.json").write_text(manifest)
    with pytest.raises(MPSFileError, match=rule):
        coreml.network(package)


def test_other_kinds_of_models_and_files_are_refused(tmp_path: Path) -> None:
    made = protos.require_protos("tests").model.Model(specificationVersion=4)
    made.pipeline.models.add().neuralNetwork.SetInParent()
    made.pipeline.models.add().glmRegressor.SetInParent()
    with pytest.raises(MPSFileError, match="got a pipeline of neuralNetwork, glmRegressor"):
        coreml.network(saved(made, tmp_path))
    (tmp_path / "text.mlmodel").write_bytes(b"text")
    with pytest.raises(MPSFileError, match="must be a Core ML model, got something that does not begin"):
        coreml.network(tmp_path / "text.mlmodel")
    (tmp_path / "text.mlmodel").write_bytes(b"\x08\x04\x12\xff")
    with pytest.raises(MPSFileError, match="cannot be parsed"):
        coreml.network(tmp_path / "text.mlmodel")
    with pytest.raises(MPSArgumentError, match="must be names of values"):
        coreml.network(saved(program([op("relu", "y", SHAPE)], ["y"]), tmp_path), outputs=["z"])


def test_packed_weights_make_no_more_than_they_can(tmp_path: Path) -> None:
    """Many operations may unpack the same bytes."""
    made = program([op("relu", "y", SHAPE)], ["y"])
    block = made.mlProgram.functions["main"].block_specializations["CoreML6"]
    for number in range(60):
        operation = block.operations.add(type="constexpr_sparse_to_dense")
        operation.outputs.add(name=f"w{number}")
        for name, value in (("mask", np.zeros(1)), ("nonzero_data", np.zeros(0)), ("shape", [1 << 20])):
            fill(operation.attributes[name], value)
        mask = operation.attributes["mask"]
        mask.type.tensorType.dataType, mask.type.tensorType.dimensions[0].constant.size = 31, 1 << 17
        mask.blobFileValue.fileName, mask.blobFileValue.offset = "@model_path/weights/weight.bin", 64
    weights = _blob(kind=3, size=1 << 17)[:128] + bytes(1 << 17)
    made.mlProgram.functions["main"].block_specializations["CoreML6"].outputs.append("w59")
    with pytest.raises(MPSOperatorError, match="of weights that are packed in fewer"):
        ours(packaged(made, tmp_path, weights))


def test_without_coremltools_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(protos, "find_spec", lambda name: None)
    monkeypatch.delitem(protos.sys.modules, protos._PACKAGE, raising=False)
    with pytest.raises(MPSError, match=r"needs coremltools.*pip install '\.\[coreml\]'"):
        coreml.network(tmp_path / "model.mlpackage")


def test_the_command_converts_packages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = coreml_packages.packed("unet", tmp_path)
    assert main(["convert", str(package), str(tmp_path / "net.mps")]) == 0
    assert "input  x: float32 1x2x16x16" in capsys.readouterr().out
    assert main(["summary", str(package)]) == 2
    assert "openmps convert" in capsys.readouterr().err
    assert main(["convert", str(package), str(tmp_path / "a.mps"), "--result", "nothing"]) == 2
    assert "--result must be names of values of the model" in capsys.readouterr().err
    assert main(["convert", str(package), str(tmp_path / "a.mlpackage")]) == 2
    assert "must not end in .mlpackage" in capsys.readouterr().err


def test_nothing_is_written_into_the_package_that_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = coreml_packages.packed("unet", tmp_path)
    before = sorted(package.rglob("*"))
    (tmp_path / "link").symlink_to(package / "Data")
    monkeypatch.setattr(coreml, "network", None)  # it is said before anything is read
    for command in (
        ("convert", package, package / "net.mps"), ("convert", package, tmp_path / "link" / "net.mps", "--force"),
        ("export", "--coreml", package, package / "a" / "b.mlpackage"), ("export", "--mlx", package, package / "mlx"),
    ):  # fmt: skip
        assert main([*map(str, command)]) == 2
        assert "must lie outside of" in capsys.readouterr().err
    assert sorted(package.rglob("*")) == before
    assert main(["convert", str(package), str(tmp_path / "link" / ".." / ".." / "a" / "net.mps")]) == 2
    assert "must be in a folder" in capsys.readouterr().err  # the folder of the package is another one


def test_values_that_are_not_fixed_stay_open(tmp_path: Path) -> None:
    made = program([op("relu", "y", SHAPE)], ["y"])
    dimensions = made.mlProgram.functions["main"].inputs[0].type.tensorType.dimensions
    for place in (0, 2):
        dimensions[place].unknown.variadic = False
    model = ours(saved(made, tmp_path))
    assert model.inputs[0].text == "?x4x?x6"
    x = np.ones((3, 4, 2, 6), np.float32)
    np.testing.assert_array_equal(model.run({"x": x})["y"], x)


def test_a_result_may_be_another_value(tmp_path: Path) -> None:
    x = np.ones(SHAPE, np.float32)
    made = program([op("abs", "a", SHAPE), op("exp", "y", SHAPE, x="%a")], ["y"])
    assert list(ours(saved(made, tmp_path), outputs=["a"]).run({"x": x})) == ["a"]
    assert results(made, x, tmp_path)["y"].shape == SHAPE
