"""Cells of an executed notebook to HTML, by nbconvert; pictures become files."""

import re
import struct
from binascii import a2b_base64
from html import escape
from pathlib import Path

from nbconvert.exporters import TemplateExporter
from nbconvert.preprocessors import ExtractOutputPreprocessor, Preprocessor
from nbformat import NotebookNode
from traitlets.config import Config

from xpress_lab.book.prose import highlighted, plain, scrolling, to_html
from xpress_lab.errors import LabError

TEMPLATES = Path(__file__).parents[1] / "templates"
PNG, WIDGET = "image/png", "application/vnd.jupyter.widget-view+json"
PRIORITY = [WIDGET, PNG, "text/html", "text/plain"]  # the first that an output has
CAPTION = re.compile(r"\s*\*(?!\*)(.+?)(?<!\*)\*(?!\*)\s*(\n\n|\n|$)", re.DOTALL)
WIDE = 900  # pixels: such a picture scrolls in its own box on a small screen
LIVE = "This is an interactive view: run the notebook to move it."


class Described(Preprocessor):
    """Refuses what was not run, and has each code cell say what its picture shows."""

    def preprocess(self, nb: NotebookNode, resources: dict):
        for place, cell in enumerate(nb.cells):
            if cell.cell_type == "code":
                _check_run(cell, resources["unique_key"])
                caption = caption_after(nb.cells, place)
                cell.metadata["alt"] = caption or "A figure of the cell above."
        return nb, resources


class PageExporter(TemplateExporter):
    """nbconvert's exporter with this project's template and filters."""

    file_extension = ".html"

    def __init__(self):
        settings = Config()
        settings.NbConvertBase.display_data_priority = PRIORITY
        super().__init__(
            config=settings,
            extra_template_basedirs=[str(TEMPLATES)],
            template_name="cells",
            preprocessors=[Described, ExtractOutputPreprocessor],
            filters={
                "prose": to_html,
                "code": lambda source: highlighted(source, "python"),
                "said": lambda text: (
                    f'<pre class="out" tabindex="0">{escape(text)}</pre>'
                ),
                "table": _without_style,
                "picture": _picture,
                "live": _live,
            },
        )


def cells_to_html(notebook: NotebookNode, name: str, pictures: Path) -> str:
    """All cells in order.

    Args:
        name: of the notebook, in picture names and messages.
        pictures: an existing folder ``img``, inside of which pages refer to.
    """
    where = {"unique_key": name, "output_files_dir": pictures.name}
    body, resources = PageExporter().from_notebook_node(notebook, where)
    for path, picture in resources["outputs"].items():
        (pictures.parent / path).write_bytes(picture)
    return body


def _check_run(cell: NotebookNode, name: str) -> None:
    if cell.source.strip() and cell.execution_count is None:
        raise LabError(
            f"{name} has a cell that was not run ({cell.source[:30]!r}): "
            "run `make notebooks` first."
        )
    for output in cell.outputs:
        if output.output_type == "error":
            raise LabError(
                f"{name} ends in {output.ename}: mend it, then run `make notebooks`."
            )


def _without_style(html: str) -> str:
    """A table of pandas' without the style that it brings."""
    return scrolling(re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL))


def _picture(output: NotebookNode, alt: str, note: str = "") -> str:
    size = png_size(a2b_base64(output.data[PNG]))
    return figure(output.metadata.filenames[PNG], size, alt, note)


def _live(output: NotebookNode) -> str:
    """A widget: its picture and sentence, for nothing moves without a kernel."""
    note = f'<figcaption class="live">{LIVE}</figcaption>'
    return _picture(output, output.data["text/plain"], note)


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
