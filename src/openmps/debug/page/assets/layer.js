"use strict";
// The details: of the network while no layer is chosen, else of that layer.

const KINDS = { source: "source", parameter: "parameter", image: "activations", gradient: "gradients", state: "gradients of parameters" };
const LONG = 160;

function networkDetail(view, onSelect) {
  const layers = view.nodes.filter((node) => node.sources.length);
  const total = (name) => layers.reduce((sum, node) => sum + (node[name] || 0), 0);
  const timed = view.nodes.map((node, index) => [node, index]).filter(([node]) => node.seconds !== undefined)
    .sort((one, other) => other[0].seconds - one[0].seconds);
  const fused = layers.filter((node) => node.fused).length;
  return [
    make("h2", {}, view.name),
    facts([
      ["layers", `${layers.length}${fused ? `, ${fused} of them fused into a neighbour` : ""}`],
      ["parameters", `${whole(total("parameters"))} (${bytes(total("parameter_bytes"))})`],
      ["results", `${bytes(total("result_bytes"))} for ${counted(view.images, "image")}`],
      view.time ? ["a run", `${seconds(view.time.seconds)} on ${view.time.device}`] : ["", ""],
    ]),
    DATA.facts.slice(1).map(factText),
    view.missing ? make("p", { class: "note" }, view.missing) : null,
    make("p", { class: "soft" }, "Choose a layer to see its parameters, numbers and padding. Dashed boxes are fused: they run as a part of the step around them, and their result is never stored."),
    make("p", { class: "soft" }, "Drag and wheel move the graph, with Ctrl the wheel zooms. By keys: Tab to the graph, arrows walk, Enter goes to the details, + − 0 zoom."),
    timed.length ? make("h3", {}, "Where the time goes") : null,
    timed.length ? make("div", { class: "tablebox" }, make("table", {}, make("caption", {}, "The longest steps"),
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "step"), make("th", { scope: "col", class: "number" }, "time"), make("th", { scope: "col", class: "number" }, "share"))),
      make("tbody", {}, timed.slice(0, 8).map(([node, index]) => make("tr", {},
        make("th", { scope: "row" }, make("button", { class: "link", type: "button", onclick: () => onSelect(index) }, node.timed.map((each) => view.nodes[each].label).join(" + "))),
        make("td", { class: "number" }, seconds(node.seconds)), make("td", { class: "number" }, percent(node.seconds / view.time.steps))))))) : null,
  ];
}

// A line on the network; a long one folded.
function factText(fact) {
  if (fact.length <= LONG) return make("p", {}, fact);
  return make("details", {}, make("summary", {}, `${fact.slice(0, LONG - 30)}…`), make("p", {}, fact));
}

function layerDetail(view, index, onSelect) {
  const node = view.nodes[index];
  const link = (other) => make("button", { class: "link", type: "button", onclick: () => onSelect(other) }, view.nodes[other].label);
  const listed = (others) => others.map((other, place) => [place ? ", " : "", link(other)]);
  const from = view.edges.filter((edge) => edge.to === index), to = view.edges.filter((edge) => edge.from === index);
  const group = node.group === null || node.group === undefined ? [] :
    view.nodes.map((each, place) => place).filter((place) => view.nodes[place].group === node.group && place !== index);
  const sides = from.find((edge) => edge.padding)?.padding;
  return [
    make("h2", {}, node.label),
    make("div", { class: "chips" }, make("span", { class: "chip mono" }, node.class),
      node.fused ? make("span", { class: "chip" }, "fused: its result is not stored") : null,
      node.gradient ? make("span", { class: "chip" }, "way back") : null),
    facts([
      ["reads", from.length ? listed(from.map((edge) => edge.from)) : null],
      ["read by", to.length ? listed(to.map((edge) => edge.to)) : null],
      ["source", node.sources.map(lengths).join(", ")],
      ["result", node.result ? `${lengths(node.result)}, ${node.format}` : "none"],
      ["parameters", node.parameters ? `${whole(node.parameters)} (${bytes(node.parameter_bytes)})` : null],
      ["result bytes", node.result_bytes ? bytes(node.result_bytes) : null],
      ["one step with", group.length ? listed(group) : null],
      ["time", timeText(view, index)],
    ]),
    node.placement !== undefined ? [make("h3", {}, "Padding"), placementSection(node, sides)] : null,
    ...(node.values || []).map((value) => valueSection(view, value)),
    !node.values && view.missing ? make("p", { class: "note" }, view.missing) : null,
  ];
}

function timeText(view, index) {
  const node = view.nodes.find((each) => each.timed?.includes(index));
  if (!node) return null;
  const parts = [seconds(node.seconds), `${percent(node.seconds / view.time.steps)} of all steps`];
  if (node.operations) parts.push(`${short(node.operations / node.seconds / 1e9)} GFLOP/s of ${short(view.time.operations / 1e9)}`);
  if (node.bytes) parts.push(`${short(node.bytes / node.seconds / 1e9)} GB/s of ${short(view.time.bandwidth / 1e9)}`);
  if (node.timed.length > 1) parts.push("of the whole step");
  return parts.join(", ");
}

function valueSection(view, value) {
  const own = value.label.includes("/") ? value.label.slice(value.label.lastIndexOf("/") + 1).replaceAll("_", " ") : KINDS[value.kind];
  const section = [
    make("h3", {}, own),
    make("p", { class: "soft mono" }, `${lengths(value.shape)}, ${value.format}`),
    value.histogram.bins.length ? histogram(value.histogram, own) : null,
    statistics(value.histogram),
  ];
  if (value.filters) section.push(gallery(value.filters));
  if (value.maps) section.push(mapsOf(view, value.maps));
  return make("section", { class: "value" }, section);
}

// Feature maps of the first images, one image at a time.
function mapsOf(view, maps) {
  const place = make("div", {});
  const show = (number) => place.replaceChildren(...[maps[number].values ? channelBars(maps[number], view.classes) : gallery(maps[number])].flat(Infinity).filter(Boolean));
  show(0);
  if (maps.length < 2) return place;
  const choose = make("select", { "aria-label": "Image", onchange: () => show(Number(choose.value)) },
    maps.map((_, number) => make("option", { value: number }, `image ${number}`)));
  return [make("div", { class: "row" }, choose), place];
}
