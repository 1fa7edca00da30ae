"""``openmps weights``: what it prints, what it leaves, how it ends."""

from __future__ import annotations

import filecmp
import os

import numpy as np
import pytest
import torch

import openmps as mps
from commands import run_command
from openmps.formats import load_raw, load_safetensors, load_tensors, network_arrays, save_raw, save_tensors
from openmps.runtime.devices import mtl_device
from openmps.training import NetworkShape, RunFolder
from openmps.training.inference import describe_network

SHAPE = NetworkShape(8, 8, 1, 3, "tiny")


pytestmark = pytest.mark.usefixtures("unflushed", "undrawn")


@pytest.fixture
def run(tmp_path):
    """A run with weights that float16 holds."""
    folder = RunFolder.create(tmp_path, describe_network(SHAPE, ("a", "b", "c")), name="run")
    random = np.random.default_rng(0)
    folder.save_weights({name: random.integers(-8, 9, shape) / 8 for name, shape in SHAPE.arrays().items()})
    return folder.path


@pytest.fixture
def archive(tmp_path):
    """A graph of one convolution in an archive."""
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, 2, 4)
    source = mps.ArrayConvolutionDataSource(descriptor, np.arange(72.0), [0.5] * 4, "conv")
    node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), source)
    mps.MPSKeyedArchiver.archive(mps.MPSNNGraph(mtl_device("cpu"), node.result_image), tmp_path / "net.mps")
    return tmp_path / "net.mps"


def _convert(capsys, *arguments):
    return run_command(capsys, "weights", "convert", *arguments)


@pytest.mark.parametrize("layout", ["pytorch", "keras", "mlx", "openmps"])
@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_a_run_goes_out_and_comes_back_bit_by_bit(layout, suffix, run, tmp_path, capsys):
    there, back = tmp_path / f"w{suffix}", tmp_path / "back.safetensors"
    status, out, err = _convert(capsys, run, there, "--to", layout)
    assert (status, err, out.splitlines()[-1]) == (0, "", f"{there}: 12 arrays")
    assert max(map(len, out.splitlines()[:-1])) <= 80
    assert _convert(capsys, there, back, "--from", layout, "--network", run, "-q") == (0, "", "")
    assert filecmp.cmp(back, run / "weights.safetensors", shallow=False)
    half = tmp_path / f"half{suffix}"
    for arguments in (
        (run, half, "--to", layout, "--half"),
        (half, tmp_path / "raw", "--from", layout, "--network", run),
    ):
        assert _convert(capsys, *arguments, "-q") == (0, "", "")
    assert {array.dtype for array in load_tensors(half).values()} == {np.dtype(np.float16)}
    raw = load_raw(tmp_path / "raw", _layers(run)).arrays
    for name, array in load_safetensors(back).items():
        assert raw[name].dtype == np.float16
        np.testing.assert_array_equal(raw[name], array)


def _layers(run):
    from openmps.cli.weight_files import named_network

    return named_network(run).layers


def test_an_archive_is_a_network_and_a_source(archive, tmp_path, capsys):
    status, out, _ = _convert(capsys, archive, tmp_path / "w.pt", "--to", "pytorch")
    assert status == 0
    assert [line.split() for line in out.splitlines()[:3]] == [
        ["conv.weights", "4x3x3x2", "OHWI"],
        ["conv.weight", "4x2x3x3", "OIHW"],
        ["conv.biases", "=", "conv.bias", "4", "O"],
    ]  # fmt: skip
    layer = torch.nn.Conv2d(2, 4, 3)
    read = torch.load(tmp_path / "w.pt", weights_only=True)
    layer.load_state_dict({name.removeprefix("conv."): tensor for name, tensor in read.items()})
    torch.save({f"net.0.{name}": tensor + 1 for name, tensor in layer.state_dict().items()}, tmp_path / "x.pt")
    options = ("--from", "pytorch", "--network", archive, "--map", "conv=0", "--prefix", "net.", "-q")
    assert _convert(capsys, tmp_path / "x.pt", tmp_path / "raw", *options) == (0, "", "")
    device = mtl_device("cpu")
    graph = mps.MPSKeyedUnarchiver.unarchived_object_of_class(mps.MPSNNGraph, archive, device)
    for name, array in network_arrays(graph).items():
        np.testing.assert_array_equal(load_raw(tmp_path / "raw", graph).arrays[name], array + 1)


