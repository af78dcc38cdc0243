// The colours of pages and blocks, by use, by owner, by code, and by the processes that share them.

const { groups: GROUPS, legend: LEGEND, made: MADE, shared: SHARED } = words;
const VIEWS = [...(SHARED ? ['sharing'] : []), 'use', 'owner', ...(MADE ? ['code'] : [])];
const GROUP_OF_CAUSE = new Map(GROUPS.flatMap(({ causes }, group) => causes.map(cause => [cause, group])));
/** The causes of areas without blocks. */
const WHOLE = { thread_stack: 'stack.threads', fiber_stack: 'stack.fibers', jit: 'ruby.jit', file: 'file.shared',
  shmem: 'file.shmem', transient_heap: 'ruby.malloc' };
/** The causes of blocks, as far as their use decides. */
const OF_USE = { [FREE]: 'malloc.fragmented', [FASTBIN]: 'malloc.cached', [TCACHE]: 'malloc.cached', [TOP]: 'malloc.top',
  [OLD_SLOT]: 'ruby.live_slots', [YOUNG_SLOT]: 'ruby.live_slots', [UNREAD_SLOT]: 'ruby.live_slots',
  [FREE_SLOT]: 'ruby.free_slots', [FOREIGN]: 'unknown', [MUZZY]: 'malloc.muzzy' };

/** Returns the cause of a block, or of an area without blocks (-1). Whether a trim returns free bytes is known of the page only. */
function causeOf(memoryMap, area, block) {
  if (block < 0) return WHOLE[area.kind] ?? 'unknown';
  const use = memoryMap.uses[block];
  if (use === IN_USE) return memoryMap.ownerOf(block)?.cause ?? 'malloc.in_use';
  if (use === OVERHEAD) return area.kind === 'heap_pages' ? 'ruby.overhead' : 'malloc.overhead';
  return OF_USE[use];
}

/** Returns the cause of the part of a block that is on a page: a trim returns the whole free pages of a free chunk, but not its ends. */
function causeOn(memoryMap, area, block, page) {
  const cause = causeOf(memoryMap, area, block);
  return memoryMap.pageUses[page] === UNRETURNED && cause !== 'malloc.muzzy' ? 'malloc.unreturned' : cause;
}

class Colours {
  constructor(memoryMap) {
    this.memoryMap = memoryMap;
    this.view = VIEWS[0];
    this.owner = 0;                                   // the selected owner: index + 1, or 0
    this.groups = new Uint8Array(memoryMap.pages);
    this.findGroups();
    this.findMakers();
    this.findSharing();
    this.readStyle();
  }

  /** Finds the code that made each page: index + 1, or 0 if it is unknown. */
  findMakers() {
    this.makers = new Uint8Array(MADE ? this.memoryMap.pages : 0);
    for (const [first, count, code] of MADE?.pages ?? []) {
      const last = (first + count - 1) * PAGE, area = this.memoryMap.areaOf(last);
      if (!area) continue;
      const end = area.firstPage + (last - area.start) / PAGE + 1;
      this.makers.fill(code + 1, Math.max(area.firstPage, end - count), end);
    }
  }

  /** Finds the processes that share each page: the index of the entry in the legend. Pages that came later have the last one. */
  findSharing() {
    this.sharing = new Uint8Array(SHARED ? this.memoryMap.pages : 0).fill((SHARED?.kinds ?? 1) - 1);
    for (const [first, count, entry] of SHARED?.pages ?? []) {
      for (let number = first; number < first + count;) {
        const area = this.memoryMap.areaOf(number * PAGE);
        if (!area) { number++; continue; }
        const page = area.firstPage + number - area.start / PAGE;
        const end = Math.min(page + first + count - number, area.firstPage + area.pages);
        this.sharing.fill(entry, page, end);
        number += end - page;
      }
    }
  }

  /** Returns the code that made a page, or the processes that share it, for its description. */
  codeOf(page) {
    const code = MADE?.code[this.makers[page] - 1];
    if (SHARED && [RESIDENT, UNRETURNED].includes(this.memoryMap.pageUses[page])) return `; ${SHARED.legend[this.sharing[page]][0]}`;
    return code ? `; first touched in ${code}, by the next sample` : '';
  }

  /** Returns the colour of a page by its code. */
  ofMaker(page) { return this.makers[page] ? this.codes[this.makers[page] - 1] : this.named.kept; }

