"""Sum up JUnit reports:  sum.py FOLDER EXIT_CODE_OF_TOX

Prints "N passed, N failed, N skipped" as the last line. An error counts as failed, an expected failure as skipped.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def main(folder: str, code: str) -> int:
    """Print the sum; 0 only if tox was content, tests were run, and none failed."""
    total = dict.fromkeys(("tests", "failed", "skipped"), 0)
    broken = 0
    for report in sorted(Path(folder).glob("*.xml")):
        try:
            suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
        except ElementTree.ParseError as error:
            print(f"{report.name}: cut short ({error})")
            broken += 1
            continue
        counts = {
            key: sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
        }
        failed = counts["failures"] + counts["errors"]
        passed = counts["tests"] - failed - counts["skipped"]
        print(f"{report.stem}: {passed} passed, {failed} failed, {counts['skipped']} skipped")
        total["tests"] += counts["tests"]
        total["failed"] += failed
        total["skipped"] += counts["skipped"]
    passed = total["tests"] - total["failed"] - total["skipped"]
    if passed + total["failed"] == 0:
        print("no test was run")
    if int(code):
        print(f"tox ended with code {code}: see above for what is not a test")
    print(f"{passed} passed, {total['failed'] + broken} failed, {total['skipped']} skipped")
    return int(code) or int(passed == 0 or total["failed"] + broken > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
