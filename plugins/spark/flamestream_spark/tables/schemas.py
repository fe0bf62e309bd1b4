"""Columns of an output, compared with those of a flow that goes on with it.

They stand in the manifest of a folder, as they do in the log of a Delta table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

Schema = Literal["keep", "add"]
"""The fate of columns that are new: they are refused, or added."""


class HasColumns(Protocol):
    """Record that an output has of itself.

    Attributes:
        columns: Types of all columns, by name; empty: not known.
        added: Whether some of them came later, so that older files do not have them.
    """

    @property
    def columns(self) -> Mapping[str, str]: ...

    @property
    def added(self) -> bool: ...


def columns_of(schema: Any) -> dict[str, str]:
    """Return names and types of the columns of a `pyarrow.Schema`."""
    return {field.name: str(field.type) for field in schema}


def grown(there: Mapping[str, str], here: Mapping[str, str], schema: Schema) -> dict[str, str]:
    """Return the columns of an output with those that come, of which there may be none but new ones.

    Args:
        there: Types of the output's columns, by name.
        here: Those of what comes.
        schema: The fate of columns that are new.

    Raises:
        OtherColumnsError: They do not fit.
    """
    for name in (*here, *there):
        was, now = there.get(name), here.get(name)
        if was != now and not (was is None and schema == "add"):
            raise OtherColumnsError(
                f"{name!r} is {was or 'not there'}, and {now or 'not in the output'}", added=not was
            )
    if schema == "keep" and list(there) != list(here):
        raise OtherColumnsError(f"{', '.join(there)}, in this order", added=False)
    return {**there, **here}


def continued(held: HasColumns | None, here: Mapping[str, str], schema: Schema) -> tuple[dict[str, str], bool]:
    """Return the columns that an output has from now on, and whether some of them came later.

    Args:
        held: The record of what is there, if it stays; None: the output begins anew.
        here: Types of the columns that come, by name.
        schema: The fate of columns that are new.

    Raises:
        OtherColumnsError: They do not fit.
    """
    if held is None:
        return dict(here), False
    before = held.columns or here
    columns = grown(before, here, schema)
    return columns, held.added or columns != before


class OtherColumnsError(Exception):
    """The columns of an output are not those that come.

    Args:
        difference: The first difference, in words.
        added: Whether it is a column that is new.
    """

    def __init__(self, difference: str, *, added: bool) -> None:
        super().__init__(f"has other columns than the output: {difference}")
        self.hint = (
            'Add it: schema = "add" in the options of the sink; rows that are there have null in it.'
            if added
            else "Write the columns that are there, under their names and types; or to another place."
        )
