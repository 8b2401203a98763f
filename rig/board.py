"""Draws the dashboards of rig/grafana as one HTML page of SVG charts, for those who have no Grafana.

The page shows the same panels, with the same queries, for the last minutes of a Prometheus. It has no
scripts and loads nothing, so it can be kept as the record of a run.
"""

import datetime
import html
import json
import math
import pathlib
import re
import time
import urllib.error
import urllib.parse
import urllib.request

import check_dashboards

# Most points of a line, and most lines of a chart.
POINTS_MAX = 180
LINES_MAX = 8
# Size of a chart, and of the space around its lines, in the units of its view box.
WIDTH, HEIGHT = 400, 170
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 8, 20
SI = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ")]
BINARY = [(2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"), (1, "")]
# Grafana's units: factor, prefixes and name of each.
UNITS = {
    "short": (1, SI[:5], ""), "ops": (1, SI[:5], "/s"), "reqps": (1, SI[:5], "/s"),
    "cps": (1, SI[:5], "/s"), "percentunit": (100, [(1, "")], "%"), "bytes": (1, BINARY, "B"),
    "Bps": (1, SI[:5], "B/s"), "s": (1, SI[4:], "s"), "ms": (1e-3, SI[4:], "s"),
}
STYLE = """
:root { color-scheme: light dark; --ground: #f6f5f2; --card: #fff; --ink: #1d1d1b; --faint: #65645f;
  --line: #dedbd4; --c0: #1f6f9f; --c1: #c2410c; --c2: #15803d; --c3: #7e22ce; --c4: #a16207;
  --c5: #be185d; --c6: #0f766e; --c7: #57534e; }
@media (prefers-color-scheme: dark) { :root { --ground: #171716; --card: #21211f; --ink: #ecebe7;
  --faint: #a3a19a; --line: #3a3935; --c0: #63b3e0; --c1: #fb923c; --c2: #4ade80; --c3: #c084fc;
  --c4: #facc15; --c5: #f472b6; --c6: #2dd4bf; --c7: #a8a29e; } }
body { margin: 0 auto; padding: 1rem; max-width: 84rem; background: var(--ground); color: var(--ink);
  font: 15px/1.4 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.15rem; margin: 1.6rem 0 .3rem; }
h3 { font-size: 1rem; margin: .9rem 0 .4rem; } p { margin: .2rem 0; color: var(--faint); }
.row { display: grid; gap: .6rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); }
figure { margin: 0; padding: .6rem .7rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .4rem; min-width: 0; }
figcaption { font-weight: 600; } figcaption span { font-weight: 400; color: var(--faint); font-size: .85rem; }
svg { display: block; width: 100%; height: auto; margin-top: .3rem; }
text { fill: var(--faint); font-size: 11px; } .grid { stroke: var(--line); }
path { fill: none; stroke: var(--c); stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }
path.area { fill: var(--c); fill-opacity: .25; stroke: none; }
ul { list-style: none; margin: .3rem 0 0; padding: 0; font-size: .82rem; display: flex; flex-wrap: wrap;
  gap: 0 .9rem; font-variant-numeric: tabular-nums; }
li::before { content: ""; display: inline-block; width: .9em; height: .25em; margin: 0 .35em .25em 0;
  background: var(--c); }
.alert { color: var(--c1); } .none { font-style: italic; }
""" + "".join(f".c{index} {{ --c: var(--c{index}); }}\n" for index in range(LINES_MAX))


def amount(value, unit):
    """A value with its unit, in three digits: `12.3 MB/s`."""
    factor, prefixes, name = UNITS.get(unit, (1, SI[:5], ""))
    value *= factor
    scale, prefix = next((it for it in prefixes if abs(value) >= it[0]), prefixes[-1])
    if abs(value) < prefixes[-1][0]:
        # Zero has no prefix, and neither has a share below one percent.
        scale, prefix = (1, "") if value == 0 else prefixes[-1]
    value /= scale
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {prefix}{name}".replace(" /s", "/s").strip()


def nice(value, unit):
    """The next larger round number: the top of an axis."""
    if value <= 0:
        return 1
    # Round in the unit that is shown: 512 MiB, 1 %.
    _, prefixes, _ = UNITS.get(unit, UNITS["short"])
    scale = next((it for it, _ in prefixes if value >= it), 1) if unit == "bytes" else 1
    power = 10 ** math.floor(math.log10(value / scale))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= value / scale * 0.99) * scale


def ask(prometheus, expr, times):
    """The series of a query: their labels, and a value or None for each time."""
    start, end, step = times[0], times[-1], times[1] - times[0]
    query = urllib.parse.urlencode({"query": expr, "start": start, "end": end, "step": step})
    with urllib.request.urlopen(f"{prometheus}/api/v1/query_range?{query}") as answer:
        found = json.load(answer)["data"]["result"]
    for series in found:
        values = {round(at): float(value) for at, value in series["values"]}
        line = [values.get(at) for at in times]
        # Quantiles of histograms without events are NaN.
        line = [it if it is not None and math.isfinite(it) else None for it in line]
        if any(it is not None for it in line):
            yield series["metric"], line


def escape(text):
    """HTML for a text outside of tags."""
    return html.escape(text, quote=False)


def name_of(target, labels):
    text = target.get("legendFormat", "")
    return re.sub(r"{{\s*(\w+)\s*}}", lambda it: labels.get(it[1], ""), text).strip() or "value"


def distinct(lines):
    """Names and values of lines; lines of one name also get the labels in which they differ."""
    for name, labels, line in lines:
        same = [other for its, other, _ in lines if its == name]
        differ = [key for key in sorted(set().union(*same)) if len({it.get(key) for it in same}) > 1]
        yield ", ".join([name, *(labels[key] for key in differ if key in labels)]), line


def windows(panel, interval):
    """The windows of a panel's rates that are not the page's: of a recording rule, or fixed ones."""
    found = set()
    for target in panel["targets"]:
        found |= set(re.findall(r"\[(\d+[smh])\]|:[a-z]\w*?(\d+[smh])\b", target["expr"]))
    return sorted({a or b for a, b in found} - {interval})


def pens(line, x, y):
    """The parts of a line between its gaps."""
    part = []
    for index, value in enumerate([*line, None]):
        if value is not None:
            part.append(f"{x(index):.1f} {y(value):.1f}")
        elif part:
            # A single value is a dot.
            yield part if len(part) > 1 else part * 2
            part = []


def chart(panel, lines, times):
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    bases = [[0] * len(times)] * len(lines)
    if custom.get("stacking", {}).get("mode") == "normal":
        sums = [0] * len(times)
        bases = []
        for place, (name, line) in enumerate(lines):
            bases.append(sums)
            sums = [base + (value or 0) for base, value in zip(sums, line)]
            lines[place] = name, [None if value is None else it for it, value in zip(sums, line)]
    values = [value for _, line in lines for value in line if value is not None]
    low, high = min(0, *values, 0), nice(max(values), unit)
    low = -nice(-low, unit) if low < 0 else 0
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(index):
        return LEFT + index * plot_width / (len(times) - 1)

    def y(value):
        return TOP + (high - value) / (high - low) * plot_height

    shown = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(panel["title"])}">']
    for share in (0, 0.5, 1):
        value = low + share * (high - low)
        shown.append(f'<path class="grid" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"/>'
                     f'<text x="{LEFT - 5}" y="{y(value) + 4:.1f}" text-anchor="end">{amount(value, unit)}</text>')
    for index, anchor in ((0, "start"), (len(times) // 2, "middle"), (len(times) - 1, "end")):
        shown.append(f'<text x="{x(index):.1f}" y="{HEIGHT - 5}" text-anchor="{anchor}">'
                     f"{clock(times[index])}</text>")
    for place, (_, line) in enumerate(lines):
        if "fillOpacity" in custom:
            area = [(at, value) for at, value in enumerate(line) if value is not None]
            edge = [f"{x(at):.1f} {y(value):.1f}" for at, value in area]
            edge += [f"{x(at):.1f} {y(bases[place][at]):.1f}" for at, _ in reversed(area)]
            shown.append(f'<path class="area c{place}" d="M{"L".join(edge)}Z"/>')
        path = "".join(f"M{'L'.join(part)}" for part in pens(line, x, y))
        shown.append(f'<path class="c{place}" d="{path}"/>')
    return "".join(shown) + "</svg>"


def clock(at):
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime("%H:%M:%S")


def figure(prometheus, panel, interval, times):
    """A panel as HTML, and whether it has data."""
    unit = panel["fieldConfig"]["defaults"].get("unit", "short")
    lines, faults = [], []
    for target in panel["targets"]:
        expr = check_dashboards.as_sent(target["expr"], interval)
        try:
            lines += [(name_of(target, labels), labels, line) for labels, line in ask(prometheus, expr, times)]
        except urllib.error.HTTPError as error:
            faults.append(f"Prometheus refuses {expr}: {error.reason}")
    lines = sorted(distinct(lines), key=lambda it: -max(value for value in it[1] if value is not None))
    rest = len(lines) - LINES_MAX
    lines = lines[:LINES_MAX]
    about = escape(panel.get("description", ""))
    if own := windows(panel, interval):
        about += f" Rates over {' and '.join(own)}."
    shown = [f'<figure><figcaption>{escape(panel["title"])} <span>{about}</span></figcaption>']
    if lines:
        legend = [f"{escape(name)}: {last(line, unit)}" for name, line in lines]
        shown.append(chart(panel, lines, times))
        shown.append("<ul>" + "".join(f'<li class="c{it}">{text}</li>' for it, text in enumerate(legend)) + "</ul>")
    else:
        shown.append('<p class="none">no data</p>')
    if rest > 0:
        shown.append(f"<p>and {rest} smaller series</p>")
    shown += [f'<p class="alert">{escape(fault)}</p>' for fault in faults]
    return "".join(shown) + "</figure>", bool(lines or faults)


def last(line, unit):
    """The last value of a series, and its largest."""
    values = [value for value in line if value is not None]
    now = "none" if line[-1] is None else amount(line[-1], unit)
    return f"{now} (at most {amount(max(values), unit)})"


def section(prometheus, board, interval, times):
    """A dashboard as HTML; None if it has no data."""
    figures = {}
    for row, panel in check_dashboards.rows(board):
        figures.setdefault(row, []).append(figure(prometheus, panel, interval, times))
    empty = [row for row, some in figures.items() if not any(has_data for _, has_data in some)]
    shown = [f"<h2>{escape(board['title'])}</h2>"]
    for row, some in figures.items():
        if row not in empty:
            title = f"<h3>{escape(row)}</h3>" if row else ""
            shown.append(f'{title}<div class="row">{"".join(text for text, _ in some)}</div>')
    if empty:
        shown.append(f"<p>Rows without data: {escape(', '.join(empty))}.</p>")
    return "\n".join(shown) if len(empty) < len(figures) else None


def page(prometheus, names, minutes, scrape, now=None):
    """The page of the dashboards with these names; of all that have data, without names."""
    seconds = minutes * 60
    step = max(scrape, -(-seconds // POINTS_MAX))
    end = int(now or time.time()) // step * step
    times = list(range(end - max(1, seconds // step) * step, end + 1, step))
    interval = f"{max(4 * scrape, step + scrape)}s"
    boards = {path.stem: json.loads(path.read_text()) for path in sorted(check_dashboards.FOLDER.glob("*.json"))}
    sections = [section(prometheus, boards[name], interval, times) for name in names or boards]
    firing = check_dashboards.ask(prometheus, 'ALERTS{alertstate="firing"}')
    firing = sorted({it["metric"]["alertname"] for it in firing})
    day = datetime.datetime.fromtimestamp(end, datetime.timezone.utc).strftime("%Y-%m-%d")
    return "\n".join([
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Dashboards of the rig</title>\n<style>{STYLE}</style>\n<h1>Dashboards of the rig</h1>",
        f"<p>{day}, {clock(times[0])} to {clock(end)} UTC, one value every {step} s, rates over {interval}, "
        "except in panels that name another time. A gap in a line means that Prometheus has no value; "
        "each legend shows the last value.</p>",
        f'<p class="alert">Firing alerts: {escape(", ".join(firing))}.</p>' if firing
        else "<p>No alert fires.</p>",
        *[it or f"<p>{escape(boards[name]['title'])}: no data.</p>"
          for name, it in zip(names or boards, sections) if it or names],
        "",
    ])


def write(prometheus, names, minutes, scrape, output):
    """Writes the page; returns the reason if that fails."""
    try:
        text = page(prometheus, names, minutes, scrape)
    except (urllib.error.HTTPError, ValueError, KeyError, TypeError):
        return f"{prometheus} does not answer as Prometheus does; give its URL with --prometheus"
    except OSError as error:
        reason = getattr(error, "reason", error)
        return f"no answer from Prometheus at {prometheus}: {reason}; give its URL with --prometheus"
    try:
        pathlib.Path(output).write_text(text)
    except OSError as error:
        return f"cannot write the page: {error}"
