"""The list of cases: what it is made of, that it is what it says, and that recordings are told apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import conformance_cases
import numpy as np
import pytest
import torch
from conformance_list import facts, nodes, questions
from conformance_list.describe import _LEFT_OUT, _differs, described, drawn
from conformance_list.kernels import OURS
from conformance_list.vocabulary import BESIDE, ENTRY, VALUES

import openmps as mps
from catalogue import SAMPLES
from encoding import Bench, run
from in_one_test import in_one_test
from node_catalogue import NODE_SAMPLES
from openmps.conformance.answers import answer_of
from openmps.conformance.arrays import array_of
from openmps.conformance.arrays import drawn as drawn_numbers
from openmps.conformance.cases import Case, CaseList, cases
from openmps.conformance.evidence import Proof, evidence
from openmps.conformance.goldens import Verdict, goldens, load_recording, verdict
from openmps.conformance.objects import Maker
from openmps.conformance.recorder import changed, faults_seen, record
from openmps.convention.filters import FILTERS
from openmps.convention.table import CONVENTIONS
from openmps.formats.archive.forms import properties
from samples.sample import Sample

CPU = mps.mtl_device("cpu")
LIST = cases()
ASKED = {name for case in LIST.cases.values() for name in case.classes}
KERNELS = [(kind, sample) for kind, samples in SAMPLES.items() for sample in samples if OURS[0] not in sample.name]
PUBLISHED = [(golden, name) for golden in goldens() for name in golden.answers]


@pytest.fixture(scope="module")
def answers() -> Mapping[str, Any]:
    """What openmps answers where something is published."""
    return {name: answer_of(LIST.cases[name], CPU) for _, name in PUBLISHED}


def test_the_files_are_those_of_the_tool() -> None:
    for path, text in conformance_cases.documents().items():
        assert path.read_text(encoding="utf-8") == text, "run python tools/conformance_cases.py"


def _words(given: Any) -> Iterator[str]:
    """Every name of an entry but those of arguments and properties, which are the framework's."""
    if isinstance(given, list):
        for each in given:
            yield from _words(each)
    if isinstance(given, dict):
        for name, each in given.items():
            yield name
            yield from (_words([*each.values()]) if name in ("arguments", "properties") else _words(each))


def test_every_word_is_declared() -> None:
    used = {word for case in LIST.cases.values() for word in _words(case.entry)}
    values = {word for word in used if word not in {*ENTRY, *VALUES, *BESIDE}}
    assert values == set() and {*ENTRY, *VALUES, *BESIDE} - used == set()


def test_nothing_is_left_out_in_silence() -> None:
    assert len(LIST.cases) == len(json.loads(Path(conformance_cases.CASES_FILE).read_text())["cases"])
    assert {kind.__name__ for kind in SAMPLES} <= ASKED
    assert {kind.__name__ for kind in NODE_SAMPLES} - ASKED == {*nodes.APART}
    assert {*facts.FACTS} == {*facts.CASES, *facts.APART} and not facts.CASES.keys() & facts.APART.keys()
    settled = {name for case in LIST.cases.values() for name in case.questions}
    assert {*CONVENTIONS} == settled | {*questions.APART} and not settled & {*questions.APART}


@in_one_test
@pytest.mark.parametrize("name", [row.name for row in FILTERS if row.alternatives and row.name not in questions.APART])
def test_questions_on_filters_tell_their_readings_apart(name: str) -> None:
    found: list[str] = []
    for choice in CONVENTIONS[name].choices:
        with mps.conventions(**{name: choice}):
            asked = [answer_of(case, CPU) for case in LIST.cases.values() if name in case.questions]
        found.append(json.dumps(asked))
    assert len({*found}) == len(found)


