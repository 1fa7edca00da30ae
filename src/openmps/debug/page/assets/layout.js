"use strict";
// Where boxes and edges lie: dagre places the way there, and the way back beside it, which runs upwards.

const BOX = { width: 216, head: 42, line: 16, most: 6, glyph: 26 };
const GAP = { columns: 120, nodes: 26, ranks: 20, letter: 6.1 };

// The boxes of a view: a layer each, or, joined, a step each with all the layers that it computes.
function boxesOf(view, joined) {
  const boxes = new Map();
  view.nodes.forEach((node, index) => {
    const of = joined && node.group !== null && node.group !== undefined ? node.group : index;
    if (!boxes.has(of)) boxes.set(of, { id: of, node: view.nodes[of], members: [] });
    boxes.get(of).members.push(index);
  });
  for (const box of boxes.values()) {
    box.width = BOX.width;
    box.height = BOX.head + BOX.line * (Math.min(box.members.length, BOX.most) - 1);
  }
  return boxes;
}

function edgesOf(view, boxes) {
  const owner = new Map();
  for (const box of boxes.values()) for (const member of box.members) owner.set(member, box);
  const found = new Map();
  for (const edge of view.edges) {
    const from = owner.get(edge.from), to = owner.get(edge.to);
    const key = `${from.id} ${to.id}`;
    if (from === to || found.has(key)) continue;
    const maker = view.nodes[edge.from];
    const lines = maker.result ? [lengths(maker.result)] : [];
    if (isPadded(edge.padding)) lines.push(`pad ${sidesText(edge.padding)}`);
    found.set(key, { from, to, lines, hidden: Boolean(maker.fused) });
  }
  return [...found.values()];
}

// Places one column; gives its size. Edges get the points that they run through and the middle of their label.
function placeColumn(boxes, edges, direction) {
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: direction, nodesep: GAP.nodes, ranksep: GAP.ranks, edgesep: 14, marginx: 20, marginy: 20 });
  for (const box of boxes) graph.setNode(String(box.id), { width: box.width, height: box.height });
  edges.forEach((edge, place) => {
    const longest = Math.max(0, ...edge.lines.map((line) => line.length));
    edge.size = { width: longest * GAP.letter + 10, height: 14 * edge.lines.length || 1 };
    graph.setEdge(String(edge.from.id), String(edge.to.id), { ...edge.size, labelpos: "c" }, String(place));
  });
  dagre.layout(graph);
  for (const box of boxes) Object.assign(box, { x: graph.node(String(box.id)).x, y: graph.node(String(box.id)).y });
  edges.forEach((edge, place) => {
    const found = graph.edge(String(edge.from.id), String(edge.to.id), String(place));
    Object.assign(edge, { points: found.points, at: { x: found.x, y: found.y } });
  });
  return graph.graph();
}

function shifted(boxes, edges, x, y) {
  for (const box of boxes) { box.x += x; box.y += y; }
  for (const edge of edges) {
    edge.points = edge.points.map((point) => ({ x: point.x + x, y: point.y + y }));
    edge.at = { x: edge.at.x + x, y: edge.at.y + y };
  }
}

function layoutOf(view, joined) {
  const boxes = boxesOf(view, joined);
  const edges = edgesOf(view, boxes);
  const isBack = (box) => Boolean(box.node.gradient);
  const there = [...boxes.values()].filter((box) => !isBack(box)), back = [...boxes.values()].filter(isBack);
  const within = (edge, part) => isBack(edge.from) === part && isBack(edge.to) === part;
  const down = edges.filter((edge) => within(edge, false)), up = edges.filter((edge) => within(edge, true));
  const first = placeColumn(there, down, "TB");
  let width = first.width, height = first.height;
  if (back.length) {
    const second = placeColumn(back, up, "BT");
    height = Math.max(first.height, second.height);
    // The loss, where one turns into the other, is at the bottom of both.
    shifted(there, down, 0, height - first.height);
    shifted(back, up, first.width + GAP.columns, height - second.height);
    width = first.width + GAP.columns + second.width;
  }
  const across = edges.filter((edge) => isBack(edge.from) !== isBack(edge.to));
  for (const edge of across) {
    edge.points = null;
    edge.isTurn = edge.from.node.family === "loss";
  }
  return { boxes: [...boxes.values()], edges, across, width, height, joined };
}

function pathOf(edge) {
  if (!edge.points) {
    const { from, to } = edge;
    const one = { x: from.x + from.width / 2, y: from.y }, other = { x: to.x - to.width / 2, y: to.y };
    const bend = Math.max(40, (other.x - one.x) / 2);
    return `M${one.x} ${one.y}C${one.x + bend} ${one.y} ${other.x - bend} ${other.y} ${other.x} ${other.y}`;
  }
  const [first, ...rest] = edge.points;
  let path = `M${first.x} ${first.y}`;
  if (rest.length < 2) return path + rest.map((point) => `L${point.x} ${point.y}`).join("");
  for (let place = 0; place < rest.length - 2; place++) {
    const middle = { x: (rest[place].x + rest[place + 1].x) / 2, y: (rest[place].y + rest[place + 1].y) / 2 };
    path += `Q${rest[place].x} ${rest[place].y} ${middle.x} ${middle.y}`;
  }
  const [control, last] = rest.slice(-2);
  return `${path}Q${control.x} ${control.y} ${last.x} ${last.y}`;
}

// The outline of layers that run as one step; none where another box lies between them.
function bundlesOf(layout) {
  if (layout.joined) return [];
  const groups = new Map();
  for (const box of layout.boxes) {
    const { group } = box.node;
    if (group !== null && group !== undefined) groups.set(group, [...(groups.get(group) || []), box]);
  }
  const found = [];
  for (const boxes of groups.values()) {
    const left = Math.min(...boxes.map((box) => box.x - box.width / 2)) - 8, right = Math.max(...boxes.map((box) => box.x + box.width / 2)) + 8;
    const top = Math.min(...boxes.map((box) => box.y - box.height / 2)) - 8, bottom = Math.max(...boxes.map((box) => box.y + box.height / 2)) + 8;
    const isOther = (box) => !boxes.includes(box) && box.x + box.width / 2 > left && box.x - box.width / 2 < right &&
      box.y + box.height / 2 > top && box.y - box.height / 2 < bottom;
    if (boxes.length > 1 && !layout.boxes.some(isOther)) found.push({ left, top, width: right - left, height: bottom - top });
  }
  return found;
}
