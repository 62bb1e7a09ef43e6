"""What every policy owes, rule by rule."""

from __future__ import annotations

from enum import Enum

from policies.core.errors import ContractError, UserError


class Rule(Enum):
    """The rules in words. A check of the same name (``checks.py``) goes through all scenarios for each of them."""

    CODE = "the class raises no exception and returns what its methods say"
    BLOCKS = "KV blocks are conserved: free and held ones are all, none is lost, freed twice or in two tables"
    TOLD = "the plans tell of every block that a request gets, moves or loses"
    ROOM = "every token that is computed has room in a block of its request"
    CONTENT = "every step reads the KV that was computed for it, shared prefixes included"
    SEQS = "no step has more than max_num_seqs rows"
    BUDGET = "no step computes more than max_num_batched_tokens tokens"
    CHUNKS = "prompts are computed once and in order, and give their first token with the last chunk"
    CHARGE = "a step is charged with all its rows, tokens and contexts"
    PLACE = "a request is in exactly one queue, and the batch is made of those that run"
    TOKENS = "no token is lost or given twice"
    LEAVES = "who has ended or was preempted leaves the batch and holds no blocks"
    PROGRESS = "while requests wait, something runs or is about to"
    HORIZON = "what horizon promises comes true"
    VIEWS = "load() and queues() agree with the memory and with the plans"


class RuleBroken(ContractError):
    """A policy broke ``rule``; the message says which request did what, and the remedy."""

    def __init__(self, rule: Rule, message: str) -> None:
        super().__init__(message)
        self.rule = rule


class BrokenPolicy(UserError):
    """A user's class broke ``rule`` in ``step``; ``said`` is what without the address of the class."""

    def __init__(self, address: str, rule: Rule, step: int, said: str) -> None:
        super().__init__(f"engine.policy = '{address}': step {step}: {said}")
        self.rule, self.step, self.said = rule, step, said
