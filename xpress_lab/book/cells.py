"""Cells of an executed notebook to HTML; pictures become files of their own."""

import base64
import re
import struct
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from nbformat import NotebookNode

from xpress_lab.book.prose import highlighted, plain, scrolling, to_html
from xpress_lab.errors import LabError

WIDGET = "application/vnd.jupyter.widget-view+json"
CAPTION = re.compile(r"\s*\*(?!\*)(.+?)(?<!\*)\*(?!\*)\s*(\n\n|\n|$)", re.DOTALL)
WIDE = 900  # pixels: such a picture scrolls in its own box on a small screen
LIVE = "This is an interactive view: run the notebook to move it."


@dataclass
class Cells:
    """Renders the cells of one notebook in order.

    name: of the notebook, in picture names and messages. pictures: where they go,
    a folder ``img`` inside of which pages refer to. saved: what was written.
    """

    name: str
    pictures: Path
    saved: list[Path] = field(default_factory=list)

    def render(self, cells: list[NotebookNode]) -> str:
        parts = []
        for place, cell in enumerate(cells):
            if cell.cell_type == "markdown":
                parts.append(to_html(cell.source))
            elif cell.cell_type == "code":
                parts.append(self._code(cell, caption_after(cells, place)))
        return "\n".join(parts)

    def _code(self, cell: NotebookNode, caption: str) -> str:
        if cell.source.strip() and cell.execution_count is None:
            raise LabError(
                f"{self.name} has a cell that was not run ({cell.source[:30]!r}): "
                "run `make notebooks` first."
            )
        shown = [highlighted(cell.source, "python")]
        shown += [self._output(output, caption) for output in cell.outputs]
        return "\n".join(shown)

    def _output(self, output: NotebookNode, caption: str) -> str:
        if output.output_type == "error":
            raise LabError(
                f"{self.name} ends in {output.ename}: mend it, then run "
                "`make notebooks`."
            )
        if output.output_type == "stream":
            return f'<pre class="out" tabindex="0">{escape(output.text)}</pre>'
        data = output.data
        if WIDGET in data:
            note = f'<figcaption class="live">{LIVE}</figcaption>'
            return self._figure(data, data["text/plain"], note)
        if "image/png" in data:
            return self._figure(data, caption or "A figure of the cell above.")
        if "text/html" in data:
            bare = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
            return scrolling(bare)
        return f'<pre class="out" tabindex="0">{escape(data["text/plain"])}</pre>'

    def _figure(self, data: dict, alt: str, note: str = "") -> str:
        picture = base64.b64decode(data["image/png"])
        path = self.pictures / f"{self.name}-{len(self.saved) + 1:02}.png"
        path.write_bytes(picture)
        self.saved.append(path)
        src = f"{self.pictures.name}/{path.name}"
        return figure(src, png_size(picture), alt, note)


def figure(src: str, size: tuple[int, int], alt: str, note: str = "") -> str:
    """A picture with its alternative text and size, so that nothing jumps."""
    wide, high = size
    kind = ' class="wide"' if wide > WIDE else ""
    return (
        f'<figure{kind}><div class="paper" tabindex="0"><img src="{escape(src)}" '
        f'width="{wide}" height="{high}" loading="lazy" alt="{escape(alt)}"></div>'
        f"{note}</figure>"
    )


def caption_after(cells: list[NotebookNode], place: int) -> str:
    """The sentence in italics that follows a cell, without its marks; or nothing."""
    for cell in cells[place + 1 :]:
        if cell.cell_type == "markdown":
            found = CAPTION.match(cell.source)
            return plain(found[1]) if found else ""
    return ""


def png_size(picture: bytes) -> tuple[int, int]:
    """Width and height in pixels, from the header of a PNG."""
    if picture[:8] != b"\x89PNG\r\n\x1a\n":
        raise LabError("A picture in a notebook is not a PNG: run `make notebooks`.")
    return struct.unpack(">II", picture[16:24])
