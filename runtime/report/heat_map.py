"""Heat map: held-out text whose background shows how well a model predicts each token, at moments of its training.

The page draws a window at one moment, or the change between two moments. A moment is a step of a phase under one set of
weights, so moments also compare EMA weights, phases and forks.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32

from runtime.report.document import document
from runtime.report.markup import Markup, data_element, element, table
from runtime.report.recipe import counted

MOST_CELLS = 48_000
"""Tokens times moments of a page, which then has about 3 MB."""
FEWEST_TOKENS = 64
"""Tokens of a window that a page shows in any case."""
EASY_NATS = 0.05
"""Mean loss of a window below which its text may be a near duplicate of training text."""


@dataclasses.dataclass(frozen=True, eq=False)
class Moment:
    """The predictions of a window's tokens by one set of weights; NaN and -1 where a token is not predicted."""

    log_prob: Float32[np.ndarray, "token"]
    """Natural logarithm."""
    rank: Int32[np.ndarray, "token"]
    entropy: Float32[np.ndarray, "token"]
    likely: Sequence[Sequence[str]]
    """Texts of the likeliest tokens, for each token."""
    likely_log_prob: Float32[np.ndarray, "token likely"]


@dataclasses.dataclass(frozen=True, eq=False)
class HeatWindow:
    """A window of held-out text."""

    domain: str
    digest: str
    texts: Sequence[str]
    """Text of each token."""
    moments: Sequence[Moment | None]
    """Predictions at each moment of the page; None where there are none."""

    @property
    def newest(self) -> Moment:
        """The last moment with predictions."""
        return next(moment for moment in reversed(self.moments) if moment is not None)

    @property
    def mean_loss(self) -> float:
        """Mean loss of the predicted tokens at the newest moment, in nats."""
        return float(-np.nanmean(self.newest.log_prob))


