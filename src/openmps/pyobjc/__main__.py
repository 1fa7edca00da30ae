"""``python -m openmps.pyobjc script.py arguments`` runs a script that was written for PyObjC."""

from __future__ import annotations

import os
import runpy
import sys

from openmps.pyobjc.finder import install

_USAGE = "usage: python -m openmps.pyobjc script.py [arguments …]"


def run() -> int:
    """Run the script that the process's arguments name, as ``__main__``; 2 without one that can be read."""
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(f"{_USAGE}\n\n{__doc__}")
        return 0 if len(sys.argv) > 1 else 2
    script = sys.argv[1]
    if not os.path.isfile(script):
        print(f"openmps.pyobjc: {script} is no file", file=sys.stderr)
        return 2
    if not install():
        said = "a module objc is installed or lies in this folder, and the script would use that: run it with python"
        print(f"openmps.pyobjc: {said}", file=sys.stderr)
        return 2
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(run())
