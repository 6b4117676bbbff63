# Sourced by the other scripts: makes .venv beside this checkout, installs pflow into it with the tested versions, and
# activates it. Takes the extras to install as an argument, e.g. `source scripts/environment.sh test,notebooks`.
# Nothing is installed again while pyproject.toml, the constraints and the extras stay the same.

_extras="${1:-}"
_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
_python="${PYTHON:-python3}"

if ! "$_python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "pflow needs Python 3.11 or newer; '$_python' is $("$_python" --version 2>&1). Set PYTHON to another one." >&2
    exit 1
fi

_stamp="$_root/.venv/.pflow-${_extras:-base}"
_wanted="$(cat "$_root/pyproject.toml" "$_root/scripts/constraints.txt" | cksum)"
if [ ! -f "$_stamp" ] || [ "$(cat "$_stamp")" != "$_wanted" ]; then
    echo "Setting up $_root/.venv (once; a minute or two)"
    [ -x "$_root/.venv/bin/python" ] || "$_python" -m venv "$_root/.venv"
    "$_root/.venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$_root/scripts/constraints.txt" --editable "$_root${_extras:+[$_extras]}"
    echo "$_wanted" > "$_stamp"
fi
# shellcheck disable=SC1091
source "$_root/.venv/bin/activate"
