"""RNTuples whose records are C++ structs: the name of a record's type is stored with it.

uproot writes records without a type name, and ROOT then refuses to read them as a struct. The name is made by a private
function of uproot, so that its versions are bounded (pyproject.toml) and a test fails first.
"""

from __future__ import annotations

from typing import Any

import awkward as ak
import uproot

from pflow.errors import ConfigError

__all__ = ["make_typed_rntuple"]


def make_typed_rntuple(directory: Any, name: str, form: ak.forms.RecordForm) -> Any:
    """Make an empty RNTuple; a record whose parameter ``__record__`` is a C++ type becomes a struct of that type.

    A `ConfigError` if the installed uproot does not take the names.
    """
    try:
        from uproot.writing import _cascadentuple as writing

        unnamed = writing._cpp_typename

        def named(form: Any, subcall: bool = False) -> str:
            record = form.parameter("__record__") if isinstance(form, ak.forms.RecordForm) else None
            return record or str(unnamed(form, subcall=subcall))

        writing._cpp_typename = named
        try:
            ntuple = directory.mkrntuple(name, form)
        finally:
            writing._cpp_typename = unnamed
        written = {field.type_name for field in ntuple._cascading._header._field_records}
    except (ImportError, AttributeError) as error:
        raise ConfigError(UNSUPPORTED) from error
    if not _names(form) <= written:
        raise ConfigError(UNSUPPORTED)
    return ntuple


UNSUPPORTED = (
    f"uproot {uproot.__version__} cannot write structs with the names of their types, which EDM4hep files need; 5.7 can"
)


def _names(form: Any) -> set[str]:
    """Names of the records in a form."""
    own = {name} if isinstance(form, ak.forms.RecordForm) and (name := form.parameter("__record__")) else set()
    inner = form.contents if isinstance(form, ak.forms.RecordForm) else [getattr(form, "content", None)]
    return own.union(*(_names(content) for content in inner if content is not None))
