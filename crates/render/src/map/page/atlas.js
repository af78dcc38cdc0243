'use strict';
// What the file holds, unpacked: the report, and where everything lies (see rbloat's docs/snapshot.md).

const PAGE = 4096, UNIT = 8;

/** What a piece is used for, by number. */
const USES = ['foreign', 'overhead', 'in use', 'free', 'in a fastbin', 'in a tcache', 'top', 'an old object',
  'a young object, or garbage', 'free slot', 'slot, swapped out'];
const [FOREIGN, OVERHEAD, IN_USE, FREE, FASTBIN, TCACHE, TOP, OLD_SLOT, YOUNG_SLOT, FREE_SLOT, UNREAD_SLOT] = USES.keys();

/** Where a page is, by number. */
const PAGE_USES = ['returned to the kernel, or never touched', 'resident', 'in swap', 'resident, free: a trim would return it'];
const [RETURNED, RESIDENT, SWAPPED, UNRETURNED] = PAGE_USES.keys();

const hasOwner = use => use === IN_USE || use === OLD_SLOT || use === YOUNG_SLOT;
/** Whether the bytes of a piece are not free. */
const isBusy = use => use <= IN_USE || (use >= OLD_SLOT && use !== FREE_SLOT);

const hex = address => '0x' + address.toString(16);
const count = number => number.toLocaleString('en-US');
/** Bytes as rbloat's text shows them. */
const size = bytes => bytes < 1000 ? `${bytes} B` : bytes < 1000 * 1024 ? `${(bytes / 1024).toFixed(1)} KiB`
  : `${(bytes / 1048576).toFixed(1)} MiB`;

async function unpack(name) {
  const text = document.getElementById('section-' + name).textContent;
  const packed = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Numbers of seven bits a byte, the lowest first. */
class Column {
  constructor(bytes) { this.bytes = bytes; this.at = 0; }
  next() {
    let number = 0, scale = 1, byte;
    do {
      byte = this.bytes[this.at++];
      number += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    return number;
  }
}

/** All areas with their pages and pieces, each kind of number in one array. */
class Atlas {
  static async load() {
    const names = ['report', 'areas', 'sizes', 'uses', 'owners', 'pages'];
    const [report, areas, ...columns] = await Promise.all(names.map(unpack));
    const parse = bytes => JSON.parse(new TextDecoder().decode(bytes));
    return new Atlas(parse(report), parse(areas), columns);
  }

  constructor(report, { areas, knows_pages }, [sizes, uses, owners, pages]) {
    this.report = report;
    this.knowsPages = knows_pages;
    this.areas = areas;
    this.uses = uses;
    this.starts = new Uint32Array(uses.length);       // within the area, in units
    this.owners = new Uint32Array(uses.length);       // one more than the index; 0: nobody
    let page = 0, piece = 0;
    const sizeColumn = new Column(sizes), ownerColumn = new Column(owners);
    for (const area of areas) {
      area.firstPage = page;
      area.firstPiece = piece;
      area.end = area.start + area.pages * PAGE;
      page += area.pages;
      let at = 0;
      for (const last = piece + area.pieces; piece < last; piece++) {
        this.starts[piece] = at;
        at += sizeColumn.next();
        if (hasOwner(uses[piece])) this.owners[piece] = ownerColumn.next();
      }
    }
    this.pages = page;
    this.pageUses = new Uint8Array(page);
    const runs = new Column(pages);
    for (let at = 0; at < page;) {
      const run = runs.next(), end = at + Math.floor(run / 4);
      this.pageUses.fill(run % 4, at, end);
      at = end;
    }
    this.measure();
  }

  /** Bytes in use of each page. */
  measure() {
    this.busy = new Uint16Array(this.pages);
    for (const area of this.areas) {
      if (!area.pieces) {
        this.busy.fill(PAGE, area.firstPage, area.firstPage + area.pages);
        continue;
      }
      for (let piece = area.firstPiece; piece < area.firstPiece + area.pieces; piece++) {
        if (isBusy(this.uses[piece])) this.spread(area, piece, (page, bytes) => { this.busy[page] += bytes; });
      }
    }
  }

  endOf(area, piece) {
    const last = area.firstPiece + area.pieces - 1;
    return piece < last ? this.starts[piece + 1] : area.pages * PAGE / UNIT;
  }

  /** Calls back with each page that a piece touches, and the bytes that it has there. */
  spread(area, piece, each) {
    const start = this.starts[piece] * UNIT, end = this.endOf(area, piece) * UNIT;
    for (let page = Math.floor(start / PAGE); page * PAGE < end; page++) {
      each(area.firstPage + page, Math.min(end, (page + 1) * PAGE) - Math.max(start, page * PAGE));
    }
  }

  areaOf(address) {
    let low = 0, high = this.areas.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.areas[middle].end <= address) low = middle + 1; else high = middle;
    }
    const area = this.areas[low];
    return area && area.start <= address ? area : null;
  }

  /** The piece at an address of an area; -1 where it has none. */
  pieceAt(area, address) {
    if (!area.pieces) return -1;
    const at = (address - area.start) / UNIT;
    let low = area.firstPiece, high = area.firstPiece + area.pieces;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= at) low = middle; else high = middle;
    }
    return low;
  }

  addressOf(area, piece) { return area.start + this.starts[piece] * UNIT; }
  bytesOf(area, piece) { return (this.endOf(area, piece) - this.starts[piece]) * UNIT; }
  ownerOf(piece) { return this.owners[piece] ? this.report.owners[this.owners[piece] - 1] : null; }
}
