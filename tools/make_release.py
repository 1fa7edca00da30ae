"""Makes the artifacts of a release and tries them out; uploads nothing and tags nothing, but says what is to be done.

    python tools/make_release.py                        the release of the version that the tree has, into dist/
    python tools/make_release.py --python PATH …        interpreters that are not on the path
    python tools/make_release.py --jobs 4               environments at a time
    python tools/make_release.py --without-environments artifacts and checks alone: a minute
    python tools/make_release.py --cut 0.3.0            first: what is unreleased becomes the section of 0.3.0

dist/ then holds the sdist and the wheel, an SBOM of what an installation with all extras brings, SHA256SUMS, and
manifest.json: artifacts, checks, Pythons, results.
The exit status is 1 where something failed; the manifest says what.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from releasing import artifacts, environments, project

DIST = project.ROOT / "dist"
TO_DO = """\
To be done by hand, in this order:
  1. see that the addresses in [project.urls] and [project] authors of pyproject.toml are the project's own
  2. git tag -s v{version} {commit} -m "openmps {version}" && git push origin v{version}
  3. twine upload {files}
  4. a release of the tag with {others} beside the artifacts; Zenodo archives it by .zenodo.json
  5. conda-forge: packaging/conda/recipe.yaml, its source the sdist with sha256 {sha256}"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cut", metavar="VERSION", help="begin the section of a version in the changelog, and stop")
    parser.add_argument("--python", metavar="PATH", type=Path, action="append", default=[], help="an interpreter")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="environments at a time, 5 GB of disk each")
    parser.add_argument("--without-environments", action="store_true", help="build and check alone")
    given = parser.parse_args(arguments)
    try:
        if given.cut is not None:
            project.cut(given.cut, datetime.datetime.now(datetime.UTC).date())
            print(f"{given.cut}: read the changes, commit them, then make release")
            return 0
        manifest = release(None if given.without_environments else given.python, given.jobs)
    except project.ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return report(manifest)


def release(pythons: list[Path] | None, jobs: int) -> dict[str, Any]:
    """Make dist/ and return the manifest; without a list of more Pythons no environment is made."""
    began = time.monotonic()
    version = project.version()
    day = project.released(version)
    commit, epoch = artifacts.head(), project.epoch(day)
    with tempfile.TemporaryDirectory(prefix="openmps-release-") as folder:
        say("building twice")
        made = artifacts.build(commit, epoch, Path(folder))
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        files = [Path(shutil.copy(path, DIST)) for path in made]
        say("checking")
        found: dict[str, Any] = {
            **{"name": "openmps", "version": version, "date": str(day), "source_date_epoch": epoch, "commit": commit},
            **{"built_with": artifacts.builders(), "checks": artifacts.checks(files)},
            **{"environments": [], "untested": []},
        }
        if pythons is None:
            found["untested"].append("every Python: no environment was made")
        else:
            wheel = next(path for path in files if path.suffix == ".whl")
            with ThreadPoolExecutor(jobs) as pool:
                each = functools.partial(tried, wheel=wheel, folder=Path(folder), epoch=epoch)
                found["environments"] = [*pool.map(each, attempts(found, pythons, Path(folder)))]
    others = sorted(path for path in DIST.iterdir() if path not in files)
    found["artifacts"] = artifacts.hashes([*files, *others])
    sums = "".join(f"{each['sha256']}  {each['file']}\n" for each in found["artifacts"])
    (DIST / "SHA256SUMS").write_text(sums, encoding="utf-8")
    found["seconds"] = round(time.monotonic() - began)
    (DIST / "manifest.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


@dataclass(frozen=True)
class Attempt:
    """An environment to be made: by which interpreter, with which versions of packages."""

    python: Path
    constraints: Path
    is_first: bool


def attempts(found: dict[str, Any], given: list[Path], folder: Path) -> list[Attempt]:
    """Every Python named, and the first once more with the oldest packages; what is not here is noted as untested."""
    pinned, old = project.ROOT / "constraints.txt", folder / "oldest.txt"
    old.write_text(environments.oldest(), encoding="utf-8")
    here: list[Attempt] = []
    for name in project.pythons():
        python = environments.find(name, given)
        if python is None:
            found["untested"].append(f"Python {name}: no interpreter on this machine")
            continue
        if not here:
            here.append(Attempt(python, old, is_first=False))
        here.append(Attempt(python, pinned, is_first=len(here) == 1))
    return here


def tried(attempt: Attempt, wheel: Path, folder: Path, epoch: int) -> dict[str, Any]:
    """The manifest's line of an environment; the first one tries each extra alone, and its packages are the SBOM."""
    name = f"{environments.version_of(attempt.python)}, {attempt.constraints.stem}"
    say(f"Python {name}")
    place = folder / name.replace(", ", "-")
    environment = environments.make(attempt.python, place, wheel, attempt.constraints, attempt.constraints.stem)
    result = environments.try_out(environment, each_extra=attempt.is_first)
    if attempt.is_first and not result.fault:
        artifacts.bill_of_materials(environment.python, DIST / f"openmps-{project.version()}.cdx.json", epoch)
    shutil.rmtree(place)  # gigabytes
    say(f"Python {name}: {'failed' if result.fault else 'well'}")
    return environments.row(result)


def report(manifest: dict[str, Any]) -> int:
    """Print what was found and what is to be done; the exit status."""
    for name, said in manifest["checks"].items():
        print(f"{name}: {said}")
    for each in manifest["environments"]:
        size = f"{each['bytes_without_extras'] / 1e6:,.0f} MB, with extras {each['bytes_with_extras'] / 1e6:,.0f} MB"
        seconds = sum(each["seconds"].values())
        about = f"torch {each['torch']}, numpy {each['numpy']}: {size}, {seconds:,.0f} s"
        print(f"Python {each['python']}, {each['versions']}, {about}: {each['fault'] or 'well'}")
    for text in manifest["untested"]:
        print(f"untested: {text}")
    for each in manifest["artifacts"]:
        print(f"{each['sha256']}  {each['file']}, {each['bytes']:,} bytes")
    if any(each["fault"] for each in manifest["environments"]):
        print("not to be released")
        return 1
    packages = [each for each in manifest["artifacts"] if each["file"].endswith((".whl", ".tar.gz"))]
    sdist = next(each for each in packages if each["file"].endswith(".tar.gz"))
    files = " ".join(f"dist/{each['file']}" for each in packages)
    others = "manifest.json, SHA256SUMS and the SBOM"
    values = {"version": manifest["version"], "commit": manifest["commit"], "sha256": sdist["sha256"]}
    print(TO_DO.format(**values, files=files, others=others))
    return 0


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
