"""CSV files of results: rows are appended as they come, and a second run goes on.

Files are only ever written by whoever measures; reading one leaves it as it is.
"""

import csv
from pathlib import Path

from xpress_lab.errors import LabError, first_line
from xpress_lab.files import write_text

# What all rows of a file have in common, since no key tells it.
SAME = ("tier", "target", "device", "dtype")


def append_rows(path: Path, rows: list[dict], columns: tuple[str, ...]) -> None:
    """Append whole lines in one write; a header comes first in a new or empty file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.is_file() or not path.stat().st_size
        with path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise LabError(f"Cannot write {path}: {error.strerror or error}.") from error


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows as text. What stands behind the last line's end is left out: a crash cut
    it short, or a run is just writing it."""
    return list(csv.DictReader(whole_lines(read_text(path)).splitlines()))


def rows_to_resume(path: Path | None, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Rows that a run goes on from, none without a file; a cut line is taken off."""
    if not path or not path.is_file():
        return []
    text = read_text(path)
    first = text.partition("\n")[0]
    odd = set(columns) ^ set(first.split(","))
    if not ",".join(columns).startswith(first) or ("\n" in text and odd):
        if len(odd) > len(columns):  # none in common
            raise LabError(
                f"{path} holds something else than results: choose another file."
            )
        named = ", ".join(sorted(odd)) or "their order"
        raise LabError(
            f"{path} has other columns than this version writes ({named}): "
            "choose another file."
        )
    if whole_lines(text) != text:
        write_text(path, whole_lines(text))
    return read_rows(path)


def check_same(
    rows: list[dict], made: dict, path: Path | None, names: tuple[str, ...] = SAME
) -> None:
    """Raise where a file's rows were made on something else than a run would add."""
    for name in names:
        others = {row[name] for row in rows} - {str(made[name])}
        if others:
            raise LabError(
                f"{path} holds rows of {name} {others.pop()}, this run is of "
                f"{name} {made[name]}: choose another file."
            )


def check_prompts(
    rows: list[dict], hashes: dict[str, list[str]], path: Path | None
) -> None:
    """Raise where a file's rows are of other prompts than those of the same number.

    Args:
        hashes: by benchmark, of its prompts in order.
    """
    for row in rows:
        name, number = row["benchmark"], int(row["prompt_id"])
        known = hashes.get(name, [])[number : number + 1]
        if known and row["prompt_hash"] != known[0]:
            raise LabError(
                f"{path} has rows of another prompt {number} of {name} than this run: "
                "choose another file."
            )


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(
            f"{path} is no table of results: {first_line(error)}."
        ) from error


def whole_lines(text: str) -> str:
    """Up to the end of the last whole line."""
    return text[: text.rfind("\n") + 1]