def test_a_run_takes_weights(run, tmp_path, capsys):
    arrays = load_safetensors(run / "weights.safetensors")
    save_raw(tmp_path / "run", {name: array + 1 for name, array in arrays.items()})  # its own raw files
    save_tensors(tmp_path / "w.npz", {name: array + 1 for name, array in arrays.items()})
    command = (tmp_path / "w.npz", run)
    status, _, err = _convert(capsys, *command)
    assert (status, err) == (2, f"error: {run} must be new, got one that is there. --force replaces it.\n")
    assert _convert(capsys, *command, "--force", "-q") == (0, "", "")
    for name, array in load_safetensors(run / "weights.safetensors").items():
        np.testing.assert_array_equal(array, arrays[name] + 1)


def test_folding_and_flattening(archive, tmp_path, capsys):
    tensors = {
        "conv.weight": np.ones((4, 2, 3, 3), np.float32),
        "bn.weight": np.full(4, 2, np.float32),
        "bn.bias": np.full(4, 3, np.float32),
        "bn.running_mean": np.full(4, 0.5, np.float32),
        "bn.running_var": np.full(4, 3, np.float32),
        "bn.num_batches_tracked": np.array(7),
    }
    save_tensors(tmp_path / "w.npz", tensors)
    options = ("--from", "pytorch", "--network", archive, "--fold", "conv=bn")
    assert (
        "--epsilon must be given with --fold" in _convert(capsys, tmp_path / "w.npz", tmp_path / "o.npz", *options)[2]
    )
    status, out, _ = _convert(capsys, tmp_path / "w.npz", tmp_path / "o.npz", *options, "--epsilon", 1)
    assert status == 0
    assert "left out: bn.num_batches_tracked" in out
    found = load_tensors(tmp_path / "o.npz")
    assert (set(found["conv.weights"].reshape(-1)), set(found["conv.biases"])) == ({1.0}, {2.5})
    options = ("--from", "pytorch", "--network", archive, "--flatten", "WHC")
    assert _convert(capsys, tmp_path / "w.npz", tmp_path / "p.npz", *options)[0] == 2


def test_what_does_not_fit_is_listed_and_nothing_written(run, tmp_path, capsys):
    _convert(capsys, run, tmp_path / "w.npz", "--to", "keras", "-q")
    status, out, err = _convert(capsys, tmp_path / "w.npz", tmp_path / "o.npz", "--from", "pytorch", "--network", run)
    assert (status, out) == (2, "")
    assert "first_norm.gamma (8 C) finds no tensor first_norm.weight; first_norm/gamma is its name" in err
    assert "--map LAYER=NAME sets what names do not tell" in err and "--fold LAYER=NAME folds a batch" in err
    assert len(err.splitlines()) == 1 + 11 + 11 + 3
    assert not (tmp_path / "o.npz").exists()


def test_numbers_that_float16_cannot_hold(run, tmp_path, capsys):
    folder = RunFolder.open(run)
    arrays = folder.load_weights()
    folder.save_weights({**arrays, "fc.biases": np.array([0.1, 0.2, 0.3])})
    status, _, err = _convert(capsys, run, tmp_path / "w", "--half")
    assert status == 2
    assert err.splitlines() == [
        "error: openmps weights convert: --half must keep their numbers:",
        "  fc.biases: float16 rounds 3 of 3 numbers, by up to 4.88e-05",
        "--allow-rounding rounds them; numbers that are too large cannot be written.",
    ]
    assert _convert(capsys, run, tmp_path / "w", "--half", "--allow-rounding", "-q") == (0, "", "")
    folder.save_weights({**arrays, "fc.biases": np.array([0.1, 1e6, 0.3])})
    err = _convert(capsys, run, tmp_path / "v", "--half", "--allow-rounding")[2]
    assert "fc.biases: 1 of 3 numbers are too large for float16, up to 1e+06" in err
    assert not (tmp_path / "v").exists()


def test_nothing_is_replaced_unless_asked_for(run, tmp_path, capsys):
    (tmp_path / "w.npz").write_text("mine")
    status, _, err = _convert(capsys, run, tmp_path / "w.npz")
    assert (status, err) == (2, f"error: {tmp_path}/w.npz must be new, got one that is there. --force replaces it.\n")
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "readme").write_text("mine")
    assert _convert(capsys, run, raw, "-q") == (0, "", "")
    status, _, err = _convert(capsys, run, raw)
    assert status == 2
    assert "must have none of the 12 files, got first_conv_weights.dat, " in err
    before = sorted(os.listdir(raw))
    assert _convert(capsys, run, raw, "--force", "-q") == (0, "", "")
    assert sorted(os.listdir(raw)) == before
    assert _convert(capsys, run, tmp_path / "w.npz", "--force", "-q")[0] == 0
    (tmp_path / "locked").mkdir(mode=0o500)
    if os.geteuid():
        assert "Permission denied" in _convert(capsys, run, tmp_path / "locked" / "w.npz")[2]


