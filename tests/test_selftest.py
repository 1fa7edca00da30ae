"""``openmps selftest`` and ``openmps lint --conformance``, and the page on conformance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple, cast

import conformance_page
import pytest
import torch

import openmps as mps
from openmps.cli import main
from openmps.conformance import cases as cases_module
from openmps.conformance import selftest
from openmps.conformance.answers import answer_of
from openmps.conformance.cases import Case, cases
from openmps.conformance.goldens import FOLDER, RECORDING, goldens
from openmps.conformance.recorder import changed

LIST = cases()


def _told(capsys: pytest.CaptureFixture[str]) -> str:
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if len(line) > 80] == []
    return out


def _recording(path: Path, numbers: list[float]) -> str:
    """One answer of another Mac to the control of a linear neuron."""
    answers = {"fact: linear": {"values": {"result": {"shape": [4, 4, 1], "numbers": numbers}}}}
    machine = {"framework": "Apple", "gpu": "another GPU", "system": "macOS 15.0"}
    document = {"format": 1, "list": "0", "machine": machine, "planted": {"abort": "seen"}, "answers": answers}
    path.write_text(json.dumps(document))
    return str(path)


LINEAR = [2.0 * place + 0.5 for place in range(1, 17)]


def test_it_agrees_with_the_macs_that_are_known(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = _recording(tmp_path / "a.json", LINEAR)
    assert main(["selftest", "--device", "cpu", "--goldens", given]) == 0
    said = _told(capsys)
    assert "cpu     macOS 15.0, another GPU       1       0" in said
    assert "expected: the convention graph_primary_scale follows the documentation" in said


def test_an_answer_that_differs_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = _recording(tmp_path / "a.json", [*LINEAR[:-1], 0.0])
    assert main(["selftest", "--goldens", given]) == 1
    assert "cpu differs from macOS 15.0, another GPU:\n  fact: linear\n" in _told(capsys)


def test_answers_are_recorded(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = LIST._replace(cases={name: LIST.cases[name] for name in LIST.controls})
    monkeypatch.setattr(cases_module, "cases", lambda: few)
    assert main(["selftest", "--record", str(tmp_path / "ours.json")]) == 0
    assert capsys.readouterr().out == f"{len(few.cases)} answers in {tmp_path / 'ours.json'}\n"
    assert main(["selftest", "--goldens", str(tmp_path / "ours.json")]) == 0
    assert main(["selftest", "--record", "x", "--goldens", "y"]) == 2
    assert "must be left out" in capsys.readouterr().err


class _Gpu(NamedTuple):
    """What the self-test asks of a device."""

    torch_device: torch.device = torch.device("cuda:0")


@pytest.mark.parametrize("is_right", [True, False])
def test_a_gpu_is_compared_with_the_cpu_too(monkeypatch: pytest.MonkeyPatch, is_right: bool) -> None:
    def asked(case: Case, device: Any) -> Any:
        is_gpu = isinstance(device, _Gpu)
        return answer_of(changed(case) if is_gpu and not is_right else case, mps.mtl_device("cpu"))

    monkeypatch.setattr(selftest, "answer_of", asked)
    few = LIST._replace(cases={name: LIST.cases[name] for name in LIST.controls})
    *_, last = selftest.self_test(few, [cast(mps.MTLDevice, _Gpu())], goldens())
    assert (last.device, last.machine, last.ok) == ("cuda:0", selftest.THE_CPU, is_right)
    assert last.agree == (tuple(few.cases) if is_right else ())


def test_lint_says_what_is_proven_of_a_network(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source = mps.MPSNNImageNode(mps.Handle("x"))
    pooled = mps.MPSCNNPoolingMaxNode(source, 2, 2)
    node = mps.MPSCNNNeuronReLUNode(pooled.result_image, 0.0)
    mps.MPSKeyedArchiver.archive(mps.MPSNNGraph(mps.mtl_device("cpu"), node.result_image), tmp_path / "graph")
    assert main(["lint", str(tmp_path / "graph"), "--image", "8x8x4", "--conformance"]) == 0
    lines = {line.split()[0]: line.split()[1:] for line in _told(capsys).splitlines() if line.startswith("MPS")}
    assert lines.keys() == {"MPSCNNPoolingMaxNode", "MPSCNNNeuronReLUNode"}
    assert all(int(macs) > 0 for macs, *_ in lines.values())


def test_the_page_is_that_of_the_list() -> None:
    assert conformance_page.PAGE.read_text(encoding="utf-8") == conformance_page.page(), (
        "run python tools/conformance_page.py"
    )


def test_goldens_are_small_and_say_where_they_come_from() -> None:
    files = [*FOLDER.glob(f"*/{RECORDING}")]
    assert len(files) == len(goldens()) and sum(path.stat().st_size for path in files) < 1 << 20
    assert all(golden.source or golden.digest for golden in goldens())
