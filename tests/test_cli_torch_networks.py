"""``train --network package.module:function``: PyTorch modules of one's own, against PyTorch."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest
import torch

import openmps as mps
import own_networks
from commands import run_command
from openmps.cli.torch_networks import network_file
from openmps.training import (
    Classifier,
    Dataset,
    DataSplit,
    Network,
    NetworkShape,
    RunFolder,
    optimizer_factory,
    save_torch_module,
)

pytestmark = pytest.mark.usefixtures("unflushed", "undrawn", "in_an_empty_folder")
pytest.importorskip("onnx")
CPU = mps.mtl_device("cpu")


def _images(count):
    return np.random.default_rng(count).integers(0, 256, (count, 8, 8, 1), np.uint8)


def test_a_saved_module_gives_what_pytorch_gives_and_learns_what_it_learns(tmp_path):
    """Probabilities, and the loss over steps of gradient descent."""
    torch.manual_seed(3)
    module, file = own_networks.ten(), tmp_path / "ten.onnx"
    save_torch_module(module, file, height=8, width=8, channels=1)
    shape = NetworkShape(8, 8, 1, 10, str(file))
    start = Network.create(shape, seed=0, optimizer=optimizer_factory("sgd", 0.1))
    names = tuple("abcdefghij")
    images, labels = _images(6), np.arange(6)
    found = Classifier(start, CPU, names, mps.MPSImageFeatureChannelFormat.FLOAT32).probabilities(images)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        np.testing.assert_allclose(found, torch.softmax(module.eval()(pixels), 1).numpy(), rtol=1e-4, atol=1e-6)
    graph = start.training_graph(CPU, mps.MPSImageFeatureChannelFormat.FLOAT32, loss_weight=1 / 6, dropout_seed=0)
    peer, queue = torch.optim.SGD(module.train().parameters(), lr=0.1), CPU.new_command_queue()
    for _ in range(4):
        command_buffer = queue.command_buffer()
        targets = mps.MPSCNNLossLabels.batch(CPU, np.eye(10, dtype=np.float32)[labels])
        graph.encode_batch(command_buffer, [mps.MPSImageBatch.from_numpy(CPU, images)], [targets])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        loss = torch.nn.functional.cross_entropy(module(pixels), torch.from_numpy(labels))
        assert sum(each.loss_image().numpy().item() for each in targets) == pytest.approx(loss.item(), rel=1e-4)
        peer.zero_grad()
        loss.backward()
        peer.step()
    running = next(array for name, array in start.arrays().items() if name.endswith(".mean"))
    np.testing.assert_allclose(running, module.first[1].running_mean.numpy(), rtol=1e-3, atol=1e-5)


def test_a_run_of_a_module_goes_on_without_it(capsys, monkeypatch):
    pytest.importorskip("sklearn")
    own_networks.calls.clear()
    options = ["--epochs", 1, "--batch-size", 100, "--seed", 5]
    status, out, err = run_command(capsys, "train", "--network", "own_networks:ten", "--run", "run", *options)
    assert (status, err) == (0, "")
    assert own_networks.calls == [5]
    run = RunFolder.open("run")
    assert run.config["module"] == "own_networks:ten"
    assert run.config["network"]["name"] == "network.onnx"
    torch.manual_seed(5)
    wanted = own_networks.Residual(10).second.weight.detach().permute(0, 2, 3, 1).numpy()
    parts = run.checkpoints.load(0).parts.values()
    assert any(np.array_equal(part["weights"], wanted) for part in parts if "weights" in part)
    monkeypatch.setitem(sys.modules, "own_networks", None)  # which cannot be imported from here on
    assert run_command(capsys, "evaluate", "run", "-q")[1].split()[-2] == out.split()[-2]
    status, out, _ = run_command(capsys, "train", "--resume", "run", "--epochs", 2)
    assert (status, run.checkpoints.steps()[-1]) == (0, 28)
    status, _, err = run_command(capsys, "train", "--resume", "run", "--network", "own_networks:ten")
    assert (status, "--network must be" in err) == (2, True)


def test_other_classes_and_dropouts_are_said(capsys):
    pytest.importorskip("sklearn")
    options = ["--epochs", 1, "--batch-size", 500]
    _, _, err = run_command(capsys, "train", "--network", "own_networks:Others.seven", "--run", "seven", *options)
    assert "gives 7 classes in own_networks:Others.seven and 10 here: its weights are new" in err
    assert "Sequential: its dropouts are left out" in err


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("own_networks", "no .onnx file and no package.module:function"),
        ("own_networks:", "no .onnx file and no package.module:function"),
        ("no_such_module:net", "--network no_such_module must be a module that can be imported"),
        ("own_networks:eleven", "--network own_networks:eleven must have 'eleven' in "),
        ("own_networks:Others.number", "--network own_networks:Others.number must give a torch.nn.Module without"),
        ("own_networks:raising", "must give a torch.nn.Module without arguments, got KeyError: 'none today'"),
        ("own_networks:Residual", "must give a torch.nn.Module without arguments, got TypeError: "),
        ("torch.nn:LSTMCell", "must give a torch.nn.Module without arguments, got TypeError: "),
    ],
)
def test_what_gives_no_module_is_refused_and_leaves_no_run(network, message, capsys, tmp_path):
    pytest.importorskip("sklearn")
    status, _, err = run_command(capsys, "train", "--network", network, "--run", tmp_path / "run")
    assert status == 2
    assert message in " ".join(err.split())
    assert not (tmp_path / "run").exists()


class _Second:
    """Process 1 of two, which hears of the file."""

    rank = 1

    def together(self, work):
        return work()

    def broadcast(self, value):
        assert value == b""
        return b"the file of the first"


def test_the_first_process_alone_calls_the_function():
    own_networks.calls.clear()
    images = _images(4)
    data = DataSplit(*[Dataset(images, np.arange(4) % 2, ("a", "b"), "noise")] * 2)
    with network_file(_Second(), "own_networks:ten", data, 0) as file, open(file, "rb") as found:
        assert found.read() == b"the file of the first"
    assert own_networks.calls == []
    with network_file(None, "tiny", data, 0) as name:
        assert name == "tiny"


class _Twice(torch.nn.Module):
    """A convolution that is called twice, and another one with its weights that is never called."""

    def __init__(self):
        super().__init__()
        self.again, self.tied = torch.nn.Conv2d(1, 1, 3, padding=1), torch.nn.Conv2d(1, 1, 3, padding=1)
        self.tied.weight, self.head = self.again.weight, torch.nn.Linear(64, 2)

    def forward(self, x):
        return self.head(self.again(self.again(x)).flatten(1))


class _Functional(torch.nn.Module):
    """Parameters that functions take: one twice, one that is frozen, and a buffer."""

    def __init__(self):
        super().__init__()
        self.mix, self.head = torch.nn.Parameter(torch.rand(1, 1, 3, 3)), torch.nn.Linear(64, 2)
        self.still = torch.nn.Parameter(torch.rand(1, 1, 1, 1), requires_grad=False)
        self.register_buffer("blur", torch.ones(1, 1, 3, 3) / 9)

    def forward(self, x):
        conv = torch.nn.functional.conv2d
        x = conv(conv(x, self.mix, padding=1).relu(), self.mix, padding=1)
        return self.head(conv(conv(x, self.still).relu(), self.blur, padding=1).flatten(1))


@pytest.mark.filterwarnings("ignore:_Twice. again.*used more")  # where the second one is looked for
def test_what_a_file_does_not_say_of_a_module_is_said(tmp_path):
    """That layers are frozen, or share their numbers: training gives other ones than PyTorch's, then."""
    module = _Twice()
    with pytest.warns(mps.MPSTrainingWarning, match=r"^_Twice: again: used more than once, .* numbers of its own"):
        save_torch_module(module, tmp_path / "twice.onnx", height=np.int64(8), width=8, channels=1)
    assert module.training
    assert not module.again._forward_hooks
    module.head.requires_grad_(False)
    with pytest.warns(mps.MPSTrainingWarning, match="^_Twice: head: frozen, or without parameters, which"):
        save_torch_module(module, tmp_path / "twice.onnx", height=8, width=8, channels=1)


def test_what_a_file_does_not_say_of_weights_that_functions_take_is_said(tmp_path):
    with pytest.warns(mps.MPSTrainingWarning) as caught:
        save_torch_module(_Functional(), tmp_path / "twice.onnx", height=8, width=8, channels=1)
    assert [str(each.message).partition(", which")[0] for each in caught] == [
        "_Functional: still, blur: frozen, or without parameters", "_Functional: mix: used more than once"
    ]  # fmt: skip


def test_a_module_for_another_size_is_refused_in_words_alone(tmp_path):
    """torch.export logs the traceback of what it meets."""
    log, heard = logging.getLogger("torch._subclasses.fake_tensor"), []
    handler = logging.Handler()
    handler.emit = heard.append
    log.addHandler(handler)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    with pytest.raises(mps.MPSOperatorError, match="torch.export cannot trace it"):
        save_torch_module(module, tmp_path / "small.onnx", height=9, width=8, channels=1)
    log.removeHandler(handler)
    assert (heard, log.disabled) == ([], False)
