"""Contenders that are made for telephones, in float32 on the CPU: MNN and ncnn.

They are parts of no extra: pip install MNN ncnn pnnx.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.harness import SkippedError, Turn
from bench.torch_peers import as_onnx, with_results
from bench.work import Work


def mnn_inference(device: str, **said: Any) -> Turn:
    """The network in MNN, out of its ONNX file."""
    from MNN import expr, nn

    file, x = as_onnx(device, Work(**said))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network"
        path.with_suffix(".onnx").write_bytes(file)
        files = ["--modelFile", f"{path}.onnx", "--MNNModel", f"{path}.mnn"]
        code = "from MNN.tools import mnnconvert; mnnconvert.main()"
        words = [sys.executable, "-c", code, "-f", "ONNX", "--bizCode", "bench", *files]
        subprocess.run(words, check=True, capture_output=True)
        how = {"backend": "CPU", "precision": "high", "numThread": torch.get_num_threads()}
        runtime = nn.create_runtime_manager((how,))
        module = nn.load_module_from_file(f"{path}.mnn", ["x"], [], runtime_manager=runtime)
    image = expr.convert(expr.const(x, list(x.shape), expr.NCHW), expr.NC4HW4)
    return Turn(lambda steps: [module.forward(image).read() for _ in range(steps)])


def ncnn_inference(device: str, **said: Any) -> Turn:
    """The network in ncnn, out of TorchScript; one image."""
    import ncnn
    import pnnx

    work = Work(**said)
    if work.batch != 1:
        raise SkippedError("it takes one image")
    _, x = as_onnx(device, work)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/network.pt"
        torch.jit.trace(with_results(work).eval(), torch.from_numpy(x)).save(path)
        shape = ",".join(map(str, x.shape))
        words = [pnnx.EXEC_PATH, path, f"inputshape=[{shape}]f32", "fp16=0"]
        subprocess.run(words, check=True, capture_output=True, cwd=folder)
        net = ncnn.Net()
        net.opt.num_threads = torch.get_num_threads()
        net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
        net.load_param(path.replace(".pt", ".ncnn.param"))
        net.load_model(path.replace(".pt", ".ncnn.bin"))
    image = ncnn.Mat(np.ascontiguousarray(x[0]))

    def step() -> np.ndarray:
        run = net.create_extractor()
        run.input("in0", image)
        return np.array(run.extract("out0")[1])

    return Turn(lambda steps: [step() for _ in range(steps)])
