"""Heat map: held-out text whose background shows how well a model predicts each token, at moments of its training.

The page draws a window at one moment, or the change between two moments. A moment is a step of a phase under one set of
weights, so moments also compare EMA weights, phases and forks.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32

from runtime.report.document import document
from runtime.report.markup import Markup, data_element, element, table
from runtime.report.recipe import counted

MOST_CELLS, MOST_CELLS_OF_A_REPORT = 48_000, 18_000
"""Tokens times moments of a page, which then have about 3 MB; figures of a report may take 3.8 MB of its 5."""
FEWEST_TOKENS = 24
"""Tokens of a window that a page shows in any case."""
EASY_NATS = 0.05
"""Median loss of a window below which its text, or its template, may have been trained on."""


@dataclasses.dataclass(frozen=True, eq=False)
class Moment:
    """The predictions of a window's tokens by one set of weights; NaN and -1 where a token is not predicted."""

    log_prob: Float32[np.ndarray, "token"]
    """Natural logarithm."""
    rank: Int32[np.ndarray, "token"]
    entropy: Float32[np.ndarray, "token"]
    likely: Sequence[Sequence[str]]
    """Texts of the likeliest tokens, for each token that a page shows."""
    likely_log_prob: Float32[np.ndarray, "shown likely"]


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
    def is_suspicious(self) -> bool:
        """Whether the window is as easy as text that was trained on, if only outside a few blanks."""
        return float(-np.nanmedian(self.newest.log_prob)) < EASY_NATS

    @property
    def mean_loss(self) -> float:
        """Mean loss of the predicted tokens at the newest moment, in nats."""
        return float(-np.nanmean(self.newest.log_prob))


