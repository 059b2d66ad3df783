from __future__ import annotations

from xml.etree import ElementTree

from app.cli import line_chart

LINES = {"rising": [(1.0, 1.0), (1000.0, 1000.0)], "level & <flat>": [(1.0, 10.0), (1000.0, 10.0)]}
SPACE = "{http://www.w3.org/2000/svg}"


def test_the_drawing_is_an_image_by_itself() -> None:
    root = ElementTree.fromstring(line_chart.svg("A & B", "x", "y", LINES, {"rising": [(10.0, 20.0)]}))
    assert root.tag == f"{SPACE}svg"
    texts = [each.text for each in root.iter(f"{SPACE}text")]
    assert {"A & B", "x", "y", "rising", "level & <flat>", "1", "10", "100", "1000"} <= set(texts)
    assert len(list(root.iter(f"{SPACE}circle"))) == 1


def test_lines_run_where_their_points_say() -> None:
    root = ElementTree.fromstring(line_chart.svg("", "", "", LINES))
    paths = [each.attrib["d"] for each in root.iter(f"{SPACE}path") if each.attrib.get("fill") == "none"]
    (rising, level) = ([tuple(map(float, place.split())) for place in path[1:].split("L")] for path in paths)
    assert rising[0][0] < rising[1][0]
    assert rising[0][1] > rising[1][1]  # y grows downwards
    assert level[0][1] == level[1][1]
    assert level[0][1] - rising[1][1] == 2 * (rising[0][1] - level[0][1])  # one decade above the bottom of three


def test_text_shows_each_line_by_its_letter() -> None:
    drawn = line_chart.text(LINES, width=31, height=7)
    rows = [line.partition("|")[2] for line in drawn.splitlines() if "|" in line]
    assert len(rows) == 7
    assert rows[0].rstrip().endswith("r")
    assert rows[4].count("l") == 31  # later lines lie over earlier ones
    assert rows[6].startswith("r")
    assert "r rising, l level" in drawn


def test_a_single_point_is_no_failure() -> None:
    assert line_chart.text({"one": [(5.0, 5.0), (5.0, 5.0)]})
    ElementTree.fromstring(line_chart.svg("", "", "", {"one": [(1.0, 1.0)]}))
