"""Pictures: where boxes, phases and numbers lie, colours that stay apart in grey, files that come out the same."""

from __future__ import annotations

import base64
import json
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from pipesim.costs.unit import UnitCosts
from pipesim.errors import DependencyMissing, InputError
from pipesim.plan import Kind, Op, Placement, Plan
from pipesim.plot import save_gantt, save_memory, style
from pipesim.plot.gantt import gantt_figure
from pipesim.plot.html import gantt_page
from pipesim.plot.lanes import arrows, numbers, phases
from pipesim.plot.memory import memory_figure
from pipesim.schedules import build_plan
from tests.simulating import hand_plan, shape_of, unit_timeline


def timeline_of(schedule="1f1b", p=4, m=8, v=1, k=1, costs=None):
    return unit_timeline(build_plan(schedule, shape_of(p, m, v, k)), costs)


def two_way(p=2, m=2):
    """Micro-batch 0 down, 1 up, one after the other."""
    shape = shape_of(p, m, 2)
    placement = Placement.opposing_v(shape, (np.arange(m) % 2).astype(np.int8))
    orders = [[] for _ in range(p)]
    for i in range(m):
        homes = placement.device_of[i % 2]
        for kind, stages in ((Kind.F, range(2 * p)), (Kind.B, reversed(range(2 * p)))):
            for stage in stages:
                orders[homes[stage]].append(Op(kind, stage, i))
    return Plan.from_orders("two ways", shape, placement, orders)


def boxes_of(axes):
    found = next(c for c in axes.collections if isinstance(c, PolyCollection) and c.get_zorder() == 2)
    return np.array([path.vertices[:4] for path in found.get_paths()])


def text_of(figure) -> str:
    return " | ".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


# Where things lie.


def test_a_box_an_op_on_the_lane_of_its_device():
    timeline = timeline_of("seq1f1b", 2, 2, 1, 2)
    (axes,) = gantt_figure([timeline]).axes
    boxes = boxes_of(axes)
    assert boxes[:, 0, 0].tolist() == (timeline.start_ns / timeline.unit_ns).tolist()
    assert boxes[:, 2, 0].tolist() == (timeline.end_ns / timeline.unit_ns).tolist()
    assert np.floor(boxes[:, 0, 1]).tolist() == timeline.plan.device.tolist()
    assert axes.yaxis_inverted()


def test_phases_of_1f1b_and_gpipe():
    """Warm-up until the first backward, steady until the last forward has ended; gpipe is never steady."""
    assert phases(timeline_of()).tolist() == [[0, 10, 22, 33], [1, 8, 23, 31], [2, 6, 24, 29], [3, 4, 25, 27]]
    assert phases(timeline_of("gpipe", 2, 2)).tolist() == [[0, 5, 5, 9], [1, 3, 3, 7]]


def test_arrows_go_from_the_end_of_an_op_to_the_arrival_at_the_next_device():
    devices, moments = arrows(timeline_of(p=2, m=1, costs=UnitCosts.of(1, 2, latency=3)))
    assert devices.tolist() == [[1, 0], [0, 1]]
    assert moments.tolist() == [[7, 10], [1, 4]]


