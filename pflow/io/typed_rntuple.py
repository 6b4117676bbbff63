"""RNTuples whose records are C++ structs: the name of a record's type is stored with it.

uproot writes records without a type name, and ROOT then refuses to read them as a struct. What is missing is one
name in the RNTuple's header, which a private function of uproot makes; here it is told the names. Tried with uproot
5.6.0 to 5.7.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import awkward as ak
import uproot

from pflow.errors import ConfigError

__all__ = ["make_typed_rntuple"]


def make_typed_rntuple(directory: Any, name: str, form: ak.forms.RecordForm) -> Any:
    """Make an empty RNTuple; a record whose parameter ``__record__`` is a C++ type becomes a struct of that type.

    Parameters
    ----------
    directory
        ROOT file or directory of uproot, open for writing.
    name
        Name of the RNTuple.
    form
        Its fields.

    Returns
    -------
    uproot.WritableNTuple
        To be extended with arrays of this form.

    Raises
    ------
    ConfigError
        The installed uproot does not let itself be told the names.
    """
    with _named_records():
        ntuple = directory.mkrntuple(name, form)
    try:
        written = {field.type_name for field in ntuple._cascading._header._field_records}
    except AttributeError as error:
        raise _unsupported() from error
    if not _names(form) <= written:
        raise _unsupported()
    return ntuple


def _names(form: Any) -> set[str]:
    """Names of the records in a form."""
    own = {name} if isinstance(form, ak.forms.RecordForm) and (name := form.parameter("__record__")) else set()
    inner = form.contents if isinstance(form, ak.forms.RecordForm) else [getattr(form, "content", None)]
    return own.union(*(_names(content) for content in inner if content is not None))


@contextmanager
def _named_records() -> Iterator[None]:
    """Let uproot use the names of records while it makes a header."""
    try:
        from uproot.writing import _cascadentuple as writing

        unnamed = writing._cpp_typename
    except (ImportError, AttributeError) as error:
        raise _unsupported() from error

    def named(form: Any, subcall: bool = False) -> str:
        name = form.parameter("__record__") if isinstance(form, ak.forms.RecordForm) else None
        return name or str(unnamed(form, subcall=subcall))

    writing._cpp_typename = named
    try:
        yield
    finally:
        writing._cpp_typename = unnamed


def _unsupported() -> ConfigError:
    return ConfigError(
        f"uproot {uproot.__version__} cannot write structs with the names of their types, which EDM4hep files need; "
        "5.6 and 5.7 can"
    )
