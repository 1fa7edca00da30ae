"""The project keeps its own rules: those that a glance at the files can check."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import tomllib
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement

import openmps
from openmps.cpu import CpuChoice

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
ORACLES = sorted((ROOT / "tests" / "oracles").rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = {"openmps.training", "openmps.formats"}
"""Packages that programs of users may import from, besides the framework's names."""
AUTOGRAD = re.compile(r"autograd|\.backward\(|requires_grad")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _pins() -> dict[str, str]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


def test_there_are_files_to_check() -> None:
    assert SOURCES
    assert ORACLES
    assert EXAMPLES


def test_every_module_says_what_it_is() -> None:
    silent = [_name(path) for path in SOURCES if not re.match(r'r?"""[^"]', path.read_text())]
    assert not silent, "these modules have no docstring"


OTHER_WORDS = {
    r"_?[Ll]anes?": "executor",
    r"_?under_way|UnderWay": "in_flight",
    r"sees?_off": "retire",
    r"Body|FusedBody|step_body|record_body": "Function",
    r"TapeStep|with_steps|record_step|prepared_step|step_body": "Equation",
    r"(input|output|new)_slots?": "Value",
    r"(Gradient)?Scene": "LoweringContext",
    r"Encoding(?=[\(\]:])": "Dispatch",
    r"Sight|Looker|Mark|Glancer?|glance": "Signature, Identity",
    r"Segment": "Partition",
    r"Bound|(_|anew_)?[Ss]inks?|OverCells|_?Cell": "Binding, Memory, output_bindings",
    r"(_|is_)?settle[ds]?(_\w+)?": "interned, wait_until_written",
    r"likeness|is_own_cell|over_nothing|pay_back|_?lender": "shape_key, without_memory, resolve",
    r"Tape(Step)?": "StaticFunction",
    r"_?[Ll]oans?": "DeferredOutputs",
    r"[Rr]ehears(e|ed|als?)": "Warmup",
    r"Preparations?|_preparations?|Followers": "Derived",
    r"[Ll]eases?|lends?|lent|lend_\w+|WorkingSet|working_set": "what a step allocates",
    r"epoch\.(number|end)|class Epoch|changes\.(number|note)": "Version, one for each owner",
    r"getrefcount": "TrainingStep",
}
"""What the field has other words for. In `ops/triton` lanes are those of a GPU's warps."""


def test_words_are_those_of_the_field() -> None:
    words = [*OTHER_WORDS.values()]
    others = re.compile(rf"\b(?:{'|'.join(f'(?P<word{at}>{other})' for at, other in enumerate(OTHER_WORDS))})\b")
    paths = [path for path in SOURCES if "triton" not in path.parts]
    found = [(path, each) for path in paths for each in others.finditer(path.read_text())]
    said = [(path, each[0], words[int((each.lastgroup or "").removeprefix("word"))]) for path, each in found]
    assert [f"{_name(path)}: say {word}, not {other}" for path, other, word in said] == []


def test_warnings_are_given_by_what_finds_the_users_line() -> None:
    assert [path.name for path in SOURCES if "warnings.warn" in path.read_text()] == ["errors.py"]


READS_OF_A_MODULE = {
    "modules.py": "            if name in read and own[target].requires_grad",
    "torch_modules.py": "        if not all(own.requires_grad for own in layer.parameters()):",
}
"""The places that read which parameters a user's module has frozen."""


def test_gradients_are_kernels() -> None:
    lines = [(path, number, line) for path in SOURCES for number, line in enumerate(path.read_text().splitlines(), 1)]
    lines = [each for each in lines if each[2] != READS_OF_A_MODULE.get(each[0].name)]
    assert [f"{_name(path)}:{number}: {line.strip()}" for path, number, line in lines if AUTOGRAD.search(line)] == []


MACHINE = re.compile(r"cpuinfo|get_cpu_capability|GenuineIntel|cpu_count|platform\.processor|perf_counter|process_time")


def test_forms_are_chosen_by_what_one_file_says_of_the_cpu() -> None:
    """No operation asks the machine anything else, and none is chosen by a time."""
    operations = [path for path in SOURCES if "ops" in path.parts]
    asks = [_name(path) for path in operations if MACHINE.search(path.read_text())]
    # How many threads compile kernels of a GPU.
    assert asks == ["src/openmps/ops/triton/ahead.py"]
    used = {name for path in operations for name in re.findall(r"CpuChoice\.(\w+)\.", path.read_text())}
    assert used == {choice.name for choice in CpuChoice}


# --- the framework's names --------------------------------------------------------------------------------------------

HEADER = re.compile(r"\b(MPS|MTL|NS)\w+\.h\b.* (macOS|iOS) [\d.]+", re.DOTALL)
OURS = {
    "MPSKeyedArchiver": "archives are openmps's own",
    "MTLBlitCommandEncoder": "Metal's: there since before its kernels",
    "MTLCommandQueue": "Metal's: there since before its kernels",
    "MTLHeap": "Metal's: there since before its kernels",
    "NSRange": "Foundation's",
}
"""Public classes without a header of the kernels, and why."""


