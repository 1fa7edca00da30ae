"""A curve through noisy points by least squares: matrix products and a Cholesky factorization on the device.

What it shows:

- `MPSMatrix` in the memory of NumPy's arrays, temporary matrices for what nobody reads afterwards;
- `MPSMatrixMultiplication` with transposed factors, into a result that holds numbers already (``beta``);
- `MPSMatrixDecompositionCholesky` with its status, and `MPSMatrixSolveCholesky`.

Usage, in a clone of the repository::

    python examples/least_squares.py [--device auto] [--points 200] [--degree 5]

The coefficients x of a polynomial minimize ``|A x - b|² + r |x|²``, so ``(AᵀA + r I) x = Aᵀb``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import openmps as mps

Array = NDArray[np.float32]


def solved(device: mps.MTLDevice, a: Array, b: Array, ridge: float) -> Array:
    """The coefficients of least squares: one command buffer, three products and solutions."""
    points, unknowns = a.shape
    left, right = (mps.MPSMatrix.from_numpy(device, each) for each in (a, b))
    normal = mps.MPSMatrix.from_numpy(device, np.eye(unknowns, dtype=np.float32) * np.float32(ridge))
    result = mps.MPSMatrix(device, mps.MPSMatrixDescriptor(unknowns, 1))
    status = device.new_buffer(length=4)

    command_buffer = device.new_command_queue().command_buffer()
    product = mps.MPSMatrixMultiplication(device, True, False, unknowns, unknowns, points, 1.0, 1.0)
    product.encode(command_buffer, left, left, normal)  # AᵀA + r I
    other = mps.MPSTemporaryMatrix(command_buffer, mps.MPSMatrixDescriptor(unknowns, 1))
    mps.MPSMatrixMultiplication(device, unknowns, 1, points, transpose_left=True).encode(
        command_buffer, left, right, other
    )
    # A = L Lᵀ in the lower triangle of the same matrix; what is above stays and is not read.
    mps.MPSMatrixDecompositionCholesky(device, True, unknowns).encode(command_buffer, normal, normal, status)
    mps.MPSMatrixSolveCholesky(device, False, unknowns, 1).encode(command_buffer, normal, other, result)
    command_buffer.commit()
    command_buffer.wait_until_completed()
    found = mps.MPSMatrixDecompositionStatus(int(status.contents().view(np.int32)[0]))
    if found is not mps.MPSMatrixDecompositionStatus.SUCCESS:
        raise SystemExit(f"the matrix is {found.name}: take fewer coefficients, or a larger ridge")
    return result.numpy()


def main(arguments: Sequence[str] | None = None) -> tuple[float, float]:
    """Fit; the largest difference from NumPy's solution, and the error beside the curve without noise."""
    parser = argparse.ArgumentParser(description="Least squares by Cholesky")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--degree", type=int, default=5)
    given = parser.parse_args(arguments)
    random, ridge = np.random.default_rng(0), 1e-3
    place = np.sort(random.uniform(-1, 1, given.points))
    curve = np.sin(3 * place)
    a = np.polynomial.chebyshev.chebvander(place, given.degree).astype(np.float32)
    b = (curve + random.normal(0, 0.1, given.points)).astype(np.float32)[:, None]
    found = solved(mps.mtl_device(given.device), a, b, ridge)
    exact = np.linalg.solve(a.T.astype(np.float64) @ a + ridge * np.eye(given.degree + 1), a.T.astype(np.float64) @ b)
    difference = float(np.abs(found - exact).max())
    error = float(np.sqrt(np.square((a @ found)[:, 0] - curve).mean()))
    print(f"{given.degree + 1} coefficients of {given.points} points, {difference:.1e} from NumPy's in float64")
    print(f"error beside the curve {error:.3f}, of the points {float(np.std(b[:, 0] - curve)):.3f}")
    return difference, error


if __name__ == "__main__":
    main()
