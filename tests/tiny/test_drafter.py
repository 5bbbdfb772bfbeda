"""The drafter's training side: which keys a block sees, and how its yield is counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

BLOCK = 5


def test_a_block_sees_the_window_up_to_its_anchor() -> None:
    from train_tiny.dspark import windows_of

    values = torch.arange(2 * 6).view(2, 6, 1)
    rows, known = windows_of(values, torch.tensor([[1, 5], [3, 0]]), 3)
    assert rows[known][:, 0].tolist() == [0, 1, 3, 4, 5, 7, 8, 9, 6]
    assert known.sum(-1).tolist() == [2, 3, 3, 1]


class _Guesser:
    """Stands for a drafter: right on the first ``right`` places of every block."""

    settings = SimpleNamespace(block_size=BLOCK)
    config = SimpleNamespace(attention=SimpleNamespace(window_size=4))

    def __init__(self, tokens: list[int], right: int) -> None:
        self._tokens, self._right, self._start = tokens, right, 0

    def past(self, *_: Any) -> list[torch.Tensor]:
        return [torch.zeros(1, len(self._tokens), 1)]

    def hidden(self, _: Any, first: torch.Tensor, past: Any, known: Any, table: torch.Tensor, *rest: Any) -> Any:
        # The table holds positions here: tell outputs() which place each row stands at.
        self._start = int(table[0].flatten()[0])
        return table[0].float(), []

    def outputs(self, _: Any, hidden: torch.Tensor, before: torch.Tensor, *rest: Any) -> Any:
        place = int(hidden[0])
        assert int(before) == self._tokens[place], "a guess is conditioned on the token just before it"
        wrong = place - self._start >= self._right
        logits = torch.zeros(100)
        logits[(self._tokens[place + 1] + wrong) % 100] = 1.0
        return logits, None


@pytest.mark.parametrize("right", range(BLOCK + 1))
def test_a_verification_yields_the_right_guesses_and_one_more(right: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from train_tiny import dspark

    tokens = [(7 * i) % 100 for i in range(200)]
    monkeypatch.setattr(dspark, "features_of", lambda *_: (None, [torch.zeros(1, len(tokens), 1)]))
    trunk = SimpleNamespace(tables=lambda length, ratio: (torch.arange(length)[None, :, None].expand(2, -1, 1),))
    guesser: Any = _Guesser(tokens, right)
    assert dspark.tokens_per_verification(guesser, trunk, None, tokens, 10) == right + 1  # type: ignore[arg-type]
