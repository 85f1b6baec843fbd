"""The look of the pages: colours for light and dark, and the style sheet.

The eight colours are Okabe and Ito's (distinct in the common kinds of colour blindness), darkened or lightened until
each stands out from its background. Style and script are Python text, so that the fingerprint of the code covers them.
"""

MAIN, BRANCH, PAGE, INK, MUTED, GRID = "#005f9e", "#c8500a", "#fffffe", "#16191d", "#6b747e", "#e3e6ea"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b9649a", "#c98a00", "#3f9fd8", "#7a7a1f", "#6b5b95")
# Bokeh leaves its own white out of the JSON, where the script looks for colours: the page's is one shade off.
DIVERGING = (
    "#005f9e", "#4d8fbb", "#94bbd6", "#cfe0ec", "#f3f5f7", "#f6dccb", "#eab08c", "#d9804b", "#c8500a",
)  # fmt: skip
"""Colours from below to above."""
DARK_FIGURES = {
    MAIN: "#5db4f0", BRANCH: "#f5914e", PAGE: "#111418", INK: "#eceff2", MUTED: "#8f99a3", GRID: "#2a3037",
    **dict(zip(COLOURS, ("#4aa8e8", "#f08a4b", "#35c49a", "#e29bc4", "#ecb24a", "#8ccbf2", "#c5c55c", "#b3a4dd"),
               strict=True)),
    **dict(zip(DIVERGING[1:-1], ("#4688b5", "#31607f", "#223f53", "#181c21", "#533624", "#875434", "#be7341"),
               strict=True)),
}  # fmt: skip
"""Colour of a figure to its colour on a dark screen."""
VARIABLES = {
    MAIN: "--main", BRANCH: "--branch", MUTED: "--ink3", GRID: "--hair", INK: "--ink",
    **{colour: f"--c{index}" for index, colour in enumerate(COLOURS)},
}  # fmt: skip
"""Colour of a figure to the variable of the style sheet that holds it."""
_PAGE_COLOURS = {
    "--page": ("#fff", "#111418"), "--ink2": ("#4b535c", "#b4bcc5"), "--border": ("#cfd5db", "#3a424b"),
    "--card": ("#f7f8fa", "#191d22"), **{name: (light, DARK_FIGURES[light]) for light, name in VARIABLES.items()},
}  # fmt: skip
STYLE = (
    ":root{color-scheme:light dark;"
    + "".join(f"{name}:light-dark({light},{dark});" for name, (light, dark) in _PAGE_COLOURS.items())
    + """}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",
  Roboto,"Helvetica Neue",Arial,sans-serif;-webkit-text-size-adjust:100%}
main{max-width:1088px;margin:0 auto;padding:36px 24px 72px}
h1{font-size:28px;line-height:1.2;margin:0 0 8px;letter-spacing:-.01em;overflow-wrap:anywhere}
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
.tools,.legend{display:flex;flex-wrap:wrap;gap:4px 6px;align-items:center;font-size:12.5px;color:var(--ink2);
  margin:4px 0}
.tools button,.legend button{font:inherit;color:inherit;background:var(--card);border:1px solid var(--hair);
  border-radius:5px;padding:2px 8px;cursor:pointer;max-width:100%;overflow-wrap:anywhere;text-align:left}
.tools button[aria-pressed=true]{border-color:var(--main)}
.tools label{display:flex;align-items:center;gap:6px}.tools input{width:110px;accent-color:var(--main)}
.legend button[aria-pressed=false]{opacity:.45;text-decoration:line-through}
.legend i{display:inline-block;width:18px;margin-right:6px;vertical-align:middle}
.panels{display:grid;gap:8px 16px;grid-template-columns:minmax(0,1fr)}
.columns2{grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr))}
.columns3{grid-template-columns:repeat(auto-fit,minmax(min(300px,100%),1fr))}
.panel{min-width:0;position:relative}
.bk-Tooltip{--tooltip-color:var(--card);--tooltip-text:var(--ink);--tooltip-border:var(--border)}
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
.best{font-weight:700}.quiet{color:var(--ink3)}
.wrap td:not(.number),.recipe td{white-space:normal;min-width:140px}
.recipe code{white-space:nowrap;overflow-wrap:normal}
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
.texts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(300px,100%),1fr));gap:10px;margin:14px 0 26px}
.texts .sample{margin:0}
.heat{white-space:pre-wrap;overflow-wrap:anywhere;font:14px/1.7 ui-monospace,"SF Mono",Menlo,Consolas,monospace;
  margin:10px 0}
.heat span{border-radius:2px}.heat span:hover,.heat span:focus{outline:2px solid var(--main)}
.heat-tools{gap:8px 18px}.heat-tools select{font:inherit;max-width:60vw}
.documents mark{background:color-mix(in srgb,var(--branch) 35%,transparent);color:inherit;cursor:help}
.documents .sample{margin-left:0}.documents select{max-width:min(560px,75vw)}
.documents .reason{color:var(--branch)}.cluster{margin:8px 0 0 14px}
.documents section{margin:8px 0 18px}.bars{display:flex;align-items:flex-end;gap:1px;height:70px;max-width:720px}
.bars i{flex:1;background:linear-gradient(to top,var(--branch) var(--dropped),var(--main) var(--dropped))}
#token{position:sticky;bottom:0;min-height:5.5em;margin-left:0}
code{font:.92em ui-monospace,"SF Mono",Menlo,Consolas,monospace;overflow-wrap:anywhere}
@media screen and (max-width:760px){
main{padding:22px 16px 48px}h1{font-size:23px}h2{font-size:18px;margin-top:40px}
.tiles{grid-template-columns:repeat(2,minmax(0,1fr))}
.tile b{font-size:21px}
.scroll tbody th{white-space:normal;overflow-wrap:break-word;max-width:45vw}
details details{margin-left:8px}.sample{margin-left:8px}
}
@media print{
:root{color-scheme:light}
@page{margin:14mm}
body{font-size:10.5pt;-webkit-print-color-adjust:exact;print-color-adjust:exact}main{max-width:none;padding:0}
nav,.tools{display:none}figure,tr,.tile,.sample{break-inside:avoid}h2,h3,section>p{break-after:avoid}.scroll{overflow:visible}
table{font-size:8.5pt}th,td{padding-right:8px}
}
"""
)
