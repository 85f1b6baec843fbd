"""The look of the page and its one script: colours as variables, so that a drawing is right in light and dark.

The eight colours are Okabe and Ito's (distinct in the common kinds of colour blindness), darkened or lightened
until each stands out from its background; yellow, which no white page can hold, became an olive. Style and script
are Python text and no files of their own, so that the fingerprint of the report's code covers them.
"""

import base64
import hashlib

from runtime.report.plots import TEXT_SIZE

_LIGHT = """
--page:#fff;--ink:#16191d;--ink2:#4b535c;--ink3:#6b747e;--hair:#e3e6ea;--band:#f3f5f7;--border:#cfd5db;--card:#f7f8fa;
--a0:.68;--a1:.4;--a2:.2;--a3:.92;--main:#005f9e;--branch:#c8500a;--kept:#bcd3c5;--good:#0a7a55;--bad:#b3261e;--warn:#8a5a00;--on-area:#0d1013;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b9649a;--c4:#c98a00;--c5:#3f9fd8;--c6:#7a7a1f;--c7:#6b5b95;
--drop0:#7f5539;--drop1:#c98a00;--drop2:#3f7fb2;--drop3:#b9649a;
"""
_DARK = """
--page:#111418;--ink:#eceff2;--ink2:#b4bcc5;--ink3:#8f99a3;--hair:#2a3037;--band:#181c21;--border:#3a424b;--card:#191d22;
--a0:.9;--a1:.6;--a2:.4;--a3:.75;--main:#5db4f0;--branch:#f5914e;--kept:#3f5a4b;--good:#46c79a;--bad:#ff8a80;--warn:#e3b341;--on-area:#0d1013;
--c0:#4aa8e8;--c1:#f08a4b;--c2:#35c49a;--c3:#e29bc4;--c4:#ecb24a;--c5:#8ccbf2;--c6:#c5c55c;--c7:#b3a4dd;
--drop0:#b5855f;--drop1:#ecb24a;--drop2:#6fb1e3;--drop3:#e29bc4;
"""

