"""Reports: one self-contained HTML page for a run or a comparison, explanations, timelines."""
