// The zoom: the selected page and its neighbours, block by block. Below it, the parts of the page are connected.

const LINES = 10, LINE_HEIGHT = 15, LABEL = 130;

class Zoom {
  constructor(memoryMap, colours, overview) {
    Object.assign(this, { memoryMap, colours, overview });
    this.root = byId('zoom');
    this.canvas = byId('zoom-canvas');
    this.area = null;
    this.canvas.addEventListener('click', event => {
      const address = this.addressAt(event.offsetX, event.offsetY);
      if (address !== null) this.choose(this.area, address);
    });
    this.canvas.addEventListener('mousemove', event => {
      const address = this.addressAt(event.offsetX, event.offsetY);
      byId('tip').hidden = address === null;
      if (address === null) return;
      byId('tip').textContent = this.describe(this.area, address);
      Object.assign(byId('tip').style, { left: Math.min(event.clientX + 14, innerWidth - 320) + 'px', top: event.clientY - 56 + 'px' });
    });
    this.canvas.addEventListener('mouseleave', () => { byId('tip').hidden = true; });
    this.canvas.addEventListener('keydown', event => this.key(event));
    byId('close').addEventListener('click', () => this.close());
    addEventListener('resize', () => { if (this.area) this.draw(); });
  }

  key(event) {
    const { memoryMap, area } = this;
    const block = memoryMap.blockAt(area, this.address);
    const go = address => this.choose(area, Math.max(area.start, Math.min(area.end - UNIT, address)));
    const steps = {
      ArrowLeft: () => go(block > area.firstBlock ? memoryMap.addressOf(area, block - 1) : this.address - PAGE),
      ArrowRight: () => go(block < 0 ? this.address + PAGE : area.start + memoryMap.endOf(area, block) * UNIT),
      ArrowUp: () => go(this.address - PAGE),
      ArrowDown: () => go(this.address + PAGE),
      Escape: () => this.close(),
    };
    if (!(event.key in steps)) return;
    steps[event.key]();
    event.preventDefault();
    event.stopPropagation();
  }

  close() {
    const section = this.area?.section;
    this.area = null;
    this.root.hidden = true;
    document.body.style.paddingBottom = '';
    section?.canvas.focus({ preventScroll: true });
  }

  /** Selects the block at an address of an area, and its page. */
  choose(area, address) {
    Object.assign(this, { area, address });
    this.root.hidden = false;
    this.draw();
    const text = this.describe(area, address);
    byId('chosen').textContent = text;
    document.body.style.paddingBottom = this.root.offsetHeight + 16 + 'px';
    this.overview.mark(area, this.pageOf(address));
    byId('status').textContent = text;
    history.replaceState(null, '', '#' + hex(address));
  }

  pageOf(address) { return this.area.firstPage + Math.floor((address - this.area.start) / PAGE); }

  describe(area, address) {
    const { memoryMap } = this;
    const block = memoryMap.blockAt(area, address);
    const page = area.firstPage + Math.floor((address - area.start) / PAGE);
    if (block < 0) return this.overview.describe(area, page);
    const use = memoryMap.uses[block], owner = memoryMap.ownerOf(block);
    const parts = [`${hex(memoryMap.addressOf(area, block))}: ${USES[use]}, ${count(memoryMap.bytesOf(area, block))} bytes`];
    if (owner) {
      parts.push(owner.kind === 'none' ? 'unreachable' : `owned by ${owner.owner} (${owner.kind})`);
      const others = owner.kept_by.length > 1 ? ' and others' : '';
      if (owner.kept_by[0]?.path) parts.push(`retained by ${owner.kept_by[0].path}${others}`);
    }
    if (use === FREE) parts.push(this.divide(area, block));
    parts.push(`here: ${causeOn(memoryMap, area, block, page)}`, `page: ${PAGE_USES[memoryMap.pageUses[page]]}`);
    return parts.join(' · ');
  }

  /** Divides a free chunk by what can become of it. */
  divide(area, block) {
    const { memoryMap } = this, bytes = new Map();
    memoryMap.spread(area, block, (page, part) => {
      const use = memoryMap.pageUses[page];
      const fate = use === UNRETURNED ? 'on whole free pages' : use === RETURNED ? 'not resident' : 'on pages in use';
      bytes.set(fate, (bytes.get(fate) ?? 0) + part);
    });
    return [...bytes].map(([fate, sum]) => `${count(sum)} bytes ${fate}`).join(', ');
  }

  draw() {
    const { area, canvas, memoryMap, colours } = this;
    const scale = devicePixelRatio;
    this.width = this.root.clientWidth - 40;
    this.unitsAcross = [512, 256, 128].find(units => this.width - LABEL >= units) ?? 64;
    this.unit = Math.floor((this.width - LABEL) / this.unitsAcross) || 1;
    this.perLine = this.unitsAcross * UNIT;
    const linesBefore = 3 * PAGE / this.perLine;
    const lines = Math.ceil(area.pages * PAGE / this.perLine);
    const own = Math.floor((this.address - area.start) / this.perLine);
    this.firstLine = Math.max(0, Math.min(own - Math.min(linesBefore, 4), lines - LINES));
    this.lines = Math.min(LINES, lines);
    const height = this.lines * LINE_HEIGHT + 2;
    Object.assign(canvas, { width: this.width * scale, height: height * scale });
    Object.assign(canvas.style, { width: this.width + 'px', height: height + 'px' });
    const from = area.start + this.firstLine * this.perLine;
    const to = Math.min(area.end, from + this.lines * this.perLine);
    byId('zoom-title').textContent = `${hex(from)} to ${hex(to)}`;
    const pen = canvas.getContext('2d');
    pen.scale(scale, scale);
    pen.font = '11px ui-monospace, monospace';
    pen.textBaseline = 'middle';
    for (let line = 0; line < this.lines; line++) {
      pen.fillStyle = colours.css(colours.named.ink);
      const label = hex(from + line * this.perLine);
      if ((from + line * this.perLine) % PAGE === 0) pen.fillText(label, 0, line * LINE_HEIGHT + LINE_HEIGHT / 2);
    }
    let block = memoryMap.blockAt(area, from);
    for (let at = from; at < to;) {
      const end = block < 0 ? to : Math.min(to, area.start + memoryMap.endOf(area, block) * UNIT);
      const isChosen = block >= 0 && block === memoryMap.blockAt(area, this.address);
      this.drawBlock(pen, area, block, at, end, isChosen, from);
      at = end;
      if (block >= 0) block++;
    }
  }

