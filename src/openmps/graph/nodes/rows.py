"""What the table of nodes says of a node class: its kernel, its state, its gradient, who updates its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from openmps.core.image.image import MPSImage
from openmps.core.image.storage import Extent
from openmps.core.padding.policy import MPSNNPadding
from openmps.graph.nodes.releases import FIRST, FIRST_GRADIENTS
from openmps.graph.nodes.training import Training
from openmps.metal.device import MTLDevice


class Reads(Enum):
    """The forward image that a gradient kernel takes beside the gradient."""

    SOURCE = auto()
    """The source that it differentiates."""
    RESULT = auto()
    """The forward result."""
    OTHER = auto()
    """Of two sources the one that it does not differentiate."""


@dataclass(frozen=True, slots=True)
class Use:
    """What is known of a node's place in a graph when its kernel is made."""

    has_reader: bool
    """Whether somebody reads the result image."""
    is_consumed: bool
    """Whether a filter reads a result state."""
    wants_parameter_gradients: bool
    """Whether somebody looks at gradients of parameters."""
    exports_gradients: bool
    """Whether they come out in a state."""


class Asked(NamedTuple):
    """A property of the kernel that the user is asked for at each encode."""

    callback: str
    """The node's attribute that is the object to ask, or None."""
    kernel_property: str
    ask: Callable[[Any, Any, MPSImage, MPSImage], Any]
    """Asks: of the object, of the node, and of images like the source and the result."""


@dataclass(frozen=True)
class Form:
    """How Swift makes a node of one class: the initializer's arguments, what is set behind it.

    Arguments have the names of ours.
    """

    arguments: tuple[str, ...] = ()
    """Of the initializer, in its order; none for those of our constructor, which has the same."""
    settings: tuple[str, ...] = ()
    """Properties that are set whatever they are."""
    changes: tuple[str, ...] = ()
    """Properties that are set where they differ from the default of our class, which is the framework's."""
    has_window: bool = False
    """Whether the padding policy is written even where it is the default."""


_AS_OURS = Form()


@dataclass(frozen=True, slots=True, eq=False)
class KernelRow:
    """How the kernel of a node class is made, since when the framework has the class, and how Swift makes a node."""

    node: type[Any]
    kernel: Callable[..., Any]
    """The kernel's class, or a function that makes one: of the device and of the node's ``arguments``."""
    arguments: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()
    """Attributes of the node that the kernel has too, and takes over."""
    constants: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Properties of the kernel that are other ones in a graph."""
    adapt: Callable[[Any, Use], None] | None = None
    """Changes the kernel for its place in the graph."""
    images: int | None = None
    """Sources that are the kernel's, where further ones are labels and weights."""
    size: Callable[[Any, Extent], Extent] | None = None
    """The size of the result, of the node and of its source, where the kernel has no say."""
    asked: Asked | None = None
    """What the user's callback says at each encode."""
    check: Callable[[Any, Sequence[Extent]], None] | None = None
    """Raises, of the node and of its sources, what the kernel could not say as well."""
    since: str = FIRST
    """The first macOS that has the class (MPSNNGraphNodes.h, iOS 16.5)."""
    swift: Form = _AS_OURS

    def make(self, node: Any, device: MTLDevice) -> Any:
        """The kernel of a node."""
        kernel = self.kernel(device, *(getattr(node, name) for name in self.arguments))
        for name in self.properties:
            setattr(kernel, name, getattr(node, name))
        for name, value in self.constants.items():
            setattr(kernel, name, value)
        return kernel


@dataclass(frozen=True, slots=True, eq=False)
class GradientRow(KernelRow):
    """A gradient node class."""

    takes: tuple[str, ...] = ()
    """Attributes of the forward node that the initializer takes, behind gradient, source image and state."""
    copies: tuple[str, ...] = ()
    """Attributes that a node takes over from the forward node that makes it."""
    reads: Reads = Reads.SOURCE
    since: str = FIRST_GRADIENTS


@dataclass(frozen=True, slots=True, eq=False)
class Row(KernelRow):
    """A forward node class."""

    state: type[Any] | None = None
    """The class of the state node; None if the filter leaves no state."""
    gradient: GradientRow | None = None
    padding: MPSNNPadding | None = None
    """The padding policy of new nodes, if it is another one than most have."""
    is_gradient: bool = False
    """Whether the result image is the gradient of the source: a training graph starts here."""
    training: Training | None = None
    """How the data source's parameters are updated."""
