"use strict";
// The graph as a table, which says all that the drawing says.

function tableOf(view, onSelect) {
  const padded = (index) => view.edges.find((edge) => edge.to === index && isPadded(edge.padding))?.padding;
  const layers = view.nodes.map((node, index) => ({ node, index }));
  const columns = [
    { name: "layer", of: ({ node }) => node.label },
    { name: "class", of: ({ node }) => node.class },
    { name: "reads", of: ({ index }) => view.edges.filter((edge) => edge.to === index).map((edge) => view.nodes[edge.from].label).join(", ") },
    { name: "source", of: ({ node }) => node.sources.map(lengths).join(", ") },
    { name: "result", of: ({ node }) => node.result ? lengths(node.result) : "none" },
    { name: "padding", of: ({ index }) => padded(index) ? sidesText(padded(index)) : "" },
    { name: "parameters", number: true, of: ({ node }) => node.parameters ? whole(node.parameters) : "", sort: ({ node }) => node.parameters },
    { name: "time", number: true, of: ({ node }) => node.seconds === undefined ? "" : seconds(node.seconds), sort: ({ node }) => node.seconds || 0 },
    { name: "runs", of: ({ node }) => node.fused ? "fused" : node.sources.length ? "a step" : "" },
  ];
  const body = make("tbody", {});
  const show = (rows) => body.replaceChildren(...rows.map((row) => make("tr", {}, columns.map((column, place) => {
    if (!place) return make("th", { scope: "row" }, make("button", { class: "link", type: "button", onclick: () => onSelect(row.index) }, column.of(row)));
    return make("td", { class: column.number ? "number" : null }, column.of(row));
  }))));
  const heads = columns.map((column) => make("th", { scope: "col", class: column.number ? "number" : null },
    make("button", { type: "button", title: `Sort by ${column.name}` }, column.name)));
  heads.forEach((head, place) => head.firstChild.addEventListener("click", () => {
    const falls = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
    const key = columns[place].sort || columns[place].of;
    const compare = (one, other) => typeof one === "number" ? one - other : one.localeCompare(other, "en", { numeric: true });
    const sorted = [...layers].sort((one, other) => compare(key(one), key(other)));
    show(falls ? sorted.reverse() : sorted);
  }));
  show(layers);
  return make("div", { class: "tablebox" }, make("table", {},
    make("caption", {}, `${view.name}: every layer in the order in which it runs`), make("thead", {}, make("tr", {}, heads)), body));
}