OF_RUN = ("--network", "{run}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{w}", "{o}.npz"), "--from must be one of openmps, pytorch, keras, mlx"),
        (("{w}", "{o}.npz", "--from", "pytorch"), "--network must be given: files of weights do not say"),
        (
            ("{w}", "{o}.npz", "--from", "pytorch", "--network", "{o}"),
            "--network must be a run folder, or an archive of a graph, got {o}, where there is nothing",
        ),
        (("{w}", "{o}.npz", "--from", "pytorch", "--network", "{w}"), "--network must be a run folder, or an archive"),
        (("{run}", "{o}.npz", "--from", "pytorch"), "--from must be left out: {run} says itself what it is"),
        (("{run}", "{o}.npz", *OF_RUN), "--network must be left out"),
        (("{run}", "{o}.xyz"), "{o}.xyz must be a folder, an archive that is there, or end in .npz"),
        (("{run}", "{o}", "--to", "keras"), "--to must be openmps for raw files, runs and archives"),
        (("{run}", "{o}.npz", "--one-file"), "--one-file must be left out but for raw files"),
        (("{raw}", "{o}.npz", "--from", "mlx", *OF_RUN), "--from must be openmps for raw files"),
        (("{w}", "{run}", "--from", "openmps", "--force", "--half"), "--half must be left out: runs and archives"),
        (("{run}", "{o}.npz", "--map", "conv"), "Invalid value for --map: 'conv' is no LAYER=NAME"),
        (("{run}", "{o}.npz", "--to", "keras", "--map", "a=b", "--map", "a=c"), "'a' is named twice"),
        (("{w}", "{o}.npz", "--from", "pytorch", *OF_RUN, "--map", "a=b"), "--map must name a layer"),
        (("{w}", "{o}.npz", "--from", "pytorch", *OF_RUN, "--leave", "q*"), "--leave must match names"),
        (("{w}", "{o}.npz", "--from", "pytorch", *OF_RUN, "--flatten", "HW"), "--flatten must be one of"),
        (
            ("{w}", "{o}.npz", "--from", "pytorch", *OF_RUN, "--flatten", "HWC", "--flatten", "fc=HWC"),
            "--flatten must be one order for all",
        ),
        (("{o}.npz", "{o}2.npz", "--from", "pytorch"), "{o}.npz must be a file or folder of weights, got nothing"),
        (("{text}", "{o}.npz", "--from", "pytorch", *OF_RUN), "{text} must be a whole ZIP archive"),
        (("{run}", "{o}/deep/w.npz"), "must be in a folder that exists"),
        (("{run}", "{o}.npz", "--to", "caffe"), "Invalid value for '--to'"),
    ],
)  # fmt: skip
def test_wrong_usage_names_the_option(arguments, message, run, tmp_path, capsys):
    places = {
        "w": tmp_path / "w.npz",
        "o": tmp_path / "out",
        "run": run,
        "raw": tmp_path / "raw",
        "text": tmp_path / "t.npz",
    }
    save_tensors(places["w"], {"a.weight": np.ones(2)})
    places["raw"].mkdir()
    places["text"].write_text("text")
    status, out, err = _convert(capsys, *(argument.format(**places) for argument in arguments))
    assert (status, out) == (2, "")
    assert message.format(**places) in " ".join(err.split())
    assert not (tmp_path / "out.npz").exists()


OPTIONS = (
    ("--prefix", "module."), ("--leave", "extra*"), ("--leave", "fc*"), ("--fold", "conv=norm"),
    ("--epsilon", "nan"), ("--epsilon", "1e-3"), ("--map", "fc=other"), ("--map", "nothing=other"),
    ("--flatten", "WHC"), ("--flatten", "fc=WHC"), ("--one-file",), ("--half",), ("--mean", "1"),
)  # fmt: skip