  /** Finds the group with the most bytes of each page. */
  findGroups() {
    const { memoryMap } = this;
    const ownerGroups = (memoryMap.report.owners ?? []).map(owner => GROUP_OF_CAUSE.get(owner.cause));
    const untraced = GROUP_OF_CAUSE.get('malloc.in_use');
    const ofUse = USES.map((_, use) => GROUP_OF_CAUSE.get(OF_USE[use] ?? 'unknown'));
    const unreturned = GROUP_OF_CAUSE.get('malloc.unreturned');
    const sums = new Uint32Array(GROUPS.length);
    for (const area of memoryMap.areas) {
      if (!area.pieces) {
        const group = GROUP_OF_CAUSE.get(causeOf(memoryMap, area, -1));
        this.groups.fill(group, area.firstPage, area.firstPage + area.pages);
        continue;
      }
      const overhead = GROUP_OF_CAUSE.get('malloc.overhead');
      let page = -1;
      const settle = () => {
        if (page >= 0) this.groups[page] = memoryMap.pageUses[page] === UNRETURNED ? unreturned : sums.indexOf(Math.max(...sums));
        sums.fill(0);
      };
      for (let block = area.firstBlock; block < area.firstBlock + area.pieces; block++) {
        const use = memoryMap.uses[block];
        const group = use === OVERHEAD ? overhead : use !== IN_USE ? ofUse[use]
          : memoryMap.owners[block] ? ownerGroups[memoryMap.owners[block] - 1] : untraced;
        memoryMap.spread(area, block, (at, bytes) => {
          if (at !== page) { settle(); page = at; }
          sums[group] += bytes;
        });
      }
      settle();
    }
  }

  /** Reads the colours of the current scheme from the style sheet. */
  readStyle() {
    const style = getComputedStyle(document.documentElement);
    const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const read = name => {
      pen.fillStyle = style.getPropertyValue('--' + name).trim();
      pen.fillRect(0, 0, 1, 1);
      return [...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)];
    };
    this.named = Object.fromEntries(['in-use', 'in-use-little', 'kept', 'returned', 'swapped', 'lost', 'ground', 'ink', 'mark', 'line']
      .map(name => [name, read(name)]));
    // Neighbouring hues are far from each other; the last colour is that of all other code.
    this.codes = (MADE?.code ?? []).map((_, index) => {
      pen.fillStyle = `hsl(${index * 137.5 % 360} 60% ${index % 2 ? 42 : 58}%)`;
      pen.fillRect(0, 0, 1, 1);
      return [...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)];
    });
    this.codes.push(this.named.ink);
    this.ofGroup = GROUPS.map(({ colour }) => read(colour));
    this.ofSharing = (SHARED?.legend ?? []).map(([, colour]) => read(colour));
    this.shades = Array.from({ length: 65 }, (_, step) => this.named['in-use-little'].map((from, part) =>
      Math.round(from + (this.named['in-use'][part] - from) * Math.sqrt(step / 64))));
  }

  css(rgb) { return `rgb(${rgb.join(' ')})`; }

  /** Finds the pages of the selected owner. */
  findOwner() {
    this.found = null;
    if (!this.owner) return;
    this.found = new Uint8Array(this.memoryMap.pages);
    for (const area of this.memoryMap.areas) {
      for (let block = area.firstBlock; block < area.firstBlock + area.pieces; block++) {
        if (this.memoryMap.owners[block] === this.owner) this.memoryMap.spread(area, block, page => { this.found[page] = 1; });
      }
    }
  }

  ofPage(page) {
    const { memoryMap, named } = this;
    let colour;
    switch (memoryMap.pageUses[page]) {
      case RETURNED: return named.returned;
      case SWAPPED: colour = named.swapped; break;
      case LOST: colour = named.lost; break;
      default: colour = this.view === 'owner' ? this.ofGroup[this.groups[page]] : this.view === 'code' ? this.ofMaker(page)
        : this.view === 'sharing' ? this.ofSharing[this.sharing[page]]
        : memoryMap.busy[page] ? this.shades[Math.floor(memoryMap.busy[page] * 64 / PAGE)] : named.kept;
    }
    if (!this.found || this.found[page]) return colour;
    return colour.map((part, at) => Math.round(part * .18 + named.ground[at] * .82));
  }

  /** Returns the colour of a block on a page. */
  ofBlock(area, block, page) {
    const { memoryMap, named } = this;
    const pageUse = memoryMap.pageUses[page];
    if (pageUse === RETURNED) return named.returned;
    if (pageUse === SWAPPED) return named.swapped;
    if (pageUse === LOST) return named.lost;
    if (this.view === 'code') return this.ofMaker(page);
    if (this.view === 'sharing') return this.ofSharing[this.sharing[page]];
    if (this.view === 'owner') return this.ofGroup[GROUP_OF_CAUSE.get(causeOn(memoryMap, area, block, page))];
    return block < 0 || isBusy(memoryMap.uses[block]) ? named['in-use'] : named.kept;
  }

  legend() {
    if (this.view === 'code') return this.legendOfCode();
    const entries = this.view === 'use' ? LEGEND : this.view === 'sharing' ? SHARED.legend
      : [...GROUPS.filter((_, group) => this.groups.includes(group)).map(({ label, colour }) => [label, colour]).reverse(),
        ['not resident', 'returned']];
    return entries.map(([text, name]) => this.entry(text, `var(--${name})`));
  }

  legendOfCode() {
    const names = [...MADE.code, 'other code'];
    const entries = names.map((name, index) => this.entry(name, this.css(this.codes[index])));
    return [...entries.filter((_, index) => this.makers.includes(index + 1)), this.entry('unknown', 'var(--kept)'),
      this.entry('not resident', 'var(--returned)')];
  }

  entry(text, colour) {
    const swatch = element('i', undefined, { class: 'swatch', style: `background: ${colour}` });
    const entry = element('span', swatch);
    entry.append(text);
    return entry;
  }
}
