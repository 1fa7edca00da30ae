"""Conventions: each switch changes what it says and nothing else, in kernels and graphs, fused, replayed, archived."""

from __future__ import annotations

import threading
from typing import Any

import conventions_page
import pytest

import openmps as mps
from convention_cases import CASES, Network, encoded, graph_of, listed
from mac_facts.fact import DEVICE, agrees, image
from mac_facts.graphs import SCALED
from openmps.convention import NotingConventions
from openmps.convention.table import CONVENTIONS, MACHINES
from openmps.metal.version import Version
from replay_twin import outcomes, replaying_queue

SWITCHES = [(name, choice) for name, row in CONVENTIONS.items() if row.alternatives for choice in row.choices]
OTHERS = [(name, choice) for name, row in CONVENTIONS.items() for choice in row.alternatives]
IN_GRAPHS = [(name, choice) for name, choice in SWITCHES if CASES[name].network is not None]


def test_every_question_has_a_row() -> None:
    """Those that only a Mac can answer, K, R and P, and those that facts have brought, F."""
    asked = {question for row in CONVENTIONS.values() for question in row.questions}
    expected = [*(f"K{k}" for k in range(1, 22)), *(f"R{k}" for k in range(1, 31)), *(f"P{k}" for k in range(10))]
    assert asked == {*expected, "F1"} and len(expected) == 61


def test_every_switch_is_asked() -> None:
    assert {name: set(case.answers) for name, case in CASES.items()} == {
        name: set(row.choices) for name, row in CONVENTIONS.items() if row.alternatives
    }


@pytest.mark.parametrize("name", CONVENTIONS)
def test_a_row_with_one_choice_says_why(name: str) -> None:
    row = CONVENTIONS[name]
    assert bool(row.why_not) == (not row.alternatives)
    if row.why_not:
        with pytest.raises(mps.MPSArgumentError, match=f"^conventions: {name} has no choice but '{row.default}': "):
            mps.conventions(**{name: "another"})


@pytest.mark.parametrize(("name", "choice"), SWITCHES)
def test_a_switch_changes_what_it_says(name: str, choice: str) -> None:
    with mps.conventions(**{name: choice}):
        found = CASES[name].ask()
    assert found == CASES[name].answers[choice]
    assert CASES[name].ask() == CASES[name].answers[CONVENTIONS[name].default], "nothing of it stays behind the block"


@pytest.mark.parametrize(("name", "choice"), OTHERS)
def test_a_switch_changes_nothing_else(name: str, choice: str) -> None:
    with mps.conventions(**{name: choice}):
        for other, case in CASES.items():
            if other != name:
                assert case.ask() == case.answers[CONVENTIONS[other].default], other


def _again(thing: Any) -> Any:
    """It, from an archive."""
    data = mps.MPSKeyedArchiver.archived_data(thing)
    return mps.MPSKeyedUnarchiver.unarchived_object_of_class(type(thing), data, DEVICE)


# --- graphs -----------------------------------------------------------------------------------------------------------


def _made(name: str, choice: str) -> tuple[mps.MPSNNGraph, Network]:
    network = CASES[name].network
    assert network is not None
    with mps.conventions(**{name: choice}):
        return graph_of(network), network


def _result(graph: mps.MPSNNGraph, network: Network) -> list[float]:
    return listed(encoded(graph, list(network.sources)).numpy())


@pytest.mark.parametrize(("name", "choice"), IN_GRAPHS)
def test_graphs_keep_what_they_were_made_with(name: str, choice: str) -> None:
    """Outside of the block, inside of another one, without fusions, copied, and from an archive."""
    graph, network = _made(name, choice)
    expected = CASES[name].answers[choice]
    assert _result(graph, network) == expected
    with mps.conventions(**{name: CONVENTIONS[name].default}):
        assert _result(graph, network) == expected
        again = _again(graph)
    assert again.conventions == graph.conventions
    assert _result(again, network) == expected
    assert _result(graph.copy(), network) == expected
    graph.allow_fusion = False
    assert _result(graph, network) == expected


