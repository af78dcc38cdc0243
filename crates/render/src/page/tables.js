// What all pages of a report share: elements, tables, and the colours of the page. Text is set as text, never as markup.

const words = JSON.parse(document.getElementById('words').textContent);

const byId = id => document.getElementById(id);

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text instanceof Node) made.append(text); else if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** Text in which the words between backticks are code. */
function prose(name, text) {
  const made = document.createElement(name);
  text.split('`').forEach((part, at) => made.append(at % 2 ? element('code', part) : part));
  return made;
}

/** Fills a table; numbers are sizes. `classes` has the class of each column, if it has one. */
function fillTable(table, heads, rows, classes = []) {
  const numbers = heads.map((_, at) => rows.some(({ cells }) => typeof cells[at] === 'number'));
  const classOf = at => [numbers[at] && 'number', classes[at]].filter(Boolean).join(' ');
  table.replaceChildren();
  const head = table.createTHead().insertRow();
  heads.forEach((text, at) => head.append(element('th', text, { scope: 'col', class: classOf(at) })));
  const body = table.createTBody();
  for (const { cells, culprit, bytes } of rows) {
    const row = body.insertRow();
    if (culprit) row.className = 'culprit';
    if (bytes !== undefined) row.dataset.bytes = bytes;
    cells.forEach((cell, at) => row.append(element('td', typeof cell === 'number' ? size(cell) : cell,
      { class: classOf(at), ...(typeof cell === 'number' && { title: `${count(cell)} bytes` }) })));
  }
}

/** Sets light or dark colours, and calls back when they change. */
function setUpScheme(whenChanged = () => {}) {
  const set = scheme => {
    document.documentElement.dataset.scheme = scheme;
    byId('scheme').textContent = scheme === 'dark' ? 'Light' : 'Dark';
    whenChanged();
  };
  byId('scheme').addEventListener('click', () => set(document.documentElement.dataset.scheme === 'dark' ? 'light' : 'dark'));
  if (matchMedia('(prefers-color-scheme: dark)').matches) set('dark');
}

/** Calls back for the keys of the page, unless the user types text or uses a shortcut of the browser. */
function listenToKeys(keys) {
  addEventListener('keydown', event => {
    const types = event.target.matches?.('input, select');
    if ((types && event.key !== 'Escape') || event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    keys[event.key]();
    event.preventDefault();
  });
}
