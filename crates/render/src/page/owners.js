// The owners of memory: boxes as large as what they hold, the same as a table, and the paths that retain the selected one.

const FIRST_ROWS = 10, MORE_ROWS = 40, MAX_BOXES = 60;

/** Divides a box among items in proportion to their bytes, into rectangles that are as square as possible. */
function squarify(items, { left, top, width, height }) {
  const placed = [];
  let rest = items, total = items.reduce((sum, { bytes }) => sum + bytes, 0);
  while (rest.length && total > 0) {
    const isWide = width >= height, short = Math.min(width, height), scale = width * height / total;
    let taken = 0, sum = 0, worst = Infinity;
    for (const { bytes } of rest) {
      // Items come largest first, so the first and the last one have the worst shapes.
      const next = (sum + bytes) * scale;
      const shape = Math.max(short * short * rest[0].bytes * scale / (next * next), next * next / (short * short * bytes * scale));
      if (shape > worst) break;
      [taken, sum, worst] = [taken + 1, sum + bytes, shape];
    }
    const thick = sum * scale / short;
    let at = 0;
    for (const item of rest.slice(0, taken)) {
      const long = item.bytes * scale / thick;
      placed.push({ item, ...(isWide ? { left, top: top + at, width: thick, height: long } : { left: left + at, top, width: long, height: thick }) });
      at += long;
    }
    if (isWide) { left += thick; width -= thick; } else { top += thick; height -= thick; }
    rest = rest.slice(taken);
    total -= sum;
  }
  return placed;
}

/** All memory that an owner holds: its slots, and the blocks that are nearest to it. */
const held = owner => owner.slot_bytes + owner.exclusive_bytes + owner.shared_bytes;

/** The columns of the table: a head, the value by which they are sorted, what they show, and a class. */
const COLUMNS = [
  ['owner', owner => owner.owner.toLowerCase()],
  ['memory', held],
  ['slots', owner => owner.slot_bytes, 'wide'],
  ['exclusive', owner => owner.exclusive_bytes, 'wide'],
  ['shared', owner => owner.shared_bytes, 'wide'],
  ['retained', owner => owner.retained_bytes],
  ['objects', owner => owner.objects, 'wide number'],
  ['cause', owner => owner.cause ?? '', 'wide'],
  ['retained by', owner => owner.kept_by[0]?.path ?? '', 'wide path'],
].map(([head, value, name]) => ({ head, value, name: name ?? '' }));

class Owners {
  /** `whenChosen` is called with the index + 1 of the selected owner, or 0. */
  constructor(report, whenChosen = () => {}) {
    Object.assign(this, { whenChosen, text: '', group: '', rows: FIRST_ROWS, view: 'owners', sort: null, chosen: null });
    this.groupOf = new Map(words.groups.flatMap(group => group.causes.map(cause => [cause, group])));
    this.all = (report.owners ?? []).map((owner, index) => ({ owner, index, bytes: held(owner), name: owner.owner }));
    byId('whose').hidden = !this.all.length;
    this.columns = COLUMNS.filter(({ head }) => head !== 'retained' || this.all.some(({ owner }) => owner.retained_bytes != null));
    this.tree = this.dominatorTree();
    byId('sizes').hidden = !this.tree.length;
    byId('no-tree').hidden = this.tree.length > 0;
    const groups = new Set(this.all.map(({ owner }) => this.groupOf.get(owner.cause)));
    for (const group of words.groups) if (groups.has(group)) byId('group').append(element('option', group.label));
    byId('text').addEventListener('input', event => { this.text = event.target.value.toLowerCase(); this.setView('owners'); });
    byId('group').addEventListener('change', event => { this.group = event.target.selectedIndex ? event.target.value : ''; this.setView('owners'); });
    byId('filter').addEventListener('submit', event => event.preventDefault());
    byId('more').addEventListener('click', () => { this.rows += MORE_ROWS; this.show(); });
    byId('drop-choice').addEventListener('click', () => this.choose(null));
    for (const button of document.querySelectorAll('[data-size]')) button.addEventListener('click', () => this.setView(button.dataset.size));
    new ResizeObserver(() => this.draw()).observe(byId('treemap'));
    if (this.tree.length) this.setView('dominators'); else this.show();
  }

