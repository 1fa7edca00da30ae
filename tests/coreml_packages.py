"""Core ML packages that coremltools made of torch modules, and the modules' results; run it to make them anew.

usage: python tests/coreml_packages.py, where coremltools is installed
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

FOLDER = Path(__file__).parent / "formats" / "coreml_packages"
RESULTS = FOLDER / "results.npz"
SEQUENCES = FOLDER / "sequences.npz"
"""Sequences and what recurrent layers make of them."""
PACKAGES = ("plain", "half", "palette_4", "palette_1", "linear", "blocks", "sparse", "image", "mobile", "unet")
"""Each is packed in a file of its own."""
SIZE = 16


class Plain(nn.Module):
    """Convolutions, depthwise, transposed and with a stride, normalizations, poolings, a resize, a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8)
        self.instance = nn.InstanceNorm2d(8, affine=True)
        self.slopes = nn.PReLU(8)
        self.back = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1)
        self.point = nn.Conv2d(8, 8, 1)
        self.dense = nn.Linear(7 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(self.norm(x)))
        x = functional.max_pool2d(x + self.slopes(self.instance(self.deep(x))), 2)
        y = functional.gelu(self.point(x))
        y = functional.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        z = functional.avg_pool2d(torch.cat([self.back(x), y[:, 1:4]], 1), 3, 2, 1, count_include_pad=False)
        return torch.softmax(self.dense(torch.flatten(z, 1)), 1)


