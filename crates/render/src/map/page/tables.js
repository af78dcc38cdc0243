// The report beside the map: verdict, causes, owners, arenas and advice. Text is set as text, never as markup.

const words = JSON.parse(document.getElementById('words').textContent);

const byId = id => document.getElementById(id);

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text instanceof Node) made.append(text); else if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function fillTable(table, heads, rows) {
  const numbers = rows.length ? rows[0].cells.map(cell => typeof cell === 'number') : [];
  const head = table.createTHead().insertRow();
  heads.forEach((text, at) => head.append(element('th', text, { scope: 'col', ...(numbers[at] && { class: 'number' }) })));
  const body = table.createTBody();
  for (const { cells, culprit, bytes } of rows) {
    const row = body.insertRow();
    if (culprit) row.className = 'culprit';
    if (bytes !== undefined) row.dataset.bytes = bytes;
    cells.forEach((cell, at) => row.append(element('td', typeof cell === 'number' ? size(cell) : cell,
      numbers[at] ? { class: 'number', title: `${count(cell)} bytes` } : {})));
  }
}

/** Shows the owners that keep free memory resident, and how full the slabs of each size class are. */
function showPins({ malloc }) {
  const pins = malloc?.pinned_by ?? [], classes = malloc?.size_classes ?? [];
  const percent = (part, whole) => (whole ? part * 100 / whole : 0);
  byId('pinned').hidden = !pins.length;
  fillTable(byId('pins'), ['owner', 'keeps', 'blocks'], pins.slice(0, 5).map(({ owner, bytes, blocks }) =>
    ({ cells: [owner, bytes, count(blocks)], bytes })));
  byId('slabs').hidden = !classes.length;
  const sparsest = [...classes].sort((one, other) => other.free_bytes - one.free_bytes);
  fillTable(byId('size-classes'), ['region', 'slabs', 'regions', 'in use %', 'free', 'kept by'], sparsest.map(it => {
    const names = it.pinned_by.slice(0, 3).map(({ owner, bytes }) => `${owner} ${percent(bytes, it.free_bytes).toFixed(0)} %`);
    return { cells: [`${count(it.region_bytes)} B`, count(it.slabs), count(it.regions), percent(it.in_use, it.regions).toFixed(1),
      it.free_bytes, names.join(', ')], bytes: it.free_bytes };
  }));
}

function showTables({ report }, chooseOwner) {
  const { process, verdict, capture } = report;
  const healthy = verdict.cause === 'healthy';
  byId('verdict').textContent = words.summary;
  byId('process').textContent = `pid ${process.pid} · ${size(process.rss_bytes)} resident · ruby ${process.ruby_version ?? 'unknown'}`
    + ` · ${process.libc} · allocator ${process.allocator} · ${process.threads} thread${process.threads === 1 ? '' : 's'} · ${process.command}`;
  byId('evidence').append(...[...words.evidence, words.check].map(text => element('li', text)));

  const causes = report.causes.filter(({ bytes }) => bytes);
  fillTable(byId('causes'), ['cause', 'resident', '%', '', ''], [
    ...causes.map(({ cause, bytes }) => {
      const share = bytes * 100 / process.rss_bytes;
      const bar = element('i', undefined, { class: 'bar', style: `width: ${share.toFixed(1)}px` });
      return { cells: [cause, bytes, share.toFixed(1), bar, words.meanings[cause]], bytes, culprit: !healthy && cause === verdict.cause };
    }),
    { cells: ['RSS', process.rss_bytes, '100.0', '', ''], bytes: process.rss_bytes },
  ]);

  const most = (report.owners ?? []).slice(0, 40);
  const hasRetained = most.some(owner => owner.retained_bytes != null);
  fillTable(byId('owners'), ['owner', 'slots', 'exclusive', 'shared', ...(hasRetained ? ['retained'] : []), 'objects', 'cause', 'retained by'], most.map((owner, index) => {
    const button = element('button', owner.owner, { type: 'button', 'data-owner': index + 1 });
    button.addEventListener('click', () => chooseOwner(index + 1));
    return { cells: [button, owner.slot_bytes, owner.exclusive_bytes, owner.shared_bytes,
      ...(hasRetained ? [owner.retained_bytes ?? 0] : []), owner.objects ? count(owner.objects) : '',
      owner.cause ?? '', owner.kept_by[0]?.path ?? ''], culprit: !healthy && owner.cause === verdict.cause };
  }));

  if (words.dominators.length) {
    byId('retained').hidden = false;
    fillTable(byId('dominators'), ['retained', 'objects', 'by'], words.dominators.map(({ depth, name, objects, retained_bytes: bytes }) =>
      ({ cells: [bytes, count(objects), '\u2003'.repeat(depth) + name] })));
  }

  const arenas = report.arenas ?? [];
  const hasMuzzy = arenas.some(arena => arena.muzzy_bytes);
  fillTable(byId('arenas'), ['arena', 'obtained', 'in use', 'unreturned', ...(hasMuzzy ? ['muzzy'] : []), 'fragmented', 'cached',
    'top', 'overhead', 'not resident'],
  arenas.map(arena => ({ cells: [arena.main ? 'main' : arena.address, arena.system_bytes, arena.in_use_bytes,
    arena.unreturned_bytes, ...(hasMuzzy ? [arena.muzzy_bytes] : []), arena.fragmented_bytes, arena.cached_bytes, arena.top_bytes,
    arena.overhead_bytes, arena.returned_bytes] })));

  showPins(report);

  if (words.steps.length) {
    byId('advice').append(element('h2', 'What to do'));
    const steps = element('ol');
    for (const step of words.steps) {
      const saves = step.saves_bytes === null ? '' : ` Saves ${size(step.saves_bytes)}.`;
      const item = element('li', `${step.action}${saves} `);
      item.append(element('code', step.command));
      if (step.remark) item.append(` (${step.remark})`);
      steps.append(item);
    }
    byId('advice').append(steps);
  }
  byId('made').textContent = `Read by rbloat at ${new Date(capture.unix_ms).toISOString()} (method: ${capture.method}). The process was paused for ${capture.pause_ms.toFixed(0)} ms.`;
}
