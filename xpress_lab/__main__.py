"""`python -m xpress_lab`, for launchers that start a module."""

from xpress_lab.cli import app

app()
