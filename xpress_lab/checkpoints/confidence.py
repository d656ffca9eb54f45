"""A confidence head that was trained after its arm, in a folder of its own beside it.

The arm's files stay as they are: engines read them without knowing of the head, which
the published layouts would hold inside and only beside a Markov head. A head that was
trained along with its arm lies inside (:mod:`.serving`).
"""

from pathlib import Path

from xpress_lab.checkpoints.arm import MARKOV_TYPES, Arm
from xpress_lab.errors import LabError
from xpress_lab.refiners.confidence import ConfidenceHead
from xpress_lab.target import Target

CONFIDENCE = "confidence"  # the folder's name, inside the arm's


def new_confidence(arm: Arm) -> ConfidenceHead:
    """An untrained head; it reads token vectors where a Markov head has them."""
    rank = arm.head.rank if arm.kind in MARKOV_TYPES else 0
    return ConfidenceHead(arm.drafter.config.hidden_size, rank)


def load_confidence(folder: Path, arm: Arm, target: Target) -> ConfidenceHead:
    """Read a head and check its sizes against the arm's; in the target's dtype."""
    head = ConfidenceHead.from_pretrained(folder, target.dtype)
    expected = new_confidence(arm).settings()
    if head.settings() != expected:
        raise LabError(
            f"{folder}: this confidence head is made for {head.settings()}, "
            f"the {arm.kind} arm needs {expected}."
        )
    return head.to(target.device).requires_grad_(False)
