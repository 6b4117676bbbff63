#!/usr/bin/env bash
# Lint, types and tests, from a clean checkout: makes its own .venv. Real files are looked for in $PFLOW_DATA, by default
# ../shared/data beside the checkout; without them the tests that need them are skipped, with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/environment.sh test

# One thread a process: the tests run side by side.
export OMP_NUM_THREADS=1 MPLBACKEND=Agg

echo "== ruff"
ruff check .
ruff format --check .
echo "== mypy"
mypy
echo "== pytest"
pytest --numprocesses=auto --dist=loadfile "$@"