@pytest.mark.parametrize("layout", ["openmps", "pytorch", "keras"])
@pytest.mark.parametrize("kind", ["archive", "raw", "openmps", "pytorch"])
def test_no_option_is_ignored(kind, layout, tmp_path, capsys):
    network, image = tmp_path / "net.mps", mps.MPSNNImageNode()
    for node, name, *sizes in (
        (mps.MPSCNNConvolutionNode, "conv", 3, 3, 2, 4),
        (mps.MPSCNNFullyConnectedNode, "fc", 2, 4, 4, 3),
    ):
        numbers, descriptor = np.arange(float(np.prod(sizes))), mps.MPSCNNConvolutionDescriptor(*sizes)
        source = mps.ArrayConvolutionDataSource(descriptor, numbers, [1.0] * sizes[-1], name)
        image = node(image, source).result_image
    mps.MPSKeyedArchiver.archive(mps.MPSNNGraph(mtl_device("cpu"), image), network)
    source = {"archive": network, "raw": tmp_path / "raw"}.get(kind, tmp_path / "source.npz")
    if kind != "archive":
        _convert(capsys, network, source, *(("--to", kind) if kind != "raw" else ()), "-q")
    known = () if kind == "archive" else ("--network", network, "--from", "openmps" if kind == "raw" else kind)

    def done(place, more):
        status, out, err = _convert(capsys, source, tmp_path / place, *known, *more)
        files = sorted(each for each in (tmp_path / place, *tmp_path.glob(f"{place}/*")) if each.is_file())
        return status, (out + err).replace(place, ""), [(each.name, each.read_bytes()) for each in files]

    for place in (f"{layout}.npz", *(("files",) if layout == "openmps" else ())):
        to = ("--to", layout)
        status, said, files = done(place, to)
        assert status == 0
        for number, option in enumerate(OPTIONS):
            status, text, made = done(f"{number}_{place}", (*to, *option))
            assert status == 2 or (text, [data for _, data in made]) != (said, [data for _, data in files]), option
            if status == 2:
                assert option[0] in text and not made, option
            else:
                assert [data for _, data in made] != [data for _, data in files], option


@pytest.mark.parametrize(
    "option", [("--network", "{run}"), ("--as", "float32"), ("--network", "{run}", "--as", "float32")]
)
def test_show_takes_options_for_raw_files_alone(option, run, archive, tmp_path, capsys):
    _convert(capsys, run, tmp_path / "w.npz", "-q")
    _convert(capsys, run, tmp_path / "raw", "-q")
    given = [each.format(run=run) for each in option]
    for source in (run, archive, tmp_path / "w.npz"):
        status, out, err = run_command(capsys, "weights", "show", source, *given)
        assert (status, out) == (2, "")
        assert f"{source} must be raw files where {option[0]} is given" in err
    status, _, err = run_command(capsys, "weights", "show", tmp_path / "raw", *given)
    assert (status, "--as must be left out" in err) == ((2, True) if len(option) > 2 else (0, False))


# --- show -------------------------------------------------------------------------------------------------------------


def test_show_lists_every_array(run, archive, tmp_path, capsys):
    status, out, err = run_command(capsys, "weights", "show", run)
    lines = out.splitlines()
    assert (status, err, len(lines)) == (0, "", 14)
    assert {len(line) for line in lines[:-1]} == {80}
    assert lines[1].split() == ["first_conv.weights", "8x3x3x1", "float32", *lines[1].split()[3:5], "288"]
    count = sum(array.size for array in RunFolder.open(run).load_weights().values())
    assert lines[-1] == f"12 arrays, {count:,} numbers, {4 * count:,} bytes"
    assert "conv.weights" in run_command(capsys, "weights", "show", archive)[1]
    _convert(capsys, run, tmp_path / "raw", "--half", "-q")
    assert " float16 " in run_command(capsys, "weights", "show", tmp_path / "raw", "--network", run)[1]
    status, _, err = run_command(capsys, "weights", "show", tmp_path / "raw")
    assert (status, "--network must be given, or --as" in err) == (2, True)
    out = run_command(capsys, "weights", "show", tmp_path / "raw" / "fc_weights.dat", "--as", "float16")[1]
    assert out.splitlines()[1].split()[:3] == ["fc_weights.dat", "48", "float16"]


