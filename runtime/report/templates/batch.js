(function(){
const get=id=>document.getElementById(id),farPixels=40,dragPixels=4;
let asked=0,pressed=null;
function put(parent,tag,text,kind){
const made=document.createElement(tag);
if(text!==undefined)made.textContent=text;
if(kind)made.className=kind;
parent.append(made);return made}
const note=text=>{get('batch-note').textContent=text};
const nats=value=>value===null?'not recorded':(+value).toFixed(3);

function showRow(each){
const card=put(get('batch-rows'),'article',undefined,'sample');
put(card,'div','row '+each.row+' · '+each.source+', pass '+each.pass);
if('loss' in each)
put(card,'div','stands out: '+nats(each.loss)+' nats a token, the other rows '+nats(each.others),'reason');
each.documents.forEach(one=>{
put(card,'div',(one.document??'unknown document')+', '+one.tokens.toLocaleString('en')+' tokens');put(card,'pre',one.text)})}
function showBatch(found){
const number=found.sources.reduce((sum,each)=>sum+each.rows,0);
note('Step '+found.step.toLocaleString('en')+' of '+found.phase+': '+number.toLocaleString('en')+' rows'+
(found.is_recorded?'':', not recorded yet: as the run will draw them')+', of which '+found.rows.length+' are shown.');
found.sources.forEach(each=>{
const button=put(get('batch-sources'),'button',each.name+': '+each.rows.toLocaleString('en')+', loss '+nats(each.loss));
button.type='button';
button.onclick=()=>load({phase:found.phase,step:found.step,source:each.name})});
found.rows.forEach(showRow);
put(get('batch-command'),'span','Losses of all rows: ');put(get('batch-command'),'code',found.command)}
async function load(words){
const mine=++asked;
['batch-sources','batch-rows','batch-command'].forEach(id=>get(id).replaceChildren());
note('Reading …');
try{
const found=await ask('/data?'+new URLSearchParams(words));
if(mine===asked)showBatch(found)
}catch(error){if(mine===asked)note(error.message)}}

function nearest(view,x,y){
let best=null,least=farPixels;
const left=view.frame.x_scale,top=view.frame.y_scale;
view.model.renderers.filter(mark=>mark.visible).forEach(mark=>{
const data=mark.data_source.data,xs=data.get?data.get('x'):data.x,ys=data.get?data.get('y'):data.y;
for(let i=0;i<xs.length;i++){
const away=Math.hypot(left.compute(xs[i])-x,top.compute(ys[i])-y);
if(away<least){least=away;best={phase:mark.tags[1],tokens:Math.round(xs[i])}}}});
return best}
document.querySelectorAll('figure[data-live]').forEach(figure=>{
figure.addEventListener('pointerdown',event=>{pressed=[event.clientX,event.clientY]},true);
figure.addEventListener('click',event=>{
const place=event.target.closest('.panel');
if(!place||!pressed||Math.hypot(event.clientX-pressed[0],event.clientY-pressed[1])>dragPixels)return;
const view=Bokeh.index.roots.find(each=>place.contains(each.el));
if(!view)return;
const box=view.canvas_view.el.getBoundingClientRect(),point=nearest(view,event.clientX-box.left,event.clientY-box.top);
if(point){get('batch').scrollIntoView({block:'nearest'});load(point)}})});
addEventListener('alarm',({detail})=>{if('step' in detail)load({phase:detail.name,step:detail.step})});
})()
