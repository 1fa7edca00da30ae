"""Training over several GPUs and machines, by `torch.distributed`."""

from openmps.distributed.group import Group as Group
from openmps.distributed.launch import is_launched as is_launched
from openmps.graph.compile.sharing import Sharing as Sharing

__all__ = ["Group", "Sharing", "is_launched"]
