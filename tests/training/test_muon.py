"""Muon against loops and torch's own, in every form, and runs that it trains."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import openmps as mps
from encoding import Bench, finish
from openmps.ops.update.muon import orthogonal
from openmps.ops.update.shards import Shard
from openmps.training import DataSplit, Muon, RunFolder, TrainingOptions, describe_run, resume, train
from oracles import muon as oracle
from oracles import optimizers as vectors
from small_data import stripes

CPU = mps.mtl_device("cpu")
RATE, MU, STEPS = 0.02, 0.9, 3
SHAPES = [(4, 6), (6, 4), (3, 3), (5, 1), (1, 7)]


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_become_nearly_one(shape, rng):
    """Of the same singular vectors: the polar factor, but for what the polynomial leaves."""
    matrix = rng.normal(size=shape)
    found = orthogonal(torch.from_numpy(matrix)).numpy()
    np.testing.assert_allclose(found, oracle.orthogonal(matrix), rtol=1e-9, atol=1e-12)
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    values = np.diag(left.T @ found @ right.T)
    np.testing.assert_allclose(left @ np.diag(values) @ right, found, atol=1e-9)
    assert ((values > 0.6) & (values < 1.3)).all()
    assert not orthogonal(torch.zeros(shape)).any()


def _matrix(bench, values):
    descriptor = mps.MPSMatrixDescriptor(*values.shape, row_bytes=32, data_type=mps.MPSDataType.FLOAT32)
    padded = np.full((values.shape[0], 8), 7.0, np.float32)
    padded[:, : values.shape[1]] = values
    return mps.MPSMatrix(bench.device.new_buffer(data=padded), descriptor)


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("shape", SHAPES)
def test_matrices(shape, decay, device, rng, monkeypatch):
    bench = Bench.on(device)
    optimizer = Muon(bench.device, RATE, momentum_scale=MU)
    optimizer.weight_decay = decay
    start = rng.normal(size=shape)
    values, momentum = start, np.zeros(shape)
    held, kept = _matrix(bench, start), _matrix(bench, momentum)
    theirs = torch.from_numpy(start.copy())
    peer = torch.optim.Muon([theirs], lr=RATE, momentum=MU, weight_decay=decay)
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda tensor: tensor.clone())  # as exact as the rest of it
    for _ in range(STEPS):
        gradient = rng.normal(size=shape)
        command_buffer = bench.command_buffer()
        optimizer.encode(
            command_buffer, input_gradient_matrix=_matrix(bench, gradient), input_values_matrix=held,
            input_momentum_matrix=kept, result_values_matrix=held,
        )  # fmt: skip
        finish(command_buffer)
        values, momentum = oracle.step(gradient, values, momentum, RATE, MU, decay)
        theirs.grad = torch.from_numpy(gradient)
        peer.step()
    np.testing.assert_allclose(held.numpy(), values, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(kept.numpy(), momentum, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(theirs.numpy(), values, rtol=1e-6, atol=1e-8)


def test_a_layer_moves_its_weights_by_matrices_and_its_biases_by_momentum(device, rng):
    """Weights are a matrix of a row for each output channel."""
    bench = Bench.on(device)
    descriptor = mps.MPSCNNConvolutionDescriptor(2, 1, 3, 4)
    weights, biases = rng.normal(size=(4, 6)).astype(np.float32), rng.normal(size=4).astype(np.float32)
    source = mps.TrainableConvolutionDataSource(
        descriptor, weights.ravel(), biases, optimizer=lambda device: Muon(device, RATE, momentum_scale=MU)
    )
    convolution, slope = (
        kind(bench.device, weights=source) for kind in (mps.MPSCNNConvolution, mps.MPSCNNConvolutionGradient)
    )
    slope.gradient_option = mps.MPSCNNConvolutionGradientOption.GRADIENT_WITH_WEIGHTS_AND_BIAS
    momenta = [np.zeros((4, 6)), np.zeros(4)]
    common = vectors.Common(RATE)
    values = [weights.astype(np.float64), biases.astype(np.float64)]
    for _ in range(STEPS):
        command_buffer = bench.command_buffer()
        image = mps.MPSImage.from_numpy(bench.device, rng.normal(size=(3, 4, 3)).astype(np.float32))
        result, state = convolution.encode(command_buffer, image, destination_state_is_temporary=False)
        slope.encode(command_buffer, result, image, state)
        source.update(command_buffer, state, convolution.parameters.state())
        finish(command_buffer)
        found = [state.gradient_for_weights, state.gradient_for_biases]
        gradients = [each.contents().view(np.float32).astype(np.float64) for each in found]
        values[0], momenta[0] = oracle.step(gradients[0].reshape(4, 6), values[0], momenta[0], RATE, MU)
        values[1], momenta[1] = vectors.sgd(gradients[1], values[1], momenta[1], common, MU, nesterov=True)
    np.testing.assert_allclose(source.weights().reshape(4, 6), values[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(source.bias_terms(), values[1], rtol=1e-4, atol=1e-5)


def test_what_it_refuses():
    optimizer = Muon(CPU)
    with pytest.raises(mps.MPSArgumentError, match="shard must be None: it multiplies whole matrices"):
        optimizer.update_shards(Shard(0, 2))
    for argument, make in (
        ("learning_rate", lambda: Muon(CPU, -0.1)),
        ("learning_rate", lambda: Muon(CPU, optimizer_descriptor=mps.MPSNNOptimizerDescriptor(-0.1))),
        ("new_learning_rate", lambda: optimizer.set_learning_rate(-0.1)),
        ("new_learning_rate", lambda: optimizer.restore_training_state({"learning_rate": -0.1})),
    ):
        with pytest.raises(mps.MPSArgumentError, match=f"^Muon: {argument} must be a finite number of at least 0"):
            make()
    assert optimizer.learning_rate == 1e-3
    vector = mps.MPSVector(device=CPU, descriptor=mps.MPSVectorDescriptor(3))
    with pytest.raises(mps.MPSTypeError, match="input_momentum_vector"):
        optimizer.encode(
            CPU.new_command_queue().command_buffer(),
            input_gradient_vector=vector, input_values_vector=vector, result_values_vector=vector,
        )  # fmt: skip


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")
@pytest.mark.usefixtures("unflushed", "undrawn")
def test_a_run_learns_and_goes_on_to_the_same_bits(tmp_path):
    data = DataSplit(stripes(33), stripes(24))
    options = TrainingOptions(
        4, batch_size=8, network="tiny", optimizer="muon", learning_rate=0.05, checkpoint_every=1, checkpoints_kept=99,
        clip_norm=1.0, accumulate=2, weight_decay=0.01, average=0.5,
    )  # fmt: skip
    run = RunFolder.create(tmp_path, describe_run(data, options), name="run")
    result = train(data, run, options, CPU)
    assert result.evaluation.accuracy > 0.9
    ended = run.weights_path.read_bytes()
    resume(data, RunFolder.open(run.path), CPU, checkpoint=run.checkpoints.load(5))
    assert run.weights_path.read_bytes() == ended
