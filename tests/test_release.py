"""A release: what its tools refuse; every place that names the version, the title or a bound says the same."""

from __future__ import annotations

import datetime
import json
import shutil
import subprocess
from pathlib import Path

import make_release
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from releasing import artifacts, environments, project

import openmps

ROOT = project.ROOT
PROJECT = project.metadata()
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
ZENODO = json.loads((ROOT / ".zenodo.json").read_text())
RECIPE = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
ON_CONDA = {"torch": "pytorch"}


def test_one_version() -> None:
    assert project.version() == openmps.__version__
    assert PROJECT["dynamic"] == ["version"]


def test_titles_authors_and_addresses_are_those_of_the_project() -> None:
    (author,) = PROJECT["authors"]
    about = RECIPE["about"]
    assert CITATION["title"] == ZENODO["title"] and CITATION["title"].startswith(f"{PROJECT['name']}: ")
    assert {CITATION["abstract"], ZENODO["description"], about["summary"]} == {PROJECT["description"]}
    assert CITATION["authors"] == ZENODO["creators"] == [{"name": author["name"]}]
    assert {CITATION["license"], ZENODO["license"], about["license"]} == {PROJECT["license"]}
    assert CITATION["keywords"] == ZENODO["keywords"] == PROJECT["keywords"]
    home = PROJECT["urls"]["Homepage"]
    assert {CITATION["url"], CITATION["repository-code"], about["homepage"], about["repository"]} == {home}
    assert all(address.startswith(home) for address in PROJECT["urls"].values())


def _bounds(texts: list[str]) -> dict[str, SpecifierSet]:
    found = [Requirement(text) for text in texts]
    return {ON_CONDA.get(each.name, each.name): each.specifier for each in found}


def test_the_recipe_needs_what_the_project_needs() -> None:
    oldest = RECIPE["context"]["python_min"]
    assert PROJECT["requires-python"] == f">={oldest}"
    python, *run = RECIPE["requirements"]["run"]
    assert python == "python >=${{ python_min }}"
    assert _bounds([text.replace(" ", "", 1) for text in run]) == _bounds(PROJECT["dependencies"])
    builds = [text.replace(" ", "", 1) for text in RECIPE["requirements"]["host"] if text.startswith("hatchling")]
    tables = project.tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert builds == tables["build-system"]["requires"]
    assert RECIPE["build"]["python"]["entry_points"] == [f"openmps = {PROJECT['scripts']['openmps']}"]


def test_the_pythons_named_begin_with_the_oldest() -> None:
    named = project.pythons()
    assert named[0] == RECIPE["context"]["python_min"]
    assert named == sorted(named, key=lambda each: int(each.partition(".")[2]))
    assert f"| Python | {named[0]} to {named[-1]} |" in (ROOT / "docs" / "versions.md").read_text()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_ask_for_the_doctor(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(form)
    (asked,) = [each for each in form["body"] if each["id"] == "doctor"]
    assert "`openmps doctor`" in asked["attributes"]["label"]
    assert len({each["id"] for each in form["body"]}) == len(form["body"])


def test_there_are_issue_forms() -> None:
    assert len(FORMS) >= 2


# --- the changelog ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that have the version, with something unreleased."""
    for name in project.VERSIONED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# C\n\n## [Unreleased]\n\n- new\n\n## [0.1.0] - 2020-02-03\n\n- old\n")
    return tmp_path


def test_a_cut_writes_the_version_wherever_it_stands(tree: Path) -> None:
    project.cut("7.8.9", datetime.date(2031, 5, 6), tree)
    assert (
        (tree / "CHANGELOG.md").read_text().startswith("# C\n\n## [Unreleased]\n\n## [7.8.9] - 2031-05-06\n\n- new\n")
    )
    assert project.version(tree) == "7.8.9"
    assert project.released("7.8.9", tree) == datetime.date(2031, 5, 6)
    assert yaml.safe_load((tree / "CITATION.cff").read_text())["date-released"] == datetime.date(2031, 5, 6)
    changed = (tree / "CITATION.cff").read_text().replace("2031", "2030")
    (tree / "CITATION.cff").write_text(changed)
    with pytest.raises(project.ReleaseError, match="CITATION.cff must have the date of the changelog, 2031-05-06"):
        project.released("7.8.9", tree)


def test_what_cannot_be_cut_or_released(tree: Path) -> None:
    today = datetime.date(2031, 5, 6)
    for version, words in (
        ("0.1.0", "a section of 0.1.0 already"),
        ("0.1.9", f"must not be earlier than {openmps.__version__}, got 0.1.9"),
        *((text, "must be three numbers") for text in ("next", "01.2.3", "\u0663.0.0", "3.0.0\n")),
    ):
        with pytest.raises(project.ReleaseError, match=words):
            project.cut(version, today, tree)
    with pytest.raises(project.ReleaseError, match=r"no section of 0\.3\.0"):
        project.released("0.3.0", tree)
    with pytest.raises(project.ReleaseError, match="says under Unreleased: '- new'"):
        project.released("0.1.0", tree)
    project.cut("0.3.0", today, tree)
    with pytest.raises(project.ReleaseError, match="says nothing under Unreleased"):
        project.cut("0.4.0", today, tree)
    (tree / project.SOURCE).write_text('__version__ = "0.3.1"\n')
    with pytest.raises(project.ReleaseError, match=r"has version 0\.3\.0, .* has 0\.3\.1"):
        project.version(tree)


def test_the_date_is_the_day_s_first_second() -> None:
    assert project.epoch(datetime.date(1970, 1, 3)) == 2 * 24 * 60 * 60


# --- artifacts --------------------------------------------------------------------------------------------------------


def _git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "module.py").write_text("x = 1\n")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one")):
        _git(folder, *arguments)
    return folder


