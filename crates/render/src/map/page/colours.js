// What is shown in which colour: two views of the same pages.

/** Groups of the second view: name, variable of the style, causes. */
const GROUPS = [
  ['live objects', 'live-slots', 'ruby.live_slots'],
  ['memory of objects', 'ruby-malloc', 'ruby.malloc'],
  ['interpreter', 'vm', 'ruby.vm'],
  ['JIT', 'jit', 'ruby.jit'],
  ['held by extensions', 'held', 'native.held'],
  ['of libraries, threads', 'global', 'native.global'],
  ['unreachable', 'unreachable', 'native.unreachable'],
  ['in use', 'untraced', 'malloc.in_use'],
  ['free slots', 'free-slots', 'ruby.free_slots'],
  ['free, a trim returns it', 'unreturned', 'malloc.unreturned'],
  ['free, pinned', 'fragmented', 'malloc.fragmented'],
  ['top of arenas', 'top', 'malloc.top'],
  ['cached by malloc', 'cached', 'malloc.cached'],
  ['headers, structures', 'overhead', 'malloc.overhead', 'ruby.overhead'],
  ['stacks', 'stacks', 'stack.threads', 'stack.fibers'],
  ['files', 'files', 'file.private', 'file.shared'],
  ['unknown', 'unknown', 'unknown'],
];
const GROUP_OF_CAUSE = new Map(GROUPS.flatMap(([, , ...causes], group) => causes.map(cause => [cause, group])));
const WHOLE = { thread_stack: 'stack.threads', fiber_stack: 'stack.fibers', jit: 'ruby.jit', file: 'file.shared',
  transient_heap: 'ruby.malloc' };
const OF_USE = { [FREE]: 'malloc.fragmented', [FASTBIN]: 'malloc.cached', [TCACHE]: 'malloc.cached', [TOP]: 'malloc.top',
  [OLD_SLOT]: 'ruby.live_slots', [YOUNG_SLOT]: 'ruby.live_slots', [UNREAD_SLOT]: 'ruby.live_slots',
  [FREE_SLOT]: 'ruby.free_slots', [FOREIGN]: 'unknown' };

/** The cause of a piece; -1 stands for an area as a whole. Free chunks of which a page would be returned are told by the page. */
function causeOf(atlas, area, piece) {
  if (piece < 0) return WHOLE[area.kind] ?? 'unknown';
  const use = atlas.uses[piece];
  if (use === IN_USE) return atlas.ownerOf(piece)?.cause ?? 'malloc.in_use';
  if (use === OVERHEAD) return area.kind === 'heap_pages' ? 'ruby.overhead' : 'malloc.overhead';
  return OF_USE[use];
}

class Colours {
  constructor(atlas) {
    this.atlas = atlas;
    this.view = 'use';
    this.owner = 0;                                   // that is looked for; one more than its index
    this.groups = new Uint8Array(atlas.pages);
    this.findGroups();
    this.readStyle();
  }

  /** The group with the most bytes of each page. */
  findGroups() {
    const { atlas } = this;
    const ownerGroups = (atlas.report.owners ?? []).map(owner => GROUP_OF_CAUSE.get(owner.cause));
    const untraced = GROUP_OF_CAUSE.get('malloc.in_use');
    const ofUse = USES.map((_, use) => GROUP_OF_CAUSE.get(OF_USE[use] ?? 'unknown'));
    const unreturned = GROUP_OF_CAUSE.get('malloc.unreturned');
    const sums = new Uint32Array(GROUPS.length);
    for (const area of atlas.areas) {
      if (!area.pieces) {
        const group = GROUP_OF_CAUSE.get(causeOf(atlas, area, -1));
        this.groups.fill(group, area.firstPage, area.firstPage + area.pages);
        continue;
      }
      const overhead = GROUP_OF_CAUSE.get('malloc.overhead');
      let page = -1;
      const settle = () => {
        if (page >= 0) this.groups[page] = atlas.pageUses[page] === UNRETURNED ? unreturned : sums.indexOf(Math.max(...sums));
        sums.fill(0);
      };
      for (let piece = area.firstPiece; piece < area.firstPiece + area.pieces; piece++) {
        const use = atlas.uses[piece];
        const group = use === OVERHEAD ? overhead : use !== IN_USE ? ofUse[use]
          : atlas.owners[piece] ? ownerGroups[atlas.owners[piece] - 1] : untraced;
        atlas.spread(area, piece, (at, bytes) => {
          if (at !== page) { settle(); page = at; }
          sums[group] += bytes;
        });
      }
      settle();
    }
  }

  /** Takes the colours from the style, as they are in the light or the dark scheme. */
  readStyle() {
    const style = getComputedStyle(document.documentElement);
    const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const read = name => {
      pen.fillStyle = style.getPropertyValue('--' + name).trim();
      pen.fillRect(0, 0, 1, 1);
      return [...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)];
    };
    this.named = Object.fromEntries(['in-use', 'in-use-little', 'kept', 'returned', 'swapped', 'ground', 'ink', 'mark', 'line']
      .map(name => [name, read(name)]));
    this.ofGroup = GROUPS.map(([, name]) => read(name));
    this.shades = Array.from({ length: 65 }, (_, step) => this.named['in-use-little'].map((from, part) =>
      Math.round(from + (this.named['in-use'][part] - from) * Math.sqrt(step / 64))));
  }

  css(rgb) { return `rgb(${rgb.join(' ')})`; }

  /** The pages that hold bytes of the owner that is looked for. */
  findOwner() {
    this.found = null;
    if (!this.owner) return;
    this.found = new Uint8Array(this.atlas.pages);
    for (const area of this.atlas.areas) {
      for (let piece = area.firstPiece; piece < area.firstPiece + area.pieces; piece++) {
        if (this.atlas.owners[piece] === this.owner) this.atlas.spread(area, piece, page => { this.found[page] = 1; });
      }
    }
  }

  ofPage(page) {
    const { atlas, named } = this;
    let colour;
    switch (atlas.pageUses[page]) {
      case RETURNED: return named.returned;
      case SWAPPED: colour = named.swapped; break;
      default: colour = this.view === 'owner' ? this.ofGroup[this.groups[page]]
        : atlas.busy[page] ? this.shades[atlas.busy[page] >> 6] : named.kept;
    }
    if (!this.found || this.found[page]) return colour;
    return colour.map((part, at) => Math.round(part * .18 + named.ground[at] * .82));
  }

  /** The colour of a piece on a page. */
  ofPiece(area, piece, page) {
    const { atlas, named } = this;
    const pageUse = atlas.pageUses[page];
    if (pageUse === RETURNED) return named.returned;
    if (pageUse === SWAPPED) return named.swapped;
    if (this.view === 'owner') {
      const cause = pageUse === UNRETURNED ? 'malloc.unreturned' : causeOf(atlas, area, piece);
      return this.ofGroup[GROUP_OF_CAUSE.get(cause)];
    }
    return piece < 0 || isBusy(atlas.uses[piece]) ? named['in-use'] : named.kept;
  }

  legend() {
    const entries = this.view === 'use'
      ? [['in use', 'in-use'], ['in use in part: it pins the free rest', 'in-use-little'], ['free but kept', 'kept'],
        ['returned to the kernel, or never touched', 'returned'], ['in swap', 'swapped']]
      : [...GROUPS.filter((_, group) => this.groups.includes(group)).map(([text, name]) => [text, name]),
        ['not resident', 'returned']];
    return entries.map(([text, name]) => `<span><i class="swatch" style="background: var(--${name})"></i>${text}</span>`).join('');
  }
}
