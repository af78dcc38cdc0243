// The overview: sections with a cell for each page.

const CELLS = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16];
/** The kinds of areas in the order in which they are shown, and their titles. */
const TITLES = new Map(words.titles);
const ORDER = [...TITLES.keys()];
const MAX_ROWS = 16000;                               // the canvas height that all browsers support
const MIN_SHARE = 1 / 100;                            // smaller sections are folded
const MIN_DRAG = 8;                                   // pages: a shorter way of the pointer is a click

/** Areas that are drawn together. */
class Section {
  constructor(title, areas, totals) {
    Object.assign(this, { title, areas, totals });
    this.firsts = [];                                 // the first cell of each area
    this.cells = 0;
    for (const area of areas) {
      this.firsts.push(this.cells);
      this.cells += area.pages;
      area.section = this;
    }
    this.showAll();
  }

  /** Shows a range of cells only, enlarged. */
  showRange(first, last) {
    this.first = Math.max(0, Math.min(first, last));
    this.end = Math.min(this.cells, Math.max(first, last) + 1);
  }

  showAll() { Object.assign(this, { first: 0, end: this.cells }); }

  get isEnlarged() { return this.end - this.first < this.cells; }

  /** Returns the page of a cell. */
  page(cell) {
    const at = this.indexOf(cell);
    return this.areas[at].firstPage + cell - this.firsts[at];
  }

  area(cell) { return this.areas[this.indexOf(cell)]; }

  cell(area, page) { return this.firsts[this.areas.indexOf(area)] + page - area.firstPage; }

  indexOf(cell) {
    let low = 0, high = this.firsts.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.firsts[middle] <= cell) low = middle; else high = middle;
    }
    return low;
  }
}

function sections({ areas, report, pageUses }) {
  const groups = new Map();
  for (const area of areas) {
    const key = area.kind === 'arena' ? `arena ${area.arena}` : area.kind;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(area);
  }
  const rank = ([, [first]]) => ORDER.indexOf(first.kind);
  const pages = ([, areas]) => areas.reduce((sum, area) => sum + area.pages, 0);
  const largestFirst = (one, other) => one[1][0].kind === 'arena' ? pages(other) - pages(one) : 0;
  return [...groups].sort((one, other) => rank(one) - rank(other) || largestFirst(one, other)).map(([, areas]) => {
    const [{ kind, arena: index }] = areas;
    if (kind === 'arena') {
      const arena = report.arenas[index];
      const parts = ['in use', 'unreturned', ...(arena.muzzy_bytes ? ['muzzy'] : []), 'fragmented', 'cached', 'top', 'overhead'].map(name =>
        `${size(arena[name.replace(' ', '_') + '_bytes'])} ${name}`);
      return new Section(arena.main ? 'Main arena' : `Arena ${arena.address}`, areas,
        `${size(arena.system_bytes)} in ${areas.length} heap${areas.length > 1 ? 's' : ''}: ${parts.join(', ')}, `
        + `${size(arena.returned_bytes)} not resident`);
    }
    let resident = 0, all = 0;
    for (const area of areas) {
      all += area.pages;
      for (let page = area.firstPage; page < area.firstPage + area.pages; page++) {
        resident += pageUses[page] === RESIDENT || pageUses[page] === UNRETURNED;
      }
    }
    return new Section(TITLES.get(kind), areas, `${size(resident * PAGE)} resident of ${size(all * PAGE)}, in ${count(areas.length)} area${areas.length === 1 ? '' : 's'}`);
  });
}

class Overview {
  constructor(memoryMap, colours, { choose, enter }) {
    Object.assign(this, { memoryMap, colours, choose, enter });
    this.root = byId('picture');
    this.sections = sections(memoryMap);
    this.cell = this.fittingCell();
    this.chosen = null;                               // { area, page }
    for (const section of this.sections) this.build(section, this.root);
    this.foldSmall();
    this.cursor = element('div', undefined, { class: 'cursor' });
    this.layOut();
    let width = this.root.clientWidth;
    new ResizeObserver(() => {
      if (this.root.clientWidth !== width) { width = this.root.clientWidth; this.layOut(); }
    }).observe(this.root);
    const laidOut = () => this.layOut();
    addEventListener('beforeprint', laidOut);
    addEventListener('afterprint', laidOut);
  }

