"""The script of the pages: it hands figures to Bokeh, and answers their buttons.

A figure is drawn when it comes near the window, and again for another colour scheme or y axis: the script changes the
figure's JSON and hands it to Bokeh. Text and tables of a page need no script.
"""

import json

from runtime.report.theme import DARK_FIGURES

SCRIPT = """(function(){
var DARK=DARK_COLOURS,dark=matchMedia('(prefers-color-scheme:dark)'),coarse=matchMedia('(pointer:coarse)');
Bokeh.set_log_level('warn');
var numerals=Bokeh.Models.get('NumeralTickFormatter').prototype,format=numerals.doFormat;
numerals.doFormat=function(ticks,options){return format.call(this,ticks,options).map(function(text){
return text.replace(/[mbt]$/,function(unit){return unit.toUpperCase()})})};
var figures=[],shared=null,isLinking=false,queue=Promise.resolve();
function all(element,selector){return Array.from(element.querySelectorAll(selector))}
function entriesOf(source){return source.data instanceof Map?source.data:new Map(Object.entries(source.data))}
function marks(f){return f.plots.flatMap(function(p){return p.renderers})}
function isNumeric(range){return typeof range.start==='number'&&!range.factors}

function smoothed(values,weight){
var sum=0,share=0;
return Float64Array.from(values,function(v){sum=weight*sum+(1-weight)*v;share=weight*share+1-weight;return sum/share})}
function smooth(f){
var input=f.element.querySelector('[data-do=smooth]');
if(input)marks(f).forEach(function(mark){
var source=mark.data_source,data=entriesOf(source);
if(source.tags.indexOf('smooth')<0)return;
data=new Map(data);data.set('smooth',smoothed(data.get('y'),+input.value));source.data=data})}

function prepared(f){
var text=f.text;
if(dark.matches)text=text.replace(/"#[0-9a-f]{6}"/g,function(quoted){
var other=DARK[quoted.slice(1,-1)];return other?'"'+other+'"':quoted});
var json=JSON.parse(text);
JSON.stringify(json,function(key,value){
if(value&&value.name==='ColumnDataSource'&&value.attributes.tags)
value.attributes.data.entries.push(['smooth',value.attributes.data.entries.find(function(e){return e[0]==='y'})[1]]);
return value});
json.roots.forEach(function(root){
var plot=root.attributes;
if(coarse.matches)plot.toolbar.attributes.active_drag=null;
if(f.isLog&&plot.y_range.name==='Range1d'){
plot.y_scale.name='LogScale';plot.left[0].name='LogAxis';
plot.left[0].attributes.ticker.name='LogTicker';plot.left[0].attributes.ticker.attributes={mantissas:[1,2,5]}}});
return json}

async function build(f){
var json=prepared(f),roots={};
f.places.forEach(function(place,index){place.replaceChildren();roots[json.roots[index].id]=place});
await Bokeh.embed.embed_items({page:json},[{docid:'page',roots:roots,root_ids:Object.keys(roots)}]);
f.plots=Bokeh.documents[Bokeh.documents.length-1].roots();
f.home=new Map();
f.plots.forEach(function(p){[p.x_range,p.y_range].filter(isNumeric).forEach(function(range){
f.home.set(range,{start:range.start,end:range.end})})});
smooth(f);
all(f.element,'[data-series]').forEach(function(chip){show(f,chip)});
f.plots.forEach(function(plot){
if(plot.x_range.name!=='tokens')return;
if(shared)plot.x_range.setv(shared);
plot.x_range.change.connect(function(){link(plot.x_range)})})}
function draw(f){queue=queue.then(function(){return build(f)});return queue}

function link(range){
if(isLinking)return;
isLinking=true;shared={start:range.start,end:range.end};
figures.forEach(function(f){f.plots.forEach(function(plot){
if(plot.x_range!==range&&plot.x_range.name==='tokens')plot.x_range.setv(shared)})});
isLinking=false}
function show(f,chip){
var isShown=chip.getAttribute('aria-pressed')==='true';
marks(f).forEach(function(mark){if(mark.tags[0]===chip.dataset.series)mark.visible=isShown})}
function zoom(f,factor){
new Set(f.plots.map(function(p){return p.x_range}).filter(isNumeric)).forEach(function(range){
var middle=(range.start+range.end)/2,half=(range.end-range.start)/2*factor;
var home=f.home.get(range);
range.setv({start:Math.max(middle-half,home.start),end:Math.min(middle+half,home.end)})})}
function reset(f){f.home.forEach(function(home,range){range.setv(home)})}
function fit(f){
f.plots.forEach(function(plot){
var low=Infinity,high=-Infinity;
plot.renderers.forEach(function(mark){
var data=entriesOf(mark.data_source),xs=data.get('x'),ys=data.get('y');
if(!mark.visible||!xs||!ys)return;
for(var i=0;i<xs.length;i++){
if(xs[i]<plot.x_range.start||xs[i]>plot.x_range.end)continue;
low=Math.min(low,ys[i]);high=Math.max(high,ys[i])}});
if(low<high&&isNumeric(plot.y_range)){
var room=(high-low)*.04;
plot.y_range.setv(f.isLog?{start:low/1.02,end:high*1.02}:{start:low-room,end:high+room})}})}

function cell(value){
var text=typeof value==='string'&&/^[=+@-]/.test(value)?"'"+value:String(value);
return /[",\\n]/.test(text)?'"'+text.replace(/"/g,'""')+'"':text}
function rowsOf(panel,mark){
var data=entriesOf(mark.data_source),names=Array.from(data.keys()).filter(function(n){return n!=='smooth'});
var columns=names.map(function(n){var column=data.get(n);return ArrayBuffer.isView(column[0])?column[0]:column});
var lines=[['panel','series'].concat(names)];
for(var i=0;i<columns[0].length;i++)lines.push([panel,mark.name].concat(columns.map(function(c){return c[i]})));
return lines}
function download(f){
var seen=new Set(),lines=[],head='';
f.plots.forEach(function(plot){plot.renderers.forEach(function(mark){
if(seen.has(mark.data_source))return;
seen.add(mark.data_source);
var rows=rowsOf(plot.title?plot.title.text:'',mark),names=String(rows[0]);
lines=lines.concat(names===head?rows.slice(1):rows);head=names})});
var link=document.createElement('a');
var text=lines.map(function(row){return row.map(cell).join(',')}).join('\\n')+'\\n';
link.href=URL.createObjectURL(new Blob([text],{type:'text/csv'}));
link.download=(f.element.id||'figure')+'.csv';link.click();
setTimeout(function(){URL.revokeObjectURL(link.href)},1000)}

function act(f,target){
var action=target.dataset.do;
if(target.dataset.series!==undefined){
target.setAttribute('aria-pressed',String(target.getAttribute('aria-pressed')!=='true'));show(f,target)}
if(action==='in')zoom(f,.5);
if(action==='out')zoom(f,2);
if(action==='reset')reset(f);
if(action==='fit')fit(f);
if(action==='csv')download(f);
if(action==='log'){f.isLog=!f.isLog;target.setAttribute('aria-pressed',String(f.isLog));draw(f)}}
var near=new IntersectionObserver(function(entries){entries.forEach(function(entry){
if(!entry.isIntersecting)return;
near.unobserve(entry.target);draw(figures[+entry.target.dataset.figure])})},{rootMargin:'400px'});
all(document,'figure').forEach(function(element,index){
var f={element:element,text:element.querySelector('script').textContent,places:all(element,'.panel')};
f.plots=[];f.isLog=false;
element.dataset.figure=index;figures.push(f);near.observe(element);
element.addEventListener('click',function(event){
var target=event.target.closest('button');if(target&&f.plots.length)act(f,target)});
element.addEventListener('input',function(){smooth(f)})});
dark.addEventListener('change',function(){figures.forEach(function(f){if(f.plots.length)draw(f)})});
addEventListener('beforeprint',function(){all(document,'details.print').forEach(function(d){d.open=true});
figures.forEach(function(f){if(!f.plots.length)draw(f)})});
})();""".replace("DARK_COLOURS", json.dumps(DARK_FIGURES))