def tokens_shown(num_windows: int, num_moments: int, most_cells: int = MOST_CELLS) -> int:
    """Return how many tokens of each window a page shows at most."""
    return max(FEWEST_TOKENS, most_cells // (num_windows * num_moments))


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
        moments: their names: branches, then the main line, each in the order of training; the last is the newest.
        windows: at least one; suspiciously easy ones come first, then the hardest.
        notes: sentences below the map.
        text: what the windows are of.
    """
    lead = f"{counted(len(windows), 'window')} of {text} at {counted(len(moments), 'moment')}."
    return document(title, lead, *heat_map(moments, windows), notes=notes, scripts=(SCRIPT,))


def heat_map(moments: Sequence[str], windows: Sequence[HeatWindow], most_cells: int = MOST_CELLS) -> list[Markup]:
    """Return the elements that `SCRIPT` fills, with their data and a table of the windows; one a document."""
    ordered = sorted(
        windows, key=lambda window: (not window.is_suspicious, -window.mean_loss, window.domain, window.digest)
    )
    num_shown = tokens_shown(len(ordered), len(moments), most_cells)
    text = (
        "The stronger a token's colour, the less the model expected it; of a change, blue became easier, and orange "
        "harder. Point at a token, or use the Tab key."
    )
    if any(len(window.texts) > num_shown for window in ordered):
        text += f" Each window shows its first {num_shown:,} tokens; the command heat-map draws more of fewer phases."
    if len(moments) > 1:
        text += " The slider moves over the branches first, then over the main line, each in the order of training."
    data = {"moments": moments, "windows": [_data(window, num_shown) for window in ordered]}
    names = [f"{window.domain} {window.digest}" for window in ordered]
    shows = ["its probability", *(f"change since {name}" for name in moments)]
    form = Markup(f"""<form class="tools heat-tools"><label>window {_select("window", names)}</label>
<label>moment <input id="moment" type="range" min="0" max="{len(moments) - 1}">
<output id="moment-name"></output></label>
<label>shows {_select("against", shows)}</label></form>
<div><pre id="text" class="heat"></pre><div id="token" class="sample"></div></div>""")
    return [element("p", text), form, _windows_table(ordered), data_element(data, id="data")]


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
                "as easy as text that was trained on" if window.is_suspicious else "",
            ]
        )
    return table(headings, rows, "Windows at their newest moment: suspiciously easy ones, then the hardest first")


def _data(window: HeatWindow, num_shown: int) -> dict[str, Any]:
    moments = [None if moment is None else _moment_data(moment, num_shown) for moment in window.moments]
    return {"texts": window.texts[:num_shown], "moments": moments}


def _moment_data(moment: Moment, num_shown: int) -> dict[str, Any]:
    def rounded(values: np.ndarray, digits: int) -> list[float | None]:
        return [round(value, digits) if math.isfinite(value) else None for value in values[:num_shown].tolist()]

    ranks = moment.rank[:num_shown].tolist()
    log_probs = [[round(value, 2) for value in values] for values in moment.likely_log_prob[:num_shown].tolist()]
    return {
        "logProb": rounded(moment.log_prob, 3),
        "rank": ranks,
        "entropy": rounded(moment.entropy, 2),
        "likely": [
            [*zip(words, values, strict=True)] if rank >= 0 else []
            for rank, words, values in zip(ranks, moment.likely[:num_shown], log_probs, strict=True)
        ],
    }


SCRIPT = """(()=>{
const get=id=>document.getElementById(id),data=JSON.parse(get('data').textContent);
const text=get('text'),token=get('token'),win=get('window'),moment=get('moment'),against=get('against');
const colour=(name,share)=>'color-mix(in srgb, var('+name+') '+Math.round(75*share)+'%, transparent)';
const percent=logProb=>{const p=100*Math.exp(logProb);return (p<0.01?p.toExponential(1):p.toPrecision(3))+' %'};
const visible=words=>words.replace(/\\n/g,'\\u23ce\\n').replace(/\\t/g,'\\u21e5\\t')
.replace(/^ +$/,spaces=>'\\u2423'.repeat(spaces.length));
function current(){
const shown=data.windows[+win.value],place=+against.value-1;
return {texts:shown.texts,now:shown.moments[+moment.value],isChange:place>=0,before:shown.moments[place]||null}}
const changeOf=(c,i)=>c.before&&c.before.logProb[i]!==null?c.now.logProb[i]-c.before.logProb[i]:null;
function background(c,i){
const value=c.now.logProb[i],change=changeOf(c,i);
if(value===null||c.isChange&&change===null)return '';
if(c.isChange)return colour(change>0?'--main':'--branch',Math.min(Math.abs(change),5)/5);
return colour('--branch',1-Math.exp(value/4))}
function draw(){
const c=current();
get('moment-name').textContent=data.moments[+moment.value];
token.textContent='';text.replaceChildren();
if(!c.now||c.isChange&&!c.before){
text.textContent='This window was not predicted at '+(c.now?'the other':'this')+' moment.';return}
c.texts.forEach((words,i)=>{
const span=document.createElement('span');
span.textContent=visible(words);span.style.background=background(c,i);span.dataset.index=i;span.tabIndex=0;
text.append(span)});
const known=c.now.logProb.filter(value=>value!==null);
if(known.length)describe(c.now.logProb.indexOf(Math.min(...known)),'hardest token: ')}
function describe(i,title){
const c=current(),value=c.now.logProb[i],change=changeOf(c,i),lines=[title+JSON.stringify(c.texts[i])];
if(value===null)lines.push('not predicted: the first token of a document or window');
else{
lines.push('probability '+percent(value)+', rank '+(c.now.rank[i]+1)+', loss '+(-value).toFixed(3)+' nats, entropy '+
c.now.entropy[i].toFixed(2)+' nats');
if(change!==null)lines.push('change of the log-probability '+change.toFixed(3)+' nats');
lines.push('likeliest: '+c.now.likely[i].map(([word,logProb])=>JSON.stringify(word)+' '+percent(logProb)).join(', '))}
token.replaceChildren(...lines.map(line=>Object.assign(document.createElement('div'),{textContent:line})))}
const point=({target})=>{if(target.dataset.index)describe(+target.dataset.index,'')};
moment.value=data.moments.length-1;
[win,moment,against].forEach(input=>input.addEventListener('input',draw));
['mouseover','focusin','click'].forEach(kind=>text.addEventListener(kind,point));
draw()})()"""
