"""Tables of RESULTS.md about GPUs, from what `scripts/bench.py gpu` writes."""

from __future__ import annotations

from typing import Any

from measurements.markdown import table

Results = dict[str, Any]


def gpu_waits_table(results: Results) -> str:
    rows = [[row["what"], str(row["waits"]), f"{row['kernels']:,}"] for row in results["waits"]]
    return table([f"up to {results['waits'][0]['particles']} particles an event", "waits", "kernels"], rows)


def gpu_precision_table(results: Results) -> str:
    rows = []
    for row in results["precision"]:
        differences = {name: abs(row["bfloat16"][name] - loss) for name, loss in row["float32"].items()}
        worst = max((name for name in differences if name != "total"), key=lambda name: differences[name])
        totals = [f"{row[kind]['total']:.4f}" for kind in ("float32", "bfloat16")]
        rows.append([row["stage"], *totals, f"{differences[worst]:.4f} (`{worst}`)", f"{row['cosine']:.5f}"])
    head = ["stage", "total, float32", "total, bfloat16", "largest difference of a loss", "cosine of the gradients"]
    return table(head, rows)


def gpu_memory_table(results: Results) -> str:
    rows = [
        [str(row["tokens"]), str(row["particles"]), f"{row['kept_mb']:.0f}", f"{row['peak_mb']:.0f}"]
        for row in results["memory"]
    ]
    return table(["tokens", "particles", "kept for the backward pass", "process"], rows, left=())
