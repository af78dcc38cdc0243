// The values at the pointer, and the switch between light and dark.

const { pictures, runs, groups } = JSON.parse(document.getElementById('data').textContent);
const picture = document.getElementById('picture');
const svgs = [...picture.querySelectorAll('svg')];
let svg, panels, width;                               // the picture that is shown: the second one is for phones
const cursor = document.getElementById('cursor');
const tip = document.getElementById('tip');
let place = null;                                     // the panel and the second at the cursor

function clock(seconds) {
  const two = number => String(number).padStart(2, '0');
  const whole = Math.floor(seconds);
  return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

/** Returns the index of the last of some ascending times that is not later than `t`, or the first index. */
function indexAt(times, t) {
  let [low, high] = [0, times.length];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (times[middle] <= t) low = middle; else high = middle;
  }
  return low;
}

const timesOf = new Map();
function at(list, t, timeOf) {
  if (!timesOf.has(list)) timesOf.set(list, list.map(timeOf));
  return list[indexAt(timesOf.get(list), t)];
}

function row(table, name, value, colour) {
  const cells = table.insertRow();
  const cell = cells.insertCell();
  if (colour) {
    const swatch = cell.appendChild(document.createElement('span'));
    swatch.className = 'swatch';
    swatch.style.background = `var(--${colour})`;
  }
  cell.append(name);
  cells.insertCell().textContent = value;
}

function showCurves(table, t) {
  for (const run of runs) {
    if (!run.points.length || t > run.seconds + 1) continue;
    const point = at(run.points, t, it => it.t);
    // The runs of a comparison are many: one value each.
    if (run.label !== null) {
      row(table, run.name, size(point.rss), run.colour);
      continue;
    }
    row(table, run.name, '', run.colour);
    row(table, 'RSS', size(point.rss));
    if (point.pss !== null) row(table, 'PSS', size(point.pss));
    if (point.uss !== null) row(table, 'USS', size(point.uss));
    if (point.swap) row(table, 'swap', size(point.swap));
    if (point.group !== null) row(table, 'control group', run.limit ? `${size(point.group)} of ${size(run.limit)}` : size(point.group));
    if (point.processes > 1) row(table, 'processes', point.processes);
    // Marks within a few pixels of the cursor.
    for (const mark of run.marks) {
      if (Math.abs(mark.t - t) <= panels[0].seconds / 300) row(table, mark.text, clock(mark.t));
    }
  }
}

function showCauses(table, run, t) {
  const [time, sums] = at(run.stacks, t, it => it[0]);
  row(table, `${run.name}, captured at`, clock(time));
  for (let group = groups.length - 1; group >= 0; group--) {
    if (sums[group]) row(table, groups[group].label, size(sums[group]), groups[group].colour);
  }
  row(table, 'total', size(sums.reduce((sum, bytes) => sum + bytes, 0)));
}

function show() {
  const scale = svg.clientWidth / width;
  const { panel, t } = place;
  const x = (panel.left + (panel.right - panel.left) * t / panel.seconds) * scale;
  const table = document.createElement('table');
  row(table, 'at', clock(t));
  if (panel.run === null) showCurves(table, t); else showCauses(table, runs[panel.run], t);
  tip.replaceChildren(table);
  cursor.hidden = tip.hidden = false;
  cursor.style.left = `${x}px`;
  cursor.style.top = `${panel.top * scale}px`;
  cursor.style.height = `${(panel.bottom - panel.top) * scale}px`;
  const left = x + 14 + tip.offsetWidth > svg.clientWidth ? x - 14 - tip.offsetWidth : x + 14;
  tip.style.left = `${Math.max(left, 0)}px`;
  tip.style.top = `${(panel.top + 8) * scale}px`;
}

function hide() {
  place = null;
  cursor.hidden = tip.hidden = true;
}

const isNarrow = matchMedia('(max-width: 40rem)');
function choosePicture() {
  svg = svgs[Number(isNarrow.matches)];
  ({ panels, width } = pictures[Number(isNarrow.matches)]);
  hide();
}
isNarrow.addEventListener('change', choosePicture);
choosePicture();

const onPicture = (event, listener) => svgs.forEach(it => it.addEventListener(event, listener));
onPicture('pointermove', event => {
  const scale = svg.clientWidth / width;
  const box = svg.getBoundingClientRect();
  const [x, y] = [(event.clientX - box.left) / scale, (event.clientY - box.top) / scale];
  const panel = panels.find(it => y >= it.top && y <= it.bottom && x >= it.left && x <= it.right);
  if (!panel) { hide(); return; }
  place = { panel, t: (x - panel.left) / (panel.right - panel.left) * panel.seconds };
  show();
});
onPicture('pointerleave', hide);

