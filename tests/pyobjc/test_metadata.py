"""Selectors tell their types as PyObjC's own tests of its metadata ask for them.

`metadata_facts.txt` has a line for each question: class (or ``protocol``), method, which argument from 0 on or the
result, and the answer: an encoding, ``in``, ``out``, ``array`` for a length that nobody says, ``fixed`` for one that
never changes, ``length`` with the argument that says it, or a block's encoding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from in_one_test import in_one_test

FACTS = [line.split(" ", 3) for line in Path(__file__).with_name("metadata_facts.txt").read_text().splitlines()]


@pytest.fixture(scope="module")
def protocol_methods() -> type:
    """A class that answers every protocol, so that PyObjC's metadata of NSObject types its methods."""
    from Foundation import NSObject

    def method(count: int) -> Any:
        names = ", ".join(["self", *(f"argument{place}" for place in range(count))])
        return eval(f"lambda {names}: None")

    names = sorted({name for owner, name, *_ in FACTS if owner == "protocol"})
    return type(NSObject)("AnswersEveryProtocol", (NSObject,), {name: method(name.count("_")) for name in names})


@in_one_test
@pytest.mark.parametrize(("owner", "name", "place", "answer"), FACTS)
def test_pyobjc_types_a_selector_so(owner: str, name: str, place: str, answer: str, protocol_methods: type) -> None:
    import MetalPerformanceShaders as MPS

    kind = protocol_methods if owner == "protocol" else getattr(MPS, owner)
    found = getattr(kind, name).__metadata__()
    entry = found["retval"] if place == "result" else found["arguments"][2 + int(place)]
    encoding = entry["type"].decode()
    if answer in ("in", "out"):
        assert encoding[0] == answer[0].replace("i", "n")
    elif answer == "array":
        assert entry["c_array_of_variable_length"]
    elif answer.startswith("fixed "):
        assert entry["c_array_of_fixed_length"] == int(answer.removeprefix("fixed "))
    elif answer.startswith("length "):
        assert entry["c_array_length_in_arg"] == 2 + int(answer.removeprefix("length "))
    elif answer.startswith("block "):
        block = entry["callable"]
        assert encoding == "@?"
        parts = [block["retval"], *block["arguments"][1:]]
        assert b"".join(each["type"] for each in parts).decode() == answer.removeprefix("block ")
    else:
        assert encoding == answer


def test_a_row_of_ones_own_takes_the_place_of_what_the_headers_say() -> None:
    import MetalPerformanceShaders as MPS
    import objc

    selector = b"encodeToCommandBuffer:sourceImage:destinationState:destinationStateIsTemporary:"
    method = MPS.MPSCNNPoolingMax.encodeToCommandBuffer_sourceImage_destinationState_destinationStateIsTemporary_
    assert method.__metadata__()["arguments"][4]["type"] == b"^@"
    objc.registerMetaDataForSelector(b"MPSCNNKernel", selector, {"arguments": {4: {"type_modifier": b"o"}}})
    assert method.__metadata__()["arguments"][4]["type"] == b"o^@"
    objc.registerMetaDataForSelector(
        b"MPSImage", b"writeBytes:dataLayout:imageIndex:", {"arguments": {3: {"type": b"I"}}}
    )
    entries = MPS.MPSImage.writeBytes_dataLayout_imageIndex_.__metadata__()["arguments"]
    assert (entries[2]["type"], entries[3]["type"]) == (b"^v", b"I")
    assert "c_array_of_variable_length" not in entries[2]
    read = b"readBytes:dataLayout:imageIndex:"
    objc.registerMetaDataForSelector(b"NSObject", read, {"arguments": {3: {"type": b"I"}}})
    entries = MPS.MPSTemporaryImage.readBytes_dataLayout_imageIndex_.__metadata__()["arguments"]
    assert (entries[2]["type"], entries[3]["type"]) == (b"o^v", b"Q"), "the class's own row is nearer than its base's"


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (("NSObject", b"weights", {}), TypeError, "class name must be bytes"),
        ((b"NSObject", "weights", {}), TypeError, "selector must be bytes"),
        ((b"NSObject", b"weights", []), TypeError, "dictionary"),
        ((b"NSObject", b"weights", {"retval": b"^v"}), TypeError, "dictionary, not bytes"),
        ((b"NSObject", b"weights", {"retval": {"type": "^v"}}), TypeError, "type must be bytes, not str"),
        ((b"NSObject", b"weights", {"arguments": {2: {"type_modifier": "o"}}}), TypeError, "type_modifier must be"),
        ((b"NSObject", b"weights", {"arguments": {"a": {}}}), TypeError, "numbers from 2 on, got 'a'"),
    ],
)
def test_rows_are_checked(arguments: tuple[Any, ...], kind: type[Exception], said: str) -> None:
    import objc

    with pytest.raises(kind, match=said):
        objc.registerMetaDataForSelector(*arguments)


def test_a_row_with_an_argument_too_many_or_of_unknown_keys_is_an_error() -> None:
    import MetalPerformanceShaders as MPS
    import objc

    with pytest.raises(objc.error, match="knows no metadata free_result"):
        objc.registerMetaDataForSelector(b"MPSImage", b"width", {"free_result": True})
    objc.registerMetaDataForSelector(b"MPSImage", b"width", {"arguments": {2: {"type": b"Q"}}})
    with pytest.raises(objc.error, match="0 arguments has an argument 2"):
        MPS.MPSImage.width.__metadata__()


def test_rows_with_other_types_and_signatures() -> None:
    import MetalPerformanceShaders as MPS
    import objc

    kernel = MPS.MPSCNNNeuronReLU(device=MPS.MTLCreateSystemDefaultDevice(), a=0.0)
    selector = b"setDestinationFeatureChannelOffset:"
    objc.registerMetaDataForSelector(b"MPSCNNKernel", selector, {"arguments": {2: {"type": b"{MTLSize=QQQ}"}}})
    with pytest.raises(ValueError, match=r"got MTLSize\(width=1"):
        kernel.setDestinationFeatureChannelOffset_((1, 2, 3))
    objc.registerMetaDataForSelector(b"MPSCNNKernel", selector, {"arguments": {2: {"type": b"{Own=QQQ}"}}})
    with pytest.raises(ValueError, match="knows no type of the encoding '{Own=QQQ}'"):
        kernel.setDestinationFeatureChannelOffset_((1, 2, 3))
    with pytest.raises(objc.error, match="c_array_delimited_by_null"):
        objc.registerMetaDataForSelector(b"NSObject", b"weights", {"retval": {"c_array_delimited_by_null": True}})

    @objc.typedSelector(b"{MTLRegion={MTLOrigin=QQQ}{MTLSize=QQQ}}@:n^f@")
    def region_(self: Any, values: Any, thing: Any) -> Any:
        return values

    entries = region_.__metadata__()
    assert entries["retval"]["type"] == b"{MTLRegion={MTLOrigin=QQQ}{MTLSize=QQQ}}"
    assert [each["type"] for each in entries["arguments"]] == [b"@", b":", b"^f", b"@"]