def test_numbers_shrink_and_then_give_way():
    timeline = timeline_of("seq1f1b", 2, 3, 1, 2)
    roomy = numbers(timeline, points_of_unit=80, height=20, most=100)
    assert roomy.size == 9
    assert roomy.texts[:3] == ["0.0", "0.1", "1.0"]
    short = numbers(timeline, points_of_unit=20, height=20, most=100)
    assert short.texts[:3] == ["0", "0", "1"]
    assert short.size == 9
    assert 4 <= numbers(timeline, points_of_unit=10, height=20, most=100).size < 9
    only_backwards = numbers(timeline, points_of_unit=6, height=20, most=100)
    assert set(timeline.plan.kind[only_backwards.rows]) == {Kind.B}
    assert numbers(timeline, points_of_unit=1, height=20, most=100) is None
    assert numbers(timeline, points_of_unit=80, height=3, most=100) is None
    assert numbers(timeline, points_of_unit=80, height=20, most=10) is None


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 3), (16, 32), (64, 128)])
def test_any_size_draws_all_ops_and_labels_devices_apart(p, m):
    figure = gantt_figure([timeline_of(p=p, m=m)])
    (axes,) = figure.axes
    assert len(boxes_of(axes)) == 2 * p * m
    figure.draw_without_rendering()
    tops = sorted(label.get_window_extent().y0 for label in axes.get_yticklabels())
    tall = axes.get_yticklabels()[0].get_window_extent().height
    assert all(np.diff(tops) >= 0.8 * tall)


def test_numbers_stay_inside_their_boxes():
    timeline = timeline_of("interleaved", 4, 12, 2)
    figure = gantt_figure([timeline])
    (axes,) = figure.axes
    figure.draw_without_rendering()
    boxes = boxes_of(axes)
    shown = [text for text in axes.texts if text.get_text().isdigit()]
    assert len(shown) == len(timeline.plan)
    for text in shown:
        x, y = text.get_position()
        box = boxes[(boxes[:, 0, 0] < x) & (x < boxes[:, 2, 0]) & (boxes[:, 0, 1] < y) & (y < boxes[:, 1, 1])]
        left, right = axes.transData.transform(box[0][[0, 2]])[:, 0]
        extent = text.get_window_extent()
        assert left <= extent.x0
        assert extent.x1 <= right


def test_a_step_of_very_many_ops_is_cut_and_the_caption_says_so():
    figure = gantt_figure([timeline_of("seq1f1b", 2, 400, 1, 4)])
    shown = figure.axes[0].get_xlim()[1]
    assert shown < 1200
    assert re.search(r"only 0 to [\d.]+ of 1200.75 is shown", text_of(figure))
    assert "numbers are" not in text_of(figure)
    small = text_of(gantt_figure([timeline_of()]))
    assert "shown" not in small
    assert "numbers are micro-batches" in small


def test_a_window_is_what_is_shown():
    figure = gantt_figure([timeline_of()], window=(10, 22))
    assert figure.axes[0].get_xlim()[0] == 10
    assert len(boxes_of(figure.axes[0])) < 64
    assert "only 10 to 22 of 33 is shown" in text_of(figure)


def test_timelines_share_one_time_axis_and_name_their_results():
    figure = gantt_figure([timeline_of("1f1b"), timeline_of("seq1f1b", k=2)])
    assert len(figure.axes) == 2
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    words = text_of(figure)
    assert "33 units  ·  bubble 27.3% of the time, 37.5% over ideal" in words
    assert "p=4 m=8 k=2" in words
    assert "unit costs F=1 B=2" in words
    assert "time (units)" in words
    for entry in ("forward", "backward", "idle", "warm-up", "steady", "cool-down"):
        assert entry in words


def test_stacked_lanes_stand_above_each_other_per_device():
    slower = timeline_of(p=2, m=2, costs=UnitCosts.of(1, 2, latency=1))
    figure = gantt_figure([timeline_of(p=2, m=2), slower], stacked=("predicted", "measured"))
    (axes,) = figure.axes
    labels = {label.get_text(): label.get_position()[1] for label in axes.get_yticklabels()}
    assert sorted(labels, key=labels.get) == ["predicted 0", "measured 0", "predicted 1", "measured 1"]
    assert "predicted 9 units  ·  measured 11 units (+22.2%)" in text_of(figure)


def test_transfers_are_lines_on_demand():
    timeline = timeline_of(p=2, m=2)
    plain, lined = gantt_figure([timeline]).axes[0], gantt_figure([timeline], transfers=True).axes[0]
    assert len(lined.collections) == len(plain.collections) + 1