STYLE = f""":root{{color-scheme:light dark;{_LIGHT}}}
@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
""" + """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",
  Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-text-size-adjust:100%}
main{max-width:1088px;margin:0 auto;padding:36px 24px 72px}
h1{font-size:28px;line-height:1.2;margin:0 0 8px;letter-spacing:-.01em}
h2{font-size:20px;line-height:1.3;margin:52px 0 6px;padding-top:18px;border-top:1px solid var(--hair)}
h3{font-size:15px;margin:26px 0 6px}
p{margin:6px 0 12px;max-width:76ch;color:var(--ink2)}
.lead{font-size:16px}
nav{margin:18px 0 0;display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13.5px}
a{color:var(--main);text-underline-offset:2px;text-decoration-thickness:1px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:22px 0 8px}
.tile{background:var(--card);border:1px solid var(--hair);border-radius:8px;padding:12px 14px}
.tile b{display:block;font-size:25px;line-height:1.2;font-weight:600;font-variant-numeric:tabular-nums;
  letter-spacing:-.01em}
.tile span{display:block;font-size:12.5px;color:var(--ink2);margin-bottom:3px}
.tile small{display:block;font-size:12px;line-height:1.4;color:var(--ink3);margin-top:3px}
figure{margin:14px 0 8px}
figcaption{font-size:13px;line-height:1.5;color:var(--ink2);max-width:92ch;margin-top:6px}
svg{display:block;width:100%;height:auto;overflow:visible}
.narrow{display:none}
svg text{font-size:TEXTpx;fill:var(--ink3);font-variant-numeric:tabular-nums}
svg .title{fill:var(--ink2)}
svg .name{fill:var(--ink)}
svg .strong{font-weight:600}
svg .panel{fill:var(--ink);font-weight:600}
svg .quiet{font-style:italic}svg .kind{fill:var(--ink2)}svg .on-area{fill:var(--on-area);pointer-events:none}
svg .pale{fill:var(--ink)}
.grid{stroke:var(--hair)}.axis{stroke:var(--border)}.zero{stroke:var(--ink2);stroke-dasharray:3 3}
.band{fill:transparent}.band.odd{fill:var(--band)}.border{stroke:var(--border);stroke-dasharray:2 3}
.leader{stroke:var(--border);stroke-dasharray:1.5 2.5}.tie{fill:none;stroke-width:1.2}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}.line.main{stroke:var(--main)}
.line.branch{stroke:var(--branch);stroke-width:1.1}.line.faint{stroke-opacity:.45}.line.strong{stroke-width:1.8}
.envelope{fill:var(--main);fill-opacity:.18}
.dot{stroke:var(--page);stroke-width:1}.dot.main{fill:var(--main)}.dot.branch{fill:var(--branch)}
.dot.faint{fill:var(--ink3);fill-opacity:.55;stroke:none}
.ring{fill:var(--page);stroke-width:1.5}.ring.main{stroke:var(--main)}.ring.branch{stroke:var(--branch)}
.stem{stroke:var(--branch)}.stem.main{stroke:var(--main)}
.bar{stroke-width:2.5;stroke-linecap:round}.bar.main{stroke:var(--main)}.bar.branch{stroke:var(--branch)}
.main-bar{fill:var(--main)}.main-bar.odd{fill-opacity:.72}.branch-bar{fill:var(--branch)}
.area{stroke:var(--page);stroke-width:.75}
.stripe{fill:var(--band)}.chain{stroke:var(--good);stroke-opacity:.45;stroke-width:1.5}
.bus{fill:none;stroke:var(--border);stroke-width:1.5}
.spine{fill:none;stroke-width:2}
.spine.main{stroke:var(--main)}
.spine.branch{stroke:var(--branch);stroke-width:1.4}
.step circle{fill:var(--page);stroke:var(--ink3);stroke-width:1.4}
.step .sign{fill:none;stroke:var(--page);stroke-width:1.5;stroke-linecap:round;stroke-linejoin:round}
.step.done circle{fill:var(--good);stroke:var(--good)}.step.failed circle{fill:var(--bad);stroke:var(--bad)}
.step.running circle{fill:var(--main);stroke:var(--main)}.step.blocked circle{fill:var(--ink3)}
.step.stale circle,.step.drifted circle{stroke:var(--warn)}
.step .sign-dot{fill:var(--warn)!important;stroke:none!important}
.step.this circle{stroke:var(--main)}.step.this .sign-dot{fill:var(--main)!important}
.step.missing circle{stroke-dasharray:2 2}.step.unknown circle{stroke:var(--border)}
.lit .step:not(.near){opacity:.22}.lit .chain,.lit .bus{opacity:.3}
.keys{display:flex;flex-wrap:wrap;gap:4px 16px;list-style:none;margin:8px 0 0;padding:0;font-size:12.5px;
  color:var(--ink2)}
.keys li{display:flex;align-items:center;gap:6px}.keys svg{width:14px;height:14px;flex:none}
.keys.lines svg{width:48px}
.scroll{overflow-x:auto;margin:12px 0}
.words{width:max-content;max-width:calc(100vw - 64px);position:relative;left:50%;transform:translateX(-50%)}
.words pre{font-size:13px}
table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;min-width:min(100%,460px)}
caption{position:sticky;left:0;text-align:left;color:var(--ink2);
  font-size:13px;padding:0 0 6px;max-width:min(92ch,calc(100vw - 48px))}
th,td{padding:4px 12px 4px 0;text-align:left;vertical-align:baseline;border-bottom:1px solid var(--hair);
  white-space:nowrap}
thead th{color:var(--ink2);font-weight:500;border-bottom-color:var(--border);vertical-align:bottom}
tbody th{font-weight:500}.scroll tbody th,.scroll thead th:first-child{position:sticky;left:0;background:var(--page)}
th.number,td.number{text-align:right;padding-left:10px}
.best{font-weight:700}.quiet{color:var(--ink3)}td.wrap,.wrap td{white-space:normal}
.recipe td{white-space:normal;min-width:120px}.recipe code{white-space:nowrap;overflow-wrap:normal}
[rowspan]{vertical-align:top}
details{border-bottom:1px solid var(--hair);padding:5px 0;font-size:13.5px}
summary{cursor:pointer;padding:2px 0}
summary:focus-visible,.scroll:focus-visible{outline:2px solid var(--main);outline-offset:2px}
details details{margin-left:18px;border:0}
.sample{margin:8px 0 12px 18px;padding:8px 12px;background:var(--card);border-left:3px solid var(--border);
  border-radius:0 6px 6px 0}
.sample pre{margin:4px 0 0;white-space:pre-wrap;overflow-wrap:anywhere;font:12px/1.45 ui-monospace,
  "SF Mono",Menlo,Consolas,monospace;max-height:15em;overflow:auto}
.sample div{font-size:12.5px;color:var(--ink2);overflow-wrap:anywhere}
code{font:.92em ui-monospace,"SF Mono",Menlo,Consolas,monospace;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;font-size:13.5px;margin:12px 0}
dt{color:var(--ink2)}
dd{margin:0;overflow-wrap:anywhere}
#tip{position:fixed;z-index:2;pointer-events:none;max-width:300px;background:var(--ink);color:var(--page);
  font-size:12.5px;line-height:1.4;padding:5px 9px;border-radius:5px;overflow-wrap:anywhere}
[data-tip]:hover{filter:brightness(1.08)}
@media screen and (max-width:760px){
main{padding:22px 16px 48px}h1{font-size:23px}h2{font-size:18px;margin-top:40px}
.wide{display:none}
.narrow{display:block}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}
.tile b{font-size:21px}
.scroll tbody th{white-space:normal;overflow-wrap:break-word;max-width:45vw}
dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:8px}details details{margin-left:8px}.sample{margin-left:8px}
}
@media print{
@page{margin:14mm}
body{font-size:10.5pt;-webkit-print-color-adjust:exact;print-color-adjust:exact}main{max-width:none;padding:0}
nav{display:none}figure,tr,.tile,.sample{break-inside:avoid}h2,h3,section>p{break-after:avoid}.scroll{overflow:visible}
table{font-size:8.5pt}th,td{padding-right:8px}
}
""".replace("TEXT", f"{TEXT_SIZE:g}")

