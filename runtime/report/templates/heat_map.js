(()=>{
const get=id=>document.getElementById(id),data=JSON.parse(get('data').textContent);
const text=get('text'),token=get('token'),win=get('window'),moment=get('moment'),against=get('against');
const colour=(name,share)=>'color-mix(in srgb, var('+name+') '+Math.round(75*share)+'%, transparent)';
const percent=logProb=>{const p=100*Math.exp(logProb);return (p<0.01?p.toExponential(1):p.toPrecision(3))+' %'};
const visible=words=>words.replace(/\n/g,'\u23ce\n').replace(/\t/g,'\u21e5\t')
.replace(/^ +$/,spaces=>'\u2423'.repeat(spaces.length));
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
draw()})()