  /** Returns the largest cells with which the map is a few windows high. */
  fittingCell() {
    const room = this.root.clientWidth * Math.max(innerHeight, 600) * 3;
    return CELLS.findLast(cell => cell <= 12 && this.memoryMap.pages * cell * cell <= room) ?? 1;
  }

  build(section, root) {
    const title = element('h3', section.title);
    section.whole = title.appendChild(element('button', `Show all ${count(section.cells)} pages`, { type: 'button', class: 'whole', hidden: '' }));
    section.whole.addEventListener('click', () => { section.showAll(); this.layOut(); });
    const canvas = element('canvas', undefined, { tabindex: 0, role: 'img', 'aria-label': `${section.title}: ${section.totals}` });
    section.canvas = canvas;
    section.box = element('div', canvas, { class: 'cells' });
    section.grid = section.box.appendChild(element('div', undefined, { class: 'grid' }));
    section.parts = [title, element('p', section.totals, { class: 'totals' }), section.box];
    root.append(...section.parts);
    const cellAt = event => {
      const column = Math.floor(event.offsetX / section.size), row = Math.floor(event.offsetY / section.size);
      const cell = section.first + row * section.columns + column;
      return column >= 0 && column < section.columns && row >= 0 && cell < section.end ? cell : -1;
    };
    canvas.addEventListener('mousemove', event => this.hover(event, section, cellAt(event)));
    canvas.addEventListener('mouseleave', () => { byId('tip').hidden = true; });
    canvas.addEventListener('mousedown', event => { this.dragged = event.button ? -1 : cellAt(event); });
    canvas.addEventListener('click', event => {
      const cell = cellAt(event), from = this.dragged;
      this.dragged = -1;
      if (cell < 0) return;
      if (from >= 0 && Math.abs(cell - from) >= MIN_DRAG) this.enlarge(section, from, cell); else this.pick(section, cell);
    });
    canvas.addEventListener('wheel', event => {
      const cell = cellAt(event);
      // Without the key, the wheel scrolls the page.
      if (!event.ctrlKey || cell < 0) return;
      event.preventDefault();
      const factor = event.deltaY < 0 ? .5 : 2, place = (cell - section.first) / (section.end - section.first);
      const shown = Math.max(MIN_DRAG, Math.round((section.end - section.first) * factor)), first = Math.round(cell - place * shown);
      this.enlarge(section, first, Math.max(0, first) + shown - 1);
    }, { passive: false });
    canvas.addEventListener('focus', () => {
      if (this.chosen?.area.section !== section) this.pick(section, section.first, false);
    });
    canvas.addEventListener('keydown', event => this.key(event, section));
  }

  /** Shows a range of a section's cells only. */
  enlarge(section, first, last) {
    section.showRange(first, last);
    this.layOut();
  }

  /** Shows all cells of all sections; returns to the usual size. */
  showAll() {
    for (const section of this.sections) section.showAll();
    this.layOut();
  }

  /** Moves small arenas, and other small sections, into parts that are closed at first. */
  foldSmall() {
    const isSmall = section => section.cells < this.memoryMap.pages * MIN_SHARE;
    for (const [what, isArena] of [['arena', true], ['other part', false]]) {
      const sections = this.sections.filter(section => (section.areas[0].kind === 'arena') === isArena);
      const small = sections.filter(isSmall);
      if (small.length < 2) continue;
      const bytes = small.reduce((sum, { cells }) => sum + cells * PAGE, 0);
      const fold = element('details', element('summary', `${count(small.length)} small ${what}s: ${size(bytes)} of addresses`));
      const last = sections.findLast(section => !isSmall(section)) ?? this.sections.findLast(section => !isSmall(section));
      if (last) last.box.after(fold); else this.root.append(fold);
      for (const { parts } of small) fold.append(...parts);
    }
  }

