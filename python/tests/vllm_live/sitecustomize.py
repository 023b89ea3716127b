"""Has Triton's interpreter serve vLLM's second model runner on a machine without a GPU.

vLLM asks Triton for a backend called "cpu", which Triton does not have; with ``TRITON_INTERPRET=1`` no
backend is called, so that one which compiles nothing is enough. Without the variable, this file does nothing:
the first runner has a way without Triton for all but drafts. Python imports this file by its name.
"""

import importlib.abc
import importlib.util
import os
import sys


class _Backends(importlib.abc.MetaPathFinder):
    """Adds the backend once `triton.backends` has been imported."""

    def find_spec(self, name, path, target=None):
        if name != "triton.backends":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            spec.loader.exec_module = _then(spec.loader.exec_module, _add)
        return spec


def _then(first, second):
    def run(module):
        first(module)
        second(module)

    return run


def _add(module):
    class Driver:
        @staticmethod
        def is_active():
            return True

    class Compiler:
        @staticmethod
        def supports_target(target):
            return False

    kind = type(next(iter(module.backends.values())))
    module.backends["cpu"] = kind(compiler=Compiler, driver=Driver)


if os.environ.get("TRITON_INTERPRET") == "1":
    sys.meta_path.insert(0, _Backends())
