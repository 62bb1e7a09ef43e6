"""The table of splitwise-sim: measured whole steps of a server (milliseconds), prompts and single tokens."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from calibrate.checks import Limits
from calibrate.importing import Group, first_row, unknown_table
from calibrate.operators import read_rows
from calibrate.profile import Measurement

_MODELS = {"llama2-70b": "llama-2-70b"}
_CARDS = {"a100-80gb": "a100-80gb", "h100-80gb": "h100-80gb"}


def measurements(path: Path, group: Group) -> Iterator[Measurement]:
    """Medians of the rows of the group's model, card and number of GPUs, host time and communication included."""
    columns = first_row(path).columns()
    if not {"prompt_size", "batch_size", "token_size", "prompt_time", "token_time"} <= set(columns):
        raise unknown_table(path, "splitwise-sim", columns, "perf_model.csv")
    shape, card = group.shape, group.card
    found: dict[Measurement, list[float]] = {}
    for row in read_rows(path):
        of_group = (_MODELS.get(row.text("model")), _CARDS.get(row.text("hardware")), row.integer("tensor_parallel"))
        if of_group != (shape.name, card.name, shape.tp):
            continue
        batch, prompt, tokens = (row.integer(key) for key in ("batch_size", "prompt_size", "token_size"))
        first = Measurement("step", group.source, 0.0, chunks=batch, chunk_tokens=prompt)
        # The mean of all decode steps is that at the mean context.
        rest = Measurement("step", group.source, 0.0, sequences=batch, context=prompt + tokens // 2)
        for key, measurement in (("prompt_time", first), ("token_time", rest)):
            seconds = row.seconds(key)
            if seconds:
                Limits(card).measurement(row.where, measurement._replace(seconds=seconds), shape)
                found.setdefault(measurement, []).append(seconds)
    for measurement, times in found.items():
        yield measurement._replace(seconds=statistics.median(times))


def method(path: Path) -> str:
    """What the rows hold."""
    return "whole steps of a server of 2023, with its host time and its communication; medians"
