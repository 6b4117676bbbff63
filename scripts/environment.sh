# Sourced by the other scripts: makes .venv beside this checkout, installs pflow into it with the tested versions, and
# activates it. Takes the extras to install as an argument, e.g. `source scripts/environment.sh test,notebooks`.
# A second argument `lowest` makes .venv-lowest with the lowest versions that pyproject.toml declares, `newest` makes
# .venv-newest with the newest releases.
# Nothing is installed again while pyproject.toml, the constraints and the extras stay the same.

_extras="${1:-}"
_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
_python="${PYTHON:-python3}"

if ! "$_python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "pflow needs Python 3.11 or newer; '$_python' is $("$_python" --version 2>&1). Set PYTHON to another one." >&2
    exit 1
fi

_venv="$_root/.venv"
_constraints="$_root/scripts/constraints.txt"
_install=(-m pip install --disable-pip-version-check --no-compile --constraint "$_constraints")
if [ "${2:-}" = lowest ]; then
    _venv="$_root/.venv-lowest"
    _install=(-m uv pip install --resolution lowest-direct)
elif [ "${2:-}" = newest ]; then
    _venv="$_root/.venv-newest"
    _install=(-m pip install --disable-pip-version-check --no-compile --upgrade)
fi

_stamp="$_venv/.pflow-${_extras:-base}"
_wanted="$(cat "$_root/pyproject.toml" "$_constraints" | cksum)"
if [ ! -f "$_stamp" ] || [ "$(cat "$_stamp")" != "$_wanted" ]; then
    echo "Setting up $_venv (once; a minute or two)"
    [ -x "$_venv/bin/python" ] || "$_python" -m venv "$_venv"
    # The pip of Python 3.11 takes twice as long to choose versions. Where there is no newer one, it will do.
    "$_venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile 'pip>=25.1' || true
    [ "${2:-}" != lowest ] || "$_venv/bin/python" -m pip install --quiet --disable-pip-version-check uv
    "$_venv/bin/python" "${_install[@]}" --quiet --editable "$_root${_extras:+[$_extras]}"
    # pip compiles on one core, this on all, without the libraries' tests. Some packages have files for other Pythons,
    # which do not compile.
    "$_venv/bin/python" -m compileall -qq -j 0 -x '/site-packages/.*/tests?/' "$_venv/lib" "$_root/pflow" || true
    echo "$_wanted" > "$_stamp"
fi
# shellcheck disable=SC1091
source "$_venv/bin/activate"