@in_one_test
@pytest.mark.parametrize(("kind", "sample"), KERNELS, ids=lambda each: getattr(each, "name", ""))
def test_a_description_makes_the_same_kernel(kind: type, sample: Sample) -> None:
    kernel = sample.make(CPU)
    if not isinstance(kernel.padding, mps.MPSNNDefaultPadding):  # a policy of Python's, which sizes reshapes
        kernel.padding = type(kernel)(CPU).padding
    again = Maker(CPU).value(json.loads(json.dumps(described(kernel, sample.name))))
    names = properties(type(kernel)) - _LEFT_OUT
    assert type(again) is type(kernel)
    assert [name for name in names if _differs(getattr(again, name), getattr(kernel, name))] == []


@pytest.mark.parametrize("name", ["max pooling 3x3, clamp", "add scales and bias", "neuron elu", "resize larger"])
def test_an_answer_is_that_of_the_kernel(name: str) -> None:
    """Encoded without the list, of the same numbers."""
    sample = next(sample for _, sample in KERNELS if sample.name == name)
    sources = []
    for place, (channels, height, width) in enumerate(sample.shapes):
        pixels = array_of(drawn((height, width, channels), f"{name} source {place}", sample.domain))
        sources.append(Bench(CPU).image(pixels.transpose(2, 0, 1)[None]))
    expected = run(Bench(CPU), sample.make(CPU), sources)
    found = answer_of(LIST.cases[f"kernel: {name}"], CPU)["values"]["result"]
    assert np.array_equal(np.reshape(found["numbers"], found["shape"]), expected[0].transpose(1, 2, 0))


