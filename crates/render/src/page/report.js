// The report: the verdict, memory by cause, what to do, and the tables of details.

function showHead({ process, verdict, causes }) {
  byId('verdict').textContent = words.summary;
  byId('process').textContent = `pid ${process.pid} · ${size(process.rss_bytes)} resident · ruby ${process.ruby_version ?? 'unknown'}`
    + ` · ${process.libc} · allocator ${process.allocator} · ${process.threads} thread${process.threads === 1 ? '' : 's'} · ${process.command}`;
  byId('evidence').append(...[...words.evidence, words.check].map(text => prose('li', text)));
  showMemory(process.rss_bytes, causes);

  const shown = causes.filter(({ bytes }) => bytes);
  fillTable(byId('causes'), ['cause', 'resident', '%', '', ''], [
    ...shown.map(({ cause, bytes }) => {
      const share = bytes * 100 / process.rss_bytes;
      const bar = element('i', undefined, { class: 'bar', style: `width: ${share.toFixed(1)}px` });
      return { cells: [cause, bytes, share.toFixed(1), bar, words.meanings[cause]], bytes, culprit: cause === verdict.cause };
    }),
    { cells: ['RSS', process.rss_bytes, '100.0', '', ''], bytes: process.rss_bytes },
  ], ['', '', '', 'wide', 'meaning']);
  showAdvice();
  byId('made-by').hidden = !words.made_by;
  byId('made-by').querySelector('ul').append(...(words.made_by ?? []).map(text => element('li', text)));
}

/** Smaller groups are one part of the bar. */
const MIN_SHARE_OF_RSS = .01;

/** Shows the bar of RSS, the largest group first, and a legend with sizes. */
function showMemory(rss, causes) {
  const bytesOf = new Map(causes.map(({ cause, bytes }) => [cause, bytes]));
  const groups = words.groups.map(({ label, colour, causes: names }) => ({ label, colour,
    bytes: names.reduce((sum, name) => sum + (bytesOf.get(name) ?? 0), 0) }));
  const isLarge = ({ bytes }) => bytes >= rss * MIN_SHARE_OF_RSS;
  const shown = groups.filter(isLarge).sort((one, other) => other.bytes - one.bytes);
  const small = groups.filter(group => group.bytes && !isLarge(group));
  if (small.length) shown.push({ label: `${count(small.length)} smaller`, colour: 'dim', bytes: small.reduce((sum, { bytes }) => sum + bytes, 0) });
  const percent = bytes => `${(bytes * 100 / rss).toFixed(1)} %`;
  for (const { label, colour, bytes } of shown) {
    const part = element('i', undefined, { style: `--own: var(--${colour}); flex: ${bytes} 1 0`, title: `${label}: ${size(bytes)}, ${percent(bytes)}` });
    if (bytes > rss / 12) part.append(element('b', label), size(bytes)); else part.style.padding = 0;
    byId('rss').append(part);
    const entry = element('li', element('i', undefined, { class: 'swatch', style: `background: var(--${colour})` }));
    entry.append(label, element('b', size(bytes)));
    byId('groups').append(entry);
  }
  byId('rss').setAttribute('aria-label', `Resident memory: ${shown.map(({ label, bytes }) => `${label} ${percent(bytes)}`).join(', ')}`);
}

/** Shows the first step, and the others on request. */
function showAdvice() {
  const steps = words.steps.map(step => {
    const shown = element('div', undefined, { class: 'step' });
    const saves = step.saves_bytes === null ? '' : ` Saves ${size(step.saves_bytes)}.`;
    shown.append(prose('p', step.action + saves), element('code', step.command, { class: 'command' }));
    if (step.remark) shown.append(prose('p', step.remark));
    const costs = prose('p', `Costs: ${step.costs}`);
    costs.className = 'costs';
    shown.append(costs);
    return shown;
  });
  const part = byId('advice'), [first, ...others] = steps;
  part.hidden = !first;
  if (!first) return;
  part.append(first);
  if (!others.length) return;
  const rest = element('details', element('summary', others.length === 1 ? 'Another way' : `${others.length} other ways`));
  rest.append(...others);
  part.append(rest);
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

/** Shows the memory that live objects do not use: each table with its hint, if it has rows. */
function showWaste() {
  const tables = [
    ['room', ['room of', 'unused', 'saved', 'objects', 'used %', 'retained by']],
    ['copies', ['equal', 'resident', 'objects', 'different', 'retained by']],
    ['few', ['nearly empty', 'resident', 'objects', 'retained by']],
  ];
  for (const [name, heads] of tables) {
    const rows = words.waste?.[name] ?? [], table = byId(name);
    table.hidden = table.previousElementSibling.hidden = !rows.length;
    if (rows.length) byId('waste').hidden = false;
    fillTable(table, heads, rows.map(cells => ({ cells, bytes: cells[1] })));
  }
}

function showDetails(report) {
  byId('retained').hidden = !words.dominators.length;
  fillTable(byId('dominators'), ['retained', 'objects', 'by'], words.dominators.map(({ depth, name, objects, retained_bytes: bytes }) =>
    ({ cells: [bytes, count(objects), '\u2003'.repeat(depth) + name] })));

  const arenas = report.arenas ?? [];
  const hasMuzzy = arenas.some(arena => arena.muzzy_bytes);
  byId('arenas-part').hidden = !arenas.length;
  fillTable(byId('arenas'), ['arena', 'obtained', 'in use', 'unreturned', ...(hasMuzzy ? ['muzzy'] : []), 'fragmented', 'cached',
    'top', 'overhead', 'not resident'],
  arenas.map(arena => ({ cells: [arena.main ? 'main' : arena.address, arena.system_bytes, arena.in_use_bytes,
    arena.unreturned_bytes, ...(hasMuzzy ? [arena.muzzy_bytes] : []), arena.fragmented_bytes, arena.cached_bytes, arena.top_bytes,
    arena.overhead_bytes, arena.returned_bytes] })));

  showWaste();
  showPins(report);
  byId('findings').hidden = !words.findings.length;
  byId('findings').querySelector('ul').append(...words.findings.map(line => element('li', line)));
  byId('made').textContent = `${words.foot} Read by rbloat at ${new Date(report.capture.unix_ms).toISOString()}.`;
}
