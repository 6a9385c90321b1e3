"""Tables of a timeline: their rows against the timeline, and files that are whole or not there."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipesim.costs.unit import UnitCosts
from pipesim.errors import FileError, InputError
from pipesim.files import whole_file, write_text
from pipesim.frame import devices, labels, save_spans, spans, transfers
from pipesim.metrics import measure
from pipesim.schedules import build_plan
from tests.simulating import shape_of, unit_timeline


def timeline_of(schedule="1f1b", p=2, m=2, v=1, k=1, **links):
    return unit_timeline(build_plan(schedule, shape_of(p, m, v, k)), UnitCosts.of(1, 2, **links))


def test_spans_are_the_ops_in_order_with_their_times():
    table = spans(timeline_of())
    assert table["op"].tolist() == ["0F0", "0F1", "0B0", "0B1", "1F0", "1B0", "1F1", "1B1"]
    assert table["device"].tolist() == [0] * 4 + [1] * 4
    assert table["place"].tolist() == [0, 1, 2, 3] * 2
    assert table["kind"].tolist() == list("FFBBFBFB")
    assert table["start_seconds"].tolist() == [0, 1, 4, 7, 1, 2, 4, 5]
    assert table["end_seconds"].tolist() == [1, 2, 6, 9, 2, 4, 5, 7]
    assert (table["duration_seconds"] == table["end_seconds"] - table["start_seconds"]).all()


def test_labels_are_those_of_the_plan():
    plan = build_plan("seq1f1b-interleaved", shape_of(2, 2, 2, 2))
    assert labels(unit_timeline(plan)) == [plan.label(row) for row in range(len(plan))]


def test_transfers_say_who_sends_what_to_whom_and_when():
    table = transfers(timeline_of(m=1, latency=3, transfer=5))
    assert table["sender"].tolist() == ["1B0", "0F0"]
    assert table["receiver"].tolist() == ["0B0", "1F0"]
    assert table["source_device"].tolist() == [1, 0]
    assert table["destination_device"].tolist() == [0, 1]
    assert table["asked_seconds"].tolist() == [12, 1]
    assert table["start_seconds"].tolist() == [12, 1]
    assert table["end_seconds"].tolist() == [17, 6]
    assert table["arrival_seconds"].tolist() == [20, 9]


def test_one_device_sends_nothing():
    assert transfers(timeline_of(p=1)).empty


def test_devices_are_the_metrics_per_device():
    metrics = measure(timeline_of(p=4, m=8))
    table = devices(metrics)
    assert table["device"].tolist() == [0, 1, 2, 3]
    assert table["idle_seconds"].tolist() == [9] * 4
    assert table["peak_in_flight"].tolist() == [4, 3, 2, 1]


@pytest.mark.parametrize(("ending", "read"), [(".csv", pd.read_csv), (".parquet", pd.read_parquet)])
def test_saved_spans_read_back_the_same(tmp_path, ending, read):
    timeline = timeline_of("seq1f1b", 2, 2, 1, 2, latency="0.1")
    path = tmp_path / f"spans{ending}"
    save_spans(timeline, path)
    pd.testing.assert_frame_equal(read(path), spans(timeline), check_dtype=False)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_unknown_ending_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"spans\.xlsx: unknown ending; one of \.csv, \.parquet"):
        save_spans(timeline_of(), tmp_path / "spans.xlsx")


def test_a_file_that_fails_half_way_is_as_it_was(tmp_path):
    path = tmp_path / "kept.txt"
    path.write_text("before")

    def fail() -> None:
        with whole_file(path) as draft:
            draft.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["kept.txt"]


def test_a_link_stays_a_link_to_the_new_content(tmp_path):
    (tmp_path / "real.txt").write_text("before")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_text(tmp_path / "link.txt", "after")
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text() == "after"


def test_what_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(FileError, match="must be a file that can be written") as missing:
        write_text(tmp_path / "absent" / "file.txt", "x")
    assert "\n" not in str(missing.value)
    with pytest.raises(FileError, match="not a regular file"):
        write_text(tmp_path, "x")


def test_integer_columns_stay_integers():
    table = spans(timeline_of())
    for column in ("device", "place", "stage", "microbatch", "subsequence", "direction"):
        assert np.issubdtype(table[column].dtype, np.integer), column
