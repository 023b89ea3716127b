"""Single files of an engine, imported without the rest of it.

The files that are named come from a folder; whatever else they import of the engine is a stand-in,
which has every name: constants are empty, classes take any fields, and functions are mocks.
"""

import importlib.abc
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


def _take_fields(self, *_, **fields):
    vars(self).update(fields)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of the packages `roots`: `real` ones from a folder, the others stand-ins, of which
    `known` says names."""

    def __init__(self, roots, folder, real, known):
        self.roots, self.folder, self.real, self.known = roots, Path(folder), set(real), known

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.roots:
            return None
        if name in self.real:
            file = self.folder.joinpath(*name.split("."))
            file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
            return importlib.util.spec_from_file_location(name, file)
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec):
        named = self.real | self.known.keys()

        class StandIn(ModuleType):
            __path__ = ()

            def __getattr__(self, name):
                if name.startswith("__") or f"{self.__name__}.{name}" in named:
                    raise AttributeError(name)
                if name.isupper():
                    made = ()
                elif name[0].isupper():
                    made = _Anything(name, (), {"__init__": _take_fields})
                else:
                    made = MagicMock()
                setattr(self, name, made)
                return made

        return StandIn(spec.name)

    def exec_module(self, module):
        vars(module).update(self.known.get(module.__name__, {}))


def install(roots, folder, real, known):
    """Modules are found so from now on."""
    sys.meta_path.insert(0, Finder(roots, folder, real, known))
