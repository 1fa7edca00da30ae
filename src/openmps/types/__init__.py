"""Enumerations and plain structs of Metal and Metal Performance Shaders, with the framework's values.

Members drop the prefix that they share in the framework and are upper snake case:
``MPSNNPaddingMethodSizeSame`` is ``MPSNNPaddingMethod.SIZE_SAME``, with the same number. What the framework declares as
a set of options is an ``IntFlag``, unless its values exclude each other; the rest are ``IntEnum``. Where the headers of
macOS 10.14 and macOS 13 give a member different values (the ``COUNT`` members), the newer value stands.

Structs are frozen: assign a new one to the property instead of changing a component. Each "macOS" is the release in
which the type appeared.
"""

from openmps.types.enumerations import *  # noqa: F403
from openmps.types.formats import *  # noqa: F403
from openmps.types.metal import *  # noqa: F403
from openmps.types.structs import *  # noqa: F403
