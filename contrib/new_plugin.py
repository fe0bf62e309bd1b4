"""Plugin from the template: python contrib/new_plugin.py NAME [FOLDER].

NAME is what configurations will call it (snake_case); FOLDER is made, flamestream-NAME by default.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TEMPLATE = Path(__file__).parent / "template"
CHECKOUT = Path(__file__).resolve().parents[1]


def main(arguments: list[str]) -> int:
    """Copy the template with its name replaced. 2 if that cannot be done."""
    if not 1 <= len(arguments) <= 2 or not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", arguments[0]):
        print(__doc__, file=sys.stderr)
        return 2
    name = arguments[0]
    folder = Path(arguments[1] if len(arguments) == 2 else f"flamestream-{name.replace('_', '-')}")
    if folder.exists() and any(folder.iterdir()):
        print(f"{folder} is there already, and not empty; give another folder", file=sys.stderr)
        return 2
    shown = str(folder) if folder.is_absolute() else f"./{folder.as_posix()}"  # without ./ pip looks for a package
    camel = "".join(map(str.capitalize, name.split("_")))
    for file in sorted(path for path in TEMPLATE.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        text = file.read_text("utf-8").replace("./contrib/template", shown)
        text = text.replace("flamestream-template", f"flamestream-{name.replace('_', '-')}")
        target = folder / str(file.relative_to(TEMPLATE)).replace("template", name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text.replace("Template", camel).replace("template", name), "utf-8")
    print(f"made {folder}: now  pip install {CHECKOUT} {shown} pytest && pytest {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