@pytest.mark.parametrize(("name", "choice"), IN_GRAPHS)
def test_replays_keep_them(name: str, choice: str) -> None:
    graph, network = _made(name, choice)
    other, _ = _made(name, next(each for each in CONVENTIONS[name].choices if each != choice))
    queue, seen = replaying_queue(), set[str]()
    for step in range(8):
        for each, expected in ((graph, choice), (other, None)):
            command_buffer = queue.command_buffer()
            result = each.encode(command_buffer, list(network.sources))
            command_buffer.commit()
            command_buffer.wait_until_completed()
            seen.update(outcomes(command_buffer) if step == 7 else ())
            answer = CASES[name].answers
            assert result is not None
            assert (listed(result.numpy()) == answer[choice]) == (expected is not None)
    assert seen == {"replayed"}


# --- blocks -----------------------------------------------------------------------------------------------------------


def test_blocks_in_one_another() -> None:
    with mps.conventions(K7="planes", K4="as_given") as outer:
        with mps.conventions(reshape_order="pixels") as inner:
            assert (inner["reshape_order"], inner["hinge_labels"]) == ("pixels", "as_given")
            assert mps.MPSNNReshape(DEVICE).conventions == mps.conventions(hinge_labels="as_given")
        kernel = mps.MPSNNReshape(DEVICE)
    assert outer.departures() == {"hinge_labels": "as_given", "reshape_order": "planes"}
    assert kernel.conventions == outer and mps.MPSNNReshape(DEVICE).conventions == mps.conventions()
    assert "conventions(hinge_labels='as_given', reshape_order='planes')" in repr(kernel)
    assert len(outer) == len(CONVENTIONS) and set(outer) == set(CONVENTIONS)


def test_a_fault_ends_a_block() -> None:
    with pytest.raises(KeyError), mps.conventions(K7="planes"):
        raise KeyError
    assert mps.MPSNNReshape(DEVICE).conventions["reshape_order"] == "pixels"


def test_a_block_holds_in_its_thread() -> None:
    found: list[str] = []
    with mps.conventions(K7="planes"):
        thread = threading.Thread(target=lambda: found.append(mps.MPSNNReshape(DEVICE).conventions["reshape_order"]))
        thread.start()
        thread.join()
    assert found == ["pixels"]


def test_kernels_keep_theirs_in_copies_and_archives() -> None:
    with mps.conventions(reshape_order="planes"):
        kernel = mps.MPSNNReshape(DEVICE)
    with mps.conventions(hinge_labels="as_given"):
        for twin in (kernel.copy(), _again(kernel)):
            assert twin.conventions == kernel.conventions


@pytest.mark.parametrize("name", ["average_preset", "average_valid_preset"])
def test_presets_of_other_conventions(name: str) -> None:
    """They are methods in their block alone; archives make them again."""
    for choice in CONVENTIONS[name].alternatives:
        with mps.conventions(**{name: choice}):
            method = CASES[name].ask()[0]
            policy = mps.MPSNNDefaultPadding(method)
        assert policy.conventions[name] == choice
        with pytest.raises(mps.MPSArgumentError, match="must not have the custom bit"):
            mps.MPSNNDefaultPadding(method)
        kernel = mps.MPSCNNPoolingAverage(DEVICE, 3, 3)
        kernel.padding = policy
        assert _again(kernel).padding == policy


# --- machines and misuse ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_is_its_choices(machine: str) -> None:
    known = MACHINES[machine]
    assert {name: mps.conventions(machine)[name] for name in known} == known
    alone = mps.conventions(machine, graph_primary_scale="kept")
    assert alone["graph_primary_scale"] == "kept" and alone["concatenation_filler"] == "texture"
    for row in CONVENTIONS.values():
        assert (machine in row.proven) == (known.get(row.name) == row.default)