class Mobile(nn.Module):
    """An inverted residual with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.deep = nn.Conv2d(4, 16, 1), nn.Conv2d(16, 16, 5, padding=2, groups=16)
        self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)
        self.project = nn.Conv2d(16, 4, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.hardswish(self.deep(functional.relu6(self.expand(x))))
        gate = self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True))))
        return x + self.project(y * functional.hardsigmoid(gate))


class UNet(nn.Module):
    """Down and up again, with pads on two sides."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3)
        self.up, self.last = nn.ConvTranspose2d(6, 6, 2, stride=2), nn.Conv2d(12, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = functional.leaky_relu(self.down(x), 0.1)
        low = functional.pad(functional.max_pool2d(skip, 2), (1, 1, 2, 0), mode="reflect")
        low = functional.interpolate(functional.avg_pool2d(functional.elu(self.low(low)), 2), scale_factor=2.0)
        return torch.sigmoid(self.last(torch.cat([self.up(low), skip], 1)))


def packed(name: str, folder: Path, suffix: str = "mlpackage") -> Path:
    """The package of a name, unpacked into a folder."""
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as file:
        file.extractall(folder)
    return folder / f"{name}.{suffix}"


# --- making them ------------------------------------------------------------------------------------------------------


def _made(seed: int, module: nn.Module) -> nn.Module:
    torch.manual_seed(seed)
    for parameter in module.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    for each in module.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.running_mean.copy_(torch.randn(each.num_features))
            each.running_var.copy_(torch.rand(each.num_features) + 0.5)
    return module.eval()


def _rounded(module: nn.Module) -> nn.Module:
    """The module with numbers that float16 holds."""
    for each in (*module.parameters(), *module.buffers()):
        if each.is_floating_point():
            each.data.copy_(each.data.half().float())
    return module


def _take_in(module: nn.Module, package: Any) -> None:
    """Give a module the weights that coremltools unpacks."""
    import coremltools.optimize.coreml as optimize

    for operation in optimize.decompress_weights(package)._mil_program.functions["main"].operations:
        weight = operation.inputs.get("weight")
        if weight is not None:
            name = weight.name.split("_weight")[0]
            getattr(module, name).weight.data.copy_(torch.from_numpy(np.array(weight.val, np.float32)))


def _write(name: str, package: Any, folder: Path) -> None:
    package.save(str(folder / f"{name}.mlpackage"))
    with zipfile.ZipFile(FOLDER / f"{name}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for path in sorted((folder / f"{name}.mlpackage").rglob("*")):
            if path.is_file():
                file.writestr(zipfile.ZipInfo(str(path.relative_to(folder))), path.read_bytes(), zipfile.ZIP_DEFLATED)


def make() -> None:
    """Make all packages and results."""
    import coremltools as ct
    import coremltools.optimize.coreml as optimize

    results: dict[str, np.ndarray] = {}
    scratch = FOLDER / "scratch"
    scratch.mkdir(parents=True)
    full, half = ct.precision.FLOAT32, ct.precision.FLOAT16

    def convert(module: nn.Module, channels: int, precision: Any, target: Any = ct.target.iOS16, **more: Any) -> Any:
        traced = torch.jit.trace(module, torch.zeros(1, channels, SIZE, SIZE))
        inputs = more.pop("inputs", [ct.TensorType("x", shape=(1, channels, SIZE, SIZE))])
        return ct.convert(traced, inputs=inputs, compute_precision=precision, minimum_deployment_target=target, **more)

    def keep(
        name: str, module: nn.Module, package: Any, channels: int, prepare: Callable[[Any], Any] = lambda x: x
    ) -> None:
        x = torch.randn(1, channels, SIZE, SIZE)
        if name == "image":
            x = torch.randint(0, 256, x.shape).float()
        with torch.no_grad():
            results[f"{name}_x"], results[f"{name}_y"] = x.numpy(), module(prepare(x)).numpy()
        _write(name, package, scratch)

    plain = _rounded(_made(0, Plain()))
    package = convert(plain, 3, full)
    keep("plain", plain, package, 3)
    keep("half", plain, convert(plain, 3, half), 3)
    palette = optimize.OpPalettizerConfig
    linear, pruned = optimize.OpLinearQuantizerConfig, optimize.OpMagnitudePrunerConfig
    blocks = {"mode": "linear_symmetric", "dtype": "int4", "granularity": "per_block", "block_size": 4}
    packings: dict[str, tuple[Any, Any]] = {
        "palette_4": (palette(mode="uniform", nbits=4, weight_threshold=8), optimize.palettize_weights),
        "palette_1": (palette(mode="uniform", nbits=1, weight_threshold=8), optimize.palettize_weights),
        "linear": (linear(mode="linear", weight_threshold=8), optimize.linear_quantize_weights),
        "sparse": (pruned(target_sparsity=0.6, weight_threshold=8), optimize.prune_weights),
        "blocks": (linear(**blocks, weight_threshold=8), optimize.linear_quantize_weights),
    }
    for seed, (name, (config, pack)) in enumerate(packings.items()):
        module = _made(1 + seed, Plain())
        target = ct.target.iOS18 if name == "blocks" else ct.target.iOS16
        found = pack(convert(module, 3, full, target), optimize.OptimizationConfig(config))
        _take_in(module, found)
        keep(name, module, found, 3)
    image = ct.ImageType("x", shape=(1, 3, SIZE, SIZE), scale=1 / 127.5, bias=[-1, -0.9, -0.8], color_layout="BGR")
    labels = ct.ClassifierConfig([f"class {number}" for number in range(10)])
    shift = torch.tensor([-1, -0.9, -0.8]).reshape(1, 3, 1, 1)
    found = convert(plain, 3, full, inputs=[image], classifier_config=labels)
    keep("image", plain, found, 3, lambda x: x / 127.5 + shift)
    mobile, unet = _rounded(_made(8, Mobile())), _rounded(_made(9, UNet()))
    keep("mobile", mobile, convert(mobile, 4, half, ct.target.iOS17), 4)
    keep("unet", unet, convert(unet, 2, full, ct.target.iOS15), 2)
    np.savez_compressed(RESULTS, **results)
    shutil.rmtree(scratch)


# --- recurrent layers -------------------------------------------------------------------------------------------------

STEPS, ROWS, INPUTS, UNITS = 5, 2, 3, 4
GATES = {"lstm": "ifoz", "gru": "zro", "simple": "h"}
"""Core ML's gates, in the order in which its builder takes them."""


class Sequence(nn.Module):
    """A layer in both directions, one behind it, and a dense layer of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.one = nn.LSTM(INPUTS, UNITS, bidirectional=True), nn.LSTM(2 * UNITS, UNITS)
        self.dense = nn.Linear(UNITS, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(self.one(self.both(x)[0])[0])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def stepped(kind: str, x: np.ndarray, w: dict[str, Any], r: dict[str, Any], b: dict[str, Any], p: Any) -> np.ndarray:
    """A layer step by step, as Core ML's descriptions of its messages have it; weights by gates."""
    y = c = np.zeros((x.shape[1], UNITS))
    found = []
    for step in x:
        a = {gate: step @ w[gate].T + b[gate] + (y @ r[gate].T if gate + kind != "ogru" else 0) for gate in w}
        if kind == "lstm":
            kept, taken = _sigmoid(a["f"] + p["f"] * c), _sigmoid(a["i"] + p["i"] * c)
            c = kept * c + taken * np.tanh(a["z"])
            y = _sigmoid(a["o"] + p["o"] * c) * np.tanh(c)
        elif kind == "gru":
            z = _sigmoid(a["z"])
            y = (1 - z) * np.tanh(a["o"] + (y * _sigmoid(a["r"])) @ r["o"].T) + z * y
        else:
            y = 2 * np.tanh(0.5 * a["h"])
        found.append(y)
    return np.stack(found)


def make_recurrent() -> None:
    """Make the packages and files of recurrent layers."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.models.datatypes import Array
    from coremltools.models.neural_network import NeuralNetworkBuilder

    rng, results, scratch = np.random.default_rng(3), dict[str, np.ndarray](), FOLDER / "scratch"
    scratch.mkdir(parents=True)
    x = rng.normal(size=(STEPS, ROWS, INPUTS)).astype(np.float32)

    def numbers(kind: str, *shape: int) -> dict[str, np.ndarray]:
        return {gate: rng.normal(0, 0.7, shape).astype(np.float32) for gate in GATES[kind]}

    module = _rounded(_made(11, Sequence()))
    for name, precision in (("sequence", ct.precision.FLOAT32), ("sequence_half", ct.precision.FLOAT16)):
        traced = torch.jit.trace(module, torch.from_numpy(x))
        inputs = [ct.TensorType("x", shape=x.shape)]
        target = ct.target.iOS16
        _write(
            name,
            ct.convert(traced, inputs=inputs, compute_precision=precision, minimum_deployment_target=target),
            scratch,
        )
    with torch.no_grad():
        results["x"], results["sequence"] = x, module(torch.from_numpy(x)).numpy()

    w, r, b = numbers("gru", UNITS, INPUTS), numbers("gru", UNITS, UNITS), numbers("gru", UNITS)

    @mb.program(input_specs=[mb.TensorSpec(shape=x.shape)])
    def program(x: Any) -> Any:
        rows = (np.concatenate([each[gate] for gate in "roz"]) for each in (w, r, b))
        ih, hh, bias = rows
        return mb.gru(
            x=x, initial_h=np.zeros((ROWS, UNITS), np.float32), weight_ih=ih, weight_hh=hh, bias=bias,
            output_sequence=True, direction="reverse",
        )[0]  # fmt: skip

    made = ct.convert(program, compute_precision=ct.precision.FLOAT32, minimum_deployment_target=ct.target.iOS16)
    _write("gru", made, scratch)
    results["gru"] = stepped("gru", x[::-1], w, r, b, None)[::-1]

    features = [("x", Array(INPUTS))], [("y", None)]
    builder = NeuralNetworkBuilder(*features, disable_rank5_shape_mapping=False)
    common = {"hidden_size": UNITS, "output_all": True}
    parts = [(kind, [numbers(kind, UNITS, size) for size in (INPUTS, UNITS)], numbers(kind, UNITS)) for kind in (
        "lstm", "lstm", "lstm", "gru", "simple")]  # fmt: skip
    peepholes = [dict.fromkeys("ifo", 0.0), {gate: rng.normal(size=UNITS).astype(np.float32) for gate in "ifo"}]
    plain = [[{gate: each[gate] for gate in GATES[kind]} for each in (*pair, row)] for kind, pair, row in parts]
    listed = [[[*each.values()] for each in row] for row in plain]
    builder.add_unilstm(
        "one", listed[0][1], listed[0][0], listed[0][2], input_size=INPUTS, peep=[*peepholes[1].values()],
        input_names=["x"], output_names=["a"], forget_bias=True, **common,
    )  # fmt: skip
    builder.add_bidirlstm(
        "both", listed[1][1], listed[1][0], listed[1][2], listed[2][1], listed[2][0], listed[2][2],
        input_size=INPUTS, input_names=["x"], output_names=["b"], **common,
    )  # fmt: skip
    builder.add_gru(
        "gated", listed[3][1], listed[3][0], listed[3][2], input_size=INPUTS, input_names=["x"], output_names=["c"],
        inner_activation="SIGMOID", reverse_input=True, **common,
    )  # fmt: skip
    builder.add_simple_rnn(
        "simple", listed[4][1][0], listed[4][0][0], listed[4][2][0], input_size=INPUTS, input_names=["x"],
        output_names=["y"], activation="TANH", **common,
    )  # fmt: skip
    function = builder.spec.neuralNetwork.layers[3].simpleRecurrent.activation.scaledTanh
    function.alpha, function.beta = 2.0, 0.5
    (scratch / "layers.mlmodel").write_bytes(builder.spec.SerializeToString())
    with zipfile.ZipFile(FOLDER / "layers.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.writestr(
            zipfile.ZipInfo("layers.mlmodel"), (scratch / "layers.mlmodel").read_bytes(), zipfile.ZIP_DEFLATED
        )
    ones = {**plain[0][2], "f": plain[0][2]["f"] + 1}
    results["one"] = stepped("lstm", x, plain[0][0], plain[0][1], ones, peepholes[1])
    forward, backward = (
        stepped("lstm", each, *weights, peepholes[0]) for each, weights in ((x, plain[1]), (x[::-1], plain[2]))
    )
    results["both"] = np.concatenate([forward, backward[::-1]], -1)
    results["gated"] = stepped("gru", x[::-1], *plain[3], None)[::-1]
    results["simple"] = stepped("simple", x, *plain[4], None)
    np.savez_compressed(SEQUENCES, **results)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    make()
    make_recurrent()