def page(
    title: str,
    moments: Sequence[str],
    windows: Sequence[HeatWindow],
    notes: Sequence[str] = (),
    *,
    text: str = "held-out text",
) -> str:
    """Return the whole page.

    Args:
        moments: their names, in the order of training.
        windows: at least one; the page orders them from the hardest to the easiest.
        notes: sentences below the map.
        text: what the windows are of.
    """
    ordered = sorted(windows, key=lambda window: (-window.mean_loss, window.domain, window.digest))
    num_shown = max(FEWEST_TOKENS, MOST_CELLS // (len(ordered) * len(moments)))
    if any(len(window.texts) > num_shown for window in ordered):
        notes = [f"each window shows its first {num_shown:,} tokens; choose fewer phases or domains for more", *notes]
    data = {"moments": moments, "windows": [_data(window, num_shown) for window in ordered]}
    names = [f"{window.domain} {window.digest}" for window in ordered]
    form = element(
        "form",
        element("label", "window ", _select("window", names)),
        element(
            "label",
            "moment ",
            element("input", id="moment", type="range", min="0", max=str(len(moments) - 1)),
            element("output", id="moment-name"),
        ),
        element("label", "shows ", _select("against", ["its probability", *(f"change since {m}" for m in moments)])),
        class_="tools heat-tools",
    )
    return document(
        title,
        f"{counted(len(ordered), 'window')} of {text} at {counted(len(moments), 'moment')}. The stronger a "
        "token's colour, the less the model expected it. Point at a token, or use the Tab key.",
        form,
        element("div", element("pre", id="text", class_="heat"), element("div", id="token", class_="sample")),
        _windows_table(ordered),
        data_element(data, id="data"),
        notes=notes,
        scripts=(SCRIPT,),
    )


def _select(key: str, names: Sequence[str]) -> Markup:
    return element("select", *(element("option", name, value=str(i)) for i, name in enumerate(names)), id=key)


def _windows_table(windows: Sequence[HeatWindow]) -> Markup:
    headings = ["window", "#mean loss (nats)", "#likeliest token right", "hardest token", "#its loss", "warning"]
    rows = []
    for window in windows:
        newest = window.newest
        known = np.isfinite(newest.log_prob)
        hardest = int(np.nanargmin(newest.log_prob))
        rows.append(
            [
                f"{window.domain} {window.digest}",
                f"{window.mean_loss:.3f}",
                f"{float((newest.rank[known] == 0).mean()):.0%}",
                json.dumps(window.texts[hardest], ensure_ascii=False),
                f"{-newest.log_prob[hardest]:.2f}",
                "as easy as text that was trained on" if window.mean_loss < EASY_NATS else "",
            ]
        )
    return table(headings, rows, "Windows at their newest moment, the hardest first")


def _data(window: HeatWindow, num_shown: int) -> dict[str, Any]:
    moments = [None if moment is None else _moment_data(moment, num_shown) for moment in window.moments]
    return {"texts": window.texts[:num_shown], "moments": moments}


def _moment_data(moment: Moment, num_shown: int) -> dict[str, Any]:
    known = np.isfinite(moment.log_prob[:num_shown]).tolist()

    def rounded(values: np.ndarray, digits: int) -> list[float | None]:
        return [
            round(value, digits) if is_known else None for value, is_known in zip(values.tolist(), known, strict=True)
        ]

    log_probs = [[round(value, 2) for value in values] for values in moment.likely_log_prob.tolist()]
    likely = [[*zip(*pair, strict=True)] for pair in zip(moment.likely, log_probs, strict=True)]
    return {
        "logProb": rounded(moment.log_prob[:num_shown], 3),
        "rank": moment.rank[:num_shown].tolist(),
        "entropy": rounded(moment.entropy[:num_shown], 2),
        "likely": [each if is_known else [] for each, is_known in zip(likely[:num_shown], known, strict=True)],
    }


SCRIPT = """(function(){
var data=JSON.parse(document.getElementById('data').textContent);
function get(id){return document.getElementById(id)}
var text=get('text'),token=get('token'),win=get('window'),moment=get('moment'),against=get('against');
function colour(name,share){return 'color-mix(in srgb, var('+name+') '+Math.round(75*share)+'%, transparent)'}
function surprise(logProb){return colour('--branch',1-Math.exp(logProb/4))}
function change(nats){return colour(nats>0?'--main':'--branch',Math.min(Math.abs(nats),5)/5)}
function visible(words){
return words.replace(/\\n/g,'\\u23ce\\n').replace(/\\t/g,'\\u21e5\\t').replace(/^ +$/,function(spaces){
return '\\u2423'.repeat(spaces.length)})}
function current(){
var window_=data.windows[+win.value];
return {window:window_,now:window_.moments[+moment.value],before:+against.value?window_.moments[+against.value-1]:null}}
function background(c,i){
var value=c.now.logProb[i];
if(value===null)return '';
if(!+against.value)return surprise(value);
return c.before&&c.before.logProb[i]!==null?change(value-c.before.logProb[i]):''}
function draw(){
var c=current();
get('moment-name').textContent=data.moments[+moment.value];
token.textContent='';text.replaceChildren();
if(!c.now){text.textContent='This window was not predicted at this moment.';return}
if(+against.value&&!c.before){text.textContent='This window was not predicted at the other moment.';return}
c.window.texts.forEach(function(words,i){
var span=document.createElement('span');
span.textContent=visible(words);span.style.background=background(c,i);span.dataset.index=i;span.tabIndex=0;
text.appendChild(span)});
var known=c.now.logProb.filter(function(value){return value!==null});
if(known.length)describe(c.now.logProb.indexOf(Math.min.apply(null,known)),'hardest token: ')}
function percent(logProb){var p=100*Math.exp(logProb);return (p<0.01?p.toExponential(1):p.toPrecision(3))+' %'}
function point(event){
var index=event.target.dataset&&event.target.dataset.index;
if(index!==undefined)describe(+index,'')}
function describe(i,title){
var c=current(),lines=[title+JSON.stringify(c.window.texts[i])];
if(c.now.logProb[i]===null)lines.push('not predicted: the first token of a document or window');
else{
lines.push('probability '+percent(c.now.logProb[i])+', rank '+(c.now.rank[i]+1)+
', loss '+(-c.now.logProb[i]).toFixed(3)+' nats, entropy '+c.now.entropy[i].toFixed(2)+' nats');
if(c.before&&c.before.logProb[i]!==null)lines.push('change of the log-probability '+
(c.now.logProb[i]-c.before.logProb[i]).toFixed(3)+' nats');
lines.push('likeliest: '+c.now.likely[i].map(function(l){return JSON.stringify(l[0])+' '+percent(l[1])}).join(', '))}
token.replaceChildren.apply(token,lines.map(function(line){
var row=document.createElement('div');row.textContent=line;return row}))}
moment.value=data.moments.length-1;
[win,moment,against].forEach(function(input){input.addEventListener('input',draw)});
['mouseover','focusin','click'].forEach(function(kind){text.addEventListener(kind,point)});
draw()})()"""
