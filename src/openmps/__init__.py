"""Metal Performance Shaders' convolutional networks off the Mac: the same classes, numbers and weight files."""

__version__ = "0.1.0"

TYPE_CHECKING = (
    False  # a type checker knows it by this name; an import of typing is time in which Ctrl-C is a traceback
)
if TYPE_CHECKING:
    from openmps.names import *  # noqa: F403
else:
    # The engine takes seconds to import: it is when a name is asked for, and not for `openmps --version`.

    def _load() -> None:
        from importlib import import_module
        from types import ModuleType

        names = import_module("openmps.names")
        found = {name: value for name, value in vars(names).items() if name[0] != "_"}
        found = {name: value for name, value in found.items() if not isinstance(value, ModuleType)}
        globals().update(found, __all__=sorted(found))

    def __getattr__(name: str) -> object:
        if name == "__all__" or (name[0] != "_" and "__all__" not in globals()):
            _load()
            if name in globals():
                return globals()[name]
        from openmps.checks import absent

        raise absent(name)

    def __dir__() -> list[str]:
        if "__all__" not in globals():
            _load()
        return sorted(globals())
