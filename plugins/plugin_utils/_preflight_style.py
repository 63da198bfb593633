# Copyright (c) 2026, The baremetal.inference contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.
# Do not use this from other collections or standalone plugins/modules!

"""Colours and style sheet of the preflight reports, for bright and dark screens and for paper."""

from __future__ import annotations

import typing as t

Palette = t.Mapping[str, str]

# Each -ink stands on the -tint of its name, on the page and on a card.
LIGHT: Palette = {
    "page": "#f5f6f8",
    "card": "#ffffff",
    "line": "#dfe3e8",
    "ink": "#1c2430",
    "muted": "#566170",
    "accent": "#3f7f8c",
    "track": "#e6eaee",
    "pass-ink": "#17653a",
    "pass-tint": "#e6f4eb",
    "pass-solid": "#2c8a55",
    "info-ink": "#1d5a92",
    "info-tint": "#e6f0fa",
    "info-solid": "#3b7dba",
    "skipped-ink": "#525c68",
    "skipped-tint": "#eceff2",
    "skipped-solid": "#7b8692",
    "unknown-ink": "#62389a",
    "unknown-tint": "#f0eafa",
    "unknown-solid": "#8057b8",
    "warn-ink": "#7d4a00",
    "warn-tint": "#fdf2d8",
    "warn-solid": "#c98a14",
    "fail-ink": "#a01919",
    "fail-tint": "#fce9e8",
    "fail-solid": "#c93a35",
    "nv-ink": "#ffffff",
    "nv-tint": "#18707a",
    "pix-ink": "#0d3b40",
    "pix-tint": "#b5dade",
    "pxb-ink": "#0d3b40",
    "pxb-tint": "#d6ebed",
    "phb-ink": "#47431f",
    "phb-tint": "#f0efe0",
    "node-ink": "#5a4310",
    "node-tint": "#f7ead0",
    "sys-ink": "#63360f",
    "sys-tint": "#f4decb",
}
DARK: Palette = {
    "page": "#11151a",
    "card": "#191f26",
    "line": "#2d3640",
    "ink": "#e7ebf0",
    "muted": "#a0abb8",
    "accent": "#57a3b1",
    "track": "#2b333c",
    "pass-ink": "#7fd6a2",
    "pass-tint": "#16301f",
    "pass-solid": "#3f9f68",
    "info-ink": "#8fc1f0",
    "info-tint": "#162a3f",
    "info-solid": "#4a8bc7",
    "skipped-ink": "#b3bdc8",
    "skipped-tint": "#262d35",
    "skipped-solid": "#7c8793",
    "unknown-ink": "#c9aef0",
    "unknown-tint": "#2a2140",
    "unknown-solid": "#8f68c9",
    "warn-ink": "#f0c065",
    "warn-tint": "#352a12",
    "warn-solid": "#c98f24",
    "fail-ink": "#ff9d97",
    "fail-tint": "#3b1a1a",
    "fail-solid": "#d6504a",
    "nv-ink": "#04181a",
    "nv-tint": "#4fb0ba",
    "pix-ink": "#d5eef0",
    "pix-tint": "#24565c",
    "pxb-ink": "#cfe7e9",
    "pxb-tint": "#1d3d42",
    "phb-ink": "#e6e4d0",
    "phb-tint": "#34352b",
    "node-ink": "#f0e2c4",
    "node-tint": "#3f3624",
    "sys-ink": "#f5dcc6",
    "sys-tint": "#463220",
}


def _variables(palette: Palette) -> str:
    return "".join(f"--{name}:{value};" for name, value in palette.items())


_COLOURS = (
    f":root{{color-scheme:light dark;{_variables(LIGHT)}}}\n"
    f"@media screen and (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}\n"
)

