"""``openmps``, and ``python -m openmps``, are the command line."""

import sys

_INTERRUPTED = 130


def run() -> int:
    """Run the process's own command line and return the exit status: 130 after Ctrl-C, while it is imported, too."""
    try:
        from openmps.cli import main

        return main()
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(run())
