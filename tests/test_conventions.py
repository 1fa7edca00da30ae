"""Conventions: each switch changes what it says and nothing else, in kernels and graphs, fused, replayed, archived."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections import defaultdict
from functools import cache
from typing import Any

import conventions_page
import numpy as np
import pytest

import openmps as mps
from catalogue import SAMPLES
from convention_cases import CASES
from convention_cases.case import SOURCES, STEPS, Absent, Subject, graph_of, listed, ordered, row_image, run
from encoding import Bench, Outcome, train, trained
from in_one_test import in_one_test
from mac_facts import arrays, graphs, matrices, storage
from mac_facts.fact import DEVICE, image
from openmps.convention import NotingConventions
from openmps.convention.filters import FILTERS
from openmps.convention.table import CONVENTIONS, MACHINES
from openmps.core.padding.policy import PRESETS
from openmps.metal.version import Version
from oracles import conventions as oracle
from replay_twin import replaying_queue
from samples.batch_normalization import ChannelSource

SWITCHES = [(name, choice) for name in CASES for choice in CONVENTIONS[name].choices]
OTHERS = [(name, choice) for name, row in CONVENTIONS.items() for choice in row.alternatives]
SWITCHED = [*graphs.SWITCHED, *storage.SWITCHED, *matrices.SWITCHED, *arrays.SWITCHED]
FORMS = [
    (name, choice, form)
    for name, choice in SWITCHES
    for form in ("kernel", "graph")
    if isinstance(getattr(CASES[name], form), Subject)
]
IN_GRAPHS = [(name, choice) for name, choice, form in FORMS if form == "graph"]
ABSENT = [
    (name, form)
    for name, case in CASES.items()
    for form in ("kernel", "graph")
    if isinstance(getattr(case, form), Absent)
]
pytestmark = pytest.mark.filterwarnings("ignore::openmps.errors.MPSTrainingWarning")


def test_every_question_has_a_row() -> None:
    """Those that only a Mac can answer, K, R and P, those that facts have brought, F, and those on filters, I."""
    asked = {question for row in CONVENTIONS.values() for question in row.questions}
    expected = [*(f"K{k}" for k in range(1, 22)), *(f"R{k}" for k in range(1, 31)), *(f"P{k}" for k in range(10))]
    facts = {f"F{number}" for number in range(1, 11)}
    filters = {f"I{number}" for number in range(1, len(FILTERS) + 1)}
    assert asked == {*expected, *facts, *filters} and (len(expected), len(filters)) == (61, 57)
    assert all(row.to_ask for row in FILTERS)


OBJECTS = {"state_resource_size", "short_row_bytes", "array_view_lengths", "matrix_sum_of_one"}
"""Asked of objects that are no kernels, or of whether a kernel is made: facts of `mac_facts` are their cases."""


def test_every_switch_is_asked() -> None:
    assert {name: {*case.answers} for name, case in CASES.items()} == {
        name: set(row.choices) for name, row in CONVENTIONS.items() if row.alternatives and name not in OBJECTS
    }
    assert {name for fact in SWITCHED for name in fact.switch or ()} >= OBJECTS


@in_one_test
@pytest.mark.parametrize("name", CONVENTIONS)
def test_a_row_with_one_choice_says_why(name: str) -> None:
    row = CONVENTIONS[name]
    assert bool(row.why_not) == (not row.alternatives)
    if row.why_not:
        with pytest.raises(mps.MPSArgumentError, match=f"^conventions: {name} has no choice but '{row.default}': "):
            mps.conventions(**{name: "another"})


# --- every form -------------------------------------------------------------------------------------------------------


def _made(name: str, choice: str, form: str) -> tuple[Subject, list[Any]]:
    """The kernels or graphs of a case, made in the block of a choice."""
    subject = getattr(CASES[name], form)
    with mps.conventions(**{name: choice}):
        return subject, list(subject.make())


def _check(name: str, choice: str, found: list[float], encode: int = 0) -> None:
    """Float32 numbers against those of the formulas."""
    case = CASES[name]
    answers = case.answers[choice]
    expected = listed(answers[encode] if case.counts else answers)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6, err_msg=f"{name}={choice}")


def _others(name: str) -> dict[str, str]:
    """Every other switch turned."""
    return {each: row.alternatives[0] for each, row in CONVENTIONS.items() if row.alternatives and each != name}


@in_one_test
@pytest.mark.parametrize("name", CASES)
def test_choices_differ(name: str) -> None:
    """No two choices of a case have the same numbers, so that each check can fail."""
    answers = [tuple(listed(each)) for each in CASES[name].answers.values()]
    assert len({*answers}) == len(answers)


@in_one_test
@pytest.mark.parametrize(("name", "form"), ABSENT)
def test_an_absent_form_is_absent(name: str, form: str) -> None:
    absent = getattr(CASES[name], form)
    assert absent.reason and absent.claim()


@in_one_test
@pytest.mark.parametrize(("name", "choice", "form"), FORMS)
def test_a_switch_changes_what_it_says(name: str, choice: str, form: str) -> None:
    """Made in the block, encoded outside; and nothing of it stays behind."""
    subject, things = _made(name, choice, form)
    _check(name, choice, run(subject, things)[0])
    _check(name, CONVENTIONS[name].default, run(subject, subject.make())[0])


@in_one_test
@pytest.mark.parametrize(("name", "choice", "form"), FORMS)
def test_copies_keep_it(name: str, choice: str, form: str) -> None:
    subject, things = _made(name, choice, form)
    with mps.conventions(**{name: CONVENTIONS[name].default}):
        _check(name, choice, run(subject, [each.copy() for each in things])[0])


@in_one_test
@pytest.mark.parametrize(("name", "choice", "form"), FORMS)
def test_archives_keep_it(name: str, choice: str, form: str) -> None:
    """Read where every other switch is turned, and that one is as it comes."""
    subject, things = _made(name, choice, form)
    archives = [mps.MPSKeyedArchiver.archived_data(each) for each in things]
    with mps.conventions(**_others(name)):
        again = [
            mps.MPSKeyedUnarchiver.unarchived_object_of_class(type(each), data, DEVICE)
            for each, data in zip(things, archives, strict=True)
        ]
    assert [each.conventions for each in again] == [each.conventions for each in things]
    for each in again:
        if hasattr(each, "destination_image_allocator"):
            each.destination_image_allocator = mps.MPSImage.default_allocator()
    _check(name, choice, run(subject, again)[0])


@in_one_test
@pytest.mark.parametrize(("name", "choice"), IN_GRAPHS)
def test_fusions_keep_it(name: str, choice: str) -> None:
    """The fused graph is another function than the unfused one, unless the case says why there is no rule."""
    subject, things = _made(name, choice, "graph")
    ran: list[list[tuple[str, ...]]] = []
    for allowed in (True, False):
        again = [each.copy() for each in things]
        for each in again:
            each.allow_fusion = allowed
        found, command_buffer = run(subject, again)
        _check(name, choice, found)
        ran.append([work.operations for work in command_buffer.explain().works])
    assert (ran[0] == ran[1]) == bool(CASES[name].unfused)


@in_one_test
@pytest.mark.parametrize(("name", "form"), dict.fromkeys((name, form) for name, _, form in FORMS))
def test_replays_keep_it(name: str, form: str) -> None:
    """All choices in turns on one queue."""
    case, queue, seen = CASES[name], replaying_queue(), defaultdict[str, set[str]](set)
    made = {choice: _made(name, choice, form) for choice in CONVENTIONS[name].choices}
    for encode in range(STEPS):
        for choice, (subject, things) in made.items():
            found, command_buffer = run(subject, things, queue)
            _check(name, choice, found, encode)
            if encode == STEPS - 1:
                seen[choice].update(work.reason for work in command_buffer.explain().works)
    for reasons in seen.values():
        reasons.discard("")  # replayed
        assert len(reasons) == bool(case.unreplayed) and all(case.unreplayed in each for each in reasons)


@pytest.mark.parametrize("choice", CONVENTIONS["clamp_gradient"].choices)
def test_replayed_updates_keep_it(choice: str) -> None:
    """Gradients of weights that a training graph updates itself: each step takes the same ones from the weights."""
    source, taps, rate = [1.0, 2.0], np.array([1.0, 10.0, 100.0], np.float32), 0.125
    weights = mps.TrainableConvolutionDataSource(
        mps.MPSCNNConvolutionDescriptor(3, 1, 1, 1),
        taps,
        optimizer=lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, rate),
    )
    with mps.conventions(clamp_gradient=choice):
        node = mps.MPSCNNConvolutionNode(mps.MPSNNImageNode(), weights)
        made = mps.MPSNNInitialGradientNode(node.result_image).training_graph(None)
        assert made
        graph = graph_of(made[0])
    graph.kernels[node].edge_mode = mps.MPSImageEdgeMode.CLAMP
    queue = replaying_queue()
    for step in range(1, STEPS + 1):
        command_buffer = queue.command_buffer()
        graph.encode(command_buffer, [row_image(source)])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        _, slope = oracle.clamped_gradients(source, list(taps), [1.0, 1.0], choice)
        np.testing.assert_allclose(listed(weights.weights()), taps - step * rate * np.array(slope))
    assert {work.outcome.value for work in command_buffer.explain().works} == {"replayed"}


def test_running_variances_are_those_of_a_sample_once() -> None:
    """A source makes the population's variance that of a sample, as PyTorch does, and leaves a sample's as it is."""
    batch = mps.MPSImageBatch([row_image([2.0, 4.0, 9.0])])
    found = list[list[float]]()
    for choice in CONVENTIONS["variance"].choices:
        source = mps.TrainableBatchNormalizationDataSource(
            1, momentum=1.0, optimizer=lambda device: mps.MPSNNOptimizerStochasticGradientDescent(device, 0.0)
        )
        with mps.conventions(variance=choice):
            node = mps.MPSCNNBatchNormalizationNode(mps.MPSNNImageNode(), source)
            made = mps.MPSNNInitialGradientNode(node.result_image).training_graph(None)
            assert made
            graph = graph_of(made[0])
        command_buffer = DEVICE.new_command_queue().command_buffer()
        graph.encode_batch(command_buffer, [batch])
        command_buffer.commit()
        command_buffer.wait_until_completed()
        found.append(listed(source.variance()))
    np.testing.assert_allclose(found, [[13.0], [13.0]], rtol=1e-6)


def test_processes_share_variances_of_the_population_alone() -> None:
    with mps.conventions(variance="sample"):
        statistics = mps.MPSCNNBatchNormalizationStatistics(DEVICE)
    state = mps.MPSCNNBatchNormalization(DEVICE, ChannelSource(1, 0.25)).result_state(row_image([2.0]))
    statistics.encode_batch(DEVICE.new_command_queue().command_buffer(), [row_image([2.0, 4.0])], state)
    with pytest.raises(mps.MPSArgumentError, match="must hold variances of the population, got those of a sample"):
        state.share_statistics("a group", 2)


@cache
def _default(name: str, form: str) -> list[float]:
    """The numbers of a case without any block."""
    subject = getattr(CASES[name], form)
    return run(subject, subject.make())[0]


def _halves() -> list[dict[str, str]]:
    """Half of the switches turned, so that each is where any other one is not, to each of its alternatives."""
    names = [name for name, row in CONVENTIONS.items() if row.alternatives]
    places = [(bit, side) for bit in range(len(names).bit_length()) for side in (0, 1)]
    return [
        {
            name: CONVENTIONS[name].alternatives[(bit + number) % len(CONVENTIONS[name].alternatives)]
            for number, name in enumerate(names)
            if number >> bit & 1 == side
        }
        for bit, side in places
    ]


HALVES = _halves()


def test_halves_have_every_choice_and_tell_switches_apart() -> None:
    assert {pair for half in HALVES for pair in half.items()} == {*OTHERS}
    names = {name for name, _ in OTHERS}
    assert all(any(name in half and other not in half for half in HALVES) for name in names for other in names - {name})


@pytest.mark.parametrize("half", HALVES, ids=range(len(HALVES)))
def test_switches_change_no_other_case(half: dict[str, str]) -> None:
    """Bit for bit, in kernels and graphs, but for those that are known to depend on both."""
    for other, case in CASES.items():
        for form in ("kernel", "graph"):
            subject = getattr(case, form)
            depends = {other, *(case.besides if form == "graph" else case.besides - SOURCES)}
            if isinstance(subject, Absent):
                continue
            with mps.conventions(**{name: choice for name, choice in half.items() if name not in depends}):
                things = subject.make()
            np.testing.assert_array_equal(run(subject, things)[0], _default(other, form), err_msg=f"{other}, {form}")


@pytest.mark.parametrize("half", HALVES, ids=range(len(HALVES)))
def test_switches_change_no_other_kernel(half: dict[str, str]) -> None:
    """A sample of every kernel of the catalogue, forwards and back, bit for bit."""
    bench = Bench(DEVICE)
    for kind, samples in SAMPLES.items():
        turned = {name: choice for name, choice in half.items() if kind.__name__ not in CONVENTIONS[name].concerns}
        expected = trained(samples[0], DEVICE, 1)
        with mps.conventions(**turned):
            found = train(bench, samples[0], samples[0].sources(1), bench.batch)
        for left, right in zip(_numbers(found), _numbers(expected), strict=True):
            np.testing.assert_array_equal(left, right, err_msg=samples[0].name)


def _numbers(outcome: Outcome) -> list[np.ndarray]:
    parts = [outcome.result, *outcome.gradients, outcome.weights, outcome.biases, outcome.losses]
    return [part for part in parts if part is not None]


# --- blocks -----------------------------------------------------------------------------------------------------------


def _again(thing: Any) -> Any:
    """It, from an archive."""
    data = mps.MPSKeyedArchiver.archived_data(thing)
    return mps.MPSKeyedUnarchiver.unarchived_object_of_class(type(thing), data, DEVICE)


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


def test_a_block_holds_in_its_task() -> None:
    """And in those that are started in it, as any variable of a context."""

    async def made() -> str:
        return mps.MPSNNReshape(DEVICE).conventions["reshape_order"]

    async def both() -> tuple[str, str]:
        outside = asyncio.create_task(made())
        with mps.conventions(K7="planes"):
            inside = asyncio.create_task(made())
            await asyncio.sleep(0)
        return await outside, await inside

    assert asyncio.run(both()) == ("pixels", "planes")


def test_nodes_are_read_by_the_block_of_their_graph() -> None:
    with mps.conventions(K7="planes"):
        node = mps.MPSNNReshapeNode(mps.MPSNNImageNode(), 2, 1, 3)
    graph = graph_of(node)
    assert graph.kernels[node].conventions == graph.conventions == mps.conventions()


def test_kernels_keep_theirs_in_copies_and_archives() -> None:
    with mps.conventions(reshape_order="planes"):
        kernel = mps.MPSNNReshape(DEVICE)
    with mps.conventions(hinge_labels="as_given"):
        for twin in (kernel.copy(), _again(kernel)):
            assert twin.conventions == kernel.conventions


@pytest.mark.parametrize("name", PRESETS)
def test_presets_of_other_conventions(name: str) -> None:
    """They are methods in their block alone; archives and copies make them again."""
    for choice in CONVENTIONS[name].alternatives:
        method = PRESETS[name][choice]
        with mps.conventions(**{name: choice}):
            policy = mps.MPSNNDefaultPadding(method)
        assert policy.conventions[name] == choice
        with pytest.raises(mps.MPSArgumentError, match="must not have the custom bit"):
            mps.MPSNNDefaultPadding(method)
        kernel = mps.MPSCNNPoolingAverage(DEVICE, 3, 3)
        kernel.padding = policy
        for twin in (_again(kernel).padding, pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)):
            assert twin == policy and type(twin) is type(policy)


def test_names_of_presets_follow_the_block() -> None:
    for name in ("tensorflow-average-pooling", "tensorflow-average-pooling-valid"):
        with mps.conventions(R7="code", R8="plain"):
            inner = mps.MPSGetPaddingPolicy(name)
        assert inner.padding_method() in (0x4010, 0x4000)
        assert mps.MPSGetPaddingPolicy(name).padding_method() in (0x401C, 0x400E)


# --- machines and misuse ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_is_its_choices(machine: str) -> None:
    known = MACHINES[machine]
    assert {name: mps.conventions(machine)[name] for name in known} == known
    for name in known:
        alone = mps.conventions(machine, **{name: CONVENTIONS[name].default})
        assert {each: alone[each] for each in known} == {**known, name: CONVENTIONS[name].default}
    for row in CONVENTIONS.values():
        assert (machine in row.proven) == (known.get(row.name) == row.default)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: mps.conventions("a Mac"), mps.MPSArgumentError, "machine must be 'macOS 27, M4' or 'macOS 26.5, M4'"),
        (lambda: mps.conventions(K13="last"), mps.MPSArgumentError, "K13 has several conventions: pooling_ties, argu"),
        (lambda: mps.conventions(K99="x"), mps.MPSArgumentError, "K99 is no convention and no question"),
        (lambda: mps.conventions(reshape_oder="x"), mps.MPSArgumentError, "Did you mean reshape_order?"),
        (lambda: mps.conventions(K7="rows"), mps.MPSArgumentError, "reshape_order must be 'pixels' or 'planes', got "),
        (
            lambda: mps.conventions(reshape_order="planes", K7="pixels"),
            mps.MPSArgumentError,
            "K7 is reshape_order, which must be named once",
        ),
        (lambda: mps.conventions(K7=1), mps.MPSTypeError, "reshape_order must be the name of a choice, got int"),
    ],
)
def test_misuse(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as found:
        call()
    assert message in str(found.value)


# --- lint, files, the page --------------------------------------------------------------------------------------------


def _descriptors(graph: mps.MPSNNGraph, subject: Subject) -> list[mps.MPSImageDescriptor]:
    return [each.descriptor() for each in ordered(graph, subject.sources)]


@in_one_test
@pytest.mark.parametrize(("name", "choice"), IN_GRAPHS)
def test_lint_names_what_a_graph_depends_on(name: str, choice: str) -> None:
    """And who is known to choose so; `test_switches_change_no_other_case` shows that it leaves nothing out."""
    subject, things = _made(name, choice, "graph")
    report = mps.lint(things[0], _descriptors(things[0], subject))
    relied = {each.name: each for each in report.conventions}
    if CASES[name].unlinted:
        assert name not in relied
        return
    found = relied.pop(name)
    assert (found.choice, found.asks) == (choice, CONVENTIONS[name].asks)
    assert found.proven == tuple(machine for machine, choices in MACHINES.items() if choices.get(name) == choice)
    assert f"Here: {choice}," in " ".join(str(report).split())
    assert {*relied} <= CASES[name].besides


def test_lint_names_nothing_of_a_plain_graph() -> None:
    source = image([1, 2, 3, 4])
    graph = graph_of(mps.MPSCNNNeuronReLUNode(mps.MPSNNImageNode(), 0.0))
    assert mps.lint(graph, source.descriptor()).conventions == ()
    report = mps.lint(graph)
    assert report.conventions == () and "conventions, which needs the shapes of source images" in report.left_out


def test_to_lint_changes_nothing() -> None:
    subject, [graph] = _made("alignment", "reading", "graph")
    before = run(subject, [graph])[0]
    kernels = {node: kernel.interned_properties() for node, kernel in graph.kernels.items()}
    mps.lint(graph, _descriptors(graph, subject))
    assert {node: kernel.interned_properties() for node, kernel in graph.kernels.items()} == kernels
    assert run(subject, [graph])[0] == before


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
