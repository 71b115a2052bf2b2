"""Resolve what a command names: a function in a file or a module, and the arguments to call it with."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from course_lib.launcher.hangs.errors import LaunchError

LIBRARY = Path(__file__).parents[2]


class BadJob(ValueError):
    """The job cannot start. The message says what to change."""


class CannotImport(LaunchError):
    """The job's file raised during import. The message ends with the file's own traceback."""


def find_function(target: str) -> Callable:
    """Return the function named by `path/to/file.py:function` or `package.module:function`."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise BadJob(f"{target}: name a file and a function in it, for example train.py:main")
    module = _load(Path(place))
    fn = getattr(module, name, None)
    if not callable(fn):
        defined = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise BadJob(f"{place} has no function {name!r}; it defines {', '.join(defined) or 'none'}")
    return fn


def find_yours(option: str, target: str) -> Callable:
    """Return your own function or class that an option names, also from a module in the current folder.

    Errors are one sentence that begins with `option`.
    """
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        return find_function(target)
    except (BadJob, CannotImport) as error:
        reason = str(error).splitlines()[0].removeprefix(f"{target}: ")
        raise BadJob(f"{option} {target}: {reason}{_line_of(error.__context__)}") from error


def call_yours(option: str, function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Return the result of your own function; turn an exception into one sentence, with your file and line."""
    try:
        return function(*args, **kwargs)
    except (Exception, SystemExit) as error:  # your code may raise anything
        message = " ".join(str(error).split())
        raise BadJob(f"{option} raises {type(error).__name__}: {message}{_line_of(error)}") from error


def _line_of(error: BaseException | None) -> str:
    """Return the innermost line of your own code that the exception passed, like " (mine.py, line 3)"."""
    library = (sys.prefix, sys.base_prefix, str(LIBRARY), "<")
    frames = traceback.extract_tb(error.__traceback__) if error else []
    yours = [frame for frame in frames if not frame.filename.startswith(library)]
    return f" ({Path(yours[-1].filename).name}, line {yours[-1].lineno})" if yours else ""


def names_a_function(text: str) -> bool:
    """Return whether this is `something:name`, and not an existing file."""
    with contextlib.suppress(ValueError, OSError):
        if os.path.lexists(text):
            return False
    place, colon, name = text.rpartition(":")
    return bool(colon and place) and name.isidentifier()


def _load(file: Path) -> ModuleType:
    """Return the module in this file, or if there is no such file, the module of this name."""
    if not os.path.isfile(file):
        module = str(file)
        with _imported(module):
            try:
                if not module.startswith("."):  # a relative import needs a package
                    return importlib.import_module(module)
            except ModuleNotFoundError as error:
                if not f"{module}.".startswith(f"{error.name}."):
                    raise  # the module exists, but one of its imports is missing
        raise BadJob(f"{module}: there is no such file or module (relative to {Path.cwd().name}/)")
    name = f"your {file.stem}" if file.stem in sys.stdlib_module_names else file.stem  # your json.py isn't Python's
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadJob(f"{file}: not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.absolute().parent))
    sys.modules[name] = module
    with _imported(file):
        spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _imported(name: str | Path) -> Iterator[None]:
    """Import the user's code in this block. Exceptions become `CannotImport`, with the user's frames but not ours."""
    try:
        yield
    except SystemExit:
        raise CannotImport(
            f"{name} exits while it is being imported; move the code that exits below `if __name__ == '__main__':`"
        ) from None
    except Exception as error:
        tb = error.__traceback__
        while tb and (tb.tb_frame.f_code.co_filename == __file__ or "importlib" in tb.tb_frame.f_code.co_filename):
            tb = tb.tb_next  # up to the user's code
        *lines, last = traceback.format_exception(type(error), error, tb)
        stack = "".join(lines).removeprefix("Traceback (most recent call last):\n")
        raise CannotImport(f"{name} cannot be imported: it raises {last.strip()}\n\n{stack}".rstrip()) from None


def parse(arguments: Iterable[str]) -> dict[str, Any]:
    """Parse `steps=10 name=adam` into keyword arguments. Values that are not Python literals become strings."""
    parsed: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name.isidentifier():
            raise BadJob(f"{argument}: give the function's arguments as name=value, for example steps=10")
        parsed[name] = text
        # {[]: 1} raises TypeError, and (((( one of the last two; Python may also warn about the text.
        not_a_literal = ValueError, SyntaxError, TypeError, MemoryError, RecursionError
        with contextlib.suppress(*not_a_literal), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed[name] = ast.literal_eval(text)
    return parsed


def check_arguments(target: str, fn: Callable, kwargs: dict[str, Any]) -> None:
    """Raise, before any rank starts, if the function does not accept these arguments."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some C functions have no signature
        return
    try:
        signature.bind_partial(**kwargs)  # reports unknown arguments before missing ones
        signature.bind(**kwargs)
    except TypeError as error:
        parameters = ", ".join(map(str, signature.parameters)) or "no arguments"
        raise BadJob(f"{target}: {error}; the function takes {parameters}") from None
