"use strict";
// The drawing of a graph: zoom and pan by mouse, touch and keys; each box is a button that shows its layer.

const GLYPHS = { weights: "W", normalization: "N", neuron: "ƒ", pooling: "P", loss: "L", source: "▣", other: "•" };
const ZOOM = { least: 0.04, largest: 3, step: 1.25 };

const kindOf = (name) => name.replace(/^MPS(CNN|NN)?/, "").replace(/Node$/, "");

// Text within a width in pixels, shortened in its middle.
const ruler = document.createElement("canvas").getContext("2d");

function widthOf(text, font) {
  ruler.font = `${font} system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif`;
  return ruler.measureText(text).width;
}

function cut(text, width, font) {
  let short = text;
  for (let most = text.length - 1; most > 4 && widthOf(short, font) > width; most--) {
    const tail = Math.floor((most - 1) / 2);
    short = `${text.slice(0, most - 1 - tail)}…${text.slice(-tail)}`;
  }
  return short;
}

// The gradient of a layer goes by a sign, so that what it is of has room.
const briefly = (name) => name.replace(/^(.*) gradient\b/, "∇ $1");

class GraphDrawing {
  constructor(view, onSelect) {
    this.view = view;
    this.onSelect = onSelect;
    this.joined = false;
    this.at = { k: 1, x: 0, y: 0 };
    this.selected = null;
    this.world = draw("g", {});
    this.svg = draw("svg", { class: "graph", role: "group", "aria-label": `Graph ${view.name}: arrow keys walk from layer to layer` },
      draw("defs", {}, draw("marker", { id: `head-${view.key}`, viewBox: "0 0 8 8", refX: 7.5, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto-start-reverse" },
        draw("path", { class: "head", d: "M0 0L8 4L0 8z", fill: "var(--soft)" }))),
      this.world);
    this.bar = this.tools();
    this.element = make("div", { class: "stage" }, this.svg, this.bar,
      make("p", { class: "keys", "aria-hidden": "true" }, "↑ ↓ ← → walk · Enter details · + − 0 zoom"));
    this.listen();
  }

  tools() {
    const list = `names-${this.view.key}`;
    const search = make("input", { type: "search", placeholder: "Find a layer", "aria-label": "Find a layer", list, oninput: () => this.find(search.value) });
    const button = (name, text, action) => make("button", { type: "button", "aria-label": name, title: name, onclick: action }, text);
    const join = make("input", { type: "checkbox", id: `join-${this.view.key}`, onchange: () => { this.joined = join.checked; this.paint(); } });
    const hasGroups = this.view.nodes.some((node) => node.group !== null && node.group !== undefined);
    return make("div", { class: "tools" }, search,
      make("datalist", { id: list }, this.view.nodes.map((node) => make("option", { value: node.label }))),
      hasGroups ? make("label", { class: "check", for: join.id }, join, " One box a step") : null,
      make("span", { class: "gap" }),
      button("Zoom in", "+", () => this.zoom(ZOOM.step)), button("Zoom out", "−", () => this.zoom(1 / ZOOM.step)),
      button("Fit all of the graph", "Fit", () => this.fit()));
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return;
    const nodes = this.view.nodes;
    const exact = nodes.findIndex((node) => node.label.toLowerCase() === wanted);
    const index = exact >= 0 ? exact : nodes.findIndex((node) => node.label.toLowerCase().includes(wanted));
    if (index >= 0) this.select(index, { focus: false });
    else announce(`No layer is called ${text}`);
  }

  // --- drawing -------------------------------------------------------------------------------------------------------

  paint() {
    this.layout = layoutOf(this.view, this.joined);
    this.boxOf = new Map();
    for (const box of this.layout.boxes) for (const member of box.members) this.boxOf.set(member, box);
    const shown = this.layout.edges.filter((edge) => edge.points || edge.isTurn);
    this.far = draw("g", {});
    const bundles = bundlesOf(this.layout).map(({ left, top, width, height }) =>
      draw("g", { class: "bundle" }, draw("rect", { x: left, y: top, width, height, rx: 10 })));
    for (const edge of shown) edge.element = this.edge(edge);
    for (const box of this.layout.boxes) box.element = this.box(box);
    this.world.replaceChildren(...bundles, ...shown.map((edge) => edge.element), this.far, ...this.layout.boxes.flatMap((box) => [box.element, box.words]));
    const chosen = this.selected === null ? this.layout.boxes[0] : this.boxOf.get(this.selected);
    chosen.element.setAttribute("tabindex", "0");
    this.home();
    if (this.selected !== null) this.mark(this.selected);
  }

  edge(edge) {
    const lines = edge.at ? edge.lines : [];
    const label = lines.length ? [
      draw("rect", { class: "back", x: edge.at.x - edge.size.width / 2, y: edge.at.y - edge.size.height / 2, width: edge.size.width, height: edge.size.height, rx: 4 }),
      draw("text", { y: edge.at.y - 7 * (lines.length - 1) + 4 }, lines.map((line, place) =>
        draw("tspan", { x: edge.at.x, dy: place ? 14 : 0, class: place ? "pad" : "shape" }, line)))] : null;
    return draw("g", { class: edge.hidden ? "edge hid" : "edge", "aria-hidden": "true" },
      draw("path", { d: pathOf(edge), "marker-end": `url(#head-${this.view.key})` }), label);
  }

  box(box) {
    const { node, width, height } = box;
    const names = box.members.slice(-BOX.most).map((member) => this.view.nodes[member].label);
    const time = node.seconds === undefined ? null : seconds(node.seconds);
    const rest = [node.fused ? "fused" : null, time].filter(Boolean).map((text) => ` · ${text}`).join("");
    const room = width - BOX.glyph - 16;
    const below = cut(kindOf(node.class), room - widthOf(rest, "11px"), "11px") + rest;
    const left = box.x - width / 2, top = box.y - height / 2;
    const place = `translate(${left} ${top})`;
    const element = draw("g", {
      class: `node f-${node.family}${node.fused ? " fused" : ""}`, role: "button", tabindex: "-1", "aria-pressed": "false",
      "aria-label": this.described(box), "data-layer": node.label, transform: place,
    },
      draw("rect", { class: "ring", x: -5, y: -5, width: width + 10, height: height + 10, rx: 10 }),
      draw("rect", { class: "box", width, height, rx: 7 }),
      draw("path", { class: "tint", d: `M7 0H${BOX.glyph}V${height}H7A7 7 0 0 1 0 ${height - 7}V7A7 7 0 0 1 7 0z` }));
    // The name of the button says all of it in full.
    box.words = draw("g", { class: "words", "aria-hidden": "true", transform: place },
      draw("text", { class: "glyph", x: BOX.glyph / 2, y: height / 2 + 5 }, GLYPHS[node.family]),
      names.map((name, line) => draw("text", { class: "name", x: BOX.glyph + 8, y: 18 + line * BOX.line }, cut(briefly(name), room, "bold 12px"))),
      draw("text", { class: "kind", x: BOX.glyph + 8, y: height - 9 }, below));
    element.addEventListener("click", () => { if (!this.dragged) this.select(box.id, { focus: true }); });
    return element;
  }

  // What a screen reader says of a box.
  described(box) {
    const { node } = box;
    const parts = [box.members.map((member) => this.view.nodes[member].label).join(", "), kindOf(node.class)];
    const source = this.view.nodes[box.members[0]].sources.map(lengths).join(" and ");
    if (source) parts.push(`from ${source}`);
    if (node.result) parts.push(`${source ? "to " : ""}${lengths(node.result)}`);
    const padding = this.view.edges.filter((edge) => box.members.includes(edge.to) && isPadded(edge.padding));
    if (padding.length) parts.push(`padding ${sidesText(padding[0].padding)}`);
    if (node.fused) parts.push("fused into a neighbour");
    return parts.join(", ");
  }

  // --- choosing ------------------------------------------------------------------------------------------------------

  select(index, { focus }) {
    const box = this.boxOf.get(index);
    this.mark(index);
    this.bring(box);
    if (focus) box.element.focus({ preventScroll: true });
    this.onSelect(index);
  }

  mark(index) {
    const box = this.boxOf.get(index);
    for (const each of this.layout.boxes) {
      each.element.setAttribute("aria-pressed", String(each === box));
      each.element.setAttribute("tabindex", each === box ? "0" : "-1");
    }
    this.selected = index;
    const touches = (edge) => edge.from === box || edge.to === box;
    for (const edge of this.layout.edges) edge.element?.classList.toggle("near", touches(edge));
    this.far.replaceChildren(...this.layout.across.filter((edge) => !edge.isTurn && touches(edge)).map((edge) =>
      draw("g", { class: "edge far", "aria-hidden": "true" }, draw("path", { d: pathOf(edge) }))));
  }

  // The next box by an arrow key: along the edges up and down, else the nearest one on that side.
  next(key) {
    const { edges, boxes } = this.layout;
    const box = boxes.find((each) => each.element === document.activeElement) || this.boxOf.get(this.selected) || boxes[0];
    const drawn = edges.filter((edge) => edge.points || edge.isTurn);
    if (key === "Home") return boxes[0];
    if (key === "End") return boxes[boxes.length - 1];
    if (key === "ArrowDown" || key === "ArrowUp") {
      const isBack = Boolean(box.node.gradient);
      const ahead = (key === "ArrowDown") !== isBack;
      const linked = drawn.filter((edge) => (ahead ? edge.from : edge.to) === box).map((edge) => ahead ? edge.to : edge.from);
      const nearest = linked.sort((one, other) => Math.hypot(one.x - box.x, one.y - box.y) - Math.hypot(other.x - box.x, other.y - box.y))[0];
      return nearest || boxes[boxes.indexOf(box) + (ahead ? 1 : -1)] || box;
    }
    const side = key === "ArrowRight" ? 1 : -1;
    const beside = boxes.filter((other) => (other.x - box.x) * side > 20);
    const far = (other) => Math.abs(other.x - box.x) + 4 * Math.abs(other.y - box.y);
    return beside.sort((one, other) => far(one) - far(other))[0] || box;
  }

  // --- zoom and pan --------------------------------------------------------------------------------------------------

  apply() {
    this.world.setAttribute("transform", `translate(${this.at.x} ${this.at.y}) scale(${this.at.k})`);
  }

  home() {
    const { width, height } = this.size();
    const fits = Math.min(width / this.layout.width, (height - 60) / this.layout.height);
    const k = fits >= 0.75 ? Math.min(fits, 1.15) : Math.min(1, Math.max(0.6, width / this.layout.width));
    this.at = { k, x: (width - this.layout.width * k) / 2, y: fits >= 0.75 ? Math.max(50, (height - this.layout.height * k) / 2) : 46 };
    if (fits < 0.75) {
      const first = this.layout.boxes[0];
      this.at.y = this.bar.offsetHeight + 26 - (first.y - first.height / 2) * k;
      this.at.x = Math.min(width / 2 - first.x * k, 10);
      if (!this.layout.across.length) this.at.x = width / 2 - first.x * k;
    }
    this.apply();
  }

  fit() {
    const { width, height } = this.size();
    const k = Math.max(ZOOM.least, Math.min((width - 20) / this.layout.width, (height - 70) / this.layout.height, ZOOM.largest));
    this.at = { k, x: (width - this.layout.width * k) / 2, y: 50 + Math.max(0, (height - 60 - this.layout.height * k) / 2) };
    this.apply();
  }

  size() {
    return { width: this.svg.clientWidth || 800, height: this.svg.clientHeight || 600 };
  }

  zoom(by, about) {
    const { width, height } = this.size();
    const { x, y } = about || { x: width / 2, y: height / 2 };
    const k = Math.max(ZOOM.least, Math.min(ZOOM.largest, this.at.k * by));
    this.at = { k, x: x - ((x - this.at.x) * k) / this.at.k, y: y - ((y - this.at.y) * k) / this.at.k };
    this.apply();
  }

  // Move the drawing as far as a box needs to be seen.
  bring(box) {
    const { width, height } = this.size();
    const { k } = this.at;
    const inside = (place, low, high) => Math.max(low, Math.min(place, high));
    const x = this.at.x + box.x * k, y = this.at.y + box.y * k;
    const half = { x: (box.width / 2) * k + 16, y: (box.height / 2) * k + 50 };
    this.at.x += inside(x, half.x, Math.max(half.x, width - half.x)) - x;
    this.at.y += inside(y, half.y + 20, Math.max(half.y + 20, height - half.y)) - y;
    this.apply();
  }

  listen() {
    this.svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = this.svg.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey) return this.zoom(Math.exp(-event.deltaY / 200), { x: event.clientX - box.left, y: event.clientY - box.top });
      this.at.x -= event.shiftKey ? event.deltaY : event.deltaX;
      this.at.y -= event.shiftKey ? 0 : event.deltaY;
      this.apply();
    }, { passive: false });
    const held = new Map();
    this.svg.addEventListener("pointerdown", (event) => {
      held.set(event.pointerId, { x: event.clientX, y: event.clientY });
      this.dragged = false;
    });
    window.addEventListener("pointermove", (event) => this.drag(event, held));
    for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, (event) => {
      held.delete(event.pointerId);
      if (!held.size) this.svg.classList.remove("moving");
    });
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  drag(event, held) {
    const before = held.get(event.pointerId);
    if (!before) return;
    const step = { x: event.clientX - before.x, y: event.clientY - before.y };
    if (!this.dragged && Math.hypot(step.x, step.y) < 4) return;
    this.dragged = true;
    this.svg.classList.add("moving");
    const others = [...held].filter(([id]) => id !== event.pointerId);
    if (others.length) {
      const [, other] = others[0];
      const box = this.svg.getBoundingClientRect();
      const far = (point) => Math.hypot(point.x - other.x, point.y - other.y) || 1;
      this.zoom(far({ x: event.clientX, y: event.clientY }) / far(before), { x: other.x - box.left, y: other.y - box.top });
    } else {
      this.at.x += step.x;
      this.at.y += step.y;
      this.apply();
    }
    held.set(event.pointerId, { x: event.clientX, y: event.clientY });
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const actions = { "+": () => this.zoom(ZOOM.step), "=": () => this.zoom(ZOOM.step), "-": () => this.zoom(1 / ZOOM.step), 0: () => this.fit() };
    if (event.key in actions) {
      event.preventDefault();
      actions[event.key]();
    } else if (["ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) {
      event.preventDefault();
      this.select(this.next(event.key).id, { focus: true });
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      const box = this.layout.boxes.find((each) => each.element === document.activeElement);
      if (box) this.select(box.id, { focus: false });
      document.getElementById("detail").focus();
    }
  }
}
