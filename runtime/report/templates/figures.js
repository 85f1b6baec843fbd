/* Hands figures to Bokeh, and answers their buttons. A figure is drawn when it comes near the window, and again for
   another colour scheme or y axis: the script changes the figure's JSON and hands it to Bokeh. A live figure gets its
   values as an event, and a page hears of each zoom as an event. Text and tables of a page need no script. */
(function(){
const colours=Array.from(document.querySelector('style').textContent.matchAll(/(--\w+):light-dark\((#\w+),(#\w+)\)/g));
const DARK=Object.fromEntries(colours.map(([,,light,night])=>[light,night]));
const VARIABLES=Object.fromEntries(colours.map(([,name,light])=>[light,'var('+name+')']));
const dark=matchMedia('(prefers-color-scheme:dark)'),coarse=matchMedia('(pointer:coarse)');
Bokeh.set_log_level('warn');
const numerals=Bokeh.Models.get('NumeralTickFormatter').prototype,format=numerals.doFormat;
numerals.doFormat=function(ticks,options){
return format.call(this,ticks,options).map(text=>text.replace(/[mbt]$/,unit=>unit.toUpperCase()))};
const figures=[];
let shared=null,isLinking=false,queue=Promise.resolve();
const all=(element,selector)=>Array.from(element.querySelectorAll(selector));
const entriesOf=source=>source.data instanceof Map?source.data:new Map(Object.entries(source.data));
const marks=f=>f.plots.flatMap(plot=>plot.renderers);
const isNumeric=range=>typeof range.start==='number'&&!range.factors;

function smooth(f){
const input=f.element.querySelector('[data-do=smooth]');
if(input)marks(f).forEach(({data_source})=>{
if(!data_source.tags.includes('smooth'))return;
const data=new Map(entriesOf(data_source)),weight=+input.value;
let sum=0,share=0;
data.set('smooth',Float64Array.from(data.get('y'),v=>{
sum=weight*sum+(1-weight)*v;share=weight*share+1-weight;return sum/share}));
data_source.data=data})}

function prepared(f){
const json=JSON.parse(f.text,(key,value)=>dark.matches&&DARK[value]||value);
JSON.stringify(json,(key,value)=>{
if(value&&value.name==='ColumnDataSource'&&value.attributes.tags){
const entries=value.attributes.data.entries;
entries.push(['smooth',entries.find(entry=>entry[0]==='y')[1]])}
return value});
json.roots.forEach(({attributes:plot})=>{
if(coarse.matches)plot.toolbar.attributes.active_drag=null;
if(f.isLog&&plot.y_range.name==='Range1d'){
const ends=plot.y_range.attributes;
if(!(ends.start>0))ends.start=(ends.end??1)/1e4;
plot.y_scale.name='LogScale';plot.left[0].name='LogAxis';
plot.left[0].attributes.ticker.name='LogTicker';plot.left[0].attributes.ticker.attributes={mantissas:[1,2,5]}}});
return json}

async function build(f){
const json=prepared(f),roots={};
f.places.forEach((place,index)=>{place.replaceChildren();roots[json.roots[index].id]=place});
await Bokeh.embed.embed_items({page:json},[{docid:'page',roots:roots,root_ids:Object.keys(roots)}]);
f.plots=Bokeh.documents.at(-1).roots();
const ranges=f.plots.flatMap(plot=>[plot.x_range,plot.y_range]).filter(isNumeric);
f.home=new Map(ranges.map(range=>[range,{start:range.start,end:range.end}]));
smooth(f);
fill(f);
all(f.element,'[data-series]').forEach(chip=>show(f,chip));
f.plots.map(plot=>plot.x_range).filter(range=>range.name==='tokens').forEach(range=>{
if(shared)range.setv(shared);
range.change.connect(()=>link(range))})}
const draw=f=>queue=queue.then(()=>build(f));

function fill(f){
if(!f.values)return;
f.plots.forEach(plot=>{
const values=f.values[plot.title.text]||{},lines=values.lines||{};
plot.renderers.forEach(mark=>{
const line=lines[mark.name]||{x:[],y:[]};
mark.data_source.data=new Map([['x',line.x],['y',line.y],['smooth',line.y]])});
if(values.low<values.high)plot.y_range.setv({start:values.low,end:values.high});
f.home.set(plot.x_range,{start:0,end:f.values.end});
if(!shared){isLinking=true;plot.x_range.setv(f.home.get(plot.x_range));isLinking=false}});
smooth(f)}
function lookAt(x){
figures.filter(f=>f.values&&f.plots.length).slice(0,1).forEach(f=>{
const half=f.values.end/50;
f.plots[0].x_range.setv({start:Math.max(0,x-half),end:Math.min(f.values.end,x+half)});
f.element.scrollIntoView()})}

function link(range){
if(isLinking||figures.some(f=>'live' in f.element.dataset&&!f.values))return;
isLinking=true;shared={start:range.start,end:range.end};
dispatchEvent(new CustomEvent('view',{detail:shared}));
figures.flatMap(f=>f.plots).map(plot=>plot.x_range).forEach(other=>{
if(other!==range&&other.name==='tokens')other.setv(shared)});
isLinking=false}
function show(f,chip){
const isShown=chip.getAttribute('aria-pressed')==='true';
marks(f).forEach(mark=>{if(mark.tags[0]===chip.dataset.series)mark.visible=isShown})}
function move(f,factor,shift){
const ranges=new Set(f.plots.map(plot=>plot.x_range));
Array.from(ranges).filter(isNumeric).map(range=>{
const home=f.home.get(range),width=Math.min((range.end-range.start)*factor,home.end-home.start);
const middle=(range.start+range.end)/2+shift*width;
const start=Math.max(home.start,Math.min(middle-width/2,home.end-width));
return [range,{start,end:start+width}]}).forEach(([range,both])=>range.setv(both))}
function fit(f){
f.plots.filter(plot=>isNumeric(plot.y_range)).forEach(plot=>{
let low=Infinity,high=-Infinity;
plot.renderers.filter(mark=>mark.visible).forEach(mark=>{
const data=entriesOf(mark.data_source),xs=data.get('x')||[],ys=data.get('y')||[];
for(let i=0;i<xs.length;i++)if(xs[i]>=plot.x_range.start&&xs[i]<=plot.x_range.end&&(ys[i]>0||!f.isLog)){
low=Math.min(low,ys[i]);high=Math.max(high,ys[i])}});
const room=(high-low)*.04;
if(low<high)plot.y_range.setv(f.isLog?{start:low/1.02,end:high*1.02}:{start:low-room,end:high+room})})}

function cell(value){
const text=typeof value==='string'&&/^[=+@-]/.test(value)?"'"+value:String(value);
return /[",\n]/.test(text)?'"'+text.replace(/"/g,'""')+'"':text}
function download(f){
const lines=[],seen=new Set();
let head='';
f.plots.forEach(plot=>plot.renderers.forEach(mark=>{
if(seen.has(mark.data_source))return;
seen.add(mark.data_source);
const data=entriesOf(mark.data_source),names=Array.from(data.keys()).filter(name=>name!=='smooth');
const columns=names.map(name=>ArrayBuffer.isView(data.get(name)[0])?data.get(name)[0]:data.get(name));
if(String(names)!==head)lines.push(['panel','series',...names]);
head=String(names);
for(let i=0;i<columns[0].length;i++)lines.push([plot.title.text,mark.name,...columns.map(column=>column[i])])}));
const anchor=document.createElement('a'),text=lines.map(line=>line.map(cell).join(',')).join('\n')+'\n';
anchor.href=URL.createObjectURL(new Blob([text],{type:'text/csv'}));
anchor.download=f.plots[0].title.text.replace(/[^\w]+/g,'-')+'.csv';anchor.click();
setTimeout(()=>URL.revokeObjectURL(anchor.href),1000)}

const actions={
in:f=>move(f,.5,0),out:f=>move(f,2,0),left:f=>move(f,1,-.5),right:f=>move(f,1,.5),reset:f=>f.home.forEach((home,range)=>range.setv(home)),fit:fit,csv:download,
log:(f,button)=>{f.isLog=!f.isLog;button.setAttribute('aria-pressed',String(f.isLog));draw(f)}};
function act(f,button){
if(button.dataset.do)return actions[button.dataset.do](f,button);
button.setAttribute('aria-pressed',String(button.getAttribute('aria-pressed')!=='true'));
show(f,button)}
const near=new IntersectionObserver(entries=>entries.filter(entry=>entry.isIntersecting).forEach(({target})=>{
near.unobserve(target);draw(figures[+target.dataset.figure])}),{rootMargin:'400px'});
all(document,'figure').forEach((element,index)=>{
const text=element.querySelector('script').textContent;
const f={element,text,places:all(element,'.panel'),plots:[],isLog:false};
element.dataset.figure=index;figures.push(f);near.observe(element);
all(element,'.legend i').forEach(sign=>{sign.style.borderColor=VARIABLES[sign.dataset.colour]});
element.addEventListener('click',({target})=>{
const button=target.closest('button');if(button&&f.plots.length)act(f,button)});
element.addEventListener('input',()=>smooth(f));
element.addEventListener('show',({detail})=>all(element,'[data-series]').forEach(chip=>{
chip.hidden=!detail.includes(chip.dataset.series);chip.setAttribute('aria-pressed',String(!chip.hidden));
if(f.plots.length)show(f,chip)}));
element.addEventListener('values',({detail})=>{f.values=detail;fill(f)})});
addEventListener('look-at',({detail})=>lookAt(detail));
dark.addEventListener('change',()=>figures.filter(f=>f.plots.length).forEach(draw));
addEventListener('beforeprint',()=>{all(document,'details.print').forEach(details=>{details.open=true});
figures.filter(f=>!f.plots.length).forEach(draw)});
})();
