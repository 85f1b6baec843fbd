/* Sorts and filters the table of runs, and compares chosen runs with the one chosen first. */
(function(){
const get = id => document.getElementById(id), compared = JSON.parse(get('runs-data').textContent);
const table = get('runs').querySelector('table'), body = table.tBodies[0], rows = Array.from(body.rows);
const boxes = Array.from(body.querySelectorAll('input')), headings = Array.from(table.tHead.rows[0].cells);
let chosen = boxes.filter(box => box.checked).map(box => box.value);

function put(parent, tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  parent.append(made);
  return made;
}

const SECONDS = {s: 1, min: 60, h: 3600};

function sort(heading, column) {
  const isRising = heading.getAttribute('aria-sort') !== 'ascending', isNumber = heading.classList.contains('number');
  const value = row => {
    const text = row.cells[column].textContent.trim();
    const [figure, unit] = text.replace(/,/g, '').split(' ');
    return isNumber ? parseFloat(figure) * (SECONDS[unit] ?? 1) : text;
  };
  const isMissing = found => Number.isNaN(found) || found === '' || found === '-';
  rows.sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (isMissing(a) || isMissing(b)) return isMissing(a) - isMissing(b);  // last, whatever the direction
    return (isNumber ? a - b : a.localeCompare(b)) * (isRising ? 1 : -1);
  });
  headings.forEach(other => other.removeAttribute('aria-sort'));
  heading.setAttribute('aria-sort', isRising ? 'ascending' : 'descending');
  body.append(...rows);
}

function filter() {
  const words = get('filter').value.toLowerCase().split(/\s+/);
  rows.forEach(row => { row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word)); });
  get('count').textContent = rows.filter(row => !row.hidden).length + ' of ' + rows.length;
}

/* Rows of the chosen pairs: a name, the cell of the first run, and those of the others, or `missing`. */
function merged(pairs, part, missing) {
  const names = [];
  pairs.forEach(pair => {
    let place = 0;
    pair[part].forEach(([name]) => {
      const found = names.indexOf(name);
      if (found < 0) names.splice(place, 0, name);
      place = (found < 0 ? place : found) + 1;
    });
  });
  return names.map(name => {
    const found = pairs.map(pair => pair[part].find(row => row[0] === name));
    return [name, found.find(row => row)[1], ...found.map(row => row ? row[2] : missing)];
  });
}

function compare() {
  const section = get('comparison');
  if (!section) return;
  section.hidden = chosen.length < 2;
  if (section.hidden) return;
  const pairs = chosen.slice(1).map(name => compared[chosen[0]][name]), shown = section.querySelector('table');
  shown.tHead.replaceChildren();
  shown.tBodies[0].replaceChildren();
  const head = put(shown.tHead, 'tr', '');
  ['', ...chosen].forEach(name => { put(head, 'th', name).scope = 'col'; });
  [...merged(pairs, 'settings', '='), ...merged(pairs, 'figures', '-')].forEach(([name, ...cells]) => {
    const line = put(shown.tBodies[0], 'tr', '');
    put(line, 'th', name).scope = 'row';
    cells.forEach(cell => put(line, 'td', cell));
  });
  get('comparison-notes').textContent = Array.from(new Set(pairs.flatMap(pair => pair.notes))).join('; ') + '.';
  section.querySelector('figure').dispatchEvent(new CustomEvent('show', { detail: chosen }));
}

headings.forEach((heading, column) => {
  const button = document.createElement('button');
  button.type = 'button';
  button.textContent = heading.textContent;
  button.addEventListener('click', () => sort(heading, column));
  heading.replaceChildren(button);
});
get('filter').addEventListener('input', filter);
boxes.forEach(box => box.addEventListener('change', () => {
  chosen = chosen.filter(name => name !== box.value);
  if (box.checked) chosen.push(box.value);
  compare();
}));
filter();
compare();
})();