def test_nothing_to_draw_is_drawn():
    assert gantt_figure([timeline_of(p=2, m=1, costs=UnitCosts.of(0, 0))]).axes


# Colours.


@pytest.mark.parametrize("directions", [1, 2])
def test_forwards_are_lighter_than_backwards_in_grey_print(directions):
    """Every shade of a forward against every shade of a backward, W against both, in every direction."""
    grey = {kind: [] for kind in Kind}
    for family in style.families(directions):
        for kind, ends in family.items():
            grey[kind] += style.luminance(np.array([style._rgb(end) for end in ends])).tolist()
    contrast = (min(grey[Kind.F]) + 0.05) / (max(grey[Kind.B]) + 0.05)
    assert contrast > 1.35
    assert grey[Kind.I] == grey[Kind.B]
    assert min(grey[Kind.F]) > max(grey[Kind.W])


@pytest.mark.parametrize("directions", [1, 2])
def test_text_is_readable_on_every_shade(directions):
    for family in style.families(directions):
        for kind, ends in family.items():
            first, last = (np.array(style._rgb(end)) for end in ends)
            for part in np.linspace(0, 1, 21):
                ground = float(style.luminance(first + (last - first) * part))
                ink = 1.0 if ground < style.DARK else float(style.luminance(np.array(style._rgb(style.INK))))
                contrast = (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05)
                assert contrast > 2.7, (kind, part)


def test_shades_deepen_with_subsequence_and_then_with_stage():
    plan = build_plan("seq1f1b-interleaved", shape_of(1, 1, 2, 3))
    found = dict(zip((plan.label(row) for row in range(len(plan))), style.shades(plan).tolist(), strict=True))
    order = [found[name] for name in ("0F0.0", "0F0.1", "0F0.2", "1F0.0", "1F0.1", "1F0.2")]
    assert order == sorted(set(order))
    assert (order[0], order[-1]) == (0, 1)
    assert set(style.shades(build_plan("1f1b", shape_of(2, 2)))) == {style.ONLY_SHADE}


def test_opposing_pipelines_have_a_hue_each():
    plan = two_way()
    colours = style.colours(plan)
    down, up = colours[plan.direction == 0], colours[plan.direction == 1]
    assert (down[:, 2] > down[:, 0]).all()  # more blue than red
    assert (up[:, 0] > up[:, 2]).all()
    words = text_of(gantt_figure([unit_timeline(plan)]))
    for entry in ("forward down", "backward down", "forward up", "backward up"):
        assert entry in words


def test_each_kind_present_is_in_the_legend():
    plan = hand_plan(["0F0 0I0 0W0"], 1, 1)
    entries = [name for name, _ in style.legend_entries([plan])]
    assert entries == ["forward", "input gradient", "weight gradient"]


# Memory.


def memory_timeline():
    costs = replace(UnitCosts.of(1, 2), activation_bytes=2**30)
    timeline = timeline_of(p=2, m=2, costs=costs)
    return replace(timeline, costs=replace(timeline.costs, static_bytes=np.array([3, 1]) * 2**30))


def test_memory_lines_are_the_steps_of_each_device():
    figure = memory_figure([memory_timeline()], limit_bytes=8 * 2**30)
    (axes,) = figure.axes
    lines = {line.get_color(): line for line in axes.lines if len(line.get_xdata()) > 2}
    assert len(lines) == 2
    fullest = next(line for line in lines.values() if line.get_linewidth() > 1)
    assert fullest.get_xdata().tolist() == [0, 1, 2, 4, 6, 7, 9]
    assert fullest.get_ydata().tolist() == [4, 5, 5, 5, 4, 4, 3]
    words = text_of(figure)
    assert "memory (GiB)" in words
    assert "peak 5.00 GiB, on device 0 from 1" in words
    assert "memory of a device, 8.0 GiB" in words
    assert any(line.get_ydata()[0] == 8 for line in axes.lines)


