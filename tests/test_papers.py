"""Published numbers that must come out digit for digit."""

from __future__ import annotations

import pytest

from experiments.papers.zero_bubble import SETTINGS, Setting, bubble_rate


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.model}-m{s.microbatches}")
def test_zero_bubble_table_5_column_1f1b(setting: Setting) -> None:
    assert round(bubble_rate(setting), 4) == setting.printed