BUILDER = """
import os, pathlib, sys
out, tree = map(pathlib.Path, sys.argv[-2:])
out.mkdir()
assert not (tree / "beside.py").exists()
(out / "a.tar.gz").write_text((tree / "module.py").read_text() + os.environ["SOURCE_DATE_EPOCH"])
(out / "a.whl").write_text({})
"""
LEAKS = {"none": "''", "the zone": "os.environ['TZ']", "the folder": "str(tree)", "the mask": "oct((os.umask(0)))"}


@pytest.mark.parametrize("leak", LEAKS)
def test_builds_that_differ_are_refused(repository: Path, tmp_path: Path, monkeypatch, leak: str) -> None:
    commit = artifacts.head(repository)
    (tmp_path / "builder.py").write_text(BUILDER.format(LEAKS[leak]))
    run = artifacts._run

    def run_builder(command: list[str], environment: dict[str, str] | None = None) -> str:
        if command[1:3] == ["-m", "build"]:
            command = [command[0], str(tmp_path / "builder.py"), *command[5:]]
        return run(command, environment)

    monkeypatch.setattr(artifacts, "_run", run_builder)
    (repository / "beside.py").write_text("secret = 1\n")
    if leak == "none":
        made = artifacts.build(commit, 86400, tmp_path / "made", repository)
        assert [path.name for path in made] == ["a.tar.gz", "a.whl"]
        assert made[0].read_text() == "x = 1\n86400"
    else:
        with pytest.raises(project.ReleaseError, match=r"two builds of one commit differ: a\.whl"):
            artifacts.build(commit, 86400, tmp_path / "made", repository)


def test_a_tree_that_is_not_committed_is_refused(repository: Path) -> None:
    (repository / "beside.py").write_text("x = 2\n")
    with pytest.raises(project.ReleaseError, match=r"(?s)commit them first.*beside\.py"):
        artifacts.head(repository)


def test_hashes_are_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (found,) = artifacts.hashes([tmp_path / "a"])
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1
    assert found == {"file": "a", "bytes": 3, "sha256": known}


# --- environments -----------------------------------------------------------------------------------------------------


def test_an_interpreter_that_runs_is_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(environments, "_SHIMS", tmp_path / "none")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for name, script in {"broken": "exit 127", "other": "echo 3.77.1", "right": "echo 3.99.4"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    given = [tmp_path / name for name in ("nothing", "broken", "other", "right")]
    assert environments.find("3.99", given) == tmp_path / "right"
    assert environments.find("3.98", given) is None


def test_the_oldest_packages_are_those_of_the_bounds() -> None:
    lines = environments.oldest().splitlines()
    assert "torch==2.11.*" in lines and "numpy==2.0.*" in lines
    assert len(lines) == len(PROJECT["dependencies"])
    assert all(each.specifier.contains(f"{line.partition('==')[2].removesuffix('*')}0")
               for each, line in zip(map(Requirement, PROJECT["dependencies"]), lines, strict=True))  # fmt: skip


def test_the_extras_tried_are_those_for_users() -> None:
    assert set(environments.EXTRAS) < set(PROJECT["optional-dependencies"])


class Told(environments.Environment):
    """An environment without an interpreter, which says what it is told."""

    text: str

    def step(self, name: str, *arguments: str) -> str:
        return self.text


def test_an_extra_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    told = Told(tmp_path, tmp_path, tmp_path, environments.Tried("3.11.1", "constraints"))
    libraries = [{"name": "numpy", "extra": "", "state": "ok"}, {"name": "onnx", "extra": "onnx", "state": "broken"}]
    told.text = json.dumps({"libraries": libraries})
    told.doctor("doctor")
    with pytest.raises(environments.StepError, match="onnx must be there"):
        told.doctor("doctor", ("onnx",))
    told.text = ""
    with pytest.raises(environments.StepError, match="must print JSON, got ''"):
        told.doctor("doctor")


def test_a_fault_is_reported_and_nothing_is_to_be_released(capsys: pytest.CaptureFixture[str]) -> None:
    tried = environments.row(environments.Tried("3.11.1", "constraints", {"install": 2.0}, 1, 2, "2.13", "2.4"))
    files = [{"file": name, "bytes": 1, "sha256": "ff"} for name in ("a.tar.gz", "a.whl", "a.cdx.json")]
    manifest = {"version": "0.2.0", "commit": "c0", "checks": {}, "untested": ["Python 3.14: none"], "artifacts": files}
    assert make_release.report({**manifest, "environments": [tried]}) == 0
    text = capsys.readouterr().out
    assert "untested: Python 3.14: none" in text and "twine upload dist/a.tar.gz dist/a.whl\n" in text
    assert make_release.report({**manifest, "environments": [tried, {**tried, "fault": "README ended with 1"}]}) == 1
    text = capsys.readouterr().out
    assert "README ended with 1" in text and "not to be released" in text and "twine" not in text