# Also what a drawing needs that stands alone in a file.
DRAWING = (
    _COLOURS
    + """
svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-size:12px;
fill:var(--ink)}
svg .small{font-size:11px;fill:var(--muted)}
svg .mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:10.5px;
fill:var(--muted)}
svg .strong{font-weight:600}
svg .middle{text-anchor:middle}
svg .end{text-anchor:end}
svg .halo{paint-order:stroke;stroke:var(--card);stroke-width:5px;stroke-linejoin:round}
svg .node{fill:var(--page);stroke:var(--line)}
svg .switch{fill:var(--track);stroke:none}
svg .fabric{fill:var(--page);stroke:var(--accent)}
svg .chip{fill:var(--card);stroke:var(--line)}
svg .wire{stroke:var(--skipped-solid);stroke-width:1.5;fill:none}
svg .nvlink{stroke:var(--accent);stroke-width:3;fill:none}
svg .nvlink.some{stroke:var(--fail-solid);stroke-dasharray:7 4}
svg .nvlink.none{stroke:var(--fail-solid);stroke-dasharray:1.5 5;stroke-linecap:round}
svg .track{fill:var(--track)}
svg .fill{fill:var(--accent)}
svg .tick{stroke:var(--ink);stroke-width:1.5}
svg .axis{stroke:var(--line)}
svg .limit{stroke:var(--fail-solid);stroke-dasharray:4 3}
svg .curve{fill:none;stroke:var(--accent);stroke-width:1.6;stroke-linejoin:round}
svg .earlier{fill:var(--card);stroke:var(--warn-solid);stroke-width:1.5}
svg .up{fill:var(--accent)}
svg .down{fill:var(--fail-tint);stroke:var(--fail-solid);stroke-width:1.2}
"""
    + "".join(
        f"svg .box.{name}{{fill:var(--{name}-tint);stroke:var(--{name}-solid);stroke-width:1.5}}"
        f"svg .solid.{name}{{fill:var(--{name}-solid)}}svg .word.{name}{{fill:var(--{name}-ink)}}\n"
        for name in ("pass", "info", "skipped", "unknown", "warn", "fail")
    )
    + "svg .box.gone{stroke-dasharray:5 4}\nsvg .on-solid{fill:#fff;font-weight:700}\n"
)

PAGE = (
    DRAWING
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif;-webkit-text-size-adjust:100%}
main{max-width:1280px;margin:0 auto;padding:28px 20px 48px}
h1,h2,h3,p{margin:0}
h1{font-size:27px;line-height:1.2;overflow-wrap:anywhere}
h2{font-size:18px;margin-bottom:4px}
section,header.banner{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:20px 22px;
margin-top:18px}
a{color:var(--info-ink)}
code,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.88em}
.muted{color:var(--muted)}
.note{color:var(--muted);font-size:13.5px;margin-bottom:12px}
.number{font-variant-numeric:tabular-nums}
header.banner{display:flex;gap:20px;align-items:center;border-left-width:8px;margin-top:0}
header.banner .seal{flex:none;width:60px;height:60px;border-radius:50%;font-size:32px;font-weight:700;color:#fff;
display:grid;place-items:center}
header.banner .verdict{font-size:19px;font-weight:600;margin-top:2px}
.facts{color:var(--muted);margin-top:6px;font-size:14px}
.facts span{display:inline-block;margin-right:18px}
.facts b{color:var(--ink);font-weight:500}
.share{display:block;width:100%;height:10px;margin-top:18px}
.badge{display:inline-flex;align-items:baseline;gap:6px;border-radius:20px;padding:1px 10px 1px 7px;font-size:13px;
font-weight:600;white-space:nowrap}
.badge .symbol{font-weight:700;min-width:1em;text-align:center}
.badges{display:flex;flex-wrap:wrap;gap:8px;margin-top:10px}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(176px,1fr));gap:10px;margin-top:18px}
.tile{display:block;border:1px solid var(--line);border-left-width:5px;border-radius:9px;padding:9px 12px;
background:var(--card);color:var(--ink);text-decoration:none}
.tile:hover,.tile:focus-visible{border-color:var(--accent)}
.tile strong{display:block;font-weight:600}
.tile .word{font-size:13px;font-weight:600}
.tile .rest{font-size:12.5px;color:var(--muted);display:block}
.task{border-left:5px solid;border-radius:8px;padding:12px 16px;margin-top:12px;background:var(--page)}
.task .head{display:flex;flex-wrap:wrap;gap:4px 10px;align-items:baseline}
.task h3{font-size:15.5px}
.task dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px;margin:8px 0 0;font-size:14px}
.task dt{color:var(--muted)}
.task dd{margin:0;overflow-wrap:anywhere;white-space:pre-line}
.task dd.fix{font-weight:500}
.scroll{overflow-x:auto}
.picture{display:block;width:100%;height:auto;margin:0 auto}
table{border-collapse:collapse;width:100%;font-size:13.5px}
caption{text-align:left;color:var(--muted);padding-bottom:6px}
th,td{text-align:left;padding:8px 10px;border-bottom:1px solid var(--line);vertical-align:top}
thead th{font-weight:600;color:var(--muted);font-size:12.5px;white-space:nowrap;vertical-align:bottom}
tbody tr:last-child>*{border-bottom:0}
td.wrap{overflow-wrap:anywhere;white-space:pre-line}
tr.group th{background:var(--page);color:var(--ink);font-size:13.5px;padding-top:9px}
.gpus td,.gpus th{padding:8px 8px}
.gpus tbody th{font-weight:600;white-space:nowrap}
.gpus .sub{font-weight:400}
.gpus .badge{font-size:12px}
.gpus td{white-space:nowrap}
.gpus svg{display:block;margin:5px 0 2px}
.gpus td>.badge{margin-top:5px}
.sub{display:block;color:var(--muted);font-size:12px}
.matrices{display:flex;flex-wrap:wrap;gap:14px 40px;margin-top:8px}
.matrix caption{white-space:nowrap}
.matrix{width:auto;border-collapse:separate;border-spacing:3px}
.matrix th,.matrix td{border:0;padding:0;text-align:center;min-width:53px;height:36px;vertical-align:middle;
font-size:12.5px}
.matrix tbody th{text-align:right;padding-right:9px;white-space:nowrap}
.matrix thead th{vertical-align:bottom;padding-bottom:5px}
.matrix td{border-radius:6px;font-weight:600}
.matrix td.self{color:var(--muted);font-weight:400}
.matrix td.trouble{outline:2.5px solid var(--fail-solid);outline-offset:-2px}
.legend{display:flex;flex-wrap:wrap;gap:6px 18px;font-size:13px;margin-top:12px;padding:0;list-style:none}
.legend .swatch{display:inline-block;min-width:46px;text-align:center;border-radius:5px;font-weight:600;padding:1px 6px;
margin-right:6px;font-size:12px}
.small-multiples{display:grid;grid-template-columns:repeat(auto-fill,minmax(270px,1fr));gap:14px}
figure{margin:0}
figcaption{font-size:13px;font-weight:600}
.fleet td,.fleet th{text-align:center;vertical-align:middle;padding:7px 6px}
.fleet thead th{white-space:normal}
.fleet th[scope=row],.fleet td.left,.fleet thead th:nth-child(-n+2){text-align:left}
.fleet th[scope=row]{min-width:130px;overflow-wrap:anywhere}
.fleet .sub{font-weight:400}
.fleet .cell{display:block;border-radius:6px;padding:3px 4px;font-size:12.5px;font-weight:600;white-space:nowrap}
.fleet .cell small{font-weight:400;display:block}
footer{color:var(--muted);font-size:13px;margin-top:22px}
footer ul{padding:0;list-style:none;display:flex;flex-wrap:wrap;gap:6px 18px;margin:0 0 10px}
"""
    + "".join(
        f".{name}{{--solid:var(--{name}-solid);--mine:var(--{name}-ink);--under:var(--{name}-tint)}}"
        for name in ("pass", "info", "skipped", "unknown", "warn", "fail")
    )
    + """
