"""What the program's words mean, for a reader of a page who knows none of them."""

from __future__ import annotations

CAUSES = {
    "arrivals": "nothing was waiting",
    "max_num_seqs": "the batch had all the requests it may have (max_num_seqs)",
    "token_budget": "the tokens of the step were used up (token budget)",
    "kv_blocks": "there was too little free KV cache",
    "batch": "the batch in progress had to go on first",
    "swapped": "swapped-out requests had to come back first",
}
"""Why no more requests were let into the batch."""

SHORT_CAUSES = {
    "arrivals": "nothing waiting",
    "max_num_seqs": "batch full",
    "token_budget": "token budget",
    "kv_blocks": "KV cache full",
    "batch": "batch in progress",
    "swapped": "swapped ones first",
}

TERMS = {
    "linear": "matrix work and weights",
    "decode_attention": "attention over the KV cache",
    "prefill_attention": "attention of prompts",
    "head": "output head",
    "host": "host (CPU)",
    "swap": "swapping",
    "other": "other",
}
"""Terms of a step's time."""

GAP_CAUSES = {
    "decode": "plain decode step",
    "prefill": "a prompt was computed in between",
    "preemption": "preempted, then recomputed",
    "swap": "swapped out and back in",
    "batch": "delivered with the whole batch",
}
"""Why a gap between two tokens is as long as it is."""

PHASES = {
    "waiting": "waiting in the queue",
    "prefill": "computing the prompt (prefill)",
    "decode": "making tokens (decode)",
    "preempted": "preempted, waiting to be recomputed",
    "swapped": "swapped out to CPU memory",
    "batch": "in the batch; the answer comes at its end",
}
"""What happens to a request over its life."""

OUTCOMES = {
    "rejected": "refused at the door",
    "aborted": "given up by their clients",
    "failed": "failed: the KV cache can never hold them",
    "unfinished": "still under way when the run ended",
}

GLOSSARY = {
    "token": "a piece of a word; models read and write text token by token",
    "request": "a prompt that somebody sends, and the answer to it",
    "step": "one pass of the model over the batch; each running request gains one token, each prompt is read",
    "prefill": "reading a prompt, before its first token",
    "decode": "making the answer, one token a step",
    "batch": "the requests that a step works on together",
    "KV cache": "GPU memory that holds what the model remembers of each running request; it grows by every token and is"
    " given out in blocks",
    "reserved": "KV cache that a request holds, filled or not; nobody else can use it",
    "preemption": "a running request is pushed out for lack of KV cache, and is computed again or swapped back later",
    "scheduling policy": "the rule that decides, before each step, who runs and who waits",
    "token budget": "the most tokens that one step may compute (max_num_batched_tokens)",
    "prefix cache": "KV cache of earlier prompts that is kept, so that a prompt that begins alike need not be computed",
    "max_num_seqs, max_model_len": "the most requests in a batch, and the most tokens of a prompt with its answer",
    "keeps up": "requests are finished as fast as they arrive; otherwise the queue, and every wait, grows for ever",
    "p50, p99": "half, and 99 %, of the samples are at most this large",
}
