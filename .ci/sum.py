"""The sum over runs of tox.

Usage: sum.py FOLDER_OF_JUNIT_REPORTS EXIT_CODE_OF_TOX JOURNAL_OF_TOX...

Prints "N passed, N failed, N skipped" as the last line; above it why tests were skipped, and the same of each report.
An error counts as failed, an expected failure as skipped. A report that is missing or cut short counts as failed, and
so does an environment none of whose commands has run: tox calls it a success to skip one.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree


def main(folder: str, code: str, *journals: str) -> int:
    """Print the sum; 0 only if tox was content, all environments ran, tests were run, and none failed."""
    problems = [line for journal in journals for line in lost(Path(journal), Path(folder))]
    if not journals:
        problems.append("tox has left no journal")
    reasons: Counter[str | None] = Counter()
    total = dict.fromkeys(("tests", "failed", "skipped"), 0)
    for report in sorted(Path(folder).glob("*.xml")):
        try:
            suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
        except ElementTree.ParseError as error:
            problems.append(f"{report.name}: cut short ({error})")
            continue
        counts = {
            key: sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
        }
        failed = counts["failures"] + counts["errors"]
        passed = counts["tests"] - failed - counts["skipped"]
        print(f"{report.stem}: {passed} passed, {failed} failed, {counts['skipped']} skipped")
        reasons.update(skip.get("message") for suite in suites for skip in suite.iter("skipped"))
        total["tests"] += counts["tests"]
        total["failed"] += failed
        total["skipped"] += counts["skipped"]
    passed = total["tests"] - total["failed"] - total["skipped"]
    if passed + total["failed"] == 0:
        print("no test was run")
    for why, count in reasons.most_common():
        print(f"skipped {count}: {why}")
    for problem in problems:
        print(problem)
    if int(code):
        print(f"tox ended with code {code}: see above for what is not a test")
    print(f"{passed} passed, {total['failed'] + len(problems)} failed, {total['skipped']} skipped")
    return int(code) or int(passed == 0 or total["failed"] + len(problems) > 0)


def lost(journal: Path, folder: Path) -> list[str]:
    """Return a line for each environment that was to run and left nothing: no run, or no report of its tests."""
    try:
        ran: dict[str, Any] = json.loads(journal.read_text("utf-8"))["testenvs"]
    except (OSError, ValueError, KeyError) as error:
        return [f"{journal.name}: what tox says of its environments cannot be read ({error!r})"]
    lines = []
    for name, env in sorted(ran.items()):
        if "result" not in env:  # not among those that were chosen
            continue
        if not env.get("test"):
            lines.append(f"{name}: none of its commands has run; see what tox says of its interpreter or its setup")
        elif reports(env) and not (folder / f"{name}.xml").is_file():
            lines.append(f"{name}: its tests have left no report")
    return lines


def reports(env: dict[str, Any]) -> bool:
    """Return whether an environment is to leave a report: .ci/report.py is the first of its commands."""
    return any("report.py" in str(command["command"]) for command in env.get("test", ()))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
