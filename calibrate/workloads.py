"""Makes the workload profiles that are shipped, from the public traces in a data folder:

python -m calibrate.workloads DATA OUT
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from math import log
from pathlib import Path
from typing import NamedTuple

from sim.runs import write_whole
from traces.workload.fit import Label, fit_profile
from traces.workload.profile import ArrivalProfile, Profile, to_json
from traces.workload.quantiles import GRID, QuantileTable
from traces.workload.readers import open_trace

AZURE = "https://github.com/Azure/AzurePublicDataset, LLM inference trace 2023; Patel et al., Splitwise, ISCA 2024"


class PublicTrace(NamedTuple):
    """A file of the data folder, what it is, and what a cut of it lost before it was fitted."""

    file: str
    label: Label
    block_tokens: int = 16
    lost_before: tuple[str, ...] = ()


TRACES = (
    PublicTrace(
        "azure_conv_2023_first40min.csv.gz",
        Label("chat", "chat with a general assistant, in production", AZURE, "CC-BY-4.0", "2023-11-16"),
        lost_before=("the first 40 minutes of an hour; tokenizer and model not disclosed",),
    ),
    PublicTrace(
        "azure_code_2023_first40min.csv.gz",
        Label("code", "code completion, in production, with bursts", AZURE, "CC-BY-4.0", "2023-11-16"),
        lost_before=("the first 40 minutes of an hour; tokenizer and model not disclosed",),
    ),
    PublicTrace(
        "sharegpt_8k_llama2_lengths.csv.gz",
        Label(
            "sharegpt",
            "turns of shared ChatGPT conversations, each with its history as prompt",
            "https://github.com/microsoft/sarathi-serve, data/processed_traces at 72339db5b",
            "Apache-2.0",
            "not stated; published 2024",
        ),
        lost_before=("Llama-2 tokens, cut to 8,192 a conversation; the history of a turn is not marked as shared",),
    ),
    PublicTrace(
        "arxiv_summarization_llama2_lengths.csv.gz",
        Label(
            "summaries",
            "summaries of scientific papers: long prompts",
            "https://github.com/microsoft/vidur, data/processed_traces",
            "MIT",
            "not stated; published 2024",
        ),
        lost_before=("Llama-2 tokens, cut to 4,096 with the answer",),
    ),
    PublicTrace(
        "mooncake_synthetic.jsonl.gz",
        Label(
            "shared-prefix",
            "questions on long documents that others asked about before, and chats without history",
            "https://github.com/kvcache-ai/Mooncake, FAST25-release/traces/synthetic_trace; Qin et al., FAST 2025",
            "Apache-2.0",
            "published 2025",
        ),
        block_tokens=512,
        lost_before=(
            "composed of public data sets, not recorded; its arrivals are Poisson",
            "reuse sets in later there: of its first 1,500 requests 13 % begin like an earlier one, here a third",
        ),
    ),
)

REASONING = Label(
    "reasoning",
    "a reasoning model in production: short prompts, long answers",
    "https://github.com/alibaba/ServeGen, deepseek-r1; Xiang et al. 2025",
    "Apache-2.0",
    "not stated; published 2025",
)


def fitted(trace: PublicTrace, data: Path) -> Profile:
    """The profile of one file below ``data/traces``."""
    opened = open_trace(str(data / "traces" / trace.file))
    profile = fit_profile(
        opened.rows, trace.label, has_arrivals=opened.has_arrivals, block_tokens=trace.block_tokens
    )
    return profile._replace(approximated=(*trace.lost_before, *profile.approximated))


def reasoning(data: Path) -> Profile:
    """From length quantiles and the rate of each ten minutes of a day, as published for all clients together."""
    lengths = json.loads((data / "trace_profiles" / "servegen_deepseek-r1.json").read_text(encoding="utf-8"))
    with gzip.open(data / "traces" / "servegen_deepseek-r1_rates.csv.gz", "rt", encoding="utf-8") as stream:
        windows = [float(row["rate_rps"]) for row in csv.DictReader(stream)]
    mean = sum(windows) / len(windows)
    output = _published(lengths["output_tokens"]["quantiles"])
    return Profile(
        *REASONING,
        requests=round(lengths["requests_implied"]),
        prompt=_published(lengths["input_tokens"]["quantiles"]),
        output=output,
        output_by_prompt=(output,),
        arrivals=ArrivalProfile(
            rate_per_s=mean,
            span_s=len(windows) * float(lengths["window_s"]),
            gaps=QuantileTable(tuple(-log(1.0 - min(share, 0.9999)) for share in GRID)),
            relative_rate=tuple(rate / mean for rate in windows),
        ),
        approximated=(
            "outputs do not depend on prompts, lengths not on the client or the hour",
            "Poisson arrivals within each ten minutes of one day; single clients are burstier",
            "the smallest length is that of the lowest 0.1 %",
        ),
    )


def _published(quantiles: dict[str, float]) -> QuantileTable:
    named = {float(name[1:]) / 100: value for name, value in quantiles.items()}
    least = min(named.values())
    return QuantileTable(tuple(next((v for p, v in named.items() if abs(p - share) < 1e-9), least) for share in GRID))


def main(data: Path, out: Path) -> None:
    """Write all profiles."""
    for profile in (*(fitted(trace, data) for trace in TRACES), reasoning(data)):
        write_whole(out / f"{profile.name}.json", to_json(profile))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
