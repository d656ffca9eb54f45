"""The notebooks: how they introduce themselves, and how their outputs are made.

``python -m xpress_lab.notebooks [NAME ...]`` runs notebooks from top to bottom and
writes them back with fresh outputs and without anything that differs from run to
run: no time stamps, no widget state, no patch version of Python. Committed outputs
come from this command.
"""

import argparse
import os
import sys
from pathlib import Path

# What stands in a figure's PNG beside the picture: not matplotlib's version.
SIGNED = {"bbox_inches": "tight", "metadata": {"Software": "xpress-lab"}}
FOLDER = Path(__file__).parents[1] / "notebooks"
TIMEOUT = 300  # seconds a cell
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "pygments_lexer": "ipython3",
    },
}


def introduce(seed: int = 0) -> None:
    """Say what a notebook runs on, fix the seed and set the figures' style.

    One thread: sharing out products this small costs more than it saves, and more
    still when another program keeps a core busy.
    """
    import torch
    from IPython import get_ipython
    from matplotlib_inline.config import InlineBackend
    from transformers.utils import logging

    from xpress_lab.provenance import versions
    from xpress_lab.viz.style import use_style

    logging.disable_progress_bar()  # it would be saved as a bar frozen at 0 %
    use_style()
    if (shell := get_ipython()) is not None:
        InlineBackend.instance(parent=shell).print_figure_kwargs = SIGNED
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    print(versions())
    print(f"device cpu, 1 thread, seed {seed}")
    print("kernel:", "/".join(Path(sys.executable).parts[-3:]))


def execute(path: Path) -> None:
    """Run one notebook in its folder and write it back; raises at the first error."""
    import nbformat
    from nbclient import NotebookClient

    from xpress_lab.files import write_whole

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
    )
    client.execute()
    write_whole(path, lambda partial: nbformat.write(tidy(notebook), str(partial)))


def tidy(notebook):
    """Drop what depends on the run rather than on the content."""
    notebook.metadata = dict(METADATA)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    return notebook


def find(names: list[str]) -> list[Path]:
    """Notebooks by name or by the beginning of one; all of them for no names."""
    present = sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))
    if not names:
        return present
    found = [path for path in present if path.stem.startswith(tuple(names))]
    if not found:
        stems = ", ".join(path.stem for path in present)
        raise SystemExit(
            f"No notebook begins with {', '.join(names)}: there are {stems}"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m xpress_lab.notebooks", description=__doc__.split("\n\n")[1]
    )
    parser.add_argument("names", nargs="*", help="such as 00 or 03_jacobi_convergence")
    names = parser.parse_args().names
    os.environ["TQDM_DISABLE"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.pop("MPLBACKEND", None)  # the kernel draws inline
    for path in find(names):
        print(f"running {path.name}", flush=True)
        execute(path)


if __name__ == "__main__":
    main()
