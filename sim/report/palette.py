"""Colours of policies and of parts: the same on every page, with at least 3:1 contrast on white and on near-black."""

from __future__ import annotations

from zlib import crc32

COLOURS = (
    "#2f7ed8", "#d2691e", "#1f9560", "#b5539c", "#8a6fd1", "#b8860b", "#1a94a6", "#d64f5b", "#6f8a2a", "#7d7f86",
    "#a0643c", "#5b8f8f",
)  # fmt: skip
"""For lines, areas and bars."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = {
    "linear": "", "decode_attention": "x", "prefill_attention": ".", "head": "-", "host": "|", "swap": "/",
    "other": "\\",
    "arrivals": "", "max_num_seqs": "\\", "token_budget": "+", "kv_blocks": "/", "batch": "|", "swapped": "-",
    "waiting": ".", "prefill": "+", "decode": "", "preempted": "/",
}  # fmt: skip
"""Fill patterns of terms, causes and phases, so that none is known by its colour alone."""

_OF_SYSTEM = {
    "ft-static": 1,
    "ft-static-early-return": 5,
    "orca-max": 3,
    "orca-pow2": 4,
    "orca-oracle": 7,
    "vllm-0.11": 0,
    "vllm-0.33": 6,
    "vllm-0.6": 2,
    "vllm-0.6-swap": 8,
    "vllm-0.6-chunked": 11,
    "vllm-0.2.7": 10,
    "sglang-0.4.9": 9,
}


def policy_colour(name: str) -> str:
    """The colour of a policy: a fixed one for the best known presets, for any other name always the same one."""
    place = _OF_SYSTEM.get(name)
    return COLOURS[crc32(name.encode()) % len(COLOURS) if place is None else place]


def faded(colour: str, alpha: float) -> str:
    """The colour, see-through."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


_DASH_ARRAYS = {
    "solid": "", "dash": "9 6", "dot": "2 4", "dashdot": "9 4 2 4", "longdash": "15 6", "longdashdot": "15 4 2 4",
}  # fmt: skip
_STROKES = {
    "/": "M0 8L8 0", "\\": "M0 0L8 8", "x": "M0 8L8 0M0 0L8 8", "-": "M0 4H8", "|": "M4 0V8", "+": "M0 4H8M4 0V8",
    ".": "M3 4H5",
}  # fmt: skip


def line_sample(colour: str, dash: str) -> str:
    """A piece of a line as SVG, for the legend of a page."""
    stroke = f'stroke="{colour}" stroke-width="3" stroke-dasharray="{_DASH_ARRAYS[dash]}"'
    return f'<svg class="sample" width="40" height="12" aria-hidden="true"><path d="M0 6H40" {stroke}/></svg>'


def area_sample(colour: str, pattern: str, key: str) -> str:
    """A patch of an area or a bar as SVG; ``key`` is its own on the page."""
    if not pattern:
        fill, tile = colour, ""
    else:
        stroke = f'stroke="{colour}" stroke-width="2"'
        fill = f"url(#{key})"
        tile = (
            f'<defs><pattern id="{key}" width="8" height="8" patternUnits="userSpaceOnUse">'
            f'<rect width="8" height="8" fill="{faded(colour, 0.25)}"/><path d="{_STROKES[pattern]}" {stroke}/>'
            "</pattern></defs>"
        )
    box = f'<rect width="24" height="14" fill="{fill}" stroke="{colour}"/>'
    return f'<svg class="sample" width="24" height="14" aria-hidden="true">{tile}{box}</svg>'


PARTS = {
    "linear": 0, "decode_attention": 1, "prefill_attention": 2, "head": 3, "host": 9, "swap": 7, "other": 10,
    "arrivals": 9, "max_num_seqs": 4, "token_budget": 5, "kv_blocks": 7, "batch": 6, "swapped": 3,
    "waiting": 9, "prefill": 2, "decode": 0, "preempted": 7,
    "preemption": 7,
}  # fmt: skip
"""Place in ``COLOURS`` of terms, causes and phases."""


def part_colour(name: str) -> str:
    """The colour of a term, a cause or a phase."""
    return COLOURS[PARTS.get(name, 10)]


def part_pattern(name: str) -> str:
    """Its fill pattern; the commonest parts are plain."""
    return PATTERNS.get(name, "x")
