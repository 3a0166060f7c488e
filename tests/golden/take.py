"""Retake the golden file: ``python -m tests.golden.take [PATTERN ...]``, all cases or those whose names match a shell pattern.

Prints the cases whose record is new, changed (by any bit) or gone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

from tests.golden.cases import CASES, RECORDS, Places, answer, expected


def take(patterns: list[str]) -> None:
    """Record the cases that match, and keep the records of the others."""
    before = expected()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FASTOMP_HOME"] = f"{folder}/home"
        with Places(Path(folder)) as places:
            taken = {
                name: answer(case, places) for name, case in CASES.items() if any(fnmatchcase(name, each) for each in patterns)
            }
    after = {name: taken.get(name, before.get(name)) for name in CASES}
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            print("gone" if name not in after else "changed" if name in before else "new", name)
    lines = [f"{json.dumps(name)}: {json.dumps(record)}" for name, record in after.items() if record is not None]
    RECORDS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    take(sys.argv[1:] or ["*"])
