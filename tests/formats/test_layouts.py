"""Layout converters: round trips, the index rule of each, and the same network computed by torch."""

import numpy as np
import pytest
import torch

from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.formats import layouts

SHAPE = (3, 2, 5, 4)
WEIGHTS = np.arange(120, dtype=np.float32).reshape(SHAPE)


def indices(shape):
    return np.ndindex(*shape)


@pytest.mark.parametrize(
    ("there", "back", "rule"),
    [
        (layouts.ohwi_to_oihw, layouts.oihw_to_ohwi, lambda w, o, y, x, i: w[o, i, y, x]),
        (layouts.ohwi_to_hwio, layouts.hwio_to_ohwi, lambda w, o, y, x, i: w[y, x, i, o]),
        (
            layouts.ohwi_to_conv_transpose,
            layouts.conv_transpose_to_ohwi,
            lambda w, o, y, x, i: w[i, o, SHAPE[1] - 1 - y, SHAPE[2] - 1 - x],
        ),
        (
            layouts.fully_connected_to_linear,
            lambda w: layouts.linear_to_fully_connected(w, SHAPE[1], SHAPE[2]),
            lambda w, o, y, x, i: w[o, (i * SHAPE[1] + y) * SHAPE[2] + x],
        ),
    ],
    ids=["oihw", "hwio", "transpose", "linear"],
)
def test_ohwi_index_rule_and_round_trip(there, back, rule):
    converted = there(WEIGHTS)
    assert converted.flags.c_contiguous
    assert converted.dtype == WEIGHTS.dtype
    for index in indices(SHAPE):
        assert rule(converted, *index) == WEIGHTS[index]
    np.testing.assert_array_equal(back(converted), WEIGHTS)
    np.testing.assert_array_equal(there(back(converted)), converted)


def test_depthwise_index_rules_and_round_trips():
    grouped = layouts.depthwise_to_oihw(WEIGHTS)
    keras = layouts.depthwise_to_hwcm(WEIGHTS)
    assert grouped.shape == (6, 1, 5, 4)
    for c, m, y, x in indices(SHAPE):
        assert grouped[c * 2 + m, 0, y, x] == WEIGHTS[c, m, y, x]
        assert keras[y, x, c, m] == WEIGHTS[c, m, y, x]
    np.testing.assert_array_equal(layouts.oihw_to_depthwise(grouped, 3), WEIGHTS)
    np.testing.assert_array_equal(layouts.hwcm_to_depthwise(keras), WEIGHTS)


def test_linear_of_torch_computes_the_fully_connected_formula():
    generator = np.random.default_rng(1)
    weights = generator.standard_normal((4, 3, 2, 5))
    image = generator.standard_normal((5, 3, 2))  # [C, H, W]
    linear = layouts.fully_connected_to_linear(weights)
    expected = [
        sum(weights[o, y, x, c] * image[c, y, x] for c in range(5) for y in range(3) for x in range(2))
        for o in range(4)
    ]
    np.testing.assert_allclose(linear @ image.reshape(-1), expected, atol=1e-12)


def test_conv_transpose_of_torch_computes_the_frameworks_correlation():
    generator = np.random.default_rng(2)
    weights = generator.standard_normal((2, 3, 3, 4))  # O H W I
    image = generator.standard_normal((4, 3, 3))
    stride, k = 2, 3
    stuffed = np.zeros((4, 5 + 2 * (k - 1), 5 + 2 * (k - 1)))
    stuffed[:, k - 1 : k + 4 : stride, k - 1 : k + 4 : stride] = image
    expected = np.array(
        [
            [
                [np.sum(weights[o].transpose(2, 0, 1) * stuffed[:, y : y + k, x : x + k]) for x in range(7)]
                for y in range(7)
            ]
            for o in range(2)
        ]
    )
    torch_weights = torch.from_numpy(layouts.ohwi_to_conv_transpose(weights))
    found = torch.conv_transpose2d(torch.from_numpy(image)[None], torch_weights, stride=stride)[0]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_depthwise_of_torch_with_groups():
    generator = np.random.default_rng(3)
    weights = generator.standard_normal((3, 2, 2, 2))
    image = generator.standard_normal((3, 4, 4))
    found = torch.conv2d(torch.from_numpy(image)[None], torch.from_numpy(layouts.depthwise_to_oihw(weights)), groups=3)[
        0
    ].numpy()
    for c, m, y, x in indices((3, 2, 3, 3)):
        expected = np.sum(weights[c, m] * image[c, y : y + 2, x : x + 2])
        assert found[c * 2 + m, y, x] == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8])
def test_torch_tensors_keep_their_dtype(dtype):
    tensor = torch.arange(24).reshape(2, 3, 2, 2).to(dtype)
    converted = layouts.oihw_to_ohwi(tensor)
    assert isinstance(converted, np.ndarray)
    np.testing.assert_array_equal(converted, tensor.permute(0, 2, 3, 1).numpy())


def test_the_result_is_a_copy_even_where_nothing_moves():
    weights = np.ones((1, 1, 1, 1), dtype=np.float32)
    for convert in (layouts.ohwi_to_oihw, layouts.depthwise_to_oihw, layouts.ohwi_to_conv_transpose):
        convert(weights)[...] = 7
    layouts.oihw_to_depthwise(weights, 1)[...] = 7
    assert weights == 1


def test_refuses_what_does_not_fit():
    with pytest.raises(MPSArgumentError, match=r"ohwi_to_oihw: weights must have 4 axes, \[O, H, W, I\], got shape"):
        layouts.ohwi_to_oihw(np.zeros((3, 3)))
    with pytest.raises(MPSTypeError, match="must be a NumPy array or a torch tensor, got list"):
        layouts.ohwi_to_oihw([[1.0]])
    with pytest.raises(MPSTypeError, match="must be a dense tensor"):
        layouts.ohwi_to_oihw(torch.zeros(2, 2, 2, 2, device="meta"))
    with pytest.raises(MPSArgumentError, match=r"multiple of height x width = 3 x 3 = 9 input features, got 10"):
        layouts.linear_to_fully_connected(np.zeros((2, 10)), 3, 3)
    with pytest.raises(MPSArgumentError, match="height must be 1 or more, got 0"):
        layouts.linear_to_fully_connected(np.zeros((2, 10)), 0, 3)
    with pytest.raises(MPSArgumentError, match="one source channel a kernel"):
        layouts.oihw_to_depthwise(np.zeros((4, 2, 3, 3)), 2)
    with pytest.raises(MPSArgumentError, match="channels must divide the 4 kernels of weights, got 3"):
        layouts.oihw_to_depthwise(np.zeros((4, 1, 3, 3)), 3)