def test_memory_of_unit_costs_is_micro_batches_in_flight():
    figure = memory_figure([timeline_of(), timeline_of("seq1f1b", k=2)])
    words = text_of(figure)
    assert "(micro-batches)" in words
    assert "peak 4 micro-batches, on device 0 from 3" in words
    assert "peak 2.5 micro-batches, on device 0 from 2" in words
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_memory_of_many_devices_is_drawn_for_some_with_first_and_last():
    figure = memory_figure([timeline_of(p=40, m=40)])
    assert 16 <= len(figure.axes[0].lines) <= 18


# Files.


@pytest.mark.parametrize(("ending", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_pictures_come_out_the_same_each_time(tmp_path, ending, start):
    timeline = timeline_of(p=2, m=2)
    for save in (save_gantt, save_memory):
        first, second = tmp_path / f"a{ending}", tmp_path / f"b{ending}"
        save([timeline], first)
        save([timeline], second)
        assert first.read_bytes() == second.read_bytes()
        assert first.read_bytes().startswith(start)


def test_wrong_endings_and_windows_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"--gantt: .*a\.bmp: unknown ending; one of \.png, \.svg, \.pdf, \.html"):
        save_gantt([timeline_of()], tmp_path / "a.bmp")
    with pytest.raises(InputError, match=r"--memory: .*a\.html: unknown ending"):
        save_memory([timeline_of()], tmp_path / "a.html")
    with pytest.raises(InputError, match="window: 5 to 5: must begin at 0 or later and end after that"):
        save_gantt([timeline_of()], tmp_path / "a.png", window=(5, 5))


# Pages.


def drawn_in(page: str):
    """The traces and the layout that a page hands to plotly, arrays decoded."""
    found = re.split(r'Plotly\.newPlot\(\s*"gantt",\s*', page)[-1]
    decoder = json.JSONDecoder(object_hook=decoded)
    traces, end = decoder.raw_decode(found)
    layout, _ = decoder.raw_decode(found[end:].lstrip(" ,\n"))
    return traces, layout


def decoded(value: dict):
    if "bdata" not in value:
        return value
    return np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"]).tolist()


def ops_in(traces) -> list[tuple]:
    """Label, lane, start, end, colour, words and facts of every op drawn."""
    return [
        (label, y, x, x + width, trace["marker"]["color"], trace["hovertemplate"], facts)
        for trace in traces
        if "hovertext" in trace
        for label, y, x, width, facts in zip(
            trace["hovertext"], trace["y"], trace["base"], trace["x"], trace["customdata"], strict=True
        )
    ]


def legend_in(traces) -> dict[str, str]:
    return {trace["name"]: trace["marker"]["color"] for trace in traces if trace.get("showlegend", True)}


def words_in(layout) -> str:
    return " | ".join(note["text"] for note in layout["annotations"])


def test_page_holds_every_op_on_its_lane_and_says_what_it_is(tmp_path):
    timeline = timeline_of("seq1f1b", 2, 2, 1, 2)
    save_gantt([timeline], tmp_path / "x.html")
    traces, layout = drawn_in((tmp_path / "x.html").read_text(encoding="utf-8"))
    colours = style.colours(timeline.plan)
    start, end = timeline.start_ns / timeline.unit_ns, timeline.end_ns / timeline.unit_ns
    found = {op[0]: op[1:] for op in ops_in(traces)}
    assert len(ops_in(traces)) == len(found) == len(timeline.plan)
    for row in range(len(timeline.plan)):
        y, left, right, colour, words, facts = found[timeline.plan.label(row)]
        assert (int(y), left, right) == (timeline.plan.device[row], start[row], end[row])
        assert colour == style.hex_of(colours[row])
        assert style.KIND_NAMES[Kind(int(timeline.plan.kind[row]))] in words
        assert facts == [int(y), f"{start[row]:g}", f"{end[row]:g}", f"{end[row] - start[row]:g}"]
    assert layout["xaxis"]["title"]["text"] == "time (units)"
    assert layout["yaxis"]["title"]["text"] == "device"
    assert layout["yaxis"]["range"] == [2, 0]
    assert "unit costs F=1 B=2" in words_in(layout)
    assert "7.5 units" in words_in(layout)


def test_page_names_seconds_in_the_unit_a_person_would_pick():
    timeline = timeline_of(p=1, m=1)
    costs = replace(timeline.costs, unit="s", unit_ns=10**9)
    start, end = np.array([0, 2_500_000]), np.array([2_500_000, 1_002_500_001])
    traces, layout = drawn_in(gantt_page([replace(timeline, costs=costs, start_ns=start, end_ns=end)]))
    forward, backward = (op[-1] for op in ops_in(traces))
    assert forward == [0, "0 s", "0.0025 s", "2.5 ms"]
    assert backward == [0, "0.0025 s", "1.002500001 s", "1.000 s"]
    assert layout["xaxis"]["title"]["text"] == "time (s)"
    assert "units" not in ops_in(traces)[0][-2]


def test_page_needs_nothing_from_elsewhere():
    """No page part is fetched, no tool bar button sends the chart away; what plotly.js itself says is its own."""
    page = gantt_page([timeline_of(p=1, m=1)])
    assert "* plotly.js v" in page
    ours = re.sub(r"<script[^>]*>.*?</script>", lambda block: block[0][:200], page, flags=re.DOTALL)
    assert not re.search(r"\b(src|href)=", ours)
    settings = page[page.rindex('"scrollZoom"') :]
    assert '"modeBarButtons": [["toImage"]' in settings
    assert "Cloud" not in settings
    assert gantt_page([timeline_of(p=1, m=1)]) == page


def test_opposing_pipelines_have_a_hue_each_on_a_page():
    timeline = unit_timeline(two_way())
    traces, _ = drawn_in(gantt_page([timeline]))
    legend = legend_in(traces)
    assert [*legend][:4] == ["forward down", "backward down", "forward up", "backward up"]
    assert legend.items() >= dict(style.legend_entries([timeline.plan])).items()
    groups = {trace["legendgroup"] for trace in traces if "hovertext" in trace}
    assert groups == {*legend} - {"idle", "warm-up", "steady", "cool-down"}
    for trace in traces:
        if "hovertext" in trace:
            rows = [row for row in range(len(timeline.plan)) if timeline.plan.label(row) in trace["hovertext"]]
            assert f"  {trace['legendgroup']}<br>" in trace["hovertemplate"]
            assert {style.hex_of(rgb) for rgb in style.colours(timeline.plan)[rows]} == {trace["marker"]["color"]}


def test_timelines_on_a_page_share_the_time_axis():
    traces, layout = drawn_in(gantt_page([timeline_of("1f1b"), timeline_of("seq1f1b", k=2)]))
    assert layout["xaxis"]["matches"] == "x2"
    assert layout["xaxis"]["range"] == layout["xaxis2"]["range"]
    assert {trace.get("yaxis") for trace in traces if "hovertext" in trace} == {"y", "y2"}
    assert "title" not in layout["xaxis"]
    assert layout["xaxis2"]["title"]["text"] == "time (units)"
    assert "33 units  ·  bubble 27.3% of the time, 37.5% over ideal" in words_in(layout)
    assert "p=4 m=8 k=2" in words_in(layout)


def test_stacked_lanes_on_a_page_stand_above_each_other():
    slower = timeline_of(p=2, m=2, costs=UnitCosts.of(1, 2, latency=1))
    traces, layout = drawn_in(gantt_page([timeline_of(p=2, m=2), slower], stacked=("predicted", "measured")))
    labels = dict(zip(layout["yaxis"]["ticktext"], layout["yaxis"]["tickvals"], strict=True))
    assert sorted(labels, key=labels.get) == ["predicted 0", "measured 0", "predicted 1", "measured 1"]
    last = {op[5]: (op[1], op[3]) for op in ops_in(traces) if op[0] == "0B1"}
    assert [
        (y, end, "measured device" in words) for words, (y, end) in sorted(last.items(), key=lambda one: one[1])
    ] == [(pytest.approx(labels["predicted 0"]), 9, False), (pytest.approx(labels["measured 0"]), 11, True)]


def test_a_page_opens_on_its_window_and_still_holds_all():
    traces, layout = drawn_in(gantt_page([timeline_of()], window=(10, 22)))
    assert layout["xaxis"]["range"] == [10, 22]
    assert len(ops_in(traces)) == 64
    assert "is shown" not in words_in(layout)
    _, layout = drawn_in(gantt_page([timeline_of()], window=(40, 50)))
    assert layout["xaxis"]["range"] == [40, 50]


def test_a_page_of_too_many_ops_holds_the_first_and_says_so(monkeypatch):
    monkeypatch.setattr("pipesim.plot.html.MOST_BOXES", 40)
    timeline = timeline_of()
    traces, layout = drawn_in(gantt_page([timeline]))
    held = re.search(r"only 0 to ([\d.]+) of 33 is shown", words_in(layout))
    begun = (timeline.start_ns < float(held[1]) * timeline.unit_ns).sum()
    assert len(ops_in(traces)) == begun
    assert 30 < begun <= 40
    traces, layout = drawn_in(gantt_page([timeline], window=(20, 30)))
    assert "only 20 to 30 of 33 is shown" in words_in(layout)
    assert all(op[2] < 30 and op[3] > 20 for op in ops_in(traces))


def test_a_page_of_many_ops_has_no_numbers(monkeypatch):
    numbered = drawn_in(gantt_page([timeline_of("seq1f1b", 2, 2, 1, 2)]))
    assert {text for trace in numbered[0] for text in trace.get("text", ())} == {"0.0", "0.1", "1.0", "1.1"}
    assert "numbers are micro-batches" in words_in(numbered[1])
    monkeypatch.setattr("pipesim.plot.html._MOST_NUMBERS", 10)
    plain = drawn_in(gantt_page([timeline_of("seq1f1b", 2, 2, 1, 2)]))
    assert not any("text" in trace for trace in plain[0])
    assert "numbers" not in words_in(plain[1])


@pytest.mark.parametrize(("p", "m"), [(1, 1), (64, 64)])
def test_a_page_labels_devices_apart(p, m):
    _, layout = drawn_in(gantt_page([timeline_of(p=p, m=m)]))
    low, high = layout["yaxis"].get("domain", (0, 1))
    inner = layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]
    lane = inner * (high - low) / p
    steps = np.diff(layout["yaxis"]["tickvals"])
    assert all(steps * lane >= 14)
    assert layout["yaxis"]["ticktext"][0] == "0"


def test_nothing_to_draw_makes_a_page():
    traces, layout = drawn_in(gantt_page([timeline_of(p=2, m=1, costs=UnitCosts.of(0, 0))]))
    assert not ops_in(traces)
    assert layout["xaxis"]["range"][1] >= 1


def test_a_name_cannot_break_out_of_the_page():
    timeline = timeline_of(p=1, m=1)
    named = replace(timeline, costs=replace(timeline.costs, name="</script><b>"))
    page = gantt_page([named])
    assert "</script><b>" not in page
    assert "&lt;/script&gt;&lt;b&gt;" in words_in(drawn_in(page)[1])


def test_without_plotly_the_extra_is_named_and_no_file_is_left(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.subplots", None)
    with pytest.raises(DependencyMissing, match=r"plotly: pip install 'pipesim\[html\]'"):
        save_gantt([timeline_of(p=1, m=1)], tmp_path / "x.html")
    assert not list(tmp_path.iterdir())
