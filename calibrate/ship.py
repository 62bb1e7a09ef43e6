"""Makes the cost files that are shipped, all or those named, from the public tables in a data folder:

    python -m calibrate.ship DATA sim/costs/data [CARD_MODEL[_tpN]...]
"""

from __future__ import annotations

import sys
from pathlib import Path

from calibrate.cli import tables_folder, write_json
from calibrate.fit import fit
from calibrate.sources import fitted_groups
from policies.catalog import card, model
from sim.costs.load import shipped_path


def main(data: Path, out: Path, names: list[str]) -> None:
    """Write the files and a line of held-out errors for each."""
    folder = tables_folder(str(data))
    for model_name, card_name, tp in fitted_groups():
        name = shipped_path(model_name, card_name, tp).name
        if not names or Path(name).stem in names:
            content = fit(model(model_name), card(card_name), folder, tp)
            write_json(content, out / name)
            print(errors_row(content))


def errors_row(cost_file: dict[str, object]) -> str:
    """The row of a cost file in docs/calibrate.md: version and date, held-out error, when its data were published."""
    held_out = cost_file["held_out"]
    assert isinstance(held_out, dict)
    step = held_out["step"]
    figures = " | ".join(f"{100 * step[key]:.2f}" for key in ("median", "p95"))
    made = f"{cost_file['version']}, {cost_file['date']}"
    return f"| `{cost_file['name']}` | {made} | {figures} | {step['points']:,} | {cost_file['data_date']} |"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