def test_runs_go_by_their_names(run, tmp_path, capsys, monkeypatch):
    (tmp_path / "runs").mkdir()
    run.rename(tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    assert run_command(capsys, "weights", "show", "first")[0] == 0
    assert _convert(capsys, "first", "w.npz", "--to", "keras", "-q") == (0, "", "")
    assert _convert(capsys, "w.npz", "raw", "--from", "keras", "--network", "first", "-q") == (0, "", "")


def test_show_counts_what_is_not_finite(tmp_path, capsys):
    long = "a_name_that_is_so_long_that_the_numbers_do_not_fit_beside_it_in_80_columns"
    odd = {
        "x": np.array([1, np.nan, np.inf, -np.inf]),
        long: np.full(2, np.nan),
        "count": np.array(3),
        "a\x1b[31m": np.ones(1),
    }
    save_tensors(tmp_path / "w.npz", odd)
    status, out, _ = run_command(capsys, "weights", "show", tmp_path / "w.npz")
    lines = out.splitlines()
    assert status == 0
    assert [line.split() for line in lines[1:9]] == [
        ["x", "4", "float64", "1", "1", "32"], ["1", "of", "4", "are", "NaN"], ["2", "of", "4", "are", "infinite"],
        [long], ["2", "float64", "-", "-", "16"], ["2", "of", "2", "are", "NaN"],
        ["count", "1", "int64", "3", "3", "8"], [r"a\x1b[31m", "1", "float64", "1", "1", "8"],
    ]  # fmt: skip
    assert "\x1b" not in out


@pytest.mark.parametrize("name", ["nothing", "folder", "text.txt", "text.npz", "text.dat"])
def test_show_says_what_is_no_file_of_weights(name, tmp_path, capsys):
    if name == "folder":
        (tmp_path / name).mkdir()
    elif name != "nothing":
        (tmp_path / name).write_text("odd")
    status, out, err = run_command(capsys, "weights", "show", tmp_path / name, "--as", "float32")
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {tmp_path / name} must ")


# --- archives that take weights ---------------------------------------------------------------------------------------


def _rooted(tmp_path, root=None):
    """An archive of a graph with every kind of layer that has numbers, within a list."""
    random = np.random.default_rng(1)
    descriptor = mps.MPSCNNConvolutionDescriptor(3, 3, 2, 4)
    descriptor.fused_neuron_descriptor = mps.MPSNNNeuronDescriptor(mps.MPSCNNNeuronType.PRELU, data=[0.1] * 4)
    conv = mps.ArrayConvolutionDataSource(descriptor, random.normal(size=72), label="conv")
    up = mps.ArrayConvolutionDataSource(mps.MPSCNNConvolutionDescriptor(2, 2, 4, 3), np.ones(48), [1.0] * 3, "up")
    x = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), conv).result_image
    rows = random.uniform(0.5, 1, (4, 4))
    x = mps.MPSCNNBatchNormalizationNode(x, mps.ArrayBatchNormalizationDataSource(4, *rows, label="norm")).result_image
    x = mps.MPSCNNConvolutionTransposeNode(x, None, up).result_image
    last = mps.MPSCNNNeuronPReLUNode(x, [0.1, 0.2, 0.3])
    last.label = "slope"
    graph = mps.MPSNNGraph(mtl_device("cpu"), last.result_image)
    path = tmp_path / "all.mps"
    mps.MPSKeyedArchiver.archive([graph, "more", [1, 2]], path)
    return path


def _graph(path):
    root = mps.MPSKeyedUnarchiver(path, mtl_device("cpu")).decode_root_object()
    assert root[1:] == ["more", [1, 2]]
    return root[0]


@pytest.mark.parametrize("layout", ["pytorch", "keras", "openmps"])
def test_an_archive_takes_weights_bit_by_bit(layout, tmp_path, capsys):
    path, there = _rooted(tmp_path), tmp_path / "w.npz"
    assert _convert(capsys, path, there, "--to", layout, "-q") == (0, "", "")
    random, tensors = np.random.default_rng(2), {}
    for name, array in load_tensors(there).items():
        tensors[name] = random.uniform(0.5, 2, array.shape).astype(np.float32)
    save_tensors(there, tensors)
    arguments = (there, path, "--from", layout)
    status, _, err = _convert(capsys, *arguments)
    assert status != 0 and "--force replaces it" in err
    status, out, err = _convert(capsys, *arguments, "--force")
    assert (status, err, out.splitlines()[-1]) == (0, "", f"{path}: {len(tensors)} arrays")
    back = tmp_path / "back.npz"
    assert _convert(capsys, path, back, "--to", layout, "-q") == (0, "", "")
    found = load_tensors(back)
    assert {name: each.tobytes() for name, each in found.items()} == {n: t.tobytes() for n, t in tensors.items()}
    assert set(network_arrays(_graph(path))) == {
        "conv.weights", "conv.slopes", "norm.gamma", "norm.beta", "norm.mean", "norm.variance", "up.weights",
        "up.biases", "slope.slopes",
    }  # fmt: skip