  /** The dominators as a tree: what would be freed without each of them, and its parts. */
  dominatorTree() {
    const roots = [], path = [];
    for (const { depth, name, label, objects, retained_bytes: bytes } of words.dominators) {
      const it = { name: label, full: name, objects, bytes, parts: [] };
      path.length = depth;
      (depth ? path[depth - 1].parts : roots).push(it);
      path.push(it);
    }
    return roots;
  }

  /** Shows boxes of owners, which can be searched, or of what retains them. */
  setView(view) {
    this.view = view;
    for (const button of document.querySelectorAll('[data-size]')) button.setAttribute('aria-pressed', button.dataset.size === view);
    this.choose(null);
    this.show();
  }

  matches({ owner }) {
    const texts = [owner.owner, owner.kind, owner.cause ?? '', ...owner.kept_by.map(({ path }) => path ?? '')];
    return texts.some(text => text.toLowerCase().includes(this.text))
      && (!this.group || this.groupOf.get(owner.cause)?.label === this.group);
  }

  show() {
    this.found = this.all.filter(it => this.matches(it));
    if (this.sort) {
      const { value } = this.sort.column, sign = this.sort.ascending ? 1 : -1;
      const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
      this.found.sort((one, other) => sign * compare(value(one.owner), value(other.owner)));
    }
    const bytes = this.found.reduce((sum, it) => sum + it.bytes, 0);
    byId('found').textContent = `${count(this.found.length)} of ${count(this.all.length)} owners, ${size(bytes)} in use`;
    this.fill();
    this.draw();
  }

  fill() {
    const { columns } = this, shown = this.found.slice(0, this.rows);
    const cell = (it, { head, value }) => {
      const { owner } = it;
      if (head === 'objects') return owner.objects ? count(owner.objects) : '';
      if (head !== 'owner') return value(owner) ?? '';
      const button = element('button', owner.owner, { type: 'button', 'data-owner': it.index + 1 });
      button.addEventListener('click', () => this.choose(it));
      return button;
    };
    fillTable(byId('owners'), columns.map(({ head }) => head), shown.map(it => ({ cells: columns.map(column => cell(it, column)) })),
      columns.map(({ name }) => name));
    byId('owners').querySelectorAll('th').forEach((head, at) => this.makeSortable(head, columns[at]));
    byId('more').hidden = this.found.length <= this.rows;
    this.mark();
  }

  /** Makes the head of a column a button: the largest first, then the smallest first, then the order of the report. */
  makeSortable(head, column) {
    const button = element('button', column.head, { type: 'button' });
    head.replaceChildren(button);
    const isSorted = this.sort?.column === column;
    if (isSorted) head.setAttribute('aria-sort', this.sort.ascending ? 'ascending' : 'descending');
    button.addEventListener('click', () => {
      this.sort = !isSorted ? { column, ascending: false } : this.sort.ascending ? null : { column, ascending: true };
      this.show();
      [...byId('owners').querySelectorAll('th button')][this.columns.indexOf(column)].focus();
    });
  }

  /** Draws the boxes of the owners that match, or of what retains memory. */
  draw() {
    const root = byId('treemap'), box = { left: 0, top: 0, width: root.clientWidth, height: root.clientHeight };
    if (!box.width || !this.found) return;
    root.replaceChildren();
    if (this.view === 'dominators') {
      for (const place of squarify(this.largest(this.tree), box)) this.nest(root, place, 0);
    } else {
      for (const place of squarify(this.largest(this.found), box)) root.append(this.box(place));
    }
    this.mark();
  }

  /** The largest items, and one that sums up the others. */
  largest(items) {
    const sorted = [...items].sort((one, other) => other.bytes - one.bytes).filter(({ bytes }) => bytes > 0);
    const others = sorted.splice(MAX_BOXES), bytes = others.reduce((sum, it) => sum + it.bytes, 0);
    return bytes ? [...sorted, { name: `(${count(others.length)} smaller)`, bytes }].sort((one, other) => other.bytes - one.bytes) : sorted;
  }

