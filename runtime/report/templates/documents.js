(function(){
const get=id=>document.getElementById(id),form=get('documents-form'),near=4,numBars=40;
let sample=null,limits=[],asked={},cards=new Map();
function put(parent,tag,text,kind){
const made=document.createElement(tag);
if(text!==undefined)made.textContent=text;
if(kind)made.className=kind;
parent.append(made);return made}
function write(parent,pieces){
const pre=put(parent,'pre');
pieces.forEach(([text,label])=>{if(label){put(pre,'mark',text).title=label}else pre.append(text)})}
function unfold(parent,title,pieces){const more=put(parent,'details');put(more,'summary',title);write(more,pieces)}

function showDocument(list,each){
const cluster=each.cluster===null?null:cards.get(each.cluster);
const card=put(cluster||list,'article',undefined,'sample');
put(card,'div',[each.number.toLocaleString('en'),each.id,each.source].filter(Boolean).join(' · ')).title=each.metadata;
if(each.reason)put(card,'div',[each.reason,each.detail,each.rule].filter(Boolean).join(' · '),'reason');
if(each.bytesCut)put(card,'div','edits cut '+each.bytesCut.toLocaleString('en')+' bytes','reason');
write(card,each.text);
if(!cluster)each.beside.forEach(([title,pieces])=>unfold(card,title,pieces));
if(each.cluster!==null&&!cluster){
const others=put(card,'div',undefined,'cluster');cards.set(each.cluster,others)}}

function showList(which,found,isFirst){
const list=get('list-'+which),more=get('more-'+which);
if(isFirst)list.replaceChildren();
found.documents.forEach(each=>showDocument(list,each));
if(!list.children.length)put(list,'p',found.next===null?'None.':'None so far.');
more.hidden=found.next===null||!form;
more.textContent='More, from document '+(found.next||0).toLocaleString('en')+' of '+found.total.toLocaleString('en');
more.onclick=()=>fetchList(which,found.next)}

const fails=(finding,limit,value)=>value===null||(finding.isLeast?value<limit:value>limit);
function firstFailing(index){
return sample.findings.findIndex((finding,place)=>fails(finding,limits[place],finding.values[index]))}
function showSample(found){
sample=found;get('sample').hidden=!found;
if(!found)return;
limits=found.findings.map(finding=>finding.limit);
const select=get('finding');select.replaceChildren();
found.findings.forEach((finding,place)=>{
put(select,'option',finding.reason+(finding.isLeast?', at least':', at most')+' ('+finding.rule+')').value=place});
choose()}
function choose(){
const finding=sample.findings[+get('finding').value],known=finding.values.filter(v=>v!==null).concat(finding.limit);
get('limit').min=known.reduce((a,b)=>Math.min(a,b));get('limit').max=known.reduce((a,b)=>Math.max(a,b));
draw()}
function draw(){
const place=+get('finding').value,finding=sample.findings[place],limit=limits[place];
get('limit').value=limit;get('limit-value').value=limit;
const low=+get('limit').min,high=+get('limit').max,bars=Array(numBars).fill(0),dropped=Array(numBars).fill(0);
const first=sample.documents.map((_,index)=>firstFailing(index));
finding.values.forEach(value=>{
const bar=Math.min(numBars-1,Math.floor(((value===null?low:value)-low)/(high-low||1)*numBars));
bars[bar]++;if(fails(finding,limit,value))dropped[bar]++});
const most=Math.max(...bars);get('bars').replaceChildren();
bars.forEach((count,bar)=>{
const column=put(get('bars'),'i');column.style.height=count?Math.max(2,100*count/most)+'%':'0';
column.style.setProperty('--dropped',100*dropped[bar]/Math.max(count,1)+'%');
column.title=(low+bar*(high-low)/numBars).toPrecision(4)+': '+count+', '+dropped[bar]+' fail'});
const numDropped=first.filter(at=>at>=0).length,size=sample.documents.length;
const before=sample.documents.filter((_,index)=>
sample.findings.some(each=>fails(each,each.limit,each.values[index]))).length;
get('outcome').textContent='Of '+size.toLocaleString('en')+' documents spread over '+sample.total.toLocaleString('en')+
', the filter would drop '+numDropped+' ('+(100*numDropped/size).toFixed(1)+' %); with its own limits '+before+
'. This limit alone: '+finding.values.filter(value=>fails(finding,limit,value)).length+'.';
const counts=get('counts');counts.replaceChildren();
sample.findings.forEach((each,at)=>{
const count=first.filter(one=>one===at).length;
if(count||limits[at]!==each.limit)put(counts,'div',count+'  '+each.reason+
(limits[at]!==each.limit?' (limit '+limits[at]+', was '+each.limit+')':''))});
const border=get('border'),side=kept=>finding.values.map((value,index)=>[value,index]).filter(([value])=>
value!==null&&fails(finding,limit,value)!==kept).sort((a,b)=>Math.abs(a[0]-limit)-Math.abs(b[0]-limit)).slice(0,near);
border.replaceChildren();
[['just kept',true],['just dropped',false]].forEach(([title,kept])=>{
const column=put(border,'div');put(column,'h3',title+' by this limit');
side(kept).forEach(([value,index])=>{
const [number,id,text]=sample.documents[index],card=put(column,'article',undefined,'sample');
put(card,'div',+value.toPrecision(6)+' · '+number.toLocaleString('en')+' · '+id);put(card,'pre',text)})})}
function limitTo(value){if(Number.isFinite(value)){limits[+get('finding').value]=value;draw()}}
get('finding').addEventListener('input',choose);
get('limit').addEventListener('input',event=>limitTo(+event.target.value));
get('limit-value').addEventListener('change',event=>limitTo(event.target.valueAsNumber));
get('limit-reset').addEventListener('click',()=>limitTo(sample.findings[+get('finding').value].limit));

const note=text=>{get('documents-note').textContent=text};
async function fetchPart(part,first){
const words=new URLSearchParams({...asked,part,first:String(first)}),current=asked;
const found=await ask('/data?'+words);
return current===asked?found:null}
async function fetchList(which,first){
try{
const found=await fetchPart(which,first);
if(found)showList(which,found,first===0)
}catch(error){note(error.message)}}
async function fetchAll(){
asked=Object.fromEntries(new FormData(form));cards=new Map();
if(!asked.step)return;
note('Reading …');get('sample').hidden=true;
['kept','dropped'].forEach(which=>get('list-'+which).replaceChildren());
try{
for(const which of ['kept','dropped']){
const found=await fetchPart(which,0);
if(!found)return;
showList(which,found,true)}
const found=await fetchPart('sample',0);
if(found){note('');showSample(found.sample)}
}catch(error){note(error.message)}}
if(form){
form.addEventListener('submit',event=>{event.preventDefault();fetchAll()});
form.elements.step.addEventListener('change',fetchAll);
addEventListener('step',({detail})=>{
if(Array.from(form.elements.step.options).some(each=>each.value===detail))form.elements.step.value=detail})
}else{
const data=JSON.parse(get('documents-data').textContent);
showList('kept',data.lists.kept,true);showList('dropped',data.lists.dropped,true);showSample(data.sample)}
})()
