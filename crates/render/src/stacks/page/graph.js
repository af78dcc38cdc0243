// A flame graph: stacks are merged from their outermost frame on.

class FlameGraph {
  static MIN_WIDTH = 0.05;

  /** A graph inside of one element, with the description of a method in another one; `words` puts a weight into words. */
  constructor(graph, tip, words = size) {
    this.graph = graph;
    this.tip = tip;
    this.words = words;
    this.text = '';
    this.graph.addEventListener('keydown', event => { if (event.key === 'Escape') this.enlarge([this.root]); });
  }

  /** Shows stacks: pairs of weights and names, the outermost first. */
  show(title, stacks) {
    const node = name => ({ name, weight: 0, own: 0, children: new Map() });
    this.root = node(title);
    for (const [weight, names] of stacks) {
      let at = this.root;
      at.weight += weight;
      for (const name of names) {
        if (!at.children.has(name)) at.children.set(name, node(name));
        at = at.children.get(name);
        at.weight += weight;
      }
      at.own += weight;
    }
    this.draw([this.root]);
    this.tip.textContent = this.describe(this.root);
  }

  /** Marks the methods whose name has this text. */
  mark(text) {
    this.text = text.toLowerCase();
    this.draw(this.shown);
  }

  /** Draws a path as after a click on its last method, which keeps the focus. */
  enlarge(path) {
    this.draw(path);
    [...this.graph.querySelectorAll('button')].find(button => button.frame === path.at(-1))?.focus();
  }

  /** A warm colour that depends on the name only. */
  static colour(name) {
    let hash = 7;
    for (const char of name) hash = (hash * 31 + char.codePointAt(0)) % 9973;
    return `hsl(${20 + hash % 40} ${55 + hash % 30}% ${66 + hash % 14}%)`;
  }

  describe(it) {
    const percent = (100 * it.weight / Math.max(this.root.weight, 1)).toFixed(1);
    return `${it.name}: ${this.words(it.weight)} (${percent} %), ${this.words(it.own)} in itself`;
  }

  /** Draws the path to a node in full width, and everything above it. */
  draw(path) {
    this.shown = path;
    const rows = [];
    const place = (it, depth, left, width, above) => {
      if (width < FlameGraph.MIN_WIDTH) return;
      (rows[depth] ??= []).push({ it, left, width, above });
    };
    path.forEach((it, depth) => place(it, depth, 0, 100, path.slice(0, depth + 1)));
    const climb = (it, depth, left, width, above) => {
      const children = [...it.children.values()].sort((a, b) => b.weight - a.weight);
      for (const child of children) {
        const part = width * child.weight / Math.max(it.weight, 1);
        if (part < FlameGraph.MIN_WIDTH) break;
        place(child, depth, left, part, [...above, child]);
        climb(child, depth + 1, left, part, [...above, child]);
        left += part;
      }
    };
    climb(path[path.length - 1], path.length, 0, 100, path);
    this.graph.replaceChildren(...rows.map(row => {
      const line = document.createElement('div');
      line.className = 'row';
      line.append(...row.map(place => this.button(place)));
      return line;
    }));
  }

  button({ it, left, width, above }) {
    const button = document.createElement('button');
    button.type = 'button';
    button.textContent = it.name;
    button.frame = it;
    button.style.left = `${left}%`;
    button.style.width = `${width}%`;
    button.style.background = FlameGraph.colour(it.name);
    button.title = this.describe(it);
    button.classList.toggle('found', this.text !== '' && it.name.toLowerCase().includes(this.text));
    const show = () => { this.tip.textContent = this.describe(it); };
    button.addEventListener('mouseenter', show);
    button.addEventListener('focus', show);
    button.addEventListener('click', () => this.enlarge(above));
    return button;
  }
}