def test_the_fact_that_a_machine_makes_hold() -> None:
    """It is no default: the node documents another meaning."""
    with mps.conventions("macOS 27, M4"):
        assert agrees(SCALED.ask(), SCALED.answer, 0.0)
    assert not agrees(SCALED.ask(), SCALED.answer, 0.0)
    assert SCALED.switch is not None
    with mps.conventions(**SCALED.switch):
        assert agrees(SCALED.ask(), SCALED.answer, 0.0)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: mps.conventions("a Mac"), mps.MPSArgumentError, "machine must be 'macOS 27, M4', got 'a Mac'"),
        (lambda: mps.conventions(K13="last"), mps.MPSArgumentError, "K13 has several conventions: pooling_ties, argu"),
        (lambda: mps.conventions(K99="x"), mps.MPSArgumentError, "K99 is no convention and no question"),
        (lambda: mps.conventions(reshape_oder="x"), mps.MPSArgumentError, "Did you mean reshape_order?"),
        (lambda: mps.conventions(K7="rows"), mps.MPSArgumentError, "reshape_order must be 'pixels' or 'planes', got "),
        (lambda: mps.conventions(K7=1), mps.MPSTypeError, "reshape_order must be the name of a choice, got int"),
    ],
)
def test_misuse(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as found:
        call()
    assert message in str(found.value)


# --- lint and the page ------------------------------------------------------------------------------------------------


def _relied_on(name: str, choice: str) -> dict[str, tuple[str, ...]]:
    """What lint says of the graph of a case: the conventions, and who has proven what it follows."""
    graph, network = _made(name, choice)
    report = mps.lint(graph, [each.descriptor() for each in network.sources])
    relied = {each.name: each for each in report.conventions}
    if name in relied:
        assert (relied[name].choice, relied[name].asks) == (choice, CONVENTIONS[name].asks)
        assert f"Here: {choice}," in " ".join(str(report).split())
    return {each.name: each.proven for each in report.conventions}


@pytest.mark.parametrize(("name", "choice"), IN_GRAPHS)
def test_lint_names_what_a_graph_depends_on(name: str, choice: str) -> None:
    """And nothing else but the order of sources, where there are two."""
    found = _relied_on(name, choice)
    known = tuple(machine for machine, choices in MACHINES.items() if choices.get(name) == choice)
    assert found.pop(name) == known
    network = CASES[name].network
    assert network is not None
    assert [*found] == ["source_order"] * (len(network.sources) > 1)


def test_lint_names_nothing_of_a_plain_graph() -> None:
    source = image([1, 2, 3, 4])
    network = Network(lambda node: mps.MPSCNNNeuronReLUNode(node, 0.0), [source])
    graph = graph_of(network)
    assert mps.lint(graph, source.descriptor()).conventions == ()
    report = mps.lint(graph)
    assert report.conventions == () and "conventions, which needs the shapes of source images" in report.left_out


def test_to_lint_changes_nothing() -> None:
    graph, network = _made("alignment", "reading")
    before = _result(graph, network)
    kernels = {node: kernel.interned_properties() for node, kernel in graph.kernels.items()}
    mps.lint(graph, [each.descriptor() for each in network.sources])
    assert {node: kernel.interned_properties() for node, kernel in graph.kernels.items()} == kernels
    assert _result(graph, network) == before


def test_a_twin_that_notes_counts_no_change_of_the_kernel() -> None:
    with mps.conventions(reshape_order="planes"):
        kernel = mps.MPSNNReshape(DEVICE)
    version, own = Version(), kernel.interned_properties()
    kernel.share_property_version(version)
    twin = kernel.noting(NotingConventions(kernel.conventions))
    twin.clip_rect = mps.MTLRegion(mps.MTLOrigin(1, 0, 0), mps.MTLSize(1, 1, 1))
    assert twin.conventions == kernel.conventions and twin.interned_properties() is not own
    assert kernel.interned_properties() is own and version.number == 0


def test_the_page_is_that_of_the_table() -> None:
    assert conventions_page.PAGE.read_text() == conventions_page.page(), "run python tools/conventions_page.py"
