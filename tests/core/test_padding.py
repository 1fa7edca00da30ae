"""Padding policies: sharing, presets, custom steps on kernels, names."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest

from in_one_test import in_one_test
from openmps.core.padding.explicit import ExplicitPadding
from openmps.core.padding.geometry import axis_placement
from openmps.core.padding.names import MPSGetPaddingPolicy
from openmps.core.padding.policy import (
    MPSNNDefaultPadding,
    MPSNNPadding,
    custom_descriptor,
    inverse_padding,
    padding_label,
)
from openmps.errors import MPSArgumentError, MPSTypeError
from openmps.types import MPSImageEdgeMode, MPSOffset
from openmps.types import MPSNNPaddingMethod as Method

IMAGE = SimpleNamespace(width=8, height=8)
POOLING = MPSNNDefaultPadding.padding_for_tensorflow_average_pooling
POOLING_VALID = MPSNNDefaultPadding.padding_for_tensorflow_average_pooling_valid_only


def unary() -> SimpleNamespace:
    return SimpleNamespace(edge_mode=MPSImageEdgeMode.ZERO, offset=MPSOffset(1, 2, 3))


def two_sources() -> SimpleNamespace:
    return SimpleNamespace(primary_edge_mode=MPSImageEdgeMode.ZERO, secondary_edge_mode=MPSImageEdgeMode.ZERO)


def descriptor() -> SimpleNamespace:
    return SimpleNamespace(width=4, height=5)


class Enlarging:
    """A policy as apps write them: adds a margin to the suggestion and leaves the offset alone."""

    def padding_method(self) -> Method:
        return Method.CUSTOM

    def destination_image_descriptor(self, source_images, source_states, for_kernel, suggested_descriptor):
        suggested_descriptor.width += 2
        suggested_descriptor.height += 2
        return suggested_descriptor


class Silent:
    """The least that is a policy."""

    def padding_method(self) -> Method:
        return Method.SIZE_FULL


# --- the framework's class -----------------------------------------------------------------------------------------


def test_equal_methods_share_one_object() -> None:
    same = MPSNNDefaultPadding(Method.SIZE_SAME)
    assert same is MPSNNDefaultPadding(16) is MPSNNDefaultPadding(method=16)
    assert same is copy.copy(same) is copy.deepcopy(same) is pickle.loads(pickle.dumps(same))
    assert same is not MPSNNDefaultPadding(28)
    assert same.padding_method() == Method.SIZE_SAME
    assert isinstance(same.padding_method(), Method)


def test_equality_and_hash_go_by_method() -> None:
    class Renamed(MPSNNDefaultPadding):
        def label(self) -> str:
            return "renamed"

    renamed = Renamed(16)
    assert renamed == MPSNNDefaultPadding(16)
    assert hash(renamed) == hash(MPSNNDefaultPadding(16))
    assert renamed != MPSNNDefaultPadding(28)
    assert renamed is not MPSNNDefaultPadding(16)
    assert MPSNNDefaultPadding(16) != 16
    assert {MPSNNDefaultPadding(16): 1}[renamed] == 1


@pytest.mark.parametrize(
    ("policy", "method"),
    [
        (MPSNNDefaultPadding.tensorflow_same(), 28),
        (MPSNNDefaultPadding.tensorflow_valid(), 2),
        (POOLING(), 0x401C),
        (POOLING_VALID(), 0x400E),
    ],
)
def test_presets_have_their_methods(policy: MPSNNDefaultPadding, method: int) -> None:
    assert policy.padding_method() == method
    assert policy is MPSNNDefaultPadding(method)


def test_pooling_presets_place_as_tensorflow() -> None:
    assert axis_placement(7, 2, 2, 1, POOLING().padding_method())[:2] == (4, 1)
    assert axis_placement(11, 3, 3, 1, POOLING_VALID().padding_method())[:2] == (3, 1)


@pytest.mark.parametrize("preset", [POOLING, POOLING_VALID])
def test_pooling_presets_set_the_edge_mode_and_nothing_else(preset) -> None:
    kernel, suggested = unary(), descriptor()
    assert preset().destination_image_descriptor([IMAGE], None, kernel, suggested) is suggested
    assert vars(kernel) == {"edge_mode": MPSImageEdgeMode.CLAMP, "offset": MPSOffset(1, 2, 3)}
    assert vars(suggested) == {"width": 4, "height": 5}


def test_pooling_presets_set_the_primary_edge_mode_of_two_source_kernels() -> None:
    kernel = two_sources()
    POOLING().destination_image_descriptor([IMAGE, IMAGE], None, kernel, descriptor())
    assert kernel.primary_edge_mode == MPSImageEdgeMode.CLAMP
    assert kernel.secondary_edge_mode == MPSImageEdgeMode.ZERO


def test_pooling_presets_refuse_kernels_without_edges() -> None:
    with pytest.raises(MPSTypeError, match=r"TensorFlow average pooling.*must have an edge mode"):
        POOLING().destination_image_descriptor([IMAGE], None, SimpleNamespace(), descriptor())


@pytest.mark.parametrize("method", [0, 16, 32, 28, 0x8010, 0x2010])
def test_plain_methods_leave_the_kernel_alone(method: int) -> None:
    kernel, suggested = unary(), descriptor()
    assert MPSNNDefaultPadding(method).destination_image_descriptor([IMAGE], None, kernel, suggested) is suggested
    assert kernel.edge_mode == MPSImageEdgeMode.ZERO


@in_one_test
@pytest.mark.parametrize(
    ("method", "inverse"),
    [(0, 32), (32, 0), (16, 16), (28, 28), (2, 34), (34, 2), (12 + 32, 12), (0x8000, 0x8020), (0x401C, 0x401C)],
)
def test_inverse_swaps_valid_and_full(method: int, inverse: int) -> None:
    policy = MPSNNDefaultPadding(method)
    assert policy.inverse() is MPSNNDefaultPadding(inverse)
    assert policy.inverse().inverse() is policy


def test_custom_presets_are_their_own_inverse() -> None:
    assert POOLING_VALID().inverse() is POOLING_VALID()


def test_labels_say_what_the_bits_mean() -> None:
    labels = {
        0: "valid only, centered, remainder top left",
        16: "same, centered, remainder top left",
        20: "same, centered, remainder top right",
        24: "same, centered, remainder bottom left",
        28: "same, centered, remainder bottom right",
        33: "full, padding top left",
        2: "valid only, padding bottom right",
        0x8010: "same, centered, remainder top left, edges excluded",
        0x401C: "TensorFlow average pooling",
        0x400E: "TensorFlow average pooling, valid only",
    }
    assert {method: MPSNNDefaultPadding(method).label() for method in labels} == labels
    assert repr(MPSNNDefaultPadding(28)) == "MPSNNDefaultPadding(0x1c: same, centered, remainder bottom right)"


@pytest.mark.parametrize("method", [0x4000, 0x4010, 0x6010, 0xC01C])
def test_a_custom_method_needs_a_class_of_its_own(method: int) -> None:
    with pytest.raises(MPSArgumentError, match=r"must not have the custom bit.*destination_image_descriptor"):
        MPSNNDefaultPadding(method)


def test_a_subclass_with_a_step_may_be_custom() -> None:
    class Halving(MPSNNDefaultPadding):
        def destination_image_descriptor(self, source_images, source_states, for_kernel, suggested_descriptor):
            suggested_descriptor.width //= 2
            return suggested_descriptor

    policy = Halving(Method.CUSTOM | Method.SIZE_SAME)
    assert policy.inverse() is policy
    assert custom_descriptor(policy, [IMAGE], None, unary(), descriptor()).width == 2


@pytest.mark.parametrize("method", [3, 48, 1 << 20])
def test_reserved_methods_are_refused(method: int) -> None:
    with pytest.raises(MPSArgumentError, match="reserved"):
        MPSNNDefaultPadding(method)


@pytest.mark.parametrize("method", ["same", 16.0, None])
def test_a_method_is_an_integer(method) -> None:
    with pytest.raises(MPSTypeError, match="MPSNNDefaultPadding: method must be an integer"):
        MPSNNDefaultPadding(method)


# --- policies of users -----------------------------------------------------------------------------------------------


def test_the_protocol_asks_for_the_method_only() -> None:
    for policy in (Silent(), Enlarging(), MPSNNDefaultPadding(16), ExplicitPadding(1, 1, 1, 1)):
        assert isinstance(policy, MPSNNPadding)
    assert not isinstance(object(), MPSNNPadding)


def test_optional_methods_have_stand_ins() -> None:
    assert padding_label(Silent()) == "full, centered, remainder top left"
    assert padding_label(MPSNNDefaultPadding(0x401C)) == "TensorFlow average pooling"
    assert inverse_padding(Silent()) is None
    assert inverse_padding(MPSNNDefaultPadding(0)) == MPSNNDefaultPadding(32)


def test_a_custom_policy_may_enlarge_and_leave_the_offset() -> None:
    kernel, suggested = unary(), descriptor()
    result = custom_descriptor(Enlarging(), [IMAGE], None, kernel, suggested)
    assert (result.width, result.height) == (6, 7)
    assert kernel.offset == MPSOffset(1, 2, 3)


def test_a_suggestion_below_one_pixel_may_be_enlarged() -> None:
    assert custom_descriptor(Enlarging(), [IMAGE], None, unary(), SimpleNamespace(width=-1, height=1)).width == 1
    with pytest.raises(MPSArgumentError, match=r"Enlarging.*at least 1, got -1x3"):
        custom_descriptor(Enlarging(), [IMAGE], None, unary(), SimpleNamespace(width=-3, height=1))


def test_policies_without_the_custom_bit_take_no_step() -> None:
    suggested = descriptor()
    assert custom_descriptor(Silent(), [IMAGE], None, unary(), suggested) is suggested


def test_a_custom_policy_without_a_step_is_refused() -> None:
    policy = SimpleNamespace(padding_method=lambda: Method.CUSTOM)
    with pytest.raises(MPSTypeError, match="destination_image_descriptor must be there"):
        custom_descriptor(policy, [IMAGE], None, unary(), descriptor())


def test_a_step_must_return_a_descriptor() -> None:
    class Forgetful(Enlarging):
        def destination_image_descriptor(self, source_images, source_states, for_kernel, suggested_descriptor):
            return None

    with pytest.raises(MPSTypeError, match=r"must return an MPSImageDescriptor, got None. Return suggested_descriptor"):
        custom_descriptor(Forgetful(), [IMAGE], None, unary(), descriptor())


def test_the_error_of_a_policy_names_the_kernel_that_it_was_to_size() -> None:
    kernel = SimpleNamespace(name="MPSCNNPoolingMax 'pool6'", **vars(unary()))
    empty = SimpleNamespace(width=0, height=0)
    message = r"^MPSCNNPoolingMax 'pool6': padding policy MPSNNDefaultPadding \(.*\): destination_image_descriptor must"
    with pytest.raises(MPSArgumentError, match=message):
        custom_descriptor(POOLING_VALID(), [IMAGE], None, kernel, empty)


# --- names -----------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("same", 16),
        ("Valid ", 0),
        ("full", 32),
        ("same-top-left", 16),
        ("same-bottom-right", 28),
        ("tensorflow-same", 28),
        ("tensorflow-valid", 2),
        ("tensorflow-average-pooling", 0x401C),
        ("tensorflow-average-pooling-valid", 0x400E),
        ("onnx-same-upper", 28),
        ("onnx-same-lower", 16),
        ("28", 28),
        ("0x1C", 28),
        (28, 28),
        (Method.SIZE_FULL, 32),
    ],
)
def test_names_and_methods_give_shared_policies(name: str | int, method: int) -> None:
    assert MPSGetPaddingPolicy(name) is MPSNNDefaultPadding(method)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("pytorch:1", ExplicitPadding(1, 1, 1, 1)),
        ("pytorch:2,1", ExplicitPadding(left=1, top=2, right=1, bottom=2)),
        ("pytorch-ceil:1", ExplicitPadding(1, 1, 1, 1, ceil_mode=True)),
        ("caffe:1,0", ExplicitPadding(left=0, top=1, right=0, bottom=1, ceil_mode=True, count_include_pad=True)),
        ("onnx:1,2,3,4", ExplicitPadding(left=2, top=1, right=4, bottom=3)),
        ("onnx:1", ExplicitPadding(1, 1, 1, 1)),
    ],
)
def test_names_with_pixels_follow_their_framework(name: str, policy: ExplicitPadding) -> None:
    assert MPSGetPaddingPolicy(name) == policy


def test_a_policy_comes_back_as_it_is() -> None:
    for policy in (Silent(), MPSNNDefaultPadding(28), ExplicitPadding(0, 1, 2, 3)):
        assert MPSGetPaddingPolicy(policy) is policy


@pytest.mark.parametrize("name", ["keras", "", "same:1", "caffe2:1"])
def test_unknown_names_list_the_known_ones(name: str) -> None:
    with pytest.raises(MPSArgumentError, match=r"must be a known name.*tensorflow-same.*pytorch:PIXELS"):
        MPSGetPaddingPolicy(name)


@pytest.mark.parametrize("name", ["pytorch", "pytorch:", "onnx:1,x,1,1", "12q"])
def test_names_without_numbers_are_refused(name: str) -> None:
    with pytest.raises(MPSArgumentError, match="whole numbers"):
        MPSGetPaddingPolicy(name)


@pytest.mark.parametrize("name", ["pytorch:1,2,3", "onnx:1,2", "onnx:1,2,3,4,5"])
def test_names_with_the_wrong_count_of_numbers_are_refused(name: str) -> None:
    with pytest.raises(MPSArgumentError, match="must be one number or"):
        MPSGetPaddingPolicy(name)