picture.addEventListener('keydown', event => {
  const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 };
  const index = place ? panels.indexOf(place.panel) : 0;
  if (event.key === 'Escape') { hide(); return; }
  if (event.key in steps) {
    const panel = panels[index];
    const t = (place?.t ?? 0) + steps[event.key] * panel.seconds / 200;
    place = { panel, t: Math.min(Math.max(t, 0), panel.seconds) };
  } else if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
    const next = panels[index + (event.key === 'ArrowDown' ? 1 : -1)];
    if (next) place = { panel: next, t: place?.t ?? 0 };
  } else return;
  event.preventDefault();
  if (place) show();
});

// The code of a rise.

const growth = document.getElementById('growth');
const graph = new FlameGraph(document.getElementById('graph'), document.getElementById('method'));
const MAX_METHODS = 12;
document.getElementById('bars').hidden = runs.every(run => run.rises.length === 0);

/** Fills the body of a table with rows of numbers and texts. */
function fill(table, rows) {
  table.tBodies[0].replaceChildren(...rows.map(values => {
    const line = document.createElement('tr');
    for (const value of values) {
      const cell = line.insertCell();
      const isNumber = typeof value === 'number';
      cell.textContent = isNumber ? (value / 1048576).toFixed(1) : value;
      if (isNumber) cell.className = 'number';
    }
    return line;
  }));
}

/** Returns rows of the methods of some stacks. A method that calls itself counts once. */
function methodsOf(stacks) {
  const sums = new Map();
  for (const [bytes, names] of stacks) {
    // Without its line, a method is one row.
    const methods = names.map(name => name.replace(/:\d+\)$/, ')'));
    for (const method of new Set(methods)) {
      if (!sums.has(method)) sums.set(method, [0, 0, method]);
      sums.get(method)[0] += bytes;
    }
    sums.get(methods[methods.length - 1])[1] += bytes;
  }
  return [...sums.values()].sort((a, b) => b[0] - a[0] || b[1] - a[1]).slice(0, MAX_METHODS);
}

/** Returns the rise at a time, and its run. Short rises have a few pixels. */
function riseAt(t) {
  const room = panels[0].seconds / 300;
  const found = runs.flatMap(run => run.rises.map(rise => ({ run, rise })));
  return found.filter(({ rise }) => t >= rise.from - room && t <= rise.to + room)
    .sort((a, b) => b.rise.bytes - a.rise.bytes)[0];
}

function showRise(t) {
  const found = riseAt(t);
  growth.hidden = !found;
  if (!found) return;
  const { run, rise } = found;
  growth.querySelector('h2').textContent =
    `${run.name} grew by ${size(rise.bytes)} from ${clock(rise.from)} to ${clock(rise.to)}`;
  const stacks = rise.stacks.map(([bytes, frames]) => [bytes, frames.map(frame => run.names[frame])]);
  const known = stacks.filter(stack => stack[1].length > 0);
  fill(document.getElementById('methods'), methodsOf(known));
  if (rise.other > 0) known.push([rise.other, ['(other stacks)']]);
  if (rise.unknown > 0) known.push([rise.unknown, ['(unknown)']]);
  graph.show('all growth', known);
  // The peak at the end of the rise, or soon after.
  const peak = run.peaks.filter(it => it.t >= rise.from && it.t <= rise.to + Math.max(60, rise.to - rise.from))
    .sort((a, b) => b.rss - a.rss)[0];
  const owners = document.getElementById('peak');
  owners.hidden = !peak;
  if (peak) {
    owners.querySelector('h3').textContent =
      `The owners of malloc'ed memory of process ${peak.pid} at ${clock(peak.t)}, when RSS was ${size(peak.rss)}`;
    fill(owners.querySelector('table'), peak.owners.map(([name, bytes, path]) => [bytes, name, path ?? '']));
  }
  growth.focus({ preventScroll: true });
  growth.scrollIntoView({ block: 'nearest' });
}

onPicture('click', () => { if (place?.panel.run === null) showRise(place.t); });
picture.addEventListener('keydown', event => {
  if (event.key === 'Enter' && place?.panel.run === null) showRise(place.t);
});

const scheme = document.getElementById('scheme');
function setScheme(name) {
  document.documentElement.dataset.scheme = name;
  scheme.textContent = name === 'dark' ? 'Light' : 'Dark';
}
scheme.addEventListener('click', () => setScheme(document.documentElement.dataset.scheme === 'dark' ? 'light' : 'dark'));
setScheme(matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
document.documentElement.dataset.drawnMs = Math.round(performance.now());