# Pointing at a mark shows what it is; pointing at a step also lights its inputs and its readers. Nothing on the page
# needs the script: each figure it serves has its values in a table below.
SCRIPT = """(function(){
var tip=document.createElement('div');tip.id='tip';tip.hidden=true;document.body.appendChild(tip);
var lit=null;
function dark(){if(!lit)return;lit.classList.remove('lit');
lit.querySelectorAll('.near').forEach(function(e){e.classList.remove('near')});lit=null}
function show(e){
var mark=e.target.closest?e.target.closest('[data-tip]'):null;dark();
if(!mark){tip.hidden=true;return}
tip.textContent=mark.getAttribute('data-tip');tip.hidden=false;
var x=Math.min(e.clientX+14,innerWidth-tip.offsetWidth-6),y=e.clientY+18;
if(y+tip.offsetHeight>innerHeight)y=e.clientY-tip.offsetHeight-10;
tip.style.left=Math.max(6,x)+'px';tip.style.top=Math.max(6,y)+'px';
if(mark.hasAttribute('data-near')){
lit=mark.closest('svg');lit.classList.add('lit');mark.classList.add('near');
mark.getAttribute('data-near').split(' ').forEach(function(n){
var other=n&&lit.querySelector('[data-step="'+n+'"]');if(other)other.classList.add('near')})}
}
document.addEventListener('pointermove',show);document.addEventListener('pointerdown',show);
addEventListener('beforeprint',function(){document.querySelectorAll('details.print').forEach(function(d){d.open=true})});
})();"""


def content_security_policy() -> str:
    """Allows this script and the styles, nothing else: a page with strangers' texts loads and sends nothing."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f"{allowed}; base-uri 'none'; form-action 'none'"