  /** Draws a block, cut at the ends of lines and pages. */
  drawBlock(pen, area, block, start, end, isChosen, from) {
    const { colours } = this;
    for (let at = start; at < end;) {
      const cut = Math.min(end, at - (at - area.start) % this.perLine + this.perLine, at - at % PAGE + PAGE);
      const line = Math.floor((at - from) / this.perLine);
      const x = LABEL + (at - from) % this.perLine / UNIT * this.unit, width = (cut - at) / UNIT * this.unit;
      const page = area.firstPage + Math.floor((at - area.start) / PAGE);
      pen.fillStyle = colours.css(colours.ofBlock(area, block, page));
      pen.fillRect(x, line * LINE_HEIGHT + 1, width, LINE_HEIGHT - 2);
      if (at === start) {
        pen.fillStyle = colours.css(colours.named.ground);
        pen.fillRect(x, line * LINE_HEIGHT + 1, 1, LINE_HEIGHT - 2);
      }
      if (isChosen) {
        pen.strokeStyle = colours.css(colours.named.mark);
        pen.lineWidth = 2;
        pen.strokeRect(x, line * LINE_HEIGHT + 1, width, LINE_HEIGHT - 2);
      }
      at = cut;
    }
  }

  addressAt(x, y) {
    const line = Math.floor((y - 1) / LINE_HEIGHT), unit = Math.floor((x - LABEL) / this.unit);
    if (unit < 0 || unit >= this.unitsAcross || line < 0 || line >= this.lines) return null;
    const address = this.area.start + (this.firstLine + line) * this.perLine + unit * UNIT;
    return address < this.area.end ? address : null;
  }
}

function setUp(memoryMap) {
  const colours = new Colours(memoryMap);
  let zoom;
  const overview = new Overview(memoryMap, colours, {
    choose: (area, page) => zoom.choose(area, area.start + (page - area.firstPage) * PAGE),
    enter: () => { if (zoom.area) zoom.canvas.focus(); },
  });
  zoom = new Zoom(memoryMap, colours, overview);
  const redraw = () => { overview.draw(); if (zoom.area) zoom.draw(); };

  const setView = view => {
    colours.view = view;
    for (const button of document.querySelectorAll('[data-view]')) button.setAttribute('aria-pressed', button.dataset.view === view);
    redraw();
  };
  const owners = new Owners(memoryMap.report, owner => {
    if (owner === colours.owner) return;
    colours.owner = owner;
    colours.findOwner();
    byId('show-choice').hidden = !owner;
    redraw();
  });
  byId('show-choice').addEventListener('click', () => byId('map-title').scrollIntoView());
  const find = text => {
    const address = Number(text.trim().replace(/^(0x)?/i, '0x'));
    const area = Number.isFinite(address) && address > 0 ? memoryMap.areaOf(address) : null;
    byId('address').setCustomValidity(area ? '' : 'The map has no memory at this address.');
    if (area) zoom.choose(area, address); else byId('address').reportValidity();
  };

  for (const button of document.querySelectorAll('[data-view]')) {
    button.hidden = !VIEWS.includes(button.dataset.view);
    button.addEventListener('click', () => setView(button.dataset.view));
  }
  byId('smaller').addEventListener('click', () => overview.resize(-1));
  byId('larger').addEventListener('click', () => overview.resize(1));
  byId('find').addEventListener('submit', event => { event.preventDefault(); find(byId('address').value); });
  byId('address').addEventListener('input', event => event.target.setCustomValidity(''));
  if (SHARED) setView('sharing');
  setUpScheme(() => { colours.readStyle(); redraw(); });
  listenToKeys({
    v: () => setView(VIEWS[(VIEWS.indexOf(colours.view) + 1) % VIEWS.length]),
    d: () => byId('scheme').click(),
    '/': () => byId('address').focus(),
    '+': () => overview.resize(1),
    '-': () => overview.resize(-1),
    Escape: () => { if (zoom.area) zoom.close(); else if (owners.chosen) owners.choose(null); else overview.showAll(); },
  });
  showHead(memoryMap.report);
  showDetails(memoryMap.report);
  if (location.hash.length > 1) find(location.hash.slice(1));
  return { memoryMap, colours, overview, zoom, owners };
}

(async () => {
  const started = performance.now();
  try {
    if (!('DecompressionStream' in window)) throw new Error('this browser has no DecompressionStream (use a newer one)');
    window.rbloat = setUp(await MemoryMap.load());
    document.documentElement.dataset.drawnMs = Math.round(performance.now() - started);
  } catch (error) {
    byId('failure').textContent = `Cannot draw the memory map: ${error.message}`;
    byId('failure').hidden = false;
    throw error;
  }
})();