.badge,.cell{background:var(--under);color:var(--mine)}
.tile,.task,header.banner{border-left-color:var(--solid)}
.tile .word,header.banner .verdict{color:var(--mine)}
header.banner .seal{background:var(--solid)}
"""
    + "".join(
        f".level-{name}{{background:var(--{name}-tint);color:var(--{name}-ink)}}"
        for name in ("nv", "pix", "pxb", "phb", "node", "sys")
    )
    + """
@media (max-width:640px){main{padding:12px}section,header.banner{padding:14px}.task dl{grid-template-columns:1fr}}
@page{size:A4 landscape;margin:11mm}
@media print{
*{-webkit-print-color-adjust:exact;print-color-adjust:exact}
body{background:#fff;font-size:11px}
main{max-width:none;padding:0}
section,header.banner{padding:8px 12px;margin-top:9px}
h2{break-after:avoid}
tr,.task,figure,.tile,.picture{break-inside:avoid}
thead{display:table-header-group}
.scroll{overflow:visible}
table,.gpus td,.matrix th,.matrix td,.fleet .cell,.sub,.badge,.gpus .badge,.note,.facts,.task dl,.legend,.tile .word,.tile .rest,
figcaption,footer{font-size:9.5px}
.note{break-after:avoid}
.matrices>div{break-inside:avoid}
.matrix th,.matrix td{min-width:44px;height:23px}
.task{padding:6px 10px;margin-top:7px}
.small-multiples{grid-template-columns:repeat(4,1fr)}
th,td,.gpus td,.gpus th{padding:3px 5px}
a{color:inherit;text-decoration:none}
}
"""
)
