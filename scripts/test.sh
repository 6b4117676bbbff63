#!/usr/bin/env bash
# Lint, types and tests, from a clean checkout: makes its own .venv. A few tests need the full samples, which they look for
# in $PFLOW_DATA, by default ../shared/data beside the checkout; without they are skipped, with the reason.
# With --lowest or --newest: the fast tests with the lowest versions that pyproject.toml declares, in .venv-lowest, or with
# the newest releases, in .venv-newest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# One thread a process: the tests run side by side.
export OMP_NUM_THREADS=1 MPLBACKEND=Agg

if [ "${1:-}" = --lowest ] || [ "${1:-}" = --newest ]; then
    source scripts/environment.sh test "${1#--}"
    shift
    # Libraries of different age call functions that others have renamed.
    exec pytest --numprocesses=auto --dist=worksteal -m "not slow" --ignore=tests/notebooks \
        -W ignore::DeprecationWarning -W ignore::FutureWarning "$@"
fi
source scripts/environment.sh test,docs

echo "== ruff"
ruff check .
ruff format --check .
echo "== mypy, and beside it the documents as a site"
python scripts/docs.py &
documents=$!
mypy
wait "$documents"
echo "== pytest"
pytest --numprocesses=auto --dist=worksteal --durations=20 "$@"
