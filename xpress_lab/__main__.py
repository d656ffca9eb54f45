"""`python -m xpress_lab`, for launchers that start a module."""

from xpress_lab.cli import app

if __name__ == "__main__":  # arms train in processes that import this module anew
    app()