  /** Draws what retains memory, and inside of it what it retains. */
  nest(root, place, depth) {
    root.append(this.box(place));
    const { item, left, top, width, height } = place, inner = { left: left + 6, top: top + 40, width: width - 10, height: height - 44 };
    if (depth > 1 || inner.width < 50 || inner.height < 30 || !item.parts?.length) return;
    const own = item.bytes - item.parts.reduce((sum, part) => sum + part.bytes, 0);
    const parts = [...item.parts, ...(own > 0 ? [{ bytes: own, isRest: true }] : [])].sort((one, other) => other.bytes - one.bytes);
    for (const part of squarify(parts, inner)) if (!part.item.isRest) this.nest(root, part, depth + 1);
  }

  box({ item, left, top, width, height }) {
    const group = this.groupOf.get(item.owner?.cause);
    const button = element('button', undefined, { type: 'button', title: `${item.full ?? item.name}: ${size(item.bytes)}`,
      'aria-label': `${item.full ?? item.name}, ${size(item.bytes)}${item.owner?.cause ? `, ${item.owner.cause}` : ''}` });
    Object.assign(button.style, { left: left + 'px', top: top + 'px', width: width + 'px', height: height + 'px' });
    button.style.setProperty('--own', `var(--${group?.colour ?? (item.parts ? 'ruby-malloc' : 'dim')})`);
    if (width >= 44 && height >= 18) button.append(element('b', item.name));
    // Dozens of boxes without a name are no stops for the Tab key: the tables have their rows.
    else Object.assign(button, { className: 'tiny', tabIndex: -1 });
    // A figure that is cut off would be a wrong one.
    if (width >= 74 && height >= 36) button.append(element('span', size(item.bytes)));
    button.item = item;
    button.addEventListener('click', () => this.choose(item));
    return button;
  }

  /** Selects an owner or what retains memory; the selected one again, or `null`, selects nothing. */
  choose(item) {
    this.chosen = item === this.chosen || !(item?.owner || item?.full) ? null : item;
    byId('choice').hidden = byId('detail').hidden = !this.chosen;
    document.body.classList.toggle('has-choice', Boolean(this.chosen));
    if (this.chosen) {
      byId('choice').querySelector('.name').textContent = `${this.chosen.name}: ${size(this.chosen.bytes)}`;
      this.describe(this.chosen);
    }
    this.mark();
    this.whenChosen(this.chosen?.owner ? this.chosen.index + 1 : 0);
  }

  /** Dims everything but the selected owner. */
  mark() {
    const isOther = item => Boolean(this.chosen) && item !== this.chosen;
    for (const box of byId('treemap').children) {
      const within = this.chosen?.parts && this.isWithin(this.chosen, box.item);
      box.classList.toggle('dim', isOther(box.item) && !within);
      box.setAttribute('aria-pressed', box.item === this.chosen);
    }
    for (const button of byId('owners').querySelectorAll('[data-owner]')) {
      const item = this.all[button.dataset.owner - 1], row = button.closest('tr');
      row.classList.toggle('dim', isOther(item) && Boolean(this.chosen.owner));
      row.setAttribute('aria-selected', item === this.chosen);
    }
  }

  isWithin(outer, item) { return outer.parts.some(part => part === item || this.isWithin(part, item)); }

  describe({ owner, name, full, bytes, objects }) {
    const facts = [], paths = element('ul'), add = text => facts.push(element('p', text));
    if (owner) {
      const retained = owner.retained_bytes == null ? '' : ` Without it, ${size(owner.retained_bytes)} would be freed.`;
      add(`${size(bytes)}: ${size(owner.exclusive_bytes)} exclusive, ${size(owner.shared_bytes)} shared, ${size(owner.slot_bytes)} in slots`
        + `${owner.objects ? ` of ${count(owner.objects)} objects` : ''}.${retained}`);
      if (owner.cause) add(`${owner.cause}: ${words.meanings[owner.cause]}`);
      for (const { path, objects: many } of owner.kept_by) {
        paths.append(element('li', `${path ?? `nothing (garbage until the GC runs) → ${name}`} (${count(many)} of ${count(owner.objects)})`));
      }
      if (paths.children.length) facts.push(element('p', 'Retained by:'), paths);
      if (owner.kind === 'class' && words.why) facts.push(element('code', `rbloat why ${words.why} '${name}'`));
    } else {
      add(full);
      add(`Without it, ${size(bytes)} would be freed: ${count(objects)} object${objects === 1 ? '' : 's'}.`);
    }
    byId('detail').replaceChildren(element('h3', name), ...facts);
  }
}
