// The snapshot in this file, unpacked: its report and its memory map (docs/formats.md of rbloat).

const UNIT = 8;
/** Bytes of a page, which snapshots for other sizes than this one state. */
let PAGE = 4096;

/** The uses of blocks, by number. */
const USES = ['memory that is not malloc\'s', 'overhead', 'chunk in use', 'free chunk', 'chunk in a fastbin', 'chunk in a tcache', 'top chunk',
  'slot of an old object', 'slot of a young object, or of garbage', 'free slot', 'swapped slot', 'free extent, released by MADV_FREE'];
const [FOREIGN, OVERHEAD, IN_USE, FREE, FASTBIN, TCACHE, TOP, OLD_SLOT, YOUNG_SLOT, FREE_SLOT, UNREAD_SLOT, MUZZY] = USES.keys();

/** The states of pages, by number. */
const PAGE_USES = ['not resident', 'resident', 'in swap', 'resident and free (a trim would return it)',
  'not in the core, so it is unknown whether it was resident'];
const [RETURNED, RESIDENT, SWAPPED, UNRETURNED, LOST] = PAGE_USES.keys();

const hasOwner = use => use === IN_USE || use === OLD_SLOT || use === YOUNG_SLOT;
/** Returns true if the bytes of a block are not free. */
const isBusy = use => use <= IN_USE || (use >= OLD_SLOT && use !== FREE_SLOT && use !== MUZZY);

const hex = address => '0x' + address.toString(16);

async function unpack(name) {
  const text = document.getElementById('section-' + name).textContent;
  const packed = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Numbers in LEB128. */
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

/** All areas with their pages and blocks, in one array for each kind of number. */
class MemoryMap {
  static async load() {
    const names = ['report', 'areas', 'sizes', 'uses', 'owners', 'pages'];
    const [report, areas, ...columns] = await Promise.all(names.map(unpack));
    const parse = bytes => JSON.parse(new TextDecoder().decode(bytes));
    return new MemoryMap(parse(report), parse(areas), columns);
  }

  constructor(report, { areas, page_bytes = PAGE }, [sizes, uses, owners, pages]) {
    PAGE = page_bytes;
    this.report = report;
    this.areas = areas;
    this.uses = uses;
    this.starts = new Uint32Array(uses.length);       // within the area, in units
    this.owners = new Uint32Array(uses.length);       // index + 1, or 0 for no owner
    let page = 0, block = 0;
    const sizeColumn = new Column(sizes), ownerColumn = new Column(owners);
    for (const area of areas) {
      area.firstPage = page;
      area.firstBlock = block;
      area.end = area.start + area.pages * PAGE;
      page += area.pages;
      let at = 0;
      for (const last = block + area.pieces; block < last; block++) {
        this.starts[block] = at;
        at += sizeColumn.next();
        if (hasOwner(uses[block])) this.owners[block] = ownerColumn.next();
      }
    }
    this.pages = page;
    this.pageUses = new Uint8Array(page);
    const runs = new Column(pages);
    for (let at = 0; at < page;) {
      const run = runs.next(), end = at + Math.floor(run / 8);
      this.pageUses.fill(run % 8, at, end);
      at = end;
    }
    this.measure();
  }

  /** Sums up the bytes in use of each page. */
  measure() {
    this.busy = new Uint32Array(this.pages);
    for (const area of this.areas) {
      if (!area.pieces) {
        this.busy.fill(PAGE, area.firstPage, area.firstPage + area.pages);
        continue;
      }
      for (let block = area.firstBlock; block < area.firstBlock + area.pieces; block++) {
        if (isBusy(this.uses[block])) this.spread(area, block, (page, bytes) => { this.busy[page] += bytes; });
      }
    }
  }

  endOf(area, block) {
    const last = area.firstBlock + area.pieces - 1;
    return block < last ? this.starts[block + 1] : area.pages * PAGE / UNIT;
  }

  /** Calls back with each page of a block, and the block's bytes on that page. */
  spread(area, block, each) {
    const start = this.starts[block] * UNIT, end = this.endOf(area, block) * UNIT;
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

  /** Returns the block at an address of an area, or -1 if the area has none. */
  blockAt(area, address) {
    if (!area.pieces) return -1;
    const at = (address - area.start) / UNIT;
    let low = area.firstBlock, high = area.firstBlock + area.pieces;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= at) low = middle; else high = middle;
    }
    return low;
  }

  addressOf(area, block) { return area.start + this.starts[block] * UNIT; }
  bytesOf(area, block) { return (this.endOf(area, block) - this.starts[block]) * UNIT; }
  ownerOf(block) { return this.owners[block] ? this.report.owners[this.owners[block] - 1] : null; }
}
