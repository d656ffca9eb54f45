"""Processes that train together, as `accelerate launch` starts them; one otherwise."""

from accelerate import PartialState
from accelerate.utils import reduce
from torch import nn

from xpress_lab.devices import pick_device


class Workers:
    """This process among its peers: device, rank, and what they do together."""

    def __init__(self):
        self._state = PartialState(cpu=pick_device().type == "cpu")
        self.device = self._state.device
        self.rank, self.count = self._state.process_index, self._state.num_processes

    @property
    def is_main(self) -> bool:
        return self._state.is_main_process

    def wait(self) -> None:
        """Until every process has come here."""
        self._state.wait_for_everyone()

    def main_first(self):
        """Context in which the main process goes first, and the others then find
        its files."""
        return self._state.main_process_first()

    def average_gradients(self, module: nn.Module) -> None:
        """Mean over processes, in place."""
        if self.count == 1:
            return
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad = reduce(parameter.grad, reduction="mean")
