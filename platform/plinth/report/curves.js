// Curves: the values under the pointer; drag to zoom in, double-click to reset. Without a script the page is complete.
const frames = [], readout = document.body.appendChild(document.createElement("div"));
readout.className = "readout";
for (const svg of document.querySelectorAll("svg[data-curves]")) {
  svg.drawn = svg.innerHTML;
  for (const [number, frame] of JSON.parse(svg.dataset.curves).entries())
    frames.push({...frame, number, svg, root: svg.closest(".view") || svg, from: 0, to: 1});
}
const together = frame => frames.filter(each => each.root === frame.root && each.low === frame.low && each.high === frame.high);
const add = (parent, name, attributes) => {
  const made = parent.appendChild(document.createElementNS(parent.namespaceURI, name));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};
const valueAt = ({low, high, log}, share) => log ? low * (high / low) ** share : low + (high - low) * share;
const shareOf = ({low, high, log}, value) => log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
const two = value => String(Math.floor(value) % 60).padStart(2, "0");
const words = (frame, value) => typeof value === "string" ? value
  : frame ? `${Math.floor(value / 3600)}:${two(value / 60)}:${two(value)}`
  : value.toLocaleString("en-US", Number.isInteger(value) ? {} : {maximumSignificantDigits: 4});

function zoom(frame, from, to) {
  const group = together(frame);
  for (const svg of new Set(group.map(each => each.svg))) svg.innerHTML = svg.drawn;
  for (const each of group) {
    Object.assign(each, {from, to});
    if (from === 0 && to === 1) continue;
    const [x, y, width, height] = each.box, scale = 1 / (to - from), place = at => x + (at - x - from * width) * scale;
    const inside = each.svg.querySelector(`[data-frame="${each.number}"]`) || each.svg, id = `frame-${frames.indexOf(each)}`;
    add(add(each.svg, "clipPath", {id}), "rect", {x, y, width, height});
    for (const moved of inside.querySelectorAll("[data-moves]")) {
      const held = add(moved.parentNode, "g", {"clip-path": `url(#${id})`});
      moved.replaceWith(held);
      held.append(moved);
      for (const path of moved.querySelectorAll(":not(defs) > path")) {
        path.removeAttribute("clip-path");
        path.setAttribute("transform", `matrix(${scale} 0 0 1 ${place(0)} 0)`);
        path.setAttribute("vector-effect", "non-scaling-stroke");
      }
      for (const mark of moved.querySelectorAll("use")) mark.setAttribute("x", place(Number(mark.getAttribute("x"))));
      const text = moved.querySelector("text"), at = text && Number(text.getAttribute("x"));
      if (text) moved.setAttribute("transform", `translate(${place(at) - at} 0)`);
    }
    const ticks = [...inside.querySelectorAll('[id^="xtick"]')], span = valueAt(each, to) - valueAt(each, from);
    const unit = Math.max(each.whole ? 1 : 0, 10 ** Math.floor(Math.log10(span / 8)));
    for (const [number, tick] of ticks.entries()) {
      const value = Math.round(valueAt(each, from + (to - from) * (number + 0.5) / ticks.length) / unit) * unit;
      const text = tick.querySelector("text"), at = place(x + width * shareOf(each, value));
      tick.replaceChildren(...(text && at >= x && at <= x + width ? [text] : []));
      text?.removeAttribute("transform");
      text?.setAttribute("x", at);
      if (text) text.textContent = words(each.time, value);
    }
  }
}

function pointed(svg, event) {
  const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
  const x = view.x + (event.clientX - box.left) * view.width / box.width;
  const y = view.y + (event.clientY - box.top) * view.height / box.height;
  const gap = ({box: [left, top, width, height]}) =>
    Math.max(0, left - x, x - left - width) + Math.max(0, top - y, y - top - height);
  const frame = frames.filter(each => each.svg === svg).sort((a, b) => gap(a) - gap(b))[0];
  return {frame, share: Math.min(1, Math.max(0, (x - frame.box[0]) / frame.box[2]))};
}

function hide(frame) {
  readout.style.display = "none";
  for (const {svg} of together(frame)) {
    for (const mark of svg.querySelectorAll(".pointer")) mark.remove();
    for (const label of svg.closest(".panel")?.querySelectorAll("[data-line]") || []) label.textContent = "";
  }
}

for (const svg of new Set(frames.map(frame => frame.svg))) {
  let start = null;
  const move = event => {
    const {frame, share} = pointed(svg, event), whole = frame.from + share * (frame.to - frame.from);
    hide(frame);
    const nearest = line => line.x.reduce((best, x, at) => Math.abs(x - whole) < Math.abs(line.x[best] - whole) ? at : best, 0);
    for (const each of together(frame)) {
      const [x, y, width, height] = each.box, edge = start === null ? share : start;
      add(each.svg, "rect", {class: "pointer", x: x + width * Math.min(share, edge), y, height, width: Math.max(0.7, width * Math.abs(share - edge))});
      for (const line of each.lines) {
        const label = each.svg.closest(".panel")?.querySelector(`[data-line="${CSS.escape(line.name)}"]`);
        if (label) label.textContent = words(false, line.y[nearest(line)]);
      }
    }
    if (!frame.lines.length) return;
    const value = valueAt(frame, frame.lines[0].x[nearest(frame.lines[0])]);
    const lines = frame.lines.map(line => `${line.name} ${words(false, line.y[nearest(line)])}`.trim());
    readout.textContent = [`${frame.x} ${words(frame.time, frame.whole ? Math.round(value) : value)}`, frame.y, ...lines].join("\n");
    readout.style.display = "block";
    const left = event.clientX + 16 + readout.offsetWidth > innerWidth ? event.clientX - 16 - readout.offsetWidth : event.clientX + 16;
    Object.assign(readout.style, {left: `${Math.max(4, left)}px`, top: `${Math.max(4, Math.min(event.clientY + 12, innerHeight - readout.offsetHeight - 4))}px`});
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerleave", event => { start = null; hide(pointed(svg, event).frame); });
  svg.addEventListener("pointerdown", event => {
    if (event.pointerType !== "mouse" || event.button) return;
    event.preventDefault();
    start = pointed(svg, event).share;
  });
  svg.addEventListener("pointerup", event => {
    const {frame, share} = pointed(svg, event), ends = [start, share].sort((a, b) => a - b), begin = start;
    start = null;
    if (begin === null || ends[1] - ends[0] < 0.01) return;
    zoom(frame, ...ends.map(end => frame.from + end * (frame.to - frame.from)));
    move(event);
  });
  svg.addEventListener("dblclick", event => { zoom(pointed(svg, event).frame, 0, 1); move(event); });
}