def test_an_archive_is_left_as_it_is_where_weights_do_not_fit(tmp_path, capsys):
    path, there = _rooted(tmp_path), tmp_path / "w.npz"
    before = path.read_bytes()
    arrays = network_arrays(_graph(path))
    for change in ({"conv.weights": np.zeros((4, 3, 2, 3), np.float32)}, {"other.weights": np.zeros(3, np.float32)}):
        save_tensors(there, {**arrays, **change})
        status, _, err = _convert(capsys, there, path, "--force")
        assert status != 0 and next(iter(change)) in err
        assert path.read_bytes() == before
    status, _, err = _convert(capsys, there, path, "--from", "openmps", "--force", "--half")
    assert status != 0 and "must be left out: runs and archives are float32" in err
    for name in ("w.h5", "w.keras"):
        status, _, err = _convert(capsys, path, tmp_path / name)
        assert status != 0 and "must be of a format that is written" in err and not (tmp_path / name).exists()


def test_a_run_goes_into_an_archive_of_its_network(run, tmp_path, capsys):
    from openmps.training.inference import described_network
    from openmps.training.network import Network
    from openmps.types import MPSImageFeatureChannelFormat

    folder = RunFolder.open(run)
    shape, _ = described_network(folder)
    random = np.random.default_rng(3)
    folder.save_weights({name: random.uniform(0.5, 2, lengths) for name, lengths in shape.arrays().items()})
    ones = {name: np.ones(lengths, np.float32) for name, lengths in shape.arrays().items()}
    graph = Network.from_arrays(shape, ones).inference_graph(mtl_device("cpu"), MPSImageFeatureChannelFormat.FLOAT32)
    mps.MPSKeyedArchiver.archive(graph, tmp_path / "net.mps")
    status, out, err = _convert(capsys, run, tmp_path / "net.mps", "--force", "-q")
    assert (status, out, err) == (0, "", ""), err
    found = network_arrays(mps.MPSKeyedUnarchiver(tmp_path / "net.mps", mtl_device("cpu")).decode_root_object())
    for name, array in load_safetensors(run / "weights.safetensors").items():
        np.testing.assert_array_equal(found[name].reshape(array.shape), array)


# --- what is done to pixels -------------------------------------------------------------------------------------------


def test_a_run_is_told_what_its_network_wants_done_to_pixels(run, tmp_path, capsys):
    from openmps.training.inference import described_preprocessing

    weights = tmp_path / "w.npz"
    assert _convert(capsys, run, weights, "-q") == (0, "", "")
    arguments = (weights, run, "--from", "openmps", "--force", "--mean", "104.5", "--scale", "1/128")
    status, out, err = _convert(capsys, *arguments)
    assert (status, err, out.splitlines()[-1]) == (0, "", "the network sees grey, (pixels - 104.5) / 128")
    found = described_preprocessing(RunFolder.open(run))
    assert (found.order, found.mean, found.scale) == ("grey", (104.5,), (1 / 128,))
    assert _convert(capsys, *arguments[:5], "--scale", "2", "-q") == (0, "", "")
    found = described_preprocessing(RunFolder.open(run))
    assert (found.mean, found.scale) == ((104.5,), (2.0,)), "what is not said stays"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mean", "1,2"), "--mean must be a number, or 1 with commas between, finite"),
        (("--mean", "nan"), "--mean must be a number"),
        (("--mean", "text"), "--mean must be a number"),
        (("--scale", "0"), "finite, and not 0, got '0'"),
        (("--scale", "1/0"), "--scale must be a number"),
        (("--channels", "BGR"), "--channels must be grey: the network has 1 channel(s), got BGR"),
    ],
)
def test_preprocessing_that_is_none_is_refused_before_anything_is_written(arguments, message, run, tmp_path, capsys):
    weights = tmp_path / "w.npz"
    assert _convert(capsys, run, weights, "-q") == (0, "", "")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    status, _, err = _convert(capsys, weights, run, "--from", "openmps", "--force", *arguments)
    assert status == 2 and message in " ".join(err.split())
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    status, _, err = _convert(capsys, run, tmp_path / "other.npz", "--mean", "1")
    assert status == 2 and "a run alone says what is done to pixels" in err