def _trained(entry: Mapping[str, Any], forward: Any) -> dict[str, list[torch.Tensor]]:
    """Gradients of the summed squares, by autograd: of the source, weights (OHWI) and biases."""
    layers = [each["arguments"]["weights"] for each in entry["nodes"] if "weights" in each["arguments"]]
    arrays = [[array_of(each[name]) for each in layers] for name in ("weights", "biases")]
    source = torch.from_numpy(array_of(entry["sources"][0])).double().requires_grad_()
    weights, biases = ([torch.from_numpy(each).double().requires_grad_() for each in part] for part in arrays)

    def layer(place: int, x: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(x, weights[place].permute(0, 3, 1, 2), biases[place], padding=1)

    y = forward(layer, source.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    (y - torch.from_numpy(array_of(entry["labels"]))).square().sum().backward()
    gradients = {"result": [source], "gradientForWeights": weights, "gradientForBiases": biases}
    return {name: [each.grad for each in part if each.grad is not None] for name, part in gradients.items()}


@pytest.mark.parametrize(
    ("name", "forward"),
    [
        ("a convolution, squares", lambda layer, x: layer(0, x)),
        ("two convolutions, ReLU and pooling between",
         lambda layer, x: layer(1, torch.max_pool2d(layer(0, x).relu(), 2))),
        ("a convolution that two nodes read", lambda layer, x: (y := layer(0, x)) + layer(1, y)),
    ],
)  # fmt: skip
def test_a_training_answer_is_what_autograd_gives(name: str, forward: Any) -> None:
    case = LIST.cases[f"training: {name}"]
    values = answer_of(case, CPU)["values"]
    for read, wanted in _trained(case.entry, forward).items():
        found = [values[read]] if read == "result" else values[read]
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            expected = other.numpy().reshape(-1)
            assert np.abs(np.array(one["numbers"]) - expected).max() <= 1e-5 * np.abs(expected).max()


MATRICES = {
    "product": lambda a, b: a @ b,
    "product, transposed left": lambda a, b: 0.5 * a.T @ b,
    "product, transposed right": lambda a, b: -2 * a @ b.T,
    "product, transposed left and right": lambda a, b: a.T @ b.T,
    "rows by MPSMatrixSoftMax": lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True),
    "a gradient of soft-max": lambda g, y: y * (g - (g * y).sum(1, keepdims=True)),
    "a triangle, lower": lambda a, b: np.linalg.solve(np.tril(a), b / 2),
    "a triangle, upper, transposed": lambda a, b: np.linalg.solve(np.triu(a).T, b / 2),
    "a triangle, lower on the right": lambda a, b: b / 2 @ np.linalg.inv(np.tril(a)),
    "a triangle, upper with a diagonal of 1": lambda a, b: np.linalg.solve(np.triu(a, 1) + np.eye(4), b / 2),
    "a Cholesky factor, lower": lambda a, b: np.linalg.solve(np.tril(a) @ np.tril(a).T, b),
    "a Cholesky factor, upper": lambda a, b: np.linalg.solve(np.triu(a).T @ np.triu(a), b),
}  # fmt: skip


@in_one_test
@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_is_what_numpy_gives(name: str) -> None:
    case = LIST.cases[f"matrices: {name}"]
    expected = MATRICES[name](*(array_of(each).astype(np.float64) for each in case.entry["sources"]))
    found = answer_of(case, CPU)["values"]["matrix"]
    assert np.abs(np.reshape(found["numbers"], found["shape"]) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_drawn_numbers_are_different_and_exact() -> None:
    numbers = drawn_numbers(1013, 7, -506, 256)
    assert len({*numbers.tolist()}) == 1013
    assert np.array_equal(numbers, numbers.astype(np.float16))
    assert numbers[:3].tolist() == [((7 + i) ** 3 % 1013 - 506) / 256 for i in range(3)]


# --- recordings -------------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(("golden", "name"), PUBLISHED, ids=lambda each: each if isinstance(each, str) else "")
def test_published_answers(golden: Any, name: str, answers: Mapping[str, Any]) -> None:
    """All agree but the one that openmps declines; another last number is told apart."""
    says = Verdict.DIFFERS if name == "fact: graph-primary-scale" else Verdict.AGREES
    theirs = golden.answers[name]
    assert verdict(LIST, name, answers[name], theirs) is says
    other = json.loads(json.dumps(theirs))
    last = [*other["values"]][-1]
    value = other["values"][last]
    numbers = value["numbers"] if isinstance(value, dict) else value
    if isinstance(numbers, list):
        numbers[-1] += 1 + abs(numbers[-1]) / 100
    else:
        other["values"][last] = 7.0
    assert verdict(LIST, name, answers[name], other) is Verdict.DIFFERS


def _small(*names: str) -> CaseList:
    names = (*LIST.controls, *names)
    return LIST._replace(cases={name: LIST.cases[name] for name in names})


def test_a_recording_is_read_back(tmp_path: Path) -> None:
    listed = _small("question: maxima_of_nan: ReLU", "fact: row-bytes of INT8", "kernel: neuron sigmoid")
    document = record(listed, CPU, tmp_path / "recording.json")
    golden = load_recording(tmp_path / "recording.json")
    assert golden.answers == document["answers"] and golden.digest == LIST.digest
    for name, case in listed.cases.items():
        assert verdict(listed, name, answer_of(case, CPU), golden.answers[name]) is Verdict.AGREES


def test_a_recorder_that_sees_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(faults_seen(LIST, CPU)) == len(LIST.controls)
    monkeypatch.setattr("openmps.conformance.recorder.changed", lambda case: case)
    with pytest.raises(mps.MPSDeviceError, match="must have another answer with another number, got the same one"):
        faults_seen(LIST, CPU)
    name = next(iter(LIST.controls))
    wrong = _small()._replace(cases={**LIST.cases, name: changed(LIST.cases[name])})
    with pytest.raises(mps.MPSDeviceError, match="must have the answer that is known"):
        faults_seen(wrong, CPU)


def _recording(**changes: Any) -> dict[str, Any]:
    machine = {"gpu": "a GPU", "system": "macOS 15.0"}
    return {"format": 1, "machine": machine, "answers": {"fact: linear": {"aborted": 6}}, **changes}


@in_one_test
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "must be JSON"),
        ("[" * 5000, "must be JSON"),
        ("[]", "no object of format 1"),
        (json.dumps(_recording(format=2)), "no object of format 1"),
        (json.dumps(_recording(machine={})), "a machine without gpu and system"),
        (json.dumps(_recording(answers=[])), "no answers"),
        (json.dumps(_recording(answers={"x": {}})), "an answer to 'x' without one of values, aborted"),
        (json.dumps(_recording(answers={"x": {"values": []}})), "values of 'x' that are no object"),
        (json.dumps(_recording(list="0", planted={"abort": "unseen"})), "planted faults that the recorder has not"),
        (json.dumps(_recording(list="0")), "planted faults that the recorder has not seen"),
    ],
)  # fmt: skip
def test_files_that_are_no_recordings(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "recording.json"
    path.write_text(text)
    with pytest.raises(mps.MPSFileError, match="conformance: .*recording.json") as found:
        load_recording(path)
    assert words in str(found.value)
    with pytest.raises(mps.MPSFileError, match="must be a file, got nothing there"):
        load_recording(tmp_path / "none.json")


_ONE = {"values": {"result": {"shape": [1, 1, 2], "numbers": [1.0, 100.0]}}}


@in_one_test
@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (_ONE, Verdict.AGREES),
        ({"values": {"result": {"shape": [1, 1, 2], "numbers": [1.009, 100.0]}}}, Verdict.AGREES),
        ({"values": {"result": {"shape": [1, 1, 2], "numbers": [1.011, 100.0]}}}, Verdict.DIFFERS),
        ({"values": {"result": {"shape": [1, 2, 1], "numbers": [1.0, 100.0]}}}, Verdict.DIFFERS),
        ({"values": {"result": {"shape": [1, 1, 2], "numbers": ["nan", 100.0]}}}, Verdict.DIFFERS),
        ({"values": {"result": {"numbers": [1.0]}}, "tolerance": 0.0}, Verdict.AGREES),
        ({"values": {"result": {"numbers": [1.0, 100.0, 3.0]}}}, Verdict.DIFFERS),
        ({"values": {"loss": {"numbers": [1.0]}}}, Verdict.DIFFERS),
        ({"values": {}}, Verdict.DIFFERS),
        ({"aborted": 6}, Verdict.DIFFERS),
        ({"unsupported": "a word"}, Verdict.UNANSWERED),
        ({"timedOut": 60}, Verdict.UNANSWERED),
        (None, Verdict.UNANSWERED),
    ],
)
def test_verdicts(theirs: Any, says: Verdict) -> None:
    assert verdict(LIST, "fact: linear", _ONE, theirs) is says
    if theirs == {"aborted": 6}:
        assert verdict(LIST, "fact: linear", {"refused": "MPSArgumentError"}, theirs) is Verdict.AGREES


def test_proofs() -> None:
    """A fact that agrees, one that differs, an open reading, a client's tests, and what is plain."""
    wanted = {
        "fact: linear": Proof.MAC, "fact: graph-primary-scale": Proof.DIFFERS,
        "question: hinge_labels: y .5, t 0": Proof.NOBODY, "question: bilinear_centres: upsampling by 2": Proof.CLIENTS,
        "kernel: neuron sigmoid": Proof.HEADER, "kernel: reshape (6, 3, 4) to (4, 2, 9)": Proof.NOBODY,
    }  # fmt: skip
    found = evidence(LIST, CPU, goldens(), [LIST.cases[name] for name in wanted])
    assert {each.case.name: each.proof for each in found} == wanted


def test_a_case_that_openmps_refuses_is_an_answer() -> None:
    """An edge mode that there is not."""
    entry = json.loads(json.dumps(LIST.cases["fact: linear"].entry))
    entry["kernel"]["properties"] = {"edgeMode": 77}
    answer = answer_of(Case("x", "neuron", "kernel", entry), CPU)
    assert list(answer) == ["refused"] and answer["refused"].startswith("MPS")
