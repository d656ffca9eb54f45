"""xpress-lab: parallel draft refinement for speculative decoding, hands on."""

from xpress_lab.errors import LabError
from xpress_lab.lab import Lab, load_lab

__version__ = "0.1.0"
__all__ = ["Lab", "LabError", "load_lab"]
