"""Tables of RESULTS.md about loading, from what `scripts/bench.py io` writes."""

from __future__ import annotations

from typing import Any

from measurements.markdown import table

Results = dict[str, Any]

STAGES = ("plain", "reading", "prepared", "tokens", "padding", "augmentation", "tokens augmented", "padding augmented")


def io_table(results: Results) -> str:
    """CPU time of each stage of loading, a row a file."""
    rows = []
    for row in results["rows"]:
        times = (f"{row['ms'][stage]:.3f}" for stage in STAGES)
        ratios = (f"{row[name]:.2f}" for name in ("reading_over_plain", "tokens_over_reading"))
        rows.append([f"`{row['file']}` ({row['events']} events)", *times, *ratios])
    return table(["file", "uproot", *STAGES[1:], "reading / uproot", "tokens / reading"], rows)


def io_gpu_table(results: Results) -> str:
    """What a GPU takes at most, and cores that load as much."""
    loadings = {f"`{row['file']}`": row["loading"] for row in results["rows"]}
    if "mixture" in results:
        loadings = {"all": results["mixture"]["loading"]}
    rows = []
    for name, loading in loadings.items():
        for kind, found in loading.items():
            cells = [f"{name}, {kind}", *(f"{found['per_core'][source]:,.0f}" for source in ("files", "prepared"))]
            for bound, rate in found["gpu"].items():
                cells += [f"{rate:,.0f}", *(f"{found['cores'][bound][source]:.1f}" for source in ("files", "prepared"))]
            rows.append(cells)
    of_bound = ("cores, files", "cores, prepared")
    head = ["events", "files, events/s a core", "prepared", "GPU by FLOPs, events/s", *of_bound]
    return table([*head, "by kernels too", *of_bound], rows)