  key(event, section) {
    const at = section.cell(this.chosen.area, this.chosen.page);
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -section.columns, ArrowDown: section.columns,
      PageUp: -10 * section.columns, PageDown: 10 * section.columns, Home: section.first - at, End: section.cells };
    if (event.key in steps) {
      this.pick(section, Math.max(section.first, Math.min(section.end - 1, at + steps[event.key])));
    } else if (event.key === 'Enter') {
      this.enter();
    } else {
      return;
    }
    event.preventDefault();
  }

  pick(section, cell, opens = true) {
    this.mark(section.area(cell), section.page(cell));
    if (opens) this.choose(this.chosen.area, this.chosen.page);
  }

  /** Marks the selected page. */
  mark(area, page) {
    this.chosen = { area, page };
    const { section } = area;
    if (section.cell(area, page) < section.first || section.cell(area, page) >= section.end) {
      section.showAll();
      this.layOut();
    }
    const cell = section.cell(area, page) - section.first;
    section.box.closest('details')?.setAttribute('open', '');
    section.box.append(this.cursor);
    const pixels = number => number * section.size + 'px';
    Object.assign(this.cursor.style, { left: pixels(cell % section.columns), top: pixels(Math.floor(cell / section.columns)),
      width: pixels(1), height: pixels(1) });
    const { top, bottom } = this.cursor.getBoundingClientRect();
    const zoom = byId('zoom'), room = zoom.hidden ? innerHeight : zoom.getBoundingClientRect().top;
    // Scroll if the controls or the zoom would cover it.
    if (top < 80 || bottom > room) scrollBy(0, top - room / 2);
  }

  hover(event, section, cell) {
    const tip = byId('tip');
    tip.hidden = cell < 0;
    if (cell < 0) return;
    const page = section.page(cell), area = section.area(cell);
    tip.textContent = this.describe(area, page);
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const top = event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18;
    Object.assign(tip.style, { left: left + 'px', top: top + 'px' });
  }

  describe(area, page) {
    const { memoryMap, colours } = this;
    const address = area.start + (page - area.firstPage) * PAGE;
    const state = PAGE_USES[memoryMap.pageUses[page]];
    const name = area.name ? ` ${area.name}` : '';
    if (!area.pieces) {
      const sharing = SHARED ? colours.codeOf(page) : '';
      return `${hex(address)}: ${(TITLES.get(area.kind) || 'memory').toLowerCase()}${name}, ${state}${sharing}`;
    }
    const most = GROUPS[colours.groups[page]].label;
    return `${hex(address)}: ${state}; ${count(memoryMap.busy[page])} of ${count(PAGE)} bytes in use, mostly: ${most}${colours.codeOf(page)}`;
  }

  resize(step) {
    const at = CELLS.indexOf(this.cell) + step;
    this.cell = CELLS[Math.max(0, Math.min(CELLS.length - 1, at))];
    this.layOut();
  }

  layOut() {
    const room = this.root.clientWidth - 2;
    for (const section of this.sections) {
      const cells = section.end - section.first;
      // An enlarged range takes at least some rows.
      section.size = section.isEnlarged ? CELLS.findLast(cell => cell * cell * cells <= room * 400) ?? this.cell : this.cell;
      const least = Math.ceil(cells / MAX_ROWS);
      section.columns = Math.max(1, least, Math.min(Math.floor(room / section.size), cells));
      const rows = Math.ceil(cells / section.columns);
      section.whole.hidden = !section.isEnlarged;
      Object.assign(section.canvas, { width: section.columns, height: rows });
      Object.assign(section.canvas.style, { width: section.columns * section.size + 'px', height: rows * section.size + 'px' });
      const line = `1px, transparent 1px) 0 0 / ${section.size}px ${section.size}px`;
      section.grid.style.background = section.size < 5 ? ''
        : `linear-gradient(to right, #00000018 ${line}, linear-gradient(to bottom, #00000018 ${line}`;
    }
    this.draw();
    if (!this.chosen) return;
    const { area, page } = this.chosen, { section } = area, cell = section.cell(area, page);
    if (cell >= section.first && cell < section.end) this.mark(area, page); else this.cursor.remove();
  }

  draw() {
    byId('legend').replaceChildren(...this.colours.legend());
    for (const section of this.sections) this.drawSection(section);
  }

  drawSection(section) {
    const { width, height } = section.canvas;
    const pen = section.canvas.getContext('2d');
    const image = pen.createImageData(width, height);
    let at = 0;
    section.areas.forEach((area, index) => {
      const first = Math.max(section.first - section.firsts[index], 0), end = Math.min(section.end - section.firsts[index], area.pages);
      for (let page = area.firstPage + first; page < area.firstPage + end; page++, at += 4) {
        const [red, green, blue] = this.colours.ofPage(page);
        image.data[at] = red;
        image.data[at + 1] = green;
        image.data[at + 2] = blue;
        image.data[at + 3] = 255;
      }
    });
    pen.putImageData(image, 0, 0);
  }
}
