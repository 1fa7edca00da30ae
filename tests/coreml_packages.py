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


def packed(name: str, folder: Path) -> Path:
    """The package of a name, unpacked into a folder."""
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as file:
        file.extractall(folder)
    return folder / f"{name}.mlpackage"


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


if __name__ == "__main__":
    make()