def _classes() -> list[type]:
    """Every class with a name of the framework's, wherever it is written."""
    found: dict[str, type] = {}
    for module in pkgutil.walk_packages(openmps.__path__, "openmps."):
        if not module.name.endswith("__main__"):
            values = vars(importlib.import_module(module.name)).values()
            found |= {each.__name__: each for each in values if inspect.isclass(each) and _is_of(each, module.name)}
    return [*found.values()]


def _is_of(kind: type, module: str) -> bool:
    return kind.__module__ == module and kind.__name__.startswith(("MPS", "MTL", "NS"))


def test_every_class_of_the_framework_is_exported() -> None:
    missing = [f"{kind.__module__}.{kind.__name__}" for kind in _classes() if kind.__name__ not in openmps.__all__]
    assert missing == [], "add it to openmps/names.py, or name it otherwise"


def test_every_class_names_its_header_and_release() -> None:
    """In its own docstring, not in that of a base: a kernel is documented by itself."""
    kinds = [kind for kind in _classes() if not issubclass(kind, BaseException) and kind.__name__ not in OURS]
    missing = [kind.__name__ for kind in kinds if not HEADER.search(vars(kind).get("__doc__") or "")]
    assert missing == [], "begin the docstring with the formula and (MPSName.h, macOS 10.13)"
    assert [name for name in OURS if not hasattr(openmps, name)] == []


def test_environment_variables_are_documented() -> None:
    readers = [path.read_text() for path in SOURCES if "os.environ" in path.read_text()]
    names = {name for text in readers for name in re.findall(r'"([A-Z][A-Z_]{5,})"', text)}
    text = (ROOT / "docs" / "training.md").read_text()
    assert {"OPENMPS_KEEP_MEMORY", "MPLCONFIGDIR"} <= names
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_oracles_know_nothing_of_the_project() -> None:
    found = []
    for path in ORACLES:
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [
                f"{_name(path)}:{node.lineno}" for module in modules if module.split(".")[0] in ("openmps", "torch")
            ]
    assert found == []


@pytest.mark.parametrize("path", EXAMPLES, ids=_name)
def test_examples_are_programs_of_users(path: Path) -> None:
    """They import openmps and its documented packages, name nothing private, and have tests and a place on a page."""
    tree = ast.parse(path.read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    plain = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert [alias.asname for alias in plain if alias.name.startswith("openmps")] == ["mps"]
    assert {node.module for node in imported if (node.module or "").startswith("openmps")} <= PACKAGES
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    assert [node.attr for node in named if node.value.id == "mps" and not hasattr(openmps, node.attr)] == []
    own = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("_")]
    own = [node for node in own if node.attr != "__cause__"]  # Python's own name
    assert [node.attr for node in own if not (isinstance(node.value, ast.Name) and node.value.id == "self")] == []
    own_tests = ROOT / "tests" / "examples" / f"test_{path.name}"
    assert own_tests.is_file() or f"import {path.stem}\n" in (ROOT / "tests/examples/test_programs.py").read_text()
    assert f"../examples/{path.name}" in (ROOT / "docs" / "examples.md").read_text()


def _circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """The largest sets of modules of which each reaches all the others by imports."""
    below = {module: graph.find_upstream_modules(module) for module in graph.modules}
    found = {frozenset({module} | {other for other in below[module] if module in below[other]}) for module in below}
    return sorted(sorted(circle) for circle in found if len(circle) > 1)


def _imports(graph: grimp.ImportGraph, circle: list[str]) -> list[str]:
    """The lines by which the modules of a circle import one another."""
    pairs = [
        (module, other)
        for module in circle
        for other in circle
        if graph.direct_import_exists(importer=module, imported=other)
    ]
    return [
        f"  {module}:{each['line_number']}: {each['line_contents']}"
        for module, other in pairs
        for each in graph.get_import_details(importer=module, imported=other)
    ]


def test_imports_have_no_circles_but_the_known_ones() -> None:
    # Imports for annotations and within functions count: they hide a circle, and it is one all the same.
    graph = grimp.build_graph("openmps", exclude_type_checking_imports=False, cache_dir=None)
    found = {" ".join(name.removeprefix("openmps.") for name in circle): circle for circle in _circles(graph)}
    lines = [line for name in found for line in (name, *_imports(graph, found[name]))]
    assert lines == [], "\n".join(["a circle of imports:", *lines])


def test_the_tested_versions_satisfy_the_lower_bounds() -> None:
    extras = PROJECT["optional-dependencies"]
    texts = [text for extra in ("demo", "onnx", "docs", "release", "dev") for text in extras[extra]]
    named = [Requirement(text) for text in PROJECT["dependencies"] + texts]
    needed = [requirement for requirement in named if requirement.name != "openmps"]
    pins = _pins()
    assert [requirement.name for requirement in needed if requirement.name not in pins] == []
    assert [requirement.name for requirement in needed if not requirement.specifier] == []
    assert [str(requirement) for requirement in needed if pins[requirement.name] not in requirement.specifier] == []
