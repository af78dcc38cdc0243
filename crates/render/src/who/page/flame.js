'use strict';
// The flame graph: stacks are merged from their outermost frame on.

const data = JSON.parse(document.getElementById('data').textContent);
const graph = document.getElementById('graph');
const tip = document.getElementById('tip');
const search = document.getElementById('search');
const tasks = document.getElementById('tasks');
document.getElementById('by').hidden = data.tasks.length === 0;
const MIN_WIDTH = 0.05;

const node = name => ({ name, bytes: 0, own: 0, children: new Map() });
let root;

/** Adds a stack of names, outermost first. */
const add = (names, bytes) => {
  let at = root;
  at.bytes += bytes;
  for (const name of names) {
    if (!at.children.has(name)) at.children.set(name, node(name));
    at = at.children.get(name);
    at.bytes += bytes;
  }
  at.own += bytes;
};

/** Merges all stacks, those of each request or job by themselves if they are asked for. */
const merge = () => {
  root = node('all growth');
  for (const [bytes, frames, task] of data.stacks) {
    const above = tasks.checked ? [data.tasks[task] ?? '(no request or job)'] : [];
    add([...above, ...frames.map(frame => data.names[frame])], bytes);
  }
  if (data.unknown > 0) add(['(unknown)'], data.unknown);
};

/** A warm colour that depends on the name only. */
const colour = name => {
  let hash = 7;
  for (const char of name) hash = (hash * 31 + char.codePointAt(0)) % 9973;
  return `hsl(${20 + hash % 40} ${55 + hash % 30}% ${66 + hash % 14}%)`;
};

const percent = bytes => `${(100 * bytes / Math.max(root.bytes, 1)).toFixed(1)} %`;
const describe = it => `${it.name}: ${size(it.bytes)} (${percent(it.bytes)}), ${size(it.own)} in itself`;

/** Draws the path to a node in full width, and everything above it. */
const draw = path => {
  const rows = [];
  const place = (it, depth, left, width, above) => {
    if (width < MIN_WIDTH) return;
    (rows[depth] ??= []).push({ it, left, width, above });
  };
  const focus = path[path.length - 1];
  path.forEach((it, depth) => place(it, depth, 0, 100, path.slice(0, depth + 1)));
  const climb = (it, depth, left, width, above) => {
    const children = [...it.children.values()].sort((a, b) => b.bytes - a.bytes);
    for (const child of children) {
      const part = width * child.bytes / Math.max(it.bytes, 1);
      if (part < MIN_WIDTH) break;
      place(child, depth, left, part, [...above, child]);
      climb(child, depth + 1, left, part, [...above, child]);
      left += part;
    }
  };
  climb(focus, path.length, 0, 100, path);
  graph.replaceChildren(...rows.map(row => {
    const line = document.createElement('div');
    line.className = 'row';
    line.append(...row.map(({ it, left, width, above }) => {
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = it.name;
      button.style.left = `${left}%`;
      button.style.width = `${width}%`;
      button.style.background = colour(it.name);
      button.title = describe(it);
      const text = search.value.toLowerCase();
      button.classList.toggle('found', text !== '' && it.name.toLowerCase().includes(text));
      const show = () => { tip.textContent = describe(it); };
      button.addEventListener('mouseenter', show);
      button.addEventListener('focus', show);
      button.addEventListener('click', () => draw(shown = above));
      return button;
    }));
    return line;
  }));
};

merge();
let shown = [root];
tasks.addEventListener('change', () => {
  merge();
  draw(shown = [root]);
});
search.addEventListener('input', () => draw(shown));
draw(shown);
tip.textContent = describe(root);
