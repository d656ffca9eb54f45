"""The command line. Every command parses, calls the package, prints; no logic here."""

from xpress_lab.cli import bench, generate, results, sweep, weights  # noqa: F401  all
from xpress_lab.cli.shared import app

__all__ = ["app"]
